"""Calls to the receiver: answers, retries, transport; the standard library alone."""

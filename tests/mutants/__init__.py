"""Mutation testing of the rules that a promise hangs on: plant a small bug, run the nearest tests, see who notices."""

"""Notifications: notices of what happened, kept durably, and the channels that carry them to people."""

"""Notifications: notices of what happened, kept durably, and when they are sent to which channel."""

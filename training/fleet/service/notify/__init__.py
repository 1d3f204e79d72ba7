"""Notifications: make notices of events, store them durably, and decide when they are sent to which channel."""

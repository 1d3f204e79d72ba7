"""The receiver's metrics for Prometheus: counters, a snapshot of the fleet, and their text."""

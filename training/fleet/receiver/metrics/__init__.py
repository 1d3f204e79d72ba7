"""The receiver's figures for Prometheus: counts kept as things happen, a snapshot of the fleet, its text."""

"""The telemetry recorder: runs workloads on a host, and samples the host's channels meanwhile."""

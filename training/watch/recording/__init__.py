"""The telemetry recorder: run workloads on a host and sample the host meanwhile."""

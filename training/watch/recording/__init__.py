"""The telemetry recorder: run workloads on a host and sample it meanwhile."""

"""Turn recorded telemetry into validated data sets of windows, and divide these into sides that share no recording."""

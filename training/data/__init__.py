"""Turn recorded telemetry into validated data sets of windows, whose splits do not leak."""

"""From recorded telemetry to validated, windowed, leak-free data sets."""

"""Recorded telemetry becomes validated, windowed, leak-free data sets."""

"""Evaluate a model: scored windows, metrics, intervals, thresholds, verdict, report."""

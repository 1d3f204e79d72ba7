"""The worth of a model: scored windows, metrics, intervals, thresholds, verdict, report."""

"""What a model is worth: scored windows, metrics, intervals, thresholds, verdict, report."""

"""Coordination: a receiver hands jobs to workers that pull. This package imports no machine-learning library."""

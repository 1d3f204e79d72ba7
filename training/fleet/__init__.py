"""Coordination: a receiver hands jobs to workers that pull. Imports no machine-learning library."""

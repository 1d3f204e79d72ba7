"""Coordination: a receiver grants jobs to workers that ask for them. This package imports no machine-learning
library."""

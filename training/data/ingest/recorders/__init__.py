"""Readers of other recorders' files, and of a Prometheus server; the samples become rows with the names, units and
kinds of this project's channels."""

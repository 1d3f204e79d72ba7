"""Readers of other recorders' files; the samples become rows with the names, units and kinds of this project's
channels."""

"""Readers of other recorders' files; their samples become rows under our channels' names, units and kinds."""

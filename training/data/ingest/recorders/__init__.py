"""Other recorders, whose samples become rows under the names, units and kinds of our own channels."""

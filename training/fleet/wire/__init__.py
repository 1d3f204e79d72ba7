"""The messages between receiver, workers and operators: structs, limits, problem types, identities."""

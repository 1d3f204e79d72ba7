"""What receiver, workers and operators say to each other: messages, limits, problem types, identities."""

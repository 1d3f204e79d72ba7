"""The whole fleet in one thread: production code of both sides on an event heap, every surprise drawn from a seed."""

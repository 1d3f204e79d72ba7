"""A module that keeps memory when it is imported."""

KEPT = b"\1" * 80_000_000

"""Detect values and labels that may mean something else than the user thinks; note them, and refuse some."""

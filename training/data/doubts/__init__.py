"""Detect values and labels that may mean something else than the user thinks: likely ones are noted, certain ones
refused."""

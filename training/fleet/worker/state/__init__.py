"""PURE: the worker as a state machine; every phase a module."""

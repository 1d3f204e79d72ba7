"""PURE: the worker as a state machine; each phase has a module."""

"""Generated calls against the receiver, judged by its own OpenAPI document: ``python -m tests.api``."""

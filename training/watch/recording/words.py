"""A few words for made-up logs, pages and tables."""

WORDS = ("the", "of", "session", "error", "user", "timeout", "disk", "queue", "retry", "open")

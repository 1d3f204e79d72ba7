"""The database as the queue sees it: one writer, grouped commits, named statements, and SQLite below."""

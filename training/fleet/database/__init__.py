"""The database: one writer, grouped commits, named statements, and the SQLite adapter below them."""

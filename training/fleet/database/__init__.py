"""The database: one writer thread, grouped commits, named statements, and the SQLite adapter below them."""

"""Detect data that may not mean what they say: note what is likely, refuse what is certain."""

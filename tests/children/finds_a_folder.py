"""Looks for the folder of temporary files when it is imported, and so keeps it."""

import tempfile

tempfile.gettempdir()

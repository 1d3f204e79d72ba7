"""Prints bytes that are no text, without a single line end, then a line that matters."""

import sys

sys.stdout.buffer.write(bytes(range(256)).replace(b"\n", b"") * 400)
sys.stdout.buffer.write(b"\nValueError: \xff\x1b[31mwrong\x07 shape\n")
sys.exit(1)

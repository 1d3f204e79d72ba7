"""Prints nothing and exits with argv[1]."""

import sys

sys.exit(int(sys.argv[1]))

#!/usr/bin/env python3
"""Start ``cis490-jobs`` by the path of this file. The code is in ``training/fleet/cli/program.py``."""

import sys
from pathlib import Path

# By path, Python looks beside this file first, if at all; the package lies one folder up.
HERE = Path(__file__).resolve().parent
sys.path[:] = [str(HERE.parent), *(each for each in sys.path if each != str(HERE))]

from training.fleet.cli.program import main  # noqa: E402 - the path comes first

if __name__ == "__main__":
    sys.exit(main())

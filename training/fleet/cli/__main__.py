"""``python -m training.fleet.cli``."""

from __future__ import annotations

import sys

from training.fleet.cli.program import main

if __name__ == "__main__":
    sys.exit(main())

"""Run the receiver: ``python -m training.fleet.receiver``."""

from __future__ import annotations

import sys

from training.fleet.receiver import main

if __name__ == "__main__":
    sys.exit(main())

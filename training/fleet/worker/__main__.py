"""Run the worker as ``python -m training.fleet.worker``."""

from __future__ import annotations

import sys

from training.fleet.worker.daemon import main

if __name__ == "__main__":
    sys.exit(main())

"""Run the worker as ``python -m training.fleet.worker``."""

import sys

from training.fleet.worker.daemon import main

if __name__ == "__main__":
    sys.exit(main())

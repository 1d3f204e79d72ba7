"""Run the receiver: ``python -m training.fleet.receiver``."""

import sys

from training.fleet.receiver import main

if __name__ == "__main__":
    sys.exit(main())

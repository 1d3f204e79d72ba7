"""``python -m training.fleet.cli``."""

import sys

from training.fleet.cli.program import main

if __name__ == "__main__":
    sys.exit(main())

"""Print this host's capability: ``python -m training.fleet.capability``."""

import sys

from training.fleet.capability.probe import main

if __name__ == "__main__":
    sys.exit(main())

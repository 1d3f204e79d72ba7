"""Check a manifest by the command ``python -m training.fleet.manifest FILE``."""

import sys

from training.fleet.manifest.load import main

if __name__ == "__main__":
    sys.exit(main())

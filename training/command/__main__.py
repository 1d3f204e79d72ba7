"""``python -m training.command``, the same as ``cis490``."""

import sys

from training.command.program import main

if __name__ == "__main__":
    sys.exit(main())

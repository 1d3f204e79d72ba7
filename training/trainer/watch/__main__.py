"""The program behind ``python -m training.trainer.watch``."""

from __future__ import annotations

import sys

from training.trainer.watch.program import main

if __name__ == "__main__":
    sys.exit(main())

"""Run the program of ``python -m training.data.ingest``."""

import sys

from training.data.ingest.program import main

if __name__ == "__main__":
    sys.exit(main())

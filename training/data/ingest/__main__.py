"""Run the program of ``python -m training.data.ingest``."""

import signal
import sys

from training.data.ingest import program


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that unfinished files are removed
    return program.main()


if __name__ == "__main__":
    sys.exit(main())

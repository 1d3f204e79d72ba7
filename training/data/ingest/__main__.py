"""``python -m training.data.ingest``."""

from training.data.ingest.program import main

if __name__ == "__main__":
    raise SystemExit(main())

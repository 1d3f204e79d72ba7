"""`make bench`: every benchmark in turn, each a program of its own that also runs alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
HELPERS = {"__main__.py", "__init__.py", "receivers.py", "trainers.py", "watching.py", "plain_nets.py", "large.py"}
HELPERS |= {"makespan_plot.py"}


def main() -> int:
    """Run them all; returns the worst exit code."""
    worst = 0
    for script in sorted(path for path in HERE.glob("*.py") if path.name not in HELPERS):
        print(f"\n── bench/{script.name}", flush=True)
        worst = max(worst, subprocess.run([sys.executable, str(script)], check=False).returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main())

"""Places in the checkout, and the folders of tests on the module path: there each module has a bare name."""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
CHILDREN = TESTS / "children"  # programs that tests start

for folder in sorted({path.parent for path in TESTS.rglob("test_*.py")} | {TESTS / "support", TESTS / "house"}):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))

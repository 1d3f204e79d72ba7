"""Fork again and again, each time in a new session, and let the parent end: no number stays true for long.

The chain ends by itself after so many hops, so that a test that fails leaves nothing behind for ever; what is left
when it ends is the file ``hopped``.
"""

import os
import sys
from pathlib import Path

here = Path("hopped")
if os.fork() == 0:
    for _ in range(int(sys.argv[1])):
        if os.fork():
            os._exit(0)
        os.setsid()
    here.touch()

"""Asked to describe itself, a trainer that first leaves its number in a file, then says nothing and never ends."""

import os
import sys
import threading
from pathlib import Path

number = Path(sys.argv[1] + ".part")
number.write_text(str(os.getpid()))
number.replace(sys.argv[1])
threading.Event().wait()

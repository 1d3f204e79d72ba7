"""Exits 0 at once and leaves a grandchild behind that holds its standard output open, like a lost data loader."""

import subprocess
import sys

child = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"])
print(child.pid, flush=True)

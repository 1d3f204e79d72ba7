"""Deaf to polite stops, with a child of its own; prints both numbers on one line. For systems without ``fork``."""

import os
import signal
import subprocess
import sys
import threading

for name in ("SIGTERM", "SIGBREAK"):
    if hasattr(signal, name):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"])
print(os.getpid(), child.pid, flush=True)
while True:
    threading.Event().wait(0.1)

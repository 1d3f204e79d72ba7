"""Deaf to polite stops, with a child of its own; each prints its number. For systems without ``fork``."""

import os
import signal
import subprocess
import sys
import threading

for name in ("SIGTERM", "SIGBREAK"):
    if hasattr(signal, name):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
print(os.getpid(), flush=True)
WAITS = "import os, threading; print(os.getpid(), flush=True); threading.Event().wait()"
subprocess.Popen([sys.executable, "-c", WAITS])
while True:
    threading.Event().wait(0.1)

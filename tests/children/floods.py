"""Prints argv[1] bytes as fast as the disk takes them, leaves the file ``flooded``, and has last words when asked."""

import itertools
import signal
import sys
import threading
from pathlib import Path

asked = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: asked.set())
printed = 0
for number in itertools.count():
    block = "".join(f"line {number}-{row} {'x' * 80}\n" for row in range(1000))
    sys.stdout.write(block)
    sys.stdout.flush()
    printed += len(block)
    if printed >= int(sys.argv[1]):
        break
Path("flooded").touch()
asked.wait()
print("last words", flush=True)

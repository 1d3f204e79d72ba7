"""Asked to stop, it takes argv[1] seconds to write its state and exits 75: interrupted, resumable."""

import signal
import sys
import threading

asked: list[int] = []  # not an Event: its lock may be held where the signal interrupts
signal.signal(getattr(signal, "SIGBREAK", signal.SIGTERM), lambda number, _: asked.append(number))
print("ready", flush=True)
while not asked:
    threading.Event().wait(0.01)
threading.Event().wait(float(sys.argv[1]))
print("state written", flush=True)
sys.exit(75)

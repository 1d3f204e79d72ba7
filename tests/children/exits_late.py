"""Asked to stop, it takes argv[1] seconds to write its state and exits 75: interrupted, resumable."""

import signal
import sys
import threading

asked = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: asked.set())
print("ready", flush=True)
asked.wait()
threading.Event().wait(float(sys.argv[1]))
print("state written", flush=True)
sys.exit(75)

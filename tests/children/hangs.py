"""Says that it runs, and then nothing more."""

import threading

print("ready", flush=True)
threading.Event().wait()

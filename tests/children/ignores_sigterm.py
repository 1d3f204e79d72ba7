"""Deaf to every polite request; only SIGKILL ends it."""

import signal
import threading

signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("ready", flush=True)
threading.Event().wait()

"""A worker in miniature: starts argv[2:] under a launcher, says so, and waits to be killed, or for SIGTERM."""

import os
import signal
import sys
import threading
from pathlib import Path

from training.fleet.process.supervise import CommandSpec, LocalRunner

folder = Path(sys.argv[1])
runner = LocalRunner(folder if os.environ.get("OWN_GROUP") else None)
stopped = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stopped.set())
process = runner.start(CommandSpec(sys.argv[2:], folder, dict(os.environ), folder / "output.log"))
print(process.pid, flush=True)
while not stopped.wait(0.1):
    pass
runner.close()

"""A worker in miniature: starts argv[1:] under a launcher, says so, and waits to be killed."""

import os
import sys
import threading
from pathlib import Path

from training.fleet.supervise import CommandSpec, LocalRunner

folder = Path(sys.argv[1])
runner = LocalRunner()
process = runner.start(CommandSpec(sys.argv[2:], folder, dict(os.environ), folder / "output.log"))
print(process.pid, flush=True)
threading.Event().wait()

"""Prints its environment and where it stands, as JSON."""

import json
import os
import signal
import sys
from pathlib import Path

ignored = [number for number in range(1, 32) if signal.getsignal(number) is signal.SIG_IGN]
facts = {"env": dict(os.environ), "cwd": str(Path.cwd()), "argv": sys.argv[1:], "ignored": ignored}
facts["fds"] = sorted(int(entry.name) for entry in Path("/proc/self/fd").iterdir()) if sys.platform == "linux" else []
print(json.dumps(facts), flush=True)

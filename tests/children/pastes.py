"""A newcomer who pastes one line and reports the result; then shows the log when asked, until told to stop.

Run as root in the machine that own_root.sh makes, by two_namespaces.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

LOGS = Path("/run/stub-systemd")
WORKER = "cis490-trainer-worker.service"


def main() -> None:
    done = subprocess.run(["sh", "-c", sys.argv[1]], capture_output=True, text=True, cwd="/opt/cis490")
    print(json.dumps({"code": done.returncode, "out": done.stdout, "err": done.stderr}), flush=True)
    for _asked in sys.stdin:
        log = LOGS / f"{WORKER}.log"
        active = subprocess.run(["systemctl", "is-active", WORKER]).returncode == 0
        told = {"log": log.read_text() if log.exists() else "", "active": active}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()

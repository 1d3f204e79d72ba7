"""A receiver and workers as real processes in one folder."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from processes import nap

from training.crashpoint import VARIABLE
from training.fleet.client.answers import ClientError
from training.fleet.client.client import FleetClient
from training.fleet.client.transport import HttpTransport

PATIENCE_S = 180.0
LOOK_S = 0.02
TOKEN = "only-for-this-test"


def until(condition, what="", patience_s=PATIENCE_S):
    """Return what the condition gives as soon as it is true; AssertionError when it never is."""
    end = time.monotonic() + patience_s
    while True:
        with contextlib.suppress(ClientError):
            if found := condition():
                return found
        assert time.monotonic() < end, f"it did not happen within {patience_s:.0f} s: {what}"
        nap(LOOK_S)


def parent_of(pid):
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


class ProcessFleet:
    def __init__(self, folder):
        self.folder = folder
        self.receiver = None
        self.started = []
        self.port = 0
        self._connect("http://127.0.0.1:1")
        self.url = ""

    def close(self):
        for process in self.started:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        self._transport.close()

    def run(self, *words, log, crash="", **environment):
        """``crash``: see training/crashpoint.py."""
        with (self.folder / log).open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, *words],
                cwd=self.folder,
                env={**os.environ, "CIS490_OPERATOR_TOKEN": TOKEN, VARIABLE: crash, **environment},
                stdout=file,
                stderr=file,
            )
        self.started = [each for each in self.started if each.returncode is None] + [process]
        return process

    def serve(self, *words, crash="", wait=True, **environment):
        """Start the receiver on the address it had; wait until it serves, unless it is to die."""
        log = self.folder / "receiver.log"
        seen = log.stat().st_size if log.exists() else 0
        words = (*words, "--port", str(self.port), "--manifest", "plan.toml")
        self.receiver = process = self.run(*words, log=log.name, crash=crash, **environment)

        def serving():
            assert process.poll() is None, log.read_text()[seen:][-2000:]
            return re.search(r"listening on (http://127.0.0.1:(\d+))", log.read_text()[seen:])

        if wait:
            found = until(serving, "the receiver serves")
            self.port = int(found[2])
            self._transport.close()
            self._connect(found[1])
        return process

    def _connect(self, url):
        self.url, self._transport = url, HttpTransport(url)
        self.client = FleetClient(url, operator_token=TOKEN, tries=1, transport=self._transport, timeout_s=20.0)

    def kill_receiver(self):
        self.receiver.kill()
        self.receiver.wait()

    def job(self, name):
        return self.client.job(name)

    def status(self, name):
        return str(self.job(name)["job"]["status"])

    def log(self, name):
        return (self.folder / f"{name}.log").read_text(errors="replace")

"""A worker's installation without root, below the home folder: a unit of the user's systemd, or a loop where there is
none."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.checkout import INSTALLED
from training.fleet.install.linux import earlier, service
from training.fleet.install.steps import (
    Command,
    InstallError,
    InstallStep,
    MakeFolder,
    Remove,
    RemoveEmpty,
    Site,
    StaysUp,
    WriteFile,
)
from training.fleet.install.types import InstallRequest, MachineRole
from training.fleet.install.worker import first_steps

SERVICE = service(MachineRole.WORKER)
SYSTEMCTL = ["systemctl", "--user"]
STOP_S = 45.0

WORKER = """#!/bin/sh
# Runs the worker once. An installation keeps these three; after an edit start it again.
CIS490_RECEIVER_URL={url}
FLEET_HOST_ID={host}
CIS490_WORKER_FLAGS={flags}
cd '{base}' && export HOME='{base}' PYTHONDONTWRITEBYTECODE=1 && exec {python} -m training.fleet.worker \\
    --receiver-url "$CIS490_RECEIVER_URL" --host-id "$FLEET_HOST_ID" --repo-root {checkout} \\
    --artifacts-dir artifacts --reports-dir reports --state-dir '{base}/state' $CIS490_WORKER_FLAGS
# installed from commit {commit}
"""
UNIT = """[Unit]
Description=CIS490 training worker of this user
StartLimitIntervalSec=0

[Service]
ExecStart="{base}/worker.sh"
Restart=always
RestartSec=15
KillMode=mixed
Delegate=yes
TimeoutStopSec=45
OOMPolicy=continue
Nice=5

[Install]
WantedBy=default.target
"""
# $child: a signal ends a wait for it at once.
LOOP = """#!/bin/sh
# Keeps the worker running. After a boot start it again, for example by crontab -e: @reboot {base}/loop.sh
cd '{base}' || exit 1
echo $$ > loop.pid
trap 'kill "$child"; wait "$child"; rm -f loop.pid; exit' INT TERM
while :; do
    [ ! -f worker.log ] || [ "$(wc -c < worker.log)" -lt 10000000 ] || mv worker.log worker.log.1
    ./worker.sh >> worker.log 2>&1 & child=$!
    wait "$child"
    sleep 15 & child=$!
    wait "$child"
done
"""


def base() -> Path:
    """Return the folder of all that an installation without root makes, except its unit."""
    return Path.home() / ".local" / "share" / "cis490"


def unit() -> Path:
    return Path.home() / ".config" / "systemd" / "user" / SERVICE


def settings() -> dict[str, str]:
    """Return receiver_url, host_id and flags of an earlier installation, as far as it has them. Raises OSError."""
    found = earlier(MachineRole.WORKER, (base() / "worker.sh").read_text("utf-8"))
    return {name: " ".join(shlex.split(value)) for name, value in found.items()}


@dataclass(frozen=True)
class Loop(InstallStep):
    """Start the loop, or with ``runs`` False end it; ``again``: also if it runs already."""

    runs: bool
    again: bool = False

    @property
    def says(self) -> str:
        return "start the loop that keeps the worker running" if self.runs else "end the loop, if one runs"

    def is_done(self, site: Site) -> bool:  # noqa: ARG002 - it looks at the process
        return not self.again and (_loop() is not None) is self.runs

    def do(self, site: Site) -> None:
        import psutil

        if (process := _loop()) is not None:
            try:
                process.terminate()
                process.wait(STOP_S)
            except psutil.Error as error:
                raise InstallError(f"the loop does not end ({error}); end it and repeat") from None
        if self.runs:
            loop = shlex.quote(str(base() / "loop.sh"))
            site.machine.run(["sh", "-c", f"nohup {loop} > /dev/null 2>&1 < /dev/null &"])


def _loop() -> Any:
    """Return the process of the loop; None if none runs."""
    import psutil

    try:
        process = psutil.Process(int((base() / "loop.pid").read_text("ascii")))
        return process if str(base() / "loop.sh") in process.cmdline() else None
    except (OSError, ValueError, psutil.Error):
        return None


def prepare(request: InstallRequest, *, systemd: bool) -> list[InstallStep]:
    """Return the steps before the worker starts."""
    here = base()
    values = {
        "url": request.receiver_url,
        "host": request.host_id,
        "flags": request.flags,
        "python": str(request.python),
        "checkout": "." if INSTALLED else str(request.checkout),
        "commit": request.commit or "unknown",
    }
    script = WORKER.format(base=here, **{name: shlex.quote(value) for name, value in values.items()})
    return [
        MakeFolder(here, 0o700),
        *first_steps(request, here / "state" / "tls", here / "joined", None),
        WriteFile(here / "worker.sh", script, mode=0o700),
        WriteFile(unit(), UNIT.format(base=here))
        if systemd
        else WriteFile(here / "loop.sh", LOOP.format(base=here), mode=0o700),
    ]


def start(*, changed: bool, systemd: bool) -> list[InstallStep]:
    """Return the steps that start the worker, again with ``changed``."""
    if not systemd:
        return [Loop(runs=True, again=changed)]
    unless = None if changed else [*SYSTEMCTL, "is-active", "--quiet", SERVICE]
    return [
        Command("have systemd read its units", [*SYSTEMCTL, "daemon-reload"], changes=False),
        Command("have it started with your systemd", [*SYSTEMCTL, "enable", SERVICE]),
        Command(f"start {SERVICE}", [*SYSTEMCTL, "restart", SERVICE], unless=unless),
        StaysUp(SERVICE, user=True),
    ]


def uninstall() -> list[InstallStep]:
    """Return the steps that remove the worker, and each folder on the way that is then empty."""
    wants = unit().parent / "default.target.wants"
    return [
        Command("stop it", [*SYSTEMCTL, "disable", "--now", SERVICE], needs=unit()),
        Remove(unit()),
        Loop(runs=False),
        Remove(base()),
        *map(RemoveEmpty, (wants, *list(unit().parents)[:3], *list(base().parents)[:2])),
    ]

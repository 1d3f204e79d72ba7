"""Small disks that fill up at every moment: nothing is lost, and nobody has to be started again when space returns.

Runs in a mount namespace of its own, so that the small disks (tmpfs) vanish with the process: start it through
:func:`scenario`, which counts as skipped where the machine does not allow that.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import places  # noqa: F401 - puts the folders of tests on the module path
from process_fleet import until
from processes import nap

from torture.fleet import Fleet
from torture.suspended import is_held
from torture.verdict import judge

DISKS = {
    "database and store": ("state", 8),
    "store": ("state/models", 8),
    "worker's state": ("host/artifacts/.worker", 4),
    "worker's artifacts": ("host", 12),
}
AT = (
    "worker.before.SendClaim", "worker.printed", "worker.pack.begin", "worker.before.Upload",
    "worker.before.SendComplete",
)  # fmt: skip
FULL_S = 1.5  # how long it stays full
MIB = 1024**2
NAMESPACES = (("unshare", "--mount"), ("unshare", "--user", "--map-root-user", "--mount"))


def namespace() -> tuple[str, ...] | None:
    """The command that gives a process its own mounts, if this machine has one."""
    for command in NAMESPACES:
        try_it = [*command, "mount", "-t", "tmpfs", "none", tempfile.gettempdir()]
        if subprocess.run(try_it, capture_output=True, check=False).returncode == 0:
            return command
    return None


def scenario(disk: str, place: str) -> Counter[str]:
    """Fill this disk when the worker is at this place."""
    own_mounts = namespace() if sys.platform == "linux" else None
    if own_mounts is None:
        return Counter(skipped_no_namespace=1)
    tests = Path(__file__).resolve().parents[1]
    run = subprocess.run(
        [*own_mounts, sys.executable, "-m", "torture.disk_full", disk, place],
        cwd=tests,
        env={**os.environ, "PYTHONPATH": f"{tests}{os.pathsep}{tests.parent}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, (run.stdout + run.stderr)[-3000:]
    return Counter(json.loads(run.stdout.splitlines()[-1]))


def _fill(folder: Path) -> Path:
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for piece in (64 * 1024, 4096, 1):
            try:
                while True:
                    file.write(b"x" * piece)
            except OSError:
                continue
    return ballast


def _run(disk: str, place: str) -> Counter[str]:
    where, mib = DISKS[disk]
    with Fleet(timeout_s=3.0, folder=Path(tempfile.mkdtemp())) as fleet:
        folder = fleet.folder / where
        folder.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "none", str(folder)], check=True)
        fleet.start_receiver()
        name = fleet.add(behave="well", bytes="300000")
        worker = fleet.start_worker(crash=f"{place}:1:STOP")
        until(lambda: is_held(worker), f"it is at {place}")
        ballast = _fill(folder)
        worker.send_signal(signal.SIGCONT)
        nap(FULL_S)
        assert worker.poll() is None, f"the worker ended: {fleet.log('host')[-1500:]}"
        assert fleet.receiver.poll() is None, f"the receiver ended: {fleet.log('receiver')[-1500:]}"
        ballast.unlink()
        fleet.wait_for(name, "completed")
        ends = fleet.ends(name)
        if disk in ("database and store", "store"):
            assert ends == ["completed"], ends  # the receiver's disk costs nobody an attempt
        assert ends.count("completed") == 1, ends
        worker.terminate()
        assert worker.wait(60) == 0, fleet.log("host")[-1500:]
        until(lambda: _indexed(fleet), "the index lists it")
        fleet.receiver.terminate()
        assert fleet.receiver.wait(60) == 0, fleet.log("receiver")[-1500:]
        judge(fleet)
    return Counter(filled=1, attempts=len(ends))


def _indexed(fleet: Fleet) -> bool:
    index = fleet.folder / "state/models/index.jsonl"
    return index.exists() and index.read_bytes().count(b"\n") == 1


if __name__ == "__main__":
    print(json.dumps(_run(*sys.argv[1:])))

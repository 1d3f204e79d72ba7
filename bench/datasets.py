"""A large data set on its way to the receiver and on to a host: speed, memory of all three programs, and what is saved.

    python bench/datasets.py [--gib 1 10] [--json]

Compared with a plain copy, synced, and SHA-256 of the same file in the same run. No two chunks are equal. Push and
fetch are killed on their way, the first with the receiver, and go on. Then a part of 8 MiB goes from the middle of the
file, as an episode would, and one comes at its end. Needs three times the size on the disk of the temporary folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from receivers import MIB, Report, Served, arguments, receiver, workplace
from upload import copy, sha256, timed

TOKEN = "of-the-benchmark"
EPISODE = 8 * MIB
STEP = 16 * 1024  # bytes between two numbers that make blocks differ
LOOK_S = 0.02


def main() -> None:
    parser = arguments(__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--gib", type=float, nargs="+", default=[1.0, 10.0])
    args = parser.parse_args()
    os.environ["CIS490_OPERATOR_TOKEN"] = TOKEN
    report = Report("datasets", args.json)
    for gib in args.gib:
        with workplace() as folder:
            measure(report, folder, gib)
    report.end()


def measure(report: Report, folder: Path, gib: float) -> None:
    data, cache = folder / "data", folder / "cache"
    (data / "tensor_window_v1").mkdir(parents=True)
    large = data / "tensor_window_v1" / "tensors.npy"
    size = int(gib * 1024**3)
    make(large, size)
    plain_s = timed(lambda: copy(large, folder / "copy")) + timed(lambda: sha256(large))

    begun = time.perf_counter()
    with receiver(folder) as served:
        rest = served.rss_mib()
        killed = Watched(push_command(served, data))
        killed.kill_when(lambda: bytes_below(folder / "datasets" / "pieces") > size * 0.4)
        os.kill(served.pid, signal.SIGKILL)
    there = bytes_below(folder / "datasets" / "pieces") / size
    with receiver(folder) as served:
        served.forget_peak()
        pushed = Watched(push_command(served, data))
        sent = json.loads(pushed.output())["sent"]
        push_s = time.perf_counter() - begun
        report.row(f"{gib:g} GiB: pushed again after a kill of both at {there:.0%}: sent", sent / size * 100, "%")
        report.row("… receiver's most memory", served.peak_mib(), "MiB", "bar: 46 + 16", at_rest=rest)
        report.row("… pusher's most memory", pushed.peak_mib, "MiB")
        report.row("… / copy, synced, and SHA-256", plain_s / push_s, "×", "", plain_s=plain_s, seconds=push_s)

        served.forget_peak()
        fetch, begun = fetch_command(served, cache), time.perf_counter()
        killed = Watched(fetch)
        killed.kill_when(lambda: bytes_below(cache / "fetching") > size * 0.4)
        here, first = bytes_below(cache / "fetching") / size, pieces_given(served)
        fetched = Watched(fetch)
        fetched.output()
        fetch_s = time.perf_counter() - begun
        second = pieces_given(served) - first
        report.row(f"… fetched again after a kill at {here:.0%}", second, "pieces", "", before=first)
        report.row("… receiver's most memory", served.peak_mib(), "MiB", "bar: 46 + 16")
        report.row("… fetching worker's most memory", fetched.peak_mib, "MiB")
        report.row("… / copy, synced, and SHA-256", plain_s / fetch_s, "×", "", seconds=fetch_s)
        assert sha256(next(cache.glob("sets/*/*/tensors.npy"))) == sha256(large)

        for what, change in (("gone from the middle", take_out), ("come at the end", put_on)):
            change(large)
            sent = json.loads(Watched(push_command(served, data)).output())["sent"]
            report.row(f"… 8 MiB {what}: sent", sent / MIB, "MiB", "", percent=sent / size * 100)
            before = pieces_given(served)
            Watched(fetch).output()
            report.row("… … and fetched", pieces_given(served) - before, "pieces")


def make(path: Path, size: int) -> None:
    """Noise whose every block of 16 KiB holds a number of its own."""
    block = bytearray(os.urandom(MIB))
    with path.open("wb") as file:
        for begin in range(0, size, MIB):
            for at in range(0, MIB, STEP):
                block[at : at + 8] = (begin + at).to_bytes(8, "big")
            file.write(block[: size - begin])


def take_out(path: Path) -> None:
    """Remove an episode from the middle, in place."""
    size = path.stat().st_size
    at = size // 2 + 12_345
    with path.open("r+b") as file:
        while at + EPISODE < size:
            file.seek(at + EPISODE)
            moved = file.read(4 * MIB)
            file.seek(at)
            file.write(moved)
            at += len(moved)
        file.truncate(size - EPISODE)


def put_on(path: Path) -> None:
    with path.open("ab") as file:
        file.write(os.urandom(EPISODE))


def push_command(served: Served, data: Path) -> list[str]:
    url = f"http://127.0.0.1:{served.port}"
    return [sys.executable, "-m", "training.fleet.cli", "--receiver-url", url, "dataset", "push", str(data), "--json"]


def fetch_command(served: Served, cache: Path) -> list[str]:
    url = f"http://127.0.0.1:{served.port}"
    where = ["--receiver-url", url, "--cache-dir", str(cache), "--cache-gib", "100"]
    return [sys.executable, "-m", "training.fleet.worker.prefetch", "data", *where]


class Watched:
    """A program, and the most memory that was resident while it ran."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.peak_mib = 0.0

    def kill_when(self, ripe: Callable[[], bool]) -> None:
        while not ripe():
            assert self._process.poll() is None, "it ended before it was killed"
            time.sleep(LOOK_S)
        self._process.kill()
        self._process.communicate()

    def output(self) -> str:
        """Wait for its end, looking at the kernel's own high-water mark."""
        while self._process.poll() is None:
            with contextlib.suppress(OSError):
                found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{self._process.pid}/status").read_text())
                self.peak_mib = max(self.peak_mib, int(found[1]) / 1024 if found else 0.0)
            time.sleep(LOOK_S)
        text, _ = self._process.communicate()
        assert self._process.returncode == 0, text
        return text


def bytes_below(folder: Path) -> int:
    return sum(Path(root, name).stat().st_size for root, _, names in os.walk(folder) for name in names)


def pieces_given(served: Served) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/metrics") as answer:
        text = answer.read().decode()
    found = re.search(r'cis490_http_requests_total\{operation="piece",status="2xx"\} (\d+)', text)
    return int(found[1]) if found else 0


if __name__ == "__main__":
    main()

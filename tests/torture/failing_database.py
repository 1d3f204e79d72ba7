"""The n-th operation on the database's disk fails, once or for ever: whoever was told "done" finds it done."""

from __future__ import annotations

import random
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fakes import FakeClock

from torture.database_parts import FILE, memory_folder
from torture.queue_work import FleetWork, content
from torture.recording import WatchedDisk, watched
from training.fleet.database.writer import DatabaseError

REQUESTS = (
    "create", "start", "claim", "beat", "deliver", "complete", "fail", "cancel", "requeue", "reload", "sweep",
)  # fmt: skip
N_MAX = 500  # no request does as much
_connect = sqlite3.connect  # the standard library's own, whatever stands in its place for a while


@dataclass(frozen=True)
class Case:
    """One failure: of which request the n-th operation, how often, and whether the disk is broken or full."""

    request: str
    n: int
    for_ever: bool
    full: bool

    def __str__(self) -> str:
        kind = "full" if self.full else "broken"
        return f"{self.request}, operation {self.n}, {kind} {'for ever' if self.for_ever else 'once'}"


class Bench:
    """A folder with a database in the middle of its life, from which every case starts."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(dir=memory_folder()))
        self._template = self.root / "template"
        self._template.mkdir()
        work = FleetWork(7, str(self._template / FILE))
        for _ in work.groups(25):
            pass
        for _ in range(6):
            work.send(work.one_more)
        for job in work.jobs:
            work.send(lambda job=job: work.service.requeue(job["job_id"]))  # type: ignore[misc]
        for _ in range(2):
            work.send(work.claim)
        work.close()
        self._now, self._sessions = work.clock.now(), work.sessions
        self._seeds: dict[str, tuple[int, str]] = {}

    def close(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    def work(self, seed: int, path: Path) -> FleetWork:
        """The receiver, started on a copy a moment later."""
        work = FleetWork(seed, str(path), FakeClock(self._now + 1.0))
        work.sessions = self._sessions + 1
        return work

    def copy(self, request: str = "") -> Path:
        """A copy of the template; for the creation of a database an empty folder."""
        folder = self.root / "case"
        shutil.rmtree(folder, ignore_errors=True)
        if request == "create":
            folder.mkdir()
        else:
            shutil.copytree(self._template, folder)
        return folder / FILE

    def healthy(self, request: str) -> tuple[int, str]:
        """A seed with which this request changes something, and what the database holds afterwards."""
        if request not in self._seeds:
            self._seeds[request] = next(self._tries(request))
        return self._seeds[request]

    def _tries(self, request: str) -> Iterator[tuple[int, str]]:
        for seed in range(1000):
            path = self.copy(request)
            before = _content(path)
            work = self.work(seed, path)
            if request not in ("create", "start"):
                self.ask(work, request)
            work.close()
            after = _content(path)
            if after != before or request in ("create", "start"):
                yield seed, after

    @staticmethod
    def ask(work: FleetWork, request: str) -> bool:
        """Send the request once; whether it was acknowledged."""
        work.clock.advance(100.0)
        work.chance = random.Random(work.chance.random())
        call: Callable[[], Any] = getattr(work, request)
        (future,) = work.send(call)
        return future.exception() is None


def check(bench: Bench, case: Case) -> bool:
    """Return True when the failure happened at all. Raises AssertionError when something acknowledged is missing."""
    seed, after = bench.healthy(case.request)
    path = bench.copy(case.request)
    before = _content(path)
    disk = WatchedDisk()
    with watched(disk):
        done, found, path = _fail_in(case, disk, seed, path, bench)
    if not disk.failing.failed:
        return False
    allowed = {after} if done else {before, after}
    assert found in allowed, f"{case}: what was acknowledged is missing, or half of it is there"
    _goes_on(case, path, bench.work(seed + 1, path))
    return True


def _fail_in(case: Case, disk: WatchedDisk, seed: int, path: Path, bench: Bench) -> tuple[bool, str, Path]:
    """Fail once; return if it was acknowledged, what the database holds, and where it goes on."""
    arm = disk.failing.arm
    if case.request in ("create", "start"):
        arm(case.n, for_ever=case.for_ever, full=case.full)
        try:
            work = bench.work(seed, path)
        except DatabaseError:
            arm(None)
            work = bench.work(seed, path)
        arm(None)
        work.close()
        return False, _content(path), path
    work = bench.work(seed, path)
    arm(case.n, for_ever=case.for_ever, full=case.full)
    done = bench.ask(work, case.request)
    if case.for_ever and disk.failing.failed:
        refused = work.send(work.one_more)[0].exception() is not None
        assert refused, f"{case}: a dead disk took a write"
    arm(None)
    if work.lost:
        # The receiver exits here, without a farewell to its database; the next one recovers what lies there now.
        left = path.parent.with_name("left")
        shutil.rmtree(left, ignore_errors=True)
        shutil.copytree(path.parent, left, ignore=shutil.ignore_patterns("*-shm"))
        _let_go(work)
        return done, _content(left / FILE), left / FILE
    found = content(work.queue.db.connection)  # type: ignore[attr-defined]
    for _ in range(2):  # it goes on without a restart
        assert work.send(work.one_more)[0].exception() is None, f"{case}: it does not go on"
    work.close()
    return done, found, path


def _let_go(work: FleetWork) -> None:
    try:
        work.close()
    except (DatabaseError, sqlite3.Error):
        return


def _content(path: Path) -> str:
    if not path.exists():
        return ""
    connection = _connect(path)
    try:
        return content(connection)
    finally:
        connection.close()


def _goes_on(case: Case, path: Path, work: FleetWork) -> None:
    connection = _connect(path)
    try:
        sound = connection.execute("PRAGMA integrity_check").fetchone()[0]
    finally:
        connection.close()
    assert sound == "ok", f"{case}: {sound}"
    for group in work.groups(3):
        assert not work.lost, f"{case}: {group}"
    work.close()


def cases(request: str, n_max: int, *, by_turns: bool = False) -> Iterator[Counter[str]]:
    """Every n up to ``n_max``, as long as there is such an operation; each once and for ever, broken and full.

    ``by_turns`` takes every other disk for full and the rest for broken: half as many cases.
    """
    bench = Bench()
    try:
        for n in range(1, n_max + 1):
            counts: Counter[str] = Counter()
            for full in (bool(n % 2),) if by_turns else (False, True):
                for for_ever in (False, True):
                    counts["failures"] += check(bench, Case(request, n, for_ever, full))
            if not counts["failures"]:
                return
            yield counts
    finally:
        bench.close()


def all_cases(request: str, n_max: int, *, by_turns: bool = False) -> Counter[str]:
    """All of them of one request."""
    counts: Counter[str] = Counter()
    for found in cases(request, n_max, by_turns=by_turns):
        counts += found
    return counts

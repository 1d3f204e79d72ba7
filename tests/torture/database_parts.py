"""The receiver's database without power, and on a disk that fails: everything acknowledged is found again."""

from __future__ import annotations

import random
import shutil
import sqlite3
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from torture.power import Platter
from torture.queue_work import FleetWork, content
from torture.recording import WatchedDisk, watched

FILE = "jobs.db"
GROUPS = 40  # of one life
STATES = 12  # after each operation
ROOM_BYTES = 1024**3
CHECKPOINT_PAGES = 8  # far fewer than in production, so that checkpoints are met often


@dataclass
class Life:
    """The life of one seed: what it did to the disk, and what had been acknowledged when."""

    disk: WatchedDisk
    # after so many operations: content
    acknowledged: list[tuple[int, str]] = field(default_factory=list)


def memory_folder() -> str | None:
    """A folder in memory, if the machine has a large one: a crash state lives for a millisecond."""
    folder = Path("/dev/shm")
    large = folder.is_dir() and shutil.disk_usage(folder).free > ROOM_BYTES
    return str(folder) if large else None


def live(seed: int, folder: Path) -> Life:
    """Run one life on a watched disk, from the creation of the file to its closing."""
    life = Life(WatchedDisk())
    with watched(life.disk):
        work = FleetWork(seed, str(folder / FILE))
        try:
            connection = work.queue.db.connection  # type: ignore[attr-defined]
            connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
            for _ in work.groups(GROUPS):
                life.acknowledged.append((len(life.disk.ops), content(connection)))
        finally:
            work.close()
    return life


def check_life(seed: int, states: int = STATES) -> Counter[str]:
    """Cut the power after each operation of one life, ``states`` times. Raises AssertionError with the place."""
    counts: Counter[str] = Counter(lives=1)
    root = Path(tempfile.mkdtemp(dir=memory_folder()))
    try:
        life = live(seed, root)
        counts["transactions"] += len(life.acknowledged)
        chance = random.Random(f"{seed}/power")
        platter = Platter()
        acknowledged = iter([*life.acknowledged, (len(life.disk.ops) + 1, "")])
        known, (due, coming) = "", next(acknowledged)
        for number, op in enumerate(life.disk.ops, 1):
            while due < number:  # the answer came before this operation
                known, (due, coming) = coming, next(acknowledged)
            platter.take(op)
            for state in platter.states(chance, states):
                _recover(root / "found", state, {known, coming} if known else None, seed, number)
                counts["states"] += 1
        counts["operations"] += len(life.disk.ops)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return counts


def _recover(folder: Path, state: dict[str, bytes], wanted: set[str] | None, seed: int, number: int) -> None:
    """The standard library's SQLite opens what was found: sound, and with all that was acknowledged, or one more."""
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for name, data in state.items():
        (folder / name).write_bytes(data)
    connection = sqlite3.connect(folder / FILE)
    where = f"seed {seed}, after operation {number}"
    try:
        sound = connection.execute("PRAGMA integrity_check").fetchone()[0]
        assert sound == "ok", f"{where}: {sound}"
        if wanted is not None:
            assert content(connection) in wanted, f"{where}: an acknowledged commit is missing"
    finally:
        connection.close()

"""The outbox: trainers' output on the worker's disk, in numbered lines, until the receiver has it.

Files named ``<claim>.<number of the first line>.jsonl`` hold one attempt's lines. Each file begins with a heading that
names the attempt and the trainer's output file. A record ``[position, [lines]]`` follows for each reading of that
output file. The position is how far the trainer's file had been read, so that a restarted worker continues reading
there. The outbox keeps the beginning and the end of an attempt's output, as a receiver does, and only the newest
attempts. If the outbox drops lines undelivered, the receiver notices the gap in the numbers, and says in the output how
many lines are missing.
"""

import json
import logging
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from training.files import LocalFs
from training.fleet.wire.constants import LOG_BYTES_MAX, LOG_LINES_MAX
from training.fleet.wire.progress import kept_line
from training.fleet.worker.state.events import Assignment, Backlog
from training.fleet.worker.tail import OutputTail

log = logging.getLogger(__name__)

FILE_LINES = 10_000
FILE_BYTES = 512 * 1024
UNWRITTEN_LINES = 6_000  # of an attempt, in memory while the disk takes none
ATTEMPTS_KEPT = 50  # of those that ended and are not delivered …
BYTES_KEPT = 1024**3  # … and no more of their output together
CORRUPT_KEPT = 10  # damaged files, for inspection
MESSAGE_BYTES_MAX = 40_000  # of the lines in one message, as JSON: the body's limit is 64 KiB


class _Heading(msgspec.Struct):
    """The first line of an outbox file: the attempt, its rank in age, the number of the file's first line, and the
    trainer's output file."""

    owner: Assignment
    order: int
    first: int
    source: str


@dataclass
class _Spool:
    """The record of one attempt's undelivered lines: their files and numbers, and the lines not yet written."""

    owner: Assignment
    source: str  # the file that the trainer prints into
    order: int  # attempts that began later have a higher one
    total: int = 0  # lines so far …
    written: int = 0  # … and those before the first unwritten one
    position: int = 0  # bytes of the source that they came from
    firsts: list[int] = field(default_factory=list)  # one for each file: the number of its first line …
    sizes: list[int] = field(default_factory=list)  # … and its bytes
    full: bool = True  # the last file takes no more
    unwritten: list[str] = field(default_factory=list)  # unwritten lines, while the disk takes none


class Outbox:
    """The folder of undelivered output. Several threads may use one Outbox at the same time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.RLock()
        self._spools: dict[str, _Spool] = {}

    # ── while a trainer runs ────────────────────────────────────────────────────────────────

    def append(self, owner: Assignment, source: Path, lines: Sequence[str], position: int = 0) -> None:
        """Append lines of an attempt; ``position`` is how far ``source`` was read. After a disk error the newest
        :data:`UNWRITTEN_LINES` lines stay in memory and are written with the next ones."""
        with self._lock:
            self._append(self._spool(owner, source), lines, position)

    def read(self, claim_id: str, first: int) -> tuple[int, tuple[str, ...]]:
        """Return the number of the first line and the lines for one message, from line ``first`` or from the next line
        that is kept."""
        with self._lock:
            spool = self._spools.get(claim_id)
            if spool is None:
                return first, ()
            begun = [number for number in spool.firsts if number <= first]
            chosen: list[str] = []
            for number in spool.firsts[max(0, len(begun) - 1) :]:
                lines = self._lines(claim_id, number)
                if not chosen:
                    first = max(first, number)
                    chosen = lines[first - number : first - number + LOG_LINES_MAX]
                elif first + len(chosen) == number:
                    chosen += lines
                else:
                    break
                if len(chosen) >= LOG_LINES_MAX:
                    break
            held_from = spool.total - len(spool.unwritten)
            if not chosen:
                first = max(first, held_from)
            if first + len(chosen) >= held_from:
                chosen += spool.unwritten[first + len(chosen) - held_from :]
            return first, fitting(tuple(chosen))

    def forget(self, claim_id: str) -> None:
        """Delete an attempt's lines: the receiver has them all or refuses them, or newer attempts' output takes their
        place."""
        with self._lock:
            spool = self._spools.pop(claim_id, None)
            for number in spool.firsts if spool else ():
                self._path(claim_id, number).unlink(missing_ok=True)

    # ── when a worker starts ────────────────────────────────────────────────────────────────

    def recover(self) -> list[Backlog]:
        """Load the undelivered output of earlier sessions, also lines not yet read from trainers' files; return a
        Backlog for each attempt, oldest first. Output of the oldest attempts beyond the limits is deleted instead."""
        with self._lock:
            for path in sorted(self.folder.glob("*.jsonl")):  # an attempt's files in their order
                self._take_up(path)
            self._spools = dict(sorted(self._spools.items(), key=lambda item: item[1].order))
            for spool in self._spools.values():
                self._catch_up(spool)
            self._drop_oldest()
            return [Backlog(spool.owner, spool.total) for spool in self._spools.values()]

    def adopt(self, owner: Assignment, source: Path) -> Backlog:
        """Load one attempt's output, even if none of its lines was written yet; return its Backlog."""
        with self._lock:
            spool = self._spool(owner, source)
            self._catch_up(spool)
            return Backlog(spool.owner, spool.total)

    def last(self, claim_id: str, count: int) -> tuple[str, ...]:
        """Return at most ``count`` lines of an attempt, the newest."""
        with self._lock:
            spool = self._spools.get(claim_id)
            if spool is None:
                return ()
            tail = [line for n in spool.firsts[-2:] for line in self._lines(claim_id, n)]
            return tuple([*tail, *spool.unwritten][-count:])

    # ── inside ──────────────────────────────────────────────────────────────────────────────

    def _path(self, claim_id: str, number: int) -> Path:
        return self.folder / f"{claim_id}.{number:09d}.jsonl"

    def _spool(self, owner: Assignment, source: Path) -> _Spool:
        order = 1 + max((spool.order for spool in self._spools.values()), default=0)
        return self._spools.setdefault(owner.claim_id, _Spool(owner, str(source), order))

    def _append(self, spool: _Spool, lines: Sequence[str], position: int) -> None:
        if not lines:
            return
        spool.total += len(lines)
        spool.position = position
        spool.unwritten = [*spool.unwritten, *map(kept_line, lines)]
        try:
            self._write(spool)
        except OSError:
            spool.unwritten = spool.unwritten[-UNWRITTEN_LINES:]

    def _write(self, spool: _Spool) -> None:
        """Write all unwritten lines as one record, so that a partly written record is recognised. Raises OSError."""
        next_line = spool.total - len(spool.unwritten)
        if spool.full or next_line != spool.written:  # not the latter unless memory was full, too
            self._begin_file(spool, next_line)
        path = self._path(spool.owner.claim_id, spool.firsts[-1])
        if self.folder.is_dir() and not path.exists():  # it was removed
            self._begin_file(spool, next_line)
            path = self._path(spool.owner.claim_id, next_line)
        # Unbuffered: a buffer that a full disk did not take would stand in the way of the cut.
        with path.open("r+b", buffering=0) as file:
            before = file.seek(0, os.SEEK_END)
            rest = memoryview(_line([spool.position, spool.unwritten]))
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:
                with suppress(OSError):
                    file.truncate(before)
                raise
            bytes_now = file.tell()
        spool.unwritten, spool.written, spool.sizes[-1] = [], spool.total, bytes_now
        spool.full = bytes_now >= FILE_BYTES or spool.total - spool.firsts[-1] >= FILE_LINES

    def _begin_file(self, spool: _Spool, number: int) -> None:
        claim_id = spool.owner.claim_id
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(claim_id, number)
        try:
            path.write_bytes(msgspec.json.encode(_Heading(spool.owner, spool.order, number, spool.source)) + b"\n")
        except OSError:
            path.unlink(missing_ok=True)
            raise
        spool.firsts.append(number)
        spool.sizes.append(0)
        spool.written, spool.full = number, False
        for place in reversed(dropped(spool.sizes, LOG_BYTES_MAX)):
            spool.sizes.pop(place)
            self._path(claim_id, spool.firsts.pop(place)).unlink(missing_ok=True)

    def _lines(self, claim_id: str, number: int) -> list[str]:
        try:
            content = self._path(claim_id, number).read_bytes()
        except OSError:
            return []
        return [line for _, lines in _records(content)[0] for line in lines]

    def _take_up(self, path: Path) -> None:
        """Add a file's lines to its attempt; of a damaged file, the lines before the damage. A file whose heading is
        invalid, or does not fit the file's name or the attempt's earlier lines, is renamed."""
        spool = None
        with suppress(OSError, ValueError, msgspec.MsgspecError, RecursionError):
            content = path.read_bytes()
            heading = msgspec.json.decode(content.partition(b"\n")[0], type=_Heading)
            owner, number = heading.owner, heading.first
            known = self._spools.get(owner.claim_id) or _Spool(owner, heading.source, heading.order)
            if path == self._path(owner.claim_id, number) and number >= known.total:
                spool = self._spools.setdefault(owner.claim_id, known)
        if spool is None:
            self._set_aside(path)
            return
        records, good_bytes = _records(content)
        if good_bytes < len(content):
            self._mend(path, content, good_bytes)
        spool.firsts.append(number)
        spool.sizes.append(good_bytes)
        spool.total = number + sum(len(lines) for _, lines in records)
        spool.position = records[-1][0] if records else spool.position
        spool.written = spool.total
        spool.full = good_bytes >= FILE_BYTES or spool.total - number >= FILE_LINES

    def _catch_up(self, spool: _Spool) -> None:
        """Append what the trainer printed after the last record."""
        source = Path(spool.source)
        tail = OutputTail(source, spool.position)
        while lines := tail.poll():
            self._append(spool, lines, tail.position)
        self._append(spool, tail.poll(final=True), tail.position)

    def _mend(self, path: Path, content: bytes, good_bytes: int) -> None:
        """Cut the damaged end off an outbox file. The trainer's own output file usually still has those lines."""
        torn = b"\n" not in content[good_bytes:-1]
        if not torn:
            with suppress(OSError):
                path.with_suffix(".corrupt").write_bytes(content)
            log.warning("%s is damaged; the lines after the damage are moved to another file", path)
        with suppress(OSError), path.open("r+b") as file:
            file.truncate(good_bytes)

    def _set_aside(self, path: Path) -> None:
        log.warning("%s is damaged and was renamed; its lines of output are not delivered", path)
        with suppress(OSError):
            LocalFs().replace(path, path.with_suffix(".corrupt"))
        with suppress(OSError):
            damaged = sorted(self.folder.glob("*.corrupt"), key=lambda one: one.stat().st_mtime_ns)
            for old in damaged[:-CORRUPT_KEPT]:
                old.unlink(missing_ok=True)

    def _drop_oldest(self) -> None:
        room, kept = BYTES_KEPT, set[str]()
        for claim_id in list(self._spools)[: -ATTEMPTS_KEPT - 1 : -1]:
            room -= sum(self._spools[claim_id].sizes)
            if room < 0:
                break
            kept.add(claim_id)
        for claim_id in [each for each in self._spools if each not in kept]:
            log.warning("the output of %s is not kept any longer", self._spools[claim_id].owner.name)
            self.forget(claim_id)


def dropped(sizes: Sequence[int], most: int) -> range:
    """Return the positions of the files to delete if ``sizes`` add up to more than ``most``: the oldest behind the
    first half of ``most`` bytes, but never the last file."""
    over, head = sum(sizes) - most, 0
    begin = next((place for place, size in enumerate(sizes) if (head := head + size) > most // 2), len(sizes))
    end = begin
    while over > 0 and end < len(sizes) - 1:
        over -= sizes[end]
        end += 1
    return range(begin, end)


def fitting(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Return as many of the first ``lines`` as one message may have."""
    room = MESSAGE_BYTES_MAX
    for number, line in enumerate(lines[:LOG_LINES_MAX]):
        room -= len(json.dumps(line)) + 2
        if room < 0:
            return lines[:number]
    return lines[:LOG_LINES_MAX]


def _line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _records(content: bytes) -> tuple[list[tuple[int, list[str]]], int]:
    """Return a file's valid records after its heading, each a position with its lines, and the number of valid
    bytes."""
    found: list[tuple[int, list[str]]] = []
    good_bytes = 0
    for number, line in enumerate(content.splitlines(keepends=True)):
        if not line.endswith(b"\n"):
            break
        if number:
            try:
                found.append(msgspec.json.decode(line, type=tuple[int, list[str]]))
            except ValueError:
                break
        good_bytes += len(line)
    return found, good_bytes

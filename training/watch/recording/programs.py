"""Keep what each program on this host uses, second by second.

Each second the short lines of all processes are read (``Processes.scan``). What a process reads, writes and holds costs
more, so it is read of at most ``CANDIDATES`` processes a second, in turn, first of those that did something. What a
process used between two readings counts at the later one, so that waiting for a turn loses nothing. What a process did
after its last reading and before its end is lost, except for processor time and page faults: these count as
``ended_cpu`` and ``ended_faults`` of the program that waited for the process.
"""

import getpass
import heapq
import math
import os
import secrets
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import polars as pl

from training.clock import Clock
from training.data.programs import AMOUNTS, MOST_OF_EACH, PROGRAMS_MAX, REST, Program
from training.files import write_whole
from training.watch.recording.proc import PROC
from training.watch.recording.processes import Detail, Identity, LinuxProcesses, OtherProcesses, Processes, Reading

CANDIDATES = 40
IDLE_CANDIDATES = 10  # of these, for processes that seem to do nothing, because their sockets may change
RANKS = ("cpu", "read", "write", "started", "sockets")
_NOTHING = Detail(*(0.0,) * len(Detail._fields))
_USED = Detail._fields[:-1]  # all but sockets, which are a level
INHERITED = 6  # the first fields of a Detail, which Linux adds to the process that waits for an ended one

Amounts = dict[str, float]


@dataclass(slots=True)
class _Known:
    """A process as it was last read. ``detail`` is None until it was read once; ``asked`` is the number of the sample
    that last tried to read it; ``hidden`` is true if this user may not see it."""

    reading: Reading
    program: int
    settled: bool = False
    detail: Detail | None = None
    asked: int = -1
    hidden: bool = False
    inherited: list[float] = field(default_factory=lambda: [0.0] * INHERITED)


@dataclass
class Programs:
    """The programs of a recording with their amounts in every second; call ``sample`` once a second."""

    processes: Processes
    hidden: int = 0  # processes in the last sample whose reads, writes and sockets this user may not see
    seen: int = 0  # processes in the last sample, without kernel threads
    _known: dict[int, _Known] = field(default_factory=dict)
    _numbers: dict[Program, int] = field(default_factory=lambda: {REST: 0})
    _sessions: dict[int, int] = field(default_factory=dict)
    _samples: int = 0
    _before: float = math.inf  # when the last sample was taken, on the machine's own clock
    _t: "array[float]" = field(default_factory=lambda: array("d"))
    _rows: "array[int]" = field(default_factory=lambda: array("I"))
    _amounts: "array[float]" = field(default_factory=lambda: array("d"))

    def sample(self, t: float) -> None:
        """Read the processes and keep a row for each of the first programs and one for the rest. ``t`` is in seconds
        since the recording began. The first sample has levels only, as nothing was read before it."""
        now = self.processes.uptime()
        readings = {reading.pid: reading for reading in self.processes.scan()}
        last, self._known = self._known, {}
        for pid, reading in readings.items():
            known = last.get(pid)
            if known is None or known.reading.started != reading.started:
                known = _Known(reading, -1, detail=_NOTHING if reading.started >= self._before else None)
            self._name(known, reading, readings.get(reading.parent))
            self._known[pid] = known
        found = self._use(last, readings)
        self._ask(found)
        self.seen = sum(not reading.kernel for reading in readings.values())
        self.hidden = sum(known.hidden for known in self._known.values())
        self._keep(t, found)
        self._samples, self._before = self._samples + 1, now

    def _name(self, known: _Known, reading: Reading, parent: Reading | None) -> None:
        """Find out a new process's program, and once more at its second reading and when its name has changed, because
        a process starts as a copy of its parent and then becomes another program."""
        new = known.program < 0
        if known.settled and reading.name == known.reading.name:
            return
        known.settled = not new
        program = self.processes.program(reading, "" if parent is None else parent.name)
        if reading.session:
            program = program._replace(session=self._sessions.setdefault(reading.session, len(self._sessions) + 1))
        if program not in self._numbers and len(self._numbers) >= PROGRAMS_MAX:
            program = REST
        known.program = self._numbers.setdefault(program, len(self._numbers))

    def _use(self, last: dict[int, _Known], readings: dict[int, Reading]) -> dict[int, Amounts]:
        """Return the levels of each program, and what its processes used since the last sample by their short lines."""
        found: dict[int, Amounts] = {}
        inherited = self._inherited(last)
        for pid, reading in readings.items():
            known, before = self._known[pid], last.get(pid)
            amounts = found.setdefault(known.program, dict.fromkeys(AMOUNTS, 0.0) | {"programs": 1.0})
            amounts["processes"] += 1
            amounts["threads"] += reading.threads
            amounts["memory"] += reading.memory
            if before is known:
                was = before.reading
                amounts["cpu"] += max(reading.cpu - was.cpu, 0.0)
                ended_cpu, ended_faults = inherited.get(pid, (0.0, 0.0))
                amounts["ended_cpu"] += max(reading.ended_cpu - was.ended_cpu - ended_cpu, 0.0)
                amounts["ended_faults"] += max(reading.ended_faults - was.ended_faults - ended_faults, 0.0)
            elif known.detail is _NOTHING:
                amounts["cpu"] += reading.cpu
                amounts["ended_cpu"] += reading.ended_cpu
                amounts["ended_faults"] += reading.ended_faults
            known.reading = reading
        for pid, known in self._known.items():
            parent = self._known.get(known.reading.parent)
            if parent is not None and last.get(pid) is not known and known.detail is _NOTHING:
                found[parent.program]["started"] += 1
        return found

    def _inherited(self, last: dict[int, _Known]) -> dict[int, tuple[float, float]]:
        """Return the processor time and page faults that each living process inherits from ended descendants and that
        were counted already, while those ran; note the same of what they read and wrote in ``_Known.inherited``.

        Linux adds all that an ended process used to the process that waits for it.
        """
        ended = {pid: known for pid, known in last.items() if self._known.get(pid) is not known}
        found: dict[int, tuple[float, float]] = {}
        for known in ended.values():
            heir = known.reading.parent
            while heir in ended:
                heir = ended[heir].reading.parent
            if heir in self._known:
                cpu, faults = found.get(heir, (0.0, 0.0))
                reading, mine = known.reading, self._known[heir].inherited
                found[heir] = cpu + reading.cpu + reading.ended_cpu, faults + reading.faults + reading.ended_faults
                for i, value in enumerate((known.detail or ())[:INHERITED]):
                    mine[i] += value
        return found

    def _ask(self, found: dict[int, Amounts]) -> None:
        """Read what some processes read, wrote and hold, and add what is new of it to their programs' amounts."""
        busy = [k for k in self._known.values() if k.reading.changed and not k.reading.kernel]
        idle = [k for k in self._known.values() if not k.reading.changed and not k.reading.kernel]
        first = heapq.nsmallest(CANDIDATES - IDLE_CANDIDATES, busy, key=lambda k: k.asked)
        first += heapq.nsmallest(CANDIDATES - len(first), idle, key=lambda k: k.asked)
        for known in first:
            known.asked = self._samples
            try:
                detail = self.processes.detail(known.reading.pid)
                known.hidden = False
            except PermissionError:
                detail, known.hidden = None, True
            if detail is None:
                continue
            if known.detail is not None:
                taken = (*known.inherited, 0.0)
                for i, name in enumerate(_USED):
                    found[known.program][name] += max(detail[i] - known.detail[i] - taken[i], 0.0)
            known.detail, known.inherited = detail, [0.0] * INHERITED
        hidden = {k.program for k in self._known.values() if k.hidden}
        for known in self._known.values():
            if known.detail is not None and not known.hidden:
                hidden.discard(known.program)
                found[known.program]["sockets"] += known.detail.sockets
        for program in hidden:
            found[program].update(dict.fromkeys(Detail._fields, math.nan))

    def _keep(self, t: float, found: dict[int, Amounts]) -> None:
        first = {
            number
            for rank in RANKS
            for number in heapq.nlargest(MOST_OF_EACH, found, key=lambda n: _or_zero(found[n][rank]))
            if found[number][rank] > 0
        }
        rest = dict.fromkeys(AMOUNTS, 0.0)
        for number, amounts in found.items():
            if number not in first:
                for name, value in amounts.items():
                    rest[name] += _or_zero(value)
        first.discard(0)
        for number, amounts in ((0, rest), *((n, found[n]) for n in sorted(first))):
            self._t.append(t)
            self._rows.append(number)
            self._amounts.extend(amounts.values())

    def table(self) -> pl.DataFrame:
        """Return the rows of all samples, with the columns of ``training.data.programs.SCHEMA``."""
        amounts = np.frombuffer(self._amounts).reshape(len(self._t), len(AMOUNTS))
        programs = pl.DataFrame(list(self._numbers), schema=Program._fields, orient="row")
        return pl.DataFrame({"t": np.frombuffer(self._t)}).with_columns(
            *programs[np.frombuffer(self._rows, np.uint32)],
            *(pl.Series(name, amounts[:, i]).fill_nan(None) for i, name in enumerate(AMOUNTS)),
        )

    def blind_spot(self) -> str | None:
        """Return a sentence about processes of which this user sees too little, and the remedy; None without any."""
        if not self.hidden:
            return None
        return (
            f"{self.hidden} of {self.seen} processes belong to others: what they read and write and their sockets are "
            "not recorded. Run this as root or with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH to see it."
        )


def programs_of_host(
    folder: Path, clock: Clock, *, reference: bool, show_users: bool, pids: Callable[[], list[int]] | None = None
) -> Programs:
    """Return an empty recording of this host's programs. Its secret and the time of its reference lie in the file
    ``folder/host.json``, which only its user can read, and which is written if it is missing or this is a reference.

    ``pids`` returns the ids of the processes that belong to the host; None means all of this machine's. Raises OSError
    if the file cannot be read or written, ValueError if it is not as this function writes it.
    """
    file = folder / "host.json"
    try:
        kept = msgspec.json.decode(file.read_bytes(), type=_Host)
    except FileNotFoundError:
        kept = None
    if kept is None or reference:
        secret = secrets.token_hex(16) if kept is None else kept.secret
        kept = _Host(secret, reference_at=clock.now() if reference else None)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(file, msgspec.json.encode(kept), mode=0o600)
    return Programs(_reader(kept, clock, show_users, pids))


class _Host(msgspec.Struct, frozen=True):
    secret: str
    reference_at: float | None


def _reader(host: _Host, clock: Clock, show_users: bool, pids: Callable[[], list[int]] | None) -> Processes:
    linux = (PROC / "self" / "stat").exists()
    own: int | str = int(os.environ.get("SUDO_UID", os.getuid())) if linux else getpass.getuser()
    identity = Identity(bytes.fromhex(host.secret), host.reference_at, show_users, own)
    return LinuxProcesses(identity, pids) if linux else OtherProcesses(identity, clock)


def _or_zero(value: float) -> float:
    return 0.0 if math.isnan(value) else value

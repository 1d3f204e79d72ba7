"""Read the processes of this host: from /proc on Linux, from psutil elsewhere.

All that a process can choose itself (its name, its unit's name) is made printable and short before anybody sees it.
"""

import hashlib
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import psutil

from training.clock import Clock
from training.data.programs import Program
from training.printable import printable
from training.watch.recording.proc import PROC, open_sockets, read_text

NAME_CHARS = 64
HOMES = ("/home/", "/root/", "/Users/", "C:\\Users\\")
TEMPORARY = ("/tmp/", "/var/tmp/", "/dev/shm/", "/run/user/", "C:\\Windows\\Temp\\")  # noqa: S108 - only compared
KERNEL_THREAD = 0x00200000  # PF_KTHREAD in the flags of /proc/PID/stat
SERVICE_USERS = (1000, 60_000)  # user ids below the first or from the second on are services'


class Reading(NamedTuple):
    """The values read of every process each second: times in seconds, memory in bytes.

    ``started`` counts from a moment before the recording, such as the machine's start. ``faults`` are page faults.
    ``ended_cpu`` and ``ended_faults`` are those of children that ended and were waited for, with their own children's.
    ``changed`` is false if the reading equals the one before.
    """

    pid: int
    started: float
    parent: int
    session: int
    name: str
    kernel: bool
    cpu: float
    faults: float
    ended_cpu: float
    ended_faults: float
    threads: int
    memory: float
    changed: bool = True


class Detail(NamedTuple):
    """The amounts read of some processes only, since each process started; ``sockets`` is the present number."""

    read: float
    write: float
    reads: float
    writes: float
    disk_read: float
    disk_write: float
    switches: float
    sockets: float


class Processes(Protocol):
    """Reads the processes of a host."""

    def scan(self) -> list[Reading]:
        """Read all processes; those that end meanwhile are left out."""
        ...

    def detail(self, pid: int) -> Detail | None:
        """Return what one process read, wrote and holds; None if it has ended.

        Raises PermissionError if this user may not see it.
        """
        ...

    def uptime(self) -> float:
        """Return the present time on the clock of ``Reading.started``."""
        ...

    def program(self, reading: Reading, parent: str) -> Program:
        """Return the program of a process, without its session; ``parent`` is the name of the parent program."""
        ...


@dataclass
class Identity:
    """The rules that turn a process's user and file into words that may leave the host."""

    secret: bytes
    reference_at: float | None = None  # epoch seconds
    show_users: bool = False
    own: int | str = ""
    _others: dict[int | str, str] = field(default_factory=dict)

    def path(self, path: str) -> str:
        return hashlib.blake2b(os.fsencode(path), key=self.secret, digest_size=6).hexdigest() if path else ""

    def young(self, changed_at: float | None) -> int:
        if changed_at is None or self.reference_at is None:
            return -1
        return int(changed_at > self.reference_at)

    def user(self, user: int | str, name: Callable[[int], str] = str) -> str:
        """Return the word for a user, given as a number on POSIX, elsewhere as a name; ``name`` returns the name of a
        number."""
        if self.show_users:
            return clean(name(user) if isinstance(user, int) else user)
        if user in (0, r"NT AUTHORITY\SYSTEM"):
            return "root"
        if user == self.own:
            return "you"
        service = (
            not SERVICE_USERS[0] <= user < SERVICE_USERS[1]
            if isinstance(user, int)
            else user.startswith(("NT AUTHORITY\\", "NT SERVICE\\"))
        )
        return "service" if service else self._others.setdefault(user, f"other-{len(self._others) + 1}")


def clean(text: str | bytes) -> str:
    """Return a name in printable characters, at most ``NAME_CHARS``; backslashes escape all others."""
    if isinstance(text, bytes):
        text = text.decode(errors="backslashreplace")
    return printable(text)[:NAME_CHARS]


def place_of(path: str) -> str:
    """Return home, temporary or memory for the path of a program's file, or an empty text for any other place."""
    if path.startswith("/memfd:"):
        return "memory"
    if path.startswith(TEMPORARY) or "\\AppData\\Local\\Temp\\" in path:
        return "temporary"
    return "home" if path.startswith(HOMES) else ""


def unit_of(text: str) -> str:
    """Return the service unit, scope or container from the text of /proc/PID/cgroup; empty in the root group.

    Numbers of users, sessions and processes are left out of units' names, so that each run of an application has the
    same name. A container has the first twelve characters of its id.
    """
    path = max((line.split(":", 2)[2] for line in text.splitlines() if line.count(":") > 1), key=len, default="")
    for part in reversed(path.strip("/").split("/")):
        if (found := re.search("[0-9a-f]{32,64}", part)) is not None:
            return found[0][:12]
        stem, dot, kind = part.rpartition(".")
        if dot and kind in ("service", "scope"):
            return clean(f"{stem.rstrip('0123456789').rstrip('-')}.{kind}")
    return clean(path.rpartition("/")[2])


class LinuxProcesses:
    """Reads /proc. ``pids`` returns the ids of the processes to read; None means all of this machine's."""

    def __init__(self, identity: Identity, pids: Callable[[], list[int]] | None = None) -> None:
        self._identity = identity
        self._pids = pids
        self._last: dict[int, tuple[bytes, Reading]] = {}
        self._tick = os.sysconf("SC_CLK_TCK")
        self._page = os.sysconf("SC_PAGE_SIZE")

    def scan(self) -> list[Reading]:
        pids = [int(name) for name in os.listdir(PROC) if name.isdecimal()] if self._pids is None else self._pids()  # noqa: PTH208
        last, self._last = self._last, {}
        for pid in pids:
            data = _bytes(pid, "stat")
            before = last.get(pid)
            if before is not None and before[0] == data:
                reading = before[1]._replace(changed=False) if before[1].changed else before[1]
            elif data:
                reading = self._parse(pid, data)
            else:
                continue
            self._last[pid] = data, reading
        return [reading for _, reading in self._last.values()]

    def _parse(self, pid: int, data: bytes) -> Reading:
        # The name may hold anything, blanks and brackets too: it ends at the last closing bracket.
        head, _, tail = data.rpartition(b") ")
        # Linux's manual numbers the fields from 1; the first of the tail is field 3.
        fields = tail.split()
        cpu, ended = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
        kernel = bool(int(fields[6]) & KERNEL_THREAD)
        name = head.partition(b" (")[2]
        return Reading(
            pid=pid,
            started=int(fields[19]) / self._tick,
            parent=int(fields[1]),
            session=int(fields[3]),
            name=clean(name.partition(b"/")[0] if kernel else name),
            kernel=kernel,
            cpu=cpu / self._tick,
            faults=float(int(fields[7]) + int(fields[9])),
            ended_cpu=ended / self._tick,
            ended_faults=float(int(fields[8]) + int(fields[10])),
            threads=int(fields[17]),
            memory=float(int(fields[21]) * self._page),
        )

    def uptime(self) -> float:
        return float(read_text(PROC / "uptime").split()[0])

    def detail(self, pid: int) -> Detail | None:
        if b") Z " in self._last[pid][0]:
            return None  # it has ended, and its parent has not waited for it yet
        io = dict(line.split(b": ") for line in _bytes(pid, "io").splitlines())
        sockets = open_sockets(pid)
        if not io or sockets is None:
            if (PROC / str(pid)).exists():
                raise PermissionError(pid)
            return None
        lines = _bytes(pid, "status").splitlines()[-2:]
        switches = sum(float(line.rpartition(b"\t")[2]) for line in lines if b"ctxt_switches" in line)
        keys = (b"rchar", b"wchar", b"syscr", b"syscw", b"read_bytes", b"write_bytes")
        return Detail._make((*(float(io[key]) for key in keys), switches, sockets))

    def program(self, reading: Reading, parent: str) -> Program:
        if reading.kernel:
            return Program(reading.name, unit="kernel", user="root")
        path, changed_at, uid = "", None, 0
        with suppress(OSError):
            uid = (PROC / str(reading.pid)).stat().st_uid
        with suppress(OSError):
            path = os.readlink(f"{PROC}/{reading.pid}/exe").removesuffix(" (deleted)")  # noqa: PTH115
            file = (PROC / str(reading.pid) / "exe").stat()
            changed_at = max(file.st_mtime, file.st_ctime)
        return Program(
            name=reading.name,
            path=self._identity.path(path),
            unit=unit_of(read_text(f"{PROC}/{reading.pid}/cgroup")),
            parent=parent,
            user=self._identity.user(uid, _user_name),
            young=self._identity.young(changed_at),
            place=place_of(path),
        )


def _bytes(pid: int, file: str) -> bytes:
    """Return the content of a file of a process, or nothing if it has ended or this user may not read it."""
    try:
        descriptor = os.open(f"{PROC}/{pid}/{file}", os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 4096)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _user_name(uid: int) -> str:
    try:
        import pwd

        return pwd.getpwuid(uid).pw_name
    except (ImportError, KeyError):
        return str(uid)


class OtherProcesses:
    """Reads what psutil gives on systems without /proc: no units, no sessions, nothing of ended children."""

    def __init__(self, identity: Identity, clock: Clock) -> None:
        self._identity = identity
        self._clock = clock
        self._known: dict[int, psutil.Process] = {}

    def scan(self) -> list[Reading]:
        readings = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError), process.oneshot():
                times, memory = process.cpu_times(), process.memory_info()
                readings.append(
                    Reading(
                        pid=process.pid,
                        started=process.create_time(),
                        parent=process.ppid(),
                        session=0,
                        name=clean(process.name()),
                        kernel=False,
                        cpu=times.user + times.system,
                        faults=0.0,
                        ended_cpu=0.0,
                        ended_faults=0.0,
                        threads=process.num_threads(),
                        memory=float(memory.rss),
                    )
                )
                self._known[process.pid] = process
        self._known = {r.pid: self._known[r.pid] for r in readings}
        return readings

    def uptime(self) -> float:
        return self._clock.now()

    def detail(self, pid: int) -> Detail | None:
        process = self._known[pid]
        try:
            io, switches = process.io_counters(), process.num_ctx_switches()
            sockets = len(process.net_connections())
        except psutil.NoSuchProcess:
            return None
        except (psutil.Error, OSError, AttributeError):
            raise PermissionError(pid) from None
        return Detail(
            read=io.read_bytes,
            write=io.write_bytes,
            reads=io.read_count,
            writes=io.write_count,
            disk_read=io.read_bytes,
            disk_write=io.write_bytes,
            switches=switches.voluntary + switches.involuntary,
            sockets=sockets,
        )

    def program(self, reading: Reading, parent: str) -> Program:
        process, path, changed_at, user = self._known[reading.pid], "", None, ""
        with suppress(psutil.Error, OSError):
            user = self._identity.user(process.username())
        with suppress(psutil.Error, OSError):
            path = process.exe()
            file = os.stat(path)  # noqa: PTH116
            changed_at = max(file.st_mtime, file.st_ctime)
        return Program(
            name=reading.name,
            path=self._identity.path(path),
            parent=parent,
            user=user,
            young=self._identity.young(changed_at),
            place=place_of(path),
        )

"""Recording programs: against a made-up kernel that counts as Linux does, and on this very machine."""

import math
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fakes import FakeClock
from training.data import programs as table
from training.data.programs import AMOUNTS, Program
from training.watch.recording import processes as reading_processes
from training.watch.recording.processes import Detail, Identity, LinuxProcesses, Reading, clean, place_of, unit_of
from training.watch.recording.programs import Programs, programs_of_host


@dataclass
class Process:
    started: float
    parent: int
    name: str
    cpu: float = 0.0
    ended_cpu: float = 0.0
    read: float = 0.0


@dataclass
class Kernel:
    """Processes that use time, read, start others and end; the process that waits for one inherits what it used."""

    now: float = 100.0
    here: dict[int, Process] = field(default_factory=lambda: {1: Process(0.0, 0, "init")})
    denied: frozenset[int] = frozenset()
    asked: list[int] = field(default_factory=list)
    next_pid: int = 2

    def start(self, parent, name):
        self.here[self.next_pid] = Process(self.now, parent, name)
        self.next_pid += 1
        return self.next_pid - 1

    def use(self, pid, amount):
        self.here[pid].cpu += amount
        self.here[pid].read += 1000 * amount

    def end(self, pid):
        gone = self.here.pop(pid)
        self.here[gone.parent].ended_cpu += gone.cpu + gone.ended_cpu
        self.here[gone.parent].read += gone.read

    def leaves(self):
        parents = {p.parent for p in self.here.values()}
        return [pid for pid in self.here if pid not in parents and pid != 1]

    def uptime(self):
        return self.now

    def scan(self):
        return [
            Reading(pid, p.started, p.parent, 0, p.name, False, p.cpu, 0.0, p.ended_cpu, 0.0, 1, 1.0)
            for pid, p in self.here.items()
        ]

    def detail(self, pid):
        self.asked.append(pid)
        if pid in self.denied:
            raise PermissionError(pid)
        return Detail(self.here[pid].read, *(0.0,) * 6, sockets=1.0)

    def program(self, reading, parent):
        return Program(reading.name, parent=parent)


def total(recorded, *names):
    frame = recorded.table()
    return sum(frame[name].sum() for name in names)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("start"), st.integers(0, 99), st.sampled_from("abc")),
        st.tuples(st.just("use"), st.integers(0, 99), st.integers(1, 9)),
        st.tuples(st.just("end"), st.integers(0, 99), st.just(None)),
        st.tuples(st.just("sample"), st.just(0), st.just(None)),
    ),
    max_size=40,
)


@given(before=steps, after=steps)
def test_all_that_processes_use_is_counted_once(before, after):
    kernel = Kernel()
    recorded, used = Programs(kernel), 0.0

    def play(all_steps, sampling):
        nonlocal used
        for what, which, value in all_steps:
            kernel.now += 0.01
            pids = list(kernel.here)
            if what == "start":
                kernel.start(pids[which % len(pids)], value)
            elif what == "use":
                kernel.use(pids[which % len(pids)], float(value))
                used += value
            elif what == "end" and (leaves := kernel.leaves()):
                kernel.end(leaves[which % len(leaves)])
            elif what == "sample" and sampling:
                recorded.sample(kernel.now)

    play(before, False)
    recorded.sample(kernel.now)
    used = 0.0
    play(after, True)
    kernel.now += 1
    recorded.sample(kernel.now)
    assert total(recorded, "cpu", "ended_cpu") == pytest.approx(used)
    assert total(recorded, "read") == pytest.approx(1000 * used)
    amounts = recorded.table().select(AMOUNTS.keys())
    assert amounts.min_horizontal().min() >= 0


def test_a_reader_in_turn_loses_nothing_and_asks_so_many_at_most():
    kernel = Kernel()
    pids = [kernel.start(1, f"p{n}") for n in range(100)]
    recorded = Programs(kernel)
    for _ in range(4):
        recorded.sample(kernel.now)
    for pid in pids:
        kernel.use(pid, 1.0)
    kernel.asked.clear()
    for n in range(4):
        recorded.sample(kernel.now)
        assert len(kernel.asked) <= 40 * (n + 1)
    assert total(recorded, "cpu") == 100
    assert total(recorded, "read") == 100_000


def test_the_first_of_each_kind_have_rows_and_the_others_stand_together():
    kernel = Kernel()
    pids = [kernel.start(1, f"p{n:02}") for n in range(20)]
    recorded = Programs(kernel)
    recorded.sample(0.0)
    for n, pid in enumerate(pids):
        kernel.here[pid].cpu += n
        kernel.here[pid].read += 100 - n
    kernel.now += 1
    child = kernel.start(pids[10], "child")
    recorded.sample(1.0)
    rows = recorded.table().filter(pl.col("t") == 1.0)
    names = set(rows["name"])
    assert {f"p{n:02}" for n in (*range(8), *range(12, 20), 10)} <= names
    assert not names & {"p08", "p09", "p11"}
    assert rows.filter(pl.col("name") == "p10")["started"].item() == 1
    rest = rows.row(by_predicate=pl.col("name") == "", named=True)
    assert rest["cpu"] == 8 + 9 + 11
    assert rows["programs"].sum() == 22 == rows["processes"].sum(), "init, twenty, and the child"
    assert child in kernel.here


def test_what_may_not_be_seen_is_absent_and_counted():
    kernel = Kernel()
    seen, unseen = kernel.start(1, "mine"), kernel.start(1, "theirs")
    kernel.denied = frozenset({unseen})
    recorded = Programs(kernel)
    recorded.sample(0.0)
    kernel.use(seen, 2.0)
    kernel.use(unseen, 3.0)
    recorded.sample(1.0)
    rows = {row["name"]: row for row in recorded.table().filter(pl.col("t") == 1.0).to_dicts()}
    assert rows["mine"]["read"] == 2000
    assert rows["theirs"]["read"] is None
    assert rows["theirs"]["cpu"] == 3
    assert recorded.blind_spot().startswith("1 of 3 processes belong to others")
    kernel.denied = frozenset()
    recorded.sample(2.0)
    assert recorded.blind_spot() is None


def test_a_process_that_becomes_another_program_counts_for_that_one():
    kernel = Kernel()
    recorded = Programs(kernel)
    recorded.sample(0.0)
    kernel.now += 1
    pid = kernel.start(1, "sh")
    recorded.sample(1.0)
    kernel.here[pid].name = "gzip"
    kernel.use(pid, 5.0)
    recorded.sample(2.0)
    cpu = recorded.table().group_by("name").agg(pl.col("cpu").sum())
    assert cpu.filter(pl.col("name") == "gzip")["cpu"].item() == 5


@given(st.binary(max_size=300))
def test_no_name_can_break_a_line(raw):
    name = clean(raw)
    assert name.isprintable()
    assert len(name) <= 64


@given(st.text(max_size=300))
def test_no_unit_can_break_a_line(text):
    unit = unit_of(f"0::/{text}\n")
    assert unit.isprintable()
    assert len(unit) <= 64


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("0::/\n", ""),
        ("0::/system.slice/ssh.service\n", "ssh.service"),
        ("0::/system.slice/system-getty.slice/getty@tty1.service\n", "getty@tty.service"),
        ("0::/user.slice/user-1000.slice/session-12.scope\n", "session.scope"),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-firefox-4711.scope\n", "app-firefox.scope"),
        ("12:cpu:/docker/" + "ab" * 32 + "\n0::/docker/" + "ab" * 32 + "\n", "abababababab"),
        ("0::/system.slice/docker-" + "0f" * 32 + ".scope\n", "0f0f0f0f0f0f"),
        ("4:cpu:/\n1:name=systemd:/hosts/office\n", "office"),
    ],
)
def test_units_are_named_without_numbers_of_users_and_runs(text, unit):
    assert unit_of(text) == unit


def test_places_and_users_are_words():
    assert [place_of(p) for p in ("/usr/bin/gzip", "/tmp/x", "/home/ann/x", "/memfd:x")] == [
        "",
        "temporary",
        "home",
        "memory",
    ]
    identity = Identity(b"secret", reference_at=10.0, own=1000)
    assert [identity.user(uid) for uid in (0, 33, 1000, 1002, 1001, 1002, 65534)] == [
        *("root", "service", "you", "other-1", "other-2", "other-1", "service"),
    ]
    assert [identity.user(n) for n in (r"NT AUTHORITY\SYSTEM", r"NT SERVICE\x", "ann")] == [
        "root",
        "service",
        "other-3",
    ]
    assert Identity(b"", show_users=True).user(7, lambda uid: f"user {uid}") == "user 7"
    assert [identity.young(at) for at in (None, 9.0, 11.0)] == [-1, 0, 1]


def test_a_path_leaves_the_host_only_under_its_secret(tmp_path):
    mine, other = Identity(b"a").path("/usr/bin/x"), Identity(b"b").path("/usr/bin/x")
    assert mine != other
    assert mine == Identity(b"a").path("/usr/bin/x")
    clock = FakeClock(1000.0)
    programs_of_host(tmp_path / "h", clock, reference=False, show_users=False)
    file = tmp_path / "h" / "host.json"
    kept = file.read_bytes()
    assert file.stat().st_mode & 0o777 == 0o600
    programs_of_host(tmp_path / "h", clock, reference=False, show_users=False)
    assert file.read_bytes() == kept
    programs_of_host(tmp_path / "h", clock, reference=True, show_users=False)
    assert b"1000" in file.read_bytes()
    assert kept[:40] == file.read_bytes()[:40], "the secret stays"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")
def test_a_program_of_this_machine_is_found_with_what_it_used(tmp_path):
    script = """
import sys
for line in sys.stdin:
    sum(range(3_000_000))
    with open(sys.argv[1], "wb") as file:
        file.write(bytes(4_000_000))
    print(flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script, tmp_path / "out"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        own = LinuxProcesses(Identity(b"secret"), pids=lambda: [child.pid])
        recorded = Programs(own)
        recorded.sample(0.0)
        for n in (1.0, 2.0):
            child.stdin.write(b"\n")
            child.stdin.flush()
            child.stdout.readline()
            recorded.sample(n)
        child.stdin.close()
    rows = recorded.table().filter(pl.col("name") != "")
    assert rows["write"].sum() == pytest.approx(8_000_000, abs=1000)
    assert rows["cpu"].sum() > 0
    assert set(rows["path"]) == {Identity(b"secret").path(str(Path(sys.executable).resolve()))}
    assert recorded.blind_spot() is None
    own.scan()
    recorded.sample(3.0)
    assert recorded.seen == 0


def test_brackets_and_line_breaks_in_a_name_are_no_fields():
    process = LinuxProcesses(Identity(b""))
    name = b"a) R 1 (\n\x1b["
    fields = b"S 7 1 3 0 -1 4194560 11 12 13 14 100 50 30 20 20 0 5 0 600 1000 25 " + b"0 " * 20
    reading = process._parse(9, b"9 (" + name + b") " + fields)
    assert reading == Reading(9, 6.0, 7, 3, r"a) R 1 (\n\x1b[", False, 1.5, 24.0, 0.5, 26.0, 5, 25.0 * process._page)


def test_the_table_of_programs_is_the_same_after_its_file():
    kernel = Kernel()
    recorded = Programs(kernel)
    recorded.sample(0.0)
    frame = table.typed(recorded.table())
    assert table.read_table(table.write_table(frame)).equals(frame)
    with pytest.raises(pl.exceptions.PolarsError):
        table.read_table(table.write_table(frame.with_columns(t=0.0)).replace(b"PAR1", b"PAR2"))
    assert reading_processes.NAME_CHARS == 64
    assert not math.isnan(frame["cpu"].sum())

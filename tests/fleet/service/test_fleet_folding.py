"""Output goes from the database into files of the store, and stays readable by line number."""

from __future__ import annotations

import gzip
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest
from builders import a_job
from conformance.memory_fs import MemoryFs
from fakes import Counting, FakeClock
from hypothesis import given
from hypothesis import strategies as st
from inline_steps import taken

from training.fleet.queue import logs as rows
from training.fleet.queue.jobs import JobQueue
from training.fleet.queue.logs import Gone, Piece, beyond
from training.fleet.recovery.logs import take_back_logs
from training.fleet.service import logs
from training.fleet.service.delivery import Disk, Step
from training.fleet.service.logs import Folding
from training.fleet.service.service import Service
from training.fleet.store.artifacts import ArtifactStore
from training.fleet.store.errors import DamagedArtifact, NotStored, StoreUnavailable
from training.fleet.store.logs import LogFile

ROOT = Path("/store")
GAP = "[… {} lines of output are missing"


class Attempted:
    """A receiver's queue and store in memory, and one live attempt that prints."""

    def __init__(self, **sizes):
        self.clock, self.fs = FakeClock(), MemoryFs()
        self.queue = JobQueue(":memory:", clock=self.clock, new_claim_id=Counting())
        self.queue.sync_from_manifest([a_job("one")])
        self.job = self.queue.claim_next(worker_hostname="pi", capability={})
        assert self.job is not None
        self.store = ArtifactStore(ROOT, self.fs)
        self.folding = Folding(Service(self.queue, self.store), self.store.logs, self.queue.db, **sizes)
        self.logs = logs.Logs(self.queue.db, self.store.logs)
        self.close = self.queue.close

    @property
    def attempt(self):
        return self.queue.attempts.of_job("id-one")[-1]

    def print(self, lines, *, first=None):
        attempt = self.attempt
        self.queue.attempts.append_log(attempt, attempt.log_next if first is None else first, lines)

    def fold(self):
        return taken(self.folding.fold())

    def pieces(self):
        return self.queue.logs.pieces("id-one", 1)

    def read(self):
        """Return every line by its number."""
        found = {}
        for page in self.logs.pages("id-one", 1):
            assert not found or page.first > max(found)
            found |= dict(enumerate(page.lines, page.first))
        return found


@pytest.fixture
def one():
    with closing(Attempted()) as made:
        yield made


SMALL = {"lines": 3, "file_bytes": 20}


@pytest.fixture
def small(monkeypatch):
    """The same with files of a few lines, and few of them."""
    monkeypatch.setattr(logs, "PAGE_BYTES", 30)
    with closing(Attempted(**SMALL, bytes_max=100)) as made:
        yield made


LINE = st.text(st.characters(exclude_characters="\n", exclude_categories=("Cs",)), max_size=9)
STORY = st.lists(st.one_of(st.lists(LINE, min_size=1, max_size=6), st.integers(1, 5), st.just("fold")), max_size=25)


@given(STORY)
def test_every_line_is_read_by_its_number_wherever_it_lies(story):
    with closing(Attempted(**SMALL)) as made, pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "PAGE_BYTES", 30)
        printed, number = dict[int, str](), 0
        for step in story:
            if isinstance(step, list):
                said = step
                if number and number - 1 not in printed:
                    printed[number - 1] = "gap"
                printed |= dict(enumerate(said, number))
                made.print(said, first=number)
                number += len(said)
            elif isinstance(step, int):
                number += step  # the worker could not keep these
            else:
                made.fold()
        found = made.read()
        assert found.keys() == printed.keys()
        for at, line in printed.items():
            assert found[at] == line or (line == "gap" and found[at].startswith("[… "))
        for after in range(number + 1):
            page = made.logs.page("id-one", 1, after)
            assert page.lines == [found[n] for n in range(page.first, page.next)]
            assert page.gap is None
        last = made.logs.end("id-one", 1, 4)
        assert last.lines == [found[n] for n in range(last.first, last.next)]
        assert not printed or last.next == max(printed) + 1


@given(st.lists(st.integers(1, 9), max_size=30), st.integers(40, 90))
def test_what_goes_is_in_the_middle_and_no_more_than_must(sizes, limit):
    pieces = [Piece("j", 1, n, 1, size, 1, "d", None, None) for n, size in enumerate(sizes)]
    gone = beyond(pieces, limit)
    stays = [piece for piece in pieces if piece not in gone]
    assert sum(piece.raw_bytes for piece in stays) <= limit
    assert [piece.first for piece in gone] == list(range(gone[0].first, gone[-1].first + 1)) if gone else True
    if gone:
        assert pieces[-1] in stays
        assert sum(piece.raw_bytes for piece in stays) + gone[-1].raw_bytes > limit, "one less would do"
        assert sum(piece.raw_bytes for piece in pieces[: gone[0].first + 1]) > limit // 2


def test_of_an_attempt_that_prints_without_end_the_middle_goes_and_readers_are_told(small):
    for n in range(40):
        small.print([f"line {n:04}"])
        small.fold()
    found = small.read()
    assert sum(len(line) + 1 for line in found.values()) <= 100 + 3 * 10, "files, and the newest in the database"
    assert {0, 1, 2, 37, 38, 39} <= found.keys()
    (first, end) = next((n, m) for n, m in zip(sorted(found), sorted(found)[1:], strict=False) if m > n + 1)
    page = small.logs.page("id-one", 1, first + 1)
    assert (page.first, page.gap) == (end, f"lines {first + 2}–{end} were not kept: 64 MiB an attempt")
    assert small.logs.page("id-one", 1, first + 4).gap == f"lines {first + 5}–{end} were not kept: 64 MiB an attempt"


def test_a_file_goes_an_hour_after_its_row(small):
    for n in range(40):
        small.print([f"line {n:04}"])
        small.fold()
    there = set(small.store.logs.names())
    kept = [piece for piece in small.pieces() if piece.gone is None]
    assert len(there) > len(kept)
    small.clock.advance(logs.REMOVED_AFTER_S - 1)
    small.fold()
    assert set(small.store.logs.names()) == there, "a backup may name them yet"
    small.clock.advance(2)
    small.fold()
    assert len(set(small.store.logs.names())) == len(kept)
    (gap,) = (piece for piece in small.pieces() if piece.gone is not None)
    assert (gap.gone, gap.bytes) == (Gone.SIZE, 0), "one row tells of them all"
    assert small.queue.logs.going(0.0, 9) == []


def test_all_goes_into_a_file_once_an_attempt_is_over_and_its_output_here(one):
    one.print(["a", "b"])
    assert one.fold() == 0, "more may come"
    one.queue.attempts.note_total(one.attempt, 2)
    one.queue.fail("id-one", "pi", error="it broke")
    assert one.fold() == 1
    assert one.queue.db.all("log", job_id="id-one", attempt=1, after=0, most=9) == []
    assert one.read() == {0: "a", 1: "b"}


def test_output_of_which_nobody_said_how_much_there_is_waits_for_an_hour(one):
    one.print(["a"])
    one.queue.fail("id-one", "pi", error="it broke")
    assert one.fold() == 0
    one.clock.advance(logs.SILENT_S + 1)
    assert one.fold() == 1
    one.print(["late"])
    assert one.fold() == 1
    assert one.read() == {0: "a", 1: "late"}


def test_a_crash_between_file_and_row_costs_nothing(small):
    small.print(["a", "b", "c"])
    steps = small.folding.fold()
    write = steps.send(steps.send(next(steps).work()).work())
    assert isinstance(write, Disk)
    write.work()
    steps.close()
    small.print(["d"])
    assert small.fold() == 1
    assert list(small.read().values()) == ["a", "b", "c", "d"]


def test_lines_that_are_in_a_file_already_go_into_no_other(small):
    """Of two who fold at once, the second finds its lines taken; one with later lines may not cover them either."""
    small.print(["a", "b", "c"])
    second = small.folding.fold()
    step = next(second)
    for _ in range(2):  # it has seen the lines, and written its file
        assert isinstance(step, Step)
        step = second.send(step.work())
    small.print(["d"])
    assert small.fold() == 1
    (before,) = small.pieces()
    assert before.count == 4
    assert isinstance(step, Disk)
    assert not small.queue.logs.fold(logs.piece_of(step.work()), 100)
    overlapping = small.store.logs.write("id-one", 1, 3, ["d", "e"])
    assert not small.queue.logs.fold(logs.piece_of(overlapping), 100)
    assert small.pieces() == [before]
    assert list(small.read().values()) == ["a", "b", "c", "d"]


def test_lines_that_go_into_a_file_between_two_looks_are_not_passed_over(small, monkeypatch):
    small.print(["a", "b", "c"])
    looks = []
    plain = rows.LogRows.chunks

    def chunks(self, job_id, attempt, after):
        if not looks:
            looks.append(after)
            monkeypatch.setattr(rows.LogRows, "chunks", plain)
            small.fold()
            small.print(["d"])
        return plain(self, job_id, attempt, after)

    monkeypatch.setattr(rows.LogRows, "chunks", chunks)
    page = small.logs.page("id-one", 1, 0)
    assert (page.first, page.lines[0]) == (0, "a")


def test_a_file_that_is_damaged_or_gone_is_said_and_not_read(one):
    one.print(["a"])
    one.queue.fail("id-one", "pi", error="it broke")
    one.clock.advance(logs.SILENT_S + 1)
    one.fold()
    (piece,) = one.pieces()
    file = logs.file_of(piece)
    path = ROOT / file.path
    sound = b"".join(one.fs.read(path))
    with pytest.raises(DamagedArtifact):
        one.store.logs.read(LogFile("id-one", 1, 0, 2, piece.raw_bytes, piece.bytes, file.sha256))
    one.fs.unlink(path)
    with pytest.raises(NotStored):
        one.store.logs.read(file)
    one.fs.append(path, sound[:-1] + b"x")
    with pytest.raises(DamagedArtifact):
        one.store.logs.read(file)
    one.fs.unlink(path)
    one.fs.append(path, gzip.compress(b"b\n", mtime=0))  # sound in itself, and as long
    with pytest.raises(DamagedArtifact, match="other bytes than were stored"):
        one.store.logs.read(file)
    page = one.logs.page("id-one", 1, 0)
    assert page.lines == []
    assert page.gap == "lines 1–1 were not kept: their file is damaged or gone; see `cis490-jobs doctor`"


def test_a_database_made_anew_takes_the_files_back_with_their_epochs(one):
    lines = ['{"event": "epoch", "epoch": 1, "loss": 0.5}', "between", '{"event": "epoch", "epoch": 2, "loss": 0.25}']
    for n, line in enumerate(lines):
        one.store.logs.write("id-one", 1, 2 * n, [line])
    one.store.logs.write("id-one", 1, 0, [lines[0], "longer"])
    take_back_logs(one.queue, one.store.logs)
    assert one.attempt.log_next == 5
    assert one.read() == {0: lines[0], 1: "longer", 2: "between", 4: lines[2]}
    assert one.logs.page("id-one", 1, 3).gap == "lines 4–4 were not kept: the database was rebuilt from the store"
    points = one.queue.db.all("curve", job_id="id-one", attempt=1, most=9, buckets=9)
    assert [point["loss"] for point in points] == [0.5, 0.25]


def test_a_job_whose_id_names_no_folder_keeps_its_output_in_the_database(one):
    one.queue._conn.execute("PRAGMA foreign_keys = OFF")
    for table in ("jobs", "attempts"):
        one.queue._conn.execute(f"UPDATE {table} SET job_id = '../one'")
    (attempt,) = one.queue.attempts.of_job("../one")
    one.queue.attempts.append_log(attempt, 0, ["a"])
    one.queue.attempts.note_total(attempt, 1)
    one.queue.fail("../one", "pi", error="it broke")
    assert one.fold() == 0
    assert one.logs.page("../one", 1, 0).lines == ["a"]


def test_a_full_disk_leaves_the_lines_where_they_are(one, monkeypatch):
    one.print(["a"])
    one.queue.attempts.note_total(one.attempt, 1)
    one.queue.fail("id-one", "pi", error="it broke")

    with monkeypatch.context() as patch:
        patch.setattr(one.fs, "write", Mock(side_effect=OSError(5, "Input/output error")))
        with pytest.raises(StoreUnavailable):
            one.fold()
    assert one.read() == {0: "a"}
    assert one.fold() == 1

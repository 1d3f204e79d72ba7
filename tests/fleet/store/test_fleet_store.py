"""The artifact store: the behaviour suite on two disks, failing disks, power cuts, and interleaved writers."""

from __future__ import annotations

import contextlib
import errno
import inspect
import json
import os
import random
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
from conformance.memory_fs import MemoryFs, PowerCut
from conformance.store_suite import BODY, CHECKS, CLAIM, SHA, part_with, row, sha, upload
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from stored import provenance_of

from training.files import BLOCK_BYTES, HELD_S, LocalFs, replace_all
from training.fleet.store.artifacts import Artifact, ArtifactStore, report_path
from training.fleet.store.errors import Fenced, NotStored, ShareFull, StoreError, StoreFull, StoreUnavailable
from training.fleet.store.incoming import PartFile
from training.fleet.store.reserve import DiskRoom
from training.fleet.store.store_id import read_mark, write_mark

ROOT = Path("/models")


def on_memory(fs):
    return ArtifactStore(ROOT, fs, reserve_bytes=1000)


@pytest.mark.parametrize("disk", ["memory", "local"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_conformance(check, disk, tmp_path):
    fs = MemoryFs()
    on_local = partial(ArtifactStore, tmp_path / "models", reserve_bytes=1000)
    store = on_memory(fs) if disk == "memory" else on_local()

    def rot(path):
        if disk == "memory":
            fs.rot(ROOT / path)
        else:
            file = tmp_path / "models" / path
            body = file.read_bytes()
            file.write_bytes(bytes([body[0] ^ 1]) + body[1:])

    given = {"store": store, "rot": rot}
    check(**{name: given[name] for name in inspect.signature(check).parameters})


# -- the machine's own disk -------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path):
    return ArtifactStore(tmp_path)


@pytest.mark.skipif(os.name == "nt", reason="Windows keeps permissions elsewhere")
def test_parts_and_bundles_are_private(tmp_path, store):
    part = store.open_part(CLAIM, SHA)
    assert (tmp_path / "incoming" / f"{CLAIM}-{SHA}.part").stat().st_mode & 0o777 == 0o600
    part.close()
    assert (tmp_path / upload(store).path).stat().st_mode & 0o777 == 0o600


class Held:
    """A file of which the first renames are refused."""

    def __init__(self, refusals):
        self.refusals = refusals
        self.tries = 0

    def replace(self, _target):
        self.tries += 1
        if self.tries <= self.refusals:
            raise PermissionError(errno.EACCES, "held by a scanner")


@pytest.mark.parametrize(("system", "refusals", "tries"), [("nt", 0, 1), ("nt", 3, 4), ("posix", 0, 1)])
def test_a_file_held_for_a_moment_is_renamed_after_it(system, refusals, tries, monkeypatch):
    held, target, slept = Held(refusals), Path("there"), list[float]()
    with monkeypatch.context() as patched:
        patched.setattr("training.files.os.name", system)
        LocalFs(slept.append).replace(held, target)
    assert held.tries == tries
    assert slept == list(HELD_S[:refusals])


@pytest.mark.parametrize(("system", "tries"), [("nt", len(HELD_S) + 1), ("posix", 1)])
def test_a_file_held_for_good_is_a_refusal(system, tries, monkeypatch):
    held, target = Held(float("inf")), Path("there")
    with monkeypatch.context() as patched:
        patched.setattr("training.files.os.name", system)
        with pytest.raises(PermissionError, match="scanner"):
            LocalFs(lambda _: None).replace(held, target)
    assert held.tries == tries


def test_index_is_lines_of_json(tmp_path, store):
    store.index.append(row(upload(store), "j"))
    (line,) = (tmp_path / "index.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "artifact_id": SHA,
        "model": "gbt",
        "mode": "oracle",
        "job_id": "j",
        "attempt": 1,
        "size": len(BODY),
        "stored_at": 1_700_000_000.5,
        "path": f"gbt_oracle/{SHA}/bundle.tar.zst",
    }


def test_torn_last_line_is_cut(tmp_path, store):
    rows = [row(upload(store, bytes([n]))) for n in range(3)]
    for each in rows:
        store.index.append(each)
    whole = (tmp_path / "index.jsonl").read_bytes()
    for torn_at in (1, 50, len(rows[2].line()) - 1):
        (tmp_path / "index.jsonl").write_bytes(whole[: len(whole) - torn_at])
        repaired = store.index.repair(rows)
        assert repaired.cut_bytes == len(rows[2].line()) - torn_at
        assert repaired.rebuilt
        assert (tmp_path / "index.jsonl").read_bytes() == whole


def test_a_root_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreUnavailable, match="preparing"):
        ArtifactStore(tmp_path / "file" / "models")


def test_files_of_others_in_the_root_are_left_alone(tmp_path, store):
    upload(store)
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "gbt_oracle" / "notes.txt").write_text("mine")
    assert len(list(store.artifacts())) == 1


# -- sweeping ---------------------------------------------------------------------------------------------------


def test_sweep_takes_old_parts_that_nobody_writes():
    fs = MemoryFs()
    store = on_memory(fs)
    held = store.open_part("a" * 32, SHA)
    store.open_part("b" * 32, SHA).close()
    fs.now = 100.0
    store.open_part("c" * 32, SHA).close()
    assert store.incoming.sweep(older_than=50.0) == 1
    assert fs.names(ROOT / "incoming") == [f"{'a' * 32}-{SHA}.part", f"{'c' * 32}-{SHA}.part"]
    held.write(b"goes on")
    held.close()


# -- what cannot be read -----------------------------------------------------------------------------------------


class Counting(LocalFs):
    """The machine's own disk, with the handles that are open, on which one kind of call may fail."""

    def __init__(self, failing=""):
        super().__init__()
        self.open = set()
        self.failing = failing

    def create(self, path):
        handle = super().create(path)
        self.open.add(handle)
        return handle

    def reopen(self, path, size):
        handle = super().reopen(path, size)
        self.open.add(handle)
        return handle

    def close(self, handle):
        super().close(handle)
        self.open.remove(handle)

    def fsync(self, handle):
        if self.failing == "fsync":
            raise OSError(errno.EIO, "Input/output error")
        super().fsync(handle)

    def read(self, path):
        if self.failing == "read":
            raise OSError(errno.EIO, "Input/output error")
        return super().read(path)


def test_every_file_that_is_opened_is_closed(tmp_path):
    fs = Counting()
    store = ArtifactStore(tmp_path, fs)
    rows = [row(upload(store, bytes([n]))) for n in range(2)]
    upload(store, bytes([0]))
    artifact = store.find(rows[0].artifact_id, model="gbt", mode="oracle")
    store.write_provenance(artifact, job_id="1" * 64, attempt=1, record={})
    store.index.append(rows[0])
    index = tmp_path / "index.jsonl"
    index.write_bytes(index.read_bytes() + b"torn")
    store.index.repair(rows)
    store.open_part(CLAIM, SHA).drop()
    part = store.open_part(CLAIM, SHA)
    store.open_part(CLAIM, SHA).close()
    part.close()
    fs.failing = "fsync"
    with pytest.raises(StoreError):
        upload(store, b"another")
    index.write_bytes(index.read_bytes() + b"torn")
    with pytest.raises(StoreError):
        store.index.repair(rows)
    assert fs.open == set()


def test_a_prefix_that_cannot_be_read_leaves_its_part_to_the_next(tmp_path):
    fs = Counting()
    store = ArtifactStore(tmp_path, fs)
    part = store.open_part(CLAIM, SHA)
    part.write(BODY[:10])
    part.close()
    fs.failing = "read"
    with pytest.raises(StoreUnavailable):
        store.open_part(CLAIM, SHA, offset=10)
    assert fs.open == set()
    fs.failing = ""
    store.open_part(CLAIM, SHA, offset=10).close()


def test_a_bundle_that_is_gone_and_provenance_that_is_damaged(tmp_path, store):
    artifact = upload(store)
    sound = store.write_provenance(artifact, job_id="1" * 64, attempt=1, record={})
    sound.with_name(f"{'2' * 64}-1.json").write_bytes(b"junk")
    sound.with_name(f"{'3' * 64}-1.json").mkdir()
    assert [each["job_id"] for each in provenance_of(store, artifact)] == ["1" * 64]
    store.open(artifact).close()
    (tmp_path / artifact.path).unlink()
    with pytest.raises(NotStored, match="cannot be read"):
        store.open(artifact)


def test_a_file_that_cannot_be_cut_is_closed_again(tmp_path, monkeypatch):
    closed = []
    real = os.close

    (tmp_path / "file").touch()
    monkeypatch.setattr(os, "ftruncate", Mock(side_effect=OSError(errno.EIO, "Input/output error")))
    monkeypatch.setattr(os, "close", lambda handle: (closed.append(handle), real(handle)))
    with pytest.raises(OSError, match="Input/output"):
        LocalFs().reopen(tmp_path / "file", 0)
    assert len(closed) == 1


def test_a_line_of_which_a_part_was_written_is_a_failure(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, data[:2]))
    with pytest.raises(OSError, match="only 2 of 5 bytes"):
        LocalFs().append(tmp_path / "index", b"line\n")


# -- disk full --------------------------------------------------------------------------------------------------


def test_full_disk_keeps_what_came_and_goes_on_when_there_is_room():
    fs = MemoryFs(capacity=5000)
    store = on_memory(fs)
    part = store.open_part(CLAIM, SHA)
    part.write(BODY[:3000])
    with pytest.raises(StoreFull):
        part.write(BODY[3000:])
    part.close()
    stored = store.offset(CLAIM, SHA)
    assert stored >= 3000
    fs.capacity = 10**6
    part = store.open_part(CLAIM, SHA, offset=stored)
    part.write(BODY[stored:])
    store.publish(part, part.seal(sha256=SHA, size=len(BODY)), model="gbt", mode="oracle")
    store.verify(SHA, model="gbt", mode="oracle")


def test_index_line_torn_by_a_full_disk_is_cut_before_the_next():
    fs = MemoryFs()
    store = on_memory(fs)
    rows = [row(upload(store, bytes([n]))) for n in range(3)]
    store.index.append(rows[0])
    fs.capacity = fs.capacity - fs.free_bytes(ROOT) + 20
    with pytest.raises(StoreFull):
        store.index.append(rows[1])
    fs.capacity = 10**9
    store.index.append(rows[2])
    assert b"".join(fs.read(ROOT / "index.jsonl")) == rows[0].line() + rows[2].line()


# -- a whole life, failed and cut everywhere --------------------------------------------------------------------


class Life:
    """Uploads, provenance and index lines in the order of the receiver; remembers what was acknowledged."""

    def __init__(self):
        self.acknowledged = []  # artifact, model
        self.rows = []

    def run(self, fs):
        store = on_memory(fs)
        part = store.open_part(CLAIM, SHA)
        part.write(BODY[:3000])
        part.close()
        self._upload(store, CLAIM, BODY, "gbt")
        self._upload(store, "d" * 32, BODY, "gbt")
        self._upload(store, "e" * 32, b"second", "mlp")

    def _upload(self, store, claim, body, model):
        if store.find(sha(body), model=model, mode="oracle") and claim == CLAIM:
            artifact = store.confirm(sha(body), model=model, mode="oracle")
        else:
            part = store.open_part(claim, sha(body), offset=store.offset(claim, sha(body)))
            part.write(body[part.offset :])
            digest = part.seal(sha256=sha(body), size=len(body))
            artifact = store.publish(part, digest, model=model, mode="oracle")
        self.acknowledged.append((artifact.artifact_id, model))
        attempt = len(self.rows) + 1
        store.write_provenance(artifact, job_id="job", attempt=attempt, record={"host": "pi"})
        self.rows.append(row(artifact, attempt=attempt))  # here the caller commits
        store.index.append(self.rows[-1])

    def check(self, fs):
        """Everything acknowledged is there with its provenance, and the store goes on working."""
        store = on_memory(fs)
        attempts = set()
        for digest, model in self.acknowledged:
            artifact = store.verify(digest, model=model, mode="oracle")
            attempts |= {(model, record["attempt"]) for record in provenance_of(store, artifact)}
        for each in self.rows:
            assert (each.model, each.attempt) in attempts
        store.index.repair(self.rows)
        assert b"".join(fs.read(ROOT / "index.jsonl") if self.rows else []) == b"".join(
            each.line() for each in self.rows
        )
        for claim in (CLAIM, "f" * 32):
            offset = store.offset(claim, SHA)
            part = store.open_part(claim, SHA, offset=offset)
            part.write(BODY[offset:])
            try:
                digest = part.seal(sha256=SHA, size=len(BODY))
            except StoreError:  # the unsynced prefix had holes: it was thrown away, once
                part = store.open_part(claim, SHA)
                part.write(BODY)
                digest = part.seal(sha256=SHA, size=len(BODY))
            store.publish(part, digest, model="gbt", mode="oracle")
        store.confirm(SHA, model="gbt", mode="oracle")


def operations_of_a_life():
    fs = MemoryFs()
    Life().run(fs)
    return fs.operations


def nth():
    yield from range(1, operations_of_a_life() + 1)


@pytest.mark.parametrize("for_ever", [False, True], ids=["once", "for_ever"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=["eio", "enospc"])
def test_nth_operation_fails(error, for_ever):
    for n in nth():
        fs, life = MemoryFs(), Life()
        fs.fail_at, fs.for_ever, fs.failure = n, for_ever, OSError(error, os.strerror(error))
        with contextlib.suppress(StoreFull if error == errno.ENOSPC else StoreUnavailable):
            life.run(fs)
            assert len(life.rows) == 3  # what failed was a removal that the sweep makes up for
            assert not for_ever
        fs.heal()
        life.check(fs)


@pytest.mark.parametrize("seed", [20, pytest.param(22, marks=pytest.mark.thorough)])
def test_power_cut_at_every_operation(seed):
    states = 0
    chance = random.Random(seed)
    for n in nth():
        for _ in range(20):
            fs, life = MemoryFs(), Life()
            fs.fail_at, fs.failure = n, PowerCut()
            with pytest.raises(PowerCut):
                life.run(fs)
            life.check(fs.after_power_cut(chance))
            states += 1
    assert states >= 1000, "the promise of this project is checked in 2,000 crash states, a thousand with each seed"


@pytest.mark.half
@pytest.mark.parametrize("first", [PowerCut(), OSError(errno.EIO, "I/O")], ids=["killed", "failed"])
def test_power_cut_in_the_life_after(first):
    """The process is killed, or the disk fails once; it starts again on the same disk; then the power goes."""
    chance = random.Random(21)
    for n in nth():
        for m in range(1, 25):  # the first upload and what follows it
            fs, life = MemoryFs(), Life()
            fs.fail_at, fs.failure = n, first
            with contextlib.suppress(PowerCut, StoreError):
                Life().run(fs)
            fs.fail_at, fs.failure = m, PowerCut()
            with contextlib.suppress(PowerCut):
                life.run(fs)
            life.check(fs.after_power_cut(chance))


# -- interleaved writers ----------------------------------------------------------------------------------------


class Writers(RuleBasedStateMachine):
    """Connections that stall, die and return in any order; only the newest writer of an upload may move it."""

    body = bytes(range(250))

    @initialize()
    def begin(self):
        self.fs = MemoryFs()
        self.store = on_memory(self.fs)
        self.writers = []
        self.newest = None
        self.published = False

    @rule(offset=st.integers(0, 250))
    def connect(self, offset):
        stored = self.store.offset(CLAIM, sha(self.body))
        self.newest = self.store.open_part(CLAIM, sha(self.body), offset=min(offset, stored))
        self.writers.append(self.newest)

    @precondition(lambda self: self.writers)
    @rule(which=st.integers(0, 99), count=st.integers(1, 120))
    def write(self, which, count):
        part = self.writers[which % len(self.writers)]
        try:
            part.write(self.body[part.offset : part.offset + count])
        except Fenced:
            assert part is not self.newest
        else:
            assert part is self.newest

    @precondition(lambda self: self.writers)
    @rule(which=st.integers(0, 99))
    def finish(self, which):
        part = self.writers[which % len(self.writers)]
        try:
            digest = part.seal(sha256=sha(self.body), size=len(self.body))
            self.store.publish(part, digest, model="gbt", mode="oracle")
        except StoreError:
            assert part is not self.newest or part.offset < len(self.body)
        else:
            assert part is self.newest
            self.published, self.newest = True, None

    @precondition(lambda self: self.writers)
    @rule(which=st.integers(0, 99), how=st.sampled_from(["close", "drop"]))
    def let_go(self, which, how):
        part = self.writers.pop(which % len(self.writers))
        getattr(part, how)()
        if part is self.newest:
            self.newest = None

    @rule()
    def sweep(self):
        self.store.incoming.sweep(older_than=1.0)

    @invariant()
    def the_bundle_is_right_once_it_is_there(self):
        if getattr(self, "published", False):
            self.store.verify(sha(self.body), model="gbt", mode="oracle")


Writers.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestWriters = Writers.TestCase


def test_local_disk_refuses_to_replace(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    with pytest.raises(FileExistsError):
        LocalFs().rename_new(tmp_path / "one", tmp_path / "two")
    assert (tmp_path / "two").read_text() == "two"


def test_a_write_goes_on_where_the_system_stopped(tmp_path, monkeypatch):
    fs, write = LocalFs(), os.write
    handle = fs.create(tmp_path / "file")
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda to, data: write(to, data[:3]))
        fs.write(handle, b"0123456789")
    fs.close(handle)
    assert (tmp_path / "file").read_bytes() == b"0123456789"


def test_nothing_is_published_before_it_was_held_against_what_was_announced():
    part = on_memory(MemoryFs()).open_part(CLAIM, SHA)
    with pytest.raises(AssertionError, match="only a sealed part"):
        part.move_to(ROOT / "there", replacing=False)


def test_who_stalled_writes_no_more_once_another_goes_on():
    store = on_memory(MemoryFs())
    stalled = part_with(store, BODY[:100])
    store.open_part(CLAIM, SHA, offset=100)
    with contextlib.suppress(Fenced):
        stalled.write(b"late")
        raise AssertionError("two write one upload")


def test_other_bytes_are_never_sealed_as_what_was_announced():
    with contextlib.suppress(StoreError):
        assert part_with(on_memory(MemoryFs()), b"other").seal(sha256=SHA, size=None) != SHA


def test_what_is_on_its_way_to_the_disk_is_room_no_more():
    room = DiskRoom(ROOT, MemoryFs(capacity=1000), reserve_bytes=100)
    assert room.has(900)
    with room.writing(500):
        assert room.has(400)
        assert not room.has(401)
        with pytest.raises(StoreFull), room.writing(401):
            pass
    assert room.has(900)


def test_whose_store_it_is_outlasts_a_power_cut():
    chance = random.Random(22)
    for _ in range(20):
        fs = MemoryFs()
        fs.mkdir(ROOT / "incoming")
        for folder in (ROOT, *ROOT.parents):
            fs.sync_folder(folder)
        write_mark(fs, ROOT, ROOT / "incoming" / "mark.part", "0" * 32)
        assert read_mark(fs.after_power_cut(chance), ROOT) == "0" * 32


def test_a_report_that_a_crash_left_is_made_durable_when_it_comes_again():
    chance, artifact, body = random.Random(40), Artifact(SHA, "gbt", "realistic", 1), b'{"auroc": 1}'
    for n in range(1, 40):
        fs = MemoryFs()
        fs.fail_at, fs.failure = n, PowerCut()
        with contextlib.suppress(PowerCut):  # of the receiver alone: what it wrote is read by the next one
            on_memory(fs).write_report(artifact, body)
        fs.heal()
        digest = on_memory(fs).write_report(artifact, body)
        assert fs.after_power_cut(chance).size(ROOT / report_path(artifact, digest)) == len(body), n


def test_a_large_file_is_read_to_its_end(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * (BLOCK_BYTES + 1))
    assert [len(block) for block in LocalFs().read(tmp_path / "file")] == [BLOCK_BYTES, 1]


def test_of_two_that_take_an_upload_over_at_once_one_writes(monkeypatch):
    store, quicker = on_memory(MemoryFs()), list[PartFile]()
    first = store.open_part(CLAIM, SHA)

    def close():
        monkeypatch.undo()
        first.close()
        quicker.append(store.open_part(CLAIM, SHA))

    monkeypatch.setattr(first, "close", close)
    store.open_part(CLAIM, SHA).write(b"x")
    with pytest.raises(Fenced):
        quicker[0].write(b"y")


def test_an_upload_that_is_taken_over_counts_with_all_that_is_there():
    store = on_memory(MemoryFs(capacity=100_000))
    with contextlib.closing(store.open_part(CLAIM, SHA, host="pi")) as part:
        part.write(BODY[:3000])
    assert store.open_part(CLAIM, SHA, offset=3000, host="pi", coming=60_000).size == 3000
    share = (100_000 - 1000 - 3000 + 3000) // 4
    with pytest.raises(ShareFull):
        store.open_part("d" * 32, SHA, host="pi", coming=share - 2999)
    store.open_part("d" * 32, SHA, host="pi", coming=share - 3000)


def test_a_large_upload_takes_the_room_of_as_many_idle_ones_as_it_needs():
    store = on_memory(MemoryFs(capacity=20_000))
    for claim in ("1" * 32, "2" * 32, "3" * 32):
        with contextlib.closing(store.open_part(claim, SHA, host="pi")) as part:
            part.write(b"x" * 4000)
    store.open_part(CLAIM, SHA, host="desk", coming=20_000 - 1000 - 5000)
    assert [store.offset(claim * 32, SHA) for claim in "123"] == [0, 0, 4000], "the oldest went"


def test_many_small_files_are_closed_when_they_are_written(tmp_path):
    fs = Counting()
    replace_all(fs, [(tmp_path / f"{name}.part", tmp_path / name, name.encode()) for name in ("a", "b")])
    assert fs.open == set()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a", "b"]

"""Data sets on a training host: fetched whole or not at all, never a piece twice, and let go again."""

from __future__ import annotations

import errno
import os
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

import pytest
from builders import a_capability, a_job
from msgspec import structs
from receiver_running import running
from systems import make_link
from test_fleet_dataset import PIECE, QUIET, a_folder, block, lengths_of, planned, pushed
from test_fleet_worker import FakeRunner
from test_fleet_worker_state import Worker
from tls_world import secure
from wire_builders import a_grant, no_transfer

from training.contract import reads
from training.fleet.client.answers import Damaged
from training.fleet.client.client import Refused, Unreachable
from training.fleet.client.push import read_folder
from training.fleet.install import linux as install_linux
from training.fleet.install import windows as install_windows
from training.fleet.install.types import InstallRequest, System
from training.fleet.install.types import MachineRole as InstallRole
from training.fleet.process.ended import Ended
from training.fleet.scheduling.job import EndReason, Needs
from training.fleet.service.data_use import check_fetch
from training.fleet.service.hosts import Plan
from training.fleet.wire.constants import ProblemType, Refusal
from training.fleet.wire.identity import Role
from training.fleet.wire.words import progress
from training.fleet.worker import datasets as fetching
from training.fleet.worker import prefetch as dataset_fetch
from training.fleet.worker.attempt import TrainerAttempt, WorkerFolders
from training.fleet.worker.datasets import DatasetCache, FetchError, NotGiven, Order, Stopped
from training.fleet.worker.outbox import Outbox
from training.fleet.worker.state import events as t
from training.fleet.worker.state.exit_code import Failure
from training.fleet.worker.state.step import Phase
from training.fleet.worker.trainer_command import TrainerInputs
from training.locking import exclusive

GIB = 1024**3
JOB = a_grant(job_id="j", claim_id="c", name="one", spec={"model": "gbt", "dataset": "d" * 64})


class Shelf:
    """A receiver's data sets, with whatever goes wrong on the way: a thing to raise, or to do to the bytes."""

    def __init__(self):
        self.folders = {}
        self.sent = []  # the pieces
        self.trouble = []
        self.damage = lambda data: data

    def add(self, folder):
        listing = read_folder(folder, QUIET)
        self.folders[listing.dataset_id] = (folder, listing)
        return listing.dataset_id

    def _meet_trouble(self):
        trouble = self.trouble.pop(0) if self.trouble else None
        if trouble is not None:
            raise trouble

    def listing(self, dataset_id, *, tries=None):
        assert tries == 1, "the cache itself says when to try again"
        self._meet_trouble()
        return self.folders[dataset_id][1]

    def piece(self, dataset_id, sha256, *, tries=None):
        assert tries == 1
        self._meet_trouble()
        folder, listing = self.folders[dataset_id]
        place = next(each for each in listing.places() if each.sha256 == sha256)
        self.sent.append(sha256)
        return (folder / place.path).read_bytes()[place.offset : place.offset + place.length]


@pytest.fixture
def folder(tmp_path):
    return a_folder(
        tmp_path / "processed",
        summary_d_parquet=block("a") + block("b") + block("c", 0.5),
        tensors__t_d_npy=block("d", 1.25),
        empty_d_json=b"",
    )


@pytest.fixture
def shelf():
    return Shelf()


class Cache(DatasetCache):
    """A cache that fetches from a shelf."""

    def __init__(self, folder, shelf, bytes_max=GIB, free=10**12, **more):
        super().__init__(folder / "cache", bytes_max, **{"chance": lambda: 0.0, "free_bytes": lambda _: free, **more})
        self.shelf = shelf

    def get(self, dataset_id, order=None):
        return self.provide(dataset_id, self.shelf, order or wish())


@pytest.fixture
def cache(tmp_path, shelf):
    with closing(Cache(tmp_path, shelf)) as cache:
        yield cache


def files(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def wish():
    return Order(QUIET)


def test_a_data_set_is_fetched_once_and_is_what_was_pushed(cache, shelf, folder):
    dataset_id, told = shelf.add(folder), []
    there = cache.get(dataset_id, Order(lambda *how: told.append(how)))
    assert files(there) == files(folder)
    assert len(shelf.sent) == 5
    assert told[-1] == (PIECE * 3.75, PIECE * 3.75)
    assert cache.get(dataset_id) == there
    assert len(shelf.sent) == 5


@pytest.fixture
def dataset_id(shelf, folder):
    return shelf.add(folder)


@pytest.mark.parametrize("at", range(6))
def test_a_fetch_that_broke_off_goes_on(tmp_path, shelf, folder, dataset_id, at):
    shelf.trouble = [None] * at + [MemoryError("the worker is killed")]
    cache = Cache(tmp_path, shelf)
    with pytest.raises(MemoryError):
        cache.get(dataset_id)
    assert not (tmp_path / "cache/sets" / dataset_id).exists(), "nothing half is ever found"
    cache.close()
    cache = Cache(tmp_path, shelf)
    assert files(cache.get(dataset_id)) == files(folder)
    assert len(shelf.sent) == 5, "no piece travelled twice"
    cache.close()


def test_a_new_version_costs_its_changed_pieces_alone(cache, shelf, folder, tmp_path):
    cache.get(shelf.add(folder))
    second = a_folder(tmp_path / "second", x=block("z", 0.1))
    for name, content in files(folder).items():
        (second / name).parent.mkdir(exist_ok=True)
        (second / name).write_bytes(content)
    shelf.sent.clear()
    assert files(cache.get(shelf.add(second))) == files(second)
    assert len(shelf.sent) == 1


def test_a_receiver_that_is_away_is_waited_for(cache, shelf, folder):
    shelf.trouble = [Unreachable("away")] * 50 + [None, Unreachable("away"), Damaged("a flipped bit")]
    assert files(cache.get(shelf.add(folder))) == files(folder)


def test_what_keeps_arriving_damaged_or_is_refused_ends_the_fetch(cache, shelf, dataset_id):
    shelf.trouble = [None] + [Damaged("piece arrived damaged")] * 5
    with pytest.raises(NotGiven, match="5 times in a row"):
        cache.get(dataset_id)
    shelf.trouble = [Refused(403, "not_yours", "no job of this host trains on it", {})]
    with pytest.raises(NotGiven, match="no job of this host"):
        cache.get(dataset_id)
    with pytest.raises(FetchError, match="not the id"):
        cache.get("../../etc")


def test_a_fetch_ends_when_nobody_wants_it_any_more(cache, shelf, folder):
    stopped = threading.Event()
    order = Order(lambda done, whole: stopped.set(), stopped)
    with pytest.raises(Stopped):
        cache.get(shelf.add(folder), order)
    assert len(shelf.sent) == 1


def test_what_was_changed_on_the_host_is_mended(cache, shelf, folder, dataset_id):
    there = cache.get(dataset_id)
    content = bytearray((there / "summary.parquet").read_bytes())
    content[PIECE + 1] ^= 1
    (there / "summary.parquet").write_bytes(content + b"and more")
    (there / "tensors/t.npy").unlink()
    shelf.sent.clear()
    assert files(cache.get(dataset_id)) == files(folder)
    assert len(shelf.sent) == 3, "the flipped one, and the two of the file that was gone"
    content = (there / "summary.parquet").read_bytes()
    (there / "summary.parquet").write_bytes(bytes([content[0] ^ 1]) + content[1:])
    assert files(cache.get(dataset_id)) == files(folder), "of the same size and name"


def test_what_was_used_longest_ago_goes_first(tmp_path, shelf):
    ids = [shelf.add(a_folder(tmp_path / name, f=block(name, 2))) for name in "abc"]
    cache = Cache(tmp_path, shelf, bytes_max=5 * PIECE)
    for dataset_id in (ids[0], ids[1], ids[0], ids[2]):
        cache.get(dataset_id)
    assert {path.name for path in (tmp_path / "cache/sets").iterdir()} == {ids[0], ids[2]}
    large = shelf.add(a_folder(tmp_path / "d", f=block("d", 5)))
    cache.get(large)
    assert {path.name for path in (tmp_path / "cache/sets").iterdir()} == {large}, "as many as it takes"
    cache.close()


def test_no_data_set_that_a_trainer_uses_makes_room_for_another():
    used = []
    shelf = Shelf()
    with TemporaryDirectory() as name:
        folder = Path(name)
        first, other, third = [shelf.add(a_folder(folder / each, f=block(each, 2))) for each in "abc"]
        cache = Cache(folder, shelf, 5 * PIECE, in_use=lambda: used)
        with closing(cache):
            for dataset_id in (first, other):
                cache.get(dataset_id)
            used += [first]
            cache.get(third)
            assert {path.name for path in (folder / "cache/sets").iterdir()} >= {first, third}


def test_a_fetch_stops_amid_the_look_at_what_has_arrived(tmp_path, shelf, monkeypatch):
    dataset_id = shelf.add(a_folder(tmp_path / "data", x=block("a") + block("b") + block("c")))
    shelf.trouble = [None, None, None, MemoryError("killed")]
    cache = Cache(tmp_path, shelf)
    with pytest.raises(MemoryError):
        cache.get(dataset_id)
    order, real, looks = Order(QUIET), fetching._read_if_sound, 0

    def look(*place):
        nonlocal looks
        looks += 1
        order.stopped.set()
        return real(*place)

    monkeypatch.setattr(fetching, "_read_if_sound", look)
    with pytest.raises(Stopped):
        cache.get(dataset_id, order)
    assert looks == 1
    cache.close()


def test_a_cache_and_a_disk_that_are_too_small_say_so(tmp_path, shelf, dataset_id):
    cache = Cache(tmp_path, shelf, bytes_max=PIECE)
    with pytest.raises(FetchError, match="raise --cache-gib"):
        cache.get(dataset_id)
    cache.close()
    cache = Cache(tmp_path, shelf, free=256 * 1024**2 + PIECE)
    with pytest.raises(FetchError, match="no room"):
        cache.get(dataset_id)
    cache.close()


def only(*paths):
    return Order(QUIET, wanted=paths.__contains__)


def test_only_wanted_files_are_fetched_and_later_the_others(cache, shelf, folder, dataset_id):
    there = cache.get(dataset_id, only("tensors/t.npy", "no such file"))
    assert files(there).keys() == {"tensors/t.npy"}
    assert len(shelf.sent) == 2
    (held,) = cache.held()
    assert (held.here, held.unfinished, held.size) == (PIECE * 1.25, 0, PIECE * 3.75)
    assert "of its 960.0 KiB no job here has read more" in held.sentence
    (there / "tensors/t.npy").touch()
    before = (there / "tensors/t.npy").stat().st_mtime_ns
    cache.get(dataset_id, only("summary.parquet", "empty.json"))
    assert files(there) == files(folder)
    assert (there / "tensors/t.npy").stat().st_mtime_ns == before, "a trainer may be reading it"
    cache.get(dataset_id)
    assert len(shelf.sent) == 5
    assert list((cache.folder / "fetching").iterdir()) == []


def test_more_of_a_data_set_that_broke_off_goes_on(tmp_path, shelf, folder, dataset_id):
    cache = Cache(tmp_path, shelf)
    there = cache.get(dataset_id, only("tensors/t.npy"))
    shelf.trouble = [None, MemoryError("the worker is killed")]
    with pytest.raises(MemoryError):
        cache.get(dataset_id)
    assert files(there).keys() == {"tensors/t.npy"}
    (held,) = cache.held()
    assert held.unfinished >= PIECE
    assert "its next job fetches the rest" in held.sentence
    cache.close()
    cache = Cache(tmp_path, shelf)
    assert files(cache.get(dataset_id)) == files(folder)
    assert len(shelf.sent) == 5, "no piece travelled twice"
    cache.close()


def test_a_repeated_piece_travels_once(cache, shelf, tmp_path):
    folder = a_folder(tmp_path / "twice", a=block("a", 2) + block("a", 2), b=block("a"))
    assert files(cache.get(shelf.add(folder))) == files(folder)
    assert len(shelf.sent) == 2


def test_what_a_trainer_finds_damaged_is_mended_before_its_next_use(cache, shelf, folder, dataset_id):
    rotten = cache.get(dataset_id) / "summary.parquet"
    about = rotten.stat()
    rotten.write_bytes(b"rot" + rotten.read_bytes()[3:])
    os.utime(rotten, ns=(about.st_atime_ns, about.st_mtime_ns))
    cache.get(dataset_id)
    assert len(shelf.sent) == 5, "size and time are as they were"
    cache.doubt(dataset_id)
    assert files(cache.get(dataset_id)) == files(folder)
    assert len(shelf.sent) == 6


def test_what_running_jobs_read_counts_and_stays(tmp_path, shelf):
    first, second = [shelf.add(a_folder(tmp_path / name, f=block(name, 2))) for name in "ab"]
    cache = Cache(tmp_path, shelf, 3 * PIECE, in_use=lambda: [first])
    cache.get(first)
    with pytest.raises(FetchError, match=r"jobs that run here use 512\.0 KiB .* at most 768\.0 KiB; raise --cache-gib"):
        cache.get(second)
    assert [each.dataset_id for each in cache.held()] == [first]
    assert cache.told()["bytes"] == 2 * PIECE
    cache.close()


@pytest.mark.parametrize("for_ever", [False, True])
def test_a_disk_that_fills_amid_a_fetch(tmp_path, shelf, folder, monkeypatch, for_ever):
    """Others filled it: what was used longest ago makes room; if that is not enough, what has arrived stays."""
    old, new = shelf.add(a_folder(tmp_path / "old", f=block("z"))), shelf.add(folder)
    free, oldest = [10**12], tmp_path / "cache/sets" / old
    cache = Cache(tmp_path, shelf, free_bytes=lambda _: free[0] if oldest.exists() else 10**12)
    cache.get(old)
    write, full = fetching._write_at, [3]

    def fills(path, offset, data):
        full[0] -= 1
        if full[0] == 0 or (full[0] < 0 and for_ever):
            free[0] = 0
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, offset, data)

    monkeypatch.setattr(fetching, "_write_at", fills)
    if for_ever:
        with pytest.raises(
            FetchError, match=r"is full amid data set .* free some space there: what has arrived is kept"
        ):
            cache.get(new)
        monkeypatch.undo()
    assert files(cache.get(new)) == files(folder)
    assert old not in {each.dataset_id for each in cache.held()}
    assert len(shelf.sent) == 1 + 5 + for_ever, "the one that could not be written comes again"
    cache.close()


def test_one_worker_at_a_time_uses_a_cache(tmp_path, cache, shelf, folder):
    (tmp_path / "cache").mkdir()
    with exclusive(tmp_path / "cache" / "lock"), pytest.raises(FetchError, match="--cache-dir"):
        cache.get(shelf.add(folder))
    cache.get(shelf.add(folder))


def test_no_file_of_a_data_set_goes_through_a_link(tmp_path, cache, dataset_id):
    (tmp_path / "elsewhere").mkdir()
    way = tmp_path / "cache/fetching" / dataset_id
    way.mkdir(parents=True)
    make_link(way / "tensors", tmp_path / "elsewhere")
    with pytest.raises(FetchError, match="in the way"):
        cache.get(dataset_id)
    assert list((tmp_path / "elsewhere").iterdir()) == []


# -- over the wire ----------------------------------------------------------------------------------------------


@pytest.fixture
def receiver(tmp_path):
    with running(a_folder(tmp_path / "receiver", note=b"")) as receiver:
        yield receiver


def test_a_push_here_is_a_fetch_there(receiver, folder, cache):
    dataset_id, _ = pushed(receiver.client(), folder)
    there = cache.provide(dataset_id, receiver.client(token=None).datasets, wish())
    assert files(there) == files(folder)


def test_a_bit_that_flips_on_the_way_is_noticed_and_fetched_again(receiver, folder, cache, monkeypatch):
    dataset_id, _ = pushed(receiver.client(), folder)
    dataset_store = receiver.hub.datasets
    sound, calls = dataset_store.piece, []

    def sometimes(*which):
        calls.append(which)
        data = bytearray(sound(*which))
        data[0] ^= len(calls) % 2
        return bytes(data)

    monkeypatch.setattr(dataset_store, "piece", sometimes)
    there = cache.provide(dataset_id, receiver.client(token=None).datasets, wish())
    assert files(there) == files(folder)
    assert len(calls) == 10


def test_a_host_may_fetch_what_it_may_train_on_and_nothing_else(receiver):
    receiver.add(a_job("named") | {"dataset": "d" * 64})
    grant = receiver.client("pi").claim(a_capability())
    while grant is not None and grant.name != "named":
        receiver.client("pi").fail(grant.job_id, claim_id=grant.claim_id, error="other", exit_code=2)
        grant = receiver.client("pi").claim(a_capability())
    assert grant is not None
    planned(
        receiver,
        Plan(
            hosts={"guest": {"deny_jobs": ["gbt"]}},
            datasets={"e" * 64: frozenset({Needs(model="gbt", denied_hosts=("nas",))})},
        ),
    )

    def may(host, dataset_id):
        def ask():
            check_fetch(receiver.service, dataset_id, host)

        refusal = receiver.writer.submit(ask).exception()
        assert refusal is None or (isinstance(refusal, Refusal) and refusal.problem_type == "not_yours")
        return refusal is None

    assert may("pi", "d" * 64), "it holds a job that names it, though the plan does not any more"
    assert not may("desk", "d" * 64)
    assert may("desk", "e" * 64), "it may be given the job"
    assert not may("nas", "e" * 64), "the job denies it"
    assert not may("guest", "e" * 64), "the plan denies it the model"
    assert not may("pi", "f" * 64)


def test_over_tls_a_host_shows_who_it_is_to_fetch(folder, tmp_path):
    with secure(a_folder(tmp_path / "tls", note=b""), a_job("one")) as receiver:
        operator, _ = receiver.admitted("ada", Role.OPERATOR)
        host, _ = receiver.admitted("pi")
        dataset_id, _ = pushed(receiver.showing(operator), folder)
        calls, listing = receiver.showing(host).datasets, read_folder(folder, QUIET)
        first = next(iter(lengths_of(listing)))
        refused = {
            "not_yours": lambda: calls.piece(dataset_id, first),
            "operator_token": lambda: calls.announce(listing),
            "no_certificate": lambda: receiver.showing(None).datasets.piece(dataset_id, first),
        }
        for problem_type, call in refused.items():
            with pytest.raises(Refused) as refusal:
                call()
            assert refusal.value.problem_type == problem_type
        planned(receiver, Plan(datasets={dataset_id: frozenset({Needs(model="gbt")})}))
        assert calls.listing(dataset_id) == listing
        assert len(calls.piece(dataset_id, first)) == lengths_of(listing)[first]


# -- an attempt -------------------------------------------------------------------------------------------------


def attempted(tmp_path, fetch, *, stopped=False, **spec):
    """Collect what an attempt at a job with a data set posts until its trainer has ended, or none was started."""
    events = []
    over = threading.Event()

    def post(event):
        events.append(event)
        if isinstance(event, t.SpawnFailed | t.TrainerEnded):
            over.set()

    inputs = TrainerInputs(tmp_path / "python", tmp_path / "v", tmp_path / "s", tmp_path / "t")
    places = WorkerFolders(tmp_path, inputs, tmp_path / "artifacts", tmp_path / "reports")
    assignment = structs.replace(
        JOB, spec={**JOB.spec, "mode": "oracle", **spec}, claim_id="c" * 12, env={"HF_HOME": "/data/hf"}
    )
    runner, outbox, resume = FakeRunner(), Outbox(tmp_path / "outbox"), tmp_path / "r"
    transfer = no_transfer(assignment, resume)
    attempt = TrainerAttempt(assignment, places, resume, outbox, runner, post, fetch=fetch, transfer=transfer)
    if stopped:
        attempt.stop()
    attempt.spawn()
    assert over.wait(30)
    return events, runner


def failure_of(events):
    (failed,) = [event for event in events if isinstance(event, t.SpawnFailed)]
    return failed.failure


def raising(error):
    def fetch(_dataset_id, _order):
        raise error

    return fetch


def test_a_trainer_gets_the_files_that_were_fetched(tmp_path):
    there = a_folder(
        tmp_path / "there",
        validation_v1_d_parquet=b"v",
        features_window_v1_d_parquet=b"f",
        feature_schema_v1_d_json=b"{}",
        tensor_window_v1__tensors_d_npy=b"t",
    )

    def fetch(dataset_id, order):
        assert dataset_id == "d" * 64
        for done in range(1001):
            order.progress(done, 1000)
        return there

    events, runner = attempted(tmp_path, fetch)
    told = [event.done for event in events if isinstance(event, t.Fetching)]
    assert told == list(range(0, 1001, 20)), "every fiftieth part, and not every piece"
    assert runner.specs[0].env["HF_HOME"] == "/data/hf", "what the plan says of this host"
    argv = list(runner.specs[0].argv)
    for flag, name in {
        "--validation": "validation_v1.parquet",
        "--summary": "features_window_v1.parquet",
        "--schema": "feature_schema_v1.json",
        "--tensors": "tensor_window_v1",
    }.items():
        assert argv[argv.index(flag) + 1] == str(there / name)


def test_a_job_wants_what_its_trainer_reads():
    everything = {
        "validation_v1.parquet", "features_window_v1.parquet", "feature_schema_v1.json", "tensor_window_v1/tensors.npy",
        "tensor_window_v1/manifest.json", "hosts_v1.json", "notes/anything.txt",
    }  # fmt: skip

    def wanted(**spec):
        return {path for path in everything if reads(spec, path)}

    extras = {"hosts_v1.json", "notes/anything.txt"}
    features = {"features_window_v1.parquet", "feature_schema_v1.json"}
    for mode in ("realistic", "oracle"):
        assert wanted(model="gbt", mode=mode) == wanted(model="cnn", mode=mode) == everything - extras
        assert wanted(model="transformer_ssl", mode=mode) == everything - extras - features
    assert wanted(model="own", trainer={"command": ["own"]}) == everything


def test_who_is_to_blame_for_a_fetch_that_failed(tmp_path):
    for error, reason in (
        (NotGiven("the receiver does not give the data set"), EndReason.UPLOAD_FAILED),
        (FetchError("no room for data set"), EndReason.SPAWN_FAILED),
        (OSError("the disk failed"), EndReason.SPAWN_FAILED),
    ):
        failure = failure_of(attempted(tmp_path, raising(error))[0])
        assert (failure.reason, failure.error) == (reason, str(error))


def test_a_data_set_that_trains_nothing_ends_the_job_as_bad_data_does(tmp_path):
    there = a_folder(tmp_path / "there", validation_v1_d_parquet=b"v")
    failure = failure_of(attempted(tmp_path, lambda *_: there)[0])
    assert (failure.reason, failure.exit_code) == (EndReason.TRAINER_FAILED, 65)
    assert "has no tensor_window_v1" in failure.error


def test_nothing_is_started_for_an_attempt_that_was_stopped_amid_its_fetch(tmp_path):
    there = a_folder(tmp_path / "there", anything=b"")
    own = {"command": ["own"], "outputs": []}
    events, runner = attempted(tmp_path, lambda *_: there, stopped=True, trainer=own)
    assert failure_of(events).reason is EndReason.SPAWN_FAILED
    assert runner.specs == []


# -- before the first job ----------------------------------------------------------------------------------------


def prefetch(receiver, tmp_path, *argv):
    where = ["--receiver-url", receiver.url, "--cache-dir", str(tmp_path / "cache")]
    return dataset_fetch.main([*argv, *where])


def test_a_host_can_fetch_before_any_job_asks(receiver, folder, tmp_path, capsys):
    dataset_id, _ = pushed(receiver.client(), folder)
    assert prefetch(receiver, tmp_path, "processed") == 0
    assert "whole and verified" in capsys.readouterr().out
    assert files(tmp_path / "cache/sets" / dataset_id) == files(folder)
    assert prefetch(receiver, tmp_path, dataset_id[:8]) == 0
    with exclusive(tmp_path / "cache" / "lock"):
        assert prefetch(receiver, tmp_path, "processed") == 0
    assert "fetches its data sets itself" in capsys.readouterr().out
    assert prefetch(receiver, tmp_path, "nothing") == 1
    assert "there is no data set `nothing`" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert prefetch(receiver, tmp_path / "file", "processed") == 1
    assert "cannot keep the data set in" in capsys.readouterr().err


def test_what_takes_too_long_is_left_to_the_worker(shelf, dataset_id, tmp_path):
    shelf.trouble = [Unreachable("away")] * 1_000_000
    said = dataset_fetch.fetch(shelf, dataset_id, tmp_path / "cache", GIB, 0.05)
    assert said.endswith("the worker fetches the rest")


@pytest.mark.parametrize("system", [System.LINUX, System.WINDOWS])
def test_an_installation_fetches_to_where_the_worker_looks(system):
    wish = InstallRequest(
        role=InstallRole.WORKER,
        system=system,
        checkout=PurePosixPath("/opt/cis490"),
        python=PurePosixPath("/venv/python"),
        receiver_url="https://pi:8445",
        host_id="desk",
        dataset="processed",
    )
    plan = install_windows.prepare(wish)
    if system is System.LINUX:
        plan = install_linux.prepare(wish, "")
    (step,) = [each for each in plan if getattr(each, "says", "").startswith("fetch the data set")]
    argv = list(getattr(step, "argv"))  # noqa: B009 - a step of whatever kind
    assert argv[:4] == ["/venv/python", "-m", "training.fleet.worker.prefetch", "processed"]
    assert argv[argv.index("--cache-dir") + 1].replace("\\", "/").endswith("/state/datasets")
    nothing = install_linux.prepare(replace(wish, dataset=None), "")
    assert not [each for each in nothing if "data set" in each.says]


# -- the state machine ------------------------------------------------------------------------------------------


def that_fetches(job=JOB):
    """A worker to which a job that names a data set was just granted."""
    return Worker().starting(job=job)


def no_spawn(worker):
    worker.take(t.SpawnFailed(claim_id="c", failure=Failure(EndReason.SPAWN_FAILED, "nobody wants it")))


def test_heartbeats_go_on_during_a_fetch_and_say_how_far_it_is():
    worker = that_fetches()
    for minute in range(1, 30):
        worker.take(t.Fetching(claim_id="c", done=minute, size=100))
        worker.take(t.Tick(), after_s=60.0)
        assert worker.beat.message.progress == {"event": "fetch", "bytes": minute, "bytes_total": 100}
        worker.answer_beat()
    assert worker.phase is Phase.STARTING
    worker.take(t.Spawned(claim_id="c"))
    worker.take(t.Tick(), after_s=60.0)
    assert worker.beat.message.progress == {"event": "training"}, "it is over, though the trainer says nothing"


def test_the_time_of_a_fetch_is_none_of_the_trainer():
    worker = that_fetches()
    worker.take(t.Spawned(claim_id="c"), after_s=600.0)
    worker.take(t.TrainerEnded(claim_id="c", ended=Ended(code=0)), after_s=10.0)
    assert worker.work.usage["train_s"] == 10.0


def test_a_signal_breaks_a_fetch_off_and_hands_the_job_back():
    worker = that_fetches()
    worker.take(t.SignalReceived())
    assert worker.wants(t.StopTrainer)
    no_spawn(worker)
    assert worker.report.reason is EndReason.WORKER_SHUTDOWN
    worker = that_fetches(a_grant(job_id="j", claim_id="c", spec={"model": "gbt"}))
    worker.take(t.SignalReceived())
    assert not worker.wants(t.StopTrainer), "nothing is fetched"


def test_a_lost_claim_breaks_a_fetch_off_and_is_dropped():
    worker = that_fetches()
    worker.take(t.Tick(), after_s=60.0)
    worker.refuse_beat(ProblemType.LEASE_SUPERSEDED)
    assert worker.wants(t.StopTrainer)
    no_spawn(worker)
    assert worker.state.work is None
    assert not worker.wants(t.SendFail)


def test_people_see_how_far_a_fetch_is():
    said = {"event": "fetch", "bytes": 3 * GIB, "bytes_total": 4 * GIB}
    assert progress({"status": "running", "progress": said}) == "fetching its data (75 % of 4.0 GiB)"

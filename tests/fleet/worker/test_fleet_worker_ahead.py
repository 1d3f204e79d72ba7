"""Data of the job that will probably come: fetched while others train, behind everything that matters more."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from test_fleet_dataset import PIECE, QUIET, a_folder, block
from test_fleet_dataset_fetch import GIB, Shelf, files, wish
from test_fleet_worker_slots import Worker, a_job
from wire_builders import beat_answered, claim_answered

from training.contract import reads
from training.fleet.client.client import FleetClient, Refused
from training.fleet.client.transport import Response
from training.fleet.scheduling.orders import Order as HostOrder
from training.fleet.wire.constants import HEADER_DATABASE
from training.fleet.wire.messages import HostTerms, NextData, ProblemType
from training.fleet.worker import datasets
from training.fleet.worker.ahead import AheadFetcher
from training.fleet.worker.datasets import AHEAD_SPARE_BYTES, FLOOR_BYTES, DatasetCache, FetchError, Order, Stopped
from training.fleet.worker.requests import Asker, Calls
from training.fleet.worker.state import ahead as rule
from training.fleet.worker.state import events as t
from training.fleet.worker.state.owner import Sight
from training.fleet.worker.state.state import Phase

DATA, OTHER = (t.NextData(dataset_id=letter * 64, name=letter, model="gbt", mode="oracle") for letter in "ab")
ONE, TWO = a_job(1), a_job(2)
WITH_DATA = structs.replace(TWO, spec={"model": "gbt", "dataset": DATA.dataset_id})

# -- the rule ---------------------------------------------------------------------------------------------------

happenings = st.lists(
    st.one_of(
        st.tuples(st.just("named"), st.sampled_from([None, DATA, OTHER, replace(DATA, model="mlp")])),
        st.tuples(st.just("ended"), st.sampled_from(["well", "failed"])),
        st.tuples(st.just("lacked"), st.none()),
        st.tuples(st.just("time"), st.tuples(st.booleans(), st.booleans())),
    ),
    max_size=40,
)


@given(happenings)
def test_one_is_fetched_at_a_time_and_none_while_something_matters_more(found: list[tuple[str, Any]]) -> None:
    ahead, under_way, told_to_stop = rule.Ahead(), None, False
    may, in_hand = True, True
    since_lacking: list[t.NextData] = []
    for what, how in found:
        match what:
            case "named":
                ahead = rule.named(ahead, how)
                assert ahead.named == how or how is None
            case "ended" if under_way is not None:
                since_lacking += [] if told_to_stop else [under_way]
                stopped = told_to_stop
                problem = "" if stopped or how == "well" else "no room"
                ahead = rule.ended(ahead, t.FetchedAhead(data=under_way, stopped=stopped, problem=problem))
                under_way, told_to_stop = None, False
            case "lacked":
                ahead, since_lacking = rule.lacked(ahead), []
            case "time":
                may, in_hand = how
        ahead, action = rule.decide(ahead, may=may, in_hand=in_hand)
        match action:
            case t.FetchAhead():
                assert under_way is None, "one at a time"
                assert (may, in_hand, action.data) == (True, True, ahead.named)
                assert action.data not in since_lacking, "it was fetched, or failed"
                under_way = action.data
            case t.StopAhead():
                assert under_way is not None
                assert not told_to_stop
                assert not may or ahead.named != under_way
                told_to_stop = True
        assert ahead.fetching == under_way
        assert len(ahead.over) <= rule.OVER_KEPT
        if under_way is not None and not told_to_stop:
            assert may
            assert ahead.named is not None
            assert ahead.named.dataset_id == under_way.dataset_id
        elif under_way is None and may and in_hand:
            assert ahead.named is None or ahead.named in ahead.over
        assert rule.decide(ahead, may=may, in_hand=in_hand) == (ahead, None), "once is enough"


# -- the worker -------------------------------------------------------------------------------------------------


def told(worker: Worker, data: t.NextData | None = DATA, job: t.Assignment = ONE, **said: Any) -> Worker:
    """Answer the heartbeat of a job that trains."""
    slot = worker.slots.holder(job.claim_id)
    assert slot is not None
    work = worker.slots.works[slot]
    while work.beat_call is None:
        worker.take(t.Tick(), 30.0)
        work = worker.slots.works[slot]
    named = data and NextData(**asdict(data))
    return worker.take(beat_answered(call=work.beat_call, next_data=named, slots=2, **said))


def fetching() -> Worker:
    worker = told(Worker().training(ONE))
    assert worker.one(t.FetchAhead).data == DATA
    return worker


def test_what_a_heartbeat_names_is_fetched_while_the_job_trains_and_the_next_heartbeat_says_so() -> None:
    worker = fetching()
    assert not worker.all(t.StopTrainer)
    beat = worker.take(t.Tick(), 30.0).one(t.SendHeartbeat)
    assert (beat.next_data, beat.fetches_ahead) == (DATA, True)
    worker.take(t.FetchedAhead(data=DATA))
    assert not worker.all(t.FetchAhead)
    told(worker, None)
    assert not worker.all(t.FetchAhead), "it is here"
    beat = worker.take(t.Tick(), 30.0).one(t.SendHeartbeat)
    assert (beat.next_data, beat.fetches_ahead) == (DATA, False)
    assert told(worker, OTHER).one(t.FetchAhead).data == OTHER


def test_a_fetch_that_failed_says_one_line_and_costs_nothing() -> None:
    worker = fetching().take(t.FetchedAhead(data=DATA, problem="no room for data set aaaaaaaaaaaa"))
    said = worker.one(t.Say)
    assert (said.warning, said.text) == (
        False,
        "data set a is not fetched ahead, its job fetches it: no room for data set aaaaaaaaaaaa",
    )
    assert not worker.all(t.FetchAhead)
    assert not worker.all(t.SendFail)
    told(worker, DATA)
    assert not worker.all(t.FetchAhead), "once is enough"


def test_a_job_that_lacks_data_goes_before_and_the_fetch_ahead_goes_on_when_it_trains() -> None:
    worker = fetching()
    (call,) = (one.call for one in worker.slots.machines.values() if one.phase is Phase.ASKING)
    assert call is not None
    worker.take(claim_answered(call=call, assignment=WITH_DATA, slots=2))
    assert not worker.all(t.StopAhead), "perhaps its data are here"
    worker.take(t.Lacking(claim_id=WITH_DATA.claim_id))
    worker.one(t.StopAhead)
    worker.take(t.FetchedAhead(data=DATA, stopped=True))
    worker.take(t.Fetching(claim_id=WITH_DATA.claim_id, done=5, size=10))
    assert not worker.all(t.FetchAhead)
    worker.take(t.Spawned(claim_id=WITH_DATA.claim_id))
    assert worker.one(t.FetchAhead).data == DATA


def test_a_fetch_ahead_stops_while_the_owner_needs_the_machine() -> None:
    worker = fetching()
    told(worker, None, terms=HostTerms(pause_on_battery=True))
    worker.take(t.Seen(Sight(on_battery=True))).one(t.StopAhead)
    worker.take(t.FetchedAhead(data=DATA, stopped=True))
    assert not worker.all(t.FetchAhead)
    assert worker.take(t.Seen(Sight(on_battery=False))).one(t.FetchAhead).data == DATA


def test_what_failed_ahead_is_tried_again_when_a_job_has_lacked_data() -> None:
    worker = fetching().take(t.FetchedAhead(data=DATA, problem="no room"))
    (call,) = (one.call for one in worker.slots.machines.values() if one.phase is Phase.ASKING)
    assert call is not None
    worker.take(claim_answered(call=call, assignment=WITH_DATA, slots=2))
    worker.take(t.Lacking(claim_id=WITH_DATA.claim_id))
    assert not worker.all(t.FetchAhead)
    assert worker.take(t.Spawned(claim_id=WITH_DATA.claim_id)).one(t.FetchAhead).data == DATA


@pytest.mark.parametrize("how", ["paused", "drained", "signal", "revoked"])
def test_nothing_is_fetched_ahead_for_a_host_that_gets_no_jobs(how: str) -> None:
    worker = fetching()
    match how:
        case "paused":
            told(worker, None, terms=HostTerms(order=HostOrder.PAUSE))
        case "drained":
            told(worker, None, terms=HostTerms(order=HostOrder.DRAIN))
        case "signal":
            worker.take(t.SignalReceived())
        case "revoked":
            claim = next(one.call for one in worker.slots.machines.values() if one.work is None and one.call)
            worker.take(t.Refused(call=claim, problem_type=ProblemType.CERTIFICATE_REVOKED))
    worker.one(t.StopAhead)
    worker.take(t.FetchedAhead(data=DATA, stopped=True))
    assert not worker.all(t.FetchAhead)
    if how == "signal":
        worker.ended(ONE)
        assert not worker.slots.works or not worker.all(t.FetchAhead)


def test_a_fetch_ahead_keeps_no_worker_from_leaving_and_no_machine_awake() -> None:
    worker = Worker().training(ONE)
    assert worker.slots.keeps_awake
    told(worker)
    worker.ended(ONE).packed(ONE)
    assert not worker.slots.keeps_awake
    worker.take(t.SignalReceived())
    worker.take(t.Tick(), worker.settings.leave_s)
    worker.one(t.Exit)
    assert worker.slots.gone


def test_an_idle_worker_begins_none_and_lets_one_go_on() -> None:
    worker = fetching().ended(ONE).packed(ONE)
    delivery = worker.one(t.Upload)
    worker.take(t.Uploaded(call=delivery.call, artifact_id="ab"))
    worker.take(t.Completed(call=worker.one(t.SendComplete).call))
    assert not worker.slots.works
    assert not worker.all(t.StopAhead)
    worker.take(t.FetchedAhead(data=DATA, stopped=True))
    assert not worker.all(t.FetchAhead)


# -- what travels -----------------------------------------------------------------------------------------------


def test_a_heartbeat_says_what_it_heard_and_reads_what_is_named() -> None:
    sent: list[bytes] = []

    class Network:
        def request(self, method: str, path: str, headers: Any, body: Any, timeout_s: float, sink: Any = None) -> Any:
            sent.append(body)
            words = b'{"action":"continue","lease_s":9,"next_data":{"dataset_id":"%s","model":"gbt","mode":"oracle"}}'
            return Response(200, {HEADER_DATABASE.lower(): "0" * 32}, words % (b"b" * 64))

    client = FleetClient("http://127.0.0.1:1", "pi", transport=Network())
    heard: queue.SimpleQueue[t.Event] = queue.SimpleQueue()
    calls = Calls(client, client, Asker("i", "s", dict, dict), lambda _claim, first: (first, ()), heard.put)
    calls.send(t.SendHeartbeat(call=1, assignment=ONE, next_data=DATA, fetches_ahead=True))
    event = heard.get(timeout=30)
    assert isinstance(event, t.HeartbeatAnswered)
    assert t.next_data_of(event.reply) == replace(OTHER, name=None)
    assert b'"next_data":{"named":{"dataset_id":"aaaa' in sent[0].replace(b" ", b"")
    assert b'"fetching":true' in sent[0].replace(b" ", b"")


@pytest.mark.parametrize("own", [False, True])
def test_of_a_data_set_the_files_are_wanted_that_the_job_reads(own: bool) -> None:
    data = replace(DATA, own_trainer=own)
    job = {"model": "gbt", "mode": "oracle", "trainer": {"command": ["x"]} if own else None}
    for path in ("validation_v1.parquet", "features_v1.parquet", "tensor_window_v1/tensors.npy", "notes.txt"):
        assert reads(data.spec, path) == reads(job, path)


# -- the cache --------------------------------------------------------------------------------------------------


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[DatasetCache]:
    cache = a_cache(tmp_path)
    yield cache
    cache.close()


def a_cache(tmp_path: Path, bytes_max: int = GIB, free: int = 10**12, **how: Any) -> DatasetCache:
    return DatasetCache(tmp_path / "cache", bytes_max, chance=lambda: 0.0, free_bytes=lambda _: free, **how)


def ahead(**how: Any) -> Order:
    return Order(QUIET, ahead=True, **how)


class Slow(Shelf):
    """A shelf that hands a piece out when it is let: what waits for it waits meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.let = threading.Event(), threading.Event()

    def piece(self, dataset_id: str, sha256: str, *, tries: int | None = None) -> bytes:
        self.asked.set()
        assert self.let.wait(30)
        return super().piece(dataset_id, sha256, tries=tries)


def test_a_job_takes_a_fetch_ahead_of_its_data_over_and_nothing_travels_twice(
    cache: DatasetCache, tmp_path: Path
) -> None:
    shelf = Slow()
    dataset_id = shelf.add(a_folder(tmp_path / "data", x=block("a") + block("b") + block("c")))
    events: queue.SimpleQueue[t.Event] = queue.SimpleQueue()
    fetcher = AheadFetcher(lambda of, order: cache.provide(of, shelf, order), events.put)
    data = replace(DATA, dataset_id=dataset_id, own_trainer=True)
    fetcher(data)
    assert shelf.asked.wait(30)
    found: list[Path] = []
    stopped = threading.Event()

    def lacking() -> None:  # as the state machine answers to Lacking
        fetcher(None)
        stopped.set()

    job = threading.Thread(target=lambda: found.append(cache.provide(dataset_id, shelf, Order(QUIET, lacking=lacking))))
    job.start()
    assert stopped.wait(30)
    shelf.let.set()
    assert events.get(timeout=30) == t.FetchedAhead(data=data, stopped=True)
    job.join(30)
    assert files(found[0]) == files(tmp_path / "data")
    assert len(shelf.pieces_sent) == len(set(shelf.pieces_sent)) == 3


def test_a_job_whose_data_are_here_does_not_wait_for_a_fetch_ahead(cache: DatasetCache, tmp_path: Path) -> None:
    shelf = Slow()
    here = shelf.add(a_folder(tmp_path / "here", x=block("a")))
    shelf.let.set()
    cache.provide(here, shelf, wish())
    shelf.let.clear()
    shelf.asked.clear()
    coming = shelf.add(a_folder(tmp_path / "coming", x=block("b")))
    events: queue.SimpleQueue[t.Event] = queue.SimpleQueue()
    AheadFetcher(lambda of, order: cache.provide(of, shelf, order), events.put)(replace(DATA, dataset_id=coming))
    lacks: list[int] = []
    assert cache.provide(here, shelf, Order(QUIET, lacking=lambda: lacks.append(1))).is_dir()
    assert lacks == []
    shelf.let.set()
    assert events.get(timeout=30) == t.FetchedAhead(data=replace(DATA, dataset_id=coming))


def test_a_fetch_ahead_leaves_more_of_the_disk_free_than_a_jobs(tmp_path: Path, shelf: Shelf) -> None:
    dataset_id = shelf.add(a_folder(tmp_path / "data", x=block("a")))
    cache = a_cache(tmp_path, free=FLOOR_BYTES + AHEAD_SPARE_BYTES)
    with pytest.raises(FetchError, match="no room for data set"):
        cache.provide(dataset_id, shelf, ahead())
    assert not shelf.pieces_sent
    cache.provide(dataset_id, shelf, wish())
    cache.close()


def test_a_fetch_ahead_removes_nothing_that_a_job_in_hand_trains_on(tmp_path: Path, shelf: Shelf) -> None:
    used, old, coming = (shelf.add(a_folder(tmp_path / name, x=block(name))) for name in "abc")
    in_use = {used}
    cache = a_cache(tmp_path, bytes_max=2 * PIECE, in_use=lambda: in_use)
    cache.provide(used, shelf, wish())
    cache.provide(old, shelf, wish())
    in_use.add(old)
    with pytest.raises(FetchError, match="jobs that run here use"):
        cache.provide(coming, shelf, ahead())
    in_use.remove(old)
    cache.provide(coming, shelf, ahead())
    assert {each.dataset_id for each in cache.held()} == {used, coming}
    cache.close()


def test_a_fetch_ahead_takes_no_file_away_from_a_trainer(cache: DatasetCache, shelf: Shelf, tmp_path: Path) -> None:
    dataset_id = shelf.add(a_folder(tmp_path / "data", x=block("a")))
    there = cache.provide(dataset_id, shelf, wish())
    cache.doubt(dataset_id)
    with pytest.raises(FetchError, match="was changed on this host"):
        cache.provide(dataset_id, shelf, ahead())
    assert files(there) == files(tmp_path / "data")


def test_a_fetch_ahead_stops_amid_the_look_at_what_has_arrived(
    tmp_path: Path, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset_id = shelf.add(a_folder(tmp_path / "data", x=block("a") + block("b") + block("c")))
    shelf.trouble = [None, None, None, MemoryError("killed")]
    cache = a_cache(tmp_path)
    with pytest.raises(MemoryError):
        cache.provide(dataset_id, shelf, wish())
    order, real, looks = ahead(), datasets._read_if_sound, 0

    def look(*place: Any) -> bytes | None:
        nonlocal looks
        looks += 1
        order.stopped.set()
        return real(*place)

    monkeypatch.setattr(datasets, "_read_if_sound", look)
    with pytest.raises(Stopped):
        cache.provide(dataset_id, shelf, order)
    assert looks == 1
    cache.close()


def test_whatever_goes_wrong_ends_in_one_event(shelf: Shelf, cache: DatasetCache, tmp_path: Path) -> None:
    dataset_id = shelf.add(a_folder(tmp_path / "data", x=block("a")))
    events: queue.SimpleQueue[t.Event] = queue.SimpleQueue()
    fetcher = AheadFetcher(lambda of, order: cache.provide(of, shelf, order), events.put)
    data = replace(DATA, dataset_id=dataset_id)
    for trouble in (Refused(403, "not_yours", "not yours", {}), OSError("odd"), ZeroDivisionError()):
        shelf.trouble = [trouble]
        fetcher(data)
        event = events.get(timeout=30)
        assert isinstance(event, t.FetchedAhead)
        assert event.problem

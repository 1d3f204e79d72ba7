"""Saved states that travel: the newest of each job is kept, and only the holder of its claim brings or gets one."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import random
import tempfile
import threading
from functools import partial
from pathlib import Path

import pytest
from builders import a_job
from conformance.memory_fs import MemoryFs
from fakes import FakeClock
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from receiver_running import TOKEN, SmallDisk, job_id, running
from tls_world import secure
from wire_builders import a_grant, no_transfer

from training.fleet.client.answers import Refused, Unavailable
from training.fleet.client.push import read_folder
from training.fleet.service.states import over
from training.fleet.store.errors import ChunksMissing, NoDataset, NoState, ShareFull, StoreFull
from training.fleet.store.states import KeptState, StateStore
from training.fleet.wire import states
from training.fleet.wire.dataset_listing import CHUNK_BYTES, Listing, cut, pack
from training.fleet.wire.states import STATE_BYTES_MAX, Stretch
from training.fleet.worker import state_transfer
from training.fleet.worker.datasets import Order, Stopped
from training.fleet.worker.saved_states import stretches_of
from training.fleet.worker.state_transfer import StateTransfer, note_end
from training.trainer.state_file import StateFile

JOB = job_id({"name": "gbt-realistic"})


def listed(**files):
    return Listing(tuple(cut(name, iter([data])) for name, data in sorted(files.items())))


def bring(store, job, attempt=1, **files):
    listing = listed(**files)
    missing = store.sets.begin(listing.dataset_id, listing.document).missing
    chunks = {hashlib.sha256(data).hexdigest(): data for data in files.values()}
    store.sets.put(listing.dataset_id, [(each, chunks[each]) for each in missing])
    kept = KeptState(listing.dataset_id, attempt, "desk", 10.0, listing.size)
    store.keep(job, kept)
    return kept


def on_disk(store):
    return {path.name for path in store.root.glob("pieces/*/*")}


# ── the store ───────────────────────────────────────────────────────────────────────────────────


def test_the_newest_state_of_a_job_is_kept_and_the_one_before_goes(tmp_path):
    store = StateStore(tmp_path / "states")
    bring(store, "one", weights=b"first", same=b"same")
    second = bring(store, "one", weights=b"second", same=b"same")
    other = bring(store, "two", weights=b"second", same=b"same")
    assert store.of("one") == second
    assert on_disk(store) == {hashlib.sha256(data).hexdigest() for data in (b"second", b"same")}
    again = StateStore(tmp_path / "states")  # after a restart
    assert (again.of("one"), again.of("two"), again.of("three")) == (second, other, None)
    assert again.forget(["one", "three"]) == 1
    assert again.piece("two", hashlib.sha256(b"second").hexdigest()) == b"second", "another job has an equal one"
    assert again.forget(["two"]) == 1
    assert not on_disk(again)
    assert StateStore(tmp_path / "states").jobs() == []


def test_of_a_job_one_state_alone_takes_room():
    disk = MemoryFs()
    store = StateStore(Path("/states"), disk)
    bring(store, "one", weights=b"first")
    bring(store, "one", weights=b"second")
    pieces = Path("/states/pieces")
    left = {name for folder in disk.names(pieces) for name in disk.names(pieces / folder)}
    assert left == {hashlib.sha256(b"second").hexdigest()}


def test_a_later_attempts_state_is_never_replaced_by_an_earlier_ones(tmp_path):
    store = StateStore(tmp_path / "states")
    kept = bring(store, "one", attempt=2, weights=b"later")
    with pytest.raises(NoState, match="attempt 2 of this job has brought a later state"):
        bring(store, "one", attempt=1, weights=b"earlier")
    assert store.of("one") == kept


def test_a_state_that_was_kept_survives_a_power_cut():
    """Also the first one, for which the folders were made."""
    disk = MemoryFs()
    kept = bring(StateStore(Path("/states"), disk), "one", weights=b"w")
    for seed in range(10):
        found = StateStore(Path("/states"), disk.after_power_cut(random.Random(seed)))
        assert found.of("one") == kept
        assert found.piece("one", hashlib.sha256(b"w").hexdigest()) == b"w"


def test_a_state_without_all_its_chunks_is_not_kept(tmp_path):
    store, listing = StateStore(tmp_path / "states"), listed(weights=b"w")
    store.sets.begin(listing.dataset_id, listing.document)
    with pytest.raises(ChunksMissing):
        store.keep("one", KeptState(listing.dataset_id, 1, "desk", 1.0, 1))
    assert store.of("one") is None
    store.sweep(older_than=10.0**12)
    assert not list((tmp_path / "states" / "drafts").iterdir())


def test_a_damaged_file_counts_as_no_state_and_its_chunks_are_swept(tmp_path):
    store = StateStore(tmp_path / "states")
    bring(store, "one", weights=b"w")
    bring(store, "two", weights=b"v")
    (tmp_path / "states" / "jobs" / "one.json").write_bytes(b'{"state_id"')
    store = StateStore(tmp_path / "states")
    assert store.jobs() == ["two"]
    store.sweep(0.0)
    assert on_disk(store) == {hashlib.sha256(b"v").hexdigest()}


def test_no_job_names_after_a_power_cut_a_state_that_is_gone():
    for seed in range(20):
        fs = MemoryFs()
        store = StateStore(Path("/states"), fs)
        bring(store, "one", weights=b"weights")
        store.forget(["one"])
        found = StateStore(Path("/states"), fs.after_power_cut(random.Random(seed)))
        assert found.jobs() == [] or found.listing("one")


def begin(store, claim, files, host="desk", job="one"):
    store.begin(claim, host, job, files.dataset_id, files.document)
    for file in files.files:
        store.sets.put(files.dataset_id, [(file.pieces[0], file.path.encode())])


def named(*files):
    return Listing(tuple(cut(name, iter([name.encode()])) for name in files))


def test_a_claim_brings_one_state_at_a_time_and_none_when_it_is_over(tmp_path):
    store = StateStore(tmp_path / "states")
    begin(store, "a", named("first", "same"))
    begin(store, "b", named("same"), "pi", "two")
    begin(store, "a", named("same", "second"))
    digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("same", "second")}
    assert on_disk(store) == {*digests.values()}, "the first went with the second"
    store.keep("two", KeptState(named("same").dataset_id, 1, "pi", 1.0, 4))
    begin(store, "c", named("same", "second"))
    assert sorted(store.claims()) == ["a", "c"]
    begin(store, "d", named("third"))
    store.forget_drafts(["c", "unknown"])
    assert on_disk(store) > {*digests.values()}, "a brings the same"
    store.forget_drafts(["a"])
    assert on_disk(StateStore(tmp_path / "states")) == {digests["same"]}, "kept, and nothing else after a restart"
    assert not list((tmp_path / "states" / "drafts").iterdir())


def test_a_hosts_states_take_a_quarter_of_the_free_disk(tmp_path):
    """Also those that it brought for other jobs; not what it replaces."""
    disk, size = SmallDisk(), len(named("w").document) + 1
    store = StateStore(tmp_path / "states", disk, reserve_bytes=0)
    disk.free = 4 * size
    begin(store, "a", named("w"))
    begin(store, "a", named("v"))
    with pytest.raises(ShareFull, match="the saved states of host desk may take a quarter"):
        begin(store, "b", named("u"), job="two")
    begin(store, "c", named("u"), "pi", "two")
    store.keep("one", KeptState(named("v").dataset_id, 1, "desk", 1.0, size))
    begin(store, "d", named("x"))
    store.forget_drafts(["d"])
    with pytest.raises(ShareFull):
        begin(store, "e", named("x"), job="three")
    begin(store, "f", named("x"), "laptop", "three")


def test_a_state_for_which_the_disk_has_no_room_counts_for_nobody_and_leaves_nothing(tmp_path, monkeypatch):
    free = [0, 10**9]  # others fill the disk between two looks
    disk = SmallDisk()
    monkeypatch.setattr(disk, "free_bytes", lambda _: free.pop())
    store = StateStore(tmp_path / "states", disk, reserve_bytes=0)
    with pytest.raises(StoreFull, match="no room"):
        begin(store, "a", named("w"))
    assert (store.claims(), list(tmp_path.rglob("drafts/*"))) == ([], [])


def test_a_claim_brings_its_own_state_alone(tmp_path):
    store, state = StateStore(tmp_path / "states"), named("w").dataset_id
    begin(store, "a", named("w"))
    begin(store, "b", named("v"), "pi", "two")
    with pytest.raises(NoDataset, match="this claim announced no saved state"):
        store.brought("b", "two", state)
    assert store.brought("a", "one", state).announced_size(state) == 1
    store.keep("one", KeptState(state, 1, "desk", 1.0, 1))
    assert store.brought("a", "one", state), "the answer may be lost"


def test_a_state_that_is_too_large_is_refused_before_a_byte_travels(tmp_path):
    numbers = range(STATE_BYTES_MAX // CHUNK_BYTES + 1)
    chunks = ((hashlib.sha256(b"%d" % number).digest(), CHUNK_BYTES) for number in numbers)
    large = Listing((pack("weights", chunks),)).document
    with pytest.raises(StoreFull, match="they stay on their host"):
        StateStore(tmp_path / "states").sets.begin(hashlib.sha256(large).hexdigest(), large)


STRETCH = [{"attempt": 1, "host": "first"}]


def refusal(call):
    with pytest.raises(Refused) as refused:
        call()
    return refused.value.problem_type


def test_a_state_of_other_code_is_not_gone_on_from():
    facts = {"spec": 1, "code": "ours", "cpu": "wide"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.state"
        kept = StateFile(path, "key", FakeClock(), facts=facts)
        kept.watch(lambda: b"weights")
        kept.save()
        elsewhere = StateFile(path, "another key", FakeClock(), facts={**facts, "cpu": "narrow"})
        assert elsewhere.load() == b"weights"
        assert [each["cpu"] for each in elsewhere.mixed] == ["wide", "narrow"]
        assert StateFile(path, "another key", FakeClock(), facts={**facts, "code": "older"}).load() is None


WHOLE = st.integers(0, 30)


@settings(report_multiple_bugs=False)  # a planted bug is to be seen as one assertion
@given(st.lists(st.tuples(WHOLE, WHOLE), max_size=6))
def test_stretches_join_so_that_each_epoch_belongs_to_one(runs):
    """Each run begins at any epoch up to where the one before came, perhaps anew."""
    told = []
    truth = {}  # epoch → attempt
    for number, (back, ahead) in enumerate(runs, start=1):
        begins = max(0, len(truth) - back)
        own = {"attempt": number, "host": "h", "begins": begins, "ends": begins + ahead}
        told = states.joined(told, own)
        truth = {epoch: by for epoch, by in truth.items() if epoch < begins}
        truth |= dict.fromkeys(range(begins, begins + ahead), number)
        found = {epoch: each["attempt"] for each in told for epoch in range(each["begins"], each["ends"])}
        assert found == truth
        assert all(one["ends"] == two["begins"] for one, two in itertools.pairwise(told))
        assert told[0]["begins"] == 0


def test_a_stretch_without_an_epoch_begins_no_earlier_than_the_one_before_came():
    known = {"attempt": 1, "host": "pi", "begins": 0, "ends": 1}
    silent = {"attempt": 2, "host": "laptop", "begins": None, "ends": None}
    on = {"attempt": 3, "host": "laptop", "begins": 1, "ends": 30}
    assert states.joined([known, silent], on) == [known, on]
    further = {**on, "begins": 5}
    assert states.joined([known, silent], further) == [known, {**silent, "ends": 5}, further]


def test_stretches_of_a_trainer_that_counts_no_epochs_are_all_kept():
    one, two = ({"attempt": number, "begins": None, "ends": None} for number in (1, 2))
    assert states.joined([one], two) == [one, two]


def test_the_first_epoch_that_a_trainer_prints_says_where_it_began():
    """The state of the attempt before was two epochs older than what had been told of it."""
    with tempfile.TemporaryDirectory() as root:
        folder = saved(Path(root, "job"), b"weights")
        first = {"attempt": 1, "host": "a", "begins": 0, "ends": 9}
        stretches_of(folder).write_text(json.dumps([first]))
        here = no_transfer(a_grant(job_id="j", claim_id="c", name="n", attempt=2), folder, "b")
        here.fetch(Order(wait))
        here.heed(epochs(8, 9).splitlines())
        here.note(Path(root, "note"))
        assert parts(Path(root, "note"), Path(root, "log")) == [(1, 0, 7), (2, 7, 9)]


def test_a_killed_workers_stretch_ends_where_its_trainers_output_does():
    """It noted how far its trainer came before it was killed: not at all."""
    with tempfile.TemporaryDirectory() as folder:
        note, output = Path(folder, "note"), Path(folder, "log")
        first = {"attempt": 1, "host": "a", "begins": 0, "ends": 9}
        note.write_text(json.dumps([first, {"attempt": 2, "host": "b", "begins": 9, "ends": None}]))
        output.write_text("words\n" + epochs(8, 11))
        assert parts(note, output) == [(1, 0, 7), (2, 7, 11)]


# ── over the wire ───────────────────────────────────────────────────────────────────────────────


def saved(folder, text):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "x.state").write_bytes(text)
    return folder


def granted(receiver, host):
    grant = receiver.client(host).claim({"cpu_cores": 4, "ram_available_gib": 8})
    assert grant is not None
    return grant


def transfer(receiver, assignment, folder, host):
    return StateTransfer(
        assignment, folder, host, lambda: receiver.client(host).state(assignment.job_id, assignment.claim_id)
    )


def wait(_done, _whole):
    pass


def handed_back(receiver, folder, text, host="first"):
    assignment = granted(receiver, host)
    here = transfer(receiver, assignment, saved(folder, text), host)
    here.heed(['{"event": "epoch", "epoch": 12, "loss": 0.5}', "words"])
    here.bring_last()
    receiver.client(host).fail(
        assignment.job_id, error="worker shutdown", reason="worker_shutdown", claim_id=assignment.claim_id
    )


def test_the_next_attempt_is_given_what_the_one_before_left(tmp_path):
    large = b"weights" * 400_000  # of several chunks
    with running(tmp_path) as receiver:
        assert granted(receiver, "nobody").state is None
        receiver.client().requeue(JOB)
        handed_back(receiver, tmp_path / "a", large)
        assignment = granted(receiver, "second")
        assert assignment.state.host == "first"
        assert [each.ends for each in assignment.state.stretches] == [12]
        assert assignment.state_every_s == 600.0
        folder = tmp_path / "b"
        folder.mkdir()
        (folder / "older.state").write_bytes(b"of an attempt long ago")
        there = transfer(receiver, assignment, folder, "second")
        there.fetch(Order(wait))
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"x.state": large}
        there.note(tmp_path / "note")
        assert parts(tmp_path / "note", tmp_path / "no log") == [(2, 11, 12), (3, 12, None)]

        def unneeded():
            return receiver.writer.submit(lambda: over(receiver.service, [JOB, "unknown"])).result()

        assert unneeded() == ["unknown"]
        receiver.client().cancel(JOB)
        assert unneeded() == [JOB, "unknown"]


@pytest.fixture
def receiver(tmp_path):
    with running(tmp_path) as made:
        yield made


def test_what_this_host_saved_later_goes_before_what_it_brought(receiver, tmp_path):
    handed_back(receiver, tmp_path / "a", b"brought")
    saved(tmp_path / "a", b"saved after that")
    transfer(receiver, granted(receiver, "first"), tmp_path / "a", "first").fetch(Order(wait))
    assert (tmp_path / "a" / "x.state").read_bytes() == b"saved after that"


def an_attempt_here(folder, host, attempt):
    """Begin an attempt without a receiver: what it knows lies in the folder and beside."""
    assignment = a_grant(job_id=JOB, claim_id=f"claim-{attempt}", name="gbt", attempt=attempt)
    made = no_transfer(assignment, folder, host)
    made.fetch(Order(wait))
    made.note(folder.parent / f"{attempt}.note")
    return made


def parts(note, log):
    """Which attempt trained from which epoch to which, as its record will say."""
    told = state_transfer.stretches_noted(note, log).get("stretches", [])
    return [(each["attempt"], each["begins"], each["ends"]) for each in told]


def epochs(first, last):
    return "".join(f'{{"event": "epoch", "epoch": {each}, "loss": 0.5}}\n' for each in range(first, last + 1))


def test_attempts_whose_workers_were_killed_keep_their_part(tmp_path):
    """Neither noted how far it came; the output of the last says where the first ended."""
    folder = tmp_path / "job"
    folder.mkdir()
    an_attempt_here(folder, "pi", 1)
    saved(folder, b"after epoch 7")
    an_attempt_here(folder, "pi", 2)
    (tmp_path / "2.log").write_text(epochs(8, 12))
    assert parts(tmp_path / "2.note", tmp_path / "2.log") == [(1, 0, 7), (2, 7, 12)]


def test_a_transfer_of_an_attempt_that_is_over_notes_nothing_beside_the_next_ones_state(tmp_path):
    folder = tmp_path / "job"
    folder.mkdir()
    first = an_attempt_here(folder, "pi", 1)
    first.heed(epochs(1, 3).splitlines())
    saved(folder, b"after epoch 3")
    first.note(tmp_path / "1.note")
    first.close()
    second = an_attempt_here(folder, "pi", 2)
    second.heed(epochs(4, 5).splitlines())
    second.note(tmp_path / "2.note")
    first.bring()  # by a thread that had to wait
    first.note(tmp_path / "1.note")
    assert [each["attempt"] for each in json.loads(stretches_of(folder).read_text())] == [1, 2]


def test_a_state_waits_for_no_other_that_is_on_its_way(tmp_path):
    """Else threads would pile up while the network hangs."""
    asked, let = threading.Event(), threading.Event()

    def hangs():
        asked.set()
        assert let.wait(30)
        raise Unavailable(503, None, "not reachable")

    assignment = a_grant(job_id=JOB, claim_id="claim-1", name="piled up", attempt=1)
    here = StateTransfer(assignment, saved(tmp_path / "job", b"some"), "pi", hangs)
    here.begin_bringing()
    assert asked.wait(30)
    here.begin_bringing()
    on_the_way = [each for each in threading.enumerate() if each.name == "state piled up"]
    assert len(on_the_way) == 1
    let.set()
    on_the_way[0].join(30)
    assert not on_the_way[0].is_alive()


def test_last_states_of_several_jobs_are_brought_in_turn_and_one_that_is_not_is_named(tmp_path, monkeypatch, caplog):
    """At once, none would arrive whole in the time that a stop allows."""
    let, seen, turn = threading.Event(), [], threading.Lock()
    monkeypatch.setattr(state_transfer, "LAST_S", 0.2)

    def asks(name):
        seen.append(f"{name} begins")
        assert let.wait(30)
        seen.append(f"{name} ends")
        raise Unavailable(503, None, "not reachable")

    for name in ("one", "two"):
        assignment = a_grant(job_id=JOB, claim_id=name, name=name, attempt=1)
        folder = saved(tmp_path / name, b"some")
        StateTransfer(assignment, folder, "pi", partial(asks, name), turn).bring_last()
        assert f"{name}: the saved state was not uploaded within 0 s; it stays here" in caplog.text
    let.set()
    for thread in threading.enumerate():
        if thread.name.startswith("state "):
            thread.join(30)
    assert sorted(seen[:2]) == ["one begins", "one ends"]
    assert len(seen) == 4


def test_what_a_killed_worker_did_not_note_counts_when_nothing_is_left_to_train(tmp_path):
    folder = tmp_path / "job"
    folder.mkdir()
    first = an_attempt_here(folder, "pi", 1)
    first.heed(epochs(1, 3).splitlines())
    saved(folder, b"after epoch 3")
    first.bring()  # notes how far it is
    saved(folder, b"after epoch 5, the last")
    (tmp_path / "1.log").write_text(epochs(1, 5))
    assignment = a_grant(job_id=JOB, claim_id="claim-1", name="gbt", attempt=1)
    note_end(folder, assignment, tmp_path / "1.log")
    an_attempt_here(folder, "pi", 2)
    assert parts(tmp_path / "2.note", tmp_path / "no epoch") == [(1, 0, 5), (2, 5, None)]
    note_end(folder, assignment, tmp_path / "1.log")  # of an attempt that is not the last any more
    assert an_attempt_here(folder, "pi", 3)._begun[-1]["attempt"] == 2


@pytest.mark.parametrize("fault", ["damaged", "missing", "gone", "another listing"])
def test_a_state_that_cannot_be_fetched_costs_no_job(receiver, tmp_path, fault, caplog):
    handed_back(receiver, tmp_path / "a", b"weights")
    assignment = granted(receiver, "second")
    (chunk,) = (tmp_path / "states").glob("pieces/*/*")
    match fault:
        case "damaged":
            chunk.write_bytes(b"wEights")
        case "missing":
            chunk.unlink()
        case "gone":
            receiver.hub.states.forget([JOB])
        case _:
            elsewhere = structs.replace(assignment.state, state_id="0" * 64)
            assignment = structs.replace(assignment, state=elsewhere)
    here = saved(tmp_path / "b", b"of my own")
    there = transfer(receiver, assignment, here, "second")
    with caplog.at_level(logging.WARNING):
        there.fetch(Order(wait))
    assert "cannot be fetched" in caplog.text
    assert (here / "x.state").read_bytes() == b"of my own"
    there.note(tmp_path / "note")
    assert parts(tmp_path / "note", tmp_path / "no log") == [], "it did not go on from there"


def test_a_stopped_attempt_fetches_no_further(receiver, tmp_path):
    handed_back(receiver, tmp_path / "a", b"weights")
    order = Order(wait, threading.Event())
    order.stopped.set()
    (tmp_path / "b").mkdir()
    with pytest.raises(Stopped):
        transfer(receiver, granted(receiver, "second"), tmp_path / "b", "second").fetch(order)


def calls_of(receiver, host, claim_id):
    return receiver.client(host).state(JOB, claim_id)


CALLS = {
    "announce": lambda calls, listing: calls.announce(listing),
    "bring": lambda calls, listing: calls.bring(listing.dataset_id, [(listing.files[0].pieces[0], b"w")]),
    "bring many": lambda calls, listing: calls.bring(listing.dataset_id, [(listing.files[0].pieces[0], b"w")] * 2),
    "keep": lambda calls, listing: calls.keep(listing.dataset_id, stretches=STRETCH),
    "listing": lambda calls, listing: calls.listing(listing.dataset_id),
    "piece": lambda calls, listing: calls.piece(listing.dataset_id, listing.files[0].pieces[0]),
}


@pytest.mark.parametrize("call", CALLS)
def test_only_the_holder_of_the_live_claim_brings_or_gets_a_state(receiver, call):
    assignment, listing = granted(receiver, "first"), listed(weights=b"w")
    mine = calls_of(receiver, "first", assignment.claim_id)
    for each in ("announce", "bring", "bring many", "keep", "listing", "piece"):
        CALLS[each](mine, listing)
    for host, claim in (("second", assignment.claim_id), ("first", "no-such-claim")):
        with pytest.raises(Refused, match="holds no live claim"):
            CALLS[call](calls_of(receiver, host, claim), listing)
    receiver.client("first").fail(JOB, error="x", reason="worker_shutdown", claim_id=assignment.claim_id)
    assert refusal(lambda: CALLS[call](mine, listing)) == "lease_superseded"


@pytest.mark.parametrize("end", ["handed back", "revoked"])
def test_what_a_claim_was_bringing_goes_with_it(tmp_path, end):
    with secure(tmp_path, a_job("gbt-realistic")) as receiver:
        first, _ = (receiver.showing(receiver.admitted(name)[0], name=name) for name in ("first", "another"))
        grant, listing = first.claim({"cpu_cores": 4, "ram_available_gib": 8}), listed(weights=b"w")
        mine = first.state(JOB, grant.claim_id)
        mine.announce(listing)
        mine.bring(listing.dataset_id, [(listing.files[0].pieces[0], b"w")])
        assert list((tmp_path / "states").glob("pieces/*/*"))
        if end == "handed back":
            first.fail(JOB, error="x", reason="worker_shutdown", claim_id=grant.claim_id)
        operator = receiver.showing(None, TOKEN)
        operator.call("revoke", name="first" if end == "revoked" else "another", role="host")
        assert not list((tmp_path / "states").glob("pieces/*/*"))
        assert not list((tmp_path / "states").glob("drafts/*"))


def test_a_state_names_only_hosts_that_had_the_job_and_epochs_that_can_be(receiver, tmp_path):
    handed_back(receiver, tmp_path / "a", b"weights")
    assignment, listing = granted(receiver, "second"), listed(weights=b"w")
    mine = calls_of(receiver, "second", assignment.claim_id)
    for each in ("announce", "bring"):
        CALLS[each](mine, listing)
    said = [(1, "victim"), (1, "first"), (2, "second"), (7, "first"), (0, "second")]
    for begins, ends, right in ((0, 9, True), (None, 9, True), (-5, 9, False), (90, 9, False), (0, 2**60, False)):
        epochs = {"begins": begins, "ends": ends}
        stretches = [{"attempt": attempt, "host": host, **epochs} for attempt, host in said]
        mine.keep(listing.dataset_id, stretches=stretches)
        kept = receiver.hub.states.of(JOB)
        assert [(each.attempt, each.host) for each in kept.stretches] == [(1, "first"), (2, "second")]
        told = (begins, ends) if right else (None, None)
        assert [(each.begins, each.ends) for each in kept.stretches] == [told, told]


def test_other_bytes_than_announced_are_refused(receiver):
    assignment, listing = granted(receiver, "first"), listed(weights=b"w")
    mine = calls_of(receiver, "first", assignment.claim_id)
    mine.announce(listing)
    assert refusal(lambda: mine.bring(listing.dataset_id, [(listing.files[0].pieces[0], b"v")])) == "wrong_digest"
    assert refusal(lambda: mine.keep(listing.dataset_id, stretches=STRETCH)) == "incomplete_dataset"


def test_a_full_disk_refuses_the_state_and_not_the_job(receiver, tmp_path, caplog):
    assignment = granted(receiver, "first")
    receiver.disk.free = 0
    with pytest.raises(Unavailable):
        calls_of(receiver, "first", assignment.claim_id).announce(listed(weights=b"w"))
    with caplog.at_level(logging.INFO):
        transfer(receiver, assignment, saved(tmp_path / "a", b"w"), "first").bring_last()
    assert "it stays here" in caplog.text
    receiver.disk.free = 10**12


def test_a_trainer_that_saved_nothing_brings_nothing_and_an_equal_state_travels_once(receiver, tmp_path):
    assignment = granted(receiver, "first")
    here = transfer(receiver, assignment, tmp_path / "nowhere", "first")
    here.bring_last()
    assert receiver.hub.states.of(JOB) is None
    here = transfer(receiver, assignment, saved(tmp_path / "a", b"w"), "first")
    here.bring_last()
    before = receiver.hub.states.of(JOB)
    here.bring_last()
    assert receiver.hub.states.of(JOB) is before is not None
    assert before.stretches == (Stretch(attempt=1, host="first", begins=None, ends=None),)
    assert read_folder(tmp_path / "a", wait).dataset_id == before.state_id

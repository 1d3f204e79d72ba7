"""The plan's [retention] carried out: what goes says so everywhere, and no crash and no race loses what is kept."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pytest
from builders import a_worker_claim
from fakes import FakeClock
from retention_running import DAY_S, House, Killed

from training.fleet.queue.attempts import DeliveryNews
from training.fleet.recovery.backup import Backup, Restore
from training.fleet.recovery.rebuild import rebuild
from training.fleet.scheduling.job import EndReason, JobStatus
from training.fleet.scheduling.retention import RemovalKind
from training.fleet.service.catalogue import index_rows
from training.fleet.service.delivery import DeliverySteps
from training.fleet.wire.dataset_listing import Listing, cut
from training.fleet.wire.progress import Point

BEST = "it is not among the best of gbt realistic: its validation figure is 0.5, the last kept one's 0.75"


@pytest.fixture
def house(tmp_path):
    made = House(tmp_path / "state")
    yield made
    made.close()


@pytest.fixture
def two(house):
    """Two models of a kind, ``worse`` by its validation figure, and a plan that keeps one."""
    return _with_two(house)


@contextlib.contextmanager
def _two():
    """Hold the fixture ``two`` for a test that a planted bug runs by itself."""
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(House(Path(folder) / "state")) as house:
        yield _with_two(house)


def _with_two(house):
    house.train("worse", 0.25, 0.5)
    house.train("better", 0.75, 0.625)
    house.keeps(best=1)
    return house


def test_what_goes_is_said_everywhere_and_not_trained_again(two):
    (gone,) = two.collect()
    assert (gone.kind, gone.name, gone.why) == (RemovalKind.BUNDLE, "worse", BEST)
    assert two.here("better")
    assert not two.here("worse")
    detail = two.views.job("id-worse")
    assert detail.job.status == JobStatus.COMPLETED
    assert detail.job.removed is not None
    assert [each.why for each in detail.removed] == [BEST]
    assert two.removed("better") is None
    lines = {each.job_id: each for each in index_rows(two.reader)}
    assert lines["id-worse"].removed_why == BEST
    assert b"removed" not in lines["id-better"].line()
    assert two.reader.one("stored")["size"] == len(b"better")
    assert two.findings(notes=True) == []
    assert two.service.claim(a_worker_claim("pi")).job_id is None
    assert two.collect() == [], "a second look finds nothing"
    two.enter()
    assert two.queue.get("id-worse").status is JobStatus.COMPLETED


def test_a_model_without_a_figure_stays_and_that_is_said(house):
    house.train("nothing-said")
    house.train("worse", 0.5)
    house.train("better", 0.75)
    house.keeps(best=1)
    proposal = house.retention.proposal()
    assert [each.name for each in proposal.removals] == ["worse"]
    assert proposal.notes == ["1 of gbt realistic has no validation figure, and is kept"]
    assert [each.name for each in house.collect()] == ["worse"]


def test_a_false_figure_deletes_nobody_elses_model(house):
    house.train("honest", 0.93)
    house.train("second", 0.5)
    house.host = "liar"
    house.train("rubbish", 1.0)
    house.keeps(best=1)
    assert [each.name for each in house.collect()] == ["second"]
    assert house.here("honest")


def test_the_figure_is_never_one_of_the_test_side(house):
    """The test's figure, which a trainer says at its end, has no epoch and is no point of a curve."""
    house.train("worse", 0.5)
    house.train("better", 0.75)
    assert house.queue.get("id-worse") is not None
    (attempt,) = house.queue.attempts.of_job("id-worse")
    house.queue.attempts.note_progress(attempt, attempt.seq + 1, {"event": "done", "metric": 0.99})
    house.keeps(best=1)
    assert [each.name for each in house.collect()] == ["worse"]


def test_a_resumed_attempt_is_judged_by_the_epochs_that_led_to_it(house):
    house.enter("resumed")
    attempt = house.queue.attempts.by_claim(str(house.service.claim(a_worker_claim("pi")).claim_id))
    job = house.queue.get("id-resumed")
    said = [Point(n, 1.0, m, 1.0)._asdict() for n, m in ((0, 0.875), (1, 0.99), (2, 0.99))]
    house.queue.curves.add(attempt, list(enumerate(said)))
    house.queue.attempts.append_log(attempt, 0, ["a", "b", "c"])
    house.queue.settle(job, attempt, EndReason.WORKER_SHUTDOWN, error="bye")
    again = house.service.claim(a_worker_claim("pi"))
    second = house.queue.attempts.by_claim(str(again.claim_id))
    house.queue.attempts.append_log(second, 0, ["a"])
    house.queue.curves.add(second, [(0, Point(1, 1.0, 0.25, 1.0)._asdict())])
    house.deliver("id-resumed", str(again.claim_id), b"resumed")
    figure = house.reader.one("validation_figure", job_id="id-resumed", attempt=2, generation=1)
    assert figure["figure"] == 0.875, "epoch 0 of the first attempt; its epochs 1 and 2 were gone over again"


def test_a_bundle_of_two_jobs_goes_when_neither_keeps_it(house):
    house.train("one", 0.5, body=b"same")
    house.train("two", 0.5, body=b"same")
    house.train("best", 0.75)
    house.keeps(best=1)
    house.queue.hold("id-two", by="ada")
    assert house.collect() == []
    house.queue.unhold("id-two", by="ada")
    (gone,) = house.collect()
    assert gone.name == "one, two"
    assert house.removed("one") == house.removed("two") is not None
    assert house.findings(notes=True) == []


def test_a_held_model_stays_until_its_hold_ends():
    with _two() as two:
        two.queue.hold("id-worse", by="ada")
        assert two.collect() == []
        two.queue.unhold("id-worse", by="ada")
        assert [gone.name for gone in two.collect()] == ["worse"]


def test_what_was_requeued_is_trained_anew_and_back(two):
    two.collect()
    two.queue.requeue("id-worse")
    assert two.collect() == []
    two.train("worse", 0.9)
    assert two.here("worse")
    assert two.removed("worse") is None
    assert [each.name for each in two.collect()] == ["better"]
    assert two.findings(notes=True) == []


def test_a_superseded_bundle_goes_after_its_days_and_not_while_the_job_is_in_hand(house):
    house.train("one", body=b"first")
    house.keeps(keep_superseded_days=10)
    house.clock.advance(100 * DAY_S)
    house.queue.requeue("id-one")
    assert house.collect() == []
    house.train("one", body=b"second")
    house.clock.advance(9 * DAY_S)
    assert house.collect() == []
    house.clock.advance(DAY_S)
    (gone,) = house.collect()
    assert gone.why == "no job has been completed by it for 10 days"
    assert house.here("one")
    assert house.findings(notes=True) == []


# ── crashes and races ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("steps", range(1, 9))
def test_a_crash_after_any_step_leaves_no_promise_of_a_missing_file(two, steps):
    try:
        two.collect(but_after=steps)
    except Killed:
        pass
    else:
        assert steps > 7, "each step was died after"
    two.restart()
    assert two.here("worse") or two.removed("worse") is not None
    assert [each for each in two.findings() if each.check != "index"] == []
    two.collect()
    assert not two.here("worse")
    assert two.removed("worse") == BEST
    two.clock.advance(DAY_S)
    assert two.findings(notes=True) == []


@pytest.mark.parametrize("moment", range(2, 9))
def test_an_equal_bundle_that_comes_at_that_moment_is_not_lost(two, moment):
    """Its upload ends between the row and the removal: either it is spared, or it is to be sent again."""
    two.enter("twin")
    claim_id = str(two.service.claim(a_worker_claim("pi")).claim_id)
    said = []

    def bring():
        said.append(two.owned("id-twin", claim_id, two.upload(claim_id, b"worse", "id-twin")))

    def half():
        said.append(None)
        two.upload(claim_id, b"worse", "id-twin")

    two.collect(between={moment: bring})
    assert said == [True]
    assert two.here("worse")
    assert two.removed("worse") is None
    assert [each for each in two.findings() if each.check != "index"] == []
    two.queue.cancel("id-twin")
    two.collect(between={moment: half})  # published, and not yet its attempt's
    assert two.removed("worse") is not None
    two.queue.requeue("id-twin")
    claim_id = str(two.service.claim(a_worker_claim("pi")).claim_id)
    if two.here("worse"):  # a file that nobody owns
        two.restart()
    assert [each for each in two.findings() if each.check != "index"] == []
    while two.owned("id-twin", claim_id, two.upload(claim_id, b"worse", "id-twin")) is None:
        pass
    assert two.here("worse")
    assert two.removed("worse") is None


def test_an_upload_whose_bundle_goes_before_it_is_owned_is_sent_again(two):
    two.enter("twin")
    claim_id = str(two.service.claim(a_worker_claim("pi")).claim_id)
    brought = []
    two.collect(between={5: lambda: brought.append(two.upload(claim_id, b"worse", "id-twin"))})
    assert two.owned("id-twin", claim_id, brought[0]) is None
    assert two.owned("id-twin", claim_id, two.upload(claim_id, b"worse", "id-twin")) is DeliveryNews.NEW
    assert two.here("worse")


def test_a_late_upload_of_what_went_makes_the_index_say_that_it_is_back():
    """Found by the simulation: the line went on saying that it had been removed."""
    with _two() as two:
        two.collect()
        (attempt,) = two.reader.connection.execute("SELECT claim_id FROM attempts WHERE job_id = 'id-worse'").fetchall()
        claim_id = str(attempt["claim_id"])
        late = two.upload(claim_id, b"worse", "id-worse")
        delivery = DeliverySteps(two.service, two.store, two.reader, two.clock)
        two.run(delivery._made_its_own(two.service.upload_permission("id-worse", claim_id, "pi"), late))
        assert delivery.index_stale
        assert two.removed("worse") is None


def test_a_job_that_goes_on_meanwhile_keeps_its_bundle(two):
    two.collect(between={1: lambda: None, 2: lambda: two.queue.hold("id-worse", by="ada")})
    assert two.here("worse")


# ── what ages ───────────────────────────────────────────────────────────────────────────────


def test_logs_and_curves_go_by_age_and_the_figure_stays(two):
    two.keeps(keep_logs_days=30, keep_curves_days=60)
    two.clock.advance(31 * DAY_S)
    assert {(each.kind, each.name, each.why) for each in two.collect()} == {
        (RemovalKind.LOG, "worse", "logs are kept for 30 days"),
        (RemovalKind.LOG, "better", "logs are kept for 30 days"),
    }
    reply = two.views.log("id-worse")
    assert reply.removed.why == "logs are kept for 30 days"
    assert two.views.log_end("id-worse", 1, 20).removed == reply.removed
    assert two.views.curve("id-worse").points
    two.clock.advance(30 * DAY_S)
    assert {each.kind for each in two.collect()} == {RemovalKind.CURVE}
    assert two.views.curve("id-worse").points == []
    assert two.views.curve("id-worse").removed is not None
    assert two.findings(notes=True) == []
    two.keeps(best=1)
    assert [each.why for each in two.collect()] == [BEST]
    assert two.findings(notes=True) == []


def test_old_events_go_and_the_doctor_understands_what_is_left(two, monkeypatch):
    monkeypatch.setattr("training.fleet.service.retention.EVENTS_KEPT", 3)
    monkeypatch.setattr("training.fleet.service.retention.EVENTS_STEP", 4)
    two.enter("waits", "was-held")
    two.queue.hold("id-was-held", by="ada")
    two.keeps(keep_events_days=30)
    before = two.reader.all("events_newest", before=2**62, transition="", most=100)
    two.clock.advance(31 * DAY_S)
    (gone,) = two.collect()
    assert gone.why == "events are kept for 30 days"
    left = two.reader.all("events_newest", before=2**62, transition="", most=100)
    assert [each["seq"] for each in left] == [each["seq"] for each in before][:3]
    assert two.findings(notes=True) == []
    two.queue.requeue("id-worse")
    two.queue.unhold("id-was-held", by="ada")
    assert two.findings(notes=True) == []
    two.queue.db.run("add_event", at=1, job_id="id-worse", transition="claim", from_status="running",
        to_status="claimed", attempt=9, host="pi", detail=None)  # fmt: skip
    assert {each.check for each in two.findings()} >= {"chain"}


def test_a_data_set_goes_when_no_job_needs_it(house):
    used, unused = (a_set(house, name) for name in ("used", "unused"))
    house.train("one", dataset=used)
    house.keeps(keep_datasets_days=10)
    house.clock.advance(11 * DAY_S)
    (gone,) = house.collect()
    assert (gone.kind, gone.subject, gone.why) == (RemovalKind.DATASET, unused, "no job has named it for 10 days")
    assert [each.dataset_id for each in house.datasets.sets()] == [used]
    assert house.findings(notes=True) == []
    assert a_set(house, "unused") == unused
    assert house.collect() == [], "pushed again a moment ago"
    house.clock.advance(10 * DAY_S)
    assert [each.subject for each in house.collect()] == [unused]


def test_the_data_set_of_a_held_job_stays_until_its_hold_ends(house):
    used = a_set(house, "used")
    house.train("one", dataset=used)
    house.plan.clear()
    house.enter()  # a plan without the job
    house.keeps(keep_datasets_days=10)
    house.queue.hold("id-one", by="ada")
    house.clock.advance(11 * DAY_S)
    assert house.collect() == []
    house.queue.unhold("id-one", by="ada")
    assert [each.subject for each in house.collect()] == [used]


@pytest.mark.parametrize("steps", [3, 5, 6, 7])
def test_a_data_set_that_is_pushed_again_after_a_crash_stays(house, steps):
    unused = a_set(house, "unused")
    house.keeps(keep_datasets_days=10)
    house.clock.advance(11 * DAY_S)
    with pytest.raises(Killed):
        house.collect(but_after=steps)
    house.restart()
    house.clock.advance(1.0)
    assert a_set(house, "unused") == unused
    house.collect()
    assert [each.dataset_id for each in house.datasets.sets()] == [unused]
    assert house.reader.all("unfinished_removals", after=0, most=9) == []


def a_set(house, content):
    """Push a data set of one small file, which gets this name."""
    body = content.encode()
    listing = Listing((cut("a.txt", [body]),))
    name, document = listing.dataset_id, listing.document
    draft = house.datasets.begin(name, document)
    if draft.missing:
        house.datasets.put(name, [(draft.missing[0], body)])
    house.datasets.publish(name, content, house.clock.now())
    return name


# ── recovery ────────────────────────────────────────────────────────────────────────────────


def test_a_rebuild_knows_what_went(two):
    two.collect()
    two.close()
    two.state.db.unlink()
    done = rebuild(two.state, two.plan, two.clock)
    assert done.completed == ["better", "worse"]
    assert done.removed == [f"worse: its model was removed on 2023-11-14: {BEST}"]
    assert done.pending == 0
    two.open()
    assert two.removed("worse") == BEST
    assert two.findings(notes=True) == []


def test_a_backup_and_a_restore_know_what_went(two, tmp_path):
    two.collect()
    made = Backup(tmp_path / "backups").make(two.state, two.clock)
    assert made.contents.lost == []
    assert len([path for path in made.contents.files if path.endswith("/removed.json")]) == 1
    assert made.contents.bundles == 1
    elsewhere = House(tmp_path / "elsewhere", FakeClock(two.clock.now()))
    elsewhere.close()
    assert Restore(tmp_path / "backups", elsewhere.state, two.clock).run(force=True).lost == []
    elsewhere.open()
    assert elsewhere.removed("worse") == BEST
    assert elsewhere.findings(notes=True) == []
    elsewhere.close()


def test_an_older_backup_brings_the_bundle_back_and_it_goes_again(two, tmp_path):
    Backup(tmp_path / "backups").make(two.state, two.clock)
    two.collect()
    two.train("later", 0.125)
    two.collect()
    plan = two.service.plan
    two.close()
    done = Restore(tmp_path / "backups", two.state, two.clock).run(force=True)
    assert done.completed_since == ["later"]
    two.open()
    two.service.host_registry.plan = plan
    assert two.here("worse")
    assert two.removed("later") is not None, "the store says so"
    assert two.findings(notes=True) == []
    assert [each.name for each in two.collect()] == ["worse"]
    assert two.findings(notes=True) == []


def test_an_older_database_learns_from_the_store_what_went(two, tmp_path):
    older = tmp_path / "older.db"
    two.reader.copy_to(older)
    two.collect()
    two.close()
    for each in two.folder.glob("jobs.db*"):
        each.unlink()
    older.rename(two.folder / "jobs.db")
    two.open()
    two.store.index.repair(index_rows(two.reader))
    two.clock.advance(DAY_S)
    (note,) = two.findings(notes=True)
    assert "was removed on 2023-11-14" in note.problem
    assert two.run(two.retention.learn()) == 1
    two.store.index.repair(index_rows(two.reader))
    assert two.removed("worse") == BEST
    assert two.findings(notes=True) == []


def test_who_may_not_write_the_notes_removes_nothing(two):
    place = two.folder / "models" / "gbt_realistic"
    (worse,) = (each for each in place.iterdir() if (each / "bundle.tar.zst").stat().st_size == len(b"worse"))
    (worse / "removed.json").mkdir()
    two.collect()
    assert two.here("worse")
    (worse / "removed.json").rmdir()
    two.collect()
    assert not two.here("worse")

"""Learning attempt by attempt equals learning from all attempts at once, whatever the clock says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import a_job
from fakes import Counting, FakeClock
from hypothesis import given, settings
from hypothesis import strategies as st

from training.fleet.queue.durations import Learned
from training.fleet.queue.jobs import Claimant, GrantedJob, JobQueue
from training.fleet.queue.kinds import Kinds, LiveAttempt
from training.fleet.scheduling.calibrations import MIXED, Calibrations
from training.fleet.scheduling.job import EndReason, Host
from training.fleet.scheduling.policy import NOBODY_ELSE
from training.fleet.scheduling.resources import Booking
from training.fleet.scheduling.workload import Workload

CAN = {"cpu_cores": 8, "ram_available_gib": 16.0, "ram_total_gib": 16.0}


class World:
    """A queue with jobs of a few kinds, and hosts that train them."""

    def __init__(self, jobs=40):
        self.clock = FakeClock()
        self.queue = JobQueue(":memory:", clock=self.clock, new_claim_id=Counting())
        kinds = [{"model": model, "hyper": {"epochs": n}} for model in ("gbt", "mlp") for n in (1, 5)]
        self.queue.sync([a_job(f"job-{n}", seed=n, **kinds[n % len(kinds)]) for n in range(jobs)])
        self.live = []
        self.lost = []

    def claim(self, host):
        with self.queue.db.transaction():
            self.queue.hosts.note(host, CAN, Claimant())
            granted = self.queue.grant(Host.of(host, CAN), Claimant(), NOBODY_ELSE)
        if isinstance(granted, GrantedJob):
            self.live.append(granted)

    def complete(self, seconds, **more):
        """Complete a job: of those that are trained, the one that was claimed last."""
        if self.live:
            grant = self.live.pop()
            record = {"train_s": seconds, "max_rss_kib": 1024**2, **more}
            self.queue.accept(grant.job, grant.attempt, "a" * 64, record)

    def lose(self, *, resumable=False):
        if self.live:
            grant = self.live.pop(0)
            self.queue.moves.renew(grant.job, replace(grant.attempt, resumable=resumable), seq=1)
            self.lost.append(grant)
            self.queue.settle(grant.job, grant.attempt, EndReason.HOST_LOST)

    def adopt(self, seconds):
        """Complete a job by work of a host that had been given up, unless it was granted again."""
        if self.lost:
            grant = self.lost.pop(0)
            job = self.queue.get(grant.job.job_id)
            if job is not None and job.attempt == grant.attempt.attempt and job.status == "pending":
                self.queue.moves.adopt(job, grant.attempt, "a" * 64, {"train_s": seconds})

    def again(self):
        for row in self.queue.db.all("events_newest", before=2**62, transition="", most=1):
            self.queue.requeue(row["job_id"])
            self.live = [each for each in self.live if each.job.job_id != row["job_id"]]


@pytest.fixture
def world():
    made = World()
    yield made
    made.queue.close()


SECONDS = st.one_of(st.floats(0.1, 1e4), st.sampled_from([None, -1.0, True, "10", 1e300]))
MOVES = st.one_of(
    st.tuples(st.just("claim"), st.sampled_from(["desk", "laptop", "pi"])),
    st.tuples(st.sampled_from(["complete", "complete", "adopt"]), SECONDS),
    st.tuples(st.sampled_from(["lose", "again", "look"])),
    st.tuples(st.just("step"), st.floats(-1e6, 1e6)),
)


@settings(max_examples=40)
@given(st.lists(MOVES, max_size=40))
def test_learning_as_attempts_complete_teaches_what_all_of_them_teach_at_once(moves):
    world = World()
    learned = Learned(world.queue.db)
    for name, *args in moves:
        if name == "look":
            learned.speeds()
        elif name == "step":
            world.clock.step(*args)
        else:
            getattr(world, name)(*args)
    afresh = Learned(world.queue.db)
    assert learned.speeds() == afresh.speeds()
    assert list(learned.kinds().items()) == list(afresh.kinds().items())
    assert learned.attempts == afresh.attempts
    world.queue.close()


def test_a_look_at_nothing_new_is_one_statement(world, monkeypatch):
    learned = Learned(world.queue.db)
    world.claim("desk")
    world.complete(10.0)
    assert learned.speeds().predict(Workload.of(a_job(model="mlp")), "desk").seconds > 0
    asked = []
    real = world.queue.db.all  # one() asks it too
    monkeypatch.setattr(world.queue.db, "all", lambda name, **params: asked.append(name) or real(name, **params))
    learned.speeds()
    assert asked == ["newest_event"]


def test_only_the_newest_attempts_are_held(world):
    learned = Learned(world.queue.db, most=4)
    for n in range(30):
        world.claim("desk")
        world.complete(10.0 + n)
        learned.speeds()
        assert learned.attempts <= 8
    assert learned.attempts >= 4
    assert sum(each.attempts for each in learned.kinds().values()) == learned.attempts
    assert len(Learned(world.queue.db, most=3).kinds()) <= 3


@pytest.mark.parametrize(
    ("again", "resumable", "record"),
    [("desk", False, {}), ("laptop", True, {}), ("laptop", False, {"stretches": [{"host": "desk"}]})],
)
def test_an_attempt_that_went_on_from_a_saved_state_teaches_nothing(again, resumable, record):
    world = World(jobs=1)
    learned = Learned(world.queue.db)
    learned.speeds()
    world.claim("desk")
    world.lose(resumable=resumable)
    world.clock.advance(3600)
    world.claim(again)
    world.complete(10.0, **record)
    learned.speeds()
    assert (learned.attempts, Learned(world.queue.db).version()[1]) == (0, 0)
    world.queue.close()


def test_a_receiver_that_forgot_old_events_still_learns_from_their_attempts(world):
    for n in range(6):
        world.claim("desk")
        world.complete(10.0 + n)
    whole = Learned(world.queue.db).speeds()
    half = world.queue.db.all("events_newest", before=2**62, transition="", most=8)[-1]["seq"]
    world.queue.db.run("forget_events", last=half)
    assert Learned(world.queue.db).speeds() == whole


def test_what_completed_between_two_statements_of_a_look_is_learned_once(world, monkeypatch):
    learned, before = Learned(world.queue.db), world.queue.db.number("newest_event")
    world.claim("desk")
    world.complete(10.0)
    with monkeypatch.context() as patched:
        patched.setattr(world.queue.db, "number", lambda _: before)
        assert learned.attempts == learned.version()[1] - 1 == 0
    learned.speeds()
    assert learned.attempts == 1


def test_a_data_set_that_nobody_trained_on_is_judged_by_its_size():
    world = World(jobs=0)
    sizes = {"small": 1e6, "large": 1e8}
    world.queue.sync([a_job(f"small-{n}", dataset="small", seed=n) for n in range(3)])
    learned = Learned(world.queue.db, data_bytes=sizes.get)
    for _ in range(3):
        world.claim("desk")
        world.complete(10.0)
    told = {
        name: learned.speeds().predict(learned.workload(a_job(dataset=name)), "desk").seconds
        for name in ("small", "large", "unknown")
    }
    assert 9 < told["small"] < 11
    assert 200 < told["large"] < 5000
    assert 5 < told["unknown"] < 20
    world.queue.close()


def test_a_new_host_is_judged_by_its_calibration_as_soon_as_that_is_known(world):
    speeds = {"desk": {MIXED: 100.0}, "laptop": {MIXED: 100.0}}
    measured = Calibrations(speeds)
    learned = Learned(world.queue.db, most=4, calibrations=lambda: measured)
    work = learned.workload(a_job())

    def train_on(host):
        world.claim(host)
        world.complete(100.0)

    for _ in range(4):
        train_on("desk")
        train_on("laptop")
    blind = learned.speeds().predict(work, "new").seconds
    measured = Calibrations({**speeds, "new": {MIXED: 1000.0}})
    assert learned.speeds().predict(work, "new").seconds < blind / 5
    for _ in range(4):  # so many that it begins anew
        train_on("desk")
        learned.speeds()
    assert learned.speeds().predict(work, "new").seconds < blind / 5


def test_the_size_of_a_data_set_is_asked_again_once_something_was_learned():
    """It may have come meanwhile: kept for good, the forecast of its jobs would go by no size, or by the old one."""
    world, size = World(0), [1e6]
    world.queue.sync([a_job(name, seed=n, dataset="d" * 64) for n, name in enumerate("abc")])
    learned = Learned(world.queue.db, data_bytes=lambda _: size[0])
    kinds = Kinds(world.queue.db, world.queue.classes, learned)
    one = next(kinds.waiting(0.0)).job_class
    kinds.renew()
    before = kinds.work(one)
    size[0] = 1e9
    kinds.renew()
    assert kinds.work(one) is before
    world.claim("pi")
    world.complete(10.0)
    kinds.renew()
    assert kinds.work(one) == learned.workload(one.work) != before


def test_a_word_is_taken_anew_as_its_attempt_goes_on_and_counts_once():
    """Of an attempt that began afresh: where an earlier one stopped it tells nothing of the whole."""
    world = World(1)
    kinds = Kinds(world.queue.db, world.queue.classes, Learned(world.queue.db))
    one = next(kinds.waiting(0.0)).job_class

    def live(epoch, heard_s, *, afresh=True):
        said = {"epoch": epoch, "epochs": 20, "seconds": heard_s}
        return LiveAttempt("id", "job", "job", "desk", one, 0, 0.0, heard_s, said, afresh, Booking())

    def seconds(under_way):
        kinds.look([one], [under_way])
        return kinds.predictions(one, ["desk"])["desk"].seconds

    guess = seconds(live(5, 5000.0, afresh=False))
    unheard = kinds.left(live(5, 5000.0))
    early, late = seconds(live(5, 5000.0)), seconds(live(12, 6000.0))
    assert guess < 500 < late < early * 0.8
    assert kinds.left(live(5, 5000.0)) == unheard
    world.queue.close()

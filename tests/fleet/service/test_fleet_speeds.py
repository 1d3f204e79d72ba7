"""The answer of `speeds` follows from workers' measurements, and survives nonsense among them."""

from __future__ import annotations

import pytest
from builders import a_job
from fakes import FakeShelf
from service_running import CAN, Receiver

from training.fleet.queue.jobs import Claimant
from training.fleet.scheduling.job import EndReason, Host
from training.fleet.scheduling.policy import NOBODY_ELSE
from training.fleet.service import speeds
from training.fleet.service.hosts import Plan
from training.fleet.service.service import Service
from training.fleet.service.views import Views


class Fleet(Receiver):
    def __init__(self, *names, **fields):
        super().__init__(*(a_job(name, seed=n, **fields) for n, name in enumerate(names)))
        self.measured = {}  # host → its calibration

    def bare_grant(self, host, can=CAN):
        return super().bare_grant(host, {**can, "calibration": self.measured.get(host)})

    def kinds(self):
        """Ask as after a restart, which reads the hosts that are on record."""
        return self.again().durations.speeds().kinds

    def again(self):
        return Views(self.queue.db, Service(self.queue, FakeShelf()))

    def doubts(self):
        """Return what `workers` shows, which is what `speeds` does."""
        views = self.again()
        told = {host.hostname: host.doubt for host in views.workers().workers if host.doubt is not None}
        assert told == views.durations.speeds().doubts
        return told


@pytest.fixture
def fleet():
    made = Fleet("one", "two", "three", "four")
    yield made
    made.queue.close()


def test_jobs_that_differ_in_seed_alone_are_one_kind_whose_time_is_learned_on_each_host(fleet):
    fleet.train("desk", {"train_s": 10.0, "max_rss_kib": 1024**2})
    fleet.train("desk", {"train_s": 10.0, "max_rss_kib": 3 * 1024**2})
    fleet.train("pi", {"train_s": 100.0})
    (kind,) = fleet.kinds()
    assert (kind.model, kind.jobs, kind.ram_gib) == ("gbt", 3, 3.0)
    desk, pi = kind.hosts
    assert (desk.host, desk.seen, desk.basis) == ("desk", 2, "same")
    assert 8 < desk.low < desk.seconds < desk.high < 13
    assert desk.high / desk.seconds == pytest.approx(desk.seconds / desk.low), "as many end later as sooner"
    assert (pi.host, pi.seen) == ("pi", 1)
    assert 60 < pi.seconds < 130


@pytest.mark.parametrize(
    "record", [None, {}, {"train_s": -1.0}, {"train_s": "10"}, {"train_s": True}, {"train_s": 0}, {"train_s": [10.0]}]
)
def test_a_record_without_a_time_teaches_nothing(fleet, record):
    fleet.train("desk", record)
    assert fleet.kinds() == []


@pytest.mark.parametrize("kib", [None, -1, "much", True])
def test_memory_that_is_no_number_is_not_known(fleet, kib):
    fleet.train("desk", {"train_s": 10.0, "max_rss_kib": kib})
    (kind,) = fleet.kinds()
    assert kind.ram_gib is None


def test_an_attempt_that_went_on_where_another_stopped_does_not_count(fleet):
    granted = fleet.bare_grant("desk")
    with fleet.queue.db.transaction():
        fleet.queue.settle(granted.job, granted.attempt, EndReason.WORKER_SHUTDOWN)
    fleet.train("desk", {"train_s": 1.0})
    assert fleet.kinds() == []


def test_a_job_counts_as_it_was_granted(fleet):
    fleet.train("desk", {"train_s": 10.0})
    fleet.service.reload([a_job("one", seed=0, hyper={"max_depth": 9})], Plan())
    (kind,) = fleet.kinds()
    assert kind.hyper == {}


def test_of_too_many_kinds_the_newest_are_told(monkeypatch):
    fleet = Fleet()
    for depth in (1, 2, 3):
        fleet.service.reload([a_job(f"depth {depth}", hyper={"max_depth": depth})], Plan())
        fleet.train("desk", {"train_s": 10.0})
    monkeypatch.setattr(speeds, "KINDS_MOST", 2)
    assert [kind.hyper["max_depth"] for kind in fleet.kinds()] == [3, 2]
    fleet.queue.close()


def test_a_host_that_measured_itself_is_judged_by_that_before_its_first_job(fleet):
    for host, gflops in (("desk", 50.0), ("new", 5000.0)):
        can = {**CAN, "calibration": {"gflops": gflops, "steps": 100.0}}
        fleet.queue.hosts.note(host, can, Claimant())
    for _ in range(2):
        granted = fleet.queue.grant(Host.of("desk", CAN), Claimant(), NOBODY_ELSE)
        fleet.queue.accept(granted.job, granted.attempt, "a" * 64, {"train_s": 100.0})
    (kind,) = fleet.kinds()
    assert [(each.host, each.basis) for each in kind.hosts] == [("new", "calibrated"), ("desk", "same")]
    assert kind.hosts[0].seconds < 30


def test_a_calibration_that_failed_is_told_until_the_host_has_trained(fleet):
    fleet.measured["desk"] = {"failed": "this host's speed could not be measured: no\x1b memory"}
    granted = fleet.bare_grant("desk")
    (said,) = fleet.doubts().values()
    assert "\x1b" not in said
    assert said.endswith("until it has trained it is taken for one of middle speed")
    fleet.queue.accept(granted.job, granted.attempt, "a" * 64, {"train_s": 10.0})
    assert fleet.doubts() == {}


def test_a_host_without_torch_is_told_of_until_it_has_trained(fleet):
    with fleet.queue.db.transaction():
        fleet.queue.hosts.note("desk", {**CAN, "torch_version": None}, Claimant())
        fleet.queue.hosts.note("before", CAN, Claimant())  # says nothing of torch
    assert fleet.doubts() == {
        "desk": "torch is not installed there, so it did not measure its own speed; "
        "until it has trained it is taken for one of middle speed"
    }
    granted = fleet.queue.grant(Host.of("desk", CAN), Claimant(), NOBODY_ELSE)
    fleet.queue.accept(granted.job, granted.attempt, "a" * 64, {"train_s": 10.0})
    assert fleet.doubts() == {}


def _two_hosts(lies):
    """Make a fleet of equal hosts, one of which measured itself so many times as fast as it is."""
    fleet = Fleet(*(f"job{n}" for n in range(8)))
    for host, gflops in (("desk", 50.0), ("liar", 50.0 * lies)):
        fleet.measured[host] = {"gflops": gflops, "steps": 100.0 * gflops, "branches": gflops}
        for _ in range(4):
            fleet.train(host, {"train_s": 100.0})
    return fleet


@pytest.mark.parametrize("lies", [1.0, 2.0, 1 / 20])
def test_a_host_as_fast_as_it_measured_is_not_doubted(lies):
    fleet = _two_hosts(lies)
    assert "liar" not in fleet.doubts()
    fleet.queue.close()


def test_a_host_that_shows_more_than_it_lends_is_told_of_and_judged_by_what_it_trained():
    fleet = _two_hosts(20.0)
    doubts = fleet.doubts()
    assert list(doubts) == ["liar"]
    assert "fewer cores than the 8 that it shows" in doubts["liar"]
    (kind,) = fleet.kinds()
    assert all(80 < each.seconds < 125 for each in kind.hosts)
    fleet.queue.close()


def test_a_job_that_never_ends_is_told_of_and_goes_on(fleet):
    for _ in range(3):
        fleet.train("desk", {"train_s": 200.0})
    granted = fleet.bare_grant("desk")

    def note():
        views = fleet.again()
        detail, explained = views.job(granted.job.job_id).job, views.explain(granted.job.job_id)
        assert detail.note is None or detail.note in explained.summary
        return detail.note

    most_s = fleet.kinds()[0].hosts[0].high
    fleet.clock.advance(2.99 * most_s)
    assert note() is None
    fleet.clock.advance(1000 - 2.99 * most_s)
    assert str(note()).startswith("desk has had it for 17 min, and nine of ten such jobs are expected to take ")
    assert "`cis490-jobs cancel four` ends it" in str(note())
    assert fleet.again().job(granted.job.job_id).job.status == "claimed"


def test_a_short_job_has_time_to_fetch_its_data(fleet):
    for _ in range(3):
        fleet.train("desk", {"train_s": 2.0})
    granted = fleet.bare_grant("desk")
    fleet.clock.advance(290)
    assert fleet.again().job(granted.job.job_id).job.note is None

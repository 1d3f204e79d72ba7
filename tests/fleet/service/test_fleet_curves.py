"""Curves: each epoch that a trainer reports is a row, whichever way it came, and a job's attempts are one curve."""

from __future__ import annotations

import json

import msgspec
import pytest
from builders import a_beat, a_failure, a_job, some_lines
from hypothesis import given
from hypothesis import strategies as st
from service_running import Receiver

from training.fleet.queue import curves
from training.fleet.service.output_views import CURVE_POINTS
from training.fleet.wire.attempts import HeartbeatRequest, LogLines, OutputRequest, Usage
from training.fleet.wire.constants import LOG_LINE_CHARS_MAX
from training.fleet.wire.progress import Point, kept_line, laid_out, point_in

JOB = "id-one"


def told(epoch, **fields):
    return json.dumps({"event": "epoch", "epoch": epoch, "loss": 1 / epoch, "metric": None, **fields})


class Fleet(Receiver):
    """A service with one job and views on its database."""

    def __init__(self):
        super().__init__(a_job("one"))
        self.seq = 0

    def beat(self, claim_id, *lines, first=0, **fields):
        self.seq += 1
        log = some_lines(*lines, first=first) if lines else None
        return self.service.heartbeat(JOB, a_beat(claim_id, **{"seq": self.seq, "log": log, **fields})).log_next

    def again(self, claim_id):
        """Hand the job back; returns the claim of the next attempt."""
        self.service.fail(JOB, a_failure(claim_id, reason="worker_shutdown", exit_code=None))
        self.clock.advance(120.0)
        return self.granted(request_id=f"again-{self.seq}")

    def losses(self, **how):
        return {each.epoch: each.loss for each in self.views.curve(JOB, **how).points}


@pytest.fixture
def fleet():
    made = Fleet()
    yield made
    made.queue.close()


# ── lines ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("line", "point"),
    [
        ('{"event": "epoch", "epoch": 3, "loss": 0.5}', Point(3, 0.5)),
        ('{"event": "val", "epoch": 3.0, "metric": 1}', Point(3, None, 1.0)),
        ('{"event": "epoch", "epoch": 0, "loss": 0.5, "seconds": 2}', Point(0, 0.5, None, 2.0)),
        ('{"event": "epoch", "epoch": 1, "loss": 0.5, "seconds": -2}', Point(1, 0.5)),
        (
            r'{"event": "epoch", "epoch": 1, "loss": 1, "stage": "refit \ud800", "stage_epoch": 1.5, "metric_name": 2}',
            Point(1, 1.0, stage="refit ?"),
        ),
        ('{"event": "epoch", "epoch": 3}', None),
        ('{"event": "epoch", "epoch": 0.5, "loss": 1}', None),
        ('{"event": "epoch", "epoch": -1, "loss": 1}', None),
        ('{"event": "epoch", "epoch": true, "loss": 1}', None),
        ('{"event": "epoch", "epoch": 9007199254740993, "loss": 1}', None),
        ('{"event": "epoch", "epoch": 1, "loss": NaN}', None),
        ('{"event": "epoch", "epoch": 1, "loss": 1e999, "metric": "high"}', None),
        ('{"epoch": 1, "loss": 1}', None),
        ("epoch 1 loss 0.5", None),
    ],
)
def test_a_line_tells_an_epoch_with_a_figure_or_nothing(line, point):
    assert point_in(line) == point


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=3))
def test_stages_lie_behind_one_another_and_begin_together(lengths):
    def of(job):
        stages = [(name, own) for name, length in zip("abcd", job, strict=False) for own in range(1, length + 1, 2)]
        return [
            {"epoch": 7 * n, "stage": f"1 of 4: {name}", "stage_epoch": own, "metric_name": None}
            for n, (name, own) in enumerate(stages)
        ]

    placed, marks, metric = laid_out([of(job) for job in lengths])
    assert [name for _, name in marks] == list("abcd")[: max(map(len, lengths))] * (max(map(len, lengths)) > 1)
    assert metric == "metric"
    for points in placed:
        places = [point["epoch"] for point in points]
        assert places == sorted(set(places))
        for at, name in marks:
            assert [at < point["epoch"] for point in points] == [point["stage"][-1] >= name for point in points]
            begun = [point["epoch"] for point in points if point["stage"][-1] == name]
            assert not begun or begun[0] == at + 0.5


def test_a_long_line_keeps_its_event_and_another_is_cut():
    long = told(7, note="x" * 600, **{f"extra_{n}": n for n in range(50)})
    kept = kept_line(long)
    assert len(kept) <= LOG_LINE_CHARS_MAX
    assert point_in(kept) == point_in(long) == Point(7, 1 / 7)
    assert "extra_0" in kept, "what fits stays beside it"
    assert kept_line("y" * 600) == "y" * LOG_LINE_CHARS_MAX
    assert kept_line(told(7, event="z" * 600)) == told(7, event="z" * 600)[:LOG_LINE_CHARS_MAX]


@pytest.fixture
def claim_id(fleet):
    return fleet.granted()


def test_every_line_is_a_row_whatever_brings_it(fleet, claim_id):
    assert fleet.beat(claim_id, told(1), "plain", told(2, metric=0.5, seconds=3.5)) == 3
    fleet.service.fail(JOB, a_failure(claim_id, log=some_lines(told(3), first=3)))
    fleet.service.output(JOB, OutputRequest(claim_id=claim_id, log=some_lines(told(4), first=4)))
    rows = fleet.queue.db.all("curve", job_id=JOB, attempt=1, most=9, buckets=1)
    assert [(row["epoch"], row["loss"], row["metric"], row["seconds"]) for row in rows] == [
        (1, 1.0, None, None), (2, 0.5, 0.5, 3.5), (3, 1 / 3, None, None), (4, 0.25, None, None),
    ]  # fmt: skip


def test_a_line_counts_once_and_an_epoch_run_again_replaces_its_row(fleet, claim_id):
    fleet.beat(claim_id, told(1), told(2, loss=0.9))
    fleet.beat(claim_id, told(2, loss=0.9), told(2, loss=0.7), first=1)
    assert fleet.losses() == {1: 1.0, 2: 0.7}
    fleet.beat(claim_id, told(1, loss=5.0), told(2, loss=6.0), first=0)
    assert fleet.losses() == {1: 1.0, 2: 0.7}, "lines that the receiver has tell nothing new"
    fleet.beat(claim_id, told(2, loss=None, metric=0.25), first=3)
    (_, point) = fleet.views.curve(JOB).points
    assert (point.loss, point.metric) == (0.7, 0.25), "a second line about an epoch adds its figure"


def test_progress_tells_an_epoch_until_its_line_has_come(fleet, claim_id):
    fleet.beat(claim_id, progress=json.loads(told(5, loss=0.5)))
    assert fleet.losses() == {5: 0.5}
    fleet.beat(claim_id, progress=json.loads(told(5, loss=0.4)))
    assert fleet.losses() == {5: 0.4}
    fleet.beat(claim_id, told(5, loss=0.3), progress=json.loads(told(5, loss=0.4)))
    assert fleet.losses() == {5: 0.3}
    fleet.beat(claim_id, progress=json.loads(told(5, loss=0.9)))
    assert fleet.losses() == {5: 0.3}, "what a line said stays"
    fleet.beat(claim_id, seq=1, progress=json.loads(told(9, loss=0.9)))
    assert 9 not in fleet.losses(), "a heartbeat that comes late tells nothing"


# ── attempts ────────────────────────────────────────────────────────────────────────────────


def test_attempts_are_one_curve_that_says_where_each_begins(fleet):
    first = fleet.granted()
    fleet.beat(first, *(told(n, loss=10.0 + n) for n in range(1, 7)))
    second = fleet.again(first)
    fleet.beat(second, *(told(n, loss=20.0 + n) for n in range(5, 9)))
    reply = fleet.views.curve(JOB)
    assert [(each.attempt, each.first, each.last, each.epochs) for each in reply.attempts] == [
        (1, 1, 4, 4),
        (2, 5, 8, 4),
    ]
    assert fleet.losses() == {n: n + (10.0 if n < 5 else 20.0) for n in range(1, 9)}
    assert fleet.losses(attempt=1) == {n: 10.0 + n for n in range(1, 7)}
    fleet.beat(fleet.again(second), told(1, loss=30.0), told(2, loss=31.0))
    assert fleet.losses() == {1: 30.0, 2: 31.0}, "one that began afresh is the whole curve"
    assert fleet.losses(attempt=2) == {n: 20.0 + n for n in range(5, 9)}


def test_a_curve_is_complete_when_its_attempt_ended_and_all_its_output_has_arrived(fleet, claim_id):
    def complete():
        (attempt,) = fleet.views.curve(JOB).attempts
        return attempt.complete

    def brought(*lines, first, total):
        fleet.service.output(
            JOB, OutputRequest(claim_id=claim_id, log=LogLines(first=first, lines=[*lines], total=total))
        )

    fleet.beat(claim_id, told(1))
    assert complete() is False
    fleet.service.fail(JOB, a_failure(claim_id, log=LogLines(first=1, lines=[told(2)])))
    assert complete() is None, "a worker of before does not say how much there is"
    brought(first=2, total=4)
    assert complete() is False
    brought(told(3), first=2, total=3)
    brought(first=3, total=4)
    brought(first=2, total=3)  # late, or of a copied disk that knows of fewer lines
    assert complete() is False
    brought(told(4), first=3, total=4)
    assert complete() is True
    assert len(fleet.losses()) == 4


def test_a_copied_disk_that_knows_of_fewer_lines_makes_no_output_complete():
    fleet = Fleet()

    def brought(*lines, first, total):
        log = LogLines(first=first, lines=[*lines], total=total)
        fleet.service.output(JOB, OutputRequest(claim_id=claim_id, log=log))

    def total():
        return fleet.service.queue.attempts.by_claim(claim_id).log_total

    claim_id = fleet.granted()
    brought(told(1), first=0, total=1)
    assert total() == 1
    brought(told(2), told(3), first=1, total=None)
    assert total() is None, "more lines came than were said to be all"
    brought(first=0, total=1)
    assert total() is None, "fewer than are stored"
    brought(first=3, total=3)
    assert total() == 3
    fleet.queue.close()


# ── bounds ──────────────────────────────────────────────────────────────────────────────────


def test_a_long_curve_is_thinned_and_keeps_its_ends_and_extremes(fleet):
    claim_id, epochs = fleet.granted(), 2_000
    for first in range(0, epochs, 200):
        lines = [told(n + 1, loss=1.0 + n % 7, metric=0.5) for n in range(first, first + 200)]
        if first == 1000:
            lines[29] = told(1030, loss=0.5, metric=0.5)
            lines[77] = told(1078, loss=99.0, metric=0.5)
            lines[129] = told(1130, loss=1.5, metric=0.01)
            lines[177] = told(1178, loss=1.5, metric=0.99)
        fleet.beat(claim_id, *lines, first=first)
    reply = fleet.views.curve(JOB)
    assert (reply.epochs, len(reply.points) <= CURVE_POINTS) == (epochs, True)
    assert len(reply.points) > CURVE_POINTS / 4
    shown = [point.epoch for point in reply.points]
    assert shown == sorted(set(shown))
    assert {1, 1030, 1078, 1130, 1178, epochs} <= set(shown), "each series keeps both of its own extremes"
    assert len(fleet.losses(points=10**6)) == epochs, "whole where it is asked for"
    assert len(fleet.views.curve(JOB, points=0).points) <= 10


def test_an_attempt_keeps_a_bounded_number_of_epochs(fleet, monkeypatch):
    monkeypatch.setattr(curves, "POINTS_KEPT", 100)
    claim_id = fleet.granted()
    for first in range(0, 1_000, 50):
        lines = [told(n + 1, loss=None, metric=-1.0 if n == 333 else n % 5) for n in range(first, first + 50)]
        fleet.beat(claim_id, *lines, first=first)
        assert len(fleet.losses(points=10**6)) <= 100
    kept = fleet.losses(points=10**6)
    assert {1, 334, 1000} <= set(kept)
    assert sum(1 for epoch in kept if epoch <= 500) >= 10, "thinned evenly, not from one end"
    fleet.beat(claim_id, told(2**53 - 1, loss=1.0), first=1_000)
    assert 2**53 - 1 in fleet.losses(points=10**6), "the largest number breaks no sum"


# ── use ─────────────────────────────────────────────────────────────────────────────────────


def test_a_heartbeat_brings_one_sample_of_use(fleet, claim_id):
    used = Usage(cpu=3.5, memory_bytes=2**30)
    fleet.clock.advance(30.0)
    fleet.beat(claim_id, usage=used)
    fleet.beat(claim_id, usage=used)
    fleet.beat(claim_id, usage=used, seq=1)
    fleet.clock.advance(30.0)
    fleet.beat(claim_id, usage=Usage(cpu=0.5, gpu=0.25, gpu_memory_bytes=5))
    samples = fleet.views.curve(JOB).usage
    assert [(each.seconds, each.cpu, each.memory_bytes, each.gpu) for each in samples] == [
        (30.0, 3.5, 2**30, None), (60.0, 0.5, None, 0.25),
    ]  # fmt: skip


def test_samples_come_apart_as_an_attempt_ages_and_are_thinned(fleet, claim_id):
    for number in range(2_400):
        fleet.clock.advance(30.0)
        fleet.beat(claim_id, usage=Usage(cpu=64.0 if number == 700 else number % 3))
    rows = fleet.queue.db.all("samples", job_id=JOB, attempt=1, most=10**6, buckets=1)
    assert 1_000 < len(rows) < 2_200
    reply = fleet.views.curve(JOB)
    assert len(reply.usage) <= CURVE_POINTS
    assert 64.0 in {each.cpu for each in reply.usage}
    assert reply.usage[-1].seconds == rows[-1]["seconds"]


def test_what_no_worker_of_ours_says_is_refused(fleet):
    for used in ({"cpu": -1}, {"cpu": 1e9}, {"gpu": 1.5}, {"memory_bytes": 2**60}, {"cpu": "much"}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({"seq": 1, "usage": used}, HeartbeatRequest)
    older = msgspec.convert({"seq": 1, "usage": {"power": 5}}, HeartbeatRequest)
    assert older.usage == Usage(), "unknown members are ignored"

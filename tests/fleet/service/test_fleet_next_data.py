"""A heartbeat's answer names the data set that its host will probably need next: cheaply, and only when it is news."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from builders import a_beat, a_job
from rich.console import Console
from service_running import Receiver

from training.fleet.cli.render import render_workers
from training.fleet.scheduling.orders import Order
from training.fleet.scheduling.policy import Scheduling
from training.fleet.wire.messages import HeartbeatReply, NextData, NextDataHeard

A, B, C = (letter * 64 for letter in "abc")
OWN = {"command": ["python", "own.py"], "outputs": ["out"]}


@pytest.fixture
def fleet() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


def beat(
    fleet: Receiver, claim_id: str, named: NextData | None = None, *, fetching: bool = False, **fields: Any
) -> HeartbeatReply:
    attempt = fleet.queue.attempts.by_claim(claim_id)
    assert attempt is not None
    heard = NextDataHeard(named=named, fetching=fetching)
    return fleet.service.heartbeat(attempt.job_id, a_beat(claim_id, seq=attempt.seq + 1, next_data=heard, **fields))


def test_a_host_that_is_alone_is_named_what_comes_first(fleet: Receiver) -> None:
    jobs = [a_job("one", dataset=A, priority=90), a_job("two", dataset=B), a_job("three", dataset=C)]
    fleet.plan(*jobs, dataset_jobs={B: ("windows", 1)})
    claim = fleet.granted("pi")
    named = beat(fleet, claim).next_data
    assert named == NextData(dataset_id=B, name="windows", model="gbt", mode="realistic", own_trainer=False)
    assert beat(fleet, claim, named).next_data is None, "it knows"
    fleet.queue.hold("id-two")
    assert beat(fleet, claim, named).next_data == NextData(dataset_id=C, model="gbt", mode="realistic")


def test_of_several_hosts_each_is_named_what_the_schedule_has_for_it(fleet: Receiver) -> None:
    jobs = [a_job(f"pi-{n}", dataset=A, allowed_hosts=["pi"]) for n in range(2)]
    jobs += [a_job(f"desk-{n}", dataset=B, allowed_hosts=["desktop"]) for n in range(2)]
    jobs += [a_job("late", dataset=C, allowed_hosts=["desktop"], priority=1)]
    fleet.plan(*jobs)
    on_pi = fleet.granted("pi")
    on_desktop = fleet.granted("desktop")
    for claim, expected in ((on_pi, A), (on_desktop, B)):
        named = beat(fleet, claim).next_data
        assert named is not None
        assert named.dataset_id == expected
    fleet.queue.cancel("id-desk-1")
    assert beat(fleet, on_desktop).next_data is None, (
        "the schedule is of a moment ago, and of its first kind none waits"
    )


def test_jobs_on_a_hosts_own_data_are_no_news(fleet: Receiver) -> None:
    fleet.plan(a_job("one", priority=90), a_job("two"))
    assert beat(fleet, fleet.granted("pi")).next_data is None


def test_a_trainer_of_ones_own_may_read_every_file(fleet: Receiver) -> None:
    fleet.plan(a_job("one", priority=90), a_job("two", dataset=A, model="mine", trainer=OWN))
    named = beat(fleet, fleet.granted("pi")).next_data
    assert named == NextData(dataset_id=A, model="mine", mode="realistic", own_trainer=True)


@pytest.mark.parametrize("how", ["older worker", "resting", "paused", "drained", "handed back", "first-come"])
def test_nothing_is_named_to_whom_it_is_of_no_use(fleet: Receiver, how: str) -> None:
    jobs = [a_job(f"job-{n}", dataset=A) for n in range(4)]
    fleet.plan(*jobs)
    fleet.granted("desktop")
    claim = fleet.granted("pi")
    if how == "first-come":  # from now on: the schedule of before is still in memory
        fleet.plan(*jobs, scheduling=Scheduling.FIRST_COME)
    orders = {"paused": Order.PAUSE, "drained": Order.DRAIN, "handed back": Order.HAND_BACK}
    if how in orders:
        fleet.service.order("pi", orders[how], "ada")
    if how == "older worker":
        attempt = fleet.queue.attempts.by_claim(claim)
        assert attempt is not None
        assert fleet.service.heartbeat(attempt.job_id, a_beat(claim)).next_data is None
        return
    assert beat(fleet, claim, resting="on battery" if how == "resting" else None).next_data is None
    if how == "resting":
        assert beat(fleet, claim).next_data is not None


def test_a_receiver_that_began_anew_names_it_again_to_who_did_not_hear(fleet: Receiver) -> None:
    fleet.plan(*(a_job(f"job-{n}", dataset=A) for n in range(3)))
    claim = fleet.granted("pi")
    named = beat(fleet, claim).next_data
    fleet.restart()
    assert beat(fleet, claim, named).next_data is None
    assert beat(fleet, claim).next_data == named


def test_people_see_what_is_fetched_ahead_while_it_is(fleet: Receiver) -> None:
    fleet.plan(*(a_job(f"job-{n}", dataset=A) for n in range(3)), dataset_jobs={A: ("windows", 3)})
    claim = fleet.granted("pi")
    named = beat(fleet, claim).next_data

    def told() -> str | None:
        (worker,) = fleet.views.workers().workers
        return worker.fetches_ahead

    assert told() is None
    beat(fleet, claim, named, fetching=True)
    assert told() == "windows"
    out = io.StringIO()
    Console(file=out, width=200).print(render_workers(msgspec.to_builtins(fleet.views.workers())))
    assert "fetches windows ahead" in out.getvalue()
    beat(fleet, claim, named)
    assert told() is None
    beat(fleet, claim, named, fetching=True)
    fleet.deliver(claim, name="job-0")
    assert told() is None, "without a job it sends no heartbeats"


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_heartbeat_looks_at_no_more_rows_for_a_longer_queue(
    fleet: Receiver, monkeypatch: pytest.MonkeyPatch, hosts: int
) -> None:
    asked: Counter[str] = Counter()
    costs = []
    for count in (10, 400):
        fleet.plan(*(a_job(f"{count}-{n}", dataset=A, priority=count, seed=n) for n in range(count)))
        for host in ("desktop", "laptop")[: hosts - 1]:
            fleet.granted(host, slot=count)
        claim = fleet.granted("pi", slot=count)
        db = fleet.queue.db
        for call in ("one", "all", "run"):
            real = getattr(db, call)

            def counting(name: str, *, real: Any = real, **values: Any) -> Any:
                asked[name] += 1
                return real(name, **values)

            monkeypatch.setattr(db, call, counting)
        asked.clear()
        beat(fleet, claim)
        costs.append(asked.total())
        monkeypatch.undo()
    assert costs[0] == costs[1]

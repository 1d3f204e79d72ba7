"""Forecasts of a queue: who takes part, what is left out and why, and other hosts or another plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from builders import a_job
from fakes import Counting, FakeClock, FakeShelf
from service_running import refused

from training.fleet.queue.jobs import Claimant, GrantedJob, JobQueue
from training.fleet.scheduling.job import AMOUNTS, Host
from training.fleet.scheduling.policy import NOBODY_ELSE
from training.fleet.service.forecasts import Forecasts
from training.fleet.service.hosts import Plan
from training.fleet.service.service import Service
from training.fleet.wire.constants import ProblemType
from training.fleet.wire.forecasts import ForecastReply, ForecastRequest, ImaginedHost

CAN = {"cpu_cores": 1, "ram_available_gib": 16.0, "ram_total_gib": 16.0}


class Fleet:
    def __init__(self, *jobs: dict[str, Any], plan: Plan | None = None) -> None:
        self.clock = FakeClock()
        self.queue = JobQueue(":memory:", clock=self.clock, new_claim_id=Counting())
        self.jobs, self.plan = list(jobs), plan or Plan()
        self.start()

    def start(self) -> None:
        """As after a restart, which reads the hosts that are on record."""
        self.service = Service(self.queue, FakeShelf())
        self.service.reload(self.jobs, self.plan)
        self.forecasts = Forecasts(self.service, self.queue.db)

    def hear(self, *hosts: str, **can: Any) -> None:
        with self.queue.db.transaction():
            for host in hosts:
                self.queue.note_host(host, CAN | can, Claimant())
        self.start()

    def claim(self, host: str) -> GrantedJob:
        with self.queue.db.transaction():
            granted = self.queue.grant(Host.of(host, CAN), Claimant(), NOBODY_ELSE)
        assert isinstance(granted, GrantedJob)
        return granted

    def train(self, host: str, seconds: float) -> None:
        granted = self.claim(host)
        self.queue.accept(granted.job, granted.attempt, "a" * 64, {"train_s": seconds})

    def ask(self, **question: Any) -> ForecastReply:
        return self.forecasts.answer(ForecastRequest(**question))


def jobs(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [a_job(f"j{n}", seed=n, **fields) for n in range(count)]


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    """Two hosts of which one is ten times as fast, as both have shown; six jobs wait."""
    made = Fleet(*jobs(10))
    made.hear("desk", "pi")
    for _ in range(2):
        made.train("desk", 10.0)
        made.train("pi", 100.0)
    made.start()
    yield made
    made.queue.close()


def test_every_job_that_waits_has_its_host_and_its_time(fleet: Fleet) -> None:
    said = fleet.ask()
    assert (said.count, len(said.jobs), said.nowhere, said.learned_from) == (6, 6, {}, 4)
    assert {job.host for job in said.jobs} == {"desk"}
    assert said.done_at is not None
    assert said.done_low_at is not None
    assert said.done_high_at is not None
    assert said.done_low_at < said.done_at < said.done_high_at
    assert 40 < said.done_at - said.now < 90
    pi = next(host for host in said.hosts if host.host == "pi")
    assert pi.declined is not None
    assert (pi.jobs, pi.declined.by) == (0, "desk")
    assert said.now < pi.declined.ends_at < pi.declined.here_until


def test_what_is_trained_now_has_its_place(fleet: Fleet) -> None:
    granted = fleet.claim("desk")
    fleet.clock.advance(4)
    said = fleet.ask()
    (live,) = [job for job in said.jobs if job.live]
    assert (live.job_id, live.host, live.begins_at) == (granted.job.job_id, "desk", said.now - 4)
    assert said.count == 6
    assert min(job.begins_at for job in said.jobs if not job.live and job.host == "desk") >= live.ends_at


def test_without_a_host_the_others_do_its_work(fleet: Fleet) -> None:
    fleet.claim("desk")
    said = fleet.ask(without=["DESK"])
    assert {job.host for job in said.jobs} == {"pi"}
    assert said.count == 6, "also the job that it trains"
    assert [host.note for host in said.hosts if host.host == "desk"] == ["left out"]
    assert "nobody" in refused(ProblemType.UNKNOWN_NAME, lambda: fleet.ask(without=["nobody"]))
    assert set(fleet.ask(without=["desk", "pi"]).nowhere.values()) == {"every host is left out"}


def test_an_imagined_host_takes_its_part(fleet: Fleet) -> None:
    here, more = fleet.ask(), fleet.ask(imagined={"desk2": ImaginedHost(like="desk")})
    assert more.done_at is not None
    assert here.done_at is not None
    assert more.done_at < here.done_at
    assert {host.host for host in more.hosts if host.imagined} == {"desk2"}
    assert "there already" in refused(ProblemType.BAD_REQUEST, lambda: fleet.ask(imagined={"pi": ImaginedHost()}))
    like = {"new": ImaginedHost(like="nobody")}
    assert "nobody" in refused(ProblemType.UNKNOWN_NAME, lambda: fleet.ask(imagined=like))


@pytest.mark.parametrize("amount", AMOUNTS)
def test_an_imagined_host_has_enough_of_every_amount(amount: str) -> None:
    fleet = Fleet(*jobs(2, **{amount: 1}))
    assert fleet.ask(imagined={"new": ImaginedHost()}).count == 2
    fleet.queue.close()


def test_an_imagined_host_is_as_fast_as_the_one_that_it_is_like(fleet: Fleet) -> None:
    done = {}
    for like in ("desk", "pi"):
        said = fleet.ask(without=["desk", "pi"], imagined={"new": ImaginedHost(like=like)})
        assert said.done_at is not None
        done[like] = said.done_at - said.now
    assert done["pi"] > 5 * done["desk"]


def test_a_job_that_fits_nowhere_says_why_until_such_a_host_is_imagined() -> None:
    fleet = Fleet(*jobs(2, require_cuda=True, min_vram_gib=20.0))
    fleet.hear("desk")
    said = fleet.ask()
    assert (said.count, said.done_at) == (0, None)
    assert "no CUDA device" in said.nowhere["j0"]
    assert fleet.ask(imagined={"new": ImaginedHost(vram_gib=24.0)}).count == 2
    assert fleet.ask(imagined={"new": ImaginedHost(vram_gib=12.0)}).count == 0
    assert fleet.ask(imagined={"new": ImaginedHost(like="desk", vram_gib=24.0, cores=1)}).count == 2
    fleet.queue.close()


def test_held_jobs_and_silent_hosts_are_left_out(fleet: Fleet) -> None:
    fleet.service.hold(fleet.ask().jobs[0].job_id)
    said = fleet.ask()
    assert (said.held, said.count) == (1, 5)
    fleet.clock.advance(3600)
    said = fleet.ask()
    assert said.count == 0
    assert [host.note for host in said.hosts] == ["not seen for 1 h 00 min"] * 2
    assert "waits for desk, not seen for" in next(iter(said.nowhere.values()))


def test_an_answer_is_kept_for_a_moment_only(fleet: Fleet) -> None:
    first = fleet.forecasts.now()
    fleet.clock.advance(8)
    assert fleet.forecasts.now() is first
    fleet.clock.advance(8)
    assert fleet.forecasts.now() is not first


@pytest.mark.parametrize("edit", ["reload", "cancel", "hold"])
def test_an_answer_of_before_an_edit_is_not_kept(fleet: Fleet, edit: str) -> None:
    first = fleet.forecasts.now()
    if edit == "reload":
        fleet.service.reload(fleet.jobs, Plan())
    else:
        getattr(fleet.service, edit)(first.jobs[0].job_id)
    second = fleet.forecasts.now()
    assert second is not first
    assert fleet.forecasts.now() is second


def test_so_many_kinds_are_told_apart_by_their_model_alone() -> None:
    many = Fleet(*(a_job(f"j{n}", hyper={"depth": 1.01**n, "n": n}) for n in range(400)))
    many.hear("desk", "pi")
    assert many.ask().count == 400
    many.queue.close()


def test_of_too_many_jobs_the_most_urgent_are_foretold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.fleet.service.forecasts.ASKED_MOST", 3)
    fleet = Fleet(*(a_job(f"j{n}", priority=n % 5) for n in range(4)))
    fleet.hear("desk")
    said = fleet.ask()
    assert ({job.name for job in said.jobs}, said.left_out) == ({"j3", "j2", "j1"}, 1)
    fleet.queue.close()


def test_a_forecast_that_costs_much_is_made_seldom(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Forecasts.answer

    def slow(self: Forecasts, request: ForecastRequest) -> ForecastReply:
        fleet.clock.advance(3)
        return answer(self, request)

    monkeypatch.setattr(Forecasts, "answer", slow)
    first = fleet.forecasts.now()
    fleet.claim("desk")
    fleet.clock.advance(300)
    assert fleet.forecasts.now() is first
    fleet.clock.advance(200)
    assert fleet.forecasts.now() is not first

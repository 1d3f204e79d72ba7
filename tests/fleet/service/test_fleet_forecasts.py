"""Forecasts of a queue: who takes part, what is left out and why, and other hosts or another plan."""

from __future__ import annotations

import pytest
from builders import a_job
from service_running import CAN, Receiver, refused

from training.fleet.queue.jobs import Claimant
from training.fleet.scheduling.job import AMOUNTS
from training.fleet.service.forecasts import Forecasts
from training.fleet.service.hosts import Plan
from training.fleet.service.service import Service
from training.fleet.wire.constants import ProblemType
from training.fleet.wire.forecasts import ForecastRequest, ImaginedHost

ONE_CORE = CAN | {"cpu_cores": 1}


class Fleet(Receiver):
    def __init__(self, *jobs):
        super().__init__()
        self.jobs = jobs
        self.start()

    def start(self):
        """As after a restart, which reads the hosts that are on record."""
        self.service = Service(self.queue, self.dataset_store)
        self.plan(*self.jobs)
        self.forecasts = Forecasts(self.service, self.queue.db)

    def hear(self, *hosts, **can):
        with self.queue.db.transaction():
            for host in hosts:
                self.queue.hosts.note(host, ONE_CORE | can, Claimant())
        self.start()

    def bare_grant(self, host, can=ONE_CORE):
        return super().bare_grant(host, ONE_CORE)

    def foretell(self, **question):
        return self.forecasts.answer(ForecastRequest(**question))


def jobs(count, **fields):
    return [a_job(f"j{n}", seed=n, **fields) for n in range(count)]


@pytest.fixture
def fleet():
    """Two hosts of which one is ten times as fast, as both have shown; six jobs wait."""
    made = Fleet(*jobs(10))
    made.hear("desk", "pi")
    for _ in range(2):
        made.train("desk", {"train_s": 10.0})
        made.train("pi", {"train_s": 100.0})
    made.start()
    yield made
    made.queue.close()


def test_every_job_that_waits_has_its_host_and_its_time(fleet):
    said = fleet.foretell()
    assert (said.count, len(said.jobs), said.nowhere, said.learned_from) == (6, 6, {}, 4)
    assert {job.host for job in said.jobs} == {"desk"}
    assert said.done_low_at < said.done_at < said.done_high_at
    assert 40 < said.done_at - said.now < 90
    pi = next(host for host in said.hosts if host.host == "pi")
    assert (pi.jobs, pi.declined.by) == (0, "desk")
    assert said.now < pi.declined.ends_at < pi.declined.here_until


def test_what_is_trained_now_has_its_place(fleet):
    granted = fleet.bare_grant("desk")
    fleet.clock.advance(4)
    said = fleet.foretell()
    (live,) = [job for job in said.jobs if job.live]
    assert (live.job_id, live.host, live.begins_at) == (granted.job.job_id, "desk", said.now - 4)
    assert said.count == 6
    assert min(job.begins_at for job in said.jobs if not job.live and job.host == "desk") >= live.ends_at


def test_without_a_host_the_others_do_its_work(fleet):
    fleet.bare_grant("desk")
    said = fleet.foretell(without=["DESK"])
    assert {job.host for job in said.jobs} == {"pi"}
    assert said.count == 6, "also the job that it trains"
    assert [host.note for host in said.hosts if host.host == "desk"] == ["left out"]
    assert "nobody" in refused(ProblemType.UNKNOWN_NAME, fleet.foretell, without=["nobody"])
    assert set(fleet.foretell(without=["desk", "pi"]).nowhere.values()) == {"every host is left out"}


def test_an_imagined_host_takes_its_part(fleet):
    here, more = fleet.foretell(), fleet.foretell(imagined={"desk2": ImaginedHost(like="desk")})
    assert more.done_at < here.done_at
    assert {host.host for host in more.hosts if host.imagined} == {"desk2"}
    assert "there already" in refused(ProblemType.BAD_REQUEST, fleet.foretell, imagined={"pi": ImaginedHost()})
    like = {"new": ImaginedHost(like="nobody")}
    assert "nobody" in refused(ProblemType.UNKNOWN_NAME, fleet.foretell, imagined=like)


@pytest.mark.parametrize("amount", AMOUNTS)
def test_an_imagined_host_has_enough_of_every_amount(amount):
    fleet = Fleet(*jobs(2, **{amount: 1}))
    assert fleet.foretell(imagined={"new": ImaginedHost()}).count == 2
    fleet.queue.close()


def test_an_imagined_host_is_as_fast_as_the_one_that_it_is_like(fleet):
    done = {}
    for like in ("desk", "pi"):
        said = fleet.foretell(without=["desk", "pi"], imagined={"new": ImaginedHost(like=like)})
        done[like] = said.done_at - said.now
    assert done["pi"] > 5 * done["desk"]


def test_a_job_that_fits_nowhere_says_why_until_such_a_host_is_imagined():
    fleet = Fleet(*jobs(2, require_cuda=True, min_vram_gib=20.0))
    fleet.hear("desk")
    said = fleet.foretell()
    assert (said.count, said.done_at) == (0, None)
    assert said.nowhere["j0"] == "needs a GPU, and no host has one"
    assert fleet.foretell(imagined={"new": ImaginedHost(vram_gib=24.0)}).count == 2
    assert fleet.foretell(imagined={"new": ImaginedHost(vram_gib=12.0)}).count == 0
    assert fleet.foretell(imagined={"new": ImaginedHost(like="desk", vram_gib=24.0, cores=1)}).count == 2
    fleet.queue.close()


def test_held_jobs_and_silent_hosts_are_left_out(fleet):
    fleet.service.hold(fleet.foretell().jobs[0].job_id)
    said = fleet.foretell()
    assert (said.held, said.count) == (1, 5)
    fleet.clock.advance(3600)
    said = fleet.foretell()
    assert said.count == 0
    assert [host.note for host in said.hosts] == ["not seen for 1 h 00 min"] * 2
    assert "waits for desk, not seen for" in next(iter(said.nowhere.values()))


def test_an_answer_is_kept_for_a_moment_only(fleet):
    first = fleet.forecasts.now()
    fleet.clock.advance(8)
    assert fleet.forecasts.now() is first
    fleet.clock.advance(8)
    assert fleet.forecasts.now() is not first


@pytest.mark.parametrize("edit", ["reload", "cancel", "hold"])
def test_an_answer_of_before_an_edit_is_not_kept(fleet, edit):
    first = fleet.forecasts.now()
    if edit == "reload":
        fleet.service.reload(fleet.jobs, Plan())
    else:
        getattr(fleet.service, edit)(first.jobs[0].job_id)
    second = fleet.forecasts.now()
    assert second is not first
    assert fleet.forecasts.now() is second


def test_so_many_kinds_are_told_apart_by_their_model_alone():
    many = Fleet(*(a_job(f"j{n}", hyper={"depth": 1.01**n, "n": n}) for n in range(400)))
    many.hear("desk", "pi")
    assert many.foretell().count == 400
    many.queue.close()


def test_of_too_many_jobs_the_most_urgent_are_foretold(monkeypatch):
    monkeypatch.setattr("training.fleet.service.forecasts.ASKED_MOST", 3)
    fleet = Fleet(*(a_job(f"j{n}", priority=n % 5) for n in range(4)))
    fleet.hear("desk")
    said = fleet.foretell()
    assert ({job.name for job in said.jobs}, said.left_out) == ({"j3", "j2", "j1"}, 1)
    fleet.queue.close()


def test_a_forecast_that_costs_much_is_made_seldom(fleet, monkeypatch):
    answer = Forecasts.answer

    def slow(self, request):
        fleet.clock.advance(3)
        return answer(self, request)

    monkeypatch.setattr(Forecasts, "answer", slow)
    first = fleet.forecasts.now()
    fleet.bare_grant("desk")
    fleet.clock.advance(300)
    assert fleet.forecasts.now() is first
    fleet.clock.advance(200)
    assert fleet.forecasts.now() is not first

"""Sick hosts, jobs that crash hosts, memory that runs out: the rules, and what service and queue make of them."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest
from builders import (
    a_beat,
    a_capability,
    a_completion,
    a_failure,
    a_gpu_host,
    a_host,
    a_job,
    a_row,
    a_worker_claim,
    an_attempt,
    needs,
)
from hypothesis import given
from hypothesis import strategies as st
from service_running import Receiver

from training.fleet.queue.unavailable import quarantines
from training.fleet.scheduling import quarantine
from training.fleet.scheduling.job import EndReason, FailedBy, JobStatus
from training.fleet.scheduling.orders import OrderKind
from training.fleet.scheduling.policy import Policy, fits
from training.fleet.scheduling.quarantine import Cause, Death, Weight, assess, sick, suspect_job
from training.fleet.service.forecasts import Forecasts
from training.fleet.wire.constants import ProblemType, Refusal
from training.fleet.wire.forecasts import ForecastRequest
from training.printable import clock_time

R = EndReason
POLICY = Policy()
NOW = 5_000.0


# ── the rules ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("reason", "lived_s", "memory", "weight"),
    [
        (R.COMPLETED, 1.0, None, Weight.WELL),
        (R.SPAWN_FAILED, 0.0, None, Weight.AGAINST),
        (R.SPAWN_FAILED, 999.0, None, Weight.WELL),  # its launcher died over it
        (R.TRAINER_FAILED, 59.9, None, Weight.AGAINST),
        (R.TRAINER_FAILED, 60.0, None, Weight.WELL),
        (R.TRAINER_FAILED, 1.0, "ram", Weight.NOTHING),
        (R.INTERRUPTED, 1.0, None, Weight.NOTHING),
        (R.WORKER_SHUTDOWN, 1.0, None, Weight.NOTHING),
        (R.WORKER_SHUTDOWN, 3600.0, None, Weight.WELL),
        (R.UPLOAD_FAILED, 1.0, None, Weight.NOTHING),
        (R.UPLOAD_FAILED, 3600.0, None, Weight.WELL),
        (R.HOST_LOST, 1.0, None, Weight.NOTHING),
        (R.HOST_LOST, 3600.0, None, Weight.NOTHING),
    ],
)
def test_what_an_end_says_of_its_host(reason, lived_s, memory, weight):
    assert assess(an_attempt(end_reason=reason, lived_s=lived_s, out_of_memory=memory), POLICY) is weight


def a_death(job, reason=R.TRAINER_FAILED, *, before=False):
    return Death(job, f"name-{job}", 1, reason, "it broke\nmore", before)


def test_three_different_jobs_in_a_row_speak_against_the_host():
    assert sick([a_death("a"), a_death("b")], POLICY) is None
    assert sick([a_death("a"), a_death("b"), a_death("a"), a_death("b")], POLICY) is None
    said = sick([a_death("a"), a_death("b"), a_death("c")], POLICY) or ""
    assert "3 different jobs in a row died within 60 s" in said
    assert said.endswith("the last was name-c: it broke")


def test_a_job_is_believed_once():
    row = [a_death("a", before=True), a_death("b"), a_death("c")]
    assert sick(row, POLICY) is None
    assert sick([*row, a_death("d")], POLICY) is not None


def test_three_trainers_that_cannot_be_started_are_enough_whosever_they_are():
    spawn = a_death("a", R.SPAWN_FAILED, before=True)
    assert quarantine.sick([spawn, spawn], POLICY) is None
    assert "could not be started" in (quarantine.sick([spawn, spawn, spawn], POLICY) or "")
    assert quarantine.sick([spawn, spawn, a_death("b"), spawn], POLICY) is None


def test_the_rule_can_be_switched_off():
    assert sick([a_death(name, R.SPAWN_FAILED) for name in "abcdef"], Policy(odd_deaths=0)) is None


endings = st.tuples(st.sampled_from([R.TRAINER_FAILED, R.SPAWN_FAILED]), st.integers(1, 9))


@given(
    died=st.lists(endings, min_size=1, max_size=4),
    other_failures=st.integers(0, 4),
    other_losses=st.integers(0, 4),
    last_died=st.booleans(),
)
def test_a_pardon_gives_back_what_was_paid_and_no_more(died, other_failures, other_losses, last_died):
    attempts = [an_attempt(claim_id=str(n), attempt=n + 1, end_reason=reason) for n, (reason, _) in enumerate(died)]
    failures = sum(reason is R.TRAINER_FAILED for reason, _ in died)
    job = a_row(
        JobStatus.FAILED,
        trainer_failures=other_failures + failures,
        host_losses=other_losses + len(died) - failures,
        failed_by=FailedBy.REFUSAL,
    )
    refusal = an_attempt(claim_id="other", attempt=99, end_reason=R.TRAINER_FAILED, exit_code=65)
    ends = [replace(each, pardoned=True) for each in attempts] + [refusal] * (not last_died)
    given_back = quarantine.refund(job, attempts, ends, POLICY)
    assert (given_back.trainer_failures, given_back.host_losses) == (other_failures, other_losses)
    used_up = other_failures >= POLICY.max_attempts or other_losses >= POLICY.max_host_losses
    assert given_back.waits == (last_died and not used_up)


@pytest.mark.parametrize(
    ("said", "avoided"), [(FailedBy.FAILURES, None), (FailedBy.LOSSES, None), (FailedBy.REFUSAL, "pi")]
)
def test_a_job_whose_budget_or_word_is_taken_back_waits_again_though_it_failed_elsewhere(said, avoided):
    died = [an_attempt(end_reason=R.TRAINER_FAILED)]
    elsewhere = an_attempt(claim_id="other", attempt=3, end_reason=R.TRAINER_FAILED)
    job = a_row(JobStatus.FAILED, trainer_failures=3, failed_by=said, avoid_host=avoided)
    assert quarantine.refund(job, died, [elsewhere], POLICY).waits
    granted = replace(job, grants=200)
    assert not quarantine.refund(granted, died, [elsewhere], POLICY).waits, "max_grants stands"


def a_loss(host, *, crashed=True, lived_s=10.0, **facts):
    known = {"end_reason": R.HOST_LOST, "ended_at": NOW, "lived_s": lived_s, "crashed": crashed}
    return an_attempt(host=host, **{**known, **facts})


@pytest.mark.parametrize(
    ("attempts", "suspect"),
    [
        ([a_loss("pi"), a_loss("desktop")], True),
        ([a_loss("pi"), a_loss("pi")], False),
        ([a_loss("pi"), a_loss("desktop", crashed=False)], False),
        ([a_loss("pi"), a_loss("desktop", lived_s=301.0)], False),
        ([a_loss("pi"), a_loss("desktop", lived_s=-86_000.0)], False),
        ([a_loss("pi"), a_loss("desktop", end_reason=R.WORKER_SHUTDOWN)], False),
        ([a_loss("pi"), a_loss("desktop", end_reason=R.INTERRUPTED)], False),
    ],
)
def test_two_hosts_that_crashed_make_a_suspect(attempts, suspect):
    said = suspect_job(attempts, {"pi": NOW + 1, "desktop": NOW + 1}, NOW + 60, POLICY)
    assert (said is not None) == suspect
    if said is not None:
        assert said.startswith("suspect_job: pi and desktop crashed within 5 minutes")


def test_a_host_that_never_came_back_is_not_said_to_sleep_for_ever():
    attempts = [a_loss("pi", crashed=False), a_loss("desktop")]
    week = 7 * 86_400.0
    silent, heard = {"pi": NOW - 60}, {"pi": NOW + 60}
    assert suspect_job(attempts, silent, NOW + week, POLICY) is None
    assert suspect_job(attempts, silent, NOW + week + 1, POLICY) is not None
    assert suspect_job(attempts, heard, NOW + week + 1, POLICY) is None
    beside = suspect_job(attempts, silent, NOW + week + 1, POLICY, lambda each: each.host == "pi")
    assert beside is None, "of several that it trained nobody knows which did it"


def test_out_of_memory_wants_a_host_that_has_more_in_all():
    there = a_host("pi", ram_total_gib=8.0)
    wants = quarantine.wants_more(needs(), "ram", there)
    assert "ran out of memory with 8.0 GiB in all, and here are 8.0" in (fits(wants, there) or "")
    assert fits(wants, a_host("desktop", ram_total_gib=8.1)) is None
    small = a_gpu_host("laptop", vram_total_gib=6.0, ram_total_gib=64.0)
    wants = quarantine.wants_more(wants, "vram", small)
    assert wants.ram_above_gib == 8.0, "what was learned before stays"
    assert "GPU memory" in (fits(wants, small) or "")
    assert "no CUDA device" in (fits(wants, a_host("big", ram_total_gib=512.0)) or "")
    assert fits(wants, a_gpu_host(vram_total_gib=24.0, ram_total_gib=32.0)) is None
    hidden = quarantine.wants_more(needs(), "vram", there)
    assert "no CUDA device" in (fits(hidden, there) or ""), "the trainer found a GPU that none knew of"
    assert fits(hidden, small) is None


def test_a_job_that_no_known_host_can_hold_says_so():
    there = a_host("pi", ram_total_gib=8.0)
    wants = quarantine.wants_more(needs(), "ram", there)
    said = quarantine.hopeless(wants, "ram", there, [there]) or ""
    assert said.startswith("out_of_memory: it ran out of memory on pi (8.0 GiB in all)")
    larger = a_host("desktop", ram_total_gib=16.0, ram_available_gib=0.1)
    assert quarantine.hopeless(wants, "ram", there, [there, larger]) is None, "what is free may change"
    refusing = a_host("desktop", ram_total_gib=16.0, deny_jobs=frozenset({"gbt"}))
    assert quarantine.hopeless(wants, "ram", there, [there, refusing]) is not None
    cores = replace(wants, min_cores=larger.cores + 1)
    assert quarantine.hopeless(cores, "ram", there, [there, larger]) is not None, "and no host's cores grow"


# ── through the service ─────────────────────────────────────────────────────────────────────


class Fleet(Receiver):
    """A receiver's service with named jobs and hosts that ask one after the other."""

    def __init__(self, *jobs, path=":memory:", hosts=(), **policy):
        super().__init__(path=path, policy=Policy(**policy))
        for host in hosts:
            assert self.ask(host).job_id is None, "they are known before there are jobs"
        self.plan(*(a_job(name, seed=n) for n, name in enumerate(jobs or ("one", "two", "three", "four"))))

    def ask(self, host="pi", **fields):
        return self.claim(a_worker_claim(host, **fields))

    def lose(self, host="pi", reason=R.HOST_LOST):
        """The host takes a job, which ends without its word; returns the claim."""
        claim = self.granted(host)
        attempt = self.queue.attempts.by_claim(claim)
        self.queue.quarantines.assess(self.queue.settle(self.queue.get(attempt.job_id), attempt, reason))
        return claim

    def die(self, host="pi", after_s=0.0, **fields):
        """The host takes a job, which fails there, by default at once; returns its name."""
        reply = self.ask(host)
        assert reply.job_id is not None, reply.reason
        self.clock.advance(after_s)
        self.service.fail(reply.job_id, a_failure(reply.claim_id, host_id=host, **fields))
        return reply.job_id.removeprefix("id-")

    def fall_sick(self, host="pi", **fields):
        died = [self.die(host, **fields) for _ in range(3)]
        assert host in self.out()
        return died

    def out(self):
        return quarantines(self.queue.db)


@pytest.fixture
def fleet():
    with closing(Fleet()) as made:
        yield made


@pytest.fixture
def single():
    """Of one job."""
    with closing(Fleet("one")) as made:
        yield made


@pytest.mark.parametrize("end", [{"exit_code": 1}, {"exit_code": 137}, {"reason": "spawn_failed"}])
def test_a_sick_host_gets_no_more_jobs_and_nobody_pays(fleet, end):
    for name in fleet.fall_sick(**end):
        job = fleet.job(name)
        assert (job.status, job.trainer_failures, job.host_losses) == ("pending", 0, 0)
        assert job.claimable_at <= fleet.clock.now(), "and no back-off"
    for _ in range(2):
        answer = fleet.ask()
        assert answer.job_id is None
        assert "quarantined" in (answer.reason or "")
        assert "cis490-jobs release pi" in (answer.reason or "")
        fleet.clock.advance(86_400)
    assert fleet.ask("desktop").job_id is not None, "others go on"


@pytest.mark.parametrize("exit_code", [2, 65])
def test_a_plan_that_asks_for_what_is_not_in_the_data_takes_out_no_host(fleet, exit_code):
    """As where ``train_hosts`` names other machines than those that recorded."""
    for name in ("one", "two", "three"):
        assert fleet.die(exit_code=exit_code) == name
        assert fleet.job(name).status is JobStatus.FAILED
    assert fleet.out() == {}
    assert fleet.ask().job_id == "id-four"


@pytest.mark.parametrize("reason", ["interrupted", "worker_shutdown"])
def test_a_job_that_came_back_without_a_word_of_its_trainer_is_no_proof_that_the_host_is_sound(fleet, reason):
    """As when the answer to the claim was lost: nobody trained all the time until the next one."""
    for _ in range(2):
        fleet.die()
    reply = fleet.ask()
    fleet.clock.advance(500)
    fleet.service.fail(reply.job_id, a_failure(reply.claim_id, reason=reason, exit_code=None))
    assert fleet.out() == {}
    fleet.clock.advance(3600)  # those that came back may be had again
    fleet.die()
    assert "pi" in fleet.out()


def test_a_plan_s_fault_between_deaths_neither_counts_nor_breaks_the_row(fleet):
    fleet.die()
    fleet.die(exit_code=65)
    fleet.die()
    assert fleet.out() == {}
    fleet.die()
    assert "3 different jobs" in fleet.out()["pi"].reason


def test_a_job_failed_by_sick_hosts_alone_waits_again():
    fleet = Fleet(max_attempts=1)
    assert fleet.die() == "one"
    assert fleet.job("one").status is JobStatus.FAILED
    fleet.die()
    fleet.die()
    job = fleet.job("one")
    assert (job.status, job.ended_by, job.finished_at) == (JobStatus.PENDING, None, None)
    events = fleet.queue.db.all("events_of_job", job_id="id-one")
    assert (events[-1]["transition"], events[-1]["from_status"]) == ("pardon", "failed")


def test_what_works_between_breaks_the_row():
    fleet = Fleet()
    fleet.die()
    fleet.die()
    reply = fleet.ask()
    fleet.dataset_store.put("a" * 64, model="gbt", mode="realistic")
    ticket = fleet.service.upload_permission(reply.job_id, reply.claim_id, "pi")
    fleet.service.upload_done(ticket, "a" * 64, 1)
    fleet.service.complete(reply.job_id, a_completion(reply.claim_id))
    fleet.die()
    assert fleet.out() == {}


def test_a_run_that_lasted_breaks_the_row_by_the_workers_own_word(fleet):
    fleet.die()
    fleet.die()
    fleet.die(after_s=62.0, record={"train_s": 61.0})
    fleet.die()
    assert fleet.out() == {}


@pytest.mark.parametrize(
    ("told", "why"), [({"record": {"train_s": 2.0}}, ""), ({"reason": "spawn_failed"}, "could not be started")]
)
def test_a_report_that_comes_late_still_tells_of_a_death_at_once(fleet, told, why):
    for _ in range(3):
        reply = fleet.ask()
        fleet.clock.advance(500)
        fleet.service.fail(reply.job_id, a_failure(reply.claim_id, **told))
    assert why in fleet.out()["pi"].reason


def test_what_it_still_holds_is_forgiven_too(fleet):
    held = fleet.ask(slot=1)
    fleet.fall_sick()
    fleet.service.fail(held.job_id, a_failure(held.claim_id))
    job = fleet.queue.get(held.job_id)
    assert (job.status, job.trainer_failures) == (JobStatus.PENDING, 0)


def test_what_died_before_is_given_back_and_the_last_word_stands(fleet):
    """Of several attempts the last one decided: that an earlier one is forgiven does not bring the job back."""
    fleet.plan(a_job("one"))
    for name in ("two", "three", "four"):
        fleet.service.cancel(name)
    died = fleet.lose()
    fleet.clock.advance(86_400)
    fleet.service.fail("id-one", a_failure(fleet.ask("desk").claim_id, host_id="desk", exit_code=65))
    fleet.queue.quarantines.refund([died])
    assert fleet.job("one").status == "failed"


def test_a_loss_is_given_back_once(fleet):
    claims = [fleet.lose() for _ in range(3)]
    for _ in range(2):
        fleet.queue.quarantines.refund(2 * claims[:1])
        assert fleet.job("one").host_losses == 2


@pytest.mark.parametrize("comes_back", ["heard", "delivers"])
def test_a_pardoned_loss_that_comes_back_gives_nothing_back_and_may_be_lost_again(comes_back):
    see_a_pardoned_loss_come_back(comes_back)


def see_a_pardoned_loss_come_back(comes_back="heard"):
    fleet = Fleet()
    claims = [fleet.lose() for _ in range(3)]
    fleet.queue.quarantines.refund(claims[-1:])
    last = fleet.queue.attempts.by_claim(claims[-1])
    assert last is not None
    if comes_back == "delivers":
        fleet.queue.moves.adopt(fleet.job("one"), last, "a" * 64)
    else:
        fleet.queue.moves.readopt(fleet.job("one"), last)
    assert fleet.job("one").host_losses == 2, "those of the others"
    again = fleet.queue.attempts.by_claim(claims[-1])
    assert not again.pardoned
    if comes_back == "heard":
        fleet.queue.settle(fleet.job("one"), again, R.HOST_LOST)
        assert fleet.job("one").host_losses == 3


def test_a_release_lets_it_in_and_is_on_record(fleet):
    fleet.fall_sick()
    assert "3 different jobs" in fleet.service.release("pi", "operator eve").reason
    assert fleet.ask().job_id is not None
    with pytest.raises(Refusal, match="not quarantined") as refused:
        fleet.service.release("pi", "operator eve")
    assert refused.value.problem_type is ProblemType.WRONG_STATE
    with pytest.raises(Refusal, match="no host is called") as refused:
        fleet.service.release("nobody", "operator eve")
    assert refused.value.problem_type is ProblemType.UNKNOWN_NAME
    rows = fleet.queue._conn.execute("SELECT * FROM quarantines").fetchall()
    assert [(row["host"], row["cause"], row["ended_by"]) for row in rows] == [("pi", "deaths", "operator eve")]


def test_after_its_release_the_same_jobs_die_on_their_own_account(fleet):
    """One host and broken jobs: they come to an end, with a word of the operator between."""
    died = fleet.fall_sick()
    fleet.service.release("pi", "operator")
    for _ in died:
        fleet.die(exit_code=65)  # on record as broken, whatever it was before
    assert [fleet.job(name).status for name in died] == [JobStatus.FAILED] * 3
    assert fleet.out() == {}


def test_broken_jobs_take_out_one_host_and_no_second(fleet):
    fleet.fall_sick("pi")
    for _ in range(3):
        fleet.die("desktop")
    assert set(fleet.out()) == {"pi"}


def test_a_quarantine_survives_a_restart(tmp_path):
    fleet = Fleet(path=tmp_path / "jobs.db")
    fleet.die()
    fleet.die()
    fleet.queue.close()
    fleet.begin()
    fleet.die()
    fleet.queue.close()
    fleet.begin()
    assert "quarantined" in (fleet.ask().reason or "")
    fleet.queue.close()


def test_a_host_that_complains_of_itself_is_let_in_when_it_is_well(fleet):
    answer = fleet.ask(capability=a_capability(healthy=False, unhealthy_because="only 12 MiB are free"))
    assert answer.reason == (
        "this host is quarantined: only 12 MiB are free; it is released automatically when that is fixed"
    )
    with pytest.raises(Refusal, match="released automatically") as refused:
        fleet.service.release("pi", "operator")
    assert refused.value.problem_type is ProblemType.WRONG_STATE
    assert fleet.ask(capability=a_capability(healthy=True)).job_id is not None
    assert fleet.out() == {}


def test_a_healthy_report_does_not_end_what_deaths_began(fleet):
    fleet.fall_sick()
    assert fleet.ask(capability=a_capability(healthy=True)).job_id is None


def test_a_sick_host_that_waits_holds_nobody_back(fleet):
    fleet.plan(a_job("one"), hosts={"pi": {"priority": 100}})
    fleet.ask("pi", capability=a_capability(healthy=False, unhealthy_because="no room"))
    fleet.service.host_registry.wait_begins("pi")
    assert fleet.ask("desktop").job_id is not None


def test_everybody_who_looks_is_told(fleet):
    fleet.fall_sick()
    views = fleet.views
    (worker,) = views.workers().workers
    assert "release pi" in (worker.quarantine or "")
    assert views.quarantined() == {"pi": worker.quarantine}
    verdict = views.explain("id-one").hosts[0]
    assert (verdict.fits, verdict.reason) == (False, worker.quarantine)
    assert all("release pi" in (job.obstacle or "") for job in views.jobs().jobs)


# ── what one host alone says ────────────────────────────────────────────────────────────────


def test_a_refusal_fails_a_job_when_a_second_host_refuses_it_too():
    for exit_code in (2, 65):
        fleet = Fleet("one", hosts=["desk", "laptop"])
        begun = fleet.clock.now()
        fleet.die("desk", exit_code=exit_code, error="no column `label`")
        until = clock_time(begun + 3600, begun)
        asked = f"refused by desk with exit {exit_code}; laptop is asked until {until}: no column `label`"
        (view,) = fleet.views.jobs().jobs
        assert (view.status, view.note, view.ended_by) == ("pending", asked, None)
        explained = fleet.views.explain("id-one")
        assert explained.summary == asked
        assert [each.wait_s for each in explained.hosts] == [3600.0, None]
        assert "another host goes first" in (fleet.ask("desk").reason or "")
        fleet.queue.quarantines.put("desk", Cause.SELF_TEST, "its disk is full")
        assert fleet.die("laptop", exit_code=exit_code) == "one"
        assert "desk" in fleet.out(), "its own word stands"
        job = fleet.job()
        assert (job.status, job.trainer_failures) == (JobStatus.FAILED, 2)
        assert f"exit code {exit_code}" in (job.ended_by or "")
        assert fleet.queue.db.all("deaths", host="desk") == fleet.queue.db.all("deaths", host="laptop") == []
        fleet.close()


def test_a_refusal_is_final_when_no_other_host_takes_the_job_in_time():
    for told, asked, said in (
        ({"exit_code": 65}, "refused by desk with exit 65", "trainer: exit code 65 (bad data) is never retried"),
        ({"exit_code": 137, "out_of_memory": "ram"}, "ran out of memory on desk", "out_of_memory: it ran out of mem"),
        (
            {"exit_code": 137, "out_of_memory": "vram"},
            "ran out of GPU memory on desk",
            "out_of_memory: it ran out of G",
        ),
    ):
        _is_final_in_time(told, asked, said)


def _is_final_in_time(told, asked, said):
    with closing(Fleet("one", hosts=["desk", "laptop"])) as fleet:
        fleet.watch(700)  # the receiver looked on for a lease
        until = clock_time(fleet.clock.now() + 3600, fleet.clock.now())
        fleet.die("desk", error="no data", **told)
        asked += f"; laptop (not seen for 12 min) is asked until {until}: no data"
        assert fleet.views.jobs().jobs[0].note == asked
        fleet.watch(3590)
        assert (fleet.status(), fleet.ask("desk").job_id) == ("pending", None)
        fleet.service.host_registry.heard("laptop", fleet.clock.now())
        fleet.watch(20)
        job = fleet.job()
        assert (job.status, job.error, job.avoid_host) == ("failed", "no data", None)
        assert job.ended_by.startswith(said)


@pytest.mark.parametrize("why", ["silent", "quarantined", "drained", "does not fit"])
def test_a_host_that_cannot_take_the_job_is_not_asked(why):
    with closing(Fleet(hosts=["laptop"])) as fleet:
        if why == "quarantined":
            fleet.fall_sick("laptop")
        if why == "drained":
            fleet.queue.orders.give("laptop", OrderKind.DRAIN, "eve")
        if why == "does not fit":
            fleet.plan(*(a_job(name, denied_hosts=["laptop"]) for name in ("one", "two", "three", "four")))
        fleet.clock.advance(3601 if why == "silent" else 60)
        assert {fleet.status(fleet.die("desk", exit_code=65)) for _ in range(4)} == {"failed"}
        assert "desk" not in fleet.out()


@pytest.mark.parametrize("between", [False, True])
def test_a_refusal_that_became_final_is_taken_back_with_its_hosts_quarantine(between):
    with closing(Fleet("one", hosts=["desk", "laptop"])) as fleet:
        fleet.watch(700)
        fleet.die("desk", exit_code=65)
        if between:
            fleet.die("laptop", reason="worker_shutdown")
        fleet.watch(3700)
        assert fleet.status() == "failed"
        fleet.plan(*(a_job(name, seed=n) for n, name in enumerate(("one", "two", "three"))))
        fleet.service.host_registry.heard("laptop", fleet.clock.now())
        for _ in range(2):
            fleet.die("desk", exit_code=65)
        assert "desk" in fleet.out()
        assert fleet.status() == "pending"


def test_a_host_that_says_of_each_job_that_it_is_broken_is_taken_out_and_none_fails():
    for lie in ({"exit_code": 2}, {"exit_code": 65}, {"exit_code": 1, "record": {"train_s": 500.0}}):
        fleet = Fleet(hosts=["good", "bad"], max_attempts=1)
        fleet.fall_sick("bad", **lie)
        assert {fleet.status(name) for name in ("one", "two", "three", "four")} == {"pending"}
        assert max(each.lived_s or 0.0 for each in fleet.queue.attempts.of_job("id-one")) == 0.0
        fleet.service.release("bad", "operator eve")
        assert fleet.queue.db.all("deaths", host="bad") == []
        assert fleet.die("good", exit_code=65) in ("one", "two", "three")
        fleet.close()


def test_a_mistake_of_the_plan_quarantines_no_host():
    """Ten jobs that no data fit; three honest hosts that ask in turn, or each as long as it may."""
    hosts, names = ("desk", "laptop", "pi"), [f"job-{n}" for n in range(10)]
    for at_a_time in (1, 10):
        fleet = Fleet(*names, hosts=hosts)
        for host in 30 * hosts:
            for reply in (fleet.ask(host) for _ in range(at_a_time)):
                if reply.job_id is not None:
                    fleet.service.fail(reply.job_id, a_failure(reply.claim_id, host_id=host, exit_code=65))
        assert [fleet.status(name) for name in names] == ["failed"] * 10
        assert fleet.out() == {}
        (ever,) = fleet.queue._conn.execute("SELECT count(*) FROM quarantines").fetchone()
        assert ever == 0 or at_a_time > 1
        fleet.close()


def test_a_second_host_that_hands_the_job_back_is_asked_again_until_it_has_trained_it():
    with closing(Fleet("one", hosts=["desk", "laptop"])) as fleet:
        fleet.die("desk", exit_code=65, error="no data")
        fleet.die("laptop", reason="worker_shutdown", error="its owner came", record={"train_s": 0.0})
        assert fleet.ask("desk").job_id is None
        assert "laptop is asked" in (fleet.views.jobs().jobs[0].note or "")
        lost = fleet.lose("laptop")
        assert fleet.ask("desk").job_id is None
        fleet.beat(lost)
        assert (fleet.status(), fleet.job().ended_by) == ("running", None)
        fleet.clock.advance(61)
        fleet.fail(lost, reason="worker_shutdown", record={"train_s": 61.0})
        assert fleet.die("desk", exit_code=65) == "one", "it can be trained, so that this host may try again"
        assert fleet.status() == "pending"


@pytest.mark.parametrize(
    ("end", "budget"),
    [
        ({"exit_code": 1}, "max_attempts"),
        ({"reason": "upload_failed", "exit_code": None}, "max_host_losses"),
        ({"reason": "worker_shutdown", "exit_code": None}, "max_grants"),
    ],
)
def test_a_budget_that_one_host_used_up_alone_fails_nothing_while_another_is_there(end, budget):
    with closing(Fleet("one", hosts=["desk", "laptop"], **{budget: 2})) as fleet:
        fleet.watch(700)
        for _ in range(2):
            fleet.clock.advance(200)
            fleet.die("desk", **end)
        assert fleet.status() == "pending"
        until = clock_time(fleet.clock.now() + 3600, fleet.clock.now())
        alone = f"({budget}) on desk alone; laptop"
        (view,) = fleet.views.asked()
        assert f"{alone} (not seen for 18 min) is asked until {until}: it broke" in (view.note or "")
        (group,) = fleet.views.waiting()
        assert (group.reason, group.count) == ("waits for laptop, not seen for 18 min", 1)
        asks = Forecasts(fleet.service, fleet.queue.db).answer
        told = asks(ForecastRequest())
        assert (told.count, told.nowhere) == (0, {"one": group.reason}), "desk does not get it"
        for _ in range(2):
            fleet.service.host_registry.heard("laptop", fleet.clock.now())
            assert f"{alone} is asked: it broke" in (fleet.views.asked()[0].note or "")
            assert [each.host for each in asks(ForecastRequest()).jobs] == ["laptop"]
            assert fleet.views.waiting()[0].reason is None
            fleet.watch(3000)
            assert (fleet.status(), fleet.ask("desk").job_id) == ("pending", None)
        fleet.watch(4000)  # the other one is gone
        assert budget in (fleet.job().ended_by or "")


# ── jobs that crash hosts ───────────────────────────────────────────────────────────────────


def crash(fleet, host, session, *, after_s=10.0):
    """The host takes the job, is heard once, crashes, and its worker begins anew and says so."""
    first = fleet.ask(host, session=session)
    fleet.clock.advance(after_s)
    fleet.service.heartbeat(first.job_id, a_beat(first.claim_id))
    fleet.clock.advance(30)
    assert first.claim_id is not None
    taken = fleet.ask(host, session=session + 1, crashed_claims=[first.claim_id])
    if taken.job_id is not None:  # hand it back: this is about the next host
        fleet.service.fail(taken.job_id, a_failure(taken.claim_id, reason="worker_shutdown"))


def test_a_job_that_crashed_two_hosts_is_tried_on_no_third(single):
    crash(single, "pi", 1)
    assert single.job("one").status is JobStatus.PENDING
    crash(single, "desktop", 1)
    job = single.job("one")
    assert job.status is JobStatus.FAILED
    assert (job.ended_by or "").startswith("suspect_job: pi and desktop crashed within 5 minutes")
    single.service.requeue("one")
    crash(single, "laptop", 1)
    assert single.job("one").status is JobStatus.PENDING, "a requeue forgets what was before"


def test_the_same_host_twice_or_late_or_without_a_word_is_no_suspicion(single):
    crash(single, "pi", 1)
    crash(single, "pi", 2)
    crash(single, "desktop", 1, after_s=301.0)
    assert single.ask("laptop", session=1).job_id is not None
    single.ask("laptop", session=2)  # began anew, and had nothing in hand when its session ended
    assert single.job("one").status is not JobStatus.FAILED


def test_a_crash_is_believed_of_ones_own_claims_only(single):
    first = single.ask("pi", session=1)
    single.ask("pi", session=2)  # lost
    single.ask("desktop", session=1, crashed_claims=[first.claim_id, "no-such-claim"])
    assert not single.queue.attempts.by_claim(first.claim_id).crashed


# ── memory ──────────────────────────────────────────────────────────────────────────────────


def test_out_of_memory_goes_only_where_there_is_more(single):
    small, large = a_capability(ram=8.0), a_capability(ram=64.0)
    assert single.ask("desktop", capability=large).job_id is not None
    single.service.cancel("one")
    single.service.requeue("one")
    reply = single.ask("pi", capability=small)
    single.service.fail(reply.job_id, a_failure(reply.claim_id, out_of_memory="ram", exit_code=137))
    assert single.job("one").status is JobStatus.PENDING
    single.clock.advance(300)
    assert "ran out of memory" in (single.ask("pi", capability=small).reason or "")
    verdicts = {each.host: each for each in single.views.explain("id-one").hosts}
    assert "ran out of memory with 8.0 GiB" in verdicts["pi"].reason
    assert verdicts["desktop"].reason == "ok"
    single.plan(a_job("one", priority=99))
    assert single.ask("pi", capability=small).job_id is None, "a reload does not forget it"
    taken = single.ask("desktop", session=2, capability=large)
    single.service.fail(taken.job_id, a_failure(taken.claim_id, out_of_memory="ram", exit_code=137))
    job = single.job("one")
    assert job.status is JobStatus.FAILED
    assert "no known host that may run it has more" in (job.ended_by or "")
    single.service.requeue("one")
    assert single.ask("pi", capability=small).job_id is not None, "the operator's word counts"
    assert [each.out_of_memory for each in single.queue.attempts.of_job("id-one")][1:3] == ["ram", "ram"]


@pytest.mark.parametrize("kind", ["ram", "vram"])
def test_one_hosts_word_of_memory_fails_nothing_while_another_host_is_there(single, kind):
    assert single.ask("desktop", capability=a_capability(ram=64.0)).job_id is not None
    single.service.requeue("one")
    reply = single.ask("pi", capability=a_capability(ram=1e6))
    single.service.fail(reply.job_id, a_failure(reply.claim_id, out_of_memory=kind, exit_code=137))
    job = single.job("one")
    assert (job.status, job.avoid_host) == (JobStatus.PENDING, "pi")
    taken = single.ask("desktop", session=2, capability=a_capability(ram=64.0))
    single.service.fail(taken.job_id, a_failure(taken.claim_id, error="x", out_of_memory="ram", exit_code=65))
    assert single.job("one").ram_above_gib == 0, "an exit code of bad data is no lack of memory"


@pytest.mark.parametrize("word", [None, "hunger", ""])
def test_a_word_for_memory_that_is_not_known_says_nothing(single, word):
    reply = single.ask()
    single.service.fail(reply.job_id, a_failure(reply.claim_id, out_of_memory=word))
    assert single.job("one").status is JobStatus.PENDING
    assert single.job("one").ram_above_gib == 0


# ── runs that are interrupted within moments ────────────────────────────────────────────────


def test_a_run_interrupted_within_moments_waits_a_moment_that_doubles(single):
    pauses = []
    for _ in range(8):
        single.die(reason="interrupted", record={"train_s": 1.0})
        pauses.append(single.job("one").avoid_until - single.clock.now())
        single.clock.advance(60)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    single.die(after_s=5.0, reason="interrupted", record={"train_s": 5.0})
    assert single.job("one").avoid_until is None, "it ran; the next failure counts from one again"
    single.die(reason="interrupted", record={"train_s": 1.0})
    assert single.job("one").avoid_until == single.clock.now() + 1


def test_a_worker_that_stops_hands_back_for_nothing(single):
    for _ in range(3):
        single.die(reason="worker_shutdown", record={"train_s": 0.1})
        assert single.job("one").claimable_at == single.clock.now()


# ── a look at the clocks whose commit is lost ───────────────────────────────────────────────


def test_a_step_of_the_clock_that_could_not_be_written_is_found_again(single):
    single.ask()
    seen = single.service.known_hosts()[0].last_seen
    single.clock.advance(10)
    single.service.tick()
    single.clock.step(-86_400)
    single.clock.advance(10)

    class CommitLost(Exception):  # noqa: N818
        pass

    def lost():
        with single.queue.db.transaction():
            single.service.tick()
            raise CommitLost

    with pytest.raises(CommitLost):
        lost()
    single.service.forget_look()
    assert single.service.known_hosts()[0].last_seen == seen
    single.clock.advance(10)
    single.service.tick()
    assert single.job("one").heartbeat_at == pytest.approx(seen - 86_400), "it moved along, once"
    assert single.service.known_hosts()[0].last_seen == pytest.approx(seen - 86_400)


def test_deaths_without_a_word_take_a_host_out_as_well(fleet):
    for _ in range(3):
        fleet.lose(reason=R.TRAINER_FAILED)
    assert "pi" in fleet.out()


def test_the_last_that_died_is_named(fleet):
    assert f"the last was {fleet.fall_sick()[-1]}" in fleet.out()["pi"].reason


def test_a_loss_that_was_given_back_does_not_speak_for_the_next_host(fleet):
    fleet.queue.quarantines.refund([fleet.lose()])
    assert "one" in fleet.fall_sick("desk")

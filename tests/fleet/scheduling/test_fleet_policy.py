"""The rules, as functions of plain values: who fits, who goes first, what an end means, when silence counts."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from builders import a_gpu_host, a_host, a_row, an_attempt, needs
from hypothesis import given
from hypothesis import strategies as st

from training.fleet.scheduling import policy
from training.fleet.scheduling.job import FAULT_OF, FINAL, EndReason, Fault, Host, JobStatus
from training.fleet.scheduling.policy import (
    NOBODY_ELSE,
    Fleet,
    Policy,
    SilenceWatch,
    backoff,
    fits,
    heard_s,
    hold,
    may_adopt,
    may_readopt,
    must_avoid,
    overran,
    rank,
    settle,
    unmet,
)

POLICY = Policy()
NOW = 5_000.0
DAY = 86_400.0


# ── who fits ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("wishes", "facts", "said"),
    [
        ({"require_cuda": True}, {}, "no CUDA device"),
        ({"require_cuda": True, "min_vram_gib": 8}, {"cuda": True, "vram_free_gib": 2.0}, "vram_free 2.0 < 8.0"),
        ({"min_ram_gib": 16}, {}, "ram_available 8.0 < 16.0"),
        ({"min_cores": 8}, {}, "cpu_cores 4 < 8"),
        ({"allowed_hosts": ["desktop"]}, {}, "the host is not in whitelist [desktop]"),
        ({"denied_hosts": ["pi"]}, {}, "denied_hosts"),
        ({}, {"allow_jobs": frozenset({"mlp", "cnn"})}, "the model is not in whitelist [cnn, mlp]"),
        ({}, {"deny_jobs": frozenset({"gbt"})}, "deny_jobs"),
        ({}, {"outdated": frozenset({"gbt"})}, "other flags"),
    ],
)
def test_a_misfit_says_what_stands_in_the_way(wishes, facts, said):
    assert said in (fits(needs(**wishes), a_host(**facts)) or "it fits")


@pytest.mark.parametrize(
    ("wishes", "said"),
    [
        ({"require_cuda": True}, "needs a GPU, and no host has one"),
        ({"min_cores": 8, "model": "gru"}, "needs 8 cores, and no host has more than 4"),
        ({"min_cores": 4}, None),
        ({"min_ram_gib": 16}, "needs 16 GiB of RAM, and no host has more than 8 free"),
        ({"model": "gru"}, "needs a host that may train this kind of model, and none may (allow_jobs, deny_jobs)"),
        ({"allowed_hosts": ["desktop"], "min_vram_gib": 9}, None),
    ],
)
def test_a_need_that_no_host_meets_is_said_without_their_names(wishes, said):
    pis = [a_host(allow_jobs=frozenset({"gbt"})), a_host(cores=2, deny_jobs=frozenset({"gru"}))]
    assert unmet(needs(**wishes), pis) == said
    small = a_host(name="small", cuda=True, vram_free_gib=2.5, cores=64, ram_available_gib=99.0)
    assert unmet(needs(**wishes), [a_host(), small]) is None
    asks = needs(**wishes | {"require_cuda": True, "min_vram_gib": 9})
    assert unmet(asks, [a_host(), small]) == "needs 9 GiB of VRAM, and no host has more than 2.5 free"


def test_deny_wins_over_allow_on_both_sides():
    both = a_host(allow_jobs=frozenset({"gbt"}), deny_jobs=frozenset({"gbt"}))
    assert "deny_jobs" in (fits(needs(), both) or "")
    assert "denied_hosts" in (fits(needs(allowed_hosts=["pi"], denied_hosts=["pi"]), a_host()) or "")


def test_an_empty_list_allows_all():
    assert fits(needs(allowed_hosts=[]), a_host(allow_jobs=frozenset())) is None


def test_vram_constrains_the_cuda_device_only():
    assert fits(needs(min_vram_gib=80), a_host()) is None
    assert fits(needs(min_vram_gib=80, prefer_cuda=True), a_gpu_host()) is None


def test_exactly_enough_is_enough():
    wishes = needs(require_cuda=True, min_vram_gib=8, min_ram_gib=8, min_cores=4)
    assert fits(wishes, a_gpu_host(vram=8.0)) is None


def test_what_the_manifest_declares_of_a_host_only_takes_away():
    detected = {
        "cuda_available": True,
        "cuda_devices": [{"vram_free_gib": 2.0}, {"vram_free_gib": 10.0}],
        "ram_available_gib": 32.0,
        "cpu_cores": 16,
    }
    assert Host.of("h", detected).vram_free_gib == 10.0, "the largest device counts"
    generous = {"cuda": True, "max_vram_gib": 99, "max_ram_gib": 99, "max_cores": 99}
    assert Host.of("h", detected, generous) == Host.of("h", detected)
    stingy = Host.of("h", detected, {"cuda": False, "max_vram_gib": 4, "max_ram_gib": 8, "max_cores": 2})
    assert (stingy.cuda, stingy.vram_free_gib, stingy.ram_available_gib, stingy.cores) == (False, 4.0, 8.0, 2)
    assert not Host.of("h", {}, {"cuda": True}).cuda, "a declaration adds nothing"


# ── who goes first ──────────────────────────────────────────────────────────────────────────


def test_a_host_without_cuda_lets_cuda_hosts_go_first():
    wants = needs(prefer_cuda=True)
    assert hold(wants, a_host(), NOBODY_ELSE, POLICY).seconds == POLICY.prefer_cuda_grace_s
    assert hold(wants, a_gpu_host(), NOBODY_ELSE, POLICY).seconds == 0


@pytest.mark.parametrize(
    ("peer", "held"),
    [
        (a_gpu_host(vram=0.5, vram_total_gib=8.0), True),  # busy, and has one
        (a_gpu_host(), True),
        (a_gpu_host(vram=2.0), False),  # too small for ever
        (a_gpu_host(deny_jobs=frozenset({"gbt"})), False),
        (a_gpu_host("laptop"), False),  # denied
        (a_host("other"), False),
    ],
)
def test_nobody_waits_for_a_gpu_that_nobody_has(peer, held):
    wants = needs(prefer_cuda=True, min_vram_gib=4, denied_hosts=["laptop"])
    assert bool(hold(wants, a_host(), Fleet(known=(peer, a_host("pi2"))), POLICY).seconds) is held
    assert hold(wants, a_host(), Fleet(known=()), POLICY).seconds == 0


def test_a_gpu_that_is_too_small_counts_as_none():
    wants = needs(prefer_cuda=True, min_vram_gib=8)
    assert hold(wants, a_gpu_host(vram=4), NOBODY_ELSE, POLICY).seconds == 300.0


def test_an_idle_host_of_higher_priority_goes_first_if_it_fits():
    best = a_gpu_host("desktop", priority=100)
    idle, busy = Fleet(alive=(best,), waiting=(best,)), Fleet(alive=(best,))
    held = hold(needs(), a_host(), idle, POLICY)
    assert held.seconds == POLICY.host_priority_grace_s
    assert "desktop" in held.reason
    assert "100 > 0" in held.reason
    assert hold(needs(), a_host(), busy, POLICY).seconds == 0, "it is not waiting for work"
    assert hold(needs(), a_host(priority=100), idle, POLICY).seconds == 0, "equals do not wait"
    assert hold(needs(denied_hosts=["desktop"]), a_host(), idle, POLICY).seconds == 0


def test_a_host_does_not_wait_for_itself():
    """The plan's word on it may have changed between two of its requests."""
    before = a_host("pi", priority=100)
    assert hold(needs(), a_host("pi"), Fleet(waiting=(before,)), POLICY).seconds == 0


def test_the_longer_of_two_holds_counts():
    best = a_gpu_host("desktop", priority=100)
    fleet = Fleet(alive=(best,), waiting=(best,))
    assert hold(needs(prefer_cuda=True), a_host(), fleet, POLICY).seconds == 300.0


def test_a_job_avoids_the_host_it_failed_on_only_if_another_could_take_it():
    pi, other = a_host("pi"), a_host("laptop")
    assert must_avoid(needs(), "pi", pi, Fleet(alive=(other,)))
    assert not must_avoid(needs(), "pi", other, Fleet(alive=(pi,))), "the other one may"
    assert not must_avoid(needs(), "pi", pi, NOBODY_ELSE), "nobody else is there"
    assert not must_avoid(needs(denied_hosts=["laptop"]), "pi", pi, Fleet(alive=(other,)))
    assert not must_avoid(needs(), "", pi, Fleet(alive=(other,))), "no host is avoided"


def test_rank_is_priority_then_age_then_the_order_of_the_manifest():
    in_order = [rank(9, 50.0, 7), rank(5, 10.0, 3), rank(5, 10.0, 4), rank(5, 11.0, 1)]
    assert all(better < worse for better, worse in pairwise(in_order))


# ── what an end means ───────────────────────────────────────────────────────────────────────


def settled(reason, *, exit_code=None, before=(), others=lambda _: False, **facts):
    ended = an_attempt(end_reason=reason, exit_code=exit_code)
    return settle(a_row(**facts), ended, now=NOW, policy=POLICY, before=before, others=others)


@pytest.mark.parametrize(("resumable", "at"), [(True, NOW - 900.0), (False, NOW)])
def test_a_job_whose_host_is_lost_keeps_its_place_if_it_goes_on_from_a_saved_state(resumable, at):
    ended = an_attempt(end_reason=EndReason.HOST_LOST, resumable=resumable)
    after = settle(a_row(claimable_at=NOW - 900.0), ended, now=NOW, policy=POLICY)
    assert (after.transition, after.claimable_at) == ("sweep", at)


@pytest.mark.parametrize(("refused", "at", "avoided"), [(False, NOW - 900.0, "*"), (True, NOW + 1.0, "desk")])
def test_a_job_that_was_interrupted_soon_pauses_in_its_place(refused, at, avoided):
    refusal = an_attempt(host="desk", end_reason=EndReason.TRAINER_FAILED, exit_code=65)
    ended = an_attempt(end_reason=EndReason.INTERRUPTED, lived_s=1.0)
    said = {"before": [refusal] if refused else [], "others": lambda host: host == "desk"}
    after = settle(a_row(claimable_at=NOW - 900.0), ended, now=NOW, policy=POLICY, **said)
    assert (after.claimable_at, after.avoid_host, after.short_runs) == (at, avoided, 1)


def test_a_failure_backs_off_and_prefers_another_host():
    after = settled(EndReason.TRAINER_FAILED, exit_code=1)
    assert (after.transition, after.status) == ("retry", JobStatus.PENDING)
    assert (after.trainer_failures, after.host_losses) == (1, 0)
    assert after.claimable_at == NOW + POLICY.backoff_s
    assert after.avoid_host == "pi"
    assert after.avoid_until == after.claimable_at + POLICY.retry_elsewhere_grace_s


def test_the_last_failure_ends_the_job_and_names_the_budget():
    after = settled(EndReason.TRAINER_FAILED, exit_code=1, trainer_failures=2)
    assert (after.transition, after.status) == ("exhaust", JobStatus.FAILED)
    assert after.ended_by == "trainer: failed 3 of 3 times (max_attempts)"


def test_bad_arguments_and_bad_data_are_never_retried():
    for exit_code in (2, 65):
        after = settled(EndReason.TRAINER_FAILED, exit_code=exit_code)
        assert after.status is JobStatus.FAILED
        assert f"exit code {exit_code}" in (after.ended_by or "")


@pytest.mark.parametrize("exit_code", [2, 65])
def test_exit_codes_say_nothing_of_an_end_that_was_not_the_trainers(exit_code):
    assert settled(EndReason.WORKER_SHUTDOWN, exit_code=exit_code).status is JobStatus.PENDING


@pytest.mark.parametrize("reason", [EndReason.WORKER_SHUTDOWN, EndReason.INTERRUPTED])
def test_a_planned_hand_back_costs_nothing(reason):
    after = settled(reason, trainer_failures=2, host_losses=19, claimable_at=NOW - 900.0)
    assert (after.transition, after.status) == ("hand_back", JobStatus.PENDING)
    assert (after.trainer_failures, after.host_losses) == (2, 19)
    assert after.claimable_at == NOW - 900.0, "it keeps its place in the queue"
    assert after.avoid_host is None


def test_a_lost_host_costs_infrastructure_only_and_the_job_is_claimable_at_once():
    after = settled(EndReason.HOST_LOST, trainer_failures=2)
    assert (after.transition, after.status) == ("sweep", JobStatus.PENDING)
    assert (after.trainer_failures, after.host_losses) == (2, 1)
    assert after.claimable_at == NOW


@pytest.mark.parametrize("reason", [EndReason.UPLOAD_FAILED, EndReason.SPAWN_FAILED])
def test_trouble_of_a_living_host_is_not_tried_again_at_once(reason):
    after = settled(reason, trainer_failures=2)
    assert (after.transition, after.host_losses, after.trainer_failures) == ("hand_back", 1, 2)
    assert after.claimable_at == NOW + 4 * POLICY.backoff_s, "failures and losses count together"
    assert after.avoid_host == "pi"


def test_the_last_loss_ends_the_job_and_names_the_budget():
    after = settled(EndReason.HOST_LOST, host_losses=19)
    assert after.status is JobStatus.FAILED
    assert after.ended_by == "infrastructure: lost 20 of 20 times (max_host_losses)"


def test_even_planned_hand_backs_reach_an_end():
    after = settled(EndReason.WORKER_SHUTDOWN, grants=POLICY.max_grants)
    assert after.status is JobStatus.FAILED
    assert "max_grants" in (after.ended_by or "")


hosts = st.sampled_from(["pi", "desk", "laptop"])
trainer_ends = st.builds(
    an_attempt, host=hosts, end_reason=st.just(EndReason.TRAINER_FAILED), exit_code=st.sampled_from([1, 2, 65])
)


@given(before=st.lists(trainer_ends, max_size=3), exit_code=st.sampled_from([1, 2, 65]), others=st.sets(hosts))
def test_no_host_ends_a_job_alone_while_another_may_try_it(before, exit_code, others):
    failed = {"before": before, "trainer_failures": len(before), "others": others.__contains__}
    after = settled(EndReason.TRAINER_FAILED, exit_code=exit_code, **failed)
    if after.status is JobStatus.FAILED:
        assert len({"pi", *(each.host for each in before)}) > 1 or "pi" not in others
    elif after.ended_by is not None:
        assert after.avoid_host in others
        assert after.avoid_until == NOW + POLICY.second_opinion_s
    else:
        assert exit_code == 1
        assert after.trainer_failures < POLICY.max_attempts


def test_a_refusal_that_was_given_back_ends_nothing():
    refusal = an_attempt(host="desk", end_reason=EndReason.TRAINER_FAILED, exit_code=65, pardoned=True)
    assert settled(EndReason.WORKER_SHUTDOWN, before=[refusal]).ended_by is None


@given(
    reason=st.sampled_from([r for r in EndReason if r is not EndReason.COMPLETED]),
    failures=st.integers(0, 4),
    losses=st.integers(0, 25),
    grants=st.integers(1, 250),
    exit_code=st.sampled_from([None, 0, 1, 2, 65, 70, 75, 137]),
)
def test_budgets_are_split_and_every_settlement_is_whole(reason, failures, losses, grants, exit_code):
    after = settled(reason, exit_code=exit_code, trainer_failures=failures, host_losses=losses, grants=grants)
    fault = FAULT_OF[reason]
    assert after.trainer_failures - failures == (fault is Fault.TRAINER)
    assert after.host_losses - losses == (fault is Fault.INFRASTRUCTURE)
    assert (after.ended_by is not None) == (after.status is JobStatus.FAILED)
    assert after.claimable_at >= NOW
    assert (after.avoid_host is None) == (after.avoid_until is None)
    if after.ended_by is not None and grants < POLICY.max_grants:
        spent = after.trainer_failures >= 3 or exit_code in (2, 65), after.host_losses >= 20
        assert spent[after.ended_by.startswith("infrastructure")], "the error names whose budget ended it"


@given(st.integers(1, 10_000))
def test_backoff_doubles_up_to_its_bound(failures):
    waits = [backoff(failures + step, POLICY) for step in (0, 1)]
    assert POLICY.backoff_s <= waits[0] <= waits[1] <= POLICY.backoff_max_s
    assert waits[1] in (2 * waits[0], POLICY.backoff_max_s)


# ── late messages ───────────────────────────────────────────────────────────────────────────

LOST = {"ended_at": NOW, "end_reason": EndReason.HOST_LOST}
WAITING = {"status": JobStatus.PENDING}


def test_finished_work_of_a_lost_host_is_taken_unless_somebody_claimed_the_job_since():
    assert policy.may_adopt(a_row(**WAITING), an_attempt(**LOST))
    assert not policy.may_adopt(a_row(**WAITING, attempt=2), an_attempt(**LOST))
    assert not policy.may_adopt(a_row(JobStatus.RUNNING), an_attempt(**LOST))


@pytest.mark.parametrize("status", sorted(FINAL))
def test_nothing_final_is_undone_by_a_late_message(status):
    assert not may_adopt(a_row(status), an_attempt(**LOST))
    assert not may_readopt(a_row(status), an_attempt(**LOST), (), POLICY)


@pytest.mark.parametrize("reason", sorted(set(EndReason) - {EndReason.HOST_LOST}))
def test_only_a_loss_is_forgiven(reason):
    assert not may_adopt(a_row(**WAITING), an_attempt(ended_at=NOW, end_reason=reason))


def test_a_requeue_cuts_off_late_messages():
    assert not may_adopt(a_row(**WAITING, generation=2), an_attempt(**LOST))


def test_readoption_is_bounded():
    allowed = [may_readopt(a_row(**WAITING), an_attempt(**LOST, readoptions=n), (), POLICY) for n in range(5)]
    assert allowed == [True, True, True, False, False]
    assert may_adopt(a_row(**WAITING), an_attempt(**LOST, readoptions=9)), "work is still taken"


def test_a_slot_that_holds_another_job_is_not_given_back_to_a_late_word():
    late = an_attempt(**LOST, session_id="1-a", slot=0)
    other = an_attempt(claim_id="other", session_id="2-b", slot=0)
    apart = an_attempt(claim_id="other", session_id="2-b", slot=1)
    assert not may_readopt(a_row(**WAITING), late, [other], POLICY)
    assert may_readopt(a_row(**WAITING), late, [apart], POLICY)


# ── silence ─────────────────────────────────────────────────────────────────────────────────


def begun():
    return SilenceWatch.begin(NOW, 100.0, POLICY)


def watched(watch, seconds):
    """The watch after that time of ordinary looks."""
    for _ in range(round(seconds / POLICY.sweep_period_s)):
        wall, boot = watch.wall + POLICY.sweep_period_s, watch.boot + POLICY.sweep_period_s
        watch = watch.look(wall, boot, POLICY)
    return watch


def test_nothing_is_swept_for_a_lease_after_the_start():
    assert not watched(begun(), POLICY.stale_after_s - 10).may_sweep
    assert watched(begun(), POLICY.stale_after_s).may_sweep


@pytest.mark.parametrize("gap_s", [31.0, 3 * DAY])
def test_nothing_is_swept_for_a_lease_after_a_suspend(gap_s):
    watch = watched(begun(), POLICY.stale_after_s)
    woken = watch.look(watch.wall + gap_s, watch.boot + gap_s, POLICY)
    assert not woken.may_sweep
    assert woken.step_s == 0, "both clocks agree: time did pass"
    assert watched(woken, POLICY.stale_after_s).may_sweep


@pytest.mark.parametrize("step_s", [DAY, -DAY, 6.0, -6.0])
def test_nothing_is_swept_for_a_lease_after_a_clock_step(step_s):
    watch = watched(begun(), POLICY.stale_after_s)
    stepped = watch.look(watch.wall + 10 + step_s, watch.boot + 10, POLICY)
    assert stepped.step_s == pytest.approx(step_s)
    assert not stepped.may_sweep
    after = watched(stepped, POLICY.stale_after_s)
    assert after.may_sweep
    assert after.step_s == 0, "a step is told once"


@given(st.floats(-4.9, 4.9))
def test_a_clock_that_is_slewed_is_no_step(drift_s):
    watch = watched(begun(), POLICY.stale_after_s)
    assert watch.look(watch.wall + 10 + drift_s, watch.boot + 10, POLICY).may_sweep


# ── running for too long ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("limit", [None, 0, 0.0, -1, True, "60"])
def test_what_is_no_limit_ends_nobody(limit):
    assert overran({"max_run_s": limit}, an_attempt(heard_s=1e12, held_s=1e12), POLICY) is None
    assert overran({}, an_attempt(heard_s=1e12, held_s=1e12), POLICY) is None


@given(st.floats(0.001, 1e6), st.booleans())
def test_an_attempt_has_a_quarter_more_than_its_limit_and_an_hour_for_all_that_is_no_training(limit, trains):
    most = limit + max(limit / 4, POLICY.stale_after_s / 3)
    for heard, held in ((most, 0.0), (None if not trains else 0.0, most + 3600.0)):
        assert overran({"max_run_s": limit}, an_attempt(heard_s=heard, held_s=held), POLICY) is None
        more = an_attempt(heard_s=heard and heard + 1.0, held_s=held and held + 1.0)
        assert overran({"max_run_s": limit}, more, POLICY) == limit


@given(st.lists(st.floats(0, 10_000)))
def test_a_third_of_a_lease_counts_at_most_between_two_heartbeats(gaps):
    heard = 0.0
    for gap in gaps:
        heard = heard_s(heard, gap, None, POLICY)
    assert heard == pytest.approx(sum(min(gap, POLICY.stale_after_s / 3) for gap in gaps))
    assert heard_s(heard, -1.0, None, POLICY) == heard, "a clock that went back"
    assert heard_s(None, 1.0, None, POLICY) is None, "it delivers"
    assert heard_s(heard, 1.0, {"event": "fetch"}, POLICY) == 0.0, "nothing is trained yet"
    assert heard_s(heard, 1.0, {"event": "waiting"}, POLICY) == 0.0, "for the other trainers of its host"


def test_a_host_trains_no_more_jobs_than_it_has_slots():
    host = a_host(slots=2)
    training = [an_attempt(claim_id=f"claim-{number}", heard_s=0.0) for number in range(3)]
    assert policy.is_full(host, training[:1]) is None
    assert "holds 2 jobs and has 2 slots" in (policy.is_full(host, training[:2]) or "")
    assert policy.is_full(host, training)
    untried = a_host(cores=4096, untried=True)
    assert policy.is_full(untried, training[:1]) is None
    for held in (training[:2], [replace(each, heard_s=None) for each in training[:2]]):
        assert "holds 2 jobs, and is not in the plan" in (policy.is_full(untried, held) or "")

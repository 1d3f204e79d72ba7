"""The worker as a function: every row of its table, and what must hold whatever happens."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from wire_builders import a_grant, beat_answered, claim_answered

from training.fleet.process.ended import Ended
from training.fleet.process.usage import Used
from training.fleet.scheduling.job import EndReason
from training.fleet.wire.attempts import Usage
from training.fleet.wire.constants import Action as Order
from training.fleet.wire.constants import ProblemType
from training.fleet.worker.actions import Actions
from training.fleet.worker.state import events as t
from training.fleet.worker.state import no_answer
from training.fleet.worker.state.exit_code import Failure
from training.fleet.worker.state.step import Phase, State, step
from training.fleet.worker.state.trainer import FIRST_BEAT_S, measure_s

JOB = a_grant(job_id="job", claim_id="claim", name="gbt", spec={"model": "gbt", "mode": "oracle"})
DONE = Ended(code=0)


class Worker:
    """Drives the machine and remembers what it wanted."""

    def __init__(self, chance=1.0, **choices):
        self.settings = replace(t.WorkerSettings(), **choices)
        self.state = State(session_id="s")
        self.now = 1000.0
        self.chance = chance
        self.actions = []

    def take(self, event, after_s=0.0):
        self.now += after_s
        self.state, actions = step(self.state, event, self.now, self.settings, lambda: self.chance)
        self.actions = list(actions)
        return self.actions

    def wanted(self, kind):
        found = [action for action in self.actions if isinstance(action, kind)]
        assert found, f"no {kind.__name__} among {self.actions}"
        return found[-1]

    def wants(self, kind):
        return any(isinstance(action, kind) for action in self.actions)

    @property
    def phase(self):
        return self.state.phase

    @property
    def wake_at(self):
        return self.wanted(t.WakeAt).at

    def wake(self):
        """Let the time pass that it asked for."""
        at = self.wake_at
        assert at is not None
        return self.take(t.Tick(), at - self.now)

    # shortcuts to a phase
    def asking(self):
        self.take(t.Begin())
        return self

    def starting(self, lease_s=600.0, job=JOB):
        self.asking().given(job, lease_s=lease_s)
        return self

    def running(self, lease_s=600.0):
        self.starting(lease_s)
        self.take(t.Spawned(claim_id="claim"))
        self.take(t.Tick(), FIRST_BEAT_S)
        self.answer_beat()
        return self

    def answer_beat(self, **answer):
        return self.take(beat_answered(call=self.work.beat_call or 0, **answer))

    def refuse_beat(self, problem_type):
        return self.take(t.CallRefused(call=self.work.beat_call or 0, problem_type=problem_type, detail="no"))

    def ended(self, code=0):
        self.take(t.TrainerEnded(claim_id="claim", ended=Ended(code=code)))
        return self

    def killed(self):
        self.take(t.TrainerEnded(claim_id="claim", ended=Ended(signal=9)))
        return self

    def packed(self):
        self.take(t.Packed(claim_id="claim", path="/b", sha256="ab", size=3, record={"x": 1}))
        return self

    def stored(self):
        self.take(t.Uploaded(call=self.call, artifact_id="ab"))
        return self

    def delivered(self):
        self.take(t.Completed(call=self.call))
        return self

    def uploading(self):
        return self.running().ended().packed()

    def completing(self):
        return self.uploading().stored()

    def failing(self):
        return self.running().ended(1)

    def printed(self, *lines):
        self.take(t.Printed(claim_id="claim", lines=lines))

    # answers to the request in flight
    def refused(self, problem_type, detail="no"):
        self.take(t.CallRefused(call=self.call, problem_type=problem_type, detail=detail))

    def unanswered(self, **more):
        self.take(t.NotAnswered(call=self.call, detail="down", **more))

    def beat_unanswered(self, **more):
        self.take(t.NotAnswered(call=self.beat.call, detail="down", **more))

    def given(self, assignment=None, after_s=0.0, **more):
        self.take(claim_answered(call=self.call, assignment=assignment, **more), after_s)

    def failed(self, status="pending", log_next=0):
        self.take(t.FailTaken(call=self.call, status=status, log_next=log_next))

    @property
    def call(self):
        assert self.state.call is not None
        return self.state.call

    @property
    def work(self):
        assert self.state.work is not None
        return self.state.work

    @property
    def beat(self):
        return self.wanted(t.SendHeartbeat)

    @property
    def claim(self):
        return self.wanted(t.SendClaim)

    @property
    def report(self):
        return self.wanted(t.SendFail).message

    @property
    def output(self):
        return self.wanted(t.SendOutput)


# ── asking ──────────────────────────────────────────────────────────────────────────────────


def test_request_id_is_on_the_disk_before_it_is_sent_and_stays_until_answered():
    worker = Worker().asking()
    kinds = [type(action) for action in worker.actions]
    assert kinds.index(t.Persist) < kinds.index(t.SendClaim)
    first = worker.claim.request_id
    assert worker.wanted(t.Persist).saved.request_id == first
    worker.unanswered()
    worker.wake()
    assert worker.claim.request_id == first
    worker.given()
    worker.wake()
    assert worker.claim.request_id == first, "no job: the id has not been used up"
    assert not worker.wants(t.Persist)
    worker.given(JOB)
    assert worker.wanted(t.Persist).saved == t.Saved(held=JOB)
    assert worker.wanted(t.Spawn).assignment == JOB


def test_saved_request_is_asked_again_after_a_crash():
    worker = Worker()
    worker.take(t.Begin(t.Saved(request_id="older-7")))
    assert worker.claim.request_id == "older-7"
    worker.refused(ProblemType.LEASE_SUPERSEDED, "ended")
    assert worker.claim.request_id == "s-1", "its attempt is over: a new one at once"


def test_fresh_request_that_is_superseded_means_a_newer_session():
    worker = Worker().asking()
    worker.refused(ProblemType.LEASE_SUPERSEDED, "a newer session")
    assert worker.wanted(t.EndProcess) == t.EndProcess(code=1, sentence="a newer session")


@pytest.mark.parametrize("problem_type", [ProblemType.HOST_ID_CONFLICT, ProblemType.SLOT_BUSY, "something_new"])
def test_other_refusals_are_tried_again_after_a_while(problem_type):
    worker = Worker().asking()
    worker.refused(problem_type)
    assert worker.wake_at == worker.now + 60.0
    worker.wake()
    assert worker.wants(t.SendClaim)


def test_receiver_that_waits_is_asked_again_at_once_another_after_the_pause():
    worker = Worker(chance=0.5).asking()
    worker.given(reason="nothing", after_s=29.0)
    assert worker.wants(t.SendClaim)
    worker.given(reason="nothing", after_s=0.1)
    assert worker.wake_at == worker.now + 15.0 * 0.75


def test_an_idle_worker_says_why_and_again_only_for_another_reason():
    worker, said = Worker().asking(), []
    for reason in ("desk is faster; free at 15:10", "desk is faster; free at 15:09", "no job is pending", "", "desk"):
        worker.given(reason=reason, after_s=0.1)
        said.append(worker.wanted(t.Say).text if worker.wants(t.Say) else None)
        worker.wake()
    assert said == [
        "no job now: desk is faster; free at 15:10",
        None,
        "no job now: no job is pending",
        None,
        "no job now: desk",
    ]


def test_unanswered_claims_back_off_with_full_jitter_up_to_a_minute():
    worker = Worker(chance=0.999_999).asking()
    pauses = []
    for _ in range(6):
        worker.unanswered()
        at = worker.wake_at
        assert at is not None
        pauses.append(round(at - worker.now))
        worker.wake()
    assert pauses == [15, 30, 60, 60, 60, 60]
    worker.unanswered(retry_after_s=120.0)
    assert worker.wake_at == worker.now + 120.0


# ── the trainer ─────────────────────────────────────────────────────────────────────────────


def test_good_training_is_packed_uploaded_completed():
    worker = Worker().running().ended()
    assert worker.wanted(t.Pack).assignment == JOB
    worker.packed()
    delivery = worker.wanted(t.Upload).delivery
    assert worker.wanted(t.Persist).saved == t.Saved(delivery=delivery)
    assert delivery.record["x"] == 1
    assert "train_s" in delivery.record
    worker.stored()
    assert worker.wanted(t.SendComplete).delivery == delivery
    worker.delivered()
    assert worker.wanted(t.Discard).job_over
    assert worker.wanted(t.Persist).saved.delivery is None
    assert worker.claim.request_id == "s-2"


@pytest.fixture
def worker():
    return Worker().running()


@pytest.mark.parametrize(
    ("ended", "reason", "exit_code"),
    [
        (Ended(code=65), EndReason.TRAINER_FAILED, 65),
        (Ended(signal=9), EndReason.TRAINER_FAILED, 137),
        (Ended(signal=15), EndReason.INTERRUPTED, None),
    ],
)
def test_other_ends_are_reported_for_what_they_are(worker, ended, reason, exit_code):
    worker.take(t.TrainerEnded(claim_id="claim", ended=ended))
    failure = worker.report
    assert (failure.reason, failure.exit_code) == (reason, exit_code)
    worker.failed()
    assert not worker.wanted(t.Discard).job_over
    assert worker.wants(t.SendClaim)


def test_a_trainer_that_failed_for_good_leaves_nothing_to_go_on_from():
    worker = Worker().running().ended(1)
    worker.failed("failed")
    assert worker.wanted(t.Discard).job_over


def test_error_report_carries_the_last_words_and_the_record(worker):
    lines = ("loading", "Traceback (most recent call last):", "ValueError: bad shape")
    worker.printed(*lines)
    worker.ended(70)
    sent = worker.report
    assert sent.error.splitlines()[0] == "exit status 70: ValueError: bad shape"
    assert sent.log.first == 0
    assert sent.record["train_s"] == FIRST_BEAT_S


def test_spawn_and_pack_failures_are_reported():
    failure = Failure(EndReason.SPAWN_FAILED, "no interpreter")
    worker = Worker().starting()
    worker.take(t.SpawnFailed(claim_id="claim", failure=failure))
    assert worker.report.error == failure.error
    worker = Worker().running().ended()
    worker.take(t.PackFailed(claim_id="claim", failure=failure))
    assert worker.report.error == failure.error


def test_trainer_that_harms_the_host_is_stopped_and_says_why(worker):
    full = Failure(EndReason.UPLOAD_FAILED, "the disk is full")
    worker.take(t.Unbearable(claim_id="claim", failure=full))
    assert worker.wants(t.StopTrainer)
    worker.ended(75)
    assert worker.report.error == full.error


def test_news_of_another_attempt_is_ignored(worker):
    worker.take(t.TrainerEnded(claim_id="older", ended=DONE))
    worker.take(t.Printed(claim_id="older", lines=("x",)))
    assert worker.phase is Phase.RUNNING
    assert worker.work.printed == 0


def test_progress_and_complaint_are_read_from_the_output(worker):
    lines = (
        '{"event": "epoch", "epoch": 3, "loss": NaN, "x": [1]}',
        '{"event": "error", "message": "cannot split"}',
        "{not json",
        '{"loss": 1}',
    )
    worker.printed(*lines)
    worker.take(t.Tick(), after_s=30.0)
    assert worker.beat.message.progress == {"event": "epoch", "epoch": 3}
    worker.ended(65)
    assert worker.report.error.startswith("exit status 65: cannot split")


# ── heartbeats and the lease ────────────────────────────────────────────────────────────────


def test_first_heartbeat_goes_out_soon_after_the_trainer_then_regularly():
    worker = Worker().starting()
    worker.take(t.Spawned(claim_id="claim"))
    assert not [each for each in worker.actions if isinstance(each, t.SendHeartbeat)], "it may end at once"
    worker.wake()
    assert worker.beat.message.seq == 1
    worker.answer_beat()
    assert worker.wake_at == worker.now + 30.0
    worker.wake()
    assert worker.beat.message.seq == 2


def test_short_lease_is_renewed_three_times_as_often():
    worker = Worker().running(lease_s=30.0)
    worker.take(t.Tick(), after_s=30.0)
    worker.answer_beat(lease_s=30.0)
    assert worker.wake_at == worker.now + 10.0


def test_lease_counts_from_the_sending():
    worker = Worker(on_silence=t.OnSilence.PAUSE).running()
    worker.take(t.Tick(), after_s=30.0)
    sent_at = worker.now
    worker.now += 20.0  # the answer is slow
    worker.answer_beat(lease_s=600.0)
    assert worker.work.renewed_at == sent_at


def test_claims_lease_counts_from_its_sending_too():
    worker = Worker().asking()
    sent_at = worker.now
    worker.given(JOB, after_s=25.0, lease_s=600.0)
    assert worker.work.renewed_at == sent_at


def test_silence_pauses_at_four_fifths_of_the_lease_and_an_answer_resumes():
    worker = Worker(on_silence=t.OnSilence.PAUSE).running()
    deadline = worker.work.renewed_at + 480.0
    paused_at = None
    while worker.now < deadline + 60.0 and paused_at is None:
        if worker.wants(t.SendHeartbeat):
            worker.beat_unanswered()
        worker.wake()
        if worker.wants(t.PauseTrainer):
            paused_at = worker.now
    assert paused_at == deadline
    while not worker.wants(t.SendHeartbeat):
        worker.wake()
    worker.answer_beat()
    assert worker.wants(t.ResumeTrainer)


@pytest.mark.parametrize(
    ("silent_s", "left_s"), [(3600.0, no_answer.BRIEF_S), (474.0, 6.0), (0.0, 10.0)], ids=["long-ago", "soon", "never"]
)
def test_who_must_pause_without_a_lease_stops_soon_without_one(silent_s, left_s):
    """A trainer that hangs when its host wakes up may be another's job by now."""
    worker = Worker(on_silence=t.OnSilence.PAUSE, grace_s=10.0).running()
    worker.take(t.Measured(claim_id=JOB.claim_id))
    worker.now = worker.work.renewed_at + silent_s
    worker.take(t.SignalReceived())
    assert worker.wants(t.StopTrainer)
    asked_at = worker.now
    while not worker.wants(t.KillTrainer):
        if worker.wants(t.SendHeartbeat):
            worker.beat_unanswered()
        worker.wake()
    assert worker.now == asked_at + left_s


def test_unanswered_heartbeats_are_repeated_soon_and_then_ever_more_seldom():
    worker = Worker(chance=1.0).running()
    while not worker.wants(t.SendHeartbeat):
        worker.wake()
    pauses = []
    for _ in range(8):
        at = worker.now
        worker.beat_unanswered()
        while not worker.wants(t.SendHeartbeat):
            worker.wake()
        pauses.append(worker.now - at)
    assert pauses[:4] == [2.0, 4.0, 8.0, 16.0]
    assert pauses[-2:] == [30.0, 30.0], "as seldom as heartbeats are sent"
    worker.beat_unanswered(retry_after_s=120.0)
    assert worker.work.beat_at == worker.now + 120.0, "or as seldom as it was asked to"


def test_silence_changes_nothing_by_default(worker):
    for _ in range(100):
        if worker.wants(t.SendHeartbeat):
            worker.beat_unanswered()
        worker.wake()
        assert not worker.wants(t.PauseTrainer)
        assert not worker.wants(t.KillTrainer)
    assert worker.now > 1600.0


def test_sleep_beats_first_and_its_lost_answer_does_no_harm():
    worker = Worker(on_silence=t.OnSilence.PAUSE).running()
    worker.wake()
    lost = worker.beat.call
    worker.take(t.Slept(3600.0), after_s=3600.0)
    assert worker.wants(t.PauseTrainer)
    assert worker.beat.call != lost
    worker.take(t.CallRefused(call=lost, problem_type=ProblemType.LEASE_SUPERSEDED))
    assert worker.phase is Phase.RUNNING, "an answer to a call that was given up"
    worker.answer_beat()
    assert worker.wants(t.ResumeTrainer)


@pytest.mark.parametrize(
    "problem_type", [ProblemType.LEASE_SUPERSEDED, ProblemType.JOB_CANCELLED, ProblemType.UNKNOWN_JOB]
)
def test_lost_claim_kills_the_trainer_and_nobody_is_told(worker, problem_type):
    worker.wake()
    worker.refuse_beat(problem_type)
    assert worker.wants(t.KillTrainer)
    worker.killed()
    assert worker.wants(t.Discard)
    assert not worker.wants(t.SendFail)
    assert worker.wants(t.SendClaim)


def test_order_to_stop_kills_and_order_to_drain_leaves_afterwards():
    worker = Worker().running()
    worker.wake()
    worker.answer_beat(order=Order.STOP)
    assert worker.wants(t.KillTrainer)
    worker = Worker().running()
    worker.wake()
    worker.answer_beat(order=Order.DRAIN)
    assert not worker.wants(t.StopTrainer)
    worker.ended().packed().stored().delivered()
    assert worker.wanted(t.EndProcess).code == 0
    assert worker.wanted(t.Persist).saved == t.Saved(), "nothing is left for a next session"


def test_cancelled_while_starting_or_packing_is_dropped_when_it_can_be():
    worker = Worker().starting(lease_s=30.0)
    worker.wake()
    worker.refuse_beat(ProblemType.JOB_CANCELLED)
    assert not worker.wants(t.KillTrainer), "nothing runs yet"
    worker.take(t.Spawned(claim_id="claim"))
    assert worker.wants(t.KillTrainer)
    assert not worker.wants(t.SendHeartbeat)
    worker = Worker().running().ended()
    worker.wake()
    worker.refuse_beat(ProblemType.JOB_CANCELLED)
    worker.packed()
    assert worker.wants(t.Discard)


def test_finished_work_is_delivered_although_the_lease_is_lost():
    worker = Worker().uploading()
    worker.take(t.Tick(), after_s=31.0)
    worker.refuse_beat(ProblemType.LEASE_SUPERSEDED)
    assert worker.phase is Phase.UPLOADING
    worker.stored().delivered()
    assert worker.wants(t.Discard)


@pytest.mark.parametrize("end", ["accepted", "refused", "signal"])
def test_work_that_the_receiver_cannot_confirm_is_kept_until_an_operator_there_decides(end):
    worker = Worker().completing()
    for _ in range(3):
        worker.take(t.Unconfirmed(call=worker.call))
        assert not worker.wants(t.Discard)
        worker.take(t.Tick(), after_s=worker.settings.retry_max_s)
        assert worker.wants(t.SendComplete)
    if end == "accepted":
        worker.delivered()
        assert (worker.wants(t.Discard), worker.wants(t.KeepAside)) == (True, False)
    elif end == "refused":
        worker.refused(ProblemType.LEASE_SUPERSEDED, "an operator refused this work")
        assert worker.wanted(t.KeepAside).delivery.sha256 == "ab"
    else:
        worker.take(t.SignalReceived())
        assert worker.wants(t.EndProcess)
        assert worker.state.saved.delivery is not None, "the next session goes on"


def test_cancelled_delivery_is_broken_off():
    worker = Worker().uploading()
    call = worker.call
    worker.take(t.Tick(), after_s=31.0)
    worker.refuse_beat(ProblemType.JOB_CANCELLED)
    assert worker.wanted(t.Abort).call == call
    assert worker.wanted(t.Persist).saved == t.Saved(request_id="s-2")


def test_output_is_shipped_in_numbered_pieces_and_dropped_when_known(worker):
    lines = tuple(f"line {number}" for number in range(450))
    worker.printed(*lines)
    worker.wake()
    assert worker.beat.message.log.first == 0
    worker.answer_beat(log_next=200)
    assert worker.wake_at == worker.now + 1.0, "more wait: not a whole interval"
    worker.wake()
    assert worker.beat.message.log.first == 200
    worker.answer_beat(log_next=400)
    worker.ended(1)
    assert worker.report.log.first == 400
    worker.failed("pending", log_next=450)
    assert worker.wanted(t.ForgetOutput).claim_id == "claim"
    assert not worker.wants(t.SendOutput)


def test_receiver_that_forgot_lines_is_sent_them_again(worker):
    worker.printed("a", "b")
    worker.wake()
    worker.answer_beat(log_next=2)
    worker.wake()
    assert worker.beat.message.log.first == 2
    worker.answer_beat(log_next=1)
    worker.wake()
    assert worker.beat.message.log.first == 1


# ── reports ─────────────────────────────────────────────────────────────────────────────────


def test_reports_are_repeated_for_as_long_as_it_takes():
    for worker in (Worker().uploading(), Worker().completing(), Worker().failing()):
        phase = worker.phase
        for _ in range(50):
            call = worker.call
            worker.take(t.NotAnswered(call=call, detail="disk full", retry_after_s=1.0))
            assert worker.state.call is None
            while worker.state.call is None:
                worker.wake()
                if worker.wants(t.SendHeartbeat):
                    worker.answer_beat()
            assert worker.phase is phase
            assert worker.call > call


@pytest.mark.parametrize(
    "problem_type", [ProblemType.LEASE_SUPERSEDED, ProblemType.JOB_CANCELLED, ProblemType.RESULT_CONFLICT]
)
def test_delivery_of_a_lost_claim_is_dropped(problem_type):
    for worker in (Worker().uploading(), Worker().completing()):
        worker.refused(problem_type)
        assert worker.wants(t.Discard)
        assert worker.wants(t.SendClaim)


def test_missing_artifact_is_uploaded_again_a_hopeless_one_given_up():
    worker = Worker().completing()
    worker.refused(ProblemType.NO_ARTIFACT, "not there")
    assert worker.phase is Phase.UPLOADING
    worker.wake()
    assert worker.wants(t.Upload)
    worker.refused(ProblemType.TOO_LARGE, "17 GiB")
    failure = worker.report
    assert failure.reason is EndReason.UPLOAD_FAILED
    assert "17 GiB" in failure.error


def test_upload_refused_again_and_again_is_given_up():
    worker = Worker().uploading()
    for _ in range(5):
        worker.refused(ProblemType.WRONG_DIGEST, "flipped")
        if worker.phase is Phase.UPLOADING:
            worker.wake()
    assert worker.phase is Phase.FAILING


def test_answer_to_an_earlier_call_is_too_late():
    worker = Worker().uploading()
    earlier = worker.call
    worker.unanswered()
    worker.wake()
    for late in (t.CallRefused(call=earlier, problem_type="too_large"), t.Uploaded(call=earlier, artifact_id="ab")):
        worker.take(late)
    assert (worker.phase, worker.state.call) == (Phase.UPLOADING, earlier + 1)


def test_unreadable_bundle_is_given_up():
    worker = Worker().uploading()
    worker.take(t.DeliveryBroken(call=worker.call, detail="vanished"))
    assert worker.report.reason is EndReason.UPLOAD_FAILED


def test_refused_failure_report_is_the_end_of_it():
    worker = Worker().failing()
    worker.refused(ProblemType.LEASE_SUPERSEDED, "swept")
    assert worker.wants(t.SendClaim)


def test_finished_work_of_a_session_that_died_is_delivered_before_anything_is_claimed():
    delivery = t.Delivery(assignment=JOB, path="/b", sha256="ab", size=3)
    worker = Worker()
    worker.take(t.Begin(t.Saved(delivery=delivery)))
    assert worker.wanted(t.Upload).delivery == delivery
    assert worker.beat.assignment == JOB
    assert not worker.wants(t.SendClaim)
    worker.stored().delivered()
    assert worker.wants(t.SendClaim)


# ── leaving ─────────────────────────────────────────────────────────────────────────────────


def test_signal_stops_politely_hands_back_and_leaves_within_30_s(worker):
    worker.take(t.SignalReceived())
    assert worker.wants(t.StopTrainer)
    worker.take(t.TrainerEnded(claim_id="claim", ended=Ended(code=75)), after_s=3.0)
    failure = worker.report
    assert (failure.reason, failure.error) == (EndReason.WORKER_SHUTDOWN, "worker shutdown")
    worker.failed()
    assert worker.wanted(t.EndProcess) == t.EndProcess()
    assert worker.take(t.Tick()) == []


def test_deaf_trainer_is_killed_and_a_silent_receiver_waited_for_only_so_long(worker):
    begun = worker.now
    worker.take(t.SignalReceived())
    worker.wake()
    assert worker.wants(t.KillTrainer)
    worker.killed()
    while not worker.wants(t.EndProcess):
        if worker.state.call is not None:
            worker.unanswered()
        worker.wake()
    assert worker.now - begun <= 30.0


def test_trainer_that_cannot_be_killed_does_not_keep_the_worker(worker):
    begun = worker.now
    worker.take(t.SignalReceived())
    while not worker.wants(t.SendFail):
        worker.wake()
    assert worker.report.reason is EndReason.WORKER_SHUTDOWN
    assert worker.now - begun < 25.0


def test_second_signal_kills_at_once(worker):
    worker.take(t.SignalReceived())
    assert not worker.wants(t.KillTrainer)
    worker.take(t.SignalReceived())
    assert worker.wants(t.KillTrainer)


def test_training_that_was_done_when_the_signal_came_is_delivered(worker):
    worker.take(t.SignalReceived())
    worker.ended(0)
    assert worker.wants(t.Pack)


def test_undelivered_work_survives_the_exit():
    worker = Worker().uploading()
    saved = worker.state.saved
    worker.take(t.SignalReceived())
    assert not worker.wants(t.EndProcess)
    while not worker.wants(t.EndProcess):
        worker.wake()
    assert worker.state.saved == saved
    assert saved.delivery is not None


def test_idle_worker_leaves_at_once_and_a_starting_one_stops_what_it_started():
    worker = Worker().asking()
    worker.take(t.SignalReceived())
    assert worker.wants(t.EndProcess)
    worker = Worker().starting()
    worker.take(t.SignalReceived())
    worker.take(t.Spawned(claim_id="claim"))
    assert worker.wants(t.StopTrainer)


# ── a worker that starts again ──────────────────────────────────────────────────────────────

FAILED = Ended(code=70)


def begun(saved, found=None, *backlog):
    worker = Worker()
    worker.state = State(session_id="0000000003-abcd")
    worker.take(t.Begin(saved, found or t.Remains(), backlog))
    return worker


def test_training_that_had_ended_well_when_the_worker_was_killed_is_packed_and_delivered():
    found = t.Remains(ended=DONE, printed=7, last_words=('{"event": "epoch", "epoch": 9}', "bye"))
    worker = begun(t.Saved(held=JOB), found)
    assert worker.wanted(t.Pack).assignment == JOB
    assert not worker.wants(t.SendClaim)
    beat = worker.beat
    assert beat.message.progress == {"event": "epoch", "epoch": 9}
    assert beat.message.seq > 3_000_000, "newer than what any earlier session sent"
    worker.packed()
    assert worker.wanted(t.Upload).delivery.assignment == JOB
    worker.stored()
    assert worker.wanted(t.SendComplete).message.log.first == 0
    assert worker.wanted(t.SendComplete).message.progress == {"event": "epoch", "epoch": 9}


def test_nothing_is_due_while_what_an_earlier_session_finished_is_packed():
    worker = begun(t.Saved(held=JOB), t.Remains(ended=DONE))
    assert worker.phase is Phase.PACKING
    assert worker.wake_at is not None
    assert worker.wake_at > worker.now, "or the loop would turn without a pause"


def test_training_that_had_failed_when_the_worker_was_killed_is_reported_first():
    worker = begun(t.Saved(held=JOB), t.Remains(ended=FAILED, printed=1, last_words=("OSError: x",)))
    assert worker.report.error == "exit status 70: OSError: x"
    assert "train_s" not in worker.report.record, "nobody measured that"


def test_training_that_died_with_its_worker_is_told_with_the_next_claim():
    worker = begun(t.Saved(held=JOB, crashed=("older",)), t.Remains(printed=3))
    assert worker.claim.crashed_claims == ("older", "claim")
    assert worker.wanted(t.Persist).saved.crashed == ("older", "claim"), "until it was told"
    assert worker.output.message.log.total == 3
    worker.unanswered()
    worker.wake()
    assert worker.claim.crashed_claims == ("older", "claim")
    worker.given()
    worker.wake()
    assert worker.claim.crashed_claims == ()


def test_report_that_was_on_its_way_is_sent_again_before_any_claim():
    failure = Failure(EndReason.TRAINER_FAILED, "ValueError", 1)
    saved = t.Saved(report=t.FailureReport(assignment=JOB, failure=failure, usage={"cpu_s": 4.0}))
    worker = begun(saved, t.Remains(printed=1, last_words=('{"event": "epoch", "epoch": 9}',)))
    assert worker.report.progress == {"event": "epoch", "epoch": 9}
    assert worker.report.error == failure.error
    assert worker.report.record == {"cpu_s": 4.0}
    assert not worker.wants(t.SendClaim)
    worker.failed()
    assert worker.wants(t.SendClaim)


def test_worker_that_must_leave_before_its_trainer_hands_back_when_it_comes_again():
    worker = Worker(leave_s=5.0, grace_s=10.0).running()
    worker.take(t.SignalReceived())
    worker.take(t.Tick(), after_s=5.0)
    assert worker.wants(t.EndProcess)
    again = begun(worker.state.saved)
    assert again.report.reason is EndReason.WORKER_SHUTDOWN
    assert not again.state.crashed


# ── output of attempts that are over ────────────────────────────────────────────────────────

OLD = t.Backlog(a_grant("j", "old", name="old"), 450)


def test_output_of_the_job_in_hand_is_no_backlog():
    own = t.Backlog(JOB, 3)
    outbox = SimpleNamespace(recover=lambda: [OLD, own])
    attempt = SimpleNamespace(found=t.Remains)
    actions = Actions(None, outbox, attempt=lambda _: attempt)
    assert actions.beginning({0: t.Saved(held=JOB)}).backlog == (OLD,)
    assert actions.beginning({0: t.Saved()}).backlog == (OLD, own)


def test_backlog_is_brought_piece_by_piece_beside_everything_else():
    worker = begun(t.Saved(), None, OLD, t.Backlog(a_grant("k", "next"), 1))
    assert worker.wants(t.SendClaim)
    for first in (0, 200, 400):
        sent = worker.output
        assert (sent.assignment.claim_id, sent.message.log.first) == ("old", first)
        worker.take(t.OutputTaken(call=sent.call, log_next=min(first + 200, 450)))
    assert worker.wanted(t.ForgetOutput).claim_id == "old"
    assert worker.output.assignment.claim_id == "next"
    worker.take(t.OutputTaken(call=worker.output.call, log_next=1))
    assert not worker.state.backlog


def test_backlog_waits_for_the_receiver_and_is_dropped_by_its_final_word_alone():
    worker = begun(t.Saved(), None, OLD)
    for refusal in (ProblemType.CERTIFICATE_EXPIRED, None, ProblemType.NO_CERTIFICATE):
        call = worker.output.call
        answer = t.NotAnswered(call=call) if refusal is None else t.CallRefused(call=call, problem_type=refusal)
        worker.take(answer)
        assert worker.state.backlog == (OLD,)
        assert not worker.wants(t.SendOutput), "a pause first"
        worker.take(t.Tick(), after_s=60.0)
    worker.take(t.CallRefused(call=worker.output.call, problem_type=ProblemType.METHOD_NOT_ALLOWED))
    assert worker.wanted(t.ForgetOutput).claim_id == "old"


def test_backlog_that_is_not_answered_is_offered_ever_more_seldom():
    worker = begun(t.Saved(), None, OLD)
    for tries in range(1, 5):
        worker.take(t.NotAnswered(call=worker.output.call))
        assert worker.state.output_tries == tries
        worker.take(t.Tick(), after_s=60.0)
    worker.take(t.OutputTaken(call=worker.output.call, log_next=100))
    assert worker.state.output_tries == 0


def test_what_a_report_could_not_take_along_follows_it(worker):
    worker.take(t.Printed(claim_id="claim", lines=tuple(map(str, range(500)))))
    worker.ended(1)
    worker.failed("failed", log_next=200)
    assert worker.output.message.log.first == 200
    assert worker.wants(t.SendClaim)


def test_output_of_a_lost_attempt_is_brought_too(worker):
    worker.printed("last words")
    worker.wake()
    worker.refuse_beat(ProblemType.LEASE_SUPERSEDED)
    worker.killed()
    assert worker.output.message.log.total == 1


# ── finished work is kept ───────────────────────────────────────────────────────────────────


def test_lease_that_is_lost_while_packing_drops_nothing():
    worker = Worker().running().ended()
    worker.take(t.Tick(), after_s=31.0)
    worker.refuse_beat(ProblemType.LEASE_SUPERSEDED)
    worker.packed()
    assert worker.wants(t.Upload), "it may still be adopted"


@pytest.mark.parametrize(
    "problem_type", [ProblemType.CERTIFICATE_EXPIRED, ProblemType.NO_CERTIFICATE, ProblemType.WRONG_ROLE]
)
def test_host_that_is_not_let_in_keeps_what_it_finished(problem_type):
    for worker in (Worker().uploading(), Worker().completing(), Worker().failing()):
        phase = worker.phase
        for count in range(20):
            worker.refused(problem_type)
            assert worker.wants(t.Say) == (count == 0), "once is enough"
            assert worker.phase is phase
            assert not worker.wants(t.Discard)
            worker.take(t.Tick(), after_s=61.0)


# ── limits on a trainer ─────────────────────────────────────────────────────────────────────


def measured(worker, cpu_s, after_s=10.0):
    worker.take(t.Measured(claim_id="claim", used=Used(cpu_s)), after_s=after_s)


def test_a_heartbeat_tells_what_was_used_since_the_last_one():
    worker = Worker(heartbeat_s=30.0).running()

    def beat():
        while not worker.wants(t.SendHeartbeat):
            worker.take(t.Tick(), after_s=1.0)
        used = worker.beat.message.usage
        worker.answer_beat()
        return used

    def used(cpu_s, memory=None, gpu=None):
        worker.take(t.Measured(claim_id="claim", used=Used(cpu_s, memory, gpu)), after_s=10.0)

    used(5.0, 300, 0.5)
    used(25.0, 900, 1.0)
    assert beat() == Usage(cpu=2.0, memory_bytes=900, gpu=0.75)
    assert beat() is None, "nothing was measured since"
    used(85.0, 500)
    told = beat()
    assert told["memory_bytes"] == 500
    assert told["gpu"] is None
    assert 0 < told["cpu"] <= 6.0, "60 s of CPU since the measurement before the last heartbeat"
    used(80.0)
    assert beat()["cpu"] == 0.0, "a process that ended took its time along"


def test_trainer_that_neither_says_nor_computes_anything_is_stopped_as_failed():
    worker = Worker(max_silence_s=1860.0).running()
    for _ in range(186):
        assert not worker.wants(t.StopTrainer)
        measured(worker, cpu_s=7.0)
    measured(worker, cpu_s=7.0)
    assert worker.wants(t.StopTrainer)
    worker.take(t.Tick(), after_s=10.0)
    assert worker.wants(t.KillTrainer), "politely first, and not for long"
    worker.killed()
    failure = worker.report
    assert failure.reason is EndReason.TRAINER_FAILED
    assert failure.error.startswith("the trainer printed nothing and used no CPU for 31 min")
    assert failure.out_of_memory is None


def test_a_line_or_a_second_of_cpu_time_is_a_sign_of_life():
    worker = Worker(max_silence_s=100.0).running()
    for look in range(100):
        if look % 8 == 0:
            worker.printed("x")
        measured(worker, cpu_s=0.0)
    for look in range(4, 100):
        measured(worker, cpu_s=float(look // 8))
    assert worker.phase is Phase.RUNNING


def test_neither_sleep_nor_a_pause_nor_no_limit_is_silence():
    worker = Worker(max_silence_s=100.0).running(lease_s=1e6)
    measured(worker, cpu_s=0.0)
    measured(worker, cpu_s=0.0, after_s=300_000.0)
    assert worker.phase is Phase.RUNNING, "nobody looked for three days"
    worker = Worker(max_silence_s=0.0).running()
    for _ in range(1000):
        measured(worker, cpu_s=0.0, after_s=60.0)
    assert worker.phase is Phase.RUNNING
    worker = Worker(max_silence_s=600.0, on_silence=t.OnSilence.PAUSE).running()
    for _ in range(100):
        measured(worker, cpu_s=0.0)
    assert worker.phase is Phase.RUNNING
    assert worker.work.paused


def test_job_may_set_its_own_limits():
    job = structs.replace(JOB, spec={**JOB.spec, "max_run_s": 3600, "max_silence_s": 0})
    worker = Worker(max_silence_s=20.0).asking()
    worker.given(job, lease_s=1e6)
    worker.take(t.Spawned(claim_id="claim"))
    for look in range(361):
        assert worker.phase is Phase.RUNNING
        measured(worker, cpu_s=float(look) if look % 2 else 0.0)
    assert worker.wants(t.StopTrainer)
    worker.ended(75)
    failure = worker.report
    assert failure.reason is EndReason.TRAINER_FAILED
    assert failure.error.startswith("the trainer ran for 1 h 00 min and may run for 1 h 00 min")
    worker.failed("failed")
    assert not worker.wanted(t.Discard).job_over, "a requeue with more time goes on from there"
    assert measure_s(job, worker.settings) == 10.0
    assert measure_s(structs.replace(JOB, spec={"max_run_s": 2.0}), worker.settings) == 0.5


# ── whatever happens ────────────────────────────────────────────────────────────────────────

FAILURE = Failure(EndReason.SPAWN_FAILED, "x")
ENDS = (*(Ended(code=code) for code in (0, 0, 1, 65, 75)), *(Ended(signal=number) for number in (9, 15)), Ended())


def something(worker, rng):
    """Draw what may happen next, in or out of turn."""
    work = worker.state.work
    calls = [worker.state.call, worker.state.output_call, work and work.beat_call, rng.randint(0, worker.state.calls)]
    call = rng.choice([known for known in calls if known is not None])
    claim_id = rng.choice(["claim", "claim", "claim", "older"])
    answers = {
        Phase.ASKING: [claim_answered(call=call, assignment=rng.choice([None, JOB]))],
        Phase.UPLOADING: [t.Uploaded(call=call, artifact_id="ab"), t.DeliveryBroken(call=call, detail="x")],
        Phase.COMPLETING: [t.Completed(call=call, log_next=rng.randint(0, 50))],
        Phase.FAILING: [t.FailTaken(call=call, status=rng.choice(["pending", "failed"]), log_next=rng.randint(0, 50))],
    }
    happenings = [
        *(answers[worker.phase] if call == worker.state.call else [each for some in answers.values() for each in some]),
        t.Tick(),
        t.Slept(rng.uniform(5.0, 1e6)),
        beat_answered(call=(work and work.beat_call) or 0, order=rng.choice(list(Order)), log_next=rng.randint(0, 50)),
        t.OutputTaken(call=call, log_next=rng.randint(0, 50)),
        t.Measured(claim_id=claim_id, used=Used(rng.choice([0.0, 5.0]))),
        t.CallRefused(call=call, problem_type=rng.choice([*ProblemType, "unheard_of"])),
        t.NotAnswered(call=call, retry_after_s=rng.choice([None, 0.0, 5.0, 300.0])),
        t.Spawned(claim_id=claim_id),
        t.Spawned(claim_id=claim_id),
        t.SpawnFailed(claim_id=claim_id, failure=FAILURE),
        t.Printed(claim_id=claim_id, lines=("a", '{"event": "epoch"}')),
        t.TrainerEnded(claim_id=claim_id, ended=rng.choice(ENDS)),
        t.Unbearable(claim_id=claim_id, failure=FAILURE),
        t.Packed(claim_id=claim_id, path="/b", sha256="ab", size=1),
        t.PackFailed(claim_id=claim_id, failure=FAILURE),
    ]
    return t.SignalReceived() if rng.random() < 0.02 else rng.choice(happenings)


@settings(max_examples=400)
@given(st.integers(0, 2**32))
def test_invariants(seed):
    rng = random.Random(seed)
    worker = Worker(chance=rng.random(), on_silence=rng.choice(list(t.OnSilence)))
    worker.take(t.Begin())
    may_run = False  # a trainer
    saved = worker.state.saved
    for _ in range(80):
        event = something(worker, rng)
        had_work = worker.state.work is not None
        worker.take(event, after_s=rng.choice([0.0, 0.1, 5.0, 40.0, 700.0]))
        for action in worker.actions:
            match action:
                case t.Spawn():
                    assert not may_run, "two trainers at once"
                    may_run = True
                case t.Persist():
                    saved = action.saved
                case t.SendClaim():
                    assert saved.request_id == action.request_id, "sent before it was on the disk"
                    assert worker.state.work is None
                case t.SendFail():
                    assert saved.report is not None, "sent before it was on the disk"
                    assert saved.report.failure.error == action.message.error
                case t.Upload():
                    assert saved.delivery == action.delivery, "sent before it was on the disk"
        ended = isinstance(event, t.TrainerEnded | t.SpawnFailed) and event.claim_id == "claim"
        if (ended and had_work) or worker.state.work is None:
            may_run = False
        check(worker, saved)
        if worker.phase is Phase.GONE:
            assert worker.wants(t.EndProcess)
            return


def check(worker, saved):
    state, work = worker.state, worker.state.work
    assert saved == state.saved
    assert (work is None) == (state.phase in (Phase.IDLE, Phase.ASKING)) or state.phase is Phase.GONE
    if state.phase is Phase.GONE:
        return
    assert [type(action) for action in worker.actions].count(t.WakeAt) == 1
    wake_at = worker.wake_at
    assert wake_at is None or wake_at > worker.now or worker.chance == 0.0
    if state.phase is Phase.IDLE:
        assert state.call_at is not None, "an idle worker that never asks again"
    if state.phase in (Phase.UPLOADING, Phase.COMPLETING, Phase.FAILING, Phase.ASKING):
        assert state.call is not None or state.call_at is not None, "nothing would ever move"
    if state.phase is Phase.STOPPING:
        assert work.stop_by is not None
    if state.phase in (Phase.RUNNING, Phase.UPLOADING) and work is not None:
        assert work.beat_at is not None or state.phase is Phase.UPLOADING
    if state.signals and state.leave_by is not None:
        assert worker.now < state.leave_by

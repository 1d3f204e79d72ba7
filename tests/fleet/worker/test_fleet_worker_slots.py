"""Several jobs at once: whose an event is, who asks, what starts when, and what must hold whatever happens."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from wire_builders import a_grant, beat_answered, claim_answered

from training.fleet.process.ended import Ended
from training.fleet.process.usage import Used
from training.fleet.scheduling.job import EndReason
from training.fleet.wire.attempts import TrainerUse
from training.fleet.wire.constants import Action as Order
from training.fleet.wire.constants import ProblemType
from training.fleet.worker.state import events as t
from training.fleet.worker.state.claims import WAIT_BESIDE_S
from training.fleet.worker.state.exit_code import Failure, MemoryKind
from training.fleet.worker.state.halts import handed_back
from training.fleet.worker.state.slots import PENDING_SHARE, Slots, step
from training.fleet.worker.state.state import Phase
from training.fleet.worker.state.trainer import COMPANY_S, FIRST_BEAT_S

DONE = Ended(code=0)
SHORT_OF_MEMORY = Ended(signal=9, oom_kills=1)


def a_job(number, attempt=1):
    name = f"job-{number}"
    return a_grant(job_id=name, claim_id=f"claim-{number}-{attempt}", name=name, attempt=attempt)


class Worker:
    """Drives all machines and remembers what they wanted."""

    def __init__(self, allowed=2, **choices):
        self.settings = replace(t.WorkerSettings(), **choices)
        self.slots = Slots.of("0000000001-s")
        self.allowed = allowed
        self.now = 1000.0
        self.actions = []
        self.saved = {}

    def take(self, event, after_s=0.0):
        self.now += after_s
        self.slots, actions = step(self.slots, event, self.now, self.settings, lambda: 1.0)
        self.actions = list(actions)
        self.saved.update({each.slot: each.saved for each in self.all(t.Persist)})
        return self

    def all(self, kind):
        return [action for action in self.actions if isinstance(action, kind)]

    def one(self, kind):
        found = self.all(kind)
        assert len(found) == 1, f"{len(found)} of {kind.__name__} among {self.actions}"
        return found[0]

    def grant(self, job):
        """Answer the claim that was just sent."""
        claim = self.one(t.SendClaim)
        return self.take(claim_answered(call=claim.call, assignment=job, slots=self.allowed))

    def spawned(self, job):
        """Start a trainer, and let the time pass until its first heartbeat."""
        begun = self.take(t.Spawned(claim_id=job.claim_id)).actions
        self.take(t.Tick(), FIRST_BEAT_S)
        self.actions = [*begun, *self.actions]
        return self

    def ended(self, job, ended=DONE, after_s=0.0):
        return self.take(t.TrainerEnded(claim_id=job.claim_id, ended=ended), after_s)

    def packed(self, job):
        return self.take(t.Packed(claim_id=job.claim_id, path="/b", sha256="ab", size=1))

    def training(self, *jobs):
        """Take these on, one after the other; the next claim is out unless the worker is full."""
        self.take(t.Begin())
        for job in jobs:
            self.grant(job)
            claim = self.all(t.SendClaim)
            self.spawned(job)
            self.actions += claim
        return self

    def beat_answered(self, slot=0, **answer):
        call = self.slots.works[slot].beat_call
        assert call is not None
        return self.take(beat_answered(call=call, **answer))

    def failed(self):
        """Answer the report that was just sent."""
        return self.take(t.FailTaken(call=self.one(t.SendFail).call, status="pending"))

    def asks(self):
        return bool(self.all(t.SendClaim))

    @property
    def asked(self):
        return self.one(t.SendClaim)

    def phase(self, job):
        slot = self.slots.holder(job.claim_id)
        assert slot is not None
        return self.slots.machines[slot].phase


ONE, TWO, THREE, FOUR = (a_job(number) for number in range(1, 5))


# ── who asks ────────────────────────────────────────────────────────────────────────────────


def test_the_next_asks_as_soon_as_one_has_its_job_and_a_full_worker_asks_no_more():
    worker = Worker().take(t.Begin())
    assert worker.asked.slot == 0
    worker.grant(ONE)
    assert worker.one(t.Spawn).assignment == ONE
    assert (worker.asked.slot, worker.asked.delivering) == (1, ())
    worker.grant(TWO)
    assert not worker.asks(), "it is full"
    worker.spawned(ONE).spawned(TWO)
    for _ in range(20):
        worker.take(t.Tick(), after_s=60.0)
        assert not worker.asks()


def test_requests_have_ids_and_numbers_of_their_own():
    worker = Worker(allowed=3).take(t.Begin())
    seen = [worker.asked]
    for job in (ONE, TWO):
        worker.grant(job)
        seen.append(worker.asked)
    assert len({each.request_id for each in seen}) == 3
    assert len({each.call for each in seen}) == 3
    assert [each.slot for each in seen] == [0, 1, 2]


def test_what_is_packed_takes_no_slot_and_is_named():
    worker = Worker().training(ONE, TWO).ended(ONE)
    assert worker.one(t.Pack).assignment == ONE
    claim = worker.asked
    assert (claim.slot, claim.delivering) == (2, (ONE.claim_id,))
    worker.grant(THREE)
    assert not worker.asks()
    assert (worker.phase(ONE), worker.phase(THREE)) == (Phase.PACKING, Phase.STARTING)


def test_a_host_of_one_slot_takes_the_next_job_while_it_packs_and_uploads_the_last():
    worker = Worker(allowed=1).training(ONE)
    assert not worker.asks(), "one that trains takes none beside"
    worker.ended(ONE)
    claim = worker.asked
    assert (claim.slot, claim.delivering) == (1, (ONE.claim_id,))
    worker.grant(TWO)
    assert worker.one(t.Spawn).assignment == TWO
    worker.packed(ONE)
    assert worker.one(t.Upload).delivery.assignment == ONE
    assert not worker.asks()
    assert (worker.phase(ONE), worker.phase(TWO)) == (Phase.UPLOADING, Phase.STARTING)


def test_a_host_of_one_slot_lets_no_more_than_two_deliveries_pile_up():
    worker = Worker(allowed=1).training(ONE)
    for last, job in ((ONE, TWO), (TWO, THREE)):
        worker.ended(last).grant(job).spawned(job)
    worker.ended(THREE)
    assert not worker.asks()
    assert len(worker.slots.works) == 1 + PENDING_SHARE


def test_a_network_that_is_slow_lets_no_more_than_two_deliveries_a_slot_pile_up():
    worker = Worker(allowed=2)
    worker.take(t.Begin())
    for number in range(20):
        if not worker.all(t.SendClaim):
            break
        job = a_job(number)
        worker.grant(job)
        claims = worker.all(t.SendClaim)
        worker.spawned(job)
        claims += worker.all(t.SendClaim)
        worker.ended(job)
        worker.actions += claims
    assert len(worker.slots.works) == 2 * (1 + PENDING_SHARE)


def test_a_receiver_that_allows_fewer_takes_no_job_away():
    worker = Worker(allowed=3).training(ONE, TWO)
    asked = worker.asked
    worker.beat_answered(slots=1)
    worker.take(claim_answered(call=asked.call, reason="it is full", slots=1))
    for _ in range(9):
        worker.take(t.Tick(), after_s=60.0)
        assert not worker.asks()
    assert {worker.phase(ONE), worker.phase(TWO)} == {Phase.RUNNING}


def test_a_claim_without_an_answer_is_repeated_though_there_is_no_room_any_more():
    worker = Worker(allowed=2).training(ONE)
    asked = worker.asked
    worker.take(t.NotAnswered(call=asked.call, detail="down"))
    worker.beat_answered(slots=1)
    worker.take(t.Tick(), after_s=60.0)
    assert (worker.asked.request_id, worker.asked.slot) == (asked.request_id, asked.slot)


# ── whose an event is ───────────────────────────────────────────────────────────────────────


def test_each_event_reaches_the_machine_that_waits_for_it_alone():
    worker = Worker().training(ONE, TWO)
    before = worker.slots.machines
    worker.take(t.Printed(claim_id=TWO.claim_id, lines=("a",)))
    assert worker.slots.machines[0] == before[0] or worker.slots.works[0].printed == 0
    assert worker.slots.works[1].printed == 1
    beats = [worker.slots.works[slot].beat_call for slot in (0, 1)]
    assert None not in beats
    assert beats[0] != beats[1]
    worker.take(t.CallRefused(call=beats[1] or 0, problem_type=ProblemType.JOB_CANCELLED))
    assert worker.one(t.KillTrainer).claim_id == TWO.claim_id
    assert worker.phase(ONE) is Phase.RUNNING
    worker.take(t.TrainerEnded(claim_id="nobody's", ended=DONE)).take(t.Uploaded(call=99_999, artifact_id="ab"))
    assert worker.phase(ONE) is Phase.RUNNING


# ── which trainer waits ─────────────────────────────────────────────────────────────────────


def test_a_job_that_came_again_waits_for_its_last_attempt_here():
    again = a_job(1, attempt=2)
    worker = Worker().training(ONE).ended(ONE).packed(ONE)
    worker.actions = [*worker.actions]
    claim = next(one for one in worker.slots.machines.values() if one.phase is Phase.ASKING)
    worker.take(claim_answered(call=claim.call or 0, assignment=again, slots=2))
    assert not worker.all(t.Spawn), "both would use one bundle and one saved state"
    upload = worker.slots.machines[0].call
    worker.take(t.CallRefused(call=upload or 0, problem_type=ProblemType.LEASE_SUPERSEDED))
    assert [type(each) for each in worker.actions if isinstance(each, t.Discard | t.Spawn)] == [t.Discard, t.Spawn]


def test_work_that_waits_for_an_operator_holds_up_no_job():
    worker, job = Worker(allowed=1).training(ONE), ONE
    for attempt in range(2, 6):
        worker.ended(job).packed(job)
        worker.take(t.Uploaded(call=worker.one(t.Upload).call, artifact_id="ab"))
        worker.take(t.Unconfirmed(call=worker.one(t.SendComplete).call))
        asking = next(one for one in worker.slots.machines.values() if one.phase is Phase.ASKING)
        job = a_job(1, attempt)
        worker.take(claim_answered(call=asking.call or 0, assignment=job, slots=1))
        assert worker.one(t.Spawn).assignment == job, "the same job, as the receiver gave it out again"
        worker.spawned(job)
    assert (len(worker.slots.works), len(worker.slots.busy)) == (5, 1)


def test_out_of_memory_beside_others_costs_no_attempt_and_is_tried_alone():
    worker = Worker().training(ONE, TWO).ended(ONE, SHORT_OF_MEMORY, after_s=5.0)
    failure = worker.one(t.SendFail).message
    assert (failure.reason, failure.out_of_memory) == (EndReason.INTERRUPTED, None)
    assert failure.error.startswith("it ran out of memory beside other trainers")
    worker.ended(TWO, SHORT_OF_MEMORY, after_s=1.0)
    assert worker.one(t.SendFail).message.reason is EndReason.INTERRUPTED, "both used it up"
    assert worker.slots.alone == (ONE.job_id, TWO.job_id)


def test_a_job_to_be_trained_alone_waits_for_the_others_and_keeps_others_out():
    worker = Worker(allowed=3).training(ONE, TWO, THREE).ended(ONE, SHORT_OF_MEMORY)
    again = a_job(1, attempt=2)
    fail, claim = worker.one(t.SendFail), worker.asked
    worker.take(t.FailTaken(call=fail.call, status="pending"))
    worker.take(claim_answered(call=claim.call, assignment=again, slots=3))
    assert not worker.all(t.Spawn) + worker.all(t.SendClaim)
    assert len(worker.slots.held_beside(TWO.claim_id)) == 1, "what waits holds nothing"
    worker.ended(TWO, after_s=500.0)
    assert not worker.all(t.Spawn) + worker.all(t.SendClaim)
    worker.ended(THREE)
    assert worker.one(t.Spawn).assignment == again
    worker.spawned(again)
    assert not worker.asks()
    worker.ended(again, SHORT_OF_MEMORY, after_s=100.0)
    assert worker.one(t.SendFail).message.out_of_memory is MemoryKind.RAM, "alone it needs more"
    assert worker.slots.alone == ()
    assert worker.asks()


def test_out_of_memory_long_after_the_others_have_ended_is_its_own():
    worker = Worker().training(ONE, TWO).ended(TWO).ended(ONE, SHORT_OF_MEMORY, after_s=COMPANY_S + 1)
    assert worker.one(t.SendFail).message.out_of_memory is MemoryKind.RAM


def test_a_job_to_be_trained_alone_is_known_after_a_restart():
    worker = Worker().training(ONE, TWO).ended(ONE, SHORT_OF_MEMORY)
    kept = worker.one(t.RememberAlone).jobs
    assert kept == (ONE.job_id,)
    worker = Worker().take(t.Begin(alone=kept)).grant(TWO)
    worker.spawned(TWO)
    assert worker.slots.alone == kept
    worker.take(t.TrainerEnded(claim_id=TWO.claim_id, ended=DONE))
    assert not worker.all(t.RememberAlone), "nothing new is known"


def test_a_job_that_never_started_is_still_to_be_trained_alone():
    worker = Worker().take(t.Begin(alone=(ONE.job_id,))).grant(ONE)
    worker.take(t.SpawnFailed(claim_id=ONE.claim_id, failure=handed_back("no room")))
    assert worker.slots.alone == (ONE.job_id,)


def test_a_claim_tells_what_each_trainer_holds():
    worker = Worker(allowed=3).training(ONE)
    asked = worker.asked
    worker.take(t.Measured(claim_id=ONE.claim_id, used=Used(1.0, 2**31, None, 2**30)))
    worker.take(t.Measured(claim_id=ONE.claim_id, used=Used(2.0, 2**30)))
    claim = worker.take(claim_answered(call=asked.call, assignment=TWO, slots=3)).one(t.SendClaim)
    assert claim.training == (
        TrainerUse(claim_id=ONE.claim_id, ram_gib=1.0, vram_gib=0.0),
        TrainerUse(claim_id=TWO.claim_id),
    )
    assert [each.ram_used_gib for each in worker.slots.held_beside(TWO.claim_id)] == [1.0]
    assert worker.slots.works[0].memory.record(0) == {"max_rss_kib": 2**21, "max_vram_kib": 2**20}


# ── a restart ───────────────────────────────────────────────────────────────────────────────


def delivery(job):
    return t.Delivery(assignment=job, path="/b", sha256="ab", size=1)


def test_each_slot_goes_on_with_its_own_file_and_one_asks_beside():
    worker = Worker()
    failed = t.FailureReport(assignment=TWO, failure=Failure(EndReason.TRAINER_FAILED, "e"))
    others = ((1, t.Saved(report=failed), t.Remains()), (4, t.Saved(held=THREE), t.Remains(ended=DONE)))
    worker.take(t.Begin(t.Saved(delivery=delivery(ONE)), others=others))
    assert {type(each) for each in worker.actions} >= {t.Upload, t.SendFail, t.Pack}
    assert not worker.asks(), "it does not know yet that it may hold several"
    worker.beat_answered(slots=2)
    claim = worker.asked
    assert claim.delivering == (ONE.claim_id, TWO.claim_id, THREE.claim_id)
    assert claim.slot == 2


def test_a_request_that_may_have_been_granted_is_repeated_first():
    worker = Worker()
    others = ((3, t.Saved(request_id="older-7"), t.Remains()),)
    worker.take(t.Begin(t.Saved(delivery=delivery(ONE)), others=others))
    assert (worker.asked.request_id, worker.asked.slot) == ("older-7", 3)
    assert worker.asked.delivering == (ONE.claim_id,)


def test_a_crash_of_one_job_is_told_of_whichever_slot():
    worker = Worker().take(t.Begin(others=((2, t.Saved(held=ONE, crashed=()), t.Remains()),)))
    claim = worker.asked
    assert (claim.crashed_claims, worker.slots.alone) == ((ONE.claim_id,), ())
    assert worker.saved[claim.slot].crashed == (ONE.claim_id,)
    assert not any(saved.held for saved in worker.saved.values()), "the next crash counts anew"


def test_a_crash_of_several_makes_none_a_suspect_and_each_is_tried_alone():
    worker = Worker()
    others = ((1, t.Saved(held=TWO), t.Remains()), (2, t.Saved(held=THREE), t.Remains()))
    worker.take(t.Begin(t.Saved(held=ONE, crashed=("older",)), others=others))
    assert worker.asked.crashed_claims == ("older",)
    assert worker.slots.alone == (ONE.job_id, TWO.job_id, THREE.job_id)
    kept = {slot: saved.held for slot, saved in worker.saved.items()}
    assert kept == {0: None, 1: None, 2: None}, "the next crash counts anew"
    again = a_job(2, attempt=2)
    worker.grant(again)
    assert worker.one(t.Spawn).assignment == again
    assert not worker.asks(), "alone"
    worker.spawned(again).ended(again)
    assert worker.slots.alone == (ONE.job_id, THREE.job_id), "it is freed of it"
    assert worker.asked


# ── leaving ─────────────────────────────────────────────────────────────────────────────────


def test_a_signal_stops_all_and_the_last_one_ends_the_worker():
    worker = Worker().training(ONE, TWO).take(t.SignalReceived())
    assert {each.claim_id for each in worker.all(t.StopTrainer)} == {ONE.claim_id, TWO.claim_id}
    for job in (ONE, TWO):
        worker.ended(job, Ended(code=75))
        worker.failed()
    assert worker.one(t.EndProcess) == t.EndProcess()
    assert worker.slots.gone
    assert worker.take(t.Tick()).actions == []


def test_what_a_worker_that_leaves_is_given_meanwhile_is_handed_back_too():
    worker = Worker(allowed=2).training(ONE)
    asked = worker.asked
    assert asked.wait_s == WAIT_BESIDE_S, "so long it may take"
    worker.take(t.SignalReceived()).ended(ONE, Ended(code=75))
    worker.failed()
    assert not worker.all(t.EndProcess), "its claim may be granted what it has just handed back"
    worker.take(claim_answered(call=asked.call, assignment=a_job(1, attempt=2), slots=2))
    assert not worker.all(t.Spawn) + worker.all(t.SendClaim)
    assert worker.one(t.SendFail).message.reason is EndReason.WORKER_SHUTDOWN
    worker.failed()
    assert worker.one(t.EndProcess) == t.EndProcess()


def test_a_worker_that_leaves_waits_for_no_answer_that_does_not_come():
    worker = Worker(allowed=2).training(ONE)
    asked = worker.asked
    worker.take(t.SignalReceived()).ended(ONE, Ended(code=75))
    worker.failed()
    assert not worker.take(t.Tick(), after_s=1.0).all(t.EndProcess)
    worker.take(t.Tick(), after_s=worker.settings.leave_s)
    assert worker.one(t.EndProcess) == t.EndProcess()
    assert worker.saved[asked.slot].request_id == asked.request_id, "the next session asks"


def test_a_host_that_may_not_ask_any_more_ends_what_it_holds_first():
    worker = Worker(allowed=2).training(ONE)
    worker.take(t.CallRefused(call=worker.asked.call, problem_type=ProblemType.WRONG_ROLE, detail="no"))
    assert not worker.all(t.EndProcess)
    worker.ended(ONE).packed(ONE)
    worker.take(t.Uploaded(call=worker.slots.machines[0].call or 0, artifact_id="ab"))
    worker.take(t.Completed(call=worker.slots.machines[0].call or 0))
    assert worker.one(t.EndProcess) == t.EndProcess(code=2, sentence="no")


def test_drain_finishes_every_job_and_takes_no_more():
    worker = Worker(allowed=3).training(ONE, TWO)
    asked, beat = worker.asked.call, worker.slots.works[0].beat_call
    worker.take(beat_answered(call=beat or 0, order=Order.DRAIN))
    worker.take(claim_answered(call=asked))
    for _ in range(3):
        assert not worker.take(t.Tick(), after_s=20.0).all(t.SendClaim)
    for job in (ONE, TWO):
        worker.ended(job, Ended(code=1))
        worker.failed()
    assert worker.one(t.EndProcess) == t.EndProcess()


# ── whatever happens ────────────────────────────────────────────────────────────────────────

ENDS = (DONE, DONE, SHORT_OF_MEMORY, Ended(code=1), Ended(code=75), Ended())
PROBLEMS = (
    ProblemType.LEASE_SUPERSEDED,
    ProblemType.JOB_CANCELLED,
    ProblemType.SLOT_BUSY,
    ProblemType.WRONG_DIGEST,
    ProblemType.NO_ARTIFACT,
)


def something(worker, rng, numbers):
    """Draw what may happen next to any of the machines, in or out of turn."""
    slots = worker.slots
    waits = [(one.call, one.phase) for one in slots.machines.values() if one.call is not None]
    waits += [(work.beat_call, Phase.RUNNING) for work in slots.works.values() if work.beat_call is not None]
    claims = [work.assignment.claim_id for work in slots.works.values()] or ["nobody's"]
    claim = rng.choice([*claims, "nobody's"])
    call, phase = rng.choice([*waits, (0, Phase.IDLE)])
    if rng.random() < 0.02:
        return t.SignalReceived()
    if rng.random() < 0.1:
        problem = rng.choice(PROBLEMS)
        return rng.choice([t.NotAnswered(call=call), t.CallRefused(call=call, problem_type=problem), t.Tick()])
    if rng.random() < 0.45:
        allowed = rng.choice([None, None, 1, 2, 3])
        numbers.append(rng.choice([*numbers, len(numbers)]) if rng.random() < 0.2 else len(numbers))
        job = a_job(numbers[-1], attempt=len(numbers))
        answers = {
            Phase.ASKING: [claim_answered(call=call, assignment=rng.choice([job, job, None]), slots=allowed)],
            Phase.UPLOADING: [t.Uploaded(call=call, artifact_id="ab"), t.DeliveryBroken(call=call, detail="x")],
            Phase.COMPLETING: [t.Completed(call=call)],
            Phase.FAILING: [t.FailTaken(call=call, status="pending")],
        }
        return rng.choice(answers.get(phase, [beat_answered(call=call, slots=allowed)]))
    return rng.choice(
        [
            t.Tick(),
            t.Slept(9.0),
            t.Spawned(claim_id=claim),
            t.Spawned(claim_id=claim),
            t.SpawnFailed(claim_id=claim, failure=Failure(EndReason.SPAWN_FAILED, "x")),
            t.Printed(claim_id=claim, lines=("a",)),
            t.TrainerEnded(claim_id=claim, ended=rng.choice(ENDS)),
            t.TrainerEnded(claim_id=claim, ended=rng.choice(ENDS)),
            t.Packed(claim_id=claim, path="/b", sha256="ab", size=1),
        ]
    )


class Invariants:
    """What must hold after every step."""

    def __init__(self, worker):
        self.worker = worker
        self.alive = {}  # claim → its trainer that was started and not heard to end

    def look(self, event, before):
        worker, slots = self.worker, self.worker.slots
        if isinstance(event, t.TrainerEnded | t.SpawnFailed):
            self.alive.pop(event.claim_id, None)
        for action in worker.actions:
            match action:
                case t.Discard():
                    self.alive.pop(action.assignment.claim_id, None)
                case t.Spawn(assignment=job):
                    assert job.job_id not in [other.job_id for other in self.alive.values()], "two of one job"
                    alone = [each.job_id for each in (job, *self.alive.values()) if each.job_id in slots.alone]
                    assert not (alone and self.alive), "beside one that has to be alone"
                    self.alive[job.claim_id] = job
                case t.SendClaim():
                    self.claimed(action, before, event)
                case t.Upload() | t.SendComplete():
                    slot = slots.holder(action.delivery.assignment.claim_id)
                    assert slot is not None
                    assert worker.saved[slot].delivery == action.delivery, "not in its own file"
        self.only_its_own(event, before)
        asking = [one for one in slots.machines.values() if one.phase is Phase.ASKING]
        assert len(asking) <= 1
        if not slots.gone:
            wake = worker.actions[-1]
            assert isinstance(wake, t.WakeAt), "it would never look again"
            for slot, one in slots.machines.items():
                assert worker.saved.get(slot, t.Saved()) == one.saved, "another slot's file"
            idle = not slots.works and not slots.leaving and slots.last_word is None
            assert not idle or asking or wake.at is not None, "a worker that never asks again"
        else:
            assert before.gone or len(worker.all(t.EndProcess)) == 1

    def claimed(self, claim, before, event):
        slots = self.worker.slots
        assert self.worker.saved[claim.slot].request_id == claim.request_id, "sent before it was on the disk"
        assert slots.machines[claim.slot].work is None, "granted twice in one slot"
        training = {work.assignment.claim_id for slot, work in slots.works.items() if slot in slots.training}
        assert not training & set(claim.delivering), "a trainer that runs is given away"
        assert training | set(claim.delivering) == {work.assignment.claim_id for work in slots.works.values()}
        repeated = any(one.request_id == claim.request_id and one.unanswered for one in before.machines.values())
        if not repeated:
            assert len(training) < slots.allowed
            assert len(slots.works) < (1 + PENDING_SHARE) * slots.allowed

    def only_its_own(self, event, before):
        """What a trainer said, or left, is noted where its claim is."""
        for slot, work in before.works.items():
            now = self.worker.slots.works.get(slot)
            if work.assignment.claim_id != getattr(event, "claim_id", None) and now is not None:
                assert (now.printed, now.delivery) == (work.printed, work.delivery)


@settings(max_examples=100)
@given(st.integers(0, 2**32))
def test_invariants(seed):
    rng = random.Random(seed)
    worker = Worker(on_silence=rng.choice(list(t.OnSilence)))
    invariants = Invariants(worker)
    numbers = []
    worker.take(t.Begin())
    for _ in range(120):
        event, before = something(worker, rng, numbers), worker.slots
        worker.take(event, after_s=rng.choice([0.0, 0.1, 5.0, 40.0]))
        invariants.look(event, before)

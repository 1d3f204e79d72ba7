"""PURE: several jobs at once. There is a state machine (step.py) for each current job. Of the machines without a job at
most one asks for work; the others stay only while they have undelivered output or a saved state, but the first always.

Rules about one job are in step.py and its phases. This module decides to which machine an event belongs, which machine
may ask, which trainer has to wait, and when the worker ends.

======================  =========================================================================================
whose is an event       An answer belongs to the machine that waits for its number, which no other call has. An event of
                        a trainer belongs to the machine that holds its claim. If no machine waits for an answer or
                        holds a trainer's claim, the event only advances the time.
who asks                One machine without a job asks, while fewer trainers run than the receiver last allowed and
                        finished work does not pile up. The worker may take the next job while the machine whose trainer
                        has ended still packs and uploads. A claim that may have been granted is repeated in any case.
whose trainer waits     A trainer waits while another machine still holds the same job. A trainer whose job must be
                        trained alone waits until the others have ended; until then no machine asks.
who is trained alone    A job whose trainer ran out of memory beside others, and jobs that a crash found together,
                        because any of them may be the cause. A job is trained alone until one attempt alone has ended;
                        the list of the jobs to be trained alone is saved on the disk.
when the worker ends    The worker ends when every machine has ended.
======================  =========================================================================================

If the receiver lowers the number of trainers that it allows, those that run continue.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from training.certain import certain
from training.fleet.scheduling.resources import Booking, HeldAttempt
from training.fleet.wire.attempts import HostTerms, TrainerUse
from training.fleet.worker.state import events as t
from training.fleet.worker.state import step as machine
from training.fleet.worker.state.halts import halt, handed_back, keeps_awake
from training.fleet.worker.state.owner import Owner, look, told
from training.fleet.worker.state.state import SHUTDOWN, WITH_TRAINER, Chance, Halt, Phase, State, Work

__all__ = ["Slots", "step"]

PENDING_SHARE = 2  # deliveries for each trainer that is allowed: of more, the network is the bottleneck
ALONE_KEPT = 100  # jobs, the newest
_HAS_STARTED = frozenset({Phase.RUNNING, Phase.STOPPING})


# The members of a machine's state that are the worker's: each machine gets them from the one before.
_SHARED = ("calls", "requests", "echo", "idle", "crashed")


class Slots(Struct, frozen=True, kw_only=True):
    """The whole worker's state. :meth:`of` makes the state of a worker that starts, whose first event must be Begin."""

    machines: Mapping[int, State]  # by slot, which is also that of its claim and of its file
    allowed: int = 1  # how many trainers at once, as the receiver said last
    shared: Mapping[str, Any] = {}
    wakes: Mapping[int, float | None] = {}  # when each machine wants a Tick
    waiting: Mapping[int, t.Spawn] = {}  # trainers that may not start yet
    alone: tuple[str, ...] = ()  # jobs to be trained alone
    terms: HostTerms = HostTerms()  # as the receiver said last
    owner: Owner = Owner()  # what was seen of its owner's conditions
    last_word: t.EndProcess | None = None  # what the worker ends with, when its jobs have ended

    @classmethod
    def of(cls, session_id: str) -> Slots:
        return cls(machines={0: State(session_id=session_id)})

    @property
    def works(self) -> Mapping[int, Work]:
        """The current jobs, by slot."""
        return {slot: one.work for slot, one in self.machines.items() if one.work is not None}

    @property
    def busy(self) -> Mapping[int, Work]:
        """The current jobs, by slot, except those that wait for an operator at the receiver."""
        return {slot: work for slot, work in self.works.items() if not work.unconfirmed}

    @property
    def training(self) -> list[int]:
        """The slots whose trainers are starting (perhaps while their data arrive), running, or stopping."""
        return [slot for slot, one in self.machines.items() if one.phase in WITH_TRAINER]

    @property
    def delivering(self) -> tuple[str, ...]:
        """The claims whose trainers have ended, and whose bundle or failure is being packed, uploaded or reported."""
        return tuple(
            one.work.assignment.claim_id
            for one in self.machines.values()
            if one.work is not None and one.phase not in WITH_TRAINER
        )

    @property
    def halt(self) -> Halt | None:
        """Return the reason why this host trains nothing now; None if it may train."""
        return halt(self.terms, self.owner)

    @property
    def keeps_awake(self) -> bool:
        """Return True while the machine must not fall asleep."""
        running = (one.work for one in self.machines.values() if one.phase is Phase.RUNNING)
        trains = any(work is not None and work.stood_at is None for work in running)
        return keeps_awake(self.terms, self.owner, trains=trains)

    @property
    def using(self) -> tuple[TrainerUse, ...]:
        """The claims whose trainers are starting, running or stopping, and the memory that each of them uses."""
        works = [self.works[slot] for slot in self.training]
        return tuple(
            TrainerUse(claim_id=each.assignment.claim_id, ram_gib=each.memory.ram_gib, vram_gib=each.memory.vram_gib)
            for each in works
        )

    def held_beside(self, claim_id: str) -> list[HeldAttempt]:
        """Return the bookings and the memory use of all trainers but this claim's, except those that may not start
        yet."""
        own = self.holder(claim_id)
        works = [self.works[slot] for slot in self.training if slot != own and slot not in self.waiting]
        booked = [(t.booking_of(each.assignment) or Booking(), each.memory) for each in works]
        return [HeldAttempt(booking, memory.ram_gib, memory.vram_gib) for booking, memory in booked]

    @property
    def gone(self) -> bool:
        return all(one.phase is Phase.GONE for one in self.machines.values())

    @property
    def leaving(self) -> bool:
        return any(one.leaving for one in self.machines.values())

    def waits_for(self, call: int) -> int | None:
        """Return the slot that waits for the answer to this call; None if no slot does."""
        for slot, one in self.machines.items():
            if call in (one.call, one.output_call, one.work and one.work.beat_call):
                return slot
        return None

    def holder(self, claim_id: str) -> int | None:
        """Return the slot that holds this claim; None if no slot does."""
        return next((slot for slot, work in self.works.items() if work.assignment.claim_id == claim_id), None)


def step(
    slots: Slots, event: t.Event, now: float, settings: t.WorkerSettings, chance: Chance
) -> tuple[Slots, tuple[t.WorkerAction, ...]]:
    """Return the worker's next state and its actions when ``event`` happens at ``now``."""
    if slots.gone:
        return slots, ()
    turn = _Turn(slots, now, settings.leave_s, lambda state, event: machine.step(state, event, now, settings, chance))
    turn.take(event)
    return turn.slots, tuple(turn.actions)


class _Turn:
    """One step of the whole worker, while its next state and actions are being computed."""

    def __init__(
        self,
        slots: Slots,
        now: float,
        leave_s: float,
        move: Callable[[State, t.Event], tuple[State, tuple[t.WorkerAction, ...]]],
    ) -> None:
        self.slots = slots
        self.now = now
        self.actions: list[t.WorkerAction] = []
        self._leave_s = leave_s
        self._move = move
        self._said: dict[str, int] = {}

    def take(self, event: t.Event) -> None:
        before = self.slots
        if isinstance(event, t.Begin):
            before = self.slots = replace(self.slots, alone=event.alone[-ALONE_KEPT:])
        self._note_company()
        match event:
            case t.Begin():
                self._begin(event)
            case t.SignalReceived() if (asking := self._asks_beside()) is not None:
                for slot in sorted(self.slots.machines):
                    if slot != asking:
                        self._step(slot, event)
                    else:
                        self._hear_first(slot)
            case t.Tick() | t.SignalReceived() | t.Slept() | t.Seen():
                if isinstance(event, t.Seen):
                    self._change(owner=look(self.slots.owner, self.slots.terms, event.sight, self.now))
                    event = t.Tick()
                for slot in sorted(self.slots.machines):
                    self._step(slot, event)
            case _:
                self._hear(event)
                owner = _owner(self.slots, event)
                self._step(owner or 0, t.Tick() if owner is None else event)
                self._tell_others(owner or 0, before)
        self._settle(before)
        if self.slots.keeps_awake != before.keeps_awake:
            self.actions.append(t.KeepAwake(on=self.slots.keeps_awake))
        if self.slots.alone != before.alone:
            self.actions.append(t.RememberAlone(jobs=self.slots.alone))
        if not self.slots.gone:
            times = (at for at in self.slots.wakes.values() if at is not None)
            self.actions.append(t.WakeAt(at=min(times, default=None)))

    # ── one machine ─────────────────────────────────────────────────────────────────────────

    def _step(self, slot: int, event: t.Event) -> None:
        beside = any(one.work is not None for other, one in self.slots.machines.items() if other != slot)
        others = {"beside": beside, "halt": self.slots.halt, **self.slots.shared}
        before = replace(self.slots.machines[slot], **others)
        state, actions = self._move(before, event)
        self._set(slot, state)
        self._change(shared={name: getattr(state, name) for name in _SHARED})
        if state.phase is Phase.GONE:
            self._change(wakes={**self.slots.wakes, slot: None})
        for action in actions:
            self._pass_on(slot, action)

    def _pass_on(self, slot: int, action: t.WorkerAction) -> None:
        """Add a machine's action to the worker's, completed by what only the whole worker knows; a trainer that must
        wait is not started."""
        match action:
            case t.WakeAt():
                self._change(wakes={**self.slots.wakes, slot: action.at})
            case t.EndProcess():
                self._leave(action)
            case t.Persist():
                self.actions.append(replace(action, slot=slot))
            case t.SendClaim():
                self.actions += [t.Persist(saved=t.Saved(), slot=other) for other in self._named(slot)]
                delivering, training = self.slots.delivering, self.slots.using
                self.actions.append(replace(action, slot=slot, delivering=delivering, training=training))
            case t.Spawn() if self._must_wait(slot) or self.slots.machines[slot].signals:
                self._change(waiting={**self.slots.waiting, slot: action})
                self._set_work(slot, progress={"event": "waiting"})
            case t.Say() if self._said.setdefault(action.text, slot) != slot:
                pass  # as that the machine slept: once for all
            case _:
                self.actions.append(action)

    def _named(self, asking: int) -> list[int]:
        """Return the other slots whose file still has a job that a crash ended, and empty their saved state."""
        found = [
            slot
            for slot, one in self.slots.machines.items()
            if slot != asking and one.work is None and one.saved.held is not None
        ]
        for slot in found:
            self._set(slot, replace(self.slots.machines[slot], saved=t.Saved()))
        return found

    def _leave(self, said: t.EndProcess) -> None:
        """Record how the worker ends, when one machine has ended. After the last one, end the process; after an error,
        let the others deliver their work and take no more jobs."""
        first = self.slots.last_word
        if first is None or (said.code and not first.code):
            self._change(last_word=said)
        if self.slots.gone:
            self.actions.append(certain(self.slots.last_word, "set above"))
        elif said.code:
            self._drain()

    def _drain(self) -> None:
        for slot, one in self.slots.machines.items():
            self._set(slot, replace(one, draining=True))

    def _change(self, **changes: object) -> None:
        self.slots = replace(self.slots, **changes)

    def _set(self, slot: int, state: State) -> None:
        self._change(machines={**self.slots.machines, slot: state})

    def _set_work(self, slot: int, **changes: object) -> None:
        one = self.slots.machines[slot]
        assert one.work is not None
        self._set(slot, replace(one, work=replace(one.work, **changes)))

    # ── what happened before ────────────────────────────────────────────────────────────────

    def _begin(self, begin: t.Begin) -> None:
        """Start each slot with its own saved file; none asks for a job before all have started."""
        if not begin.others:
            self._step(0, begin)
            return
        beginnings = {0: begin, **{slot: t.Begin(saved, found) for slot, saved, found in begin.others}}
        lost = [
            each.saved.held for each in beginnings.values() if each.saved.held is not None and each.found.ended is None
        ]
        several = sum(each.saved.held is not None for each in beginnings.values()) > 1
        (first,) = self.slots.machines.values()
        crashed: tuple[str, ...] = ()
        for slot, each in sorted(beginnings.items()):
            self._set(slot, State(session_id=first.session_id, benched=True))
            self._change(shared={**self.slots.shared, "crashed": ()})
            found = dataclasses.replace(each.found, beside=several)
            self._step(slot, dataclasses.replace(each, found=found))
            crashed += self.slots.shared["crashed"]
        if len(lost) > 1:  # one of them may have done it, or none
            crashed = tuple(claim for claim in crashed if claim not in {each.claim_id for each in lost})
            self._train_alone(*(each.job_id for each in lost))
        self._change(shared={**self.slots.shared, "crashed": crashed[-machine.CRASHES_TOLD :]})

    def _hear(self, event: t.Event) -> None:
        """Apply the receiver's limit on simultaneous jobs, and the conditions of the host's owner and operators."""
        if _owner(self.slots, event) is None:
            return
        if isinstance(event, t.ClaimAnswered | t.HeartbeatAnswered):
            if event.reply.slots is not None:
                self._change(allowed=event.reply.slots)
            if event.reply.terms is not None:
                self._change(terms=event.reply.terms, owner=told(self.slots.owner, event.reply.terms))

    def _tell_others(self, told: int, before: Slots) -> None:
        """Step the other machines too, if the event began or ended a halt of the host."""
        if self.slots.halt != before.halt:
            for slot in sorted(self.slots.machines):
                if slot != told:
                    self._step(slot, t.Tick())

    def _asks_beside(self) -> int | None:
        """Return the slot that asks for a job while others hold jobs, else None. A job that the others hand back may be
        granted to the asking slot."""
        asking = (slot for slot, one in self.slots.machines.items() if one.phase is Phase.ASKING)
        return next(asking, None) if self.slots.works else None

    def _hear_first(self, slot: int) -> None:
        """Make an asking machine leave when its claim is answered; it hands back a job that it is then granted."""
        one = self.slots.machines[slot]
        leave_by = next((other.leave_by for other in self.slots.machines.values() if other.leave_by is not None), None)
        leave_by = leave_by or self.now + self._leave_s
        self._set(slot, replace(one, signals=one.signals + 1, leave_by=one.leave_by or leave_by))
        self._step(slot, t.Tick())

    def _note_company(self) -> None:
        """Record for each running trainer when others last ran at the same time."""
        running = [slot for slot, one in self.slots.machines.items() if one.phase in _HAS_STARTED]
        for slot in running if len(running) > 1 else ():
            self._set_work(slot, beside_at=self.now)

    # ── what follows for the others ─────────────────────────────────────────────────────────

    def _settle(self, before: Slots) -> None:
        """Start the trainers that no longer wait, remove machines that are not needed, and let one machine ask."""
        ended = [slot for slot in before.training if slot not in self.slots.training]
        for slot in ended:
            self._judge(before.machines[slot], self.slots.works.get(slot))
        self._start_waiting()
        if self.slots.leaving:
            self._end_idle()
        if not self.slots.gone:
            self._choose(again=bool(ended))

    def _judge(self, before: State, now: Work | None) -> None:
        """Decide, after a trainer has ended, whether its job must be trained alone from now on."""
        assert before.work is not None
        job_id = before.work.assignment.job_id
        if now is not None and now.crowded:
            self._train_alone(job_id)
        elif before.phase in _HAS_STARTED:
            self._change(alone=tuple(each for each in self.slots.alone if each != job_id))

    def _train_alone(self, *jobs: str) -> None:
        known = [each for each in self.slots.alone if each not in jobs]
        self._change(alone=(*known, *jobs)[-ALONE_KEPT:])

    def _is_alone(self, slot: int) -> bool:
        return self.slots.works[slot].assignment.job_id in self.slots.alone

    def _must_wait(self, slot: int) -> bool:
        """Return True while this slot's trainer may not start: another slot holds the same job, or others have started
        and its job or one of theirs must be trained alone."""
        job_id = self.slots.works[slot].assignment.job_id
        others = {other: work for other, work in self.slots.busy.items() if other not in (slot, *self.slots.waiting)}
        if any(work.assignment.job_id == job_id for work in others.values()):
            return True
        started = [other for other in self.slots.training if other in others]
        return bool(started) and (self._is_alone(slot) or any(map(self._is_alone, started)))

    def _start_waiting(self) -> None:
        for slot, action in sorted(self.slots.waiting.items()):
            one = self.slots.machines[slot]
            over = one.work is None or one.phase is not Phase.STARTING or one.work.assignment != action.assignment
            unwanted = not over and one.work is not None and (one.work.dropped or one.signals > 0)
            halted = None if over or unwanted else self.slots.halt
            if halted is None and not (over or unwanted) and self._must_wait(slot):
                continue
            self._change(waiting={each: kept for each, kept in self.slots.waiting.items() if each != slot})
            if unwanted or halted is not None:
                failure = SHUTDOWN if halted is None else handed_back(halted.reason)
                self._step(slot, t.SpawnFailed(claim_id=action.assignment.claim_id, failure=failure))
            elif not over:
                self.actions.append(action)

    def _end_idle(self) -> None:
        """End the state machine of each idle slot once the worker takes no further job; a slot with an unanswered claim
        first waits for its answer."""
        for slot, one in self.slots.machines.items():
            if one.phase is Phase.IDLE and not self.slots.gone:
                self._set(slot, replace(one, phase=Phase.GONE))
                self._change(wakes={**self.slots.wakes, slot: None})
                self._leave(t.EndProcess())

    def _choose(self, *, again: bool) -> None:
        """Let only the machine ask that :meth:`_asker` returns. ``again`` means that a trainer has ended, so that there
        is more room."""
        wanted = self._asker()
        if wanted is not None and wanted not in self.slots.machines:
            (first, *_) = self.slots.machines.values()
            self._set(wanted, State(session_id=first.session_id, benched=True))
        machines = {
            slot: replace(one, benched=slot != wanted or (one.phase is Phase.ASKING and not self._has_room()))
            for slot, one in self.slots.machines.items()
            if slot in (0, wanted) or not _is_spent(one)
        }
        benched = wanted is not None and self.slots.machines[wanted].benched
        self._change(machines=machines, wakes={slot: self.slots.wakes.get(slot) for slot in machines})
        if wanted is None or machines[wanted].phase is not Phase.IDLE:
            return
        if benched or (again and not machines[wanted].tries and len(machines) > 1):
            if not machines[wanted].tries:
                self._set(wanted, replace(machines[wanted], call_at=self.now))
            self._step(wanted, t.Tick())

    def _asker(self) -> int | None:
        """Return the slot that asks, now or at its time; a new slot if none is idle; None if there is no room for one
        more job and no claim to repeat."""
        machines = sorted(self.slots.machines.items())
        if len(machines) == 1 and machines[0][1].work is None:
            return machines[0][0]
        open_requests = [slot for slot, one in machines if one.phase is Phase.ASKING or _is_open(one)]
        if open_requests:
            return min(open_requests, key=lambda slot: self.slots.machines[slot].phase is not Phase.ASKING)
        if not self._has_room():
            return None
        idle = [slot for slot, one in machines if one.phase is Phase.IDLE]
        unused = next(slot for slot in range(len(machines) + 1) if slot not in self.slots.machines)
        return min(idle, key=self._preference, default=unused)

    def _preference(self, slot: int) -> tuple[bool, bool, int]:
        one = self.slots.machines[slot]
        return one.benched, one.request_id is None, slot

    def _has_room(self) -> bool:
        """Return True if the worker may ask for one more job."""
        works, training = self.slots.busy, self.slots.training
        if self.slots.leaving or self.slots.last_word is not None:
            return False
        if self.slots.halt is not None:
            return not works
        full = len(training) >= self.slots.allowed or len(works) >= (1 + PENDING_SHARE) * self.slots.allowed
        return not full and not any(map(self._is_alone, training))


def _owner(slots: Slots, event: t.Event) -> int | None:
    if isinstance(event, t.CallEnded):
        return slots.waits_for(event.call)
    return slots.holder(event.claim_id) if isinstance(event, t.News) else None


def _is_open(one: State) -> bool:
    """Return True for an idle machine whose last claim may have been granted, so that it must repeat the claim."""
    return one.phase is Phase.IDLE and one.unanswered and one.request_id is not None


def _is_spent(one: State) -> bool:
    """Return True for an idle machine that has no job, request, undelivered output or saved state."""
    at_rest = one.phase is Phase.IDLE and one.work is None and one.call is None
    return at_rest and not one.backlog and one.saved == t.Saved()

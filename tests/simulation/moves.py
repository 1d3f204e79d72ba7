"""Fleets whose trainers save states and go on from them, here and elsewhere: every fourth one, from a seed on.

The keeper of a state is the trainers' own, what brings and fetches it the worker's own. What is drawn here has chance
of its own, by seed and name, so that nothing else of a seed depends on it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from simulation.faults import Weather
from simulation.network import Broken, Outcome, Request, SimTransport
from simulation.strand import Strand
from training.fleet.client.client import FleetClient
from training.fleet.client.transport import Response, TransportError
from training.fleet.scheduling.job import EndReason
from training.fleet.worker import saved_states
from training.fleet.worker.datasets import Order, Stopped
from training.fleet.worker.state import events as t
from training.fleet.worker.state.exit_code import Failure
from training.fleet.worker.state_transfer import LAST_S, StateTransfer, stretches_noted
from training.trainer.machine import RunKey
from training.trainer.state_file import StateFile

if TYPE_CHECKING:
    from simulation.host import Host
    from simulation.world import SimClock

_FROM, _EVERY, _MOVING = 75, 4, 3
_FILE, _COMMON = "job.state", "libraries"  # of a saved state: what changes, and what all of them share
_LIBRARIES = b"the same in each state"

logging.getLogger("training.fleet.worker").addHandler(logging.NullHandler())  # its warnings are what is looked for


def is_moving(seed: int) -> bool:
    """Return True when this seed's trainers save states that travel."""
    return seed >= _FROM and seed % _EVERY == _MOVING


def saves_s(seed: int, lease_s: float) -> float:
    """Return the time between two states that a trainer saves: less than a real one's where leases are short."""
    return min(StateFile.EVERY_S, 0.3 * every_s(seed, lease_s))


def every_s(seed: int, lease_s: float) -> float:
    """Return the plan's ``state_every_s``."""
    return lease_s * random.Random(f"{seed}/state every").choice([0.1, 0.3, 1.0])


def weather(seed: int, drawn: Weather, hours: float) -> Weather:
    """Return the weather of a fleet whose work moves often: workers crash, and are told to stop."""
    if not is_moving(seed):
        return drawn
    return replace(
        drawn,
        worker_crashes_per_h=max(drawn.worker_crashes_per_h, 4 / hours),
        worker_stops_per_h=max(drawn.worker_stops_per_h, 4 / hours),
    )


def steps_of(seed: int, job_id: str) -> int:
    """Return the epochs of a job."""
    return random.Random(f"{seed}/steps/{job_id}").choice([2, 5, 12, 30])


def facts_of(seed: int, machine: str, assignment: t.Assignment) -> dict[str, Any]:
    """Return the facts of a run key there: some machines have other sources, some another processor."""
    chance = random.Random(f"{seed}/run key/{machine}")
    booked = assignment.booked
    return {
        "spec": assignment.job_id,
        "code": chance.choice(["ours", "ours", "ours", "older"]),
        "cpu": chance.choice(["wide", "narrow"]),
        "threads": 1 if booked is None else booked.cores,
    }


class Ran(NamedTuple):
    """The part of a job's training that one run did, in truth."""

    host: str
    claim: str
    processor: str
    begins: int
    ends: int


@dataclass(frozen=True)
class Saved:
    """The content of a saved state, in truth."""

    job_id: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 0
    part: float = 0.0  # of the step after them
    ran: tuple[Ran, ...] = ()

    @property
    def progress(self) -> float:
        return self.steps + self.part

    def fits(self, facts: Mapping[str, Any]) -> bool:
        """Return True when a run with these facts may go on from it."""
        return all(self.facts.get(name) == facts[name] for name in ("spec", "code"))


class Course:
    """One run of a trainer by its steps, and what it saves of them."""

    def __init__(
        self,
        folder: Path,
        facts: Mapping[str, Any],
        ran: Ran,
        steps: int,
        step_s: float,
        saves_s: float,
        clock: SimClock,
    ) -> None:
        """``ran`` names the run, ``steps`` are the job's, and ``step_s`` is what one takes here."""
        self.keeper = StateFile(folder / _FILE, RunKey(facts).digest, clock, facts=facts)
        self.keeper.EVERY_S = saves_s  # type: ignore[misc]
        self.facts = dict(facts)
        self._folder = folder
        self.state = self.keeper.load()
        told = {"steps": 0, "part": 0.0, "ran": []} if self.state is None else json.loads(self.state)
        self.begins, self.part = told["steps"], told["part"]
        self.before = tuple(Ran(*each) for each in told["ran"])
        self.step_s, self.steps = step_s, max(1, steps)
        self.done, self._part_done = self.begins, self.part
        self._ran = ran
        self.mixed: list[Mapping[str, Any]] = []
        self.keeper.watch(self._pack)

    def at(self, number: int) -> float:
        """Return the seconds of work until the end of so many steps."""
        return max(0.0, self.step_s * (number - self.part))

    @property
    def whole_s(self) -> float:
        """Return the seconds of work that are left, with those to end."""
        return self.at(self.steps - self.begins) + 0.5 * self.step_s

    def lines_in(self, work_s: float) -> int:
        """Count the steps that end in so many seconds."""
        return sum(1 for number in range(1, self.steps - self.begins + 1) if self.at(number) < work_s)

    def progress(self, work_s: float) -> float:
        """Return the steps that the model has after so many seconds of this run."""
        return min(float(self.steps), self.begins + self.part + work_s / self.step_s)

    @property
    def ran(self) -> tuple[Ran, ...]:
        return (*self.before, self._ran._replace(begins=self.begins, ends=self.done))

    def step(self) -> bytes | None:
        """End a step; returns what it saved, if it did."""
        self.done, self._part_done = self.done + 1, 0.0
        before = self._saved_at
        self.keeper.tick()
        return self._content() if self._saved_at != before else None

    def stop(self, work_s: float) -> bytes:
        """End early, as asked."""
        self._part_done = max(0.0, min(0.999, self.progress(work_s) - self.done))
        self.keeper.save()
        return self._content()

    def end(self) -> None:
        """End well: what was saved is not needed any more."""
        self.mixed = self.keeper.mixed
        self.keeper.discard()
        (self._folder / _COMMON).unlink(missing_ok=True)

    def saved(self, job_id: str) -> Saved:
        """Return the truth of what was saved last."""
        return Saved(job_id, self.facts, self.done, self._part_done, self.ran)

    @property
    def _saved_at(self) -> float:
        return self.keeper._saved_at

    def _content(self) -> bytes:
        (self._folder / _COMMON).write_bytes(_LIBRARIES)
        return (self._folder / _FILE).read_bytes()

    def _pack(self) -> bytes:
        return json.dumps({"steps": self.done, "part": self._part_done, "ran": self.ran}).encode()


class Bringing(NamedTuple):
    """The way in which a state was brought."""

    took_s: float
    troubled: bool
    kept: bool  # the receiver has said so
    changed: bool  # the trainer saved again


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass
class _Move:
    """One attempt's state on its way."""

    assignment: t.Assignment
    folder: Path
    note: Path
    transfer: StateTransfer
    order: Order
    course: Course | None = None
    busy: bool = False
    then: list[Callable[[], None]] = field(default_factory=list)  # for when the one on its way is through


class Carrier:
    """The saved states on one host, and their transfers."""

    def __init__(self, host: Host, root: Path) -> None:
        self._world, self._host, self._root, self._all = host.world, host, root, host.all
        self._saves_s = saves_s(host.world.seed, host.scenario.policy.stale_after_s)
        self._chance = host.world.chance(f"moves {host.machine}")
        self._moves: dict[str, _Move] = {}  # by claim
        self._strands: list[Strand] = []

    # ── before a trainer ────────────────────────────────────────────────────────────────────

    def begin(self, assignment: t.Assignment, then: Callable[[], None]) -> None:
        """Make the job's folder ready; ``then`` the trainer begins."""
        folder = saved_states.folder_of(self._root, assignment.job_id)
        saved_states.begin(folder, assignment.database_id)
        transfer = StateTransfer(assignment, folder, self._host.name, lambda: self._calls(assignment))
        note = self._root.parent / f"{assignment.claim_id}.stretches"
        move = _Move(assignment, folder, note, transfer, Order(lambda _done, _size: None))
        self._moves[assignment.claim_id] = move

        def fetched(error: Exception | None, way: Strand) -> None:
            self._stamp(folder)
            self._all.fetched(self._host, assignment, troubled=bool(way.trouble))
            if isinstance(error, Stopped):
                self._world.tally["fetches of states broken off"] += 1
                failure = Failure(EndReason.SPAWN_FAILED, "nobody wants the state any more")
                self._host.take(t.SpawnFailed(claim_id=assignment.claim_id, failure=failure))
                return
            if error is not None:
                raise error
            transfer.note(note)
            then()

        self._run(lambda: transfer.fetch(move.order), fetched)

    def course(self, assignment: t.Assignment, work_s: float) -> Course:
        """Let a trainer that needs so long for the whole job look into its folder."""
        move = self._moves[assignment.claim_id]
        seed, machine = self._world.seed, self._host.machine
        facts = facts_of(seed, machine, assignment)
        steps = steps_of(seed, assignment.job_id)
        path = move.folder / _FILE
        found = path.read_bytes() if path.exists() else None
        processor = json.dumps({"cpu": facts["cpu"], "threads": facts["threads"]})
        ran = Ran(self._host.name, assignment.claim_id, processor, 0, 0)
        move.course = Course(move.folder, facts, ran, steps, work_s / steps, self._saves_s, self._host.clock)
        self._all.resumed(self._host, assignment, move.course, found)
        return move.course

    # ── while, and after ────────────────────────────────────────────────────────────────────

    def stepped(self, claim_id: str) -> None:
        """A trainer ended a step, and saves now and then."""
        move = self._moves[claim_id]
        assert move.course is not None
        if (content := move.course.step()) is not None:
            self._note_saved(move, content)

    def stopped(self, claim_id: str, work_s: float) -> None:
        """A trainer ends early, and saves what it has."""
        move = self._moves.get(claim_id)
        if move is not None and move.course is not None:
            self._note_saved(move, move.course.stop(work_s))

    def over(self, claim_id: str, work_s: float, *, well: bool) -> None:
        """A trainer is over, by itself or with its worker."""
        move = self._moves.get(claim_id)
        if move is not None and move.course is not None:
            if well:
                move.course.end()
            self._all.ran(self._host, move.assignment, move.course, work_s, well=well)

    def heed(self, claim_id: str, lines: Iterable[str]) -> None:
        if move := self._moves.get(claim_id):
            move.transfer.heed(lines)

    def holds_a_state(self, claim_id: str) -> bool:
        return claim_id in self._moves and self._moves[claim_id].transfer.holds_a_state

    def look(self, claim_id: str) -> None:
        """Bring the state as it is, unless one is on its way."""
        move = self._moves[claim_id]
        if not move.busy:
            self._bring(move)

    def ended(self, claim_id: str, *, well: bool, then: Callable[[], None]) -> None:
        """Do what the attempt's thread does after a trainer's end, then go on."""
        move = self._moves.get(claim_id)
        if move is None or move.course is None:
            then()
            return
        move.transfer.note(move.note)
        if well:
            move.transfer.close()
            then()
            return
        left = [then]

        def once() -> None:
            move.transfer.close()
            move.then.clear()  # what would have to wait still brings nothing any more
            while left:
                left.pop()()

        self._host.soon(LAST_S, once)
        move.then.append(lambda: self._bring(move, once))
        if not move.busy:
            self._next(move)

    def record(self, claim_id: str, output: Path) -> dict[str, Any]:
        """Return what the record of a finished attempt says of its stretches."""
        return stretches_noted(self._root.parent / f"{claim_id}.stretches", output)

    def stop(self, claim_id: str) -> None:
        if move := self._moves.get(claim_id):
            move.order.stopped.set()

    def end(self) -> None:
        """The program is over."""
        strands, self._strands = self._strands, []
        for strand in strands:
            strand.end()
        self._moves.clear()

    def discard(self, assignment: t.Assignment, *, job_over: bool, in_use: Collection[t.Assignment]) -> None:
        """Forget an attempt, and with it its job where that is over; as the worker's own attempt does."""
        self._moves.pop(assignment.claim_id, None)
        if job_over:
            saved_states.forget(saved_states.folder_of(self._root, assignment.job_id))
        folders = {saved_states.folder_of(self._root, each.job_id) for each in in_use}
        saved_states.prune(self._root, in_use=folders)
        self._all.discarded(self._host, self._root, len(folders))

    # ── inside ──────────────────────────────────────────────────────────────────────────────

    def _note_saved(self, move: _Move, content: bytes) -> None:
        self._stamp(move.folder)
        self._world.tally["states saved"] += 1
        self._all.saved(self._host, move.assignment, content, move.course.saved(move.assignment.job_id))

    def _bring(self, move: _Move, then: Callable[[], None] = lambda: None) -> None:
        began = self._world.now
        path = move.folder / _FILE

        def found() -> bytes | None:
            return path.read_bytes() if path.exists() else None

        content = found()
        move.busy = True
        self._all.bringing(self._host, move.assignment)

        def through(error: Exception | None, way: Strand) -> None:
            move.busy = False
            if error is not None:
                raise error
            if content is not None:
                how = Bringing(self._world.now - began, bool(way.trouble), way.kept, found() != content)
                self._all.brought(self._host, move.assignment, content, how)
            then()
            self._next(move)

        self._run(move.transfer.bring, through)

    def _next(self, move: _Move) -> None:
        if move.then and not move.busy:
            move.then.pop(0)()

    def _stamp(self, folder: Path) -> None:
        """Let files be as old as they are in simulated time."""
        for path in [*folder.rglob("*"), folder]:
            os.utime(path, (self._host.clock.now(), self._host.clock.now()))

    def _run(self, work: Callable[[], object], done: Callable[[Exception | None, Strand], None]) -> None:
        def over(error: Exception | None) -> None:
            if strand in self._strands:
                self._strands.remove(strand)
            done(error, strand)

        strand = Strand(work, over)
        self._strands.append(strand)
        strand.begin()

    def _calls(self, assignment: t.Assignment) -> Any:
        client = FleetClient(
            "http://receiver",
            self._host.name,
            transport=_Wire(self._host, self._chance.random),
            timeout_s=self._host.scenario.timeout_s,
            chance=self._chance.random,
            sleep=self._pause,
            one_database=False,
        )
        return client.about(assignment.database_id).state(assignment.job_id, assignment.claim_id)

    def _pause(self, seconds: float) -> None:
        def begin(go_on: Callable[[Any], None]) -> Callable[[], None]:
            return self._host.soon(seconds, lambda: go_on(None)).cancel

        Strand.current().wait(begin)


class _Wire(SimTransport):
    """A transport whose caller waits in simulated time."""

    def __init__(self, host: Host, chance: Callable[[], float]) -> None:
        self._host, self._chance = host, chance

    def ask(self, method: str, path: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> Response:
        request = Request(method, path, body, headers, self._host.machine)
        strand = Strand.current()

        def begin(go_on: Callable[[Any], None]) -> Callable[[], None]:
            def answered(outcome: Outcome) -> None:
                if self._host.asleep and not isinstance(outcome, Broken) and self._chance() < 0.7:
                    outcome = Broken.RESET
                self._host.when_awake(lambda: go_on(outcome))

            return self._host.network.send(request, timeout_s, answered)

        outcome: Outcome = strand.wait(begin)
        if isinstance(outcome, Broken):
            strand.trouble.append(outcome.value)
            raise TransportError(outcome.value)
        if outcome.status != 200:
            strand.trouble.append(str(outcome.status))
        elif path.endswith("/keep"):
            strand.kept = True
        return outcome

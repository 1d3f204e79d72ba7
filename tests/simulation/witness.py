"""Looks at the receiver's tables after every call, and shows the checkers what changed once it is committed.

It reads the tables with SQL of its own, so that a mistake in the production statements cannot hide itself.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from simulation.steps import Call
from simulation.world import Violation, World
from training.fleet.client.transport import Response
from training.fleet.database.writer import DatabaseError, DatabaseFull
from training.fleet.process.ended import Ended
from training.fleet.worker.state import events as t

if TYPE_CHECKING:
    from simulation.coordinator import Coordinator
    from simulation.host import Host
    from simulation.moves import Bringing, Course, Saved
    from simulation.scenario import Scenario
    from simulation.trainer import Trainer

C = TypeVar("C")


class Facts(NamedTuple):
    """A job's row, as far as the promises go."""

    job_id: str
    status: str
    attempt: int
    generation: int
    grants: int
    trainer_failures: int
    host_losses: int
    claim_id: str | None
    worker_hostname: str | None
    heartbeat_at: float | None
    claimable_at: float
    artifact_id: str | None
    ended_by: str | None
    priority: int
    avoid_host: str
    avoid_until: float | None
    spec: str
    ram_above_gib: float
    vram_above_gib: float
    held_by: str | None
    passed_over: int
    class_id: int
    edition: int

    def avoided(self, now: float) -> str:
        """Return the host that must leave it to others at this time."""
        return self.avoid_host if self.ended_by or (self.avoid_until or 0.0) > now else ""

    def wants(self) -> dict[str, Any]:
        """Return what the job asks for, and what was learned of its memory."""
        spec: dict[str, Any] = json.loads(self.spec)
        return spec | {"ram_above_gib": self.ram_above_gib, "vram_above_gib": self.vram_above_gib}


class Live(NamedTuple):
    """A live attempt's row."""

    job_id: str
    attempt: int
    claim_id: str
    generation: int
    host: str
    instance_id: str | None
    session_id: str | None
    slot: int | None
    request_id: str | None
    readoptions: int
    seq: int
    progress: str | None


def _timeless(facts: Facts) -> Facts:
    return facts._replace(heartbeat_at=None, claimable_at=0.0, avoid_until=None)


class Event(NamedTuple):
    seq: int
    job_id: str
    transition: str
    source: str | None
    target: str
    attempt: int | None
    host: str | None
    detail: str | None


_FACTS = f"SELECT {', '.join(Facts._fields)} FROM jobs ORDER BY seq"
_LIVE = f"SELECT {', '.join(Live._fields)} FROM attempts WHERE ended_at IS NULL ORDER BY claim_id"
_REMOVED = "SELECT 1 FROM removals WHERE what = 'bundle' AND back_at IS NULL AND subject = ?"
_OUT = "SELECT host, cause FROM quarantines WHERE ended_at IS NULL"
_EVENTS = (
    "SELECT seq, job_id, transition, from_status, to_status, attempt, host, detail FROM events "
    "WHERE seq > ? ORDER BY seq"
)


@dataclass(frozen=True)
class Snapshot:
    """The tables at one moment."""

    jobs: dict[str, Facts]
    live: dict[str, Live]  # by claim id
    event_seq: int
    out: dict[str, str]  # hosts that are taken out → cause


@dataclass(frozen=True)
class Observation:
    """One call that was committed."""

    at: float  # true time
    call: Call
    result: Any  # the reply; None when refused
    error: Exception | None
    before: Snapshot
    after: Snapshot
    events: list[Event]

    def changed(self) -> list[str]:
        before = self.before.jobs
        if before is self.after.jobs:
            return []
        return [job_id for job_id, facts in self.after.jobs.items() if before.get(job_id) != facts]


class Checker:
    """One promise. ``see`` looks at each committed call, the others at what they are named for."""

    witness: Witness

    def __init__(self, world: World, scenario: Scenario) -> None:
        self.world, self.scenario, self.policy = world, scenario, scenario.policy
        self.prepare()

    def prepare(self) -> None:
        """Begin with nothing seen."""

    def declared(self, host: str) -> dict[str, Any]:
        """Return what the manifest declares of a host."""
        return self.scenario.hosts.get(host, {})

    def demand(self, holds: bool, what: str) -> None:
        if not holds:
            name = type(self).__name__
            self.world.say("checker", f"‼ {name}: {what}")
            raise Violation(f"seed {self.world.seed}, at {self.world.now:.3f} s: {name}: {what}")

    # ── the receiver ────────────────────────────────────────────────────────────────────────

    def see(self, seen: Observation) -> None: ...

    def lost(self, seen: Observation) -> None:
        """A call that was carried out and not kept, because the disk was full: the receiver heard it all the same."""

    def answered(self, call: Call, answer: Response) -> None: ...

    def restarted(self) -> None: ...

    def slept(self, seconds: float) -> None:
        """The receiver slept until now."""

    def stepped(self, seconds: float) -> None:
        """The receiver's wall clock steps now."""

    def looked_in_vain(self) -> None:
        """The receiver could not write down what it saw of the clocks and of silent hosts."""

    def lost_state(self) -> None:
        """The receiver's disk lost some of the saved states that it keeps."""

    def at_end(self) -> None: ...

    # ── workers ─────────────────────────────────────────────────────────────────────────────

    def event(self, host: Host, event: t.Event) -> None:
        """Something is about to be told to a worker's state machine."""

    def begins(self, host: Host, assignment: t.Assignment) -> None:
        """A trainer is about to be started."""

    def moved(self, host: Host, trainer: Trainer) -> None:
        """A trainer began to run, or ceased to."""

    def printed(self, host: Host, trainer: Trainer, lines: list[str]) -> None:
        """A trainer printed lines into its file."""

    def over(self, host: Host, trainer: Trainer, ended: Ended) -> None:
        """A trainer ended, and not together with its worker."""

    def ended(self, host: Host) -> None:
        """A worker's program ended."""

    def refused(self, host: Host, why: str) -> None:
        """A worker's program ended before it had begun."""

    def second(self, host: Host, refusal: str | None) -> None:
        """Somebody started a second worker where ``host`` runs."""

    def gone(self, host: Host) -> None:
        """Its owner took the machine away for good."""

    def used_disk(self, host: Host, begun: t.Assignment | None, over: t.Assignment | None) -> None:
        """The folders of an attempt were made, or one was discarded and older ones were pruned."""

    def chunk_asked(self, host: Host, dataset_id: str, sha256: str) -> None:
        """A chunk of a data set is about to be asked for."""

    def chunk_came(self, host: Host, dataset_id: str) -> None:
        """A chunk of a data set has come, or its request failed."""

    # ── saved states ────────────────────────────────────────────────────────────────────────

    def fetched(self, host: Host, assignment: t.Assignment, *, troubled: bool) -> None:
        """A transfer made the job's folder ready, or did not."""

    def resumed(self, host: Host, assignment: t.Assignment, course: Course, found: bytes | None) -> None:
        """A trainer read what it finds in its folder."""

    def saved(self, host: Host, assignment: t.Assignment, content: bytes, truth: Saved) -> None:
        """A trainer saved a state."""

    def bringing(self, host: Host, assignment: t.Assignment) -> None:
        """A state is about to be brought."""

    def brought(self, host: Host, assignment: t.Assignment, content: bytes, how: Bringing) -> None:
        """A state was brought, or was not."""

    def ran(self, host: Host, assignment: t.Assignment, course: Course, work_s: float, *, well: bool) -> None:
        """A run is over: well, or however."""

    def discarded(self, host: Host, root: Path, in_hand: int) -> None:
        """Folders of saved states were pruned."""


class All:
    """Tells what happens to each checker that looks at it."""

    def __init__(self, checkers: list[Checker]) -> None:
        self._checkers = checkers

    def __getattr__(self, name: str) -> Any:
        nothing = getattr(Checker, name)
        look = [getattr(each, name) for each in self._checkers if getattr(type(each), name) is not nothing]

        def tell(*args: Any, **named: Any) -> None:
            for each in look:
                each(*args, **named)

        setattr(self, name, tell)  # most of a simulation's time goes by in here
        return tell


class Witness:
    """The coordinator's watcher."""

    def __init__(self, world: World, checkers: list[Checker]) -> None:
        self.world = world
        self.checkers = checkers
        self.all = All(checkers)
        for checker in checkers:
            checker.witness = self
        self._rows_changed = -1  # by all that the receiver's connection ever did, when the tables were last read
        self.receiver: Coordinator
        self.now = Snapshot({}, {}, 0, {})  # as last committed
        self._staged = self.now
        self._pending: list[Observation] = []
        self._refused = False
        self._preparing = False

    def one(self, kind: type[C]) -> C:
        """Return the checker of this class."""
        return next(each for each in self.checkers if isinstance(each, kind))

    # ── what the coordinator tells ──────────────────────────────────────────────────────────

    def after(self, call: Call, result: Any, error: Exception | None) -> None:
        """A call was made, and is not committed yet."""
        if isinstance(error, DatabaseError) and not isinstance(error, DatabaseFull):
            raise Violation(f"seed {self.world.seed}: {call.name}: {error}")
        if error is not None:  # undone when the exception leaves the savepoint
            self._refused = True
            seen = Observation(self.world.now, call, None, error, self._staged, self._staged, [])
        else:
            snapshot, events = self._look(self._staged)
            seen = Observation(self.world.now, call, result, None, self._staged, snapshot, events)
            self._staged = snapshot
        self._pending.append(seen)

    def committed(self, ok: bool) -> None:
        """Note that all writes since the last commit are durable, or undone."""
        pending, self._pending = self._pending, []
        if not ok:
            self._staged, self._rows_changed = self.now, -1
            for seen in pending:
                self.all.lost(seen)
            return
        if self._refused:
            self._refused = False
            found, events = self._look(self._staged)
            if found.jobs != self._staged.jobs or found.live != self._staged.live or events:
                raise Violation(f"seed {self.world.seed}: a refused call changed something")
        self.now = self._staged
        for seen in pending:
            for event in seen.events:
                self._say(event)
            self.all.see(seen)

    def restarted(self, receiver: Coordinator) -> None:
        """The program begins on what the disk holds."""
        self.receiver = receiver
        self._staged, self._pending, self._refused = self.now, [], False
        self._compare(exactly=not self._preparing)
        self._preparing = True
        self.all.restarted()

    def prepared(self) -> None:
        """The service was made, which may have mended times."""
        self._compare(exactly=False)
        self._preparing = False

    def _compare(self, *, exactly: bool) -> None:
        """The tables are those that were committed; but for their times, when those may just have been mended."""
        self._rows_changed = -1
        found, _ = self._look(self.now)
        known, jobs = self.now.jobs, found.jobs
        if not exactly:
            known = {job_id: _timeless(facts) for job_id, facts in known.items()}
            jobs = {job_id: _timeless(facts) for job_id, facts in jobs.items()}
        if jobs != known or found.live != self.now.live:
            raise Violation(f"seed {self.world.seed}: a start found other tables than were committed")
        self.now = self._staged = found

    # ── looking ─────────────────────────────────────────────────────────────────────────────

    def ordered(self) -> set[str]:
        """Return the hosts that are paused or drained by an operator."""
        return {str(host) for (host,) in self.rows("SELECT host FROM host_orders WHERE ended_at IS NULL")}

    def rows(self, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        cursor = self.receiver.database.connection.cursor()
        cursor.row_factory = None
        return cursor.execute(sql, params).fetchall()

    def removed(self, artifact_id: str, model: str, mode: str) -> bool:
        """Return True when a row says that retention let this bundle go."""
        return bool(self.rows(_REMOVED, f"{model}_{mode}/{artifact_id}"))

    def _look(self, known: Snapshot) -> tuple[Snapshot, list[Event]]:
        """Read the tables, unless nobody has written since they were last read."""
        rows_changed = self.receiver.database.connection.total_changes
        if rows_changed == self._rows_changed and known is self._staged:
            return known, []
        self._rows_changed = rows_changed
        jobs = {row[0]: Facts._make(row) for row in self.rows(_FACTS)}
        live = {row[2]: Live._make(row) for row in self.rows(_LIVE)}
        events = [Event._make(row) for row in self.rows(_EVENTS, known.event_seq)]
        seq = events[-1].seq if events else known.event_seq
        if jobs == known.jobs:
            jobs = known.jobs
        if live == known.live:
            live = known.live
        return Snapshot(jobs, live, seq, dict(self.rows(_OUT))), events

    def _say(self, event: Event) -> None:
        source = event.source or "–"
        who = f" by {event.host}" if event.host else ""
        number = f" #{event.attempt}" if event.attempt else ""
        why = f" ({event.detail})" if event.detail else ""
        self.world.say("queue", f"{event.job_id[:8]}{number}: {source} → {event.target}{who}, {event.transition}{why}")

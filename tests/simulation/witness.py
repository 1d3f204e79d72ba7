"""Looks at the receiver's tables after every call, and shows the checkers what changed once it is committed.

It reads the tables with SQL of its own, so that a mistake in the production statements cannot hide itself.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from simulation.coordinator import Coordinator
from simulation.steps import Call
from simulation.world import Violation, World
from training.fleet.client.transport import Response
from training.fleet.database.writer import DatabaseError, DatabaseFull


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
    class_id: int
    edition: int

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

    def __init__(self, world: World) -> None:
        self.world = world

    def see(self, seen: Observation) -> None: ...

    def lost(self, seen: Observation) -> None:
        """A call that was carried out and not kept, because the disk was full: the receiver heard it all the same."""

    def answered(self, call: Call, answer: Response, witness: Witness) -> None: ...

    def restarted(self, witness: Witness) -> None: ...

    def looked_in_vain(self) -> None:
        """The receiver could not write down what it saw of the clocks and of silent hosts."""

    def at_end(self, witness: Witness) -> None: ...

    def demand(self, holds: bool, what: str) -> None:
        if not holds:
            name = type(self).__name__
            self.world.say("checker", f"‼ {name}: {what}")
            raise Violation(f"seed {self.world.seed}, at {self.world.now:.3f} s: {name}: {what}")


class Witness:
    """The coordinator's watcher."""

    def __init__(self, world: World, checkers: list[Checker]) -> None:
        self.world = world
        self.checkers = checkers
        # A call is shown to those alone that look at calls: most of a simulation's time goes by in here.
        self._seers = [checker.see for checker in checkers if type(checker).see is not Checker.see]
        self._rows_changed = -1  # by all that the receiver's connection ever did, when the tables were last read
        self.receiver: Coordinator
        self.now = Snapshot({}, {}, 0, {})  # as last committed
        self._staged = self.now
        self._pending: list[Observation] = []
        self._refused = False
        self._preparing = False

    # ── what the coordinator tells ──────────────────────────────────────────────────────────

    def after(self, call: Call, result: Any, error: Exception | None) -> None:
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
        pending, self._pending = self._pending, []
        if not ok:
            self._staged, self._rows_changed = self.now, -1
            for seen in pending:
                for checker in self.checkers:
                    checker.lost(seen)
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
            for see in self._seers:
                see(seen)

    def answered(self, call: Call, answer: Response) -> None:
        for checker in self.checkers:
            checker.answered(call, answer, self)

    def restarted(self, receiver: Coordinator) -> None:
        self.receiver = receiver
        self._staged, self._pending, self._refused = self.now, [], False
        self._compare(exactly=not self._preparing)
        self._preparing = True
        for checker in self.checkers:
            checker.restarted(self)

    def looked_in_vain(self) -> None:
        for checker in self.checkers:
            checker.looked_in_vain()

    def prepared(self) -> None:
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

"""The promises about the receiver's tables, one class each. None of them shares code with what it checks."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import Any, NamedTuple

from stored import provenance_of

from simulation.grant_checkers import LifeSigns, known_capabilities, misfit
from simulation.host import report_of
from simulation.steps import Call
from simulation.witness import Checker, Event, Facts, Live, Observation
from training.fleet.client.transport import Response
from training.fleet.store.artifacts import Artifact
from training.fleet.wire.attempts import HeartbeatReply
from training.fleet.wire.constants import Action

_LIVE = ("claimed", "running")
_FINAL = ("completed", "failed", "cancelled")
# The table of the protocol, once more and by hand: transition → (sources, target).
_TABLE: dict[str, tuple[tuple[str | None, ...], str]] = {
    "insert": ((None,), "pending"),
    "claim": (("pending",), "claimed"),
    "heartbeat": (("claimed",), "running"),
    "complete": (_LIVE, "completed"),
    "adopt": (("pending",), "completed"),
    "deliver": (("pending",), "completed"),
    "readopt": (("pending",), "running"),
    "retry": (_LIVE, "pending"),
    "hand_back": (_LIVE, "pending"),
    "sweep": (_LIVE, "pending"),
    "exhaust": (("pending", *_LIVE), "failed"),
    "pardon": (("pending", "failed"), "pending"),
    "cancel": (("pending", *_LIVE), "cancelled"),
    "take_out": (("failed",), "cancelled"),
    "requeue": (("pending", *_LIVE, *_FINAL), "pending"),
    "wake": (("pending",), "pending"),
}
_MARKS = ("hold", "unhold")  # beside the status, in whichever


class OneLiveAttempt(Checker):
    """At most one attempt of a job is live, and it is the one that the job's row names."""

    def see(self, seen: Observation) -> None:
        if seen.after.jobs is seen.before.jobs and seen.after.live is seen.before.live:
            return
        by_job = Counter(live.job_id for live in seen.after.live.values())
        for job_id, facts in seen.after.jobs.items():
            live = by_job[job_id]
            self.demand(live <= 1, f"job {job_id[:8]} has {live} live attempts")
            self.demand((facts.status in _LIVE) == (live == 1), f"job {job_id[:8]} is {facts.status} with {live} live")
            if live:
                self.demand(facts.claim_id in seen.after.live, f"job {job_id[:8]} names another claim")


class EventsTellEverything(Checker):
    """The event log has no gap, every event is a row of the table, and its replay yields the jobs' statuses."""

    def prepare(self) -> None:
        self._status: dict[str, str] = {}
        self._seq = 0

    def see(self, seen: Observation) -> None:
        for event in seen.events:
            self._seq += 1
            self.demand(event.seq == self._seq, f"event {event.seq} follows {self._seq - 1}")
            known = self._status.get(event.job_id)
            marks = event.transition in _MARKS and known is not None
            sources, target = ((known,), known) if marks else _TABLE[event.transition]
            self.demand(event.source == known, f"{event.transition} from {event.source}, was {known}")
            self.demand(known in sources, f"{event.transition} from {known}")
            self.demand(event.target == target, f"{event.transition} to {event.target}")
            self._status[event.job_id] = event.target
        if seen.after.jobs is not seen.before.jobs:
            found = {job_id: facts.status for job_id, facts in seen.after.jobs.items()}
            self.demand(found == self._status, f"the events of {seen.call.name} do not yield the table")


class NothingVanishes(Checker):
    """A job that was ever known stays known; so does every attempt."""

    def see(self, seen: Observation) -> None:
        if seen.after.jobs is not seen.before.jobs:
            self.demand(seen.before.jobs.keys() <= seen.after.jobs.keys(), "a job vanished")

    def at_end(self) -> None:
        grants = dict(self.witness.rows("SELECT job_id, count(*) FROM attempts GROUP BY job_id"))
        for job_id, facts in self.witness.now.jobs.items():
            self.demand(facts.attempt == grants.get(job_id, 0), f"attempts of {job_id[:8]} vanished")


class AttemptsIncrease(Checker):
    """Every grant has the next number of its job; nothing else moves the number."""

    def see(self, seen: Observation) -> None:
        granted = Counter(event.job_id for event in seen.events if event.transition in ("claim", "deliver"))
        for job_id in seen.changed():
            before, after = seen.before.jobs.get(job_id), seen.after.jobs[job_id]
            number = 0 if before is None else before.attempt
            self.demand(
                after.attempt == number + granted[job_id],
                f"attempt of {job_id[:8]} went from {number} to {after.attempt}",
            )
        for event in seen.events:
            if event.transition == "claim":
                number = seen.after.jobs[event.job_id].attempt
                self.demand(event.attempt == number, f"granted #{event.attempt} of {number}")


class OnlyTheOwnerActs(Checker):
    """A worker's call takes effect only for the live claim, or the last one given up for lost, and on its job only."""

    def prepare(self) -> None:
        self._lost: dict[str, Live] = {}  # by claim: ended as lost, as they were
        self._done: set[str] = set()  # claims that completed

    def see(self, seen: Observation) -> None:
        call = seen.call
        if call.name in ("heartbeat", "complete", "fail", "upload"):
            self._worker(seen)
        elif call.name in ("cancel", "requeue", "deliver", *_MARKS):
            self.demand(set(seen.changed()) <= {call.job_id}, f"{call.name} by the operator moved another job")
        elif call.name in ("ticket", "output", "by hand", "retention", "wake", "pause", "drain", "resume"):
            self.demand(not seen.changed(), f"{call.name} moved a job")
        self._remember(seen)

    def _remember(self, seen: Observation) -> None:
        if seen.after.live is not seen.before.live:
            for claim in sorted(seen.before.live.keys() - seen.after.live.keys()):
                live = seen.before.live[claim]
                if any(e.job_id == live.job_id and e.detail == "host_lost" for e in seen.events):
                    self._lost[claim] = live
        if seen.call.name == "complete" and seen.error is None:
            self._done.add(self.claim(seen.call))

    def _worker(self, seen: Observation) -> None:
        call, changed, claim = seen.call, seen.changed(), self.claim(seen.call)
        others = {job_id for job_id in changed if not _given_back(seen, job_id)}
        self.demand(others <= {call.job_id}, f"{call.name} moved another job")
        if seen.error is not None:
            return
        live = seen.before.live.get(claim)
        if live is not None:
            self.demand(live.job_id == call.job_id, f"{call.name} by the claim of another job")
        elif call.name == "upload":
            entitled = claim in self._done or self._adoptable(seen, claim)
            self.demand(entitled, f"an upload of the dead claim {claim[:8]} was taken")
        elif changed:
            self._dead_claim_acts(seen, claim)
        elif call.name == "heartbeat":
            reply: HeartbeatReply = seen.result
            self.demand(reply.action is Action.STOP, "a dead claim was told to go on")

    def _dead_claim_acts(self, seen: Observation, claim: str) -> None:
        what = f"{seen.call.name} by the dead claim {claim[:8]} took effect"
        self.demand(seen.call.name in ("heartbeat", "complete"), what)
        self.demand(self._adoptable(seen, claim), what)
        if seen.call.name == "heartbeat":
            readoptions = self._lost[claim].readoptions
            self.demand(readoptions < self.policy.max_readoptions, "readopted too often")

    def _adoptable(self, seen: Observation, claim: str) -> bool:
        lost = self._lost.get(claim)
        facts = seen.before.jobs[seen.call.job_id or ""]
        return (
            lost is not None
            and facts.status == "pending"
            and (lost.job_id, lost.attempt, lost.generation) == (facts.job_id, facts.attempt, facts.generation)
        )

    @staticmethod
    def claim(call: Call) -> str:
        if call.name == "upload":
            return str(call.request.headers.get("X-Claim-Id"))
        return str(call.message.claim_id)


def _given_back(seen: Observation, job_id: str) -> bool:
    """Return True when a job was only refunded: a failure told of a sick host, or a heartbeat of a copied one."""
    before, after = seen.before.jobs.get(job_id), seen.after.jobs[job_id]
    if before is None or seen.call.name not in ("fail", "heartbeat"):
        return False
    spared = (after.trainer_failures, after.host_losses)
    moves = [e.transition for e in seen.events if e.job_id == job_id]
    if not moves and before._replace(trainer_failures=spared[0], host_losses=spared[1]) == after:
        return spared < (before.trainer_failures, before.host_losses)
    return moves == ["pardon"]


class CompletedForGood(Checker):
    """Completed means one artifact of that job's attempt, in the store and sound; only a requeue changes it."""

    def see(self, seen: Observation) -> None:
        for job_id in seen.changed():
            before, after = seen.before.jobs.get(job_id), seen.after.jobs[job_id]
            self.demand(
                (after.status == "completed") == (after.artifact_id is not None),
                f"job {job_id[:8]} is {after.status} with artifact {after.artifact_id}",
            )
            if before is not None and before.status == "completed":
                requeued = any(e.job_id == job_id and e.transition == "requeue" for e in seen.events)
                same = (before.artifact_id, before.attempt) == (after.artifact_id, after.attempt)
                self.demand(requeued or (same and after.status == "completed"), "a completed job changed")

    def at_end(self) -> None:
        store = self.witness.receiver.store
        accepted = self.witness.rows(
            "SELECT a.job_id, a.attempt, a.artifact_id, r.model, r.mode FROM attempts AS a "
            "LEFT JOIN artifacts AS r ON r.job_id = a.job_id AND r.attempt = a.attempt "
            "AND r.artifact_id = a.artifact_id WHERE a.end_reason = 'completed'"
        )
        by_job = {(job_id, attempt): artifact for job_id, attempt, artifact, _, _ in accepted}
        for job_id, attempt, artifact, model, mode in accepted:
            self.demand(model is not None, f"artifact of {job_id[:8]} #{attempt} has no row")
            if self.witness.removed(artifact, model, mode):
                continue
            found = store.verify(artifact, model=model, mode=mode)
            body = b"".join(self.witness.receiver.disk.read(store.root / found.path))
            self.demand(body.startswith(job_id.encode()), f"{job_id[:8]} has another job's artifact")
            numbers = {record["attempt"] for record in provenance_of(store, found)}
            self.demand(attempt in numbers, f"artifact of {job_id[:8]} #{attempt} lacks provenance")
            self._report(job_id, attempt, found)
        for job_id, facts in self.witness.now.jobs.items():
            if facts.status == "completed":
                artifact = by_job.get((job_id, facts.attempt))
                self.demand(artifact == facts.artifact_id, f"{job_id[:8]} completed by nobody's artifact")

    def _report(self, job_id: str, attempt: int, artifact: Artifact) -> None:
        """Hold that a trainer's report is beside the bundle, named by the row and by the provenance."""
        rows = self.witness.rows("SELECT report FROM results WHERE job_id = ? AND attempt = ?", job_id, attempt)
        named = {
            record.get("report")
            for record in provenance_of(self.witness.receiver.store, artifact)
            if (record["job_id"], record["attempt"]) == (job_id, attempt)
        }
        wanted = hashlib.sha256(report_of(job_id).encode()).hexdigest() if self.scenario.reporting else None
        self.demand({row[0] for row in rows} == {wanted} - {None}, f"{job_id[:8]} #{attempt} has another report")
        self.demand(named == {wanted}, f"the provenance of {job_id[:8]} #{attempt} names another report")
        if wanted is not None:
            self.demand(
                self.witness.receiver.store.report(artifact, wanted) == report_of(job_id).encode(),
                f"the report of {job_id[:8]} is not beside its bundle",
            )


class BudgetsHold(Checker):
    """The counters are what the history says, no budget is exceeded, and nobody fails before one is used up. What one
    host alone says or uses up fails a job only when no other that fits was heard for long, or none took it in time;
    meanwhile that host does not get it."""

    def prepare(self) -> None:
        self._signs, self._stepped = LifeSigns(), False

    def stepped(self, seconds: float) -> None:
        self._stepped = True

    def restarted(self) -> None:
        self._signs = LifeSigns()  # it knows of no heartbeat before

    def lost(self, seen: Observation) -> None:
        self._signs.see(seen)

    def see(self, seen: Observation) -> None:
        self._signs.see(seen)
        for event in seen.events:
            before = seen.before.jobs.get(event.job_id)
            if event.transition == "claim" and before is not None and before.status == "pending" and before.ended_by:
                self.demand(before.avoid_host != event.host, f"{event.host} got what it would have failed")
                self.world.tally["jobs that a second host tried"] += 1
        for event in {event.job_id: event for event in seen.events}.values():
            self._job(self.witness.now.jobs[event.job_id], seen, event)

    def _job(self, job: Facts, seen: Observation, event: Event) -> None:
        ends = self.witness.rows(
            "SELECT host, end_reason, exit_code, lived_s, pardoned, ended_at FROM attempts "
            "WHERE job_id = ? AND generation = ? ORDER BY attempt",
            job.job_id,
            job.generation,
        )
        grants, refused, refusing = len(ends), False, set[str]()
        for host, reason, code, lived_s, pardoned, _ in ends:
            if reason == "trainer_failed" and code in (2, 65):
                refused = not pardoned
                refusing.add(host)
            elif (lived_s or 0.0) >= self.policy.odd_death_s:
                refused = False  # it can be trained
        counting = [(host, reason) for host, reason, _, _, pardoned, _ in ends if not pardoned]
        failed = [host for host, reason in counting if reason == "trainer_failed"]
        lost = [host for host, reason in counting if reason in ("host_lost", "upload_failed", "spawn_failed")]
        name, policy = job.job_id[:8], self.policy
        self.demand(job.grants == grants, f"{name} counts {job.grants} grants, had {grants}")
        self.demand(job.trainer_failures == len(failed), f"{name}: {job.trainer_failures} of {failed}")
        self.demand(job.host_losses == len(lost), f"{name} counts {job.host_losses} losses, had {lost}")
        reached = (
            (refused, refusing),
            (len(failed) >= policy.max_attempts, {*failed}),
            (len(lost) >= policy.max_host_losses, {*lost}),
            (grants >= policy.max_grants, {host for host, *_ in ends}),
        )
        spent = [hosts for is_reached, hosts in reached if is_reached]
        alone = all(len(hosts) == 1 for hosts in spent)
        if job.status == "failed":
            hopeless = (job.ended_by or "").startswith(("suspect_job", "out_of_memory"))
            self.demand(bool(spent) or hopeless, f"{name} failed before a budget was used up")
            self.demand(job.ended_by is not None, f"{name} failed and nothing says of what")
            if event.transition == "exhaust" and alone and not hopeless:
                asked_s = self.witness.receiver.clock.now() - max(ended_at for *_, ended_at in ends)
                late = event.source == "pending" and refused
                others = [] if late else min((self._others(job, hosts, seen) for hosts in spent), key=len)
                enough = not late or self._stepped or asked_s >= policy.second_opinion_s - 1.0
                self.demand(enough and not others, f"{name}: {job.ended_by}, by {spent}, not {others}, {asked_s:.0f} s")
        if job.status == "pending":
            ran_out = (job.ended_by or "").startswith("out_of_memory")
            self.demand(bool(job.ended_by) == bool(spent) or ran_out, f"{name} waits: {job.ended_by}, though {spent}")
            self.demand(alone, f"{name} waits though {spent} had it")

    def _others(self, job: Facts, hosts: set[str], seen: Observation) -> list[str]:
        """Return the hosts that may try a job, and that the receiver knows to be there: none under an operator's order.

        One whose last job ended in the same call, as by a sweep of two silent hosts, trains no longer.
        """
        trains = {live.host for live in seen.before.live.values()} & {live.host for live in seen.after.live.values()}
        out = hosts | seen.before.out.keys() | seen.after.out.keys() | self.witness.ordered()
        most_s = self.policy.second_opinion_s / 2
        heard = {host for host, at in self._signs.heard.items() if seen.at - at < most_s}
        return [
            host
            for host, capability in known_capabilities(self.witness).items()
            if most_s
            and host in (heard | trains) - out
            and misfit(job.wants(), host, capability, self.declared(host)) is None
        ]


class CancelHolds(Checker):
    """A cancelled job is granted to nobody until the operator requeues it."""

    def prepare(self) -> None:
        self._cancelled: set[str] = set()

    def see(self, seen: Observation) -> None:
        for event in seen.events:
            if event.transition in ("cancel", "take_out"):
                self._cancelled.add(event.job_id)
            elif event.transition == "requeue":
                self._cancelled.discard(event.job_id)
            elif event.transition in ("claim", "adopt", "readopt", "complete", "deliver"):
                self.demand(event.job_id not in self._cancelled, f"{event.transition} after cancel")


class HoldHolds(Checker):
    """A held job is granted to nobody until the operator lets it go, whatever became of it; the mark moves nothing."""

    def prepare(self) -> None:
        self._held: set[str] = set()

    def see(self, seen: Observation) -> None:
        for event in seen.events:
            if event.transition == "hold":
                self._held.add(event.job_id)
            elif event.transition == "unhold":
                self._held.discard(event.job_id)
            elif event.transition == "claim":
                self.demand(event.job_id not in self._held, f"{event.job_id[:8]} is held")
        if seen.after.jobs is not seen.before.jobs:
            found = {job_id for job_id, facts in seen.after.jobs.items() if facts.held_by}
            self.demand(found == self._held, f"{seen.call.name} changed who is held")
        if seen.call.name in _MARKS and seen.error is None:
            for job_id in seen.changed():
                before, after = seen.before.jobs[job_id], seen.after.jobs[job_id]
                self.demand(before._replace(held_by=after.held_by) == after, "a mark moved a job")


class Promise(NamedTuple):
    """Something that was acknowledged, and the question whose answer shows that it is still so."""

    what: str
    sql: str
    params: tuple[Any, ...]


class AcknowledgedIsDurable(Checker):
    """All that was acknowledged to a worker or the operator is found: at once, after every start, at the end."""

    def prepare(self) -> None:
        self._promises: list[Promise] = []

    def answered(self, call: Call, answer: Response) -> None:
        if answer.status == 200 and call.request is not None:
            told = {} if call.name == "state" or not answer.body else json.loads(answer.body)  # a state: bytes
            promise = _promise(call, told)
            if promise is not None:
                self._promises.append(promise)
                self._kept(promise)

    def restarted(self) -> None:
        for promise in self._promises:
            self._kept(promise)

    def at_end(self) -> None:
        self.restarted()

    def _kept(self, promise: Promise) -> None:
        rows = self.witness.rows(promise.sql, *promise.params)
        self.demand(bool(rows), f"{promise.what} was acknowledged and is not there")
        if promise.what == "an upload":
            model, mode = rows[0]
            if self.witness.removed(promise.params[0], model, mode):
                return
            found = self.witness.receiver.store.find(promise.params[0], model=model, mode=mode)
            self.demand(found is not None, "an upload was acknowledged and is not in the store")


_PROMISES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "claim": (
        "a grant",
        "SELECT 1 FROM attempts WHERE claim_id = ? AND job_id = ? AND attempt = ?",
        ("claim_id", "job_id", "attempt"),
    ),
    "complete": (
        "a completion",
        "SELECT 1 FROM attempts WHERE end_reason = 'completed' AND job_id = ? AND attempt = ? AND artifact_id = ?",
        ("job_id", "attempt", "artifact_id"),
    ),
    "deliver": (
        "work that was brought by hand",
        "SELECT 1 FROM attempts WHERE end_reason = 'completed' AND job_id = ? AND attempt = ? AND artifact_id = ?",
        ("job_id", "attempt", "artifact_id"),
    ),
    "ticket": (
        "an upload",
        "SELECT model, mode FROM artifacts WHERE artifact_id = ? AND job_id = ?",
        ("artifact_id", "job_id"),
    ),
    "cancel": (
        "a cancel",
        "SELECT 1 FROM events WHERE job_id = ? AND transition IN ('cancel', 'take_out')",
        ("job_id",),
    ),
    "requeue": ("a requeue", "SELECT 1 FROM events WHERE job_id = ? AND transition = 'requeue'", ("job_id",)),
    "hold": ("a hold", "SELECT 1 FROM events WHERE job_id = ? AND transition = 'hold'", ("job_id",)),
}


def _promise(call: Call, body: dict[str, Any]) -> Promise | None:
    """Return what a 200 to this call promises, if anything."""
    if call.name == "fail":
        sql = "SELECT 1 FROM attempts WHERE claim_id = ? AND ended_at IS NOT NULL"
        return Promise("a failure", sql, (call.message.claim_id,))
    by_hand = call.request is not None and "X-By-Hand" in call.request.headers
    if call.name not in _PROMISES or by_hand:  # what is uploaded by hand is nobody's before `deliver`
        return None
    what, sql, names = _PROMISES[call.name]
    params = tuple(body.get(name) for name in names)
    return None if None in params else Promise(what, sql, params)


class ProgressNeverBack(Checker):
    """An attempt's progress is never replaced by something older."""

    def see(self, seen: Observation) -> None:
        if seen.after.live is seen.before.live:
            return
        for claim, live in seen.after.live.items():
            before = seen.before.live.get(claim)
            if before is not None:
                self.demand(live.seq >= before.seq, f"{claim[:8]} went from {before.seq} to {live.seq}")

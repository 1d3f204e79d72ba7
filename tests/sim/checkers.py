"""The promises about the receiver's tables, one class each. None of them shares code with what it checks."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from sim.steps import Call
from sim.witness import Checker, Event, Facts, Live, Observation, Witness
from sim.world import World

from training.fleet.policy import Policy
from training.fleet.protocol import Action, ClaimReply, HeartbeatReply
from training.fleet.transport import Response

_LIVE = ("claimed", "running")
_FINAL = ("completed", "failed", "cancelled")
# The table of the protocol, once more and by hand: transition → (sources, target).
_TABLE: dict[str, tuple[tuple[str | None, ...], str]] = {
    "insert": ((None,), "pending"),
    "claim": (("pending",), "claimed"),
    "heartbeat": (("claimed",), "running"),
    "complete": (_LIVE, "completed"),
    "adopt": (("pending",), "completed"),
    "readopt": (("pending",), "running"),
    "retry": (_LIVE, "pending"),
    "hand_back": (_LIVE, "pending"),
    "sweep": (_LIVE, "pending"),
    "exhaust": (_LIVE, "failed"),
    "cancel": (("pending", *_LIVE), "cancelled"),
    "requeue": (("pending", *_LIVE, *_FINAL), "pending"),
}


class OneLiveAttempt(Checker):
    """At most one attempt of a job is live, and it is the one that the job's row names."""

    def see(self, seen: Observation) -> None:
        if seen.after.jobs is seen.before.jobs and seen.after.live is seen.before.live:
            return
        by_job = Counter(live.job_id for live in seen.after.live.values())
        for job_id, facts in seen.after.jobs.items():
            live = by_job[job_id]
            self.demand(live <= 1, f"job {job_id[:8]} has {live} live attempts")
            self.demand(
                (facts.status in _LIVE) == (live == 1),
                f"job {job_id[:8]} is {facts.status} with {live} live",
            )
            if live:
                self.demand(
                    facts.claim_id in seen.after.live, f"job {job_id[:8]} names another claim"
                )


class EventsTellEverything(Checker):
    """The event log has no gap, every event is a row of the table, and its replay yields the jobs' statuses."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._status: dict[str, str] = {}
        self._seq = 0

    def see(self, seen: Observation) -> None:
        for event in seen.events:
            self._seq += 1
            self.demand(event.seq == self._seq, f"event {event.seq} follows {self._seq - 1}")
            sources, target = _TABLE[event.transition]
            known = self._status.get(event.job_id)
            self.demand(
                event.source == known, f"{event.transition} from {event.source}, was {known}"
            )
            self.demand(known in sources, f"{event.transition} from {known}")
            self.demand(event.target == target, f"{event.transition} to {event.target}")
            self._status[event.job_id] = event.target
        if seen.after.jobs is not seen.before.jobs:
            found = {job_id: facts.status for job_id, facts in seen.after.jobs.items()}
            self.demand(
                found == self._status, f"the events of {seen.call.name} do not yield the table"
            )


class NothingVanishes(Checker):
    """A job that was ever known stays known; so does every attempt."""

    def see(self, seen: Observation) -> None:
        if seen.after.jobs is not seen.before.jobs:
            self.demand(seen.before.jobs.keys() <= seen.after.jobs.keys(), "a job vanished")

    def at_end(self, witness: Witness) -> None:
        grants = dict(witness.rows("SELECT job_id, count(*) FROM attempts GROUP BY job_id"))
        for job_id, facts in witness.now.jobs.items():
            self.demand(
                facts.attempt == grants.get(job_id, 0), f"attempts of {job_id[:8]} vanished"
            )


class AttemptsIncrease(Checker):
    """Every grant has the next number of its job; nothing else moves the number."""

    def see(self, seen: Observation) -> None:
        granted = Counter(event.job_id for event in seen.events if event.transition == "claim")
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
    """A worker's call takes effect only for the live claim (or the last one, given up for lost), and on its job only."""

    def __init__(self, world: World, policy: Policy) -> None:
        super().__init__(world)
        self._policy = policy
        self._lost: dict[str, Live] = {}  # by claim: ended as lost, as they were
        self._done: set[str] = set()  # claims that completed

    def see(self, seen: Observation) -> None:
        call = seen.call
        if call.name in ("heartbeat", "complete", "fail", "upload"):
            self._worker(seen)
        elif call.name in ("cancel", "requeue"):
            self.demand(
                set(seen.changed()) <= {call.job_id}, "the operator's call moved another job"
            )
        elif call.name == "ticket":
            self.demand(not seen.changed(), "asking for leave to upload moved a job")
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
        self.demand(set(changed) <= {call.job_id}, f"{call.name} moved another job")
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
            self.demand(readoptions < self._policy.max_readoptions, "readopted too often")

    def _adoptable(self, seen: Observation, claim: str) -> bool:
        lost = self._lost.get(claim)
        facts = seen.before.jobs[seen.call.job_id or ""]
        return (
            lost is not None
            and facts.status == "pending"
            and (lost.job_id, lost.attempt, lost.generation)
            == (facts.job_id, facts.attempt, facts.generation)
        )

    @staticmethod
    def claim(call: Call) -> str:
        if call.name == "upload":
            assert call.request is not None
            return str(call.request.headers.get("X-Claim-Id"))
        return str(call.message.claim_id)


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
                requeued = any(
                    e.job_id == job_id and e.transition == "requeue" for e in seen.events
                )
                same = (before.artifact_id, before.attempt) == (after.artifact_id, after.attempt)
                self.demand(
                    requeued or (same and after.status == "completed"), "a completed job changed"
                )

    def at_end(self, witness: Witness) -> None:
        store = witness.receiver.store
        accepted = witness.rows(
            "SELECT a.job_id, a.attempt, a.artifact_id, r.model, r.mode FROM attempts AS a "
            "LEFT JOIN artifacts AS r ON r.job_id = a.job_id AND r.attempt = a.attempt "
            "AND r.artifact_id = a.artifact_id WHERE a.end_reason = 'completed'"
        )
        by_job = {(job_id, attempt): artifact for job_id, attempt, artifact, _, _ in accepted}
        for job_id, attempt, artifact, model, mode in accepted:
            self.demand(model is not None, f"artifact of {job_id[:8]} #{attempt} has no row")
            found = store.verify(artifact, model=model, mode=mode)
            body = b"".join(witness.receiver.disk.read(store.root / found.path))
            self.demand(
                body.startswith(job_id.encode()), f"{job_id[:8]} has another job's artifact"
            )
            numbers = {record["attempt"] for record in store.provenance(found)}
            self.demand(attempt in numbers, f"artifact of {job_id[:8]} #{attempt} lacks provenance")
        for job_id, facts in witness.now.jobs.items():
            if facts.status == "completed":
                artifact = by_job.get((job_id, facts.attempt))
                self.demand(
                    artifact == facts.artifact_id, f"{job_id[:8]} completed by nobody's artifact"
                )


class BudgetsHold(Checker):
    """The counters are what the history says, no budget is exceeded, and nobody fails before one is used up."""

    def __init__(self, world: World, policy: Policy) -> None:
        super().__init__(world)
        self._policy = policy
        self._touched: set[str] = set()

    def see(self, seen: Observation) -> None:
        self._touched.update(event.job_id for event in seen.events)

    def restarted(self, witness: Witness) -> None:
        self._check(witness)

    def at_end(self, witness: Witness) -> None:
        self._check(witness)

    def _check(self, witness: Witness) -> None:
        for job_id in sorted(self._touched):
            self._job(witness, witness.now.jobs[job_id])
        self._touched.clear()

    def _job(self, witness: Witness, job: Facts) -> None:
        ends = witness.rows(
            "SELECT end_reason, exit_code FROM attempts WHERE job_id = ? AND generation = ? ORDER BY attempt",
            job.job_id,
            job.generation,
        )
        reasons = Counter(reason for reason, _ in ends)
        failures = reasons["trainer_failed"]
        losses = reasons["host_lost"] + reasons["upload_failed"] + reasons["spawn_failed"]
        name = job.job_id[:8]
        self.demand(job.grants == len(ends), f"{name} counts {job.grants} grants, had {len(ends)}")
        self.demand(
            job.trainer_failures == failures, f"{name}: {job.trainer_failures} of {failures}"
        )
        self.demand(
            job.host_losses == losses, f"{name} counts {job.host_losses} losses, had {losses}"
        )
        policy = self._policy
        spent = (
            failures >= policy.max_attempts
            or losses >= policy.max_host_losses
            or len(ends) >= policy.max_grants
            or any(reason == "trainer_failed" and code in (2, 65) for reason, code in ends)
        )
        if job.status == "failed":
            self.demand(spent, f"{name} failed before a budget was used up")
            self.demand(job.ended_by is not None, f"{name} failed and nothing says of what")
        if job.status == "pending":
            self.demand(not spent, f"{name} waits although a budget is used up")


class Silence(Checker):
    """What both sides of the promise about silence need: when each claim was heard, and since when it was watched."""

    def __init__(self, world: World, policy: Policy) -> None:
        super().__init__(world)
        self.policy = policy
        self.heard: dict[str, float] = {}  # claim → when
        self.watched_since = 0.0
        self._stepped_s = 0.0  # the receiver's wall clock, since its last look

    def restarted(self, witness: Witness) -> None:
        self.watched_since = self.world.now
        self._stepped_s = 0.0

    def slept(self, seconds: float) -> None:
        """The receiver slept until now. It may take a nap of three periods for a slow look."""
        if seconds > 3 * self.policy.sweep_period_s:
            self.watched_since = self.world.now

    def stepped(self, seconds: float) -> None:
        self._stepped_s += seconds

    def see(self, seen: Observation) -> None:
        for claim in seen.after.live.keys() - seen.before.live.keys():
            self.heard[claim] = seen.at
        if seen.call.name in ("heartbeat", "upload") and seen.error is None:
            self.heard[OnlyTheOwnerActs.claim(seen.call)] = seen.at
        if seen.call.name == "tick":
            if abs(self._stepped_s) > self.policy.clock_step_s:
                self.watched_since = seen.at
            self._stepped_s = 0.0
            self.looked(seen)

    def looked(self, seen: Observation) -> None:
        """The receiver looked who was silent."""


class SweptAfterObservedSilence(Silence):
    """Silence ends an attempt only when the receiver watched for a whole lease and heard nothing."""

    def looked(self, seen: Observation) -> None:
        enough = self.policy.stale_after_s - 0.01
        for claim in sorted(seen.before.live.keys() - seen.after.live.keys()):
            silent_s, watched_s = seen.at - self.heard[claim], seen.at - self.watched_since
            self.demand(silent_s >= enough, f"swept after {silent_s:.1f} s of silence")
            self.demand(watched_s >= enough, f"swept after watching for {watched_s:.1f} s")


class LostHostsAreNoticed(Silence):
    """A claim that nobody speaks for ends soon after a lease of watching; nothing stays leased for ever."""

    def looked(self, seen: Observation) -> None:
        # A look may itself begin a new lease of watching: allow two, and a few periods.
        most = 2 * self.policy.stale_after_s + 5 * self.policy.sweep_period_s + 10
        for claim in sorted(seen.after.live):
            silent_s = seen.at - max(self.heard[claim], self.watched_since)
            self.demand(
                silent_s <= most, f"claim {claim[:8]} lives after {silent_s:.0f} s of silence"
            )


class CancelHolds(Checker):
    """A cancelled job is granted to nobody until the operator requeues it."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._cancelled: set[str] = set()

    def see(self, seen: Observation) -> None:
        for event in seen.events:
            if event.transition == "cancel":
                self._cancelled.add(event.job_id)
            elif event.transition == "requeue":
                self._cancelled.discard(event.job_id)
            elif event.transition in ("claim", "adopt", "readopt", "complete"):
                self.demand(event.job_id not in self._cancelled, f"{event.transition} after cancel")


class OneGrantARequest(Checker):
    """A request of a worker is granted one job, however often it arrives."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._granted: dict[tuple[str, str], str] = {}

    def see(self, seen: Observation) -> None:
        reply = seen.result
        if seen.call.name != "claim" or not isinstance(reply, ClaimReply) or reply.claim_id is None:
            return
        key = (seen.call.message.host_id, seen.call.message.request_id)
        first = self._granted.setdefault(key, reply.claim_id)
        self.demand(first == reply.claim_id, f"request {key[1][:8]} was granted twice")
        self.demand(
            reply.claim_id in seen.after.live,
            f"request {key[1][:8]} was answered with a dead claim",
        )


class OneJobASlot(Checker):
    """A slot of a session holds one job."""

    def see(self, seen: Observation) -> None:
        if seen.after.live is seen.before.live:
            return
        held = Counter((live.host, live.session_id, live.slot) for live in seen.after.live.values())
        for (host, _, slot), count in held.items():
            self.demand(count <= 1, f"slot {slot} of {host} holds {count} jobs")


class OneInstallation(Checker):
    """One living installation works under a host's id, and of its sessions only the newest is given work."""

    def __init__(self, world: World, policy: Policy) -> None:
        super().__init__(world)
        self._lease_s = policy.stale_after_s
        self._last: dict[
            str, tuple[str, float]
        ] = {}  # host → the installation heard last, and when
        self._newest: dict[tuple[str, str], str] = {}  # host, installation → its newest session

    def see(self, seen: Observation) -> None:
        request = seen.call.message
        if seen.call.name != "claim" or seen.error is not None or seen.result.repeated:
            return  # the same answer again moves nothing
        host, instance, session = request.host_id, request.instance_id, request.session_id
        newest = self._newest.get((host, instance), session)
        granted = any(event.transition == "claim" for event in seen.events)
        if granted:
            self.demand(session[:10] >= newest[:10], f"an older session of {host} was given work")
            others = [
                live
                for live in seen.after.live.values()
                if live.host == host and live.instance_id == instance and live.session_id != session
            ]
            self.demand(not others, f"the last session of {host} still holds a job")
            known, heard_at = self._last.get(host, (instance, seen.at))
            silent_s = seen.at - heard_at
            over = known == instance or silent_s >= self._lease_s - 1.0
            self.demand(
                over, f"a second installation of {host} was given work after {silent_s:.0f} s"
            )
        self._newest[host, instance] = max(newest, session, key=lambda each: each[:10])
        self._last[host] = (instance, seen.at)


class LeasesAreTrue(Checker):
    """No worker is told of a longer lease than its claim has."""

    def __init__(self, world: World, policy: Policy) -> None:
        super().__init__(world)
        self._lease_s = policy.stale_after_s
        self._heard: dict[str, float] = {}

    def see(self, seen: Observation) -> None:
        for claim in seen.after.live.keys() - seen.before.live.keys():
            self._heard[claim] = seen.at
        if seen.error is not None or seen.call.name not in ("claim", "heartbeat", "upload"):
            return
        if seen.call.name == "claim":
            claim, lease_s = seen.result.claim_id, seen.result.lease_s
        else:
            claim = OnlyTheOwnerActs.claim(seen.call)
            self._heard[claim] = seen.at
            lease_s = getattr(seen.result, "lease_s", None)
        if claim is not None and lease_s is not None:
            left_s = max(0.0, self._heard[claim] + self._lease_s - seen.at)
            self.demand(
                lease_s <= left_s + 1.0,
                f"told of {lease_s:.0f} s of lease, {left_s:.0f} s are left",
            )


class ProgressNeverBack(Checker):
    """What an attempt has told of its progress is never replaced by something older."""

    def see(self, seen: Observation) -> None:
        if seen.after.live is seen.before.live:
            return
        for claim, live in seen.after.live.items():
            before = seen.before.live.get(claim)
            if before is not None:
                self.demand(
                    live.seq >= before.seq, f"{claim[:8]} went from {before.seq} to {live.seq}"
                )


class GrantsFit(Checker):
    """A job goes to a host that may run it, not before its back-off, and never past a better one."""

    def __init__(self, world: World, policy: Policy, hosts: dict[str, dict[str, Any]]) -> None:
        super().__init__(world)
        self._policy = policy
        self._hosts = hosts  # what the manifest declares
        self._witness: Witness
        self.clock_is_true = True  # nothing stepped since the receiver's last look

    def restarted(self, witness: Witness) -> None:
        self._witness = witness

    def see(self, seen: Observation) -> None:
        if seen.call.name == "tick":
            self.clock_is_true = True
        for event in seen.events:
            if event.transition == "claim":
                self._grant(seen, event)

    def _grant(self, seen: Observation, event: Event) -> None:
        request = seen.call.message
        spec = self._witness.spec(event.job_id)
        obstacle = misfit(
            spec, request.host_id, request.capability, self._hosts.get(request.host_id, {})
        )
        self.demand(obstacle is None, f"granted to a host that does not fit: {obstacle}")
        if not self.clock_is_true:
            return
        facts, now = seen.before.jobs[event.job_id], self._witness.receiver.clock.now()
        self.demand(facts.claimable_at <= now + 1e-6, "granted before its back-off was over")
        if spec.get("prefer_cuda") and not has_cuda(spec, request.capability):
            held_s = now - facts.claimable_at
            grace = self._policy.prefer_cuda_grace_s
            self.demand(held_s >= grace - 1e-6, f"granted past prefer_cuda after {held_s:.1f} s")
        for other in seen.before.jobs.values():
            if other.status == "pending" and other.priority > facts.priority:
                self._passed_over(other, request, now)

    def _passed_over(self, other: Facts, request: Any, now: float) -> None:
        spec = self._witness.spec(other.job_id)
        declared = self._hosts.get(request.host_id, {})
        graces = self._policy.prefer_cuda_grace_s + self._policy.host_priority_grace_s
        free = other.claimable_at + graces <= now and (
            other.avoid_host != request.host_id or (other.avoid_until or 0.0) <= now
        )
        fits = misfit(spec, request.host_id, request.capability, declared) is None
        self.demand(
            not (free and fits), f"job {other.job_id[:8]} of higher priority was passed over"
        )


class AcknowledgedIsDurable(Checker):
    """What a worker or the operator was told is found again, now, after every start and at the end."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._promises: list[tuple[str, tuple[Any, ...], str]] = []

    def answered(self, call: Call, answer: Response, witness: Witness) -> None:
        if answer.status != 200 or call.request is None:
            return
        promise = _promise(call, answer)
        if promise is not None:
            self._promises.append(promise)
            self._kept(promise, witness)

    def restarted(self, witness: Witness) -> None:
        for promise in self._promises:
            self._kept(promise, witness)

    def at_end(self, witness: Witness) -> None:
        self.restarted(witness)

    def _kept(self, promise: tuple[str, tuple[Any, ...], str], witness: Witness) -> None:
        sql, params, what = promise
        self.demand(bool(witness.rows(sql, *params)), f"{what} was acknowledged and is not there")


def _promise(call: Call, answer: Response) -> tuple[str, tuple[Any, ...], str] | None:
    body = json.loads(answer.body) if answer.body else {}
    if call.name == "claim" and body.get("claim_id"):
        sql = "SELECT 1 FROM attempts WHERE claim_id = ? AND job_id = ? AND attempt = ?"
        return sql, (body["claim_id"], body["job_id"], body["attempt"]), "a grant"
    if call.name == "complete":
        sql = "SELECT 1 FROM attempts WHERE job_id = ? AND attempt = ? AND artifact_id = ? AND end_reason = 'completed'"
        return sql, (body["job_id"], body["attempt"], body["artifact_id"]), "a completion"
    if call.name == "fail":
        sql = "SELECT 1 FROM attempts WHERE claim_id = ? AND ended_at IS NOT NULL"
        return sql, (call.message.claim_id,), "a failure"
    if call.name == "ticket" and body.get("artifact_id"):
        sql = "SELECT 1 FROM artifacts WHERE artifact_id = ? AND job_id = ?"
        return sql, (body["artifact_id"], body["job_id"]), "an upload"
    if call.name in ("cancel", "requeue"):
        sql = "SELECT 1 FROM events WHERE job_id = ? AND transition = ?"
        return sql, (body["job_id"], call.name), f"a {call.name}"
    return None


def has_cuda(spec: dict[str, Any], capability: dict[str, Any]) -> bool:
    vram = max((d["vram_free_gib"] for d in capability.get("cuda_devices", [])), default=0.0)
    return bool(capability.get("cuda_available")) and vram >= spec.get("min_vram_gib", 0.0)


def misfit(
    spec: dict[str, Any], host: str, capability: dict[str, Any], declared: dict[str, Any]
) -> str | None:
    """Who may run what, said a second time in the plainest words."""
    if host in spec.get("denied_hosts", []):
        return "denied host"
    if spec.get("allowed_hosts") and host not in spec["allowed_hosts"]:
        return "not an allowed host"
    if spec["model"] in declared.get("deny_jobs", []):
        return "denied model"
    if declared.get("allow_jobs") and spec["model"] not in declared["allow_jobs"]:
        return "not an allowed model"
    if spec.get("require_cuda") and not has_cuda(spec, capability):
        return "no CUDA"
    if capability.get("ram_available_gib", 0.0) < spec.get("min_ram_gib", 0.0):
        return "too little RAM"
    if capability.get("cpu_cores", 0) < spec.get("min_cores", 0):
        return "too few cores"
    return None

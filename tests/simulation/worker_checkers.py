"""The promises about workers: what runs where, what is obeyed, and what becomes of finished work."""

from __future__ import annotations

import gzip
import hashlib
import json
from typing import TYPE_CHECKING

from simulation.faults import Fault
from simulation.grant_checkers import most_at_once
from simulation.steps import Call
from simulation.time_checkers import SweptAfterObservedSilence
from simulation.witness import Checker, Observation
from training.fleet.client.transport import Response
from training.fleet.process.ended import Ended
from training.fleet.wire.attempts import HeartbeatReply
from training.fleet.wire.constants import Action, ProblemType
from training.fleet.worker.state import events as t
from training.fleet.worker.state.trainer import STEP_MAX_S

if TYPE_CHECKING:
    from simulation.host import Host
    from simulation.trainer import Trainer

SLACK_S = 5.0  # until a worker that wakes up has looked at its lease
# The receiver's words after which finished work may be forgotten.
_FORGET = (
    ProblemType.LEASE_SUPERSEDED,
    ProblemType.JOB_CANCELLED,
    ProblemType.RESULT_CONFLICT,
    ProblemType.UNKNOWN_JOB,
)


class OneTrainerAtATime(Checker):
    """With ``on_silence = "pause"`` no trainer runs whose claim was swept: two copies never run at once.

    Without it, the time for which two ran is counted and shown. What the operator took away, and what a copy of the
    same installation took over, is known to its worker only at its next heartbeat, and is not promised. Nor is anything
    when heartbeats were stamped by a clock that nobody saw step.
    """

    def prepare(self) -> None:
        self._running: dict[str, list[Trainer]] = {}  # job → its running trainers
        self._swept: set[str] = set()
        self._double_since: dict[str, float] = {}

    def moved(self, host: Host, trainer: Trainer) -> None:
        job_id = trainer.assignment.job_id
        running = self._running.setdefault(job_id, [])
        if trainer.running:
            running.append(trainer)
            self._look_soon(trainer)
        elif trainer in running:
            running.remove(trainer)
        if len(running) > 1:
            self._double_since.setdefault(job_id, self.world.now)
        elif job_id in self._double_since:
            double_s = self.world.now - self._double_since.pop(job_id)
            self.world.tally["seconds in which two trained one job"] += int(double_s)

    def see(self, seen: Observation) -> None:
        if seen.call.name == "tick":
            for claim in sorted(seen.before.live.keys() - seen.after.live.keys()):
                self._swept.add(claim)
                for trainer in self._running.get(seen.before.live[claim].job_id, []):
                    if trainer.assignment.claim_id == claim:
                        self._look_soon(trainer)
        if self._swept:
            self._swept -= seen.after.live.keys()  # readopted

    def _look_soon(self, trainer: Trainer) -> None:
        claim = trainer.assignment.claim_id

        def look() -> None:
            runs = trainer.running and claim in self._swept
            self.demand(not runs, f"the trainer of the swept claim {claim[:8]} runs")

        pausing = self.scenario.settings.on_silence is t.OnSilence.PAUSE
        if pausing and claim in self._swept and not self.witness.one(SweptAfterObservedSilence).off_s:
            self.world.after(SLACK_S, look)


class NoMoreThanSlots(Checker):
    """On no machine more trainers run than the manifest has slots for it, and none twice for one job."""

    def prepare(self) -> None:
        self._running: dict[str, list[Trainer]] = {}  # by machine

    def moved(self, host: Host, trainer: Trainer) -> None:
        running = self._running.setdefault(host.machine, [])
        if not trainer.running:
            if trainer in running:
                running.remove(trainer)
            return
        running.append(trainer)
        jobs = [each.assignment.job_id for each in running]
        declared = self.declared(host.name)
        most = most_at_once(host.capability, declared) if "slots" in declared else 1
        self.demand(len(jobs) <= most, f"{len(jobs)} trainers run on {host.machine}, which has {most} slots")
        self.demand(len({*jobs}) == len(jobs), f"two trainers of one job run on {host.machine}")
        self.world.tally["trainers that began beside others"] += len(jobs) > 1


class CompanyIsNoWant(Checker):
    """Memory that ran out while another trainer ran there, too, says nothing of what the job needs."""

    def prepare(self) -> None:
        self._crowded: set[str] = set()  # claims

    def over(self, host: Host, trainer: Trainer, ended: Ended) -> None:
        others = [each for each in host.trainers.values() if each is not trainer and each.running]
        if others and trainer.fate.ending in (Fault.OUT_OF_RAM, Fault.OUT_OF_VRAM):
            self._crowded.add(trainer.assignment.claim_id)
            self.world.tally["trainers out of memory beside others"] += 1

    def see(self, seen: Observation) -> None:
        if seen.call.name == "fail" and seen.call.message.claim_id in self._crowded:
            self.demand(seen.call.message.out_of_memory is None, "a job is to need more for want of its neighbours")


class ToldToStop(Checker):
    """A worker that learns that its claim is gone ends the trainer soon."""

    def event(self, host: Host, event: t.Event) -> None:
        state = host.machine_of(event)
        work = None if state is None else state.work
        trainer = None if work is None else host.trainers.get(work.assignment.claim_id)
        if state is None or work is None or trainer is None or trainer.assignment is not work.assignment:
            return
        told = (
            isinstance(event, t.CallRefused)
            and event.problem_type in (ProblemType.LEASE_SUPERSEDED, ProblemType.JOB_CANCELLED)
        ) or (isinstance(event, t.HeartbeatAnswered) and event.reply.action is Action.STOP)
        if told and event.call in (work.beat_call, state.call):
            self.world.after(SLACK_S, lambda: self._look(host, trainer))

    def _look(self, host: Host, trainer: Trainer) -> None:
        gone = trainer.over or not trainer.running
        self.demand(gone, f"the trainer of {trainer.assignment.claim_id[:8]} was not stopped")


class LeavesInTime(Checker):
    """A worker that is told to stop is gone within its time, whatever its trainer and the receiver do."""

    def event(self, host: Host, event: t.Event) -> None:
        if isinstance(event, t.SignalReceived):
            session = host.session_id
            self.world.after(host.settings.leave_s + SLACK_S, lambda: self._look(host, session))

    def _look(self, host: Host, session: str) -> None:
        stays = host.up and host.session_id == session and not host.asleep and not host.woke_lately
        self.demand(not stays, f"{host.machine} was told to stop and is still there")


class FinishedIsDelivered(Checker):
    """A finished training is packed, on the disk before it is offered, and offered until it is taken or refused for
    good; how an attempt failed is on the disk before it is reported.

    Crashes of the worker do not change that; only a disk that loses the bundle may. A lease that is lost does not
    either: whether the work can be adopted is the receiver's answer to the offer.
    """

    def prepare(self) -> None:
        self._open: dict[tuple[str, str], str] = {}  # machine, claim → what is known of it
        self._hosts: dict[str, Host] = {}
        self._known: set[tuple[str, str]] = set()

    def over(self, host: Host, trainer: Trainer, ended: Ended) -> None:
        if ended.code == 0:
            key = (host.machine, trainer.assignment.claim_id)
            self._known.add(key)
            self._hosts[host.machine] = host
            work = host.work_on(trainer.assignment.claim_id)
            if work is not None and not work.dropped:
                self._open[key] = "trained"

    def event(self, host: Host, event: t.Event) -> None:
        self._look_at_reports(host)
        state = host.machine_of(event)
        mine = None if state is None else state.work
        if mine is not None and isinstance(event, t.PackFailed | t.HeartbeatAnswered):
            self._answered((host.machine, mine.assignment.claim_id), event, beat=True)
        for saved in host.directory.saved.values():
            if saved.delivery is not None:
                key = (host.machine, saved.delivery.assignment.claim_id)
                if key not in self._known:
                    self._known.add(key)
                    self._hosts[host.machine] = host
                    self._open[key] = "packed"
        for slot, work in host.state.works.items():
            if work.delivery is not None and work.failure is None:
                own = host.directory.saved.get(slot, t.Saved()).delivery
                self.demand(own == work.delivery, f"{host.machine} would forget its finished work in a crash")
        if state is None or mine is None or mine.delivery is None or mine.failure is not None:
            return
        answer = isinstance(event, t.Completed | t.CallRefused | t.DeliveryBroken | t.HeartbeatAnswered)
        if answer and event.call in (state.call, mine.beat_call):
            beat = event.call == mine.beat_call
            self._answered((host.machine, mine.assignment.claim_id), event, beat=beat)

    def _look_at_reports(self, host: Host) -> None:
        for slot, state in host.state.machines.items():
            if state.phase == "failing" and state.work is not None:
                report = host.directory.saved.get(slot, t.Saved()).report
                known = report is not None and report.failure == state.work.failure
                self.demand(known, f"{host.machine} would forget in a crash how its job failed")

    def _answered(self, key: tuple[str, str], event: t.Event, *, beat: bool) -> None:
        if key not in self._open:
            return
        match event:
            case t.Completed() | t.DeliveryBroken() | t.HeartbeatAnswered(reply=HeartbeatReply(action=Action.STOP)):
                del self._open[key]
            case t.PackFailed():
                del self._open[key]
            case t.CallRefused(problem_type=ProblemType.LEASE_SUPERSEDED) if beat:
                pass  # the offer will be answered
            case t.CallRefused() if event.problem_type in _FORGET:
                del self._open[key]
            case t.CallRefused():
                self._open[key] = f"refused with {event.problem_type}"

    def gone(self, host: Host) -> None:
        for key in [key for key in self._open if key[0] == host.machine]:
            del self._open[key]

    def at_end(self) -> None:
        ends = dict(self.witness.rows("SELECT claim_id, end_reason FROM attempts"))
        for (machine, claim), known in self._open.items():
            host = self._hosts[machine]
            if host.directory.delivery(claim) is not None:
                continue  # it will be offered when that worker runs again
            if any(held.claim_id == claim and host.end_of(held).exists() for held in host.directory.held()):
                continue  # it will be packed then
            ended = ends[claim] is not None and ends[claim] != "host_lost"
            # A line that garbles every try is given up after some.
            garbled = known == f"refused with {ProblemType.WRONG_DIGEST}"
            self.demand(ended or garbled, f"{machine} forgot the finished {claim[:8]} ({known})")


class OnlyTheGranterIsBelieved(Checker):
    """Hold that the last word a worker takes on its claim is the receiver's, whoever else answered meanwhile."""

    def prepare(self) -> None:
        self._refused: set[str] = set()  # claims on which the receiver said no, or stop
        self._taken: set[str] = set()  # … or: it is done

    def answered(self, call: Call, answer: Response) -> None:
        if call.request is None:
            return
        body = json.loads(call.request.body) if call.request.method == "POST" and call.request.body else {}
        claim = body.get("claim_id") or call.request.headers.get("X-Claim-Id") or ""
        if answer.status != 200 or b'"stop"' in answer.body:
            self._refused.add(claim)
        elif call.name in ("complete", "fail"):
            self._taken.add(claim)

    def event(self, host: Host, event: t.Event) -> None:
        state = host.machine_of(event)
        work = None if state is None else state.work
        if state is None or work is None or getattr(event, "call", None) not in (state.call, work.beat_call):
            return
        claim = work.assignment.claim_id
        if isinstance(event, t.CallRefused) or (
            isinstance(event, t.HeartbeatAnswered) and event.reply.action is Action.STOP
        ):
            self.demand(claim in self._refused, f"{host.machine} took a stranger's word on {claim[:8]}")
        elif isinstance(event, t.Completed | t.FailTaken):
            self.demand(claim in self._taken, f"{host.machine} was thanked by a stranger")


class AsksTheSameAgain(Checker):
    """A claim whose answer was lost is asked again as the same request, or its grant would belong to nobody."""

    def prepare(self) -> None:
        self._asked: dict[str, str | None] = {}  # session → the request without an answer

    def event(self, host: Host, event: t.Event) -> None:
        asked = self._asked.pop(host.session_id, None)
        if asked is not None:
            known = [state.request_id for state in host.state.machines.values()]
            self.demand(asked in known, f"{host.machine} dropped a request unanswered")
        state = host.machine_of(event)
        if state is not None and isinstance(event, t.NotAnswered) and event.call == state.call:
            self._asked[host.session_id] = state.request_id


class HungTrainersAreStopped(Checker):
    """A trainer that was seen to hang for as long as the limit says is stopped; sleep and pauses do not count."""

    def prepare(self) -> None:
        self._seen: dict[str, tuple[float, float]] = {}  # claim → last look, seconds of hanging

    def event(self, host: Host, event: t.Event) -> None:
        limit_s = self.scenario.settings.max_silence_s
        if not isinstance(event, t.Measured) or not limit_s:
            return
        trainer, state = host.trainers.get(event.claim_id), host.machine_of(event)
        work = None if state is None else state.work
        if trainer is None or state is None or work is None or state.phase != "running":
            return
        last, hung_s = self._seen.get(event.claim_id, (self.world.now, 0.0))
        if work.stood_at is not None:  # for whatever reason
            self._seen[event.claim_id] = self.world.now, hung_s
            return
        step_s = min(self.world.now - last, STEP_MAX_S) if trainer.hung else 0.0
        self.demand(
            not trainer.hung or hung_s < limit_s + 2 * STEP_MAX_S,
            f"the trainer of {event.claim_id[:8]} hangs and is left alone",
        )
        self._seen[event.claim_id] = self.world.now, hung_s + step_s


class LogsAreWhole(Checker):
    """The stored output of every attempt is what its trainer printed, each line once and in order, however it ended and
    whoever crashed: all of it, once the machine that trained has had the time to bring it."""

    def prepare(self) -> None:
        self._printed: dict[str, list[str]] = {}  # by claim
        self._machine: dict[str, Host] = {}  # claim → where it ran
        self._broken: set[str] = set()  # claims that two machines held

    def event(self, host: Host, event: t.Event) -> None:
        for work in host.state.works.values():
            claim = work.assignment.claim_id
            if self._machine.setdefault(claim, host) is not host:
                self._broken.add(claim)

    def printed(self, host: Host, trainer: Trainer, lines: list[str]) -> None:
        claim = trainer.assignment.claim_id
        if self._machine.setdefault(claim, host) is not host:
            self._broken.add(claim)
        self._printed.setdefault(claim, []).extend(lines)

    def at_end(self) -> None:
        stored: dict[str, list[str]] = {}
        sql = (
            "SELECT a.claim_id, l.first, l.count, l.text, NULL, NULL FROM log_chunks AS l JOIN attempts AS a "
            "ON a.job_id = l.job_id AND a.attempt = l.attempt UNION ALL "
            "SELECT a.claim_id, l.first, l.count, NULL, l.job_id || '/' || l.attempt, l.sha256 FROM log_files AS l "
            "JOIN attempts AS a ON a.job_id = l.job_id AND a.attempt = l.attempt ORDER BY 1, 2"
        )
        for claim, first, count, text, place, sha256 in self.witness.rows(sql):
            lines = stored.setdefault(claim, [])
            if text is None:
                text = self._in_file(f"{place}-{first}-{(sha256 or '')[:16]}.log.gz", sha256)
                self.world.tally["lines of output in files"] += count
            self.demand(first == len(lines), f"output of {claim[:8]}: line {first} follows {len(lines)}")
            lines += text.split("\n")
            self.demand(len(lines) == first + count, f"output of {claim[:8]}: a piece is miscounted")
        for claim, printed in self._printed.items():
            found, host = stored.get(claim, []), self._machine[claim]
            if claim in self._broken:  # two trainers' lines under one name
                continue
            self.demand(found == printed[: len(found)], f"output of {claim[:8]} is not what was printed")
            brought = host.gone or not host.up or claim in self._in_hand(host)
            self.demand(
                brought or len(found) == len(printed),
                f"{claim[:8]} printed {len(printed)} lines, {len(found)} are stored",
            )
        self.world.tally["lines of output brought whole"] += sum(map(len, self._printed.values()))
        self._look_at_curves(stored)
        for claim, total in self.witness.rows("SELECT claim_id, log_total FROM attempts WHERE log_total IS NOT NULL"):
            if claim not in self._broken:
                printed = len(self._printed.get(claim, []))
                self.demand(total == printed, f"{claim[:8]} printed {printed} lines, and its worker said {total}")
                self.world.tally["attempts whose output is counted"] += 1

    def _in_file(self, name: str, sha256: str | None) -> str:
        body = b"".join(self.witness.receiver.disk.read(self.witness.receiver.store.root / "logs" / name))
        self.demand(hashlib.sha256(body).hexdigest() == sha256, f"the file of output {name} is damaged")
        return gzip.decompress(body).decode().removesuffix("\n")

    def _look_at_curves(self, stored: dict[str, list[str]]) -> None:
        """No epoch that a trainer reported is missing from the curve once its line has arrived, and none is made up."""
        curves: dict[str, dict[int, float]] = {}
        sql = (
            "SELECT a.claim_id, p.epoch, p.loss FROM curve_points AS p JOIN attempts AS a "
            "ON a.job_id = p.job_id AND a.attempt = p.attempt"
        )
        for claim, epoch, loss in self.witness.rows(sql):
            curves.setdefault(claim, {})[epoch] = loss
        for claim in (stored.keys() | curves.keys()) - self._broken:
            arrived, curve = _epochs(stored.get(claim, [])), curves.get(claim, {})
            lacking = arrived.keys() - curve.keys()
            self.demand(not lacking, f"the curve of {claim[:8]} lacks epochs {sorted(lacking)[:5]}")
            printed = _epochs(self._printed.get(claim, []))
            self.demand(curve.items() <= printed.items(), f"the curve of {claim[:8]} is not what its trainer reported")
        self.world.tally["epochs in curves"] += sum(map(len, curves.values()))

    @staticmethod
    def _in_hand(host: Host) -> set[str]:
        """Claims whose output is still being brought."""
        held = {one.assignment.claim_id for state in host.state.machines.values() for one in state.backlog}
        return held | {work.assignment.claim_id for work in host.state.works.values()}


def _epochs(lines: list[str]) -> dict[int, float]:
    """Return the losses by epoch in these lines, as the simulation's trainers print them."""
    told = [json.loads(line) for line in lines if line.startswith("{")]
    return {each["epoch"]: each["loss"] for each in told}

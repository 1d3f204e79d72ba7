"""PURE: the state of one slot's machine as a value, and the changes of it that several phases share.

A :class:`StateStep` is one step of the state machine while it is being computed: the state and the actions so far.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from training.certain import certain
from training.fleet.scheduling.job import EndReason
from training.fleet.wire.attempts import LogLines
from training.fleet.wire.constants import ProblemType
from training.fleet.worker.state import events as t
from training.fleet.worker.state.exit_code import Failure
from training.fleet.worker.state.usage import TrainerMemory, UsageMeter
from training.strict_json import Json, JsonObject

Chance = Callable[[], float]  # a number from 0 up to 1

SHUTDOWN = Failure(EndReason.WORKER_SHUTDOWN, "worker shutdown")

# Refusals of the host, not of its work: once it is enrolled (again), the same request is accepted.
NOT_LET_IN = frozenset(
    {
        ProblemType.NO_CERTIFICATE,
        ProblemType.CERTIFICATE_IDENTITY,
        ProblemType.CERTIFICATE_UNKNOWN,
        ProblemType.CERTIFICATE_EXPIRED,
        ProblemType.PROXY_IDENTITY,
        ProblemType.HOST_MISMATCH,
        ProblemType.WRONG_ROLE,
        ProblemType.ORIGIN_REFUSED,
    }
)


class Phase(StrEnum):
    """The phase of one slot's machine; see the table in state/step.py."""

    IDLE = "idle"
    ASKING = "asking"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    PACKING = "packing"
    UPLOADING = "uploading"
    COMPLETING = "completing"
    FAILING = "failing"
    GONE = "gone"


WITH_TRAINER = frozenset({Phase.STARTING, Phase.RUNNING, Phase.STOPPING})
DELIVERING = frozenset({Phase.UPLOADING, Phase.COMPLETING})
REPORTING = DELIVERING | {Phase.FAILING}
FINISHED = DELIVERING | {Phase.PACKING}  # the result may be adopted, even without the lease


class Halt(NamedTuple):
    """A reason why this host trains nothing for now; see halts.py."""

    reason: str
    patience_s: float  # for which a trainer stays paused; then its job is handed back
    owner: str | None = None  # the condition of the host's owner, of which the receiver hears from the worker


class Work(Struct, frozen=True, kw_only=True):
    """The current job of one slot: its lease, what its trainer reported, and its outcome."""

    assignment: t.Assignment
    # the lease, and the heartbeats that renew it
    renewed_at: float  # when the request was sent that last renewed it
    lease_s: float
    beat_at: float | None  # when the next is due; None: another request renews the lease
    beat_call: int | None = None  # on its way …
    beat_sent_at: float = 0.0  # … since then
    beat_tries: int = 0
    seq: int = 0
    paused: bool = False  # because the receiver was silent …
    halted_at: float | None = None  # … or for a halt, since then
    stood_at: float | None = None  # the trainer stands still since then, for any reason …
    stood_s: float = 0.0  # … and stood for so long before
    beat_said: tuple[bool, str | None] = (False, None)  # whether it was halted, and why, as the last heartbeat said
    # the trainer's reports
    started_at: float | None = None  # None: not in this session
    progress: Json | None = None
    complaint: str | None = None  # its own error text
    printed: int = 0  # lines so far
    first: int = 0  # number of the first that the receiver does not have
    beat_printed: int = 0  # lines when the last heartbeat was sent
    last_words: tuple[str, ...] = ()
    # silence and running time
    measured_at: float | None = None
    run_s: float = 0.0  # for how long it was seen to run …
    quiet_s: float = 0.0  # … and to neither say nor compute anything
    cpu_s: float = 0.0  # its CPU time when it last grew
    used: UsageMeter = UsageMeter()  # since the last heartbeat
    memory: TrainerMemory = TrainerMemory()  # that its trainer holds
    resumable: bool = False  # it has saved a state from which another attempt can go on
    # its end
    dropped: bool = False
    killed: bool = False
    stop_by: float | None = None  # when patience with a stopping trainer ends
    failure: Failure | None = None  # the outcome to report
    usage: JsonObject = {}
    beside_at: float | None = None  # when another slot's trainer last ran beside its own
    crowded: bool = False  # memory ran out while others used it, too
    delivery: t.Delivery | None = None
    faults: int = 0  # refused uploads
    unconfirmed: bool = False  # it waits for an operator at the receiver, and may for days


class State(Struct, frozen=True, kw_only=True):
    """The whole state of one slot's machine. Begin with ``State(session_id=…)`` and the event Begin."""

    session_id: str
    phase: Phase = Phase.IDLE
    work: Work | None = None
    saved: t.Saved = t.Saved()  # the saved facts
    request_id: str | None = None  # the id of the claim to repeat until it is answered
    request_is_fresh: bool = True  # that was sent once at most, and in this session
    unanswered: bool = False  # it may have been granted
    benched: bool = False  # another slot asks, or none may
    beside: bool = False  # other slots hold jobs
    halt: Halt | None = None  # why this host trains nothing now
    rests: bool = False  # the last request for work said so
    crashed: tuple[str, ...] = ()  # claims to be named as lost in a crash with the next request
    requests: int = 0
    echo: str = ""  # of the last answer to a claim or heartbeat
    calls: int = 0
    call: int | None = None  # the request in flight, heartbeats apart …
    call_sent_at: float = 0.0  # … since then
    call_at: float | None = None  # when the next may be sent
    tries: int = 0  # in a row, without an answer
    told: str = ""  # the last report on another program in the receiver's place
    idle: str = ""  # the last reason for which there was no job, without its figures
    # output of attempts that are over, and the message that carries some of it
    backlog: tuple[t.Backlog, ...] = ()
    output_call: int | None = None
    output_at: float | None = None
    output_tries: int = 0
    draining: bool = False
    signals: int = 0
    leave_by: float | None = None

    @property
    def leaving(self) -> bool:
        return self.draining or self.signals > 0


def is_due(at: float | None, now: float) -> bool:
    return at is not None and at <= now


class StateStep:
    """One step of the state machine, while it is being computed."""

    def __init__(self, state: State, now: float, settings: t.WorkerSettings, chance: Chance) -> None:
        self.state = state
        self.now = now
        self.settings = settings
        self.chance = chance
        self.actions: list[t.WorkerAction] = []

    # ── small things ────────────────────────────────────────────────────────────────────────

    @property
    def phase(self) -> Phase:
        return self.state.phase

    @property
    def work(self) -> Work:
        return certain(self.state.work, "this phase has work")

    def set(self, **changes: Any) -> None:
        self.state = replace(self.state, **changes)

    def set_work(self, **changes: Any) -> None:
        self.set(work=replace(self.work, **changes))

    def do(self, action: t.WorkerAction) -> None:
        self.actions.append(action)

    def order(self, kind: type[t.TrainerOrder]) -> None:
        self.do(kind(self.work.assignment.claim_id))

    def say(self, text: str, *, warning: bool = False) -> None:
        self.do(t.Say(text=text, warning=warning))

    def persist(self, saved: t.Saved) -> None:
        if saved != self.state.saved:
            self.set(saved=saved)
            self.do(t.Persist(saved=saved))

    def new_call(self) -> int:
        self.set(calls=self.state.calls + 1)
        return self.state.calls

    def begin_call(self) -> int:
        call = self.new_call()
        self.set(call=call, call_sent_at=self.now, call_at=None)
        return call

    def say_unanswered(self, text: str, answer: t.NotAnswered, *, first: bool) -> None:
        """Log that a request was not answered, if it is the ``first`` time, or when another program begins to
        answer."""
        if first or (answer.stranger and answer.detail != self.state.told):
            self.say(text, warning=True)
        self.set(told=answer.detail if answer.stranger else "")

    def again_later(self, first_s: float, retry_after_s: float | None = None) -> None:
        """Set when to repeat a request: after a random pause below a doubling limit, never before the time that the
        receiver asked for."""
        pause_s = self.pause_s(first_s, self.state.tries)
        self.set(call_at=self.now + max(pause_s, retry_after_s or 0.0))

    def pause_s(self, first_s: float, tries: int) -> float:
        ceiling = min(self.settings.retry_max_s, first_s * 2.0 ** min(tries - 1, 16))
        return self.chance() * ceiling

    # ── moves ───────────────────────────────────────────────────────────────────────────────

    def take_on(self, assignment: t.Assignment, *, renewed_at: float, lease_s: float, beat_at: float) -> None:
        """Make an assignment the current job of this slot."""
        work = Work(assignment=assignment, renewed_at=renewed_at, lease_s=lease_s, beat_at=beat_at)
        self.set(work=work)

    def hold_still(self) -> None:
        """Pause the trainer, unless it is paused already."""
        if self.work.stood_at is None:
            self.set_work(stood_at=self.now)
            self.order(t.PauseTrainer)

    def let_go_on(self) -> None:
        """Resume the trainer, unless another reason keeps it paused."""
        if self.work.stood_at is not None and not self.work.paused and self.work.halted_at is None:
            self._stands_no_more()
            self.order(t.ResumeTrainer)

    def _stands_no_more(self) -> None:
        if self.work.stood_at is not None:
            stood_s = self.work.stood_s + max(0.0, self.now - self.work.stood_at)
            self.set_work(stood_at=None, stood_s=stood_s)

    def stop(self) -> None:
        """Ask the trainer to stop, and resume it for that if it is paused; its end decides the next phase."""
        self.set(phase=Phase.STOPPING)
        self._stands_no_more()
        self.set_work(stop_by=self.now + self.settings.grace_s)
        self.order(t.StopTrainer)

    def stop_fetching(self) -> None:
        """Stop the fetch of the job's data set, if it has one; the attempt then posts SpawnFailed, unless its trainer
        has just started."""
        if self.work.assignment.dataset is not None:
            self.order(t.StopTrainer)

    def kill(self) -> None:
        """Kill the trainer now."""
        self.set(phase=Phase.STOPPING)
        self._stands_no_more()
        self.set_work(killed=True, stop_by=self.now + self.settings.kill_s)
        self.order(t.KillTrainer)

    def fail(self, failure: Failure) -> None:
        """Begin to report that the attempt ended without an artifact."""
        headline = failure.error.partition("\n")[0]
        self.say(f"{self.work.assignment.name}: {failure.reason}: {headline}", warning=True)
        report = t.FailureReport(assignment=self.work.assignment, failure=failure, usage=self.work.usage)
        self.persist(t.Saved(report=report))
        self.deliver(Phase.FAILING)
        self.set_work(failure=failure, beat_at=None, beat_call=None)

    def deliver(self, phase: Phase) -> None:
        """Enter a phase in which a report is sent, and send the report at once."""
        self.set(phase=phase, call_at=self.now, tries=0)

    def numbered(self, total: int | None = None) -> JsonObject:
        """Count the next message about this job, and return its common members: claim, number, progress, and a log from
        the first line that the receiver lacks."""
        self.set_work(seq=self.work.seq + 1)
        log = LogLines(first=self.work.first, total=total)
        claim_id = self.work.assignment.claim_id
        return {"claim_id": claim_id, "seq": self.work.seq, "progress": self.work.progress, "log": log}

    def drop(self, detail: str) -> None:
        """Give up a lost claim: end the trainer, set a finished bundle aside, report nothing, forget the job."""
        self.say(f"{self.work.assignment.name} is dropped: {detail}", warning=True)
        self.set_work(dropped=True, beat_at=None, beat_call=None)
        if self.phase in (Phase.RUNNING, Phase.STOPPING):
            self.kill()
        elif self.phase is Phase.STARTING:
            self.stop_fetching()
        elif self.phase in REPORTING:
            self.set_aside(detail)
            self.finish()

    def set_aside(self, why: str) -> None:
        """Store a finished bundle on this host, because an operator may still want it; do nothing without a finished
        bundle."""
        if self.work.delivery is not None and self.work.failure is None:
            self.do(t.KeepAside(delivery=self.work.delivery, why=why))

    def finish(self, *, job_over: bool = False, delivered: bool = False) -> None:
        """End the current job of this slot: clear up its files, and keep its undelivered output. ``job_over`` means
        that no further attempt needs its saved state."""
        work = self.work
        if self.state.call is not None:
            self.do(t.Abort(call=self.state.call))
        self.do(t.Discard(assignment=work.assignment, job_over=job_over, delivered=delivered))
        self.persist(t.Saved())
        self.set(work=None, phase=Phase.IDLE, call=None, call_at=self.now, tries=0)
        self.keep_output(t.Backlog(work.assignment, work.printed, work.first))
        if self.state.leaving:
            self.leave()

    def keep_output(self, backlog: t.Backlog) -> None:
        """Keep an ended attempt's lines until the receiver has them, or delete them if it has."""
        if backlog.first < backlog.total:
            if not self.state.backlog:
                self.set(output_at=self.now, output_tries=0)
            self.set(backlog=(*self.state.backlog, backlog))
        elif backlog.total:
            self.do(t.ForgetOutput(claim_id=backlog.assignment.claim_id))

    def leave(self, code: int = 0, sentence: str = "") -> None:
        self.set(phase=Phase.GONE)
        self.do(t.EndProcess(code=code, sentence=sentence))

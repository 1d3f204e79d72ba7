"""The receiver's machine: production queue, service, store and grouped commits, without HTTP around them.

It may stop at any call of its surroundings (:class:`simulation.disk.Fuse`); what was committed and synced is what the
next start finds. Requests have the shape that they have on the wire and pass through the wire's own structs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from simulation.disk import Crash, Fuse, SimDatabase, SimDisk
from simulation.endpoints import Endpoints
from simulation.faults import Fault
from simulation.network import Connection, Request
from simulation.steps import BodyCut, Call, Commit, Endpoint, News, Process
from simulation.unlike import making_s
from simulation.world import SimClock, Timer, World
from training.fleet.client.transport import Response
from training.fleet.database.writer import DatabaseError, Writer
from training.fleet.queue.jobs import JobQueue
from training.fleet.queue.plan_diff import PART
from training.fleet.receiver.http.problems import body_of, headers_of, refusal_of
from training.fleet.scheduling.retention import Removal
from training.fleet.service import states
from training.fleet.service.catalogue import index_rows
from training.fleet.service.delivery import DeliverySteps, Steps
from training.fleet.service.hosts import Plan
from training.fleet.service.logs import Folding
from training.fleet.service.retention import Retention
from training.fleet.service.service import Service
from training.fleet.service.states import SavedStates
from training.fleet.service.wakes import Wakes
from training.fleet.store.artifacts import ArtifactStore
from training.fleet.store.errors import StoreError
from training.fleet.store.states import StateStore
from training.fleet.wire import constants, messages

if TYPE_CHECKING:
    from simulation.scenario import Scenario
    from simulation.witness import Witness

ROOT, STATES = Path("/models"), Path("/states")
DATABASE = constants.HEADER_DATABASE.lower()
TO_PENDING = (
    "insert",
    "retry",
    "hand_back",
    "sweep",
    "requeue",
    "pardon",
    "unhold",
)  # rows that may end somebody's wait

FOLDING = {"lines": 4, "file_bytes": 200}  # simulated trainers print little


class InlineWriter(Writer):
    """The production writer's grouped commit, without its thread."""

    def __init__(self, database: SimDatabase) -> None:
        self._database = database
        self._on_lost = None
        self.timed = nullcontext

    def commit(self, group: list[tuple[Callable[[], Any], Future[Any]]]) -> None:
        self._commit(group)


PLAN_PARTS = PART, PART, 1, PART, 2  # jobs of a plan that are written at once, by seed


class Coordinator:
    """The receiver's machine and the program on it."""

    def __init__(self, world: World, scenario: Scenario, witness: Witness, after_crash: Callable[[], None]) -> None:
        """``after_crash`` is called when a burnt fuse ended the program."""
        self.world, self.policy, self._witness = world, scenario.policy, witness
        self.jobs = self.read = scenario.jobs  # the manifest as it lies on the operator's disk, and as it was last read
        self.plan = Plan(hosts=scenario.hosts, retention=scenario.retention, scheduling=scenario.scheduling)
        self.clock = SimClock(world, boot_offset=5000.0)
        self.fuse = Fuse()
        self.disk = SimDisk(self.fuse)
        self.database = SimDatabase(self.fuse)
        self.fired: Counter[str] = Counter()  # rows of the transition table, over all runs of the program
        self.up = False
        self.asleep = False
        self._commit_s = scenario.commit_s
        self._after_crash = after_crash
        self._ids = world.chance("claim ids")
        self._boot = 0
        self._parked: list[Callable[[], None]] = []
        self._making_s = making_s(world.seed)

    # ── life ────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Start the program on what the disk holds."""
        self._boot += 1
        self.world.say("receiver", f"starts (the {self._boot}. time)")
        self.up = True
        self._inbox: list[tuple[Process, Commit]] = []
        self.processes: dict[Connection, Process] = {}
        self._commit_due = False
        self._reloads = False
        self.news = 0
        self._schedules = False
        self._moves = self._made_pending()
        self._guarded(self._try_to_start)

    def _try_to_start(self) -> None:
        try:
            self._prepare()
        except (DatabaseError, StoreError) as error:
            self.world.say("receiver", f"cannot start: {error}")
            self._after_crash()  # its service manager tries again

    def _prepare(self) -> None:
        self.disk.now = self.clock.now()
        self.queue = JobQueue("", database=self.database, clock=self.clock, policy=self.policy, new_claim_id=self._id)
        self.store = ArtifactStore(ROOT, self.disk, reserve_bytes=1)
        repaired = self._repaired()
        self._witness.restarted(self)
        self.queue.events.fired = self.fired
        self.queue.plan.part = PLAN_PARTS[self.world.seed % len(PLAN_PARTS)]
        self.service = Service(self.queue, self.store, new_round=self._id)
        if self._making_s is not None:
            self.queue.ahead.make_beside(self.database, self.service.learned(self.database))
            self.queue.ahead.stopwatch = lambda: 0.0
        self.delivery = DeliverySteps(self.service, self.store, self.database, self.clock)
        self.delivery.index_stale = not repaired
        self._folding = Folding(self.service, self.store.logs, self.database, **FOLDING)
        self.states = StateStore(STATES, self.disk, reserve_bytes=1)
        self.saved_states = SavedStates(self.service, self.states, self.clock)
        self.service.state_of = self.saved_states.of
        self._retention = Retention(self.service, self.store, None, self.database)
        self.doing = set[str]()  # what it does by itself
        self._wakes = Wakes(self.service)
        self._witness.prepared()
        self._writer = InlineWriter(self.database)
        self._run(Call("reload"), self._do("reload", self.reload))
        self._tick()

    def crash(self, *, power: bool) -> None:
        """The program ends without a word; with ``power``, everything that was not synced is at stake."""
        self.up = False
        self.fuse.put_out()
        self._witness.committed(False)
        self.database.process_dies()
        if power:
            self.disk.power_fails(self.world.chance("power"))
        else:
            self.disk.process_dies()
        processes, self.processes, self._parked = self.processes, {}, []
        for connection in processes:
            connection.reset()

    def _guarded(self, work: Callable[[], None]) -> None:
        """Do ``work`` of this run of the program; a burnt fuse ends the run here."""
        try:
            work()
        except Crash:
            self.world.fault(Fault.RECEIVER_CRASH_INSIDE, "receiver")
            self._after_crash()

    def soon(self, delay_s: float, work: Callable[[], None]) -> Timer:
        """A timer of the program: void after its end, late after the machine's sleep."""
        boot = self._boot

        def ring() -> None:
            if self.up and self._boot == boot and timer.thunk is not None:
                self._guarded(work)

        timer = self.world.after(delay_s, lambda: self.when_awake(ring))
        return timer

    def when_awake(self, thunk: Callable[[], None]) -> None:
        """Now, or, in order, when the machine wakes up."""
        if self.asleep:
            self._parked.append(thunk)
        else:
            thunk()

    def sleep(self, seconds: float) -> None:
        """The machine sleeps; its wall and boot clocks go on."""
        if not self.asleep:
            self.asleep = True
            self.world.after(seconds, self.wake_up)

    def wake_up(self) -> None:
        if self.asleep:
            self.asleep = False
            self.world.say("receiver", "wakes up")
            parked, self._parked = self._parked, []
            for thunk in parked:
                thunk()

    def _id(self) -> str:
        return f"{self._ids.getrandbits(128):032x}"

    # ── what it does by itself ──────────────────────────────────────────────────────────────

    def _tick(self) -> None:
        self._run(Call("tick"), self._look())
        if self._wakes.any_can_be:
            self._run(Call("wake"), self._wake_sleepers())
        self.mend_index()
        self._begin("fold", self._folding.fold, "leaves its output where it is")
        if self.states.jobs():
            self._begin("states", self.saved_states.forget, "forgets no states")
        if not self.plan.retention.keeps_all:
            self._begin("retention", self._retention.collect, "lets nothing go", self._went)
        self.soon(self.policy.sweep_period_s, self._tick)

    def _schedule(self, most_s: float) -> Endpoint:
        """Make the schedule beside the calls, as the production receiver's thread does."""
        chance, ahead = self.world.chance("making"), self.queue.ahead
        try:
            situation = yield Commit(Call("schedule"), self.service.begin_schedule)
            yield News(self.news, self.world.now + chance.uniform(0.0, most_s))
            made = ahead.make(situation)
            yield News(self.news, self.world.now + chance.uniform(0.0, most_s))
            yield Commit(Call("schedule"), lambda: self.service.follow_schedule(situation, made))
        except DatabaseError as error:
            self.world.say("receiver", f"makes no schedule: {error}")
        self._schedules = False
        self.wake()

    def _begin(
        self, name: str, steps: Callable[[], Steps[Any]], vain: str, then: Callable[[Any], None] = lambda _: None
    ) -> None:
        """Do something by itself, unless it is being done."""
        if name not in self.doing:
            self.doing.add(name)
            self._run(Call(name), self._chore(name, steps(), vain, then))

    def _chore(self, name: str, steps: Steps[Any], vain: str, then: Callable[[Any], None]) -> Endpoint:
        try:
            then((yield from Endpoints(self).carry_out(Call(name), steps)))
        except (DatabaseError, StoreError) as error:
            self.world.say("receiver", f"{vain}: {error}")
        self.doing.discard(name)

    def _went(self, gone: list[Removal]) -> None:
        for each in gone:
            self.world.say("receiver", f"lets {each.subject[:24]} go: {each.why}")
            self.world.tally["models that went"] += 1
        if gone:
            self.delivery.index_stale = not self._repaired()

    def forget_states_now(self) -> None:
        """Forget what may go by now, without a wait."""
        self.states.forget(states.over(self.service, self.states.jobs()))

    def reload(self) -> messages.ReloadReply:
        self.read = self.jobs
        return self.service.reload(self.jobs, self.plan)

    def reload_in_parts(self, call: Call) -> Endpoint:
        """Read the file and write it in parts, one plan after the other, as the production receiver does."""
        if self.queue.plan.part == PART:
            return (yield Commit(call, self.reload))
        while self._reloads:
            yield News(self.news, self.world.now + 0.5)
        self._reloads, boot = True, self._boot
        try:
            jobs = self.read = self.jobs
            write = yield Commit(Call("plan part"), lambda: self.queue.plan.write(self.queue.plan.draft(jobs)))
            while write.is_long:
                yield Commit(Call("plan part"), write.write_part)
            return (yield Commit(call, lambda: self.service.reload(write, self.plan)))
        finally:
            self._reloads = self._reloads and self._boot != boot

    def mend_index(self) -> None:
        """Repair the index if a line of it is due."""
        if self.delivery.index_stale:
            self.delivery.index_stale = not self._repaired()

    def _repaired(self) -> bool:
        try:
            self.store.index.repair(index_rows(self.database))
        except StoreError:
            return False
        return True

    def _look(self) -> Endpoint:
        try:
            return (yield Commit(Call("tick"), self.service.tick))
        except DatabaseError:
            self.service.forget_look()
            self._witness.all.looked_in_vain()

    def _wake_sleepers(self) -> Endpoint:
        try:
            due = yield Commit(Call("wake"), self._wakes.due)
        except DatabaseError as error:
            self.world.say("receiver", f"wakes nobody: {error}")
            return
        for host in due:
            self.world.fault(Fault.WOKEN, "receiver", host)

    def _do(self, name: str, work: Callable[[], Any]) -> Endpoint:
        return (yield Commit(Call(name), work))

    # ── endpoints on their way ──────────────────────────────────────────────────────────────

    def _run(self, call: Call, steps: Endpoint) -> None:
        process = Process(call, steps)
        if call.connection is not None:
            self.processes[call.connection] = process
            call.connection.gone = lambda: self._gone(process)
        self._go_on(process, None)

    def _go_on(self, process: Process, outcome: Any) -> None:
        """Resume an endpoint with what it waited for, until it waits again or ends."""
        while True:
            try:
                failed = isinstance(outcome, Exception)
                effect = (process.steps.throw if failed else process.steps.send)(outcome)
            except StopIteration as end:
                self._ended(process, end.value)
                return
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
                self._ended(process, error)
                return
            if isinstance(effect, Commit):
                self._inbox.append((process, effect))
                if not self._commit_due:
                    self._commit_due = True
                    self.soon(self._commit_s, self._commit)
                return
            if isinstance(effect, News):
                if self._waits(process, effect):
                    return
                outcome = None
            elif process.pieces:
                outcome = process.pieces.pop(0)
            else:
                process.wants_piece = True
                return

    def _ended(self, process: Process, result: Any) -> None:
        connection = process.call.connection
        if connection is None:
            if isinstance(result, Exception) and refusal_of(result) is None:
                raise result
            return
        if self.processes.pop(connection, None) is None:
            return
        if isinstance(result, BodyCut):
            return
        answer = result if isinstance(result, Response) else response(result)
        if process.call.request is not None:
            self.world.say("receiver", f"→ {connection.sender}: {answer.status}{_words(answer)}")
        answer = replace(answer, headers={**answer.headers, DATABASE: self.queue.database_id})
        self._witness.all.answered(process.call, answer)
        connection.answer(answer)

    def _waits(self, process: Process, wait: News) -> bool:
        """Return True when the endpoint has to wait; it is resumed by a wake, the time, or the client's end."""
        if process.gone or self.news != wait.count or self.world.now >= wait.until:
            return False

        def wake() -> None:
            timer.cancel()
            process.wake = None
            self._go_on(process, None)

        timer = self.soon(wait.until - self.world.now, wake)
        process.wake = wake
        return True

    def _gone(self, process: Process) -> None:
        process.gone = True
        if process.wake is not None and self.up:
            self._guarded(process.wake)

    # ── grouped commits ─────────────────────────────────────────────────────────────────────

    def _commit(self) -> None:
        group, self._inbox = self._inbox[: Writer.GROUP_MAX], self._inbox[Writer.GROUP_MAX :]
        self._commit_due = bool(self._inbox)
        if self._inbox:
            self.soon(0.0, self._commit)
        futures: list[Future[Any]] = [Future() for _ in group]
        calls = [lambda commit=commit: self._watched(commit) for _, commit in group]
        self._writer.commit(list(zip(calls, futures, strict=True)))
        errors = [future.exception() for future in futures]
        self._witness.committed(not any(_is_lost(error) for error in errors))
        self.fuse.burn()  # after the commit, before any answer
        moves = self._made_pending()
        if moves != self._moves:
            self._moves = moves
            self.wake()
        if self._making_s is not None and not self._schedules and self.service.must_schedule:
            self._schedules, most_s = True, self._making_s
            self.soon(0.0, lambda: self._run(Call("schedule"), self._schedule(most_s)))
        for (process, _), future, error in zip(group, futures, errors, strict=True):
            self._go_on(process, future.result() if error is None else error)

    def _made_pending(self) -> int:
        return sum(self.fired[name] for name in TO_PENDING)

    def _watched(self, commit: Commit) -> Any:
        try:
            result = commit.work()
        except Exception as error:
            self._witness.after(commit.call, None, error)
            raise
        self._witness.after(commit.call, result, None)
        return result

    def wake(self) -> None:
        self.news += 1
        for process in list(self.processes.values()):
            if process.wake is not None:
                process.wake()

    # ── requests ────────────────────────────────────────────────────────────────────────────

    def head(self, request: Request, connection: Connection) -> None:
        self._guarded(lambda: self._run(*Endpoints(self).steps(request, connection)))

    def piece(self, connection: Connection, data: bytes | None) -> None:
        self._came(connection, data)

    def cut(self, connection: Connection) -> None:
        self._came(connection, BodyCut())

    def _came(self, connection: Connection, piece: bytes | BodyCut | None) -> None:
        process = self.processes.get(connection) if self.up else None
        if process is None:
            return
        if process.wants_piece:
            process.wants_piece = False
            self._guarded(lambda: self._go_on(process, piece))
        else:
            process.pieces.append(piece)


def _is_lost(error: BaseException | None) -> bool:
    """Return True when the whole group was lost with it."""
    return isinstance(error, DatabaseError)


def _words(answer: Response) -> str:
    if answer.status == 200 or not answer.body:
        return ""
    return f" {msgspec.json.decode(answer.body)['type']}"


def response(result: Any) -> Response:
    """A reply or an exception as it goes over the wire."""
    if not isinstance(result, Exception):
        return Response(200, {}, msgspec.json.encode(result))
    refusal = refusal_of(result)
    if refusal is None:
        raise result
    headers = {name.lower(): value for name, value in headers_of(refusal).items()}
    return Response(refusal.problem_type.status, headers, body_of(refusal))

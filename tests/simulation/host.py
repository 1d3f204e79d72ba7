"""A worker's machine: the production state machine and client, a state directory, a clock, and trainers.

Actions are carried out by the worker's own code; what is made here are the parts that it is handed, without threads and
processes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulation.calls import SimCalls
from simulation.disk import Crash, Fuse
from simulation.faults import Fault
from simulation.fetching import HostData
from simulation.memory import free_now, peak
from simulation.moves import Carrier, is_moving
from simulation.owners import OwnerLife
from simulation.scenario import has_slots, is_tight
from simulation.shared import WorkerDisk
from simulation.trainer import Fate, Trainer
from simulation.unlike import slowness
from simulation.world import SimClock, Timer
from training.fleet.process.ended import Ended
from training.fleet.process.launcher import put_down
from training.fleet.process.usage import Used
from training.fleet.scheduling.job import EndReason
from training.fleet.worker import saved_states, start_check
from training.fleet.worker.actions import Actions, Own
from training.fleet.worker.attempt import found
from training.fleet.worker.outbox import Outbox
from training.fleet.worker.reports import beside
from training.fleet.worker.requests import Asker
from training.fleet.worker.state import events as t
from training.fleet.worker.state.exit_code import Failure
from training.fleet.worker.state.slots import Slots, step
from training.fleet.worker.state.state import State, Work
from training.fleet.worker.state_folder import StateFolderError
from training.fleet.worker.tail import OutputTail

if TYPE_CHECKING:
    from simulation.run import Simulation


@dataclass
class StateDirectory:
    """The state that survives the program and its machine's power."""

    instance_id: str
    sessions: int = 0
    saved: dict[int, t.Saved] = field(default_factory=dict)  # by slot
    aside: dict[str, tuple[t.Delivery, bytes]] = field(default_factory=dict)  # claim → finished work
    alone: tuple[str, ...] = ()  # jobs to be trained alone
    folder: Path = field(default_factory=Path)  # what trainers print and how they end; the outbox

    def move_in(self, folder: Path) -> None:
        """Lie in ``folder`` from now on, with a copy of what lay in the old one."""
        old, self.folder = self.folder, folder
        (folder / "outbox").mkdir(parents=True)
        if old != Path():
            for path in [*old.glob("*.log*"), *old.glob("outbox/*")]:
                text = path.read_text().replace(str(old), str(folder))
                (folder / path.relative_to(old)).write_text(text)

    def held(self) -> list[t.Assignment]:
        """List the jobs in hand, as the files know them."""
        return [saved.assignment for saved in self.saved.values() if saved.assignment is not None]

    def delivery(self, claim_id: str) -> t.Delivery | None:
        """Return the finished work of this claim."""
        found = (saved.delivery for saved in self.saved.values())
        return next((each for each in found if each and each.assignment.claim_id == claim_id), None)

    def log(self, claim_id: str) -> Path:
        """Return what the trainer of this claim printed."""
        return self.folder / f"{claim_id}.log"

    def end(self, claim_id: str) -> Path:
        """The launcher's note of how it ended."""
        return self.folder / f"{claim_id}.log.end"


def report_of(job_id: str) -> str:
    """Return what a job's trainer reports: of most jobs figures, of some nonsense."""
    if job_id[0] in "01":
        return "[" * 300
    return json.dumps({"metrics": {"test": {"auroc": {"value": int(job_id[:2], 16) / 256}}}, "verdict": job_id})


class Host:
    """One machine with one worker on it, or with a share in a ``disk`` that another worker uses too."""

    def __init__(
        self,
        simulation: Simulation,
        name: str,
        machine: str,
        capability: dict[str, Any],
        directory: StateDirectory,
        disk: WorkerDisk | None = None,
    ) -> None:
        """``name`` is the host id; ``machine`` tells clones apart on the network and in the timeline."""
        self.world, self.network, self.scenario = simulation.world, simulation.network, simulation.scenario
        self.all = simulation.witness.all
        self.name, self.machine, self.capability = name, machine, capability
        self.settings = self.scenario.settings
        self.woke_at = -1e9
        self.directory = directory
        self.disk = disk
        directory.move_in(simulation.bundles / machine if disk is None else disk.options.state_dir)
        self.outbox = Outbox(directory.folder / "outbox")
        self.clock = SimClock(self.world, boot_offset=1000.0)
        self.fuse = Fuse()
        self.up = False
        self.asleep = False
        self.calm = False
        self.gone = False  # for good
        self.sick: Fault | None = None  # how every trainer dies here at once
        # Claims in hand when the program last ended without a word: the copy of a disk believes that it crashed.
        self.crashed_with = self._suspects()
        self._exits = False
        self.trainers: dict[str, Trainer] = {}  # by claim
        self._weather, self._bundles = self.scenario.weather, simulation.bundles
        self.chance = self.world.chance(f"host {machine}")
        self._boot = 0
        self.session_id = ""
        self.has_slots, self._tight = has_slots(self.world.seed), is_tight(self.world.seed)
        self._calls = self._new_calls()
        self._parked: list[Callable[[], None]] = []
        self._wake: Timer | None = None
        self.kept_awake, self.kept_at = False, 0.0  # whether, and since when
        self.terms_at = 0.0  # when the worker heard of its owner's conditions
        self.life = OwnerLife(self)
        self.carrier: Carrier | None = None  # of saved states, in the fleets that have them
        self._resume = directory.folder / "resume" if disk is None else disk.options.resume
        if is_moving(self.world.seed):
            self.carrier = Carrier(self, self._resume)
        self.data = HostData(self, simulation.bundles / f"data-{machine}")
        self.after_end: Callable[[Host], None] = lambda _: None  # the program ended, by itself or not

    # ── life ────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        try:
            if self.disk is not None:
                self.disk.begin()
        except StateFolderError as error:
            self.world.say(self.machine, "cannot start beside another worker")
            self.all.refused(self, str(error))
            self.after_end(self)
            return
        self._boot += 1
        self._exits = False
        directory = self.directory
        directory.sessions += 1
        self.session_id = f"{directory.sessions:010d}-{self.chance.getrandbits(32):08x}"
        self.up = True
        self.outbox = Outbox(directory.folder / "outbox")
        self._calls = self._new_calls()
        self._actions = Actions(
            self._calls,
            self.outbox,
            attempt=lambda assignment: Attempt(self, assignment),
            in_hand=lambda: [work.assignment for work in self.state.works.values()],
            own=self._own,
        )
        self.state = Slots.of(self.session_id)
        self.world.say(self.machine, f"starts, session {self.session_id}")
        self.take(self._actions.beginning({0: t.Saved(), **directory.saved}, directory.alone))
        if self.up:
            self.life.begin()

    def machine_of(self, event: t.Event) -> State | None:
        """Return the state machine that this event is for."""
        call, claim = getattr(event, "call", None), getattr(event, "claim_id", None)
        slot = self.state.waits_for(call) if call is not None else self.state.holder(claim) if claim else None
        return None if slot is None else self.state.machines[slot]

    def work_on(self, claim_id: str) -> Work | None:
        """Return the job in hand that this claim is on."""
        slot = self.state.holder(claim_id)
        return None if slot is None else self.state.works[slot]

    def _suspects(self) -> set[str]:
        """List the claims that a crash now speaks against: of several trainers that it ended, against none."""
        held = [saved.held for saved in self.directory.saved.values() if saved.held is not None]
        lost = {each.claim_id for each in held if not self.end_of(each).exists()}
        return {each.claim_id for each in self.directory.held()} - (lost if len(lost) > 1 else set())

    def log_of(self, assignment: t.Assignment) -> Path:
        """Return what the trainer of this attempt printed."""
        if self.disk is not None:
            return self.disk.folders(assignment).log
        return self.directory.log(assignment.claim_id)

    def end_of(self, assignment: t.Assignment) -> Path:
        """The launcher's note of how it ended."""
        if self.disk is not None:
            return self.disk.folders(assignment).end
        return self.directory.end(assignment.claim_id)

    def state_of(self, assignment: t.Assignment) -> Path:
        """Return the folder of what its trainer saved."""
        return saved_states.folder_of(self._resume, assignment.job_id)

    def _bundle(self, assignment: t.Assignment) -> Path:
        if self.disk is not None:
            return self.disk.folders(assignment).bundle
        return self._bundles / f"{self.machine}-{assignment.claim_id}.tar.zst"

    def _new_calls(self) -> SimCalls:
        asker = Asker(self.directory.instance_id, self.session_id, self.present, dict)
        return SimCalls(self, asker)

    def present(self) -> dict[str, Any]:
        """Return the capability, with what is free at this moment."""
        if not self._tight:
            return self.capability
        held = [(*self._holds(each), _gpu_of(each.assignment)) for each in self.trainers.values()]
        return free_now(self.world.seed, self.name, self.world.now, self.capability, held, calm=self.calm)

    def _holds(self, trainer: Trainer) -> tuple[float, float]:
        """Return the memory that a trainer holds, and that of its GPU: half from its start on, soon all."""
        share = min(1.0, 0.5 + trainer.cpu_s / (0.2 * trainer.fate.work_s + 1e-9))
        ram, vram = peak(self.world.seed, trainer.assignment.job_id)
        return share * ram, 0.0 if _gpu_of(trainer.assignment) is None else share * vram

    def post(self, event: t.Event) -> None:
        self.soon(0.0, lambda: self.take(event))

    def crash(self) -> None:
        """The worker is killed; its launcher kills the trainer."""
        if not self.up:
            return
        self.up = False
        self.fuse.put_out()
        self.crashed_with = set() if self._exits else self._suspects()
        for trainer in self.trainers.values():
            trainer.vanish()
            if self.carrier is not None:
                self.carrier.over(trainer.assignment.claim_id, trainer.cpu_s, well=False)
        self.trainers.clear()
        self._forget()
        self.end_strands()
        self.kept_awake = False  # the pipe that keeps the lock closes with the program
        if self.disk is not None:
            self.disk.end()
        self.all.ended(self)
        self.after_end(self)

    def end_strands(self) -> None:
        """End what waits on threads of its own."""
        if self.carrier is not None:
            self.carrier.end()
        self.data.end()

    def _forget(self) -> None:
        self._calls.hang_up()
        if self._wake is not None:
            self._wake.cancel()
        self._parked.clear()

    def tell_to_stop(self) -> None:
        """SIGTERM."""
        if self.up:
            self.when_awake(lambda: self.take(t.SignalReceived()))

    def sleep(self, seconds: float) -> None:
        """The machine sleeps; its boot clock goes on."""
        if self.asleep:
            return
        self.asleep = self._calls.asleep = True
        for trainer in self.trainers.values():
            trainer.freeze()
        slept_at = self.world.now

        def wake_up() -> None:
            self.asleep = self._calls.asleep = False
            self.woke_at = self.world.now
            self.clock.slept_s += self.world.now - slept_at
            self.world.say(self.machine, f"wakes up after {self.world.now - slept_at:.0f} s")
            for trainer in self.trainers.values():
                trainer.thaw()
            slept_s = self.world.now - slept_at
            if self.chance.random() < 0.5:  # what waited may be noticed before the sleep is
                self.soon(self.chance.random(), lambda: self.take(t.Slept(slept_s)))
            elif self.up:
                self.take(t.Slept(slept_s))
            parked, self._parked = self._parked, []
            for thunk in parked:
                thunk()

        self.world.after(seconds, wake_up)

    @property
    def woke_lately(self) -> bool:
        return self.world.now - self.woke_at < self.settings.leave_s

    def when_awake(self, thunk: Callable[[], None]) -> None:
        """Let it happen now, or when the machine wakes up, if the program still runs then."""
        boot = self._boot

        def happen() -> None:
            if self.up and self._boot == boot:
                thunk()

        if self.asleep:
            self._parked.append(happen)
        else:
            happen()

    def soon(self, delay_s: float, thunk: Callable[[], None]) -> Timer:
        """Let it happen after so long, if the program still runs then, and the machine is awake."""
        boot = self._boot

        def ring() -> None:
            if self.up and self._boot == boot and timer.thunk is not None:
                thunk()

        timer = self.world.after(delay_s, lambda: self.when_awake(ring))
        return timer

    # ── events and actions ──────────────────────────────────────────────────────────────────

    def take(self, event: t.Event) -> None:
        """One step of the state machine, and everything it wants done."""
        self.all.event(self, event)
        observed = self.state.terms.observes
        self.state, actions = step(self.state, event, self.clock.monotonic(), self.settings, self.chance.random)
        if isinstance(event, t.ClaimAnswered | t.HeartbeatAnswered) and not observed and self.state.terms.observes:
            self.terms_at = self.world.now
        for action in actions:
            if not self._survives(type(action).__name__):
                return
            self._actions.perform(action)

    def _survives(self, what: str) -> bool:
        """False when it is now that the worker is killed."""
        try:
            self.fuse.burn()
        except Crash:
            self.world.fault(Fault.WORKER_CRASH, self.machine, f"before {what}")
            self.crash()
        return self.up

    def fetch_and_spawn(self, assignment: t.Assignment) -> None:
        """Fetch the data set that the job names, and then what is saved of the job; then its trainer begins."""

        def there() -> None:
            if self.carrier is None:
                self._spawn(assignment)
            else:
                self.carrier.begin(assignment, lambda: self._spawn(assignment))

        if assignment.dataset is None:
            there()
        else:
            self.data.fetch(assignment, there)

    def _spawn(self, assignment: t.Assignment) -> None:
        work_s = slowness(self.world.seed, self.name) * self.scenario.work_s[assignment.job_id]
        fate = Fate.draw(self.chance, self._weather, work_s, calm=self.calm)
        if self.sick is not None:
            self.world.fault(Fault.SICK_HOST, self.machine, assignment.job_id[:8])
        fate = self.scenario.illness.strike(fate, assignment.job_id, self.capability, self.sick)
        claim = assignment.claim_id
        booked = t.booking_of(assignment)
        try:
            if booked is not None and self.has_slots:
                start_check.check(booked, self.present(), self.state.held_beside(claim))
        except start_check.NoRoomError as error:
            self.world.tally["trainers for which no room was left"] += 1
            failure = Failure(EndReason.INTERRUPTED, str(error))
            self.soon(0.0, lambda: self.take(t.SpawnFailed(claim_id=claim, failure=failure)))
            return
        self.all.begins(self, assignment)
        if fate.ending is Fault.SPAWN_FAILS:
            self.world.fault(Fault.SPAWN_FAILS, self.machine, assignment.job_id[:8])
            failure = Failure(EndReason.SPAWN_FAILED, "no such interpreter")
            self.soon(0.1, lambda: self.take(t.SpawnFailed(claim_id=claim, failure=failure)))
            return
        log = self.log_of(assignment)
        for path in (log, self.end_of(assignment)):
            path.unlink(missing_ok=True)
        if self.disk is not None:
            self.disk.make(assignment, self.world.now)
            self.all.used_disk(self, assignment, None)
        tail = OutputTail(log)
        carrier, by_steps = self.carrier, dict[str, Any]()
        if carrier is not None:
            course = carrier.course(assignment, work_s)
            fate = fate.along(course)
            by_steps["course"], by_steps["stepped"] = course, lambda: carrier.stepped(claim)
            by_steps["stopped"] = lambda work_s: carrier.stopped(claim, work_s)
        trainer = Trainer(
            self.world,
            assignment,
            fate,
            printed=lambda lines: self._trainer_printed(trainer, tail, lines),
            ended=lambda ended, asked: self._trainer_ended(trainer, ended, asked=asked),
            moved=lambda trainer: self.all.moved(self, trainer),
            **by_steps,
        )

        def spawned() -> None:
            self.trainers[claim] = trainer
            trainer.start()
            self.take(t.Spawned(claim_id=claim))
            measure()
            bring(first=True)
            if assignment.job_id in self.scenario.illness.poison_s:
                self.soon(self.scenario.illness.poison_s[assignment.job_id], poisoned)

        def bring(*, first: bool = False) -> None:
            if carrier is not None and assignment.state_every_s and self.trainers.get(claim) is trainer:
                self.soon(assignment.state_every_s, bring)
                if not first:
                    carrier.look(claim)

        def poisoned() -> None:
            if self.trainers.get(claim) is trainer and trainer.running:
                self.world.fault(Fault.POISON, self.machine, assignment.job_id[:8])
                self.crash()

        def measure() -> None:
            if self.trainers.get(claim) is trainer:
                self.soon(self.scenario.measure_s, measure)
                ram, vram = (int(gib * 1024**3) for gib in self._holds(trainer)) if self._tight else (None, None)
                resumable = carrier is not None and carrier.holds_a_state(claim)
                self.take(t.Measured(claim_id=claim, used=Used(trainer.cpu_s, ram, None, vram), resumable=resumable))

        self.soon(0.2, spawned)

    def _trainer_printed(self, trainer: Trainer, tail: OutputTail, lines: list[str]) -> None:
        self.all.printed(self, trainer, lines)
        with tail.path.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

        def look() -> None:
            if not self._survives("looking at the output"):
                return
            found = tail.poll()
            if self.carrier is not None:
                self.carrier.heed(trainer.assignment.claim_id, found)
            self.outbox.append(trainer.assignment, tail.path, found, tail.position)
            if found and self._survives("hearing of the output"):
                claim = trainer.assignment.claim_id
                self.take(t.Printed(claim_id=claim, lines=tuple(found)))

        self.soon(0.01, look)

    def _trainer_ended(self, trainer: Trainer, ended: Ended, *, asked: bool) -> None:
        """The launcher notes it, then the worker hears of it."""
        claim = trainer.assignment.claim_id
        over = t.TrainerEnded(claim_id=claim, ended=ended)
        self.all.over(self, trainer, ended)
        if not asked or ended.code == 0:
            code = -ended.signal if ended.signal else ended.code
            put_down({"ended": code}, str(self.end_of(trainer.assignment)))

        def gone() -> None:
            self.trainers.pop(claim, None)
            if not self._survives("hearing of the end"):
                return
            if self.carrier is None:
                self.take(over)
            else:
                self.carrier.ended(claim, well=ended.code == 0, then=told)

        def told() -> None:
            if self._survives("telling of the end"):
                self.take(over)

        if self.carrier is not None:
            self.carrier.over(claim, trainer.cpu_s, well=ended.code == 0)

        self.soon(0.02, gone)

    def stop_trainer(self, claim_id: str) -> None:
        self.data.stop(claim_id)
        if self.carrier is not None:
            self.carrier.stop(claim_id)
        self.for_trainer(claim_id, lambda trainer: trainer.stop(self.scenario.polite_s))

    def for_trainer(self, claim_id: str, do: Callable[[Trainer], None]) -> None:
        if trainer := self.trainers.get(claim_id):
            do(trainer)

    def pack(self, assignment: t.Assignment) -> None:
        if self.chance.random() < (0 if self.calm else self._weather.exits.get(Fault.PACK_FAILS, 0)):
            self.world.fault(Fault.PACK_FAILS, self.machine, assignment.job_id[:8])
            failure = Failure(EndReason.TRAINER_FAILED, "it exited 0 and left no checkpoint", 0)
            self.soon(0.5, lambda: self.take(t.PackFailed(claim_id=assignment.claim_id, failure=failure)))
            return
        run = "" if self.scenario.same_bytes else assignment.claim_id
        body = f"{assignment.job_id} {run}".encode().ljust(512, b".")
        path = self._bundle(assignment)

        def packed() -> None:
            path.write_bytes(body)
            if self.scenario.reporting:
                beside(path).write_text(report_of(assignment.job_id))
            sha256 = hashlib.sha256(body).hexdigest()
            claim = assignment.claim_id
            record = {} if self.carrier is None else self.carrier.record(claim, self.log_of(assignment))
            packed = t.Packed(claim_id=claim, path=str(path), sha256=sha256, size=len(body), record=record)
            self.take(packed)

        self.soon(self.chance.choice([0.1, 1.0, 60.0]), packed)

    def _set_aside(self, action: t.KeepAside) -> None:
        with suppress(FileNotFoundError):
            body = Path(action.delivery.path).read_bytes()
            self.directory.aside[action.delivery.assignment.claim_id] = action.delivery, body

    def deliver(self, delivery: t.Delivery, body: bytes) -> None:
        """The operator, on this machine: bring what was set aside."""
        path = self._bundles / f"{self.machine}-{delivery.assignment.claim_id}.aside"
        path.write_bytes(body)
        if self.scenario.reporting:
            beside(path).write_text(report_of(delivery.assignment.job_id))

        def taken() -> None:
            self.directory.aside.pop(delivery.assignment.claim_id, None)

        self._calls.deliver(replace(delivery, path=str(path)), taken)

    def discard(
        self, assignment: t.Assignment, *, job_over: bool, delivered: bool, in_use: Collection[t.Assignment]
    ) -> None:
        if self.disk is None:
            self.end_of(assignment).unlink(missing_ok=True)
            self._bundle(assignment).unlink(missing_ok=True)
        else:
            now = self.world.now
            self.disk.discard(assignment, self.outbox, now, job_over=job_over, delivered=delivered, in_use=in_use)
            self.all.used_disk(self, None, assignment)
        if self.carrier is not None:
            self.carrier.discard(assignment, job_over=job_over, in_use=in_use)
        if trainer := self.trainers.pop(assignment.claim_id, None):
            trainer.vanish()

    @property
    def starts_nothing(self) -> bool:
        """Return True when the worker knows of all trainers here that they run."""
        running = {
            work.assignment.claim_id
            for slot, work in self.state.works.items()
            if self.state.machines[slot].phase == "running" and work.stood_at is None
        }
        return all(claim in running for claim, each in self.trainers.items() if each.running)

    def _persist(self, action: t.Persist) -> None:
        self.directory.saved[action.slot] = action.saved
        if action.slot and action.saved == t.Saved():
            del self.directory.saved[action.slot]

    def _own(self, action: Own) -> None:
        match action:
            case t.Persist():
                self._persist(action)
            case t.KeepAside():
                self._set_aside(action)
            case t.RememberAlone():
                self.directory.alone = action.jobs
            case t.WakeAt():
                self._wake_at(action.at)
            case t.Say():
                self.world.say(self.machine, action.text)
            case t.KeepAwake():
                self.kept_awake, self.kept_at = action.on, self.world.now
            case t.EndProcess():
                self._leave(action)

    def _wake_at(self, at: float | None) -> None:
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        if at is not None:
            delay_s = max(0.0, at - self.clock.monotonic())
            self._wake = self.soon(delay_s, lambda: self.take(t.Tick()))

    def _leave(self, action: t.EndProcess) -> None:
        self.world.say(self.machine, f"exits {action.code} {action.sentence}".rstrip())
        self._exits = True
        self.crash()  # what is left of its children goes with it


def _gpu_of(assignment: t.Assignment) -> int | None:
    return None if assignment.booked is None else assignment.booked.gpu


@dataclass(frozen=True)
class Attempt:
    """One assignment's part of a host, as the worker's own Attempt is."""

    host: Host
    assignment: t.Assignment

    @property
    def claim_id(self) -> str:
        return self.assignment.claim_id

    def found(self) -> t.Remains:
        host, here = self.host, self.assignment
        return found(host.outbox, here, host.log_of(here), host.end_of(here), host.state_of(here))

    def spawn(self) -> None:
        self.host.fetch_and_spawn(self.assignment)

    def stop(self) -> None:
        self.host.stop_trainer(self.claim_id)

    def kill(self) -> None:
        self.host.for_trainer(self.claim_id, Trainer.kill)

    def pause(self) -> None:
        self.host.for_trainer(self.claim_id, Trainer.pause)

    def resume(self) -> None:
        self.host.for_trainer(self.claim_id, Trainer.resume)

    def pack(self) -> None:
        self.host.pack(self.assignment)

    def discard(self, *, job_over: bool, delivered: bool, in_use: Collection[t.Assignment], tidy: bool) -> None:
        self.host.discard(self.assignment, job_over=job_over, delivered=delivered, in_use=in_use)

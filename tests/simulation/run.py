"""One seed from its first moment to its verdict."""

from __future__ import annotations

import contextlib
import gc
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from simulation import checkers as c
from simulation import data_checkers as a
from simulation import grant_checkers as g
from simulation import health_checkers as h
from simulation import move_checkers as m
from simulation import owner_checkers as o
from simulation import plan_checkers as p
from simulation import room_checkers as r
from simulation import schedule_checkers as d
from simulation import time_checkers as s
from simulation import worker_checkers as w
from simulation.coordinator import Coordinator
from simulation.copy_checkers import CopiesAreTold
from simulation.fetching import has_data, with_data_sets
from simulation.folder_checkers import NobodyElsesFolder
from simulation.host import Host, StateDirectory
from simulation.moves import is_moving
from simulation.network import Network
from simulation.retention_checkers import OnlyTheWorseGo
from simulation.scenario import Machine, Scenario, has_slots
from simulation.shared import WorkerDisk, few_kept, is_shared
from simulation.storm import Storm
from simulation.unlike import slowest
from simulation.witness import Checker, Witness
from simulation.world import Violation, World
from training.fleet.recovery.doctor_rows import look_at_rows
from training.fleet.recovery.doctor_seals import look_at_seals
from training.fleet.service.catalogue import index_rows
from training.fleet.service.views import Views
from training.fleet.store.artifacts import ArtifactStore

# The exceptions of a double that no longer fits the program: one would pass for the discovery of any planted bug.
MISTAKES = (AttributeError, ImportError, NameError, NotImplementedError, TypeError)


@dataclass
class Verdict:
    """The result of a seed."""

    seed: int
    violation: str | None
    trace_hash: str
    hours: float  # of simulated time
    happened: int  # events of the heap
    faults: Counter[str] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)  # rows of the transition table
    tally: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)
    broken: bool = False  # the violation is a mistake of the simulation or of Python, and says nothing of a promise

    @property
    def sees(self) -> bool:
        """Return True when a promise was broken, by its checker's or the program's own word."""
        return self.violation is not None and not self.broken


PROMISES: tuple[type[Checker], ...] = (
    c.OneLiveAttempt, c.EventsTellEverything, c.NothingVanishes, c.AttemptsIncrease, c.OnlyTheOwnerActs,
    c.CompletedForGood, c.BudgetsHold, s.SweptAfterObservedSilence, s.LostHostsAreNoticed, g.GrantsFit,
    d.WaitsAreBounded, d.DeclinedForTheBetter, c.CancelHolds, c.HoldHolds, p.PlanIsTakenOver, p.UndoUndoes,
    p.RemovedIsPassedOver, p.RecordIsTheGrant, g.OneGrantARequest, g.OneJobASlot, r.NothingIsBookedTwice,
    r.ReservesAreKept, c.AcknowledgedIsDurable, s.LeasesAreTrue, c.ProgressNeverBack, g.OneInstallation,
    CopiesAreTold, OnlyTheWorseGo, w.OneTrainerAtATime, w.NoMoreThanSlots, w.CompanyIsNoWant, r.StartsInRoom,
    w.ToldToStop, w.LeavesInTime, w.FinishedIsDelivered, w.AsksTheSameAgain, w.OnlyTheGranterIsBelieved, w.LogsAreWhole,
    w.HungTrainersAreStopped, h.SickHostsAreTakenOut, h.SuspectsAreTrue, h.MoreMemoryOrNone, NobodyElsesFolder,
    o.RestingGetsNothing, o.OwnersComeFirst, o.PausedCountsForNobody, o.NoInhibitorIsLeft, o.WokenForAReason,
    a.OneFetchAtATime, a.DataInUseStays,
)  # fmt: skip
OF_MOVES = m.ResumesItsOwn, m.StepsAreCountedOnce, m.MixedIsMarked, m.LittleWorkIsLost, m.NothingIsLeft


class Simulation:
    """One seed's fleet."""

    def __init__(self, seed: int, bundles: Path, *, keep_lines: bool = False) -> None:
        self.bundles = bundles
        self.world = World(seed, keep_lines=keep_lines)
        self.scenario = scenario = Scenario.draw(seed)
        promises = [*PROMISES, *OF_MOVES] if is_moving(seed) else PROMISES
        self.witness = Witness(self.world, [each(self.world, scenario) for each in promises])
        self.network = Network(self.world, scenario.weather, scenario.latency_s)
        self.receiver = Coordinator(self.world, scenario, self.witness, lambda: self.storm.receiver_crashed())
        self.network.door = self.receiver
        self.hosts = [self._host(machine, number) for number, machine in enumerate(scenario.machines)]
        self.storm = Storm(self)

    def run(self) -> None:
        """Raises Violation."""
        self.receiver.start()
        start = self.world.chance("start")
        for host in list(self.hosts):
            self.world.after(start.random() * 60, host.start)
        self.storm.begin()
        self.world.run(self.scenario.stormy_s)
        self._calm_down(self.scenario.stormy_s + self._patience_s())
        self._judge()

    def _calm_down(self, until: float) -> None:
        """Until every job is over and stays so for a moment, in which what was just started has begun."""
        while self.world.now < until:
            self.world.run(until, self._all_done)
            self.world.run(min(until, self.world.now + 30.0))
            if self._all_done():
                return

    def end(self) -> None:
        """End what waits on threads of its own."""
        for host in self.hosts:
            host.end_strands()
            host.data.cache.close()

    def _host(self, machine: Machine, number: int) -> Host:
        instance = f"{self.world.chance('instances').getrandbits(64):016x}"
        disk = None
        if is_shared(self.world.seed):  # the first two are on one machine
            disk = WorkerDisk(self.bundles / f"machine-{max(1, number)}", machine.name)
        return Host(self, machine.name, machine.name, machine.capability, StateDirectory(instance), disk)

    def clone(self, model: Host, directory: StateDirectory) -> Host:
        """On a machine of its own, and its folders are as simple as most fleets'."""
        return Host(self, model.name, f"{model.name}′", model.capability, directory)

    def at_risk(self) -> list[str]:
        """Jobs that somebody held and lost; if there are none, those that somebody holds."""
        jobs = [job for job in self.witness.now.jobs.values() if job.attempt]
        lost = [job.job_id for job in jobs if job.status == "pending"]
        return lost or [job.job_id for job in jobs if job.status in ("claimed", "running")]

    # ── the end ─────────────────────────────────────────────────────────────────────────────

    def _fitting(self) -> Iterable[str]:
        """Jobs that some machine of the fleet can run, and may."""
        for job_id, facts in self.witness.now.jobs.items():
            if facts.passed_over:
                continue
            spec = facts.wants()
            for machine in self.scenario.machines:
                if g.misfit(spec, machine.name, machine.capability, machine.declared) is None:
                    yield job_id
                    break

    def _all_done(self) -> bool:
        jobs = self.witness.now.jobs
        if any(facts.status in ("claimed", "running") for facts in jobs.values()):
            return False
        bringing = (each.backlog for host in self.hosts if host.up for each in host.state.machines.values())
        if any(bringing) or "retention" in self.receiver.doing:
            return False
        if all(facts.status != "pending" for facts in jobs.values()):
            return True
        return all(jobs[job_id].status != "pending" for job_id in self._fitting())

    def _patience_s(self) -> float:
        """In calm weather everything must be over by then: each job's tries, one after the other, and some waiting."""
        policy, scenario = self.scenario.policy, self.scenario
        work = slowest(scenario.seed) * sum(1.2 * work_s for work_s in scenario.work_s.values())
        pause = policy.backoff_max_s + policy.retry_elsewhere_grace_s + policy.prefer_cuda_grace_s
        pause += policy.second_opinion_s
        tries = policy.max_attempts + 4  # some of them on a host that is taken out for it
        if has_slots(scenario.seed):  # on each host once beside others, which costs nothing
            tries += len(scenario.machines)
        lease = 6 * policy.stale_after_s
        # A hold may have been stamped by a clock that nobody saw step.
        longer = self.witness.one(s.SweptAfterObservedSilence).off_s
        return tries * (work + (pause + 120) * len(scenario.work_s)) + lease + longer

    def _judge(self) -> None:
        jobs = self.witness.now.jobs
        fitting = set(self._fitting())
        for job_id, facts in jobs.items():
            if facts.status in ("claimed", "running") or (facts.status == "pending" and job_id in fitting):
                raise Violation(
                    f"seed {self.world.seed}: job {job_id[:8]} is still {facts.status} "
                    f"{self._patience_s():.0f} s after the last fault"
                )
        for view in Views(self.receiver.database, self.receiver.service).jobs().jobs:
            if view.status == "pending" and view.obstacle is None and view.held_by is None:
                raise Violation(f"seed {self.world.seed}: nothing says why {view.job_id[:8]} waits")
        self.witness.all.at_end()
        database = self.receiver.database
        rows = look_at_rows(database, self.scenario.policy)
        for finding in [*rows, *look_at_seals(database.sealed())]:
            raise Violation(f"seed {self.world.seed}: the doctor: {finding.problem}")
        self._judge_store()

    def _judge_store(self) -> None:
        """The index says what the database says, and nothing lies about that nobody names."""
        receiver = self.receiver
        receiver.mend_index()  # a line may be due at the next tick
        store: ArtifactStore = receiver.store
        path = store.root / "index.jsonl"
        found = b"".join(receiver.disk.read(path)) if receiver.disk.size(path) is not None else b""
        expected = [row.line() for row in index_rows(receiver.database)]
        if found.splitlines(keepends=True) != expected:
            raise Violation(f"seed {self.world.seed}: the index differs from the database")
        for artifact in store.artifacts():
            store.verify(artifact.artifact_id, model=artifact.model, mode=artifact.mode)


@contextlib.contextmanager
def garbage_at_the_end() -> Iterator[None]:
    """Look for garbage once, after the fleet: looking all the time costs a fifth of a fleet, and frees little."""
    enabled = gc.isenabled()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.collect()
        gc.unfreeze()
        if enabled:
            gc.enable()


def run_seed(seed: int, *, keep_lines: bool = False, prepare: Callable[[Simulation], None] = lambda _: None) -> Verdict:
    """Simulate one seed. Never raises for a violation: the verdict tells."""
    few = few_kept() if is_shared(seed) else contextlib.nullcontext()
    with garbage_at_the_end(), tempfile.TemporaryDirectory(prefix="sim-") as folder, few:
        simulation = Simulation(seed, Path(folder), keep_lines=keep_lines)
        if has_data(seed):
            with_data_sets(simulation)
        prepare(simulation)
        violation, broken = None, False
        try:
            simulation.run()
        except Violation as found:
            violation = str(found)
        except Exception as error:
            violation = f"seed {seed}, at {simulation.world.now:.3f} s: {type(error).__name__}: {error}"
            broken = isinstance(error, MISTAKES)
            simulation.world.say("world", f"‼ {violation}")
            if keep_lines:
                raise
        finally:
            simulation.end()
    world = simulation.world
    return Verdict(
        seed=seed,
        violation=violation,
        trace_hash=world.trace_hash,
        hours=world.now / 3600,
        happened=world.happened,
        faults=world.faults,
        fired=simulation.receiver.fired,
        tally=world.tally,
        lines=world.lines,
        broken=broken,
    )

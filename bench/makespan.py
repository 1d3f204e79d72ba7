"""The time of a plan on unlike machines over the best possible, beside first-come, longest-first and gated queues.

    python -m bench.makespan [--seeds N] [--shapes 4x40,20x100] [--first] [--json FILE]

Fleets and plans are drawn: machines with large, middle and small GPUs, large and small CPUs and Raspberry Pis; jobs
of three families whose sizes are log-normal. Every rule decides online, at the ask, on the same durations, with the
same estimates: exact, or wrong by a log-normal factor (30 %, 70 %). The limit is a lower bound of every schedule,
with full knowledge: the larger of the assignment's linear programme and the deadline bound of Lenstra, Shmoys and
Tardos (Math. Programming 46, 1990), by SciPy's HiGHS. Printed: makespan as a multiple of the bound, median and worst
over the seeds, and how many fleets are done later than by first-come. ``--first`` gives no estimates: what is known
is a calibration, and what the jobs of the plan teach.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from training.fleet.scheduling.calibrations import MIXED, Calibrations
from training.fleet.scheduling.durations import Speeds
from training.fleet.scheduling.forecast import Forecast, WaitingKind, forecast
from training.fleet.scheduling.predictions import Prediction, remaining
from training.fleet.scheduling.schedule import Decline, JobKind, Slot, Take
from training.fleet.scheduling.schedule_state import Rolling
from training.fleet.scheduling.workload import Workload

NEVER = math.inf
ERRORS = (0.0, 0.3, 0.7)
MADE_MOST = 300  # makings of a schedule in a plan of more jobs
MOMENTS = (0.0, 0.25, 0.5)  # of forecasts: shares of the jobs that are done
EPOCHS, LOOK_S = 20, 30.0  # of each job; between two looks at what the jobs under way say


@dataclass(frozen=True)
class Case:
    """Seconds that each job takes on each machine (jobs x machines); infinite: it does not run there."""

    seconds: np.ndarray
    works: Sequence[Workload]  # of the jobs, as their settings tell them
    sorts: Sequence[str]  # of the machines
    speeds: Sequence[Sequence[float]]  # of the machines, for each family

    @property
    def jobs(self) -> int:
        return int(self.seconds.shape[0])

    @property
    def machines(self) -> int:
        return int(self.seconds.shape[1])


# speed of each sort of machine for the three families (a GPU's favourite, a small net, trees), and its memory in GiB
FAMILIES, BOUND_BY = ("networks", "small networks", "trees"), ("matrices", "steps", "branches")
SORTS = {
    "gpu-large": ((1.0, 1.0, 1.0), 24),
    "gpu-middle": ((0.5, 0.8, 0.8), 12),
    "gpu-small": ((0.2, 0.6, 0.7), 6),
    "cpu-large": ((0.03, 0.5, 1.2), 64),
    "cpu-small": ((0.01, 0.2, 0.4), 16),
    "pi": ((0.001, 0.02, 0.04), 4),
}


def draw(machines: int, jobs: int, seed: int) -> Case:
    """Draw a fleet with at least one machine with a GPU, and a plan that it can train."""
    r = random.Random(seed)
    names = [r.choice(["gpu-large", "gpu-middle"])]
    names += r.choices(list(SORTS), weights=[1, 2, 2, 2, 3, 3], k=machines - 1)
    wobble = [[r.lognormvariate(0, 0.2) for _ in range(3)] for _ in names]
    speeds = [
        [speed * w for speed, w in zip(SORTS[name][0], each, strict=True)]
        for name, each in zip(names, wobble, strict=True)
    ]
    rows, works = [], []
    for _ in range(jobs):
        family, size, gib = r.randrange(3), r.lognormvariate(math.log(120), 1.0), r.choice([0, 0, 0, 5, 10])
        row = [size / speeds[n][family] if SORTS[name][1] >= gib else NEVER for n, name in enumerate(names)]
        rows.append(row)
        works.append(Workload.of({"model": FAMILIES[family], "hyper": {"epochs": size}}))
    return Case(np.array(rows), works, names, speeds)


# ── the bound ───────────────────────────────────────────────────────────────────────────────


def bound(case: Case) -> float:
    """Compute a makespan below which no schedule can be, even one that knows everything."""
    p = case.seconds
    low = _assignment(p, NEVER)
    assert low is not None
    high = low * 4 + float(np.min(p, axis=1).max())
    low = max(low, float(np.min(p, axis=1).max()))
    while high / low > 1.005:  # the least T for which the programme with only p <= T has a solution within T
        middle = math.sqrt(low * high)
        found = _assignment(p, middle)
        if found is not None and found <= middle:
            high = middle
        else:
            low = middle
    return low


def _assignment(p: np.ndarray, most: float) -> float | None:
    """Solve: jobs spread over machines where they take at most ``most``; the load of the fullest, or None."""
    jobs, machines = np.nonzero(p <= min(most, 1e300))
    n, m = p.shape
    if len(set(jobs.tolist())) < n:
        return None
    k = len(jobs)
    one = coo_matrix((np.ones(k), (jobs, np.arange(k))), shape=(n, k + 1))
    load = coo_matrix(
        (np.concatenate([p[jobs, machines], -np.ones(m)]),
         (np.concatenate([machines, np.arange(m)]), np.concatenate([np.arange(k), np.full(m, k)]))),
        shape=(m, k + 1),
    )  # fmt: skip
    cost = np.zeros(k + 1)
    cost[k] = 1.0
    got = linprog(cost, A_ub=load.tocsr(), b_ub=np.zeros(m), A_eq=one.tocsr(), b_eq=np.ones(n), method="highs")
    return float(got.fun) if got.status == 0 else None


# ── rules, online ───────────────────────────────────────────────────────────────────────────


@dataclass
class World:
    """The view of a rule: estimates, waiting jobs, running jobs."""

    estimate: np.ndarray
    waiting: list[int]
    now: float = 0.0
    running: dict[int, tuple[int, float]] = field(default_factory=dict)  # machine → job, its start
    done: list[tuple[int, int]] = field(default_factory=list)  # jobs, and where each was trained
    wakes: list[float] = field(default_factory=list)  # when a machine that was told to wait asks again


Rule = Callable[[World, int], int | None]  # the job for this idle machine, or None for now


def run(case: Case, estimate: np.ndarray, rule: Rule) -> float:
    """Let the machines ask until all is done; returns the makespan."""
    world = World(estimate, list(range(case.jobs)))
    ends: list[tuple[float, int]] = []
    idle = list(range(case.machines))
    while world.waiting or ends:
        asked = True
        while asked and world.waiting:
            asked = False
            for machine in list(idle):
                job = rule(world, machine)
                if job is not None:
                    world.waiting.remove(job)
                    idle.remove(machine)
                    world.running[machine] = (job, world.now)
                    heapq.heappush(ends, (world.now + float(case.seconds[job, machine]), machine))
                    asked = True
        times = ([ends[0][0]] if ends else []) + [at for at in world.wakes if at > world.now and world.waiting]
        if not times:
            raise RuntimeError("the rule leaves jobs for ever")
        world.now = min(times)
        world.wakes = [at for at in world.wakes if at > world.now]
        while ends and ends[0][0] <= world.now:
            _, machine = heapq.heappop(ends)
            world.done.append((world.running.pop(machine)[0], machine))
            idle.append(machine)
    return world.now


def first_come(world: World, machine: int) -> int | None:
    """The oldest job that fits."""
    return next((job for job in world.waiting if world.estimate[job, machine] < NEVER), None)


def longest_first(world: World, machine: int) -> int | None:
    """The longest job that fits."""
    fit = [job for job in world.waiting if world.estimate[job, machine] < NEVER]
    return max(fit, key=lambda job: float(world.estimate[job].min()), default=None)


def gated(world: World, machine: int) -> int | None:
    """The oldest job that takes at most three times as long here as where it is fastest."""
    rows = world.estimate
    fit = (job for job in world.waiting if rows[job, machine] <= 3 * rows[job].min())
    return next(fit, None)


class Ours:
    """The fleet's schedule, made anew when something has ended, but after a pause at least."""

    def __init__(self, spread: float = 0.05, pause_s: float = 0.0) -> None:
        self.spread, self.pause_s = spread, pause_s
        self.rolling = Rolling()

    def __call__(self, world: World, machine: int) -> int | None:
        host = str(machine)
        if self.rolling.made is None or world.now > self.rolling.made_at + self.pause_s:
            self._renew(world)
        said = self._decide(host, world)
        if not isinstance(said, Take) and world.now > self.rolling.made_at + self.pause_s / 10:
            self._renew(world)
            said = self._decide(host, world)
        if isinstance(said, Take):
            self.rolling.took(host, said)
            return int(said.kind)
        if isinstance(said, Decline):
            world.wakes.append(world.now + max(said.open_s, 0.001))
        return None

    def _decide(self, host: str, world: World) -> Take | Decline | None:
        """Ask the schedule; what was promised and is taken by now is left out, as the fleet does."""
        gone: list[str] = []
        while isinstance(said := self.rolling.decide(host, world.now, gone), Take):
            if int(said.kind) in world.waiting:
                break
            gone.append(said.kind)
        return said

    def _renew(self, world: World) -> None:
        machines = range(world.estimate.shape[1])
        self.rolling.renew(self._kinds(world), [self._slot(n, world) for n in machines], world.now)

    def _kinds(self, world: World) -> list[JobKind]:
        rows = {job: enumerate(world.estimate[job]) for job in world.waiting}
        times = {job: {str(n): float(s) for n, s in row if s < NEVER} for job, row in rows.items()}
        return [JobKind(str(job), 1, seconds, spread=self.spread) for job, seconds in times.items()]

    def _slot(self, machine: int, world: World) -> Slot:
        if machine not in world.running:
            return Slot(str(machine))
        job, begun = world.running[machine]
        expected = float(world.estimate[job, machine])
        ready = Prediction(expected, self.spread).left(world.now - begun)
        late = max(begun + expected * math.exp(2.33 * self.spread) - world.now, 2 * ready)
        return Slot(str(machine), ready, late, job=str(job))

    def hear(self, world: World) -> None:
        """Take in what the jobs teach."""

    def told(self, job: int, world: World) -> dict[str, Prediction]:
        """Say how long a job takes on each machine, and how sure that is."""
        row = enumerate(world.estimate[job])
        return {str(n): Prediction(float(s), self.spread, own=self.spread) for n, s in row if s < NEVER}

    def foretell(self, world: World, works: Sequence[Workload]) -> Forecast:
        """Say when all will be done, as the fleet does."""
        self.hear(world)
        asked = []
        for job, kind in zip(world.waiting, self._kinds(world), strict=True):
            asked.append(WaitingKind(kind, (kind.key,), works[job].family, self.told(job, world)))
        return forecast(asked, [self._slot(n, world) for n in range(world.estimate.shape[1])])


class Learning(Ours):
    """The same without estimates: what a calibration and the jobs until now teach, as in the fleet."""

    def __init__(self, case: Case, calibrations: Calibrations) -> None:
        super().__init__()
        self.case = case
        self.on = [str(n) for n in range(case.machines)]
        self.speeds = Speeds(calibrations=calibrations)
        self.speeds.expect(case.works)
        self.heard = self.speeds  # with what those under way tell
        self.learned = 0  # of the jobs that have ended

    def guess(self) -> np.ndarray:
        """Return the expected seconds of each job on each machine."""
        told = [[self.speeds.predict(work, on).mean for on in self.on] for work in self.case.works]
        return np.where(np.isfinite(self.case.seconds), np.array(told), NEVER)

    def hear(self, world: World) -> None:
        for job, machine in world.done[self.learned :]:
            self.speeds.learn(self.case.works[job], self.on[machine], float(self.case.seconds[job, machine]))
        self.learned = len(world.done)
        words = [
            self.speeds.word_of(self.case.works[job], self.on[machine], *self._word(job, machine, world))
            for machine, (job, _) in world.running.items()
        ]
        self.heard = self.speeds.with_words([word for word in words if word is not None])

    def _renew(self, world: World) -> None:
        self.hear(world)
        world.wakes.append(world.now + LOOK_S)
        super()._renew(world)

    def _word(self, job: int, machine: int, world: World) -> tuple[float, dict[str, float] | None]:
        """Return an attempt's seconds and its last progress line: one each epoch, twenty in all."""
        elapsed_s, whole_s = world.now - world.running[machine][1], float(self.case.seconds[job, machine])
        epoch = int(elapsed_s / whole_s * EPOCHS)
        return elapsed_s, {"epoch": epoch, "epochs": EPOCHS, "seconds": epoch / EPOCHS * whole_s} if epoch else None

    def _kinds(self, world: World) -> list[JobKind]:
        return [self._kind(job) for job in world.waiting]

    def told(self, job: int, _: World | None = None) -> dict[str, Prediction]:
        fits = [on for n, on in enumerate(self.on) if self.case.seconds[job, n] < NEVER]
        return {on: self.heard.predict(self.case.works[job], on) for on in fits}

    def _kind(self, job: int) -> JobKind:
        told = self.told(job)
        spread = statistics.median_low(each.spread for each in told.values())
        return JobKind(str(job), 1, {name: each.mean for name, each in told.items()}, spread=spread)

    def _slot(self, machine: int, world: World) -> Slot:
        if machine not in world.running:
            return Slot(str(machine))
        job, _ = world.running[machine]
        told = self.speeds.predict(self.case.works[job], self.on[machine])
        return Slot(str(machine), *remaining(told, *self._word(job, machine, world)), job=str(job))


class Foretelling:
    """A rule that is asked when all will be done: beforehand, and with a quarter and half of the jobs done."""

    def __init__(self, rule: Ours, works: Sequence[Workload]) -> None:
        self.rule, self.works = rule, works
        self.told: list[tuple[float, Forecast]] = []  # when, and what

    def __call__(self, world: World, machine: int) -> int | None:
        done = len(self.works) - len(world.waiting) - len(world.running)
        if len(self.told) < len(MOMENTS) and done >= MOMENTS[len(self.told)] * len(self.works):
            self.told.append((world.now, self.rule.foretell(world, self.works)))
        return self.rule(world, machine)


RULES: dict[str, Callable[[float, float], Rule]] = {
    "schedule": lambda sigma, pause_s: Ours(max(sigma, 0.05), pause_s),
    "first-come": lambda *_: first_come,
    "longest-first": lambda *_: longest_first,
    "gated": lambda *_: gated,
}


def wrong_by(case: Case, sigma: float, seed: int) -> np.ndarray:
    """Estimates that are wrong by a log-normal factor, for each job and machine on its own."""
    if sigma == 0:
        return case.seconds
    return case.seconds * np.random.default_rng(seed).lognormal(0.0, sigma, case.seconds.shape)


def calibrated(case: Case, wrong: float, seed: int, *, declared: bool = True) -> Calibrations:
    """Measurements of the machines, each wrong by up to this factor; ``declared``: trainers say what bounds them."""
    chance, measured = random.Random(f"{seed}/calibration"), {}
    for machine, speeds in enumerate(case.speeds):
        told = [speed * wrong ** chance.uniform(-1.0, 1.0) for speed in speeds]
        measured[str(machine)] = {**dict(zip(BOUND_BY, told, strict=True)), MIXED: math.sqrt(told[0] * told[1])}
    return Calibrations(measured, dict(zip(FAMILIES, BOUND_BY, strict=True)) if declared else {})


FIRST_PLANS: dict[str, Callable[[Case, int], Calibrations]] = {
    "nothing known, calibration off by 2": lambda case, seed: calibrated(case, 2.0, seed),
    "… trainers declare nothing": lambda case, seed: calibrated(case, 2.0, seed, declared=False),
    "… no calibration": lambda *_: Calibrations(),
}


def first_plans(machines: int, jobs: int, seeds: int) -> Iterator[dict[str, object]]:
    """Run the first plan of fleets that have trained nothing; the peers go by what the calibration lets expect."""
    cases = [draw(machines, jobs, seed) for seed in range(seeds)]
    bounds = [bound(case) for case in cases]
    for error, calibration in FIRST_PLANS.items():
        ratios: dict[str, list[float]] = {}
        for seed, (case, limit) in enumerate(zip(cases, bounds, strict=True)):
            rule = Learning(case, calibration(case, seed))
            guess = rule.guess()
            ratios.setdefault("schedule", []).append(run(case, guess, rule) / limit)
            for name in ("first-come", "longest-first", "gated"):
                ratios.setdefault(name, []).append(run(case, guess, RULES[name](0.0, 0.0)) / limit)
        for name, found in ratios.items():
            yield summed(machines, jobs, error, name, found, ratios["first-come"])


def plans(machines: int, jobs: int, seeds: int) -> Iterator[dict[str, object]]:
    """Run every rule on drawn fleets, with estimates that are wrong."""
    cases = [draw(machines, jobs, seed) for seed in range(seeds)]
    bounds = [bound(case) for case in cases]
    for sigma in ERRORS:
        found: dict[str, list[float]] = {}
        for name, make in RULES.items():
            ratios = found.setdefault(name, [])
            for seed, (case, limit) in enumerate(zip(cases, bounds, strict=True)):
                # In a long plan no single end changes much: as in the fleet, a making waits for its cost's worth.
                pause_s = limit / MADE_MOST if jobs > MADE_MOST else 0.0
                ratios.append(run(case, wrong_by(case, sigma, seed), make(sigma, pause_s)) / limit)
        for name, ratios in found.items():
            error = f"off by {sigma:.0%}" if sigma else "exact"
            yield summed(machines, jobs, error, name, ratios, found["first-come"])


def forecasts(machines: int, jobs: int, seeds: int) -> Iterator[dict[str, object]]:
    """Hold forecasts against what came: its multiple of what was foretold, and the share within the interval."""
    cases = [draw(machines, jobs, seed) for seed in range(seeds)]
    rules: dict[str, Callable[[Case, int], tuple[np.ndarray, Ours]]] = {
        f"off by {sigma:.0%}": lambda case, seed, sigma=sigma: (wrong_by(case, sigma, seed), Ours(sigma))  # type: ignore[misc]
        for sigma in ERRORS
        if sigma
    }
    for error, calibration in FIRST_PLANS.items():
        rules[error] = lambda case, seed, calibration=calibration: (
            case.seconds,
            Learning(case, calibration(case, seed)),
        )  # type: ignore[misc]
    for error, make in rules.items():
        found: list[list[tuple[float, bool]]] = [[] for _ in MOMENTS]
        for seed, case in enumerate(cases):
            estimate, rule = make(case, seed)
            asked = Foretelling(rule, case.works)
            end = run(case, estimate, asked)
            for told, (now, made) in zip(found, asked.told, strict=True):
                came = end - now
                told.append((came / made.end_s, made.low_s <= came <= made.high_s))
        for moment, told in zip(MOMENTS, found, strict=True):
            ratios = [ratio for ratio, _ in told]
            row = summed(machines, jobs, error, f"{moment:.0%} done", ratios)
            yield row | {"least": round(min(ratios), 3), "within": sum(within for _, within in told) / len(told)}


def summed(
    machines: int, jobs: int, error: str, rule: str, ratios: Sequence[float], peer: Sequence[float] = ()
) -> dict[str, object]:
    """Make a row of multiples of the bound; ``peer``: those of first-come on the same fleets."""
    median, worst = round(statistics.median(ratios), 3), round(max(ratios), 3)
    row: dict[str, object] = {"machines": machines, "jobs": jobs, "error": error, "rule": rule, "fleets": len(ratios)}
    row |= {"median": median, "worst": worst}
    if peer:
        row["worse"] = sum(ours > theirs * 1.001 for ours, theirs in zip(ratios, peer, strict=True))
    return row


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.makespan", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--shapes", default="4x40,20x100", help="machines x jobs; the largest measured is 60x1000")
    parser.add_argument("--first", action="store_true", help="only first plans, with nothing known but a calibration")
    parser.add_argument("--forecasts", action="store_true", help="when all is done, as foretold and as it came")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    rows = []
    measure = forecasts if args.forecasts else first_plans if args.first else plans
    for shape in args.shapes.split(","):
        machines, jobs = map(int, shape.split("x"))
        for row in measure(machines, jobs, args.seeds):
            rows.append(row)
            told = "{machines:3d} x {jobs:4d}  {error:38s} {rule:14s} {median:7.2f}  worst {worst:7.2f}"
            told += "  least {least:7.2f}  within {within:.0%}" if "within" in row else ""
            told += "  worse than first-come {worse} of {fleets}" if "worse" in row else ""
            print(told.format(**row), flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

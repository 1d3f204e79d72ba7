"""The time of a plan on unlike machines over the best possible, beside first-come, longest-first and gated queues.

    python -m bench.makespan [--seeds N] [--json FILE]

Fleets and plans are drawn: machines with large, middle and small GPUs, large and small CPUs and Raspberry Pis; jobs
of three families whose sizes are log-normal. Every rule decides online, at the ask, on the same durations, with the
same estimates: exact, or wrong by a log-normal factor (30 %, 70 %). The limit is a lower bound of every schedule,
with full knowledge: the larger of the assignment's linear programme and the deadline bound of Lenstra, Shmoys and
Tardos (Math. Programming 46, 1990), by SciPy's HiGHS. Printed: makespan as a multiple of the bound, median and worst
over the seeds.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from training.fleet.scheduling.durations import Prediction
from training.fleet.scheduling.schedule import Decline, Kind, Schedule, Slot, Take, schedule

NEVER = math.inf
SHAPES = ((4, 40), (20, 100), (20, 400), (60, 1000))
ERRORS = (0.0, 0.3, 0.7)


@dataclass(frozen=True)
class Case:
    """Seconds that each job takes on each machine (jobs x machines); infinite: it does not run there."""

    seconds: np.ndarray

    @property
    def jobs(self) -> int:
        return int(self.seconds.shape[0])

    @property
    def machines(self) -> int:
        return int(self.seconds.shape[1])


# speed of each sort of machine for the three families (a GPU's favourite, a small net, trees), and its memory in GiB
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
    rows = []
    for _ in range(jobs):
        family, size, gib = r.randrange(3), r.lognormvariate(math.log(120), 1.0), r.choice([0, 0, 0, 5, 10])
        row = [
            size / (SORTS[name][0][family] * wobble[n][family]) if SORTS[name][1] >= gib else NEVER
            for n, name in enumerate(names)
        ]
        rows.append(row)
    return Case(np.array(rows))


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
            del world.running[machine]
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
    """The schedule of the fleet, made anew whenever something has ended."""

    def __init__(self, spread: float = 0.05) -> None:
        self.spread = spread
        self.made_at = -1.0
        self.made: Schedule | None = None
        self.promised: dict[tuple[str, str], float] = {}

    def __call__(self, world: World, machine: int) -> int | None:
        if not world.waiting:
            return None
        self._plan(world)
        assert self.made is not None
        host = str(machine)
        if any(self.promised.get((host, str(job)), NEVER) <= world.now for job in world.waiting):
            fit = [job for job in world.waiting if world.estimate[job, machine] < NEVER]
            return self._take(min(fit, key=lambda job: float(world.estimate[job, machine])))
        said = self.made.decide(host)
        if isinstance(said, Take):
            return self._take(int(said.kind))
        if isinstance(said, Decline):
            until = min(self.promised.get((host, said.kind), NEVER), world.now + said.open_s)
            self.promised[host, said.kind] = until
            world.wakes.append(until)
        return None

    def _take(self, job: int) -> int:
        self.made_at = -1.0
        return job

    def _plan(self, world: World) -> None:
        if self.made_at == world.now and self.made is not None:
            return
        kinds = [
            Kind(
                str(job),
                1,
                {str(n): float(s) for n, s in enumerate(world.estimate[job]) if s < NEVER},
                spread=self.spread,
            )
            for job in world.waiting
        ]
        slots = []
        for machine in range(world.estimate.shape[1]):
            ready = late = 0.0
            if machine in world.running:
                job, begun = world.running[machine]
                expected = float(world.estimate[job, machine])
                ready = Prediction(expected, self.spread).left(world.now - begun)
                late = max(begun + expected * math.exp(2.33 * self.spread) - world.now, 2 * ready)
            slots.append(Slot(str(machine), ready, late))
        due: dict[str, float] = {}
        for (_, kind), until in self.promised.items():
            due[kind] = min(until, due.get(kind, NEVER))
        self.made, self.made_at = schedule(kinds, slots, due, self.made), world.now


RULES: dict[str, Callable[[float], Rule]] = {
    "schedule": lambda sigma: Ours(max(sigma, 0.05)),
    "first-come": lambda _: first_come,
    "longest-first": lambda _: longest_first,
    "gated": lambda _: gated,
}


def wrong_by(case: Case, sigma: float, seed: int) -> np.ndarray:
    """Estimates that are wrong by a log-normal factor, for each job and machine on its own."""
    if sigma == 0:
        return case.seconds
    return case.seconds * np.random.default_rng(seed).lognormal(0.0, sigma, case.seconds.shape)


def measure(shapes: Sequence[tuple[int, int]], seeds: int) -> list[dict[str, object]]:
    """Run every rule on every drawn fleet; one row for a shape, an error and a rule."""
    rows: list[dict[str, object]] = []
    for machines, jobs in shapes:
        cases = [draw(machines, jobs, seed) for seed in range(seeds)]
        bounds = [bound(case) for case in cases]
        for sigma in ERRORS:
            for name, make in RULES.items():
                ratios = [
                    run(case, wrong_by(case, sigma, seed), make(sigma)) / limit
                    for seed, (case, limit) in enumerate(zip(cases, bounds, strict=True))
                ]
                rows.append(
                    {"machines": machines, "jobs": jobs, "error": sigma, "rule": name,
                     "median": round(statistics.median(ratios), 3), "worst": round(max(ratios), 3)}
                )  # fmt: skip
                print(
                    "{machines:3d} x {jobs:4d}  error {error:.1f}  {rule:14s} {median:6.2f}  worst {worst:6.2f}".format(
                        **rows[-1]
                    ),
                    flush=True,
                )
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.makespan", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--shapes", type=int, default=len(SHAPES), help="so many of the shapes, smallest first")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    rows = measure(SHAPES[: args.shapes], args.seeds)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

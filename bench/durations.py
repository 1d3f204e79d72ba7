"""Errors of predicted durations in drawn worlds that do not obey the estimator's own model.

    python -m bench.durations [--seeds N] [--beside FILE]

Each world has five hosts, whose speeds for a family differ by up to a hundred, and three families, whose times follow
a power of one setting, with an overhead, with noise, and with a second setting that does not matter. Hosts are
calibrated well, all alike, or not at all. Each host trains two jobs of each family; then 40 jobs go where they are
believed to end soonest. Printed for the two first jobs and for the others: the middle and the ninth decile of the
factor by which a job on any host is predicted too long or too short, and the share within its 80 % interval.
``--beside`` reads another ``durations.py``, which learns the same.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from training.fleet.scheduling import calibrations, durations, workload

HOSTS, FAMILIES, WARM, JOBS = 5, 3, 2, 40
ANYWHERE = -1
OVERHEADS, NOISES, CALIBRATIONS = (0.0, 2.0), (0.05, 0.3), ("well", "alike", "none")


@dataclass
class DrawnWorld:
    """A world as it really is."""

    chance: random.Random
    overhead_s: float
    noise: float
    name: str = "size"
    speeds: list[list[float]] = field(init=False)  # of hosts for families
    powers: list[float] = field(init=False)
    base_s: list[float] = field(init=False)

    def __post_init__(self) -> None:
        r = self.chance
        self.speeds = [[10 ** r.uniform(-1, 1) for _ in range(FAMILIES)] for _ in range(HOSTS)]
        self.powers = [r.uniform(0.5, 1.3) for _ in range(FAMILIES)]
        self.base_s = [r.lognormvariate(math.log(10), 1.0) for _ in range(FAMILIES)]

    def job(self) -> dict[str, Any]:
        r = self.chance
        size, family = math.exp(r.uniform(math.log(0.4), math.log(18))), r.randrange(FAMILIES)
        return {"model": f"family-{family}", "hyper": {self.name: round(size, 2), "rate": 10 ** r.uniform(-4, -1)}}

    def seconds(self, job: dict[str, Any], host: int) -> float:
        family = int(job["model"][-1])
        work_s = self.base_s[family] * job["hyper"][self.name] ** self.powers[family] / self.speeds[host][family]
        return self.overhead_s + work_s

    def measured(self, calibration: str) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
        if calibration == "none":
            return {}, {}
        kinds = ("matrices", "steps", "branches")
        found = {}
        for host, speeds in enumerate(self.speeds):
            told = [1.0 if calibration == "alike" else each * 2 ** self.chance.uniform(-1, 1) for each in speeds]
            found[str(host)] = {**dict(zip(kinds, told, strict=True)), calibrations.MIXED: math.sqrt(told[0] * told[1])}
        return found, {f"family-{n}": kind for n, kind in enumerate(kinds)}


def played(of: ModuleType, world: DrawnWorld, calibration: str) -> Iterator[tuple[bool, float, bool]]:
    """Learn job by job; yields if few jobs were known, the error of the logarithm, and if it lay in the interval."""
    speeds = of.Speeds(calibrations=of.Calibrations(*world.measured(calibration)))
    read_work = getattr(of, "Workload", workload.Workload).of
    order: list[tuple[dict[str, Any], int]] = []
    for host in range(HOSTS):
        for family in range(FAMILIES):
            order += [(world.job() | {"model": f"family-{family}"}, host) for _ in range(WARM)]
    warm = len(order)
    order += [(world.job(), ANYWHERE) for _ in range(JOBS)]
    for n, (job, host) in enumerate(order):
        work = read_work(job)
        told = [speeds.predict(work, str(each)) for each in range(HOSTS)]
        if host == ANYWHERE:
            host = min(range(HOSTS), key=lambda each: told[each].seconds)
        took_s = world.seconds(job, host) * world.chance.lognormvariate(0.0, world.noise)
        if n >= 3:
            any_host = world.chance.randrange(HOSTS)
            true_s = world.seconds(job, any_host) * world.chance.lognormvariate(0.0, world.noise)
            one = told[any_host]
            yield n < warm, abs(math.log(one.seconds / true_s)), one.at(0.1) <= true_s <= one.at(0.9)
        speeds.learn(work, str(host), took_s)


def read(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("durations_beside", file)
    assert spec is not None
    assert spec.loader is not None
    sys.modules["durations_beside"] = found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.durations", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=24)
    parser.add_argument("--beside", type=Path, help="another durations.py")
    args = parser.parse_args(argv)
    modules = {"this": durations} | ({"beside": read(args.beside)} if args.beside else {})
    for overhead_s in OVERHEADS:
        for noise in NOISES:
            for calibration in CALIBRATIONS:
                for name, of in modules.items():
                    found = []
                    for seed in range(args.seeds):
                        world = DrawnWorld(random.Random(f"{seed}/{overhead_s}/{noise}"), overhead_s, noise)
                        found += [*played(of, world, calibration)]
                    told = f"overhead {overhead_s:.0f} s, noise {noise:.0%}, calibrated {calibration:5s} {name:6s}"
                    for early in (True, False):
                        errors = sorted(error for first, error, _ in found if first == early)
                        within = sum(inside for first, _, inside in found if first == early) / len(errors)
                        middle, ninth = (math.exp(errors[int(len(errors) * share)]) for share in (0.5, 0.9))
                        told += f" | {'first' if early else 'later'} {middle:5.2f} {ninth:7.2f} {within:4.0%}"
                    print(told, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

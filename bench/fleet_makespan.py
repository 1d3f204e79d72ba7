"""The time of a plan on four unlike hosts over the best possible: real receiver, real workers, trainers that sleep.

    python -m bench.fleet_makespan [--jobs 40] [--bound 30] [--fleets 8] [--slots 0] [--first-come] [--json FILE]

The worlds that are drawn obey no model of durations: a trainer of one's own sleeps for an overhead of its host and a
power of its ``size`` (0.4 to 18, the power is its family's), times noise, and a family takes up to a hundred times as
long on one host as on another. The middle job takes a second or
several, as the plan's bound (``--bound``, in seconds) divides among the jobs. Two warm jobs a family and host teach;
then the plan counts, from its reload until its last model is in the store, with all that lies between sleeps: claims,
starts, uploads. The limit is the lower bound for the sleeping and the starts of trainers, as measured here, each host
counted once for each of its slots: one, or two of two worlds in four. ``--first-come`` does the same first come, first
served beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import secrets
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from training.fleet.client.client import FleetClient

sys.path.insert(0, str(Path(__file__).parent))

from makespan import Case, bound
from receivers import receiver

TOKEN = "CIS490_OPERATOR_TOKEN"
HOSTS = ("desktop", "laptop", "office", "old")
SIZES = 0.4, 18.0
WARM = 0.15, 0.6  # sizes of the jobs that teach
UNLIKE = 100.0  # a family's slowest host beside its fastest
EPOCHS = 10
STARTS = 5  # that are measured
SLEEPER = """
import json, os, random, sys, time
given = dict(zip(sys.argv, sys.argv[1:]))
world, family, size = json.loads(os.environ["WORLD"]), given["--family"], float(given["--size"])
each_s = (world["overhead"] + world[family] * size ** world["power " + family]) / EPOCHS
each_s *= random.Random(given["--size"] + family).lognormvariate(0.0, world["noise"])
begun = time.monotonic()
for epoch in range(1, EPOCHS + 1):
    time.sleep(max(0.0, begun + epoch * each_s - time.monotonic()))
    seconds = time.monotonic() - begun
    print(json.dumps({"event": "epoch", "epoch": epoch, "epochs": EPOCHS, "seconds": seconds}), flush=True)
open(os.path.join(given["--out-dir"], "out"), "w").write("done")
"""


@dataclass(frozen=True)
class Fleet:
    """The figures that trainers follow on each host, and the jobs of the plan: family and size."""

    worlds: dict[str, dict[str, float]]
    jobs: list[tuple[str, float]]
    warm: list[tuple[str, float, str]]  # the jobs that teach: with their hosts
    families: tuple[str, ...]
    slots: int

    @classmethod
    def draw(cls, seed: int, jobs: int, bound_s: float, slots: int) -> Fleet:
        """Draw a world whose plan takes so long at least."""
        chance = random.Random(seed)
        families = tuple(f"family{n}" for n in range(chance.choice([2, 3, 4])))
        noise, powers = chance.choice([0.02, 0.1, 0.2]), {family: chance.uniform(0.6, 1.2) for family in families}
        worlds: dict[str, dict[str, float]] = {}
        for host in HOSTS:
            world = {family: UNLIKE ** chance.random() for family in families}
            powers_named = {f"power {family}": power for family, power in powers.items()}
            worlds[host] = {"noise": noise, "overhead": chance.uniform(0.0, 0.3), **world, **powers_named}
        low, high = map(math.log, SIZES)
        drawn = [(chance.choice(families), round(math.exp(chance.uniform(low, high)), 3)) for _ in range(jobs)]
        warm = [(f, round(chance.uniform(*WARM), 3), host) for f in families for host in HOSTS for _ in range(2)]
        made = cls(worlds, drawn, warm, families, slots or chance.choice([1, 1, 2]))
        faster = bound_s / made.bound_s(0.0)
        for world in worlds.values():
            for family in families:
                world[family] *= faster
        return made

    def seconds(self, family: str, size: float, host: str) -> float:
        world = self.worlds[host]
        mean = world["overhead"] + world[family] * size ** world[f"power {family}"]
        return mean * random.Random(f"{size}{family}").lognormvariate(0.0, world["noise"])

    def bound_s(self, start_s: float) -> float:
        """Compute the least time that any schedule needs, if each trainer takes so long to start."""
        places = [host for host in HOSTS for _ in range(self.slots)]
        rows = [[start_s + self.seconds(family, size, host) for host in places] for family, size in self.jobs]
        return bound(Case(np.array(rows), (), (), ()))

    def plan(self, folder: Path, scheduling: str, *, warm: bool) -> str:
        """Write the manifest: of the jobs that count, or of those that teach."""
        lines = ["schema_version = 1", 'name = "bench"', f'scheduling = "{scheduling}"']
        for host, world in self.worlds.items():
            lines += [
                f"[hosts.{host}]",
                f"env = {{ WORLD = {json.dumps(json.dumps(world))} }}",
                f"slots = {self.slots}",
            ]
        for family in self.families:
            words = [sys.executable, "-I", "-S", str(folder / "sleeper.py"), "--family", family]
            lines += [f"[trainers.{family}]", f"command = {json.dumps(words)}", 'outputs = ["out"]']
        counted = [(family, size, "") for family, size in self.jobs]
        for n, (family, size, host) in enumerate(self.warm if warm else counted):
            lines += ["[[jobs]]", f'name = "{family}-{"warm" if warm else "count"}-{n}"', f'model = "{family}"']
            lines += ['mode = "oracle"', f"seed = {n}", f"hyper.size = {size}"]
            lines += [f'allowed_hosts = ["{host}"]'] if host else []
        return "\n".join(lines) + "\n"


def start_s(folder: Path) -> float:
    """Measure how long a trainer takes beside its sleep."""
    world = {"overhead": 0.0, "family": 0.0, "power family": 1.0, "noise": 0.0}
    words = [sys.executable, "-I", "-S", str(folder / "sleeper.py"), "--family", "family", "--size", "1"]
    words += ["--out-dir", str(folder)]
    took = []
    for _ in range(STARTS):
        begun = time.monotonic()
        subprocess.run(words, env={**os.environ, "WORLD": json.dumps(world)}, stdout=subprocess.DEVNULL, check=True)
        took.append(time.monotonic() - begun)
    return statistics.median(took)


@contextlib.contextmanager
def worker(folder: Path, host: str, port: int) -> Iterator[None]:
    """One worker, as another host."""
    places = {f"--{name}-dir": str(folder / host / name) for name in ("artifacts", "reports", "state")}
    flags = ["--host-id", host, "--receiver-url", f"http://127.0.0.1:{port}", "--heartbeat-s", "2"]
    flags += [each for pair in places.items() for each in pair]
    command = [sys.executable, "-m", "training.fleet.worker", *flags]
    with (folder / f"{host}.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield
        finally:
            process.terminate()


def trained(folder: Path, fleet: Fleet, scheduling: str) -> float:
    """Let the fleet learn, then train the plan; return the seconds of the plan."""
    with contextlib.ExitStack() as stack:
        served = stack.enter_context(receiver(folder, plan=fleet.plan(folder, scheduling, warm=True)))
        for host in HOSTS:
            stack.enter_context(worker(folder, host, served.port))
        _wait(folder)
        (folder / "manifest.toml").write_text(fleet.plan(folder, scheduling, warm=False))
        begun = time.time()
        FleetClient(f"http://127.0.0.1:{served.port}", operator_token=os.environ[TOKEN]).reload()
        return _wait(folder) - begun


def _wait(folder: Path) -> float:
    """Wait until no job is left; return the time of the last end."""
    with contextlib.closing(sqlite3.connect(f"file:{folder / 'jobs.db'}?mode=ro", uri=True)) as reader:
        while True:
            time.sleep(0.2)
            rows = reader.execute("SELECT status, max(finished_at) FROM jobs GROUP BY status").fetchall()
            found = dict(rows)
            if found.keys() - {"completed"} <= set() and found:
                return float(found["completed"])
            if "failed" in found:
                raise SystemExit(f"a job failed: see {folder}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.fleet_makespan", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--bound", type=float, default=30.0, help="seconds that the plan takes at least")
    parser.add_argument("--fleets", type=int, default=8)
    parser.add_argument("--slots", type=int, default=0, help="of each host; 0: one or two, as drawn")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--first-come", action="store_true", help="also first come, first served")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    os.environ.setdefault(TOKEN, secrets.token_urlsafe(32))
    rows = []
    rules = ("soonest", "first-come") if args.first_come else ("soonest",)
    for seed in range(args.first_seed, args.first_seed + args.fleets):
        fleet = Fleet.draw(seed, args.jobs, args.bound, args.slots)
        with tempfile.TemporaryDirectory(prefix="cis490-bench-") as name, ThreadPoolExecutor(2) as both:
            runs = {}
            for scheduling in rules:
                folder = Path(name) / scheduling
                folder.mkdir()
                (folder / "sleeper.py").write_text(f"EPOCHS = {EPOCHS}\n{SLEEPER}")
                runs[scheduling] = both.submit(trained, folder, fleet, scheduling)
            took = {scheduling: each.result() for scheduling, each in runs.items()}
            limit = fleet.bound_s(start_s(folder))
        rows.append({"seed": seed, "bound_s": limit, **took})
        told = ", ".join(f"{scheduling} {s:.0f} s = {s / limit:.2f}" for scheduling, s in took.items())
        print(f"fleet {seed}, {fleet.slots} slots: {args.jobs} jobs, at least {limit:.0f} s; {told}", flush=True)
    found = [float(row["soonest"]) / float(row["bound_s"]) for row in rows]
    print(f"the schedule over the bound: {statistics.median(found):.2f} (bar 1.35), worst {max(found):.2f} (bar 1.6)")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

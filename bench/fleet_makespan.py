"""The time of a plan on four unlike hosts over the best possible: real receiver, real workers, trainers that sleep.

    python -m bench.fleet_makespan [--jobs 40] [--seconds 3] [--fleets 2] [--slots 1] [--json FILE]

Fleets and jobs are drawn as in bench/makespan.py; how long a trainer sleeps, its host's variables say. A first plan of
a job a model and host teaches; the second one counts, from its reload until its last model is in the store,
with all that lies between sleeps: claims, starts, uploads. A fleet whose plan says `scheduling = "first-come"` does the
same beside it. The limit is the lower bound for the sleeping alone, each host counted once for each of its slots.
"""

from __future__ import annotations

import argparse
import contextlib
import json
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

from makespan import SORTS, Case, bound
from receivers import receiver

TOKEN = "CIS490_OPERATOR_TOKEN"
SLOWEST = 20.0  # times as long as on the fastest host: nobody would wait for the end of first-come otherwise
HOSTS = {"desktop": "gpu-middle", "laptop": "gpu-small", "office": "cpu-large", "old": "cpu-small"}
MODELS = ("networks", "small", "trees")
EPOCHS = 10
SLEEPER = """
import json, os, sys, time
given = dict(zip(sys.argv, sys.argv[1:]))
each_s, begun = float(given["--steps"]) * float(os.environ["SLEEP_" + given["--family"]]) / EPOCHS, time.monotonic()
for epoch in range(1, EPOCHS + 1):
    time.sleep(each_s)
    seconds = time.monotonic() - begun
    print(json.dumps({"event": "epoch", "epoch": epoch, "epochs": EPOCHS, "seconds": seconds}), flush=True)
open(os.path.join(given["--out-dir"], "out"), "w").write("done")
"""


@dataclass(frozen=True)
class Fleet:
    """Seconds that a job of size 1 sleeps, by host and model, and the jobs of the plan: model and size."""

    sleeps: dict[str, dict[str, float]]
    jobs: list[tuple[str, float]]
    slots: int

    @classmethod
    def draw(cls, seed: int, jobs: int, seconds: float, slots: int) -> Fleet:
        chance = random.Random(seed)
        sleeps = {
            host: {
                model: min(SLOWEST, chance.lognormvariate(0, 0.2) / speed)
                for model, speed in zip(MODELS, SORTS[sort][0], strict=True)
            }
            for host, sort in HOSTS.items()
        }
        drawn = [(chance.choice(MODELS), round(chance.lognormvariate(0, 0.7) * seconds, 2)) for _ in range(jobs)]
        return cls(sleeps, drawn, slots)

    def bound_s(self) -> float:
        """Compute the least time that any schedule needs."""
        places = [host for host in HOSTS for _ in range(self.slots)]
        rows = [[self.sleeps[host][model] * size for host in places] for model, size in self.jobs]
        return bound(Case(np.array(rows), (), (), ()))

    def plan(self, folder: Path, scheduling: str, *, learning: bool) -> str:
        """Write the manifest: of the jobs that count, or of those that teach."""
        lines = ["schema_version = 1", 'name = "bench"', f'scheduling = "{scheduling}"']
        for host, sleeps in self.sleeps.items():
            told = ", ".join(f'SLEEP_{model} = "{s:.4f}"' for model, s in sleeps.items())
            lines += [f"[hosts.{host}]", f"env = {{ {told} }}", f"slots = {self.slots}"]
        for model in MODELS:
            words = [sys.executable, "-I", "-S", str(folder / "sleeper.py"), "--family", model]
            lines += [f"[trainers.{model}]", f"command = {json.dumps(words)}", 'outputs = ["out"]']
        middle = statistics.median(size for _, size in self.jobs)
        jobs = [(model, middle, host) for model in MODELS for host in HOSTS]
        for n, (model, size, *only) in enumerate(jobs if learning else self.jobs):
            lines += ["[[jobs]]", f'name = "{model}-{"learn" if learning else "count"}-{n}"', f'model = "{model}"']
            lines += ['mode = "oracle"', f"seed = {n}", f"hyper.steps = {size}"]
            lines += [f'allowed_hosts = ["{only[0]}"]'] if only else []
        return "\n".join(lines) + "\n"


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
    sleeper = f"EPOCHS = {EPOCHS}\n{SLEEPER}"
    (folder / "sleeper.py").write_text(sleeper)
    with contextlib.ExitStack() as stack:
        served = stack.enter_context(receiver(folder, plan=fleet.plan(folder, scheduling, learning=True)))
        for host in HOSTS:
            stack.enter_context(worker(folder, host, served.port))
        _wait(folder)
        (folder / "manifest.toml").write_text(fleet.plan(folder, scheduling, learning=False))
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
    parser.add_argument("--seconds", type=float, default=3.0, help="that the middle job sleeps on the fastest host")
    parser.add_argument("--fleets", type=int, default=2)
    parser.add_argument("--slots", type=int, default=1, help="of each host")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    os.environ.setdefault(TOKEN, secrets.token_urlsafe(32))
    rows = []
    for seed in range(args.first_seed, args.first_seed + args.fleets):
        fleet = Fleet.draw(seed, args.jobs, args.seconds, args.slots)
        limit = fleet.bound_s()
        with tempfile.TemporaryDirectory(prefix="cis490-bench-") as name, ThreadPoolExecutor(2) as both:
            runs = {}
            for scheduling in ("soonest", "first-come"):
                folder = Path(name) / scheduling
                folder.mkdir()
                runs[scheduling] = both.submit(trained, folder, fleet, scheduling)
            took = {scheduling: each.result() for scheduling, each in runs.items()}
        rows.append({"seed": seed, "bound_s": limit, **took})
        told = ", ".join(f"{scheduling} {s:.0f} s = {s / limit:.2f}" for scheduling, s in took.items())
        print(f"fleet {seed}: {args.jobs} jobs, at least {limit:.0f} s; {told}", flush=True)
    middle = statistics.median(float(row["soonest"]) / float(row["bound_s"]) for row in rows)
    print(f"the schedule over the bound: {middle:.2f} (bar 1.35)")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

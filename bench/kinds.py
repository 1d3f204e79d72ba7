"""The time of a decision by time, over many kinds of jobs and many hosts, by the number of waiting jobs.

    python bench/kinds.py [--kinds 200] [--hosts 50] [--sizes 1000,1000000] [--claims 1500] [--json]

In this process, without HTTP: each host asks, gets a job, and has done it a little later, so that the schedule goes
out of date; now and then another is made, as the receiver's thread does beside the calls. What is told is the
processor's time of an ask and of a making: a sync of the database, which a claim waits for, is the disk's.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from receivers import Report, arguments, p50, p99, workplace

from training import strict_json
from training.contract import digest
from training.fleet.database.sqlite import SqliteDatabase
from training.fleet.queue.jobs import JobQueue
from training.fleet.scheduling.job import Needs
from training.fleet.scheduling.policy import Policy
from training.fleet.service.hosts import Plan
from training.fleet.service.service import Service
from training.fleet.store.artifacts import ArtifactStore
from training.fleet.wire.attempts import ClaimRequest, FailRequest

T = TypeVar("T")
MAKE_EVERY = 30  # asks


def a_kind(number: int) -> dict[str, object]:
    """Jobs of so many sizes, which hosts of so many cores can do."""
    hyper = {"n_estimators": 10 * 2 ** (number % 20), "max_depth": 2 + number // 20}
    return {"model": "gbt", "mode": "oracle", "min_cores": 1 + number % 4, "hyper": hyper, "n_resamples": 1000}


def filled(path: Path, jobs: int, kinds: int) -> JobQueue:
    """A queue of so many jobs, written by SQL alone."""
    database = SqliteDatabase(path, synchronous="NORMAL")
    queue = JobQueue(path, database=database)
    specs = [a_kind(number) for number in range(kinds)]
    with database.transaction():
        classes = [queue.classes.of(Needs.of(spec), spec) for spec in specs]
        for table in ("jobs", "events"):
            database.connection.execute(f"DROP TRIGGER temp.seal_{table}_inserted")
        now = time.time() - 3600
        rows = (
            (
                digest(["kinds", n]),
                f"job-{n}",
                strict_json.canonical({**specs[n % kinds], "seed": n}),
                classes[n % kinds],
                now,
            )
            for n in range(jobs)
        )
        database.connection.executemany(
            "INSERT INTO jobs"
            " (job_id, name, spec, class_id, priority, status, created_at, claimable_at, in_manifest, model, mode)"
            " VALUES (?, ?, ?, ?, 0, 'pending', ?5, ?5, 0, 'gbt', 'oracle')",
            rows,
        )
    queue.close()
    return JobQueue(path, policy=Policy(second_opinion_s=0))


def capability(chance: random.Random) -> dict[str, object]:
    faster = chance.lognormvariate(0.0, 1.0)
    memory = {"ram_total_gib": 16.0, "ram_available_gib": 12.0}
    speed = {"calibration": {"gflops": 100.0 * faster, "steps": 1000.0 * faster}}
    return {"hostname": "bench", "cpu_cores": 8, "cuda_available": False, "cuda_devices": [], **memory, **speed}


def measure(queue: JobQueue, folder: Path, hosts: int, claims: int) -> tuple[list[float], list[float]]:
    """Milliseconds of each ask, once the schedule is there, and of each making of a schedule."""
    service, chance = Service(queue, ArtifactStore(folder / "models"), Plan()), random.Random(0)
    machines = {f"bench-{n}": capability(chance) for n in range(hosts)}
    asks: list[float] = []
    makings: list[float] = []
    queue.ahead.make_beside(queue.db, service.learned(queue.db))
    queue.ahead.stopwatch = time.thread_time

    def make() -> None:
        making = service.begin_schedule()
        made = queue.ahead.make(making)
        makings.append(made.cost_s * 1e3)
        service.follow_schedule(making, made)

    def timed(times: list[float], call: Callable[[], T]) -> T:
        begun = time.thread_time()
        with queue.db.transaction():
            found = call()
        times.append((time.thread_time() - begun) * 1e3)
        return found

    for number in range(claims + 2 * hosts):
        host = f"bench-{number % hosts}"
        request = ClaimRequest(host_id=host, capability=machines[host])
        reply = timed(asks, partial(service.claim, request))
        if reply.job_id is not None:
            fail = FailRequest(claim_id=reply.claim_id, error="bench", exit_code=2)
            with queue.db.transaction():
                service.fail(reply.job_id, fail)
        if number < 2 * hosts:  # all have come
            if number == 2 * hosts - 1 or number == hosts - 1:
                make()
            asks.clear()
        elif number % MAKE_EVERY == 0:
            make()
    return asks, makings


def main() -> None:
    parser = arguments(__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--kinds", type=int, default=200)
    parser.add_argument("--hosts", type=int, default=50)
    parser.add_argument("--sizes", default="1000,1000000")
    parser.add_argument("--claims", type=int, default=1500)
    args = parser.parse_args()
    report = Report("kinds", args.json)
    report.note(f"{args.kinds} kinds, {args.hosts} hosts")
    first = 0.0
    with workplace() as folder:
        for size in map(int, args.sizes.split(",")):
            queue = filled(folder / f"{size}.db", size, args.kinds)
            asks, makings = measure(queue, folder, args.hosts, min(args.claims, size // 2))
            queue.close()
            first = first or p50(asks)
            report.row(
                f"an ask, {size:,} pending",
                p50(asks),
                "ms",
                "bar: 2 ms, 1.3 × the first",
                p99=p99(asks),
                most=max(asks),
                ratio=p50(asks) / first,
            )
            if makings:
                report.row(
                    f"a making of the schedule, {size:,} pending",
                    p50(makings),
                    "ms",
                    "bar: 50 ms for 400 kinds and 60 hosts",
                    p99=p99(makings),
                    most=max(makings),
                    makings=len(makings),
                )
    report.end()


if __name__ == "__main__":
    main()

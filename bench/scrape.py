"""The cost of metrics: a scrape with many jobs, and the receiver's memory before and after the first one.

python bench/scrape.py [--jobs 100000] [--json]
"""

from __future__ import annotations

import sqlite3
import time
import urllib.request
from contextlib import closing
from pathlib import Path

from receivers import CAPABILITY, Report, Served, arguments, fill, p50, receiver, workplace

from training.fleet.client.client import FleetClient
from training.fleet.receiver.metrics.snapshot import FRESH_S

ROUNDS = 5


def scrape_ms(served: Served) -> float:
    begun = time.perf_counter()
    with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/metrics") as answer:
        answer.read()
    return (time.perf_counter() - begun) * 1000


def with_bundles(path: Path) -> None:
    """A bundle for each job, as if all had been trained once."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "INSERT INTO artifacts (artifact_id, job_id, attempt, model, mode, size, stored_at) "
            "SELECT lower(hex(randomblob(32))), job_id, 1, 'gbt', 'realistic', 1000, 0 FROM jobs"
        )


def measured(report: Report, folder: Path, jobs: int) -> None:
    folder.mkdir()
    fill(folder / "jobs.db", jobs)
    with receiver(folder) as served:
        with_bundles(folder / "jobs.db")  # not before: it would look for their files
        client = FleetClient(f"http://127.0.0.1:{served.port}", "bench-0", tries=1)
        for _ in range(20):
            client.health()
        client.claim(CAPABILITY)
        client.close()
        rest = served.rss_mib()
        report.row(f"receiver with {jobs:,} jobs, at rest", rest, "MiB", "bar: 46")
        report.row("… its first scrape", scrape_ms(served), "ms")
        report.row("… after it", served.rss_mib() - rest, "MiB more")
        fresh, again, before = [], [], served.cpu_s()
        for _ in range(ROUNDS):
            time.sleep(FRESH_S + 0.1)
            fresh.append(scrape_ms(served))
            again.append(scrape_ms(served))
        report.row("… a scrape with a new snapshot, p50", p50(fresh), "ms")
        report.row("… one with the last snapshot, p50", p50(again), "ms")
        report.row("… CPU of both", (served.cpu_s() - before) / ROUNDS * 1000, "ms", "bar: 100")
        report.row(f"… after {2 * ROUNDS + 1} scrapes", served.rss_mib() - rest, "MiB more")


def main() -> None:
    parser = arguments(__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--jobs", type=int, default=100_000)
    args = parser.parse_args()
    report = Report("the cost of metrics", args.json)
    with workplace() as folder:
        measured(report, folder / "few", 14)
        measured(report, folder / "many", args.jobs)
    report.end()


if __name__ == "__main__":
    main()

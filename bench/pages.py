"""The dashboard at 100,000 jobs: time in the receiver and size of each page, with any two filters.

    python bench/pages.py [--jobs 100000] [--json]

Measured in this process, as the receiver's reading thread does it: queries, counts and HTML; nothing is cached between
two runs of a row but SQLite's pages. Processor time, which a busy machine lengthens least; the limit is in the row.
"""

from __future__ import annotations

import gzip
import itertools
import random
import statistics
import time
from pathlib import Path

from receivers import Report, arguments, fill, workplace

from training.fleet.database.sqlite import SqliteDatabase
from training.fleet.pages import events, fleet, jobs
from training.fleet.pages.page_request import PageRequest
from training.fleet.pages.rendering import Frame
from training.fleet.queue.jobs import JobQueue
from training.fleet.service.service import Service
from training.fleet.service.views import Views
from training.fleet.store.artifacts import ArtifactStore
from training.fleet.wire.views import HealthReply

FILTERS = {"status": "completed", "model": "gru", "mode": "oracle", "host": "host-03", "q": "99"}
MODELS = ("gbt", "mlp", "cnn", "gru", "lstm", "transformer", "transformer_ssl")
NOW = 1.8e9
RUNS = 5


def mixed(path: Path) -> None:
    """Give the jobs models, modes, states and hosts, in a fixed random order."""
    drawn, database = random.Random(7), SqliteDatabase(path, synchronous="OFF")
    with database.transaction():
        for (seq,) in database.connection.execute("SELECT seq FROM jobs").fetchall():
            status = drawn.choices(["pending", "completed", "failed", "cancelled"], [50, 45, 3, 2])[0]
            waits, at = status == "pending", NOW - drawn.random() * 1e7
            database.connection.execute(
                "UPDATE jobs SET model = ?, mode = ?, status = ?, worker_hostname = ?, claimed_at = ?, finished_at = ? "
                "WHERE seq = ?",
                (
                    drawn.choice(MODELS),
                    drawn.choice(["realistic", "oracle"]),
                    status,
                    None if waits else f"host-{drawn.randrange(20):02}",
                    None if waits else at - 100,
                    None if waits else at,
                    seq,
                ),
            )
    database.close()


def measure(report: Report, folder: Path) -> None:
    queue = JobQueue(folder / "jobs.db")
    reader = SqliteDatabase(folder / "jobs.db")
    service = Service(queue, ArtifactStore(folder / "models"))
    frame = Frame(NOW)
    health = HealthReply(status="ok", version="", counts={}, granting=True)
    pairs = [dict(pair) for pair in itertools.combinations(FILTERS.items(), 2)]
    asked = [{}, *pairs, *({**pairs[0], "sort": sort} for sort in (*jobs.ORDERS, *jobs.COLUMNS))]

    def timed(make: object) -> tuple[float, int]:
        taken, page = [], ""
        for _ in range(RUNS):
            views = Views(reader, service)  # with no count kept
            begun = time.process_time()
            page = make(views)  # type: ignore[operator]
            taken.append((time.process_time() - begun) * 1000)
        return statistics.median(taken), len(page.encode())

    found = {str(each): timed(lambda views, each=each: jobs.page(PageRequest(views, each), frame)) for each in asked}
    largest = max(size for _, size in found.values())
    report.row("/jobs, all of them", found["{}"][0], "ms", "limit: 100", kB=found["{}"][1] / 1000)
    two = {each: took for each, (took, _) in found.items() if each != "{}"}
    slowest = max(two, key=lambda each: two[each])
    report.row("/jobs, two filters, the median pair", statistics.median(two.values()), "ms", "limit: 100")
    report.row("/jobs, two filters, the slowest", two[slowest], "ms", "limit: 100", which=slowest)
    report.row("… the largest page, not compressed", largest / 1000, "kB", "limit: 50")
    took, size = timed(lambda views: fleet.page(PageRequest(views, health=health), frame))
    report.row("/", took, "ms", "limit: 100", kB=size / 1000)
    took, size = timed(lambda views: events.page(PageRequest(views, {"host": "host-03"}), frame))
    report.row("/events of a host", took, "ms", "limit: 100", kB=size / 1000)
    first = fleet.page(PageRequest(Views(reader, service), health=health), frame)
    report.row("… the first page, compressed", len(gzip.compress(first.encode())) / 1000, "kB")
    reader.close()
    queue.close()


def main() -> None:
    parser = arguments(__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--jobs", type=int, default=100_000)
    args = parser.parse_args()
    report = Report("the dashboard", args.json)
    with workplace() as folder:
        fill(folder / "jobs.db", args.jobs)
        mixed(folder / "jobs.db")
        measure(report, folder)
    report.end()


if __name__ == "__main__":
    main()

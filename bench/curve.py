"""The time of a job's curve over HTTP, by the number of epochs that lie behind it.

    python bench/curve.py [--epochs 60,20000,100000] [--count 10] [--json]

100,000 epochs are five attempts that each went on where the one before was interrupted, as long as an attempt can be.
"""

from __future__ import annotations

import json
import math
from contextlib import closing
from pathlib import Path

from receivers import Caller, Report, arguments, fill, latencies_ms, p50, p99, receiver, workplace

from training.fleet.database.sqlite import SqliteDatabase
from training.fleet.queue.curves import POINTS_KEPT


def with_epochs(path: Path, epochs: int) -> str:
    """Give a job of the database at ``path`` a curve of so many epochs; returns the job's id."""
    with closing(SqliteDatabase(path, synchronous="OFF")) as database, database.transaction():
        job_id = str(database.connection.execute("SELECT job_id FROM jobs ORDER BY seq LIMIT 1").fetchone()[0])
        for epoch in range(epochs):
            attempt = epoch // POINTS_KEPT + 1
            if epoch % POINTS_KEPT == 0:
                key = {"job_id": job_id, "attempt": attempt, "claim_id": f"claim-{attempt}", "generation": 1}
                nobody = dict.fromkeys(["instance_id", "session_id", "slot", "request_id"])
                database.one("add_attempt", **key, **nobody, granted="{}", booked="{}", host="pi", now=0.0)
                database.run(
                    "end_attempt",
                    **dict.fromkeys(["error", "exit_code", "artifact_id", "record", "lived_s", "out_of_memory"]),
                    **dict.fromkeys(["data", "code", "commit"]),
                    claim_id=f"claim-{attempt}",
                    reason="interrupted",
                    now=1.0,
                )
            figures = {"loss": 1 / (epoch + 1) + math.sin(epoch), "metric": math.cos(epoch), "seconds": float(epoch)}
            database.run("add_point", job_id=job_id, attempt=attempt, epoch=epoch, line=epoch, **figures)
    return job_id


def main() -> None:
    parser = arguments(__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--epochs", default="60,20000,100000")
    parser.add_argument("--count", type=int, default=10)
    args = parser.parse_args()
    report = Report("curve", args.json)
    with workplace() as folder:
        for epochs in map(int, args.epochs.split(",")):
            place = folder / str(epochs)
            place.mkdir()
            fill(place / "jobs.db", 1000)
            job_id = with_epochs(place / "jobs.db", epochs)
            with receiver(place) as served:
                answers: list[bytes] = []

                def look(call: Caller, _: int, job_id: str = job_id, answers: list[bytes] = answers) -> None:
                    answers.append(json.dumps(call("GET", f"/v1/job/{job_id}/curve")).encode())

                latencies_ms(served.port, look, 1)
                before = served.cpu_s()
                found = latencies_ms(served.port, look, args.count)
                used = (served.cpu_s() - before) / args.count * 1000
                kib = len(answers[-1]) / 1024
                report.row(f"p50, {epochs:,} epochs", p50(found), "ms", "bar: 500 points", p99=p99(found), kib=kib)
                report.row("… processor time of the receiver for one answer", used, "ms")
    report.end()


if __name__ == "__main__":
    main()

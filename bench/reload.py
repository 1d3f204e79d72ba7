"""A plan of 100,000 jobs taken over by a running receiver, beside a plain insertion of the same rows.

    python bench/reload.py [--entries 100] [--of 1000] [--json]

Each entry of the plan has a matrix. The plan is new, then unchanged, then edited in one entry and in all, then gone;
a worker claims jobs all the while. The peer is what nothing could do without: TOML parsed by tomllib, and the rows
put into the same tables without checksums, by one statement and in one transaction.
"""

from __future__ import annotations

import os
import threading
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

from claim import WAIT_S
from receivers import CAPABILITY, Caller, Report, Served, arguments, receiver, workplace

from training.fleet.client.client import FleetClient
from training.fleet.database.sqlite import SqliteDatabase
from training.fleet.wire.constants import TOKEN_VARIABLE

TOKEN = "of-the-bench-and-nobody-else"
EMPTY = "schema_version = 1\njobs = []\n"


def plan(entries: int, of: int, *, edited: int = 0) -> str:
    """Write a plan of so many matrices of so many seeds; some entries ``edited`` in what trains nothing again."""
    seeds = ", ".join(str(n) for n in range(of))
    return EMPTY.replace("jobs = []\n", "") + "".join(
        f'[[jobs]]\nname = "job-{n}"\nmodel = "gbt"\nmode = "oracle"\nhyper = {{ max_depth = {2 + n % 8}, '
        f"n_estimators = {100 + n} }}\npriority = {int(n < edited)}\nmatrix = {{ seed = [{seeds}] }}\n"
        for n in range(entries)
    )


def plainly(text: str, filled: Path, folder: Path) -> float:
    """Seconds to parse the plan and to write its rows and their events into empty tables."""
    with_rows = SqliteDatabase(filled, read_only=True)
    found = {}
    for table in ("jobs", "events"):
        rows = with_rows.connection.execute(f"SELECT * FROM {table} ORDER BY seq").fetchall()
        found[table] = [tuple(row) for row in rows]
    classes = [tuple(row) for row in with_rows.connection.execute("SELECT * FROM classes")]
    with_rows.close()
    empty = SqliteDatabase(folder / "plain.db")
    for table in found:
        empty.connection.execute(f"DROP TRIGGER temp.seal_{table}_inserted")
    empty.connection.executemany("INSERT INTO classes VALUES (?, ?, ?)", classes)
    begun = time.perf_counter()
    tomllib.loads(text)
    with empty.transaction():
        for table, rows in found.items():
            empty.connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
    took = time.perf_counter() - begun
    empty.close()
    return took


class Asking:
    """A worker that claims all the time while something else is done: how long it waited at most."""

    def __init__(self, served: Served) -> None:
        self._served, self._stop, self.longest_s = served, threading.Event(), 0.0
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> Asking:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _ask(self) -> None:
        call = Caller(self._served.port)
        while not self._stop.wait(0.02):
            begun = time.perf_counter()
            grant = call("POST", "/v1/job/claim", {"host_id": "bench", "capability": CAPABILITY, "wait_s": WAIT_S})
            self.longest_s = max(self.longest_s, time.perf_counter() - begun)
            if grant["job_id"] is not None:  # handed back, as a host that held hundreds of jobs would claim slowly
                given_back = {"claim_id": grant["claim_id"], "error": "worker shutdown"}
                call("POST", f"/v1/job/{grant['job_id']}/fail", given_back)


def reload(served: Served) -> Callable[[str], tuple[float, float, float]]:
    """Return what takes a plan over: its seconds, the receiver's CPU seconds, and the longest wait of a claim."""
    client = FleetClient(f"http://127.0.0.1:{served.port}", "operator", tries=1, operator_token=TOKEN)

    def take(text: str) -> tuple[float, float, float]:
        (served.folder / "manifest.toml").write_text(text)
        cpu, begun = served.cpu_s(), time.perf_counter()
        with Asking(served) as asking:
            client.reload()
            took = time.perf_counter() - begun
        return took, served.cpu_s() - cpu, asking.longest_s

    return take


def main() -> None:
    parser = arguments(__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--entries", type=int, default=100)
    parser.add_argument("--of", type=int, default=1000, help="jobs of each")
    args = parser.parse_args()
    report = Report("reload", args.json)
    whole = plan(args.entries, args.of)
    report.note(f"a plan of {args.entries * args.of:,} jobs, {len(whole) / 1024:.0f} KiB")
    some = 'name = "other"\nmodel = "gbt"\nmode = "oracle"\n'  # for the worker that asks meanwhile
    others = f"schema_version = 1\n[[jobs]]\n{some}matrix = {{ seed = [{', '.join(str(n) for n in range(1000))}] }}\n"
    os.environ[TOKEN_VARIABLE] = TOKEN
    with workplace() as folder, receiver(folder, plan=others) as served:
        take, plain_s = reload(served), 0.0
        steps = {
            "new": whole,
            "unchanged": whole,
            "one entry edited": plan(args.entries, args.of, edited=1),
            "all edited": plan(args.entries, args.of, edited=args.entries),
            "gone": EMPTY,
        }
        for what, text in steps.items():
            took, cpu, longest = take(text)
            plain_s = plain_s or plainly(whole, folder / "jobs.db", folder)
            more = {"cpu": cpu, "longest_claim": longest, "plainly": plain_s, "ratio": took / plain_s}
            report.row(what, took, "s", "bar: 10 s", **more, rss=served.rss_mib())
    report.end()


if __name__ == "__main__":
    main()

"""The time of a plan of 100 jobs, and of an explanation, in a receiver that knows 100,000 jobs.

    python bench/plan.py [--jobs 100000] [--count 50] [--json]

Over HTTP, with the whole product behind it: the bar is 100 ms in the receiver, and the way there and back counts, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from receivers import CAPABILITY, Caller, Report, arguments, fill, latencies_ms, p50, p99, receiver, workplace

JOBS = 100
HOSTS = 20
LONG = 20  # matrices of a thousand jobs each: the longest plan


def a_plan(jobs: int) -> list[dict[str, object]]:
    """Jobs as a file's check leaves them."""
    common = {"model": "gbt", "mode": "oracle", "priority": 5, "min_ram_gib": 1.0}
    return [{"name": f"job-{n}", "seed": n, "hyper": {"max_depth": 4, "lr": 0.1}, **common} for n in range(jobs)]


def as_text(jobs: list[dict[str, object]]) -> str:
    entry = '[[jobs]]\nname = "{name}"\nmodel = "gbt"\nmode = "oracle"\nseed = {seed}\npriority = 4\nmin_ram_gib = 1\n'
    entry += "hyper.max_depth = 4\nhyper.lr = 0.1\n"
    return "".join(entry.format(**job) for job in jobs)


def measure(report: Report, place: Path, count: int, plan: str, words: str) -> None:
    """Time the three calls: a given plan, the receiver's own, an explanation."""
    given = {"jobs": a_plan(JOBS)}
    with receiver(place, plan=plan) as served:
        call = Caller(served.port)
        for n in range(HOSTS):
            call("POST", "/v1/job/claim", {"host_id": f"host-{n}", "capability": CAPABILITY})
        answer = call("POST", "/v1/manifest/plan", given)
        changes = {key: answer["reload"][key] for key in ("inserted", "updated", "unchanged", "removed")}
        report.note(f"{words}: {changes}")
        waiting = call("GET", "/v1/jobs?status=pending&limit=1")["jobs"][0]["job_id"]
        for name, method, path, body in (
            (f"plan of {JOBS} jobs", "POST", "/v1/manifest/plan", given),
            ("the receiver's own manifest", "GET", "/v1/manifest/plan", None),
            ("explain", "GET", f"/v1/job/{waiting}/explain", None),
        ):
            before = served.cpu_s()

            def ask(call: Caller, _: int, request: tuple[str, str, Any] = (method, path, body)) -> object:
                return call(*request)

            times = latencies_ms(served.port, ask, count)
            cpu_ms = (served.cpu_s() - before) / count * 1e3
            bar = "" if name.startswith("the receiver's") and "20,000" in words else "bar: 100 ms"
            report.row(f"{name}, {words}", p50(times), "ms", bar, p99=p99(times), cpu_ms=cpu_ms)


def main() -> None:
    parser = arguments(__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--count", type=int, default=50)
    args = parser.parse_args()
    report = Report("plan", args.json)
    with workplace() as folder:
        fill(folder / "jobs.db", args.jobs)
        half = "schema_version = 1\n" + as_text(a_plan(JOBS)[: JOBS // 2])
        measure(report, folder, args.count, half, f"{args.jobs:,} jobs known")
        entries = (f'[[jobs]]\nname="m{n}"\nmodel="gbt"\nmode="oracle"\nhyper.lr=0.{n + 1:02}\n' for n in range(LONG))
        long = "".join(f"{entry}matrix.seed = {list(range(1000))}\n" for entry in entries)
        measure(report, folder, max(3, args.count // 10), long, f"{args.jobs:,} known and 20,000 in the plan")
    report.end()


if __name__ == "__main__":
    main()

"""The time of a claim over HTTP by the number of waiting jobs; and the jobs that a receiver can manage.

    python bench/claim.py [--sizes 1000,100000,1000000] [--seconds 3] [--no-jobd] [--json]

The whole product is measured: the installed receiver in a process of its own, FULL durability, events, validation. The
peer and the other half of every ratio run in the same minute, in turn (A B A B).
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from receivers import (
    CAPABILITY,
    Caller,
    Report,
    Served,
    arguments,
    fill,
    jobd,
    latencies_ms,
    p50,
    p99,
    rate,
    receiver,
    workplace,
)

WAIT_S = 20.0  # while the receiver works out which host trains what


def claim(call: Caller, client: int) -> None:
    body = {"host_id": f"bench-{client}", "capability": CAPABILITY, "wait_s": WAIT_S}
    answer = call("POST", "/v1/job/claim", body)
    if answer["job_id"] is None:
        raise SystemExit(f"no job left: {answer['reason']}")


def cycle(call: Caller, client: int) -> None:
    """Claim, heartbeat, end. The end is a failure that is not retried: as many writes as a completion, no artifact."""
    body = {"host_id": f"bench-{client}", "capability": CAPABILITY, "wait_s": WAIT_S}
    grant = call("POST", "/v1/job/claim", body)
    who = {"claim_id": grant["claim_id"]}
    job = f"/v1/job/{grant['job_id']}"
    call("POST", f"{job}/heartbeat", {**who, "seq": 1, "progress": {"epoch": 1}})
    call("POST", f"{job}/fail", {**who, "error": "bench", "exit_code": 2})


def jobd_claim(call: Caller, client: int) -> int:
    """A job of the peer's; it answers nothing as well when another client was quicker, so ask until there is one."""
    host = {"free_vram_gb": 0, "unregistered_vram_gb": 0, "free_ram_gb": 12, "idle_cpus": 4}
    for _ in range(100):
        job = call("POST", "/next-job", {"host": f"bench-{client}", **host})
        if job is not None:
            return int(job["id"])
    raise SystemExit("jobd has no job left")


def jobd_cycle(call: Caller, client: int) -> None:
    job = jobd_claim(call, client)
    call("POST", f"/jobs/{job}/started")
    call("POST", f"/jobs/{job}/complete", {"exit_code": 0})


def sizes(report: Report, folder: Path, pending: list[int], count: int) -> None:
    """The same claim with few and with many jobs waiting, and behind many that the host may not run."""
    report.note("claim, one client, kept-alive connection, 1.5 KB capability")
    settings = [(n, 0, 1) for n in pending] + [(1000, 100_000, 1), (1000, 100_000, 20)]
    places: dict[tuple[int, int, int], Path] = {}
    for waiting, blocked, classes in settings:
        place = folder / f"{waiting}-{blocked}-{classes}"
        place.mkdir()
        fill(place / "jobs.db", waiting, blocked=blocked, classes=classes)
        places[(waiting, blocked, classes)] = place
    times: dict[tuple[int, int, int], list[float]] = {key: [] for key in places}
    for _ in range(3):  # in turn, so that a busy minute of the machine meets all of them
        for key, place in places.items():
            with receiver(place) as served:
                latencies_ms(served.port, claim, 10)
                times[key] += latencies_ms(served.port, claim, count)
    base = p50(times[settings[0]])
    for (waiting, blocked, classes), found in times.items():
        words, bar = f"{waiting:,} pending", "bar: 1.5 ms, 1.3 × the first"
        if blocked:
            words += f" behind {blocked:,} that do not fit ({classes} kinds)"
            bar = "bar: 1.5 × the first"
        report.row(f"p50, {words}", p50(found), "ms", bar, p99=p99(found), ratio=p50(found) / base)


def against_jobd(report: Report, folder: Path, seconds: float) -> None:
    """Cycles a second, in turn with the peer at its best, a short queue."""
    report.note("claim + heartbeat + end, cycles a second (ours at 100,000 pending, jobd at 1,000)")
    place = folder / "cycles"
    place.mkdir()
    fill(place / "jobs.db", 100_000)
    for clients in (1, 8):
        ours: list[tuple[float, float]] = []
        theirs: list[tuple[float, float]] = []
        for turn in range(3):
            with receiver(place) as served:
                ours.append(rate(served, cycle, clients, seconds))
            with jobd(folder / f"jobd-{clients}-{turn}", 1000) as served:
                theirs.append(rate(served, jobd_cycle, clients, seconds))
        _compare(report, clients, ours, theirs)
    with jobd(folder / "jobd-claim", 1000) as served:
        found = latencies_ms(served.port, jobd_claim, 50)
    report.row("jobd: p50 of a claim, 1,000 pending", p50(found), "ms", "", p99=p99(found))


def _compare(report: Report, clients: int, ours: list[tuple[float, float]], theirs: list[tuple[float, float]]) -> None:
    mine, other = (statistics.median(r for r, _ in each) for each in (ours, theirs))
    my_cpu, other_cpu = (statistics.median(c for _, c in each) for each in (ours, theirs))
    bar = "bar: 12 × jobd" if clients == 1 else "bar: 30 × jobd"
    report.row(
        f"cycles, {clients} client{'s' * (clients > 1)}",
        mine,
        "1/s",
        bar,
        jobd=other,
        ratio=mine / other,
    )
    report.row(
        f"coordinator CPU a cycle, {clients} client{'s' * (clients > 1)}",
        my_cpu,
        "ms",
        "bar: 1/20 of jobd",
        jobd=other_cpu,
        ratio=other_cpu / max(my_cpu, 1e-9),
    )


def durability(report: Report, folder: Path, seconds: float) -> None:
    """Compare the cost of FULL with NORMAL when calls come together."""
    report.note("claims a second, 64 connections")
    rates: dict[str, list[float]] = {"FULL": [], "NORMAL": []}
    place = folder / "durable"
    place.mkdir()
    fill(place / "jobs.db", 200_000)
    for _ in range(3):
        for mode, found in rates.items():
            with receiver(place, synchronous=mode) as served:
                found.append(rate(served, claim, 64, seconds)[0])
    full, normal = (statistics.median(rates[mode]) for mode in ("FULL", "NORMAL"))
    report.row("FULL", full, "1/s", "bar: 0.5 × NORMAL", normal=normal, ratio=full / normal)


def start(report: Report, folder: Path) -> None:
    report.note("from the start of the process to its first answer, and to its first grant")
    place = folder / "start"
    place.mkdir()
    fill(place / "jobs.db", 100_000)
    found: list[Served] = []
    for _ in range(5):
        with receiver(place) as served:
            found.append(served)
    report.row("100,000 jobs", p50([s.started_s for s in found]), "s", "bar: 1 s")
    place = folder / "plan"
    place.mkdir()
    times = [first_grant_s(place, turn) for turn in range(6)]
    words = "a plan of 17,000 jobs, nearly the longest file, as it was taken over before"
    report.row(words, p50(times[1:]), "s", "bar: 1 s", new_plan=times[0])


def first_grant_s(place: Path, turn: int) -> float:
    """Start a receiver over a long plan, ask it for a job, stop it."""
    jobs = (f'name="j{n}"\nmodel="gbt"\nmode="oracle"\nseed={n}\n' for n in range(17_000))
    plan = "schema_version = 1\n" + "".join(f"[[jobs]]\n{job}" for job in jobs)
    begun = time.perf_counter()
    with receiver(place, plan=plan) as served:
        claim(Caller(served.port), turn)
        return time.perf_counter() - begun


def main() -> None:
    parser = arguments(__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--sizes", default="1000,100000,1000000")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--count", type=int, default=200, help="claims in each of three turns")
    args = parser.parse_args()
    report = Report("claim", args.json)
    with workplace() as folder:
        sizes(report, folder, [int(n) for n in args.sizes.split(",")], args.count)
        durability(report, folder, args.seconds)
        start(report, folder)
        if not args.no_jobd:
            against_jobd(report, folder, args.seconds)
    report.end()


if __name__ == "__main__":
    main()

"""The cost of the receiver: memory at rest, with a million jobs and during a large upload, and its idle CPU.

python bench/receiver_memory.py [--pending 1000000] [--mib 1024] [--idle-s 30] [--no-jobd] [--json]
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

from claim import claim
from receivers import CAPABILITY, Report, Served, arguments, fill, jobd, latencies_ms, receiver, workplace
from upload import make_bundle, upload

from training.fleet.client.client import ClientError, FleetClient

SETTLED_S = 3.0


def at_rest(report: Report, folder: Path, idle_s: float) -> float:
    """Resident memory after a start and a few answers, and CPU with one worker that waits for work."""
    with receiver(folder) as served:
        report.row("receiver at rest after its first start", _settled_mib(served), "MiB", "bar: 44")
    with receiver(folder) as served:
        rest = _settled_mib(served)
        report.row("receiver at rest", rest, "MiB", "bar: 44")
        client = FleetClient(f"http://127.0.0.1:{served.port}", "bench-0", tries=1)
        stop = threading.Event()

        def wait_for_work() -> None:
            while not stop.is_set():
                try:
                    client.ask(CAPABILITY, wait_s=30)
                except ClientError:
                    return

        thread = threading.Thread(target=wait_for_work)
        thread.start()
        before, begun = served.cpu_s(), time.perf_counter()
        time.sleep(idle_s)
        share = (served.cpu_s() - before) / (time.perf_counter() - begun) * 100
        stop.set()
    thread.join()
    client.close()
    report.row("idle CPU, one worker waiting", share, "% of core", "bar: 0.3")
    return rest


def _settled_mib(served: Served) -> float:
    client = FleetClient(f"http://127.0.0.1:{served.port}", "bench-0", tries=1)
    for _ in range(20):
        client.health()
    client.close()
    time.sleep(SETTLED_S)
    return served.rss_mib()


def with_many(report: Report, folder: Path, pending: int, rest: float) -> None:
    fill(folder / "jobs.db", pending)
    with receiver(folder) as served:
        latencies_ms(served.port, claim, 500)
        client = FleetClient(f"http://127.0.0.1:{served.port}", "bench-0", tries=1)
        for _ in range(5):
            client.jobs(limit=1000)
        client.close()
        report.row(
            f"… {pending:,} pending, 500 claims, 5 pages",
            served.rss_mib() - rest,
            "MiB more",
            "bar: 10",
        )


def during_upload(report: Report, folder: Path, mib: int, rest: float) -> None:
    fill(folder / "jobs.db", 10)
    bundle = folder / "bundle.tar.zst"
    make_bundle(bundle, mib)
    with receiver(folder) as served:
        served.forget_peak()
        upload(served, bundle)
        report.row(f"… peak during an upload of {mib} MiB", served.peak_mib() - rest, "MiB more", "bar: 16")


def main() -> None:
    parser = arguments(__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--pending", type=int, default=1_000_000)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--idle-s", type=float, default=30.0)
    args = parser.parse_args()
    report = Report("receiver's memory", args.json)
    with workplace() as folder:
        for name in ("rest", "upload", "many"):
            (folder / name).mkdir()
        rest = at_rest(report, folder / "rest", args.idle_s)
        during_upload(report, folder / "upload", args.mib, rest)
        with_many(report, folder / "many", args.pending, rest)
        if not args.no_jobd:
            with jobd(folder / "jobd", 100) as served:
                report.row(
                    "jobd's broker at rest, 100 jobs",
                    served.rss_mib(),
                    "MiB",
                    "",
                    ratio=rest / served.rss_mib(),
                )
    report.end()


if __name__ == "__main__":
    main()

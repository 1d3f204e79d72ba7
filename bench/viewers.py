"""The cost of being looked at: memory and processor time of the receiver while browsers follow its pages.

    python bench/viewers.py [--browsers 5] [--running 20] [--seconds 60] [--json]

Each browser follows two pages: the fleet's, and that of a job. Each running job sends a heartbeat with its progress
every half minute, as its worker does.
"""

from __future__ import annotations

import http.client
import threading
import time
from contextlib import ExitStack

from claim import WAIT_S
from receivers import CAPABILITY, Caller, Report, Served, arguments, fill, receiver, workplace

PAGES = ("/", "/jobs", "/jobs?status=running&sort=name", "/events", "/login", "/static/none.js")
BEAT_S = 30.0


class Follower(threading.Thread):
    """A tab: asks for its page every two seconds, and shows the tag of what it has."""

    def __init__(self, port: int, path: str, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.port, self.path, self.stop = port, path, stop
        self.made = 0

    def run(self) -> None:
        line, tag = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30), ""
        while not self.stop.wait(2.0):
            line.request("GET", self.path, headers={"Accept-Encoding": "gzip", "If-None-Match": tag})
            answer = line.getresponse()
            answer.read()
            assert answer.status in (200, 304), answer.status
            self.made += answer.status == 200
            tag = answer.headers["ETag"]
        line.close()


def beating(port: int, jobs: list[tuple[str, str, str]], stop: threading.Event) -> None:
    """Send heartbeats for all jobs, spread over time."""
    call, seq = Caller(port), 0
    while not stop.is_set():
        seq += 1
        for job_id, claim_id, host in jobs:
            progress = {"event": "epoch", "epoch": seq, "epochs": 1000, "eta_s": 600.0, "loss": 1 / seq}
            body = {"host_id": host, "claim_id": claim_id, "seq": seq, "progress": progress}
            call("POST", f"/v1/job/{job_id}/heartbeat", body)
            stop.wait(BEAT_S / len(jobs))
    call.close()


def share(served: Served, seconds: float) -> float:
    """Return the share of a core that the receiver uses, in percent."""
    before, begun = served.cpu_s(), time.perf_counter()
    time.sleep(seconds)
    return (served.cpu_s() - before) / (time.perf_counter() - begun) * 100


def main() -> None:
    parser = arguments(__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--browsers", type=int, default=5)
    parser.add_argument("--running", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args()
    report = Report("viewers", args.json)
    with ExitStack() as stack:
        folder = stack.enter_context(workplace())
        fill(folder / "jobs.db", args.jobs)
        served = stack.enter_context(receiver(folder))
        call, stop, jobs = Caller(served.port), threading.Event(), []
        for number in range(args.running):
            host = f"bench-{number}"
            body = {"host_id": host, "capability": CAPABILITY | {"hostname": host}, "wait_s": WAIT_S}
            granted = call("POST", "/v1/job/claim", body)
            jobs.append((granted["job_id"], granted["claim_id"], host))
        beats = threading.Thread(target=beating, args=(served.port, jobs, stop))
        beats.start()
        time.sleep(12)
        report.row(f"{args.running} jobs run, nobody looks", served.rss_mib(), "MiB")
        report.row("…", share(served, args.seconds), "% of core")
        for path in (*PAGES, f"/jobs/{jobs[0][0]}", f"/compare?jobs={jobs[0][0]},{jobs[1][0]}"):
            line = http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)
            line.request("GET", path, headers={"Accept": "text/html", "Accept-Encoding": "gzip"})
            line.getresponse().read(1)
            line.close()
        report.row("after a look at all pages", served.rss_mib(), "MiB", "bar: 56")
        tabs = [
            Follower(served.port, path, stop) for n in range(args.browsers) for path in ("/", f"/jobs/{jobs[n][0]}")
        ]
        for tab in tabs:
            tab.start()
        time.sleep(12)
        used = share(served, args.seconds)
        report.row(f"{len(tabs)} tabs follow", served.rss_mib(), "MiB", "bar: 56")
        report.row("…", used, "% of core", made=sum(each.made for each in tabs))
        stop.set()
        beats.join()
        call.close()
    report.end()


if __name__ == "__main__":
    main()

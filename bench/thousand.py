"""A thousand workers of one receiver: what they cost it, and how soon new jobs reach those that wait.

    python bench/thousand.py [--hosts 1000] [--seconds 60] [--kinds 1] [--alike 1.2] [--json]

Every worker is one kept-alive connection that says what a real one says: claims that wait for half a minute, and for
the half that trains a heartbeat each half minute, with progress. All of them arrive at once. One plan gives half of
them a job, another one the other half. No trainer runs, and all share one process, so that the receiver has the other
core. The hosts calibrate unlike by a factor of ``--alike`` at most, each on its own: among very unlike ones some are
rightly told to leave a job to another.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from receivers import CAPABILITY, Report, Served, arguments, p50, p99, receiver, workplace

from training.fleet.wire.constants import TOKEN_VARIABLE, WAIT_S_MAX

TOKEN = "of-the-bench-and-nobody-else"
BEAT_S = 30.0  # a worker's own, as its settings have it
_LOOK_S = 0.01
LONG_S = 7200.0  # what a job is said to take


class Line:
    """A kept-alive connection: one request at a time, with as little in between as possible."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._ends: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: Any, *headers: str) -> Any:
        if self._ends is None:
            self._ends = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._ends
        content = json.dumps(body).encode()
        head = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", *headers]
        writer.write("\r\n".join([*head, f"Content-Length: {len(content)}", "", ""]).encode() + content)
        status, length = int((await reader.readline()).split()[1]), 0
        while (line := await reader.readline()) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        text = await reader.readexactly(length)
        if status >= 300:
            raise SystemExit(f"{path}: {status} {text[:300]!r}")
        return json.loads(text)

    def close(self) -> None:
        if self._ends is not None:
            self._ends[1].close()


@dataclass
class Fleet:
    """The workers and what they saw."""

    served: Served
    granted: dict[int, float] = field(default_factory=dict)  # host → when it got its job
    answered: set[int] = field(default_factory=set)  # hosts that were answered, or wait, since the beginning
    said: Counter[str] = field(default_factory=Counter)  # answers without a job
    calls: int = 0

    async def work(self, number: int, capability: dict[str, Any], chance: random.Random) -> None:
        """Be a worker: ask until there is a job, then train it for ever."""
        line, name, echo, asked = Line(self.served.port), f"bench-{number}", "", 0
        who = {"host_id": name, "session_id": f"1-{name}"}
        try:
            while True:
                asked += 1
                ask = {"request_id": f"{name}-{asked}", "echo": echo, "wait_s": WAIT_S_MAX}
                self.calls += 1
                capability["ram_available_gib"] = 10.0 + chance.random()  # as on a real machine
                told = await line.post("/v1/job/claim", {**who, **ask, "instance_id": name, "capability": capability})
                echo = told["echo"] or echo
                if told["job_id"] is not None:
                    self.granted[number] = time.perf_counter()
                    break
                self.said[told["reason"].split(";")[0][:60]] += 1
                if told["retry_after_s"] is not None:
                    await asyncio.sleep(min(told["retry_after_s"], WAIT_S_MAX) if told["ask_again"] else 0.0)
            beat = {**who, "claim_id": told["claim_id"]}
            begun, seq = time.perf_counter(), 0
            await asyncio.sleep(chance.uniform(0.0, BEAT_S))
            while True:
                seq += 1
                self.calls += 1
                took = time.perf_counter() - begun
                progress = {"event": "epoch", "epoch": seq, "epochs": 1000, "eta_s": LONG_S - took, "loss": 1 / seq}
                path = f"/v1/job/{told['job_id']}/heartbeat"
                kept = await line.post(path, {**beat, "echo": echo, "seq": seq, "progress": progress})
                echo = kept["echo"] or echo
                await asyncio.sleep(BEAT_S)
        finally:
            line.close()


def plan(jobs: int, kinds: int) -> str:
    """Write a plan of so many jobs of so many sizes."""
    text = "schema_version = 1\n" + ("" if jobs else "jobs = []\n")
    for kind in range(kinds if jobs else 0):
        seeds = ", ".join(str(n) for n in range(kind, jobs, kinds))
        text += f'[[jobs]]\nname = "job-{kind}"\nmodel = "gbt"\nmode = "oracle"\n'
        text += f"hyper = {{ n_estimators = {round(100 * 1.3**kind)} }}\nmatrix = {{ seed = [{seeds}] }}\n"
    return text


async def until(done: Callable[[], bool], most_s: float) -> bool:
    """Look every now and then if it is ``done``, for so long at most."""
    for _ in range(int(most_s / _LOOK_S)):
        if done():
            return True
        await asyncio.sleep(_LOOK_S)
    return done()


@contextlib.contextmanager
def cpu_of(served: Served) -> Iterator[list[float]]:
    """Add, at the end, the receiver's processor time and the time that has passed."""
    found: list[float] = []
    cpu, begun = served.cpu_s(), time.perf_counter()
    yield found
    found += [served.cpu_s() - cpu, time.perf_counter() - begun]


async def measure(report: Report, served: Served, hosts: int, kinds: int, alike: float, seconds: float) -> None:
    fleet, chance = Fleet(served), random.Random(0)
    half = hosts // 2

    async def arrive() -> list[asyncio.Task[None]]:
        tasks = []
        for number in range(hosts):
            faster = alike ** chance.random()
            speeds = {"gflops": 100.0 * faster, "steps": 1000.0 * faster, "branches": 1e6 * faster}
            capability = {**CAPABILITY, "cpu_cores": 8, "hostname": f"bench-{number}", "calibration": speeds}
            tasks.append(asyncio.create_task(fleet.work(number, capability, random.Random(number))))
            await asyncio.sleep(0)
        return tasks

    def waiting() -> bool:
        return any(task.done() for task in tasks)

    async def jobs_for(count: int, words: str, bar: str) -> None:
        """Enter a plan; measure until so many hosts have a job."""
        fleet.said.clear()
        (served.folder / "manifest.toml").write_text(plan(count, kinds))
        with cpu_of(served) as used:
            begun = time.perf_counter()
            operator = Line(served.port)
            await operator.post("/v1/manifest/reload", {}, f"Authorization: Bearer {TOKEN}")
            operator.close()
            read_s = time.perf_counter() - begun
            all_of_them = await until(lambda: len(fleet.granted) >= count or waiting(), 120.0)
        times = sorted(at - begun for at in fleet.granted.values() if at > begun) or [float("nan")]
        if not all_of_them:
            report.note(f"only {len(fleet.granted)} of {count} came to a host")
        report.row(
            words, times[-1], "s", bar, first=times[0], p50=p50(times), p99=p99(times), reload=read_s, cpu=used[0]
        )

    with cpu_of(served) as used:
        tasks = await arrive()
        await until(lambda: fleet_is_quiet(served) or waiting(), 300.0)
    report.row(f"{hosts:,} hosts arrive, CPU", used[0], "s", took=used[1])
    await jobs_for(half, f"{half} new jobs reach {half} of {hosts:,} waiting hosts", "")
    await asyncio.sleep(BEAT_S)
    calls = fleet.calls
    with cpu_of(served) as used:
        await asyncio.sleep(seconds)
    share = used[0] / used[1] * 100
    more = {"calls_a_second": (fleet.calls - calls) / used[1], "rss": served.rss_mib()}
    report.row(f"{half} train, {hosts - half} wait", share, "% of core", "bar: 10 %", **more)
    await jobs_for(hosts, f"{hosts - half} new jobs reach {hosts - half} waiting hosts", "bar: 1 s")
    for task in tasks:
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(ended, BaseException) and not isinstance(ended, asyncio.CancelledError):
            raise ended


def fleet_is_quiet(served: Served, last: list[float] = [0.0, 0.0]) -> bool:  # noqa: B006 - its memory
    """Return True when the receiver has used hardly any time for a while."""
    now = time.perf_counter()
    if now - last[1] < 1.0:
        return False
    before, last[0], last[1] = last[0], served.cpu_s(), now
    return before > 0 and last[0] - before < 0.15


def main() -> None:
    parser = arguments(__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--kinds", type=int, default=1, help="of jobs in the plan")
    parser.add_argument("--alike", type=float, default=1.05, help="the fastest host : the slowest")
    args = parser.parse_args()
    report = Report("thousand", args.json)
    os.environ[TOKEN_VARIABLE] = TOKEN
    with workplace() as folder, receiver(folder, plan=plan(0, 0)) as served:
        asyncio.run(measure(report, served, args.hosts, args.kinds, args.alike, args.seconds))
    report.end()


if __name__ == "__main__":
    main()

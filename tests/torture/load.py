"""Slow clients beside a good one, and many workers at once, against the receiver as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import threading
import time
from collections import Counter
from pathlib import Path

from process_fleet import TOKEN
from processes import nap

from torture.fleet import Fleet
from training.fleet.client.answers import ClientError
from training.fleet.client.client import FleetClient

CUT_WITHIN_S = 110.0  # a header has 10 s, a body 10 s to be answered and 60 s more to hang up; then a busy machine
PAUSE_S = 0.02


def p99_ms(seconds: list[float]) -> int:
    """The 99th percentile in whole milliseconds."""
    ordered = sorted(seconds)
    return round(1000 * ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))])


def _raise_limit() -> None:
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192) if hard > 0 else 8192, hard))


def slow_clients(count: int, to_the_end: bool) -> Counter[str]:
    """Half of them stop within the header, half within the body; all are refused while a good client is served.

    ``to_the_end`` waits until the connections are closed as well, which those who were answered have a minute for.
    """
    _raise_limit()
    with Fleet() as fleet:
        fleet.start_receiver()
        times: list[float] = []
        over = threading.Event()
        errors: list[str] = []

        def good() -> None:
            client = FleetClient(fleet.url, "good", tries=1, timeout_s=60.0)
            while not over.is_set():
                begun = time.monotonic()
                try:
                    client.ask({"cpu_cores": 1}, wait_s=0)
                except ClientError as error:
                    errors.append(str(error))
                times.append(time.monotonic() - begun)
                nap(PAUSE_S)
            client.close()

        thread = threading.Thread(target=good)
        thread.start()
        try:
            cut = asyncio.run(_all_slow(fleet.port, count, to_the_end))
        finally:
            over.set()
            thread.join()
        assert not errors, f"the good client was not served: {errors[:3]}"
        assert cut == count, f"{count - cut} of {count} slow clients were still there after {CUT_WITHIN_S} s"
    return Counter(slow_clients=cut, good_claims=len(times), claim_p99_ms_max=p99_ms(times))


async def _all_slow(port: int, count: int, to_the_end: bool) -> int:
    cut = await asyncio.gather(*(_slow(port, to_the_end, body=bool(n % 2)) for n in range(count)))
    return sum(cut)


async def _slow(port: int, to_the_end: bool, *, body: bool) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = b"POST /v1/job/claim HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    try:
        writer.write(head + (b'Content-Length: 500\r\n\r\n{"host_id": "' if body else b"X-Slow: "))
        async with asyncio.timeout(CUT_WITHIN_S):
            refusal = await reader.read(4096)
            while refusal and to_the_end and await reader.read(4096):
                pass
        assert b" 408 " in refusal, refusal
        return True
    except TimeoutError:
        return False
    except OSError:
        return True
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


class Crowd:
    """Workers as threads: claim, heartbeats, a small bundle, complete; then the job is wanted again."""

    def __init__(self, fleet: Fleet, folder: Path, seconds: float) -> None:
        self.fleet = fleet
        self.bundle = folder / "bundle"
        self.bundle.write_bytes(b"weights" * 500)
        self.sha256 = hashlib.sha256(self.bundle.read_bytes()).hexdigest()
        self.end = time.monotonic() + seconds
        self.lock = threading.Lock()
        self.held: dict[str, str] = {}  # job → host
        self.claims: list[float] = []
        self.counts: Counter[str] = Counter()
        self.broken: list[str] = []

    def work(self, host: str) -> None:
        client = FleetClient(self.fleet.url, host, operator_token=TOKEN, tries=1, timeout_s=30.0)
        try:
            while time.monotonic() < self.end:
                self._once(client, host)
        except ClientError as error:
            self.broken.append(f"{host}: {error}")
        finally:
            client.close()

    def _once(self, client: FleetClient, host: str) -> None:
        begun = time.monotonic()
        grant = client.ask({"cpu_cores": 4, "ram_available_gib": 8.0}, wait_s=0)
        self.claims.append(time.monotonic() - begun)
        job_id = getattr(grant, "job_id", None)
        if job_id is None:
            nap(0.05)
            return
        with self.lock:
            if job_id in self.held:
                self.broken.append(f"{job_id} was given to {self.held[job_id]} and {host}")
            self.held[job_id] = host
        for seq in range(1, 4):
            nap(0.2)
            client.heartbeat(job_id, claim_id=grant.claim_id, seq=seq, progress={"epoch": seq})
        client.upload_artifact(job_id, str(self.bundle), claim_id=grant.claim_id, sha256=self.sha256)
        with self.lock:
            del self.held[job_id]
        client.complete(job_id, artifact_id=self.sha256, claim_id=grant.claim_id)
        self.counts["completed"] += 1
        client.requeue(job_id)


def many_workers(count: int, seconds: float) -> Counter[str]:
    """So many for so long: no error, no job held by two, and the 99th percentile of a claim."""
    with Fleet() as fleet:
        for _ in range(3 * count):
            fleet.jobs.append({"name": f"job-{len(fleet.jobs)}", "seed": len(fleet.jobs), "hyper": {}})
        fleet.start_receiver()
        crowd = Crowd(fleet, fleet.folder, seconds)
        threads = [threading.Thread(target=crowd.work, args=(f"host-{n}",)) for n in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not crowd.broken, json.dumps(crowd.broken[:5])
    return crowd.counts + Counter(workers=count, claims=len(crowd.claims), claim_p99_ms_max=p99_ms(crowd.claims))

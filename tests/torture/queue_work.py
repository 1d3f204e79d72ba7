"""A fleet's messages at random, carried out by the real service on the real queue through the real writer."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from builders import a_beat, a_completion, a_failure, a_job, a_worker_claim, some_lines
from fakes import FakeClock, FakeShelf

from training.fleet.database.writer import DatabaseError, DatabaseLost, Writer
from training.fleet.queue.jobs import JobQueue
from training.fleet.scheduling.policy import Policy
from training.fleet.service.hosts import Plan
from training.fleet.service.service import Service
from training.fleet.wire.constants import Refusal

POLICY = Policy(backoff_s=1.0, retry_elsewhere_grace_s=1.0, prefer_cuda_grace_s=1.0)
_HOSTS = ("pi", "laptop", "desktop")


class FleetWork:
    """Calls in the order of one seed. ``after`` is told when a group of them has been acknowledged."""

    def __init__(self, seed: int, path: str, clock: FakeClock | None = None) -> None:
        self.chance = random.Random(seed)
        self.clock = clock or FakeClock()
        self.dataset_store = FakeShelf()
        self.jobs = [a_job(f"job-{n}", hyper={"n": n}) for n in range(3)]
        self.beats = 0
        self.sessions = 1
        self.open(path)

    def open(self, path: str) -> None:
        """Begin, or begin anew on what is there."""
        self.lost: list[DatabaseLost] = []
        self.queue = JobQueue(
            path, clock=self.clock, policy=POLICY, new_claim_id=lambda: f"{self.chance.getrandbits(128):032x}"
        )
        self.service = Service(self.queue, self.dataset_store)
        self.writer = Writer(self.queue.db, self.lost.append)

    def close(self) -> None:
        self.writer.close()
        self.queue.close()

    def groups(self, count: int) -> Iterator[list[Future[Any]]]:
        """The plan first, then ``count`` groups of one to three calls that share a commit; each when answered."""
        yield self.send(self.reload)
        for _ in range(count):
            yield self.send(*(self.any_call() for _ in range(self.chance.choice((1, 1, 2, 3)))))

    def send(self, *calls: Callable[[], Any]) -> list[Future[Any]]:
        """Hand calls to the writer together and wait for all answers. Refusals are answers too."""
        group: list[Future[Any]] = []
        self.writer.submit(lambda: group.extend(self.writer.submit(call) for call in calls)).result()
        for future in group:
            try:
                future.result()
            except (Refusal, DatabaseError):
                continue
        return group

    # ── the calls ───────────────────────────────────────────────────────────────────────────

    def any_call(self) -> Callable[[], Any]:
        calls = (
            (self.claim, 4),
            (self.beat, 4),
            (self.deliver, 2),
            (self.complete, 3),
            (self.fail, 1),
            (self.cancel, 1),
            (self.requeue, 1),
            (self.reload, 1),
            (self.sweep, 1),
        )
        names, weights = zip(*calls, strict=True)
        self.clock.advance(self.chance.choice((0.1, 2.0, 30.0)))
        found: Callable[[], Any] = self.chance.choices(names, weights)[0]
        return found

    def claim(self) -> Any:
        request = f"{self.chance.getrandbits(64):016x}"
        if self.chance.random() < 0.2:
            self.sessions += 1
        host = self.chance.choice(_HOSTS)
        return self.service.claim(a_worker_claim(host, session=self.sessions, request_id=request))

    def beat(self) -> Any:
        self.beats += 1
        job, claim = self._live()
        lines = some_lines(f"line {self.beats}", "…" * 20, first=2 * self.beats)
        return self.service.heartbeat(job, a_beat(claim, seq=self.beats, progress={"epoch": self.beats}, log=lines))

    def deliver(self) -> Any:
        job, claim = self._live()
        ticket = self.service.upload_permission(job, claim, None)
        artifact = self._artifact(claim)
        self.dataset_store.put(artifact, model=ticket.model, mode=ticket.mode)
        return self.service.upload_done(ticket, artifact, 1000)

    def complete(self) -> Any:
        job, claim = self._live()
        self.deliver_of(job, claim)
        return self.service.complete(job, a_completion(claim, self._artifact(claim)))

    def deliver_of(self, job: str, claim: str) -> None:
        ticket = self.service.upload_permission(job, claim, None)
        self.dataset_store.put(self._artifact(claim), model=ticket.model, mode=ticket.mode)
        self.service.upload_done(ticket, self._artifact(claim), 1000)

    def fail(self) -> Any:
        job, claim = self._live()
        reason = self.chance.choice(("trainer_failed", "interrupted", "worker_shutdown"))
        return self.service.fail(job, a_failure(claim, reason=reason))

    def cancel(self) -> Any:
        return self.service.cancel(self.chance.choice(self.jobs)["job_id"])

    def requeue(self) -> Any:
        return self.service.requeue(self.chance.choice(self.jobs)["job_id"])

    def reload(self) -> Any:
        if len(self.jobs) < 8 and self.chance.random() < 0.5:
            number = len(self.jobs)
            self.jobs.append(a_job(f"job-{number}", hyper={"n": number}))
        return self.service.reload(self.jobs, Plan())

    def one_more(self) -> Any:
        """A reload that surely changes something."""
        self.jobs.append(a_job(f"more-{self.chance.getrandbits(32)}"))
        return self.service.reload(self.jobs, Plan())

    def sweep(self) -> Any:
        return self.queue.sweep_stale(stale_after_s=60.0)

    def _live(self) -> tuple[str, str]:
        for host in _HOSTS:
            for attempt in self.queue.attempts.live_on(host):
                if self.chance.random() < 0.7:
                    return attempt.job_id, attempt.claim_id
        return self.jobs[0]["job_id"], "0" * 32

    @staticmethod
    def _artifact(claim: str) -> str:
        return hashlib.sha256(claim.encode()).hexdigest()


def content(connection: Any) -> str:
    """A digest of everything a database holds but its own name, whichever library opened it."""
    digest = hashlib.sha256()
    names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall()
    for row in names:
        if row[0] == "identity":  # drawn anew by each that is made
            continue
        found = connection.execute(f"SELECT * FROM {row[0]}").fetchall()
        rows = [tuple(each.values() if isinstance(each, dict) else each) for each in found]
        digest.update("".join(sorted(map(repr, rows))).encode())  # in one order, whoever reads
    return digest.hexdigest()

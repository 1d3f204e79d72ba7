"""The making of ``training_jobs.v1.db.gz``, by the code of commit 2a85332, the last with schema version 1.

``PYTHONPATH=. python tests/golden/make_database_v1.py OUT`` in a checkout of that commit. A job in every state, one
that was requeued after it was completed, output, deliveries, hosts, a certificate, a code and a token.
"""

from __future__ import annotations

import gzip
import hashlib
import sqlite3
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, "tests")

from builders import a_capability, a_job
from fakes import Counting, FakeClock

from training.fleet.identity import Role
from training.fleet.job import EndReason, Host
from training.fleet.policy import NOBODY_ELSE
from training.fleet.queue import Claimant, Grant, JobQueue
from training.fleet.registry import Registry

NAMES = ["waits", "was-given", "runs", "is-done", "done-twice", "failed", "is-cancelled"]


def grant(queue: JobQueue, clock: FakeClock, host: str, number: int) -> Grant:
    capability = a_capability()
    claimant = Claimant(f"instance-{host}", "0000000001-abcd", number, f"request-{number}")
    with queue.db.transaction():
        queue.note_host(host, capability, claimant, {"training.trainer.run": "f" * 64})
        granted = queue.grant(Host.of(host, capability), claimant, NOBODY_ELSE)
    assert isinstance(granted, Grant)
    clock.advance(10)
    return granted


def deliver(queue: JobQueue, clock: FakeClock, granted: Grant) -> None:
    job, attempt = granted.job, granted.attempt
    with queue.db.transaction():
        queue.beat(job, attempt, seq=1, progress={"epoch": 1, "epochs": 1})
        queue.append_log(attempt, 0, ["epoch 1", "done"])
    clock.advance(60)
    artifact = hashlib.sha256(f"{job.name} {attempt.attempt}".encode()).hexdigest()
    current = queue.get(job.job_id)
    assert current is not None
    with queue.db.transaction():
        queue.add_artifact(attempt, artifact, job.model, job.mode, 1000)
        queue.accept(current, attempt, artifact, {"seconds": 60.0})


def fill(path: Path) -> None:
    clock = FakeClock()
    queue = JobQueue(path, clock=clock, new_claim_id=Counting())
    # The higher the priority, the sooner: grants come in the reverse order of the names.
    queue.sync_from_manifest(a_job(name, priority=10 * n) for n, name in enumerate(NAMES))
    queue.cancel("id-is-cancelled")
    failing = grant(queue, clock, "pi", 0)
    assert failing.job.name == "failed"
    queue.settle(failing.job, failing.attempt, EndReason.TRAINER_FAILED, error="bad", exit_code=65)
    deliver(queue, clock, grant(queue, clock, "pi", 1))
    queue.requeue("id-done-twice")
    deliver(queue, clock, grant(queue, clock, "desk", 2))
    deliver(queue, clock, grant(queue, clock, "pi", 3))
    running = grant(queue, clock, "desk", 4)
    queue.beat(running.job, running.attempt, seq=3, progress={"epoch": 2, "epochs": 9})
    queue.append_log(running.attempt, 0, ["epoch 1", "epoch 2"])
    grant(queue, clock, "pi", 5)
    registry = Registry(queue.db, clock)
    queue.db.run(
        "add_certificate",
        fingerprint="c" * 64,
        role=Role.HOST,
        name="pi",
        issued_at=clock.now(),
        expires_at=clock.now() + 2_592_000,
    )
    registry.invite(Role.HOST, "desk")
    registry.add_token("ada", 90.0)
    queue.close()


def main(out: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, small = Path(folder, "training_jobs.db"), Path(folder, "small.db")
        fill(path)
        connection = sqlite3.connect(path)
        connection.execute("VACUUM INTO ?", (str(small),))
        connection.close()
        out.write_bytes(gzip.compress(small.read_bytes(), mtime=0))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Retention over a real database and store, step by step in the test's own thread."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from builders import a_completion, a_job, a_worker_claim
from fakes import Counting, FakeClock

from training.files import LocalFs
from training.fleet.database.sqlite import SqliteDatabase
from training.fleet.queue.jobs import JobQueue
from training.fleet.recovery.doctor import examine
from training.fleet.scheduling.retention import Rules
from training.fleet.service.catalogue import index_rows, provenance_of
from training.fleet.service.retention import Retention
from training.fleet.service.service import Service
from training.fleet.service.state import Deployment
from training.fleet.service.views import Views
from training.fleet.store.artifacts import ArtifactStore
from training.fleet.store.datasets import DatasetStore
from training.fleet.wire.progress import Point

DAY_S = 86_400.0


class Killed(Exception):  # noqa: N818 - as a receiver is
    """The receiver dies here."""


class House:
    """A receiver's database and store in a folder, and what its retention does; :meth:`close` it."""

    def __init__(self, folder, clock=None):
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.clock = clock or FakeClock()
        self.open()
        self.plan = []
        self.rules = Rules()
        self.host = "pi"  # that trains

    def open(self):
        self.queue = JobQueue(self.folder / "jobs.db", clock=self.clock, new_claim_id=Counting())
        self.store = ArtifactStore(self.folder / "models", LocalFs())
        self.store.mark(self.queue.database_id)
        self.datasets = DatasetStore(self.folder / "datasets", LocalFs())
        self.service = Service(self.queue, self.store)
        self.reader = SqliteDatabase(self.folder / "jobs.db")
        self.retention = Retention(self.service, self.store, self.datasets, self.reader)
        self.views = Views(self.reader, self.service)

    def close(self):
        self.reader.close()
        self.queue.close()

    def restart(self):
        plan = self.service.plan
        self.close()
        self.open()
        self.service.host_registry.plan = plan

    @property
    def state(self):
        return Deployment(self.folder / "jobs.db", self.folder / "models", self.folder / "tls")

    def keeps(self, **rules):
        """Change what the plan keeps."""
        self.service.host_registry.plan = replace(
            self.service.plan, retention=Rules(**{"keep_models_days": 0.0, **rules})
        )

    def enter(self, *names, **facts):
        plan = self.service.plan
        self.plan += [a_job(name, **facts) for name in names]
        self.service.reload(self.plan, replace(plan))

    def train(self, name, *figures, body=b"", model="gbt", **facts):
        """Have a job trained: one epoch for each figure, one line each; returns its artifact."""
        if self.queue.get(f"id-{name}") is None:
            self.enter(name, model=model, **facts)
        claim = self.service.claim(a_worker_claim(self.host))
        assert claim.name == name, claim
        job_id, claim_id = str(claim.job_id), str(claim.claim_id)
        job, attempt = self.queue.get(job_id), self.queue.attempts.by_claim(claim_id)
        assert job is not None
        points = [Point(n, 1.0, each, 1.0)._asdict() for n, each in enumerate(figures)]
        self.queue.attempts.append_log(attempt, 0, [f"epoch {point['epoch']}" for point in points])
        self.queue.curves.add(attempt, list(enumerate(points)))
        artifact = self.deliver(job_id, claim_id, body or name.encode())
        self.clock.advance(1.0)
        return artifact.artifact_id

    def deliver(self, job_id, claim_id, body):
        artifact = self.upload(claim_id, body, job_id)
        assert self.owned(job_id, claim_id, artifact)
        job, attempt = self.queue.get(job_id), self.queue.attempts.by_claim(claim_id)
        said = provenance_of(job, attempt, now=self.clock.now())
        self.store.write_provenance(artifact, job_id=job_id, attempt=attempt.attempt, record=said)
        self.service.complete(job_id, a_completion(claim_id, artifact.artifact_id, host_id=self.host))
        self.store.index.repair(index_rows(self.reader))
        return artifact

    def upload(self, claim_id, body, job_id):
        """Bring a bundle as far as the store."""
        digest = hashlib.sha256(body).hexdigest()
        job = self.queue.get(job_id)
        part = self.store.open_part(claim_id, digest)
        part.write(body)
        part.seal(sha256=digest, size=len(body))
        found = self.store.publish(part, digest, model=job.model, mode=job.mode)
        part.close()
        return found

    def owned(self, job_id, claim_id, artifact):
        permission = self.service.upload_permission(job_id, claim_id, self.host)
        return self.service.upload_done(permission, artifact.artifact_id, artifact.size)

    def here(self, name):
        """Say if the bundle of a completed job is in the store."""
        job = self.queue.get(f"id-{name}")
        return self.store.find(job.artifact_id, model=job.model, mode=job.mode) is not None

    def collect(self, **how):
        """Let go what the plan lets go, as the receiver does."""
        gone = self.run(self.retention.collect(), **how)
        self.store.index.repair(index_rows(self.reader))
        return gone

    def run(self, steps, *, but_after=None, between=None):
        """Take the steps, and die after so many of them; ``between``: what others do after that many."""
        outcome = None
        taken = 0
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as end:
                return end.value
            with self.queue.db.transaction():
                outcome = step.work()
            taken += 1
            (between or {}).get(taken, lambda: None)()
            if taken == but_after:
                steps.close()
                raise Killed

    def findings(self, *, notes=False):
        report = examine(self.state, self.clock)
        return [each for each in report.findings if notes or each.level != "note"]

    def removed(self, name):
        """Say why the model of a job is gone, as everybody sees it."""
        view = self.views.job(f"id-{name}").job
        return None if view.removed is None else view.removed.why

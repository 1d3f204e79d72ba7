"""A receiver's service without HTTP and without a disk: a queue in memory, a clock and a shelf."""

from __future__ import annotations

import pytest
from builders import a_beat, a_completion, a_failure, a_job, a_worker_claim
from fakes import Counting, FakeClock, FakeShelf

from training.fleet.queue.jobs import Claimant, GrantedJob, JobQueue
from training.fleet.scheduling.job import Host
from training.fleet.scheduling.policy import NOBODY_ELSE, Policy
from training.fleet.service.hosts import Plan
from training.fleet.service.service import Service
from training.fleet.service.views import Views
from training.fleet.wire.constants import Refusal

A = "a" * 64
POLICY = Policy()


CAN = {"cpu_cores": 8, "ram_available_gib": 16.0, "ram_total_gib": 16.0}


class Receiver:
    """A service of which a test names jobs and hosts alone; :meth:`close` it."""

    def __init__(self, *jobs, path=":memory:", policy=POLICY):
        self.clock, self.dataset_store, self._claim_ids = FakeClock(), FakeShelf(), Counting()
        self._path, self._policy = path, policy
        self.begin()
        if jobs:
            self.plan(*jobs)

    def begin(self):
        """Start the program on what its database holds."""
        self.queue = JobQueue(self._path, clock=self.clock, policy=self._policy, new_claim_id=self._claim_ids)
        self.service = Service(self.queue, self.dataset_store)
        self.close = self.queue.close

    def restart(self):
        self.service = Service(self.queue, self.dataset_store, self.service.plan)

    @property
    def views(self):
        return Views(self.queue.db, self.service)

    def plan(self, *jobs, **plan):
        return self.service.reload(list(jobs), Plan(**plan))

    def claim(self, request):
        return self.service.claim(request)

    def ask(self, host="pi", **fields):
        """Claim as a worker does."""
        return self.claim(a_worker_claim(host, **fields))

    def bare_grant(self, host, can=CAN):
        """Note a host and grant it a job, past all guards of the service."""
        with self.queue.db.transaction():
            self.queue.hosts.note(host, can, Claimant())
            granted = self.queue.grant(Host.of(host, can), Claimant(), NOBODY_ELSE)
        assert isinstance(granted, GrantedJob)
        return granted

    def train(self, host, record, can=CAN):
        """Complete the next job of the bare queue."""
        granted = self.bare_grant(host, can)
        self.queue.accept(granted.job, granted.attempt, A, record)

    def beat(self, claim_id=None, name="one", **said):
        return self.service.heartbeat(f"id-{name}", a_beat(claim_id, **said))

    def fail(self, claim_id=None, name="one", **said):
        return self.service.fail(f"id-{name}", a_failure(claim_id, **said))

    def granted(self, host="pi", **fields):
        reply = self.ask(host, **fields)
        assert reply.claim_id is not None, reply.reason
        return reply.claim_id

    def job(self, name="one"):
        job = self.queue.get(f"id-{name}")
        assert job is not None
        return job

    def attempt(self, name="one"):
        return self.queue.attempts.of_job(f"id-{name}")[-1]

    def status(self, name="one"):
        return self.job(name).status

    def deliver(self, claim_id, artifact=A, name="one", **words):
        permission = self.service.upload_permission(f"id-{name}", claim_id, words.get("host_id"))
        self.dataset_store.put(artifact, model=permission.model, mode=permission.mode)
        self.service.upload_done(permission, artifact, 10)
        self.service.complete(f"id-{name}", a_completion(claim_id, artifact, **words))

    def watch(self, seconds):
        """Let time go by under ordinary looks at the clock; returns how many attempts were swept."""
        swept = 0
        for _ in range(round(seconds / POLICY.sweep_period_s)):
            self.clock.advance(POLICY.sweep_period_s)
            swept += self.service.tick()
        return swept


def with_two_jobs():
    """A receiver whose plan names ``one`` and ``two``, to be granted in this order."""
    return Receiver(a_job("one", priority=90), a_job("two"))


def refused(problem_type, call, *args, **said):
    """The sentence of the call's refusal, which must be of this kind."""
    with pytest.raises(Refusal) as caught:
        call(*args, **said)
    assert caught.value.problem_type is problem_type, caught.value.detail
    return caught.value.detail

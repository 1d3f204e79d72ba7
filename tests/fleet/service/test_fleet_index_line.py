"""The line that a delivery adds to the index, and a repair of the index at the same moment."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from builders import a_job, a_worker_claim
from conformance.memory_fs import MemoryFs
from fakes import Counting, FakeClock

from training.fleet.queue.jobs import JobQueue
from training.fleet.service.catalogue import index_rows
from training.fleet.service.delivery import Announced, Body, DeliverySteps, Look
from training.fleet.service.service import Service
from training.fleet.store.artifacts import ArtifactStore

BUNDLE = b"bundle"


@pytest.mark.parametrize("repaired", [False, True])
def test_a_line_that_a_repair_has_written_is_not_added_again(repaired):
    fs, clock = MemoryFs(), FakeClock()
    with closing(JobQueue(":memory:", clock=clock, new_claim_id=Counting())) as queue:
        store = ArtifactStore(Path("/store"), fs)
        service = Service(queue, store)
        service.reload([a_job("one")], service.plan)
        claim = service.claim(a_worker_claim())
        delivery = DeliverySteps(service, store, queue.db, clock)
        steps = delivery.upload(Announced(claim.job_id, claim.claim_id, "pi", None, 0, len(BUNDLE)))
        outcome = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration:
                break
            if isinstance(step, Look) and repaired:  # between the commit and the line
                store.index.repair(index_rows(queue.db))
            if isinstance(step, Body):
                step.part.write(BUNDLE)
            outcome = None if isinstance(step, Body) else step.work()
        written = b"".join(fs.read(Path("/store/index.jsonl")))
        assert written == b"".join(row.line() for row in index_rows(queue.db))
        assert delivery.index_stale is repaired, "the next look tells, whatever the repair had seen"

"""Sequences of steps, taken one after the other in the test's own thread."""

from __future__ import annotations

from typing import TypeVar

from training.fleet.queue.jobs import JobQueue
from training.fleet.service.delivery import Step
from training.fleet.service.logs import Folding
from training.fleet.service.service import Service
from training.fleet.store.artifacts import ArtifactStore

T = TypeVar("T")


def taken(steps):
    """Take every step; returns what the sequence does."""
    outcome, error = None, None
    while True:
        try:
            step = steps.send(outcome) if error is None else steps.throw(error)
        except StopIteration as end:
            return end.value
        assert isinstance(step, Step)
        try:
            outcome, error = step.work(), None
        except Exception as raised:  # noqa: BLE001 - the sequence decides what comes of it
            outcome, error = None, raised


def fold(db, models, clock=None):
    """Move the output that is due into files, as a receiver does; returns the number of new files."""
    queue = JobQueue(db, clock=clock)
    try:
        store = ArtifactStore(models)
        return taken(Folding(Service(queue, store), store.logs, queue.db).fold())
    finally:
        queue.close()

"""Workers' calls about a job's saved state (files from which an interrupted training resumes): who may store or fetch
it.

A sequence does no I/O and knows no HTTP: the HTTP layer and the simulation take its steps.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from training.clock import Clock
from training.fleet.scheduling.job import FINAL, Attempt, Job, JobStatus
from training.fleet.service.delivery import Decide, Disk, Steps, Whole
from training.fleet.service.guards import ended
from training.fleet.service.service import Service
from training.fleet.store.datasets import AnnouncedDataset
from training.fleet.store.errors import NoState
from training.fleet.store.states import KeptState, StateStore
from training.fleet.wire.constants import ProblemType, Refusal
from training.fleet.wire.dataset_listing import (
    BATCH_BODY_BYTES_MAX,
    CHUNK_BYTES,
    LISTING_BYTES_MAX,
    BadListing,
    batched,
)
from training.fleet.wire.states import STRETCHES_MAX, StateDraftReply, StateKeepRequest, StateView

logger = logging.getLogger(__name__)

OVER = FINAL - {JobStatus.FAILED}  # a failed job may be requeued, and go on


class Calling(NamedTuple):
    """The caller of a request about a job's saved state, as the request names it."""

    job_id: str
    claim_id: str | None
    host_id: str | None


class SavedStates:
    """The calls about saved states, as steps of :mod:`training.fleet.service.delivery`.

    Only the holder of the job's live claim may store or fetch one.
    """

    def __init__(self, service: Service, store: StateStore, clock: Clock) -> None:
        self._service, self._store, self._clock = service, store, clock

    def announce(self, calling: Calling, state_id: str) -> Steps[StateDraftReply]:
        """Take a listing; the answer names missing chunks, the first when there are many."""
        yield self._holder(calling)
        document: bytes = yield Whole(LISTING_BYTES_MAX)
        draft: AnnouncedDataset = yield Disk(lambda: self._store.sets.begin(state_id, document))
        return StateDraftReply(state_id=state_id, missing=list(draft.missing))

    def bring(self, calling: Calling, state_id: str, sha256: str | None) -> Steps[None]:
        """Store a chunk, or several from one body if ``sha256`` names none."""
        yield self._holder(calling)
        body: bytes = yield Whole(CHUNK_BYTES if sha256 else BATCH_BODY_BYTES_MAX)
        try:
            chunks = [(sha256, body)] if sha256 else batched(body)
        except BadListing as error:
            raise Refusal(ProblemType.WRONG_DIGEST, str(error)) from None
        yield Disk(lambda: self._store.sets.put(state_id, chunks))

    def keep(self, calling: Calling, state_id: str, said: StateKeepRequest) -> Steps[StateView]:
        """Make a complete state the job's newest, unless its attempt has ended meanwhile."""
        size: int = yield Disk(lambda: self._store.sets.announced_size(state_id))
        found: tuple[Job, Attempt] = yield self._holder(calling)
        job, attempt = found
        made = kept_by(attempt, said, state_id=state_id, size=size, now=self._clock.now())
        yield Disk(lambda: self._store.keep(job.job_id, made))
        logger.info(
            "%s: a saved state of %d bytes is kept, of attempt %s on %s", job.name, size, attempt.attempt, made.host
        )
        return view(made)

    def listing(self, calling: Calling, state_id: str) -> Steps[bytes]:
        """Read the listing of the job's state; the listing's SHA-256 is the state's id."""
        found: tuple[Job, Attempt] = yield self._holder(calling)
        self._check_newest(found[0], state_id)
        document: bytes = yield Disk(lambda: self._store.listing(calling.job_id))
        return document

    def piece(self, calling: Calling, state_id: str, sha256: str) -> Steps[bytes]:
        """Read a chunk of the job's state."""
        found: tuple[Job, Attempt] = yield self._holder(calling)
        self._check_newest(found[0], state_id)
        data: bytes = yield Disk(lambda: self._store.piece(calling.job_id, sha256))
        return data

    def forget(self) -> Steps[int]:
        """Delete the states of jobs that have ended; return their number."""
        if not (jobs := self._store.jobs()):
            return 0
        gone: list[str] = yield Decide(lambda: over(self._service, jobs), "states")
        number: int = (yield Disk(lambda: self._store.forget(gone))) if gone else 0
        return number

    def of(self, job_id: str) -> StateView | None:
        """Return the message in a claim's answer about a job's state."""
        kept = self._store.of(job_id)
        return None if kept is None else view(kept)

    def _holder(self, calling: Calling) -> Decide:
        """Find the job and the caller's live attempt at it; refuse any other."""

        def find() -> tuple[Job, Attempt]:
            job, attempt = self._service.claimed(calling.job_id, calling.claim_id, calling.host_id)
            if not attempt.live:
                raise ended(attempt)
            return job, attempt

        return Decide(find, "state")

    def _check_newest(self, job: Job, state_id: str) -> None:
        kept = self._store.of(job.job_id)
        if kept is None or kept.state_id != state_id:
            raise NoState(f"this is not the saved state of job {job.name}; it starts over")


def kept_by(attempt: Attempt, said: StateKeepRequest, *, state_id: str, size: int, now: float) -> KeptState:
    """Return the state to store, with the stretches of all attempts that trained it. Pure."""
    own = msgspec.structs.replace(said.stretches[-1], attempt=attempt.attempt, host=attempt.host)  # whatever it says
    stretches = (*said.stretches[:-1], own)[-STRETCHES_MAX:]
    return KeptState(state_id, attempt.attempt, attempt.host, now, size, stretches)


def view(kept: KeptState) -> StateView:
    """Return the message in a claim's answer about a state."""
    return StateView.of(kept, stretches=list(kept.stretches))


def over(service: Service, jobs: Iterable[str]) -> list[str]:
    """List those of these jobs that no longer need a state: done, cancelled, or unknown here."""
    found = ((job_id, service.queue.get(job_id)) for job_id in jobs)
    return [job_id for job_id, job in found if job is None or job.status in OVER]

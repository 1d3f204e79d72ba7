"""Workers' calls about a job's saved state (files from which an interrupted training resumes), and who may store or
fetch one.

The sequences of steps know no HTTP: the HTTP layer and the simulation take the steps.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from training.clock import Clock
from training.fleet.scheduling.job import FINAL, Attempt, Job, JobStatus
from training.fleet.service.delivery import Decide, Disk, Steps, Whole
from training.fleet.service.guards import ended
from training.fleet.service.service import Service
from training.fleet.store.datasets import AnnouncedDataset, DatasetStore
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
from training.fleet.wire.progress import EPOCH_MAX
from training.fleet.wire.states import STRETCHES_MAX, StateDraftReply, StateKeepRequest, StateView, Stretch

logger = logging.getLogger(__name__)

OVER = FINAL - {JobStatus.FAILED}  # a failed job may be requeued, and go on


class Calling(NamedTuple):
    """The caller of a request about a job's saved state, as the request names it."""

    job_id: str
    claim_id: str | None
    host_id: str | None


@dataclass
class SavedStates:
    """The calls about saved states, as sequences of steps (:mod:`training.fleet.service.delivery`).

    Only the holder of the job's live claim may store or fetch a saved state.
    """

    _service: Service
    _store: StateStore
    _clock: Clock

    def announce(self, calling: Calling, state_id: str) -> Steps[StateDraftReply]:
        """Accept the listing of a new saved state; the reply names the missing chunks, or the first ones if there are
        many."""
        found: tuple[Job, Attempt] = yield self._holder(calling)
        attempt = found[1]
        document: bytes = yield Whole(LISTING_BYTES_MAX)
        draft: AnnouncedDataset = yield Disk(
            lambda: self._store.begin(attempt.claim_id, attempt.host, attempt.job_id, state_id, document)
        )
        return StateDraftReply(state_id=state_id, missing=list(draft.missing))

    def bring(self, calling: Calling, state_id: str, sha256: str | None) -> Steps[None]:
        """Store one chunk of a saved state, named by ``sha256``; if that is None, store the several chunks of one
        body."""
        yield self._holder(calling)
        body: bytes = yield Whole(CHUNK_BYTES if sha256 else BATCH_BODY_BYTES_MAX)
        chunks = chunks_in(body, sha256)
        yield Disk(lambda: self._brought(calling, state_id).put(state_id, chunks))

    def keep(self, calling: Calling, state_id: str, said: StateKeepRequest) -> Steps[StateView]:
        """Make a completely stored state the job's newest; raise Refusal if the caller's attempt has ended
        meanwhile."""
        size: int = yield Disk(lambda: self._brought(calling, state_id).announced_size(state_id))
        found: tuple[Job, Attempt] = yield self._holder(calling)
        job, attempt = found
        known: list[Attempt] = yield Decide(lambda: self._service.queue.attempts.of_job(job.job_id), "state")
        made = kept_by(attempt, known, said, state_id=state_id, size=size, now=self._clock.now())
        yield Disk(lambda: self._store.keep(job.job_id, made))
        logger.info(
            "%s: a saved state of %d bytes is kept, of attempt %s on %s", job.name, size, attempt.attempt, made.host
        )
        return view(made)

    def listing(self, calling: Calling, state_id: str) -> Steps[bytes]:
        """Read the listing of the job's saved state; the listing's SHA-256 is the state's id. Raise NoState if
        ``state_id`` is not the job's newest state."""
        yield self._holder(calling, state_id)
        document: bytes = yield Disk(lambda: self._store.listing(calling.job_id))
        return document

    def piece(self, calling: Calling, state_id: str, sha256: str) -> Steps[bytes]:
        """Read one chunk of the job's saved state; raise NoState if ``state_id`` is not the job's newest state."""
        yield self._holder(calling, state_id)
        data: bytes = yield Disk(lambda: self._store.piece(calling.job_id, sha256))
        return data

    def forget(self) -> Steps[int]:
        """Delete the saved states of jobs that need none any more; return the number of deleted states."""
        if not (jobs := self._store.jobs()):
            return 0
        gone: list[str] = yield Decide(lambda: over(self._service, jobs), "states")
        number: int = (yield Disk(lambda: self._store.forget(gone))) if gone else 0
        return number

    def ended(self, claims: Iterable[str]) -> set[str]:
        """Return the claims that may bring no saved state any more, because they are over or unknown here."""
        found = ((claim_id, self._service.queue.attempts.by_claim(claim_id)) for claim_id in claims)
        return {claim_id for claim_id, attempt in found if attempt is None or not attempt.live}

    def of(self, job_id: str) -> StateView | None:
        """Return the message about a job's saved state for the reply to a claim; None if the job has no saved state."""
        kept = self._store.of(job_id)
        return None if kept is None else view(kept)

    def _brought(self, calling: Calling, state_id: str) -> DatasetStore:
        return self._store.brought(str(calling.claim_id), calling.job_id, state_id)

    def _holder(self, calling: Calling, newest: str | None = None) -> Decide:
        """Return the step that finds the job and the caller's live attempt at it; the step raises Refusal if there is
        none, and NoState if ``newest`` is not the job's newest state."""

        def find() -> tuple[Job, Attempt]:
            job, attempt = self._service.claimed(calling.job_id, calling.claim_id, calling.host_id)
            if not attempt.live:
                raise ended(attempt)
            if newest is not None and ((kept := self._store.of(job.job_id)) is None or kept.state_id != newest):
                raise NoState(f"this is not the saved state of job {job.name}; it starts over")
            return job, attempt

        return Decide(find, "state")


def chunks_in(body: bytes, sha256: str | None) -> Sequence[tuple[str, bytes | memoryview]]:
    """Return the one chunk of a body, named by ``sha256``, or the several that it holds; raise Refusal for other
    bodies."""
    try:
        return [(sha256, body)] if sha256 else batched(body)
    except BadListing as error:
        raise Refusal(ProblemType.WRONG_DIGEST, str(error)) from None


def kept_by(
    attempt: Attempt, known: Iterable[Attempt], said: StateKeepRequest, *, state_id: str, size: int, now: float
) -> KeptState:
    """Return the saved state to store, with the stretches (the epochs that each attempt trained) of the job's attempts,
    ``known``. Pure."""
    own = msgspec.structs.replace(said.stretches[-1], attempt=attempt.attempt, host=attempt.host)  # whatever it says
    there = {(each.attempt, each.host) for each in known if each.attempt < attempt.attempt}
    earlier = (each for each in said.stretches[:-1] if (each.attempt, each.host) in there)
    stretches = tuple(map(_countable, [*earlier, own][-STRETCHES_MAX:]))
    return KeptState(state_id, attempt.attempt, attempt.host, now, size, stretches)


def _countable(said: Stretch) -> Stretch:
    """Return the stretch, without its epochs if no training can have counted them so."""
    points = [0, *(each for each in (said.begins, said.ends) if each is not None), EPOCH_MAX]
    return said if points == sorted(points) else msgspec.structs.replace(said, begins=None, ends=None)


def view(kept: KeptState) -> StateView:
    """Return the message about a saved state for a reply."""
    return StateView.of(kept, stretches=list(kept.stretches))


def over(service: Service, jobs: Iterable[str]) -> list[str]:
    """Return those of these jobs that no longer need a saved state: completed, cancelled, or unknown here. A failed job
    keeps its saved state, because it may be requeued."""
    found = ((job_id, service.queue.get(job_id)) for job_id in jobs)
    return [job_id for job_id, job in found if job is None or job.status in OVER]

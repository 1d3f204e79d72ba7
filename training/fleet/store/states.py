"""The receiver's store of saved states: the newest one of each unfinished job, so that another host can resume the job.

::

    <root>/jobs/<job id>.json     the job's state: its id, the attempt and host that saved it, the epochs trained
    <root>/pieces, sets, drafts …  its files, as in :mod:`training.fleet.store.datasets`

A state is transferred and stored like a data set: a listing, whose SHA-256 is its id, and chunks. The fleet does not
read a state's content. If a state is lost, its job starts from the state that its next host has, or from the beginning.
"""

import contextlib
import math
import re
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from training.files import Fs, LocalFs
from training.fleet.store.artifacts import RESERVE_BYTES
from training.fleet.store.datasets import AnnouncedDataset, DatasetStore
from training.fleet.store.errors import BadName, NoDataset, NoState, ShareFull, StoreError, disk_errors
from training.fleet.store.incoming import within_share
from training.fleet.wire.states import STATE_BYTES_MAX, Stretch

_JOB = re.compile(r"[A-Za-z0-9_-]{1,128}")
_SUFFIX = ".json"


class KeptState(msgspec.Struct, frozen=True):
    """A job's newest state, and which attempts made it."""

    state_id: str
    attempt: int  # that brought it
    host: str
    saved_at: float  # epoch seconds, when it was whole here
    size: int  # bytes
    stretches: tuple[Stretch, ...] = ()  # of the training that it holds, the first one first


class StateDraft(NamedTuple):
    """The one state that the holder of a claim is bringing, and the size that it announced, in bytes."""

    state_id: str
    host: str
    size: int


class StateStore:
    """A folder of states; ``reserve_bytes`` of disk stay free. Its methods do synchronous file work; several threads
    may call them."""

    def __init__(self, root: Path, fs: Fs | None = None, *, reserve_bytes: int = RESERVE_BYTES) -> None:
        self.root = root
        self._fs: Fs = LocalFs() if fs is None else fs
        self.sets = DatasetStore(root, fs, reserve_bytes=reserve_bytes, bytes_max=STATE_BYTES_MAX)
        self._lock = threading.RLock()
        self._kept = dict(self._read())
        self._drafts: dict[str, StateDraft] = {}  # by claim
        with contextlib.suppress(StoreError):
            self.sweep(math.inf)  # drafts of another process: their claims are not known any more

    def of(self, job_id: str) -> KeptState | None:
        """Return a job's newest state from memory; None if it has none."""
        return self._kept.get(job_id)

    def jobs(self) -> list[str]:
        """Return the ids of the jobs that have a state."""
        return list(self._kept)

    def claims(self) -> list[str]:
        """Return the claims with which states are being brought."""
        return list(self._drafts)

    def begin(self, claim_id: str, host: str, job_id: str, state_id: str, document: bytes) -> AnnouncedDataset:
        """Store the listing of a state that a claim's host brings for a job, in place of the claim's former draft;
        return the missing chunks.

        Raises as :meth:`DatasetStore.begin`. Raises ShareFull if this state, the host's other drafts and its states of
        other jobs exceed the host's share (:func:`within_share`).
        """

        def check(size: int) -> None:
            own = sum(each.size for claim, each in self._drafts.items() if each.host == host and claim != claim_id)
            own += sum(each.size for job, each in self._kept.items() if each.host == host and job != job_id)
            if not within_share(own, size, self.sets.room.free()):
                raise ShareFull(f"the saved states of host {host} may take a quarter of what is free here, not more")

        with self._lock:
            announced, before = self.sets.begin(state_id, document, check), self._drafts.get(claim_id)
            self._drafts[claim_id] = StateDraft(state_id, host, len(document) + announced.size)
            if before is not None:  # unless it is still the claim's
                self._abandon(before.state_id)
            return announced

    def brought(self, claim_id: str, job_id: str, state_id: str) -> DatasetStore:
        """Return the store of the files of a state that a claim is bringing, or that its job has. Raises NoDataset for
        another state."""
        draft, kept = self._drafts.get(claim_id), self._kept.get(job_id)
        if state_id not in (draft and draft.state_id, kept and kept.state_id):
            raise NoDataset(f"this claim announced no saved state {state_id[:12]}")
        return self.sets

    def keep(self, job_id: str, kept: KeptState) -> None:
        """Make a complete state the job's newest, and delete the one before.

        Raises NoDataset, ChunksMissing, BadName, and NoState when a later attempt has brought a state.
        """
        if not _JOB.fullmatch(job_id):
            raise BadName(f"{job_id[:80]!r} is not the id of a job")
        with self._lock:
            before = self._kept.get(job_id)
            if before is not None and before.attempt > kept.attempt:
                raise NoState(f"attempt {before.attempt} of this job has brought a later state")
            self.sets.publish(kept.state_id, None, kept.saved_at)
            with disk_errors("keeping a saved state"):
                self.sets.write(self._path(job_id), msgspec.json.encode(kept))
            self._kept[job_id] = kept
            self.forget_drafts([claim for claim, draft in self._drafts.items() if draft.state_id == kept.state_id])
            if before is not None:
                self._remove(before.state_id)

    def listing(self, job_id: str) -> bytes:
        """Return the listing of a job's state, as bytes. Raises NoState, ChunksMissing."""
        return self.sets.listing(self._state_of(job_id))

    def piece(self, job_id: str, sha256: str) -> bytes:
        """Return a verified chunk of a job's state. Raises NoState, NoDataset, ChunksMissing."""
        return self.sets.piece(self._state_of(job_id), sha256)

    def forget(self, jobs: Iterable[str]) -> int:
        """Delete the states of these jobs, which have ended; return the number of states."""
        gone = []
        with self._lock, disk_errors("removing a saved state"):
            for job_id in jobs:
                kept = self._kept.pop(job_id, None)
                if kept is not None:
                    gone.append(kept.state_id)
                    self._fs.unlink(self._path(job_id))
            if gone:
                self._fs.sync_folder(self.root / "jobs")  # before: no job may name, after a power cut, what is gone
            for state_id in gone:
                self._remove(state_id)
        return len(gone)

    def forget_drafts(self, claims: Iterable[str]) -> None:
        """Delete what these claims are bringing, unless it was kept."""
        with self._lock:
            for claim_id in claims:
                if (draft := self._drafts.pop(claim_id, None)) is not None:
                    self._abandon(draft.state_id)

    def sweep(self, older_than: float) -> int:
        """Delete states that no job has, drafts last written before ``older_than`` (epoch s), and loose chunks; return
        the number of drafts and chunks."""
        with self._lock:
            named = {kept.state_id for kept in self._kept.values()}
            for shelved in self.sets.sets():
                if shelved.dataset_id not in named:
                    self._remove(shelved.dataset_id)
            return self.sets.sweep(older_than)

    # -- inside -------------------------------------------------------------------------------------------------

    def _state_of(self, job_id: str) -> str:
        kept = self._kept.get(job_id)
        if kept is None:
            raise NoState(f"no saved state of job {job_id[:12]} is stored here; the job is trained without it")
        return kept.state_id

    def _remove(self, state_id: str) -> None:
        """Delete a state's files, unless another job has an equal state; if the disk fails, :meth:`sweep` deletes them
        later."""
        if any(kept.state_id == state_id for kept in self._kept.values()):
            return
        with contextlib.suppress(StoreError):
            self.sets.remove(state_id)

    def _abandon(self, state_id: str) -> None:
        """Delete a draft's files, unless another claim brings an equal state."""
        if all(draft.state_id != state_id for draft in self._drafts.values()):
            self.sets.abandon(state_id)

    def _path(self, job_id: str) -> Path:
        return self.root / "jobs" / f"{job_id}{_SUFFIX}"

    def _read(self) -> Iterable[tuple[str, KeptState]]:
        """Yield each stored state with the id of its job; a file that cannot be read is skipped."""
        for name in self._fs.names(self.root / "jobs"):
            try:
                kept = msgspec.json.decode(b"".join(self._fs.read(self.root / "jobs" / name)), type=KeptState)
            except (OSError, msgspec.DecodeError, UnicodeDecodeError):
                continue
            yield name.removesuffix(_SUFFIX), kept

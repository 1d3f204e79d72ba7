"""Saved states of trainers on this host, one folder per job: kept while the job may return to this host, within limits.

The state of a job that was completed or cancelled is deleted; a failed job's state is kept, because the job may be
requeued. The worker asks the receiver for the jobs' status now and then, and accepts only the answer of the database
that granted the job.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from training.files import remove_tree, write_whole
from training.fleet.client.client import FleetClient, Refused, Stranger, Unavailable, Unreachable
from training.fleet.scheduling.job import FINAL, JobStatus
from training.sizes import walk

log = logging.getLogger(__name__)

KEPT_MAX = 5  # the newest
BYTES_MAX = 4 * 1024**3  # of all but the newest
AGE_MAX_S = 14 * 86_400.0  # since a trainer last wrote there
ASK_EVERY_S = 60.0
OVER = FINAL - {JobStatus.FAILED}
_GRANTED_BY, _STRETCHES = ".database", ".stretches"  # notes beside the folder


class SavedState(NamedTuple):
    """The saved state of a job: its folder, the time of its last change (epoch seconds), and its size."""

    folder: Path
    written_at: float
    bytes: int

    @classmethod
    def of(cls, folder: Path) -> SavedState:
        """Measure the saved state in ``folder``. Raises OSError, for example if a trainer that ends late removes the
        folder."""
        abouts = [folder.lstat(), *(each.stat(follow_symlinks=False) for each in walk(folder))]
        written_at = max(each.st_mtime for each in abouts)
        return cls(folder, written_at, sum(each.st_size for each in abouts))


def folder_of(root: Path, job_id: str) -> Path:
    """Return the folder of a job's saved state."""
    return root / job_id[:64]


def begin(folder: Path, database_id: str | None) -> None:
    """Create a job's folder, and note beside it which database granted the job. Raises OSError.

    A file or a link that a trainer left in the folder's place is removed.
    """
    if folder.is_symlink() or not folder.is_dir():
        folder.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    if database_id is not None:
        write_whole(_note(folder), database_id.encode(), durable=False)


def forget(folder: Path) -> None:
    """Remove a job's folder and its notes."""
    remove_tree(folder)
    for note in (_note(folder), stretches_of(folder)):
        with suppress(OSError):
            note.unlink(missing_ok=True)


def prune(root: Path, now: float | None = None, *, in_use: Collection[Path] = ()) -> None:
    """Delete saved states beyond the newest :data:`KEPT_MAX`, or beyond :data:`BYTES_MAX` without the newest; with
    ``now`` (epoch seconds), also those older than :data:`AGE_MAX_S`. Those ``in_use`` stay."""
    kept = sorted(_all(root), key=lambda each: each.written_at, reverse=True)
    size = 0
    for place, each in enumerate(kept):
        size += each.bytes if place else 0
        old = now is not None and each.written_at < now - AGE_MAX_S
        if (place >= KEPT_MAX or size > BYTES_MAX or old) and each.folder not in in_use:
            forget(each.folder)


@dataclass
class Leftovers:
    """Deletes saved states that this host need not keep. ``now`` returns epoch seconds; ``in_use`` returns the folders
    of the current jobs' states."""

    root: Path
    now: Callable[[], float]
    in_use: Callable[[], Collection[Path]] = tuple
    _asked_at: float | None = None

    def drop(self, client: FleetClient) -> None:
        """Call :func:`prune`; then ask the receiver, until it is unavailable, about each job whose saved state is not
        in use and names the database that granted it. Delete the states of completed and cancelled jobs, and those that
        are older than the plan keeps states. Do nothing within :data:`ASK_EVERY_S` of the last call that did
        something."""
        now = self.now()
        if self._asked_at is not None and 0 <= now - self._asked_at < ASK_EVERY_S:
            return
        self._asked_at = now
        in_use = self.in_use()
        prune(self.root, now, in_use=in_use)
        for each in sorted(_all(self.root), key=lambda each: each.written_at):
            if each.folder in in_use:
                continue
            granted_by = _granted_by(each.folder)
            if granted_by is None:  # the note was lost: it is removed by age
                continue
            try:
                told = client.about(granted_by).job(each.folder.name)
            except (Refused, Stranger):
                continue  # unknown there, not visible to this host, or of another database: it is removed by age
            except (Unavailable, Unreachable):
                return
            status, keep_s = told["job"]["status"], told["keep_state_s"]
            if status in OVER or (keep_s is not None and 0 <= keep_s < now - each.written_at):
                why = f"is {status}" if status in OVER else "left it so long ago that the plan keeps it no longer"
                log.info("a trainer's saved state is dropped: job %s %s", each.folder.name[:12], why)
                forget(each.folder)


def stretches_of(folder: Path) -> Path:
    """Return the path of the note, beside a job's folder, of which host trained which epochs."""
    return folder.with_name(folder.name + _STRETCHES)


def _note(folder: Path) -> Path:
    return folder.with_name(folder.name + _GRANTED_BY)


def _granted_by(folder: Path) -> str | None:
    try:
        return _note(folder).read_text().strip() or None
    except (OSError, ValueError):
        return None


def _all(root: Path) -> Iterator[SavedState]:
    for folder in root.glob("*"):
        if folder.is_dir() and not folder.is_symlink():
            with suppress(OSError):
                yield SavedState.of(folder)

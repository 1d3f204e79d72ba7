"""Machines with two workers, as two GPUs need them: one folder of artifacts, a state folder each.

What decides here is the production code, on a real disk: the paths that a command line gives, the locks, the folders of
attempts, and what is pruned. Only in every eleventh fleet, so that all other seeds go on meaning what they meant.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Collection, Iterator
from pathlib import Path

from wire_builders import no_transfer

from training.fleet.process.supervise import LocalRunner
from training.fleet.worker import state_folder
from training.fleet.worker.attempt import TrainerAttempt
from training.fleet.worker.options import Options, options_of, parser
from training.fleet.worker.outbox import Outbox
from training.fleet.worker.state.events import Assignment
from training.fleet.worker.state_folder import AttemptFolders, StateFolder, StateFolderError

_EVERY, _SHARED = 11, 3
_KEPT = 1  # ended attempts, instead of twenty: a simulated worker has a handful of jobs


def is_shared(seed: int) -> bool:
    """Return True when the first two workers of this seed's fleet are on one machine."""
    return seed % _EVERY == _SHARED


@contextlib.contextmanager
def few_kept() -> Iterator[None]:
    """Let workers prune as if they had been running for weeks."""
    kept, state_folder.KEPT_ATTEMPTS = state_folder.KEPT_ATTEMPTS, _KEPT
    try:
        yield
    finally:
        state_folder.KEPT_ATTEMPTS = kept


class WorkerDisk:
    """The folders of one worker, and its hold on them while it runs."""

    def __init__(self, root: Path, host_id: str) -> None:
        """``root`` is the checkout from which it is started, its machine's only one."""
        root.mkdir(exist_ok=True)
        self._root = root
        self._host_id = host_id
        self.options = _options(root, host_id)
        self._held: StateFolder | None = None

    def begin(self) -> None:
        """Take the folders as the program does at its start. Raises StateError when another worker has one."""
        self._held = StateFolder(self.options.state_dir, self.options.own_folders)

    def end(self) -> None:
        """The program is over, and with it its locks."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def folders(self, assignment: Assignment) -> AttemptFolders:
        places = self.options.places
        return state_folder.folders_of(places.artifacts, places.reports, assignment)

    def make(self, assignment: Assignment, now: float) -> None:
        """The folders of an attempt that begins, stamped with the simulated time."""
        folders = self.folders(assignment)
        state_folder.make_folders(folders)
        folders.log.touch()  # as the launcher does
        for folder in (folders.out, folders.reports):
            os.utime(folder, (now, now))

    def discard(
        self,
        assignment: Assignment,
        outbox: Outbox,
        now: float,
        *,
        job_over: bool,
        delivered: bool,
        in_use: Collection[Assignment],
    ) -> None:
        """Tidy up after an attempt as the worker does, which prunes older ones."""
        with contextlib.suppress(FileNotFoundError):  # by its time an attempt without a folder goes
            os.utime(self.folders(assignment).log, (now, now))
        resume, places = self.options.resume / assignment.job_id[:64], self.options.places
        transfer = no_transfer(assignment, resume)
        attempt = TrainerAttempt(assignment, places, resume, outbox, LocalRunner(), lambda _: None, transfer=transfer)
        attempt.discard(job_over=job_over, delivered=delivered, in_use=in_use)

    def start_another(self, chance: random.Random) -> str | None:
        """Start a second worker by a mistake, drawn of three; the sentence that it is refused with, if it is."""
        name, state = self._host_id, str(self.options.state_dir)
        mistakes = [
            _options(self._root, name),  # started by hand beside the service
            _options(self._root, f"{name}-gpu1", "--state-dir", state),  # a copied unit file
            _options(self._root, name, "--state-dir", f"{state}-2"),  # one that lacks a name
        ]
        other = chance.choice(mistakes)
        try:
            StateFolder(other.state_dir, other.own_folders).close()
        except StateFolderError as error:
            return str(error)
        return None


def _options(root: Path, host_id: str, *flags: str) -> Options:
    return options_of(parser().parse_args(["--repo-root", str(root), "--host-id", host_id, *flags]))

"""Windows and features of one episode, cut by any process: the other part of a build that costs time.

What an episode gives depends on nothing but its samples and the :class:`CutPlan`. Its windows go to their places in the
new data set; its features are remembered like its samples, so that a build that was killed, or a second one, computes
only those that are new.
"""

from __future__ import annotations

import hashlib
import io
import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from training.data import absent as absences
from training.data import assemble, features, normalise
from training.data.absent import is_settled
from training.data.arrays import Codes, Floats32
from training.data.assemble import ChosenChannels, measured_values, windows_of
from training.data.errors import DataError
from training.data.extract import CODE_DIGEST, UNREADABLE, EpisodeFacts, Extract, digest_of, extract, load
from training.data.identity import sample_digests
from training.data.normalise import NormalReferences
from training.data.validate import EpisodeFindings
from training.files import write_whole

BLOCK_WINDOWS = 1024
CODE = digest_of(absences, assemble, features, normalise)


class KeptEpisode(NamedTuple):
    """An episode of a build: its facts, where it comes from, at which rate it was asked for, and its file of samples.

    ``sample_hz`` None: at its own.
    """

    facts: EpisodeFacts
    path: Path
    sample_hz: float | None
    samples: Path

    @property
    def verdict(self) -> EpisodeFindings:
        return self.facts.verdict

    def judged(self, verdict: EpisodeFindings) -> KeptEpisode:
        """The same under another verdict."""
        return self._replace(facts=replace(self.facts, verdict=verdict))

    def load(self) -> Extract:
        """The episode with its samples: from the memory, or where that was damaged from the recording."""
        return load(self.samples) or extract(self.path, self.sample_hz)


class CutPlan(NamedTuple):
    """The rules by which windows are cut, and the places of the results.

    ``begin`` is the byte of ``tensors`` at which windows begin. ``digests``: the file of those of the windows' samples
    (N, T); None: of references only windows are made.
    """

    chosen: ChosenChannels
    sample_hz: float
    window: int
    tensors: Path
    begin: int
    memory: Path
    digests: Path | None


class CutTask(NamedTuple):
    """An episode to be cut: its windows' first grid rows, what its host is measured by, and the number of the first."""

    episode: KeptEpisode
    rows: Codes
    references: NormalReferences
    first: int

    def features(self, plan: CutPlan) -> Path:
        """The file of its features, whose name says everything that they depend on."""
        rules = msgspec.json.encode((plan.chosen.channels, plan.chosen.views, plan.sample_hz, plan.window))
        total = hashlib.sha256(f"{CODE_DIGEST} {CODE} {self.episode.samples.name}".encode())
        for part in (rules, msgspec.json.encode(self.references), self.rows.tobytes()):
            total.update(hashlib.sha256(part).digest())
        return plan.memory / f"{total.hexdigest()[:40]}.npz"


def cut(plan: CutPlan, task: CutTask) -> None:
    """Cut an episode's windows into their places, and keep their features."""
    extracted, window, first = task.episode.load(), plan.window, task.first
    if not extracted.facts.rows or extracted.facts.rows != task.episode.facts.rows:
        raise DataError(f"{task.episode.path} changed while it was read: build again when nothing is written there.")
    channels = plan.chosen.channels
    values = measured_values(extracted, plan.chosen, task.references)
    for begin in range(0, task.rows.size, BLOCK_WINDOWS):
        X = windows_of(values, task.rows[begin : begin + BLOCK_WINDOWS], window)
        if np.isinf(X).any() or not is_settled(X):
            raise DataError(f"{task.episode.path} gives a window with a value that is not a finite number.")
        _put(plan.tensors, plan.begin + (first + begin) * X[0].nbytes, X)
    if plan.digests is None:
        return
    digests = sample_digests(np.ascontiguousarray(values.T), [channel.name for channel in channels])
    _put(plan.digests, first * 8 * window, np.lib.stride_tricks.sliding_window_view(digests, window)[task.rows])
    if task.features(plan).exists():
        return
    parts = [
        features.extract(windows_of(values, task.rows[begin : begin + BLOCK_WINDOWS], window), channels, plan.sample_hz)
        for begin in range(0, task.rows.size, BLOCK_WINDOWS)
    ]
    buffer = io.BytesIO()
    np.savez(buffer, features=np.concatenate(parts))
    write_whole(task.features(plan), buffer.getvalue(), durable=False)


def features_of(plan: CutPlan, task: CutTask) -> Floats32:
    """The features of an episode that was cut, (n, F); computed again where their file is damaged."""
    path = task.features(plan)
    for last in (False, True):
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                found: Floats32 = stored["features"]
                return found
        except UNREADABLE:
            if last:
                raise
            path.unlink(missing_ok=True)
            cut(plan, task)
    raise AssertionError("the second time returns or raises")


def _put(path: Path, at: int, rows: NDArray[np.generic]) -> None:
    """Write rows at a byte of a file, others of which another process may be writing.

    It is opened for writing alone: over a network, a page that was read to be changed is written back whole, and with
    it what another machine has written meanwhile.
    """
    with os.fdopen(os.open(path, os.O_WRONLY | getattr(os, "O_BINARY", 0)), "wb", buffering=0) as file:
        file.seek(at)
        left = np.ascontiguousarray(rows).data.cast("B")
        while left:
            left = left[file.write(left) :]

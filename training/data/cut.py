"""Cut episodes into windows and compute the windows' features, in one process or many: the second slow step of a build.

The windows of an episode depend only on its samples, its host's reference, and the rules in :class:`CutPlan` and
:class:`CutTask`. Each process writes its windows to their places in one file. Features are stored in a file for each
episode except references, so that the next build, also after a killed one, computes only new ones.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from training.clock import Clock
from training.contract import TENSORS_FOLDER
from training.data import absent as absences
from training.data import assemble, features, normalise
from training.data import tensors as tensor_files
from training.data.absent import absent, is_settled
from training.data.coded import Coded
from training.data.dataset import ManyWindows, WindowSet, write_features
from training.data.errors import DataError
from training.data.extract import CODE_DIGEST, UNREADABLE, EpisodeFacts, Extract, Loadable, digest_of, extract, load
from training.data.identity import sample_digests
from training.data.normalise import NormalReferences
from training.data.rows import CodedRows
from training.data.scratch import ROOM, blocks, fill, reserve
from training.data.tensors import WindowIndex
from training.data.validate import EpisodeFindings
from training.data.values import AnyArray, Codes, Digests, Floats32
from training.files import settle, write_whole

BLOCK_WINDOWS = 1024
CODE = digest_of(absences, assemble, features, normalise)


class KeptEpisode(NamedTuple):
    """An episode of a build: its facts, the recording's path, the wanted sampling rate, and the file that stores its
    samples.

    ``sample_hz`` is None for the recording's own rate.
    """

    facts: EpisodeFacts
    path: Path
    sample_hz: float | None
    samples: Path

    @property
    def verdict(self) -> EpisodeFindings:
        return self.facts.verdict

    def judged(self, verdict: EpisodeFindings) -> KeptEpisode:
        """Return a copy with another verdict."""
        return self._replace(facts=replace(self.facts, verdict=verdict))

    def load(self) -> Extract:
        """Return the episode with its samples: from the file ``samples``, or from the recording if that file is missing
        or damaged."""
        return load(self.samples) or extract(self.path, self.sample_hz)


class CutPlan(NamedTuple):
    """The rules by which windows are cut, and the files into which the results are written.

    ``begin`` is the position of the first window in the file ``tensors``, in bytes. ``digests`` is the file for the
    digests (N, T) of the windows' samples; None for reference episodes, which get neither digests nor features.
    """

    chosen: assemble.ChosenChannels
    sample_hz: float
    window: int
    tensors: Path
    begin: int
    memory: Path
    digests: Path | None


class CutTask(NamedTuple):
    """An episode to cut: the first grid row of each window, the reference of the episode's host, and the number in the
    data set of the episode's first window."""

    episode: KeptEpisode
    rows: Codes
    references: NormalReferences
    first: int

    def features(self, plan: CutPlan) -> Path:
        """Return the path of the file for this episode's features; its name is a digest of all on which the features
        depend."""
        rules = msgspec.json.encode((plan.chosen.channels, plan.chosen.views, plan.sample_hz, plan.window))
        total = hashlib.sha256(f"{CODE_DIGEST} {CODE} {self.episode.samples.name}".encode())
        for part in (rules, msgspec.json.encode(self.references), self.rows.tobytes()):
            total.update(hashlib.sha256(part).digest())
        return plan.memory / f"{total.hexdigest()[:40]}.npz"


def cut(plan: CutPlan, task: CutTask) -> None:
    """Cut an episode's windows, and write the windows to their place in the file; for other than reference episodes,
    also write digests and features.

    Raises DataError if the recording now has another number of grid rows, or a window has an infinite value or an only
    partly known channel.
    """
    extracted, window, first = task.episode.load(), plan.window, task.first
    if not extracted.facts.rows or extracted.facts.rows != task.episode.facts.rows:
        raise DataError(f"{task.episode.path} changed while it was read: build again when nothing is written there.")
    channels = plan.chosen.channels
    values = assemble.measured_values(extracted, plan.chosen, task.references)
    for begin in range(0, task.rows.size, BLOCK_WINDOWS):
        X = assemble.windows_of(values, task.rows[begin : begin + BLOCK_WINDOWS], window)
        if np.isinf(X).any() or not is_settled(X):
            raise DataError(f"{task.episode.path} gives a window with an infinite value or a partly known channel.")
        _put(plan.tensors, plan.begin + (first + begin) * X[0].nbytes, X)
    if plan.digests is None:
        return
    digests = sample_digests(np.ascontiguousarray(values.T), [channel.name for channel in channels])
    _put(plan.digests, first * 8 * window, np.lib.stride_tricks.sliding_window_view(digests, window)[task.rows])
    if task.features(plan).exists():
        return
    parts = [
        features.extract(
            assemble.windows_of(values, task.rows[begin : begin + BLOCK_WINDOWS], window), channels, plan.sample_hz
        )
        for begin in range(0, task.rows.size, BLOCK_WINDOWS)
    ]
    buffer = io.BytesIO()
    np.savez(buffer, features=np.concatenate(parts))
    write_whole(task.features(plan), buffer.getvalue(), durable=False)


def features_of(plan: CutPlan, task: CutTask) -> Floats32:
    """Return the features (n, F) of an episode that was cut, from their file; if the file is missing or damaged, cut
    the episode again."""
    path = task.features(plan)
    try:
        return _stored_features(path)
    except UNREADABLE:
        path.unlink(missing_ok=True)
        cut(plan, task)
        return _stored_features(path)


def _stored_features(path: Path) -> Floats32:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        found: Floats32 = stored["features"]
        return found


def _put(path: Path, at: int, rows: AnyArray) -> None:
    """Write rows into a file from the byte ``at``, while other processes may write other parts of the file.

    The file is opened for writing only, and not mapped. On a network file system, a changed page of a mapped file is
    written back whole, which would undo another machine's writes.
    """
    with os.fdopen(os.open(path, os.O_WRONLY | getattr(os, "O_BINARY", 0)), "wb", buffering=0) as file:
        file.seek(at)
        left = np.ascontiguousarray(rows).data.cast("B")
        while left:
            left = left[file.write(left) :]


# -- of all episodes ---------------------------------------------------------------------------------------------------

POOL_MIN, POOL_WINDOWS = 24, 8192  # fewer episodes, or windows, are worked on faster than processes start

E = TypeVar("E", bound=Loadable)


class BuildWork(NamedTuple):
    """The means of a build: ``mapped`` applies a function to many tasks in the engine's processes.

    ``progress`` is called with the name of a step and the share of that step that is done. ``always`` means that even a
    little work goes to the engine.
    """

    mapped: Callable[..., Iterator[Any]]
    progress: Callable[[str, float], None]
    clock: Clock
    always: bool = False  # of an engine that somebody named

    def done(self, what: str, function: Callable[[Any], Any], tasks: Sequence[Any], *, much: bool) -> Iterator[Any]:
        """Yield the results of all tasks, in order, and report progress; the engine computes them if ``much`` or
        ``always`` is True, else this process."""
        for number, result in enumerate((self.mapped if much or self.always else map)(function, tasks)):
            yield result
            self.progress(what, (number + 1) / len(tasks))


class PlannedWindows(NamedTuple, Generic[E]):
    """The N windows that will be cut: the first grid rows of each episode's windows, and a table row for each window,
    episode after episode."""

    episodes: list[E]
    places: list[Codes]
    rows: CodedRows

    @property
    def counts(self) -> Counter[str]:
        """The number of windows of each episode, by the episode's id."""
        return Counter(
            {e.facts.verdict.episode_id: rows.size for e, rows in zip(self.episodes, self.places, strict=True)}
        )

    @classmethod
    def of(cls, episodes: Sequence[E], sample_hz: float, options: assemble.BuildOptions) -> PlannedWindows[E] | None:
        """Return the windows of the episodes, in the order in which the episodes are given; None if no window fits in
        any."""
        placed = [(episode, assemble.places_of(episode.facts, sample_hz, options)) for episode in episodes]
        with_windows = [(episode, places) for episode, places in placed if places.rows.size]
        if not with_windows:
            return None
        window, _ = assemble.lengths(options, sample_hz)
        sizes = [places.rows.size for _, places in with_windows]
        size = sum(sizes)
        starts = (e.facts.meta.started_at + e.facts.start_s + p.rows / sample_hz for e, p in with_windows)
        start = ROOM.joined(starts, size, float)
        end = ROOM.joined((part + window / sample_hz for _, part in blocks(start)), size, float)
        names = sorted({name for _, places in with_windows for name in places.names})
        numbers = (np.array([names.index(name) for name in p.names], np.int32)[p.of] for _, p in with_windows)
        ids = [e.facts.verdict.episode_id for e, _ in with_windows]
        hosts = [e.facts.meta.host for e, _ in with_windows]
        own = ROOM.joined((np.full(n, i, np.int32) for i, n in enumerate(sizes)), size, np.int32)
        rows = CodedRows(
            episode=Coded(np.array(ids), own).renamed(ids),
            host=Coded(np.array(hosts), own).renamed(hosts),
            label=Coded.of(Coded(np.array(names), ROOM.joined(numbers, size, np.int32))),
            t_start=start,
            t_end=end,
        )
        return cls([e for e, _ in with_windows], [places.rows.astype(np.int32) for _, places in with_windows], rows)


def cut_at_once(
    planned: PlannedWindows[Extract], chosen: assemble.ChosenChannels, references: NormalReferences, window: int
) -> WindowSet:
    """Return the windows of a few episodes, cut in memory without any file."""
    parts = [
        assemble.windows_of(assemble.measured_values(one, chosen, references), rows, window)
        for one, rows in zip(planned.episodes, planned.places, strict=True)
    ]
    return WindowSet(X=np.concatenate(parts), rows=planned.rows.laid(planned.rows.label.laid()))


@dataclass(frozen=True, kw_only=True)
class CutWindows:
    """The facts about the windows that are known once all are cut; ``digests`` maps a temporary file, which the build
    deletes at its end."""

    index: WindowIndex
    features_sha256: str
    digests: Digests  # (N, T) of the samples
    absent: NDArray[np.uint8]  # (N, C)
    files: frozenset[Path]  # that are remembered


class Cutting(NamedTuple):
    """The rules by which a build cuts windows, and the folders of that build."""

    chosen: assemble.ChosenChannels
    measured: NormalReferences
    sample_hz: float
    options: assemble.BuildOptions
    new: Path
    scratch: Path
    memory: Path

    def references(self, planned: PlannedWindows[KeptEpisode], work: BuildWork) -> tensor_files.Placed:
        """Cut the windows of reference episodes into the new data set, without features; return them with their
        index."""
        plan, tasks = self._plan(planned, tensor_files.REFERENCE_TENSORS, None)
        for _ in work.done("references", partial(cut, plan), tasks, much=len(planned.rows) >= POOL_WINDOWS):
            pass
        return tensor_files.map_tensors(self._in_place(plan)), WindowIndex(planned.rows)

    def windows(self, planned: PlannedWindows[KeptEpisode], work: BuildWork) -> tuple[ManyWindows, CutWindows]:
        """Cut all windows into the new data set, and write the table of their features; return windows and facts.

        Raises DataError for a window without any value, and as :func:`cut` does.
        """
        size, window = len(planned.rows), assemble.lengths(self.options, self.sample_hz)[0]
        digests = self.scratch / "digests"
        with digests.open("wb") as empty:
            reserve(empty, 8 * window * size)
        plan, tasks = self._plan(planned, tensor_files.TENSORS, digests)
        index = WindowIndex(planned.rows)
        new = [task for task in tasks if not task.features(plan).exists()]
        much = len(new) >= POOL_MIN or sum(task.rows.size for task in new) >= POOL_WINDOWS
        done = work.done("cutting", partial(cut, plan), tasks, much=much)
        parts = (features_of(plan, task) for task, _ in zip(tasks, done, strict=True))
        features = write_features(self.new, index, self.chosen.channels, parts)
        X = tensor_files.map_tensors(self._in_place(plan))
        gone = ROOM.empty(X.shape[:2], np.uint8)
        fill(gone, (absent(part) for _, part in blocks(X)))
        if any(part.all(axis=1).any() for _, part in blocks(gone)):
            raise DataError("A window holds no value at all: leave it out.")
        found = CutWindows(
            index=index,
            features_sha256=features,
            digests=np.memmap(digests, np.uint64, "r", shape=(size, window)),
            absent=gone,
            files=frozenset(task.features(plan) for task in tasks),
        )
        return ManyWindows(X=X, rows=planned.rows), found

    def _in_place(self, plan: CutPlan) -> Path:
        """Move the file of finished windows into the new data set's folder; return its new path.

        The windows were cut in a folder whose name no other build uses. A worker that still runs after its build has
        ended finds no file to overwrite.
        """
        target = self.new / TENSORS_FOLDER / plan.tensors.name
        target.parent.mkdir(exist_ok=True)
        settle(plan.tensors, target)
        return target

    def _plan(
        self, planned: PlannedWindows[KeptEpisode], name: str, digests: Path | None
    ) -> tuple[CutPlan, list[CutTask]]:
        window, width = assemble.lengths(self.options, self.sample_hz)[0], len(self.chosen.channels)
        path = self.scratch / name
        plan = CutPlan(
            chosen=self.chosen,
            sample_hz=self.sample_hz,
            window=window,
            tensors=path,
            begin=tensor_files.begin_tensors(path, (len(planned.rows), width, window)),
            memory=self.memory,
            digests=digests,
        )
        tasks, first = [], 0
        for episode, rows in zip(planned.episodes, planned.places, strict=True):
            tasks.append(CutTask(episode, rows, self.measured.of(episode.facts.meta.host), first))
            first += rows.size
        return plan, tasks

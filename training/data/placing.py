"""The windows of all episodes, one behind the other: counted first, then cut by any process into their places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.clock import Clock
from training.contract import TENSORS_FOLDER
from training.data import tensors as tensor_files
from training.data.absent import lacking
from training.data.assemble import BuildOptions, ChosenChannels, lengths, places_of, starts_of
from training.data.coded import Coded
from training.data.cut import CutPlan, CutTask, KeptEpisode, Scratch, cut, features_of
from training.data.dataset import ManyWindows, write_features
from training.data.errors import DataError
from training.data.normalise import NormalReferences
from training.data.rows import CodedRows
from training.data.schema import ChannelSpec
from training.data.scratch import ROOM, blocks, reserve
from training.data.tensors import WindowIndex
from training.files import settle

POOL_MIN, POOL_WINDOWS = 24, 8192  # fewer episodes, or windows, are worked on faster than processes start
HASHED_BYTES = 1 << 22  # at a time


@dataclass(frozen=True, slots=True)
class BuildWork:
    """The engine of a build, and the receiver of its progress: the step, and the share of it that is done."""

    mapped: Callable[..., Iterator[Any]]
    progress: Callable[[str, float], None]
    clock: Clock
    always: bool = False  # of an engine that somebody named

    def done(self, what: str, function: Callable[[Any], Any], tasks: Sequence[Any], *, much: bool) -> Iterator[Any]:
        """The results of all tasks, in order; of ``much`` work by the engine."""
        for number, result in enumerate((self.mapped if much or self.always else map)(function, tasks)):
            yield result
            self.progress(what, (number + 1) / len(tasks))


@dataclass(frozen=True, slots=True)
class PlannedWindows:
    """The places of N windows: those of each episode, and a row for each window, in the order of the episodes."""

    episodes: list[KeptEpisode]
    places: list[NDArray[np.int32]]
    rows: CodedRows

    @property
    def counts(self) -> Counter[str]:
        """The number of windows of each episode."""
        return Counter({e.verdict.episode_id: rows.size for e, rows in zip(self.episodes, self.places, strict=True)})

    @classmethod
    def of(cls, episodes: Sequence[KeptEpisode], sample_hz: float, options: BuildOptions) -> PlannedWindows | None:
        """Place the windows of episodes in the order of their ids; None where there is none."""
        placed = [(episode, places_of(episode.facts, sample_hz, options)) for episode in episodes]
        with_windows = [(episode, places) for episode, places in placed if places.rows.size]
        if not with_windows:
            return None
        window, _ = lengths(options, sample_hz)
        sizes = [places.rows.size for _, places in with_windows]
        size = sum(sizes)
        start = ROOM.joined((starts_of(e.facts, p.rows, sample_hz) for e, p in with_windows), size, np.float64)
        end = ROOM.joined((part + window / sample_hz for _, part in blocks(start)), size, np.float64)
        names = sorted({name for _, places in with_windows for name in places.names})
        numbers = (np.array([names.index(name) for name in p.names], np.int32)[p.of] for _, p in with_windows)
        ids = [e.verdict.episode_id for e, _ in with_windows]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CutWindows:
    """All that is known of windows when the last is in its place. Files of ``digests`` and ``absent`` go afterwards."""

    index: WindowIndex
    tensor_sha256: str
    features_sha256: str
    digests: NDArray[np.uint64]  # (N, T) of the samples
    absent: NDArray[np.uint8]  # (N, C)
    files: frozenset[Path]  # that are remembered

    def optional(self, windows: ManyWindows, channels: Sequence[ChannelSpec]) -> tuple[str, ...]:
        """The channels that some host lacks."""
        lacks = lacking(blocks(self.absent), windows.rows.host)
        return tuple(sorted(channels[number].name for number in np.flatnonzero(lacks.any(axis=0)).tolist()))


@dataclass(frozen=True, slots=True)
class Cutting:
    """The rules by which a build cuts, and its folders."""

    chosen: ChosenChannels
    measured: NormalReferences
    sample_hz: float
    options: BuildOptions
    new: Path
    scratch: Path
    memory: Path

    def references(self, planned: PlannedWindows, work: BuildWork) -> tensor_files.Placed:
        """Cut the windows of reference recordings, which have no features."""
        plan, tasks = self._plan(planned, tensor_files.REFERENCE_TENSORS, None)
        for _ in work.done("references", partial(cut, plan), tasks, much=len(planned.rows) >= POOL_WINDOWS):
            pass
        return tensor_files.map_tensors(self._in_place(plan)), WindowIndex(planned.rows)

    def windows(self, planned: PlannedWindows, work: BuildWork) -> tuple[ManyWindows, CutWindows]:
        """Cut all windows, and write their features. Raises DataError for a window without any value."""
        size = len(planned.rows)
        window, width = lengths(self.options, self.sample_hz)[0], len(self.chosen.channels)
        scratch = Scratch(self.scratch / "digests", self.scratch / "absent")
        for path, length in ((scratch.digests, 8 * window * size), (scratch.absent, width * size)):
            with path.open("wb") as empty:
                reserve(empty, length)
        plan, tasks = self._plan(planned, tensor_files.TENSORS, scratch)
        index = WindowIndex(planned.rows)
        digest = tensor_files.begun_sha256(np.dtype("<f4"), (size, width, window))
        new = [task for task in tasks if not task.features(plan).exists()]
        much = len(new) >= POOL_MIN or sum(task.rows.size for task in new) >= POOL_WINDOWS

        def parts() -> Iterator[NDArray[np.float32]]:
            done, at = work.done("cutting", partial(cut, plan), tasks, much=much), plan.begin
            for task, _ in zip(tasks, done, strict=True):
                # Opened for each task: another machine's writing shows in a file that is opened after it was closed.
                with plan.tensors.open("rb", buffering=0) as file:
                    file.seek(at)
                    left = task.rows.size * width * window * 4
                    at += left
                    while left:
                        part = file.read(min(left, HASHED_BYTES))
                        digest.update(part)
                        left -= len(part)
                yield features_of(plan, task)

        features = write_features(self.new, index, self.chosen.channels, parts())
        found = CutWindows(
            index=index,
            tensor_sha256=digest.hexdigest(),
            features_sha256=features,
            digests=np.memmap(scratch.digests, np.uint64, "r", shape=(size, window)),
            absent=np.memmap(scratch.absent, np.uint8, "r", shape=(size, width)),
            files=frozenset(task.features(plan) for task in tasks),
        )
        if any(part.all(axis=1).any() for _, part in blocks(found.absent)):
            raise DataError("A window holds no value at all: leave it out.")
        return ManyWindows(X=tensor_files.map_tensors(self._in_place(plan)), rows=planned.rows), found

    def _in_place(self, plan: CutPlan) -> Path:
        """Move windows that are all there to where the data set has them.

        They were cut into a folder whose name no other build has: a worker that was given up, or whose build was
        killed, may continue, and finds no file to write into.
        """
        target = self.new / TENSORS_FOLDER / plan.tensors.name
        target.parent.mkdir(exist_ok=True)
        settle(plan.tensors, target)
        return target

    def _plan(self, planned: PlannedWindows, name: str, scratch: Scratch | None) -> tuple[CutPlan, list[CutTask]]:
        window, width = lengths(self.options, self.sample_hz)[0], len(self.chosen.channels)
        path = self.scratch / name
        plan = CutPlan(
            chosen=self.chosen,
            sample_hz=self.sample_hz,
            window=window,
            tensors=path,
            begin=tensor_files.begin_tensors(path, (len(planned.rows), width, window)),
            memory=self.memory,
            scratch=scratch,
        )
        tasks, first = [], 0
        for episode, rows in zip(planned.episodes, planned.places, strict=True):
            tasks.append(CutTask(episode, rows, self.measured.of(episode.facts.meta.host), first))
            first += rows.size
        return plan, tasks

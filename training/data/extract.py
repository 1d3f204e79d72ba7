"""One episode, read and judged: the part of a build that costs time and can be kept.

What was extracted is remembered under the file's name, size and modification time, so that a second build reads only
what is new. The memory may be deleted at any time. A build keeps the facts of all episodes, and the samples of one.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from training.data import channels, episode, identity, missing, validate, windows
from training.data.channels import Measure
from training.data.episode import PACKED_SUFFIX, EpisodeError, no_access, read
from training.data.errors import DataError
from training.data.validate import EpisodeFindings, judge, unreadable
from training.data.windows import Grid, to_grid
from training.files import write_whole

UNREADABLE = (OSError, DataError, ValueError, KeyError, EOFError, zipfile.BadZipFile, msgspec.MsgspecError)


def _code_digest() -> str:
    """Part of every key: under other code the same file may be judged or gridded differently."""
    total = hashlib.sha256()
    for module in (channels, episode, identity, missing, validate, windows):
        assert module.__file__ is not None
        total.update(Path(module.__file__).read_bytes())
    return total.hexdigest()


CODE_DIGEST = _code_digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeFacts:
    """An episode without its samples: the part that is in memory for all episodes of a build at once.

    ``holes`` are the grid's (`windows.Grid`), eight rows a byte, and ``rows`` are all rows of the grid.
    """

    verdict: EpisodeFindings
    label_t: NDArray[np.float64]
    label_phase: tuple[str, ...]
    end_s: float
    start_s: float = 0.0
    sample_hz: float = 0.0
    rows: int = 0
    holes: NDArray[np.uint8]

    @property
    def ground(self) -> Grid:
        """The grid without a value: where windows can lie."""
        holes = np.unpackbits(self.holes, count=self.rows).astype(bool)
        return Grid(self.start_s, self.sample_hz, np.empty((self.rows, 0), dtype=np.float32), holes)


@dataclass(frozen=True, slots=True)
class Extract:
    """The part of an episode that a build keeps.

    ``grid`` has the episode's own channels; None when it was not usable.
    """

    verdict: EpisodeFindings
    grid: Grid | None
    label_t: NDArray[np.float64]
    label_phase: tuple[str, ...]
    end_s: float

    @property
    def ground(self) -> Grid:
        """The grid."""
        assert self.grid is not None, "a good episode has one"
        return self.grid

    @property
    def facts(self) -> EpisodeFacts:
        """The same without its samples."""
        grid = self.grid or Grid(0.0, 0.0, np.empty((0, 0), dtype=np.float32), np.empty(0, dtype=bool))
        return EpisodeFacts(
            verdict=self.verdict,
            label_t=self.label_t,
            label_phase=self.label_phase,
            end_s=self.end_s,
            start_s=grid.start_s,
            sample_hz=grid.sample_hz,
            rows=len(grid.values),
            holes=np.packbits(grid.holes),
        )


def name_of(path: Path) -> str:
    return path.name.removesuffix(PACKED_SUFFIX)


def extract(path: Path, sample_hz: float | None = None) -> Extract:
    """Read, judge and grid one episode; at its own rate unless another is given. Never raises for bad content.

    Raises DataError for a file that cannot be read at all.
    """
    name = name_of(path)
    nothing: NDArray[np.float64] = np.empty(0)
    try:
        recording = read(path)
    except EpisodeError as error:
        return Extract(unreadable(name, str(error)), None, nothing, (), 0.0)
    verdict = judge(recording, name)
    if not verdict.ok:
        return Extract(verdict, None, nothing, (), 0.0)
    counters = np.array([c.kind == Measure.COUNTER for c in recording.meta.channels])
    grid = to_grid(recording.t, recording.values, counters, sample_hz or recording.meta.sample_hz)
    return Extract(verdict, grid, recording.label_t, recording.label_phase, float(recording.t[-1]))


def load(kept: Path) -> Extract | None:
    """An extract from its file; None where that is absent, torn or of another layout: read the episode again."""
    try:
        with kept.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            facts = _facts(stored)
            grid = Grid(facts.start_s, facts.sample_hz, stored["values"], facts.ground.holes)
            usable = grid if facts.sample_hz else None
            return Extract(facts.verdict, usable, facts.label_t, facts.label_phase, facts.end_s)
    except UNREADABLE:
        return None


def load_facts(kept: Path) -> EpisodeFacts | None:
    """The same without the samples, which are not read."""
    try:
        with kept.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return _facts(stored)
    except UNREADABLE:
        return None


def remember(found: Extract, kept: Path) -> None:
    """Write an extract into its file."""
    write_whole(kept, _encode(found), durable=False)


def remembered(task: tuple[Path, float | None, Path]) -> EpisodeFacts:
    """Read an episode and remember it, unless a worker that was lost afterwards has: path, wanted rate, its file."""
    path, sample_hz, kept = task
    if (known := load_facts(kept)) is not None:
        return known
    found = extract(path, sample_hz)
    remember(found, kept)
    return found.facts


def key(path: Path, sample_hz: float | None) -> str:
    """Changes with the file's name, size and time of change, and with what was asked. Raises DataError."""
    try:
        files = sorted(p for p in path.iterdir() if p.is_file()) if path.is_dir() else [path]
        stats = [(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in files]
    except OSError as error:
        raise no_access(error, path) from None
    text = f"{CODE_DIGEST} {sample_hz} {path.name} {stats}"
    return hashlib.sha256(text.encode()).hexdigest()[:40] + ".npz"


class _Info(msgspec.Struct):
    verdict: EpisodeFindings
    label_phase: tuple[str, ...]
    end_s: float
    start_s: float
    sample_hz: float
    rows: int


def _encode(found: Extract) -> bytes:
    facts = found.facts
    info = _Info(facts.verdict, facts.label_phase, facts.end_s, facts.start_s, facts.sample_hz, facts.rows)
    buffer = io.BytesIO()
    np.savez(
        buffer,
        info=np.frombuffer(msgspec.json.encode(info), dtype=np.uint8),
        values=np.empty((0, 0), dtype=np.float32) if found.grid is None else found.grid.values,
        holes=facts.holes,
        label_t=facts.label_t,
    )
    return buffer.getvalue()


def _facts(stored: Mapping[str, NDArray[Any]]) -> EpisodeFacts:
    info = msgspec.json.decode(stored["info"].tobytes(), type=_Info)
    return EpisodeFacts(
        verdict=info.verdict,
        label_t=stored["label_t"],
        label_phase=info.label_phase,
        end_s=info.end_s,
        start_s=info.start_s,
        sample_hz=info.sample_hz,
        rows=info.rows,
        holes=stored["holes"],
    )

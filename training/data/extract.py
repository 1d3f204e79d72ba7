"""One episode, read and judged: the part of a build that costs time and can be kept.

What was extracted is remembered under the file's name, size and modification time, so that a second build reads only
what is new. The memory may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from training.data import channels, episode, identity, missing, validate, windows
from training.data.channels import Kind
from training.data.episode import PACKED_SUFFIX, EpisodeError, no_access, read
from training.data.errors import DataError
from training.data.validate import Verdict, judge, unreadable
from training.data.windows import Grid, to_grid
from training.files import write_whole


def _code_digest() -> str:
    """Part of every key: under other code the same file may be judged or gridded differently."""
    total = hashlib.sha256()
    for module in (channels, episode, identity, missing, validate, windows):
        assert module.__file__ is not None
        total.update(Path(module.__file__).read_bytes())
    return total.hexdigest()


CODE_DIGEST = _code_digest()


@dataclass(frozen=True, slots=True)
class Extract:
    """The part of an episode that a build keeps.

    ``grid`` has the episode's own channels; None when it was not usable.
    """

    verdict: Verdict
    grid: Grid | None
    label_t: NDArray[np.float64]
    label_phase: tuple[str, ...]
    end_s: float


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
    counters = np.array([c.kind == Kind.COUNTER for c in recording.meta.channels])
    grid = to_grid(recording.t, recording.values, counters, sample_hz or recording.meta.sample_hz)
    return Extract(verdict, grid, recording.label_t, recording.label_phase, float(recording.t[-1]))


def remembered(path: Path, memory: Path, sample_hz: float | None = None) -> Extract | None:
    """Load what an earlier build kept of this very file, if anything."""
    try:
        return _decode((memory / key(path, sample_hz)).read_bytes())
    except (OSError, DataError, ValueError, KeyError, EOFError, zipfile.BadZipFile, msgspec.MsgspecError):
        return None  # absent, torn or of an older layout: read the episode again


def remember(found: Extract, path: Path, memory: Path, sample_hz: float | None = None) -> None:
    memory.mkdir(parents=True, exist_ok=True)
    target = memory / key(path, sample_hz)
    write_whole(target, _encode(found), durable=False)


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
    verdict: Verdict
    label_phase: tuple[str, ...]
    end_s: float
    start_s: float
    sample_hz: float


def _encode(found: Extract) -> bytes:
    grid = found.grid or Grid(0.0, 0.0, np.empty((0, 0), dtype=np.float32), np.empty(0, dtype=bool))
    info = _Info(found.verdict, found.label_phase, found.end_s, grid.start_s, grid.sample_hz)
    buffer = io.BytesIO()
    np.savez(
        buffer,
        info=np.frombuffer(msgspec.json.encode(info), dtype=np.uint8),
        values=grid.values,
        holes=grid.holes,
        label_t=found.label_t,
    )
    return buffer.getvalue()


def _decode(data: bytes) -> Extract:
    with np.load(io.BytesIO(data), allow_pickle=False) as stored:
        info = msgspec.json.decode(stored["info"].tobytes(), type=_Info)
        grid = Grid(info.start_s, info.sample_hz, stored["values"], stored["holes"])
        usable = grid if info.sample_hz else None
        return Extract(info.verdict, usable, stored["label_t"], info.label_phase, info.end_s)

"""Read and judge one episode, and store the result for later builds: the first slow step of a build.

The result's file name depends on the episode's name, size and modification time, the wanted rate, and the code of the
modules in ``CODE_DIGEST``. A later build with the same rate and code reads only new and changed episodes. The stored
results may be deleted at any time. A build keeps the facts of all episodes in memory, but in each of its processes the
samples of only one.
"""

import hashlib
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, Protocol, Self

import msgspec
import numpy as np

from training.certain import certain
from training.data import channels, episode, identity, missing, validate, windows
from training.data.channels import Measure
from training.data.episode import PACKED_SUFFIX, EpisodeError, Meta, no_access, read
from training.data.errors import DataError
from training.data.validate import EpisodeFindings, judge, unreadable
from training.data.values import Floats32
from training.data.windows import Grid, to_grid
from training.files import write_whole

UNREADABLE = (OSError, DataError, ValueError, KeyError, EOFError, zipfile.BadZipFile, msgspec.MsgspecError)


NOTHING = np.empty((0, 0), np.float32)


def digest_of(*modules: ModuleType) -> str:
    """Return the SHA-256 of these modules' source code, which is part of the file name of every stored result, because
    other code may give other results."""
    return hashlib.sha256(b"".join(Path(str(module.__file__)).read_bytes() for module in modules)).hexdigest()


CODE_DIGEST = digest_of(channels, episode, identity, missing, validate, windows)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeFacts:
    """An episode without its samples: the part that is in memory for all episodes of a build at once.

    ``rows`` is the number of rows of the episode's grid, 0 if the episode is not usable. ``holes`` has the grid's holes
    (`windows.Grid`) as bits, eight rows in a byte.
    """

    verdict: EpisodeFindings
    label_t: tuple[float, ...] = ()
    label_phase: tuple[str, ...] = ()
    end_s: float = 0.0
    start_s: float = 0.0
    sample_hz: float = 0.0
    rows: int = 0
    holes: bytes = b""

    @property
    def meta(self) -> Meta:
        return certain(self.verdict.meta, "a good episode has been read")

    @property
    def ground(self) -> Grid:
        """The episode's grid without values: its start, rate and holes, which determine the places of windows."""
        holes = np.unpackbits(np.frombuffer(self.holes, np.uint8), count=self.rows).astype(bool)
        return Grid(self.start_s, self.sample_hz, NOTHING, holes)


class Extract(NamedTuple):
    """An episode as a build uses it: its facts, and the ``values`` (G, C) of its grid, for its own channels."""

    facts: EpisodeFacts
    values: Floats32 = NOTHING

    def load(self) -> Self:
        """Return this object itself, which has its samples in memory."""
        return self


class Loadable(Protocol):
    """An episode whose samples ``load`` reads when they are needed."""

    @property
    def facts(self) -> EpisodeFacts: ...

    def load(self) -> Extract: ...


def extract(path: Path, sample_hz: float | None = None) -> Extract:
    """Read and judge one episode, and put its samples on an even grid with the rate ``sample_hz`` (None: the episode's
    rate).

    For an episode with bad content, the facts have the reasons against it, and there are no samples. Raises DataError
    if the system does not let the file be read; damaged or incomplete content becomes a reason in the facts.
    """
    name = path.name.removesuffix(PACKED_SUFFIX)
    try:
        recording = read(path)
    except EpisodeError as error:
        return Extract(EpisodeFacts(verdict=unreadable(name, str(error))))
    verdict = judge(recording, name)
    if not verdict.ok:
        return Extract(EpisodeFacts(verdict=verdict))
    counters = np.array([c.kind == Measure.COUNTER for c in recording.meta.channels])
    grid = to_grid(recording.t, recording.values, counters, sample_hz or recording.meta.sample_hz)
    facts = EpisodeFacts(
        verdict=verdict,
        label_t=tuple(recording.label_t.tolist()),
        label_phase=recording.label_phase,
        end_s=float(recording.t[-1]),
        start_s=grid.start_s,
        sample_hz=grid.sample_hz,
        rows=len(grid.values),
        holes=np.packbits(grid.holes).tobytes(),
    )
    return Extract(facts, grid.values)


def load(kept: Path, *, samples: bool = True) -> Extract | None:
    """Return the extract stored in the file ``kept``, without its values if ``samples`` is False; None if the file is
    missing or damaged."""
    try:
        with kept.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            facts = msgspec.json.decode(stored["facts"].tobytes(), type=EpisodeFacts)
            return Extract(facts, stored["values"] if samples else NOTHING)
    except UNREADABLE:
        return None


def load_facts(kept: Path) -> EpisodeFacts | None:
    """Return the facts of the extract stored in the file ``kept``; None if the file is missing or damaged."""
    found = load(kept, samples=False)
    return None if found is None else found.facts


def remembered(task: tuple[Path, float | None, Path]) -> EpisodeFacts:
    """Return the facts of an episode; extract the episode and store the result, unless the result is stored already.

    ``task`` has the episode's path, the wanted sampling rate (None for its own), and the file for the result.
    """
    path, sample_hz, kept = task
    if (known := load_facts(kept)) is not None:
        return known
    found = extract(path, sample_hz)
    buffer = io.BytesIO()
    np.savez(buffer, facts=np.frombuffer(msgspec.json.encode(found.facts), np.uint8), values=found.values)
    write_whole(kept, buffer.getvalue(), durable=False)
    return found.facts


def key(path: Path, sample_hz: float | None) -> str:
    """Return the file name for an episode's result.

    The name changes with the name, size and modification time of the episode's files, the wanted rate, and the code in
    ``CODE_DIGEST``. Raises DataError if the episode's files cannot be read.
    """
    try:
        files = sorted(p for p in path.iterdir() if p.is_file()) if path.is_dir() else [path]
        stats = [(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in files]
    except OSError as error:
        raise no_access(error, path) from None
    text = f"{CODE_DIGEST} {sample_hz} {path.name} {stats}"
    return hashlib.sha256(text.encode()).hexdigest()[:40] + ".npz"

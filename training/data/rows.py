"""The columns that accompany windows: each window's episode and host, its time, and its class."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike

from training.data.coded import Coded
from training.data.values import AnyArray, Floats, Names

MARK = "\x1f"  # between the parts of a mark: NumPy's texts lose a NUL at their end


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A row for each of N windows, in the windows' order; every array has length N.

    ``recording`` names the unit that splits and resampling keep together; in a data set that was read, episodes that
    share samples or time have the same name there. Times are seconds, or numbers of samples, according to the schema's
    ``time``; NaN if unknown. ``label`` has the names of classes while a data set is written, and their numbers in a
    data set that was read.
    """

    episode: Names
    host: Names
    t_start: Floats
    t_end: Floats
    label: AnyArray
    recording: Names
    window_id: Names | None = None  # None until the data set has been written

    def __post_init__(self) -> None:
        """Raise ValueError if the columns have different lengths."""
        shapes = {name: column.shape for name, column in self._columns().items()}
        if self.label.ndim != 1 or any(shape != self.label.shape for shape in shapes.values()):
            raise ValueError(f"every column must have one value a window, but the shapes are {shapes}")

    @classmethod
    def of(
        cls,
        *,
        episode: ArrayLike,
        host: ArrayLike,
        label: ArrayLike,
        t_start: ArrayLike | None = None,
        t_end: ArrayLike | None = None,
        recording: ArrayLike | None = None,
        window_id: ArrayLike | None = None,
    ) -> Rows:
        """Return rows made of plain arrays; times default to NaN (unknown), and ``recording`` to the episode."""
        labels = np.asarray(label)
        unknown = np.full(labels.shape, np.nan)
        return cls(
            episode=np.asarray(episode, str),
            host=np.asarray(host, str),
            t_start=unknown if t_start is None else np.asarray(t_start, float),
            t_end=unknown if t_end is None else np.asarray(t_end, float),
            label=labels if labels.dtype.kind == "U" else labels.astype(int),
            recording=np.asarray(episode if recording is None else recording, str),
            window_id=None if window_id is None else np.asarray(window_id, str),
        )

    def __len__(self) -> int:
        return int(self.label.size)

    def take(self, index: AnyArray) -> Rows:
        """Return the rows that ``index`` (row numbers or a mask) selects."""
        return Rows(**{name: column[index] for name, column in self._columns().items()})

    @property
    def marks(self) -> Names:
        """An array (N,) with a text for each window, made of its host, episode and start, to distinguish the windows of
        a data set."""
        named = zip(self.host.tolist(), self.episode.tolist(), self.t_start.tolist(), strict=True)
        return np.array([MARK.join((host, episode, f"{start:.6f}")) for host, episode, start in named], str)

    @property
    def coded(self) -> CodedRows:
        """These rows without ``recording`` and ``window_id``, in less memory: each name is stored only once."""
        names = {name: Coded.of(getattr(self, name)) for name in ("episode", "host", "label")}
        return CodedRows(**names, t_start=self.t_start, t_end=self.t_end)

    def _columns(self) -> dict[str, AnyArray]:
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: column for name, column in found.items() if column is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class CodedRows:
    """A row for each of N windows, in less memory than :class:`Rows`: each name is stored once, and the rows have its
    number."""

    episode: Coded
    host: Coded
    label: Coded
    t_start: Floats
    t_end: Floats

    def __len__(self) -> int:
        return len(self.label)

    @property
    def coded(self) -> CodedRows:
        """This object itself; :class:`Rows` has the same property, so that callers can use it for both classes."""
        return self

    def laid(self, label: AnyArray, recording: Names | None = None, window_id: Names | None = None) -> Rows:
        """Return these rows as :class:`Rows`, which hold episode and host by name, with the labels ``label``;
        ``recording`` defaults to the episode."""
        episode = self.episode.laid()
        return Rows(
            episode=episode,
            host=self.host.laid(),
            t_start=self.t_start,
            t_end=self.t_end,
            label=label,
            recording=episode if recording is None else recording,
            window_id=window_id,
        )

"""Names of many rows in little memory: each name once, and a number for each row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from training.data.scratch import ROOM, WIDE_ROWS, WorkingMemory, counted, spans

CODES_MAX = 1 << 24  # of two columns together that are numbered by a table


@dataclass(frozen=True, slots=True, eq=False)
class Coded:
    """The ``names``, different and ascending, and for each row the number of its own."""

    names: NDArray[np.str_]
    codes: NDArray[np.int32]

    @classmethod
    def of(cls, names: ArrayLike | Coded) -> Coded:
        """The same as an array of names; of those that occur."""
        if isinstance(names, Coded):
            there = counted(names.codes, names.names.size) > 0
            return names if there.all() else cls(names.names[there], _placed(names.codes, there, ROOM))
        found, codes = np.unique(np.asarray(names, dtype=np.str_), return_inverse=True)
        return cls(found, codes.astype(np.int32))

    @classmethod
    def of_series(cls, parts: Iterable[pl.Series], size: int, room: WorkingMemory = ROOM) -> Coded:
        """The same as the ``size`` strings of all parts, without nulls."""
        known: dict[str, int] = {}

        def coded() -> Iterator[NDArray[np.int32]]:
            for part in parts:
                words = part.unique().sort()
                place = np.array([known.setdefault(word, len(known)) for word in words.to_list()], dtype=np.int32)
                yield place[part.cast(pl.Enum(words)).to_physical().to_numpy()]

        codes = room.joined(coded(), size, np.int32)
        return cls(np.array(list(known), dtype=np.str_), codes).renamed(list(known), room)

    def renamed(self, names: Sequence[str], room: WorkingMemory = ROOM) -> Coded:
        """The rows under other names, one for each; equal ones become one."""
        found, place = np.unique(np.array(names, dtype=np.str_), return_inverse=True)
        if found.size == len(names) and (place[1:] > place[:-1]).all():
            return Coded(found, self.codes)
        parts = (place[self.codes[here]] for here in spans(self.codes))
        return Coded(found, room.joined(parts, self.codes.size, np.int32))

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, Coded) and np.array_equal(self.names, other.names)
        return same and isinstance(other, Coded) and np.array_equal(self.codes, other.codes)

    __hash__ = None  # type: ignore[assignment]

    def __getitem__(self, row: int) -> str:
        return str(self.names[self.codes[row]])

    def __len__(self) -> int:
        return int(self.codes.size)

    def take(self, rows: NDArray[Any] | slice) -> Coded:
        """The rows that numbers or booleans select."""
        return replace(self, codes=self.codes[rows])

    def strings(self, rows: NDArray[Any] | slice = slice(None)) -> NDArray[np.str_]:
        """Some rows as an array of names."""
        return np.asarray(self.names[self.codes[rows]])

    def laid(self, room: WorkingMemory = ROOM) -> NDArray[np.str_]:
        """All rows as an array of names, in memory or not."""
        return room.joined((self.strings(here) for here in spans(self.codes)), self.codes.size, self.names.dtype)

    def each(self, change: Callable[[NDArray[np.int32]], NDArray[Any]]) -> Coded:
        """The names of other rows: those whose numbers a change of all numbers gives."""
        return replace(self, codes=change(self.codes))

    def among(self, names: Iterable[str]) -> NDArray[np.bool_]:
        """Mark the rows of these names."""
        return np.isin(self.names, list(names))[self.codes]

    @property
    def present(self) -> NDArray[np.str_]:
        """The names that occur."""
        return np.asarray(self.names[counted(self.codes, self.names.size) > 0])


def distinct(names: NDArray[np.str_]) -> set[str]:
    """The names that occur."""
    return {name for here in spans(names) for name in set(names[here].tolist())}


def among(names: NDArray[np.str_], wanted: Iterable[str]) -> NDArray[np.bool_]:
    """Mark the rows of these names."""
    known, marks = np.array(sorted(wanted), dtype=np.str_), np.empty(names.size, dtype=bool)
    for here in spans(names, step=WIDE_ROWS):
        marks[here] = np.isin(names[here], known)
    return marks


def numbered(*columns: Coded, room: WorkingMemory = ROOM) -> NDArray[np.int32]:
    """A number for each row, equal where the columns' names are: ascending by the first column, then the next."""
    first, *others = columns
    there = counted(first.codes, first.names.size) > 0
    code, count = _placed(first.codes, there, room), int(there.sum())
    for column in others:
        count *= column.names.size
        if count <= CODES_MAX:
            parts = (
                code[here] * np.int32(column.names.size) + column.codes[here] for here in spans(code, column.codes)
            )
            code = room.joined(parts, code.size, np.int32)
            there = counted(code, count) > 0
            code, count = _placed(code, there, room), int(there.sum())
        else:
            found, whole = np.unique(code * np.int64(column.names.size) + column.codes, return_inverse=True)
            code, count = whole.astype(np.int32), found.size
    return code


def _placed(code: NDArray[np.int32], there: NDArray[np.bool_], room: WorkingMemory) -> NDArray[np.int32]:
    """The numbers of rows without those that none has."""
    if there.all():
        return code
    place = np.cumsum(there, dtype=np.int32) - np.int32(1)
    return room.joined((place[code[here]] for here in spans(code)), code.size, np.int32)

"""Store the names of many rows in little memory: each name once, and the name's number for each row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import ArrayLike

from training.data.scratch import ROOM, WIDE_ROWS, WorkingMemory, looked_up, spans
from training.data.values import AnyArray, Bools, Codes, Indices, Names

CODES_MAX = 1 << 24  # of two columns together that are numbered by a table


@dataclass(frozen=True, slots=True, eq=False)
class Coded:
    """A column of names: ``names`` has each name once, in ascending order, and ``codes`` the number of each row's
    name."""

    names: Names
    codes: Codes

    @classmethod
    def of(cls, names: ArrayLike | Coded) -> Coded:
        """Return a ``Coded`` of an array of names, or of another ``Coded``; only names that occur in a row are kept."""
        if isinstance(names, Coded):
            return cls(names.present, _placed(names.codes))
        found, codes = np.unique(np.asarray(names, str), return_inverse=True)
        return cls(found, codes.astype(np.int32))

    @classmethod
    def of_series(cls, parts: Iterable[pl.Series]) -> Coded:
        """Return the strings of all parts, one after another, as a ``Coded``. Raises TypeError for a null."""
        known: dict[str, int] = {}
        codes = [np.empty(0, np.int32)]
        for part in parts:
            words = part.unique().sort()
            place = np.array([known.setdefault(word, len(known)) for word in words.to_list()], np.int32)
            codes.append(place[part.cast(pl.Enum(words)).to_physical().to_numpy()])
        names, turned = np.unique(np.array(list(known), str), return_inverse=True)
        for some in codes:
            some[:] = turned[some]
        return cls(names, ROOM.joined(codes, sum(some.size for some in codes), np.int32))

    def renamed(self, names: Sequence[str]) -> Coded:
        """Return a copy in which each of ``names`` replaces the name at the same place in ``self.names``; names that
        become equal are merged."""
        found, place = np.unique(np.array(names, str), return_inverse=True)
        return Coded(found, looked_up(place.astype(np.int32), self.codes))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Coded):
            return False
        return np.array_equal(self.names, other.names) and np.array_equal(self.codes, other.codes)

    __hash__ = None  # type: ignore[assignment]

    def __getitem__(self, row: int) -> str:
        return str(self.names[self.codes[row]])

    def __len__(self) -> int:
        return int(self.codes.size)

    def take(self, rows: AnyArray | slice) -> Coded:
        """Return a ``Coded`` with only the rows that ``rows`` (row numbers, booleans or a slice) selects; its ``names``
        stay the same."""
        return replace(self, codes=self.codes[rows])

    def strings(self, rows: AnyArray | slice = slice(None)) -> Names:
        """Return the names of the selected rows as an array of strings."""
        return self.names[self.codes[rows]]

    def laid(self, room: WorkingMemory = ROOM) -> Names:
        """Return the names of all rows as an array of strings, which is in memory or, if large, in a file."""
        return room.joined((self.strings(here) for here in spans(self.codes)), self.codes.size, self.names.dtype)

    def among(self, names: Iterable[str]) -> Bools:
        """Return a mask of the rows whose name is one of ``names``."""
        return np.isin(self.names, list(names))[self.codes]

    @property
    def present(self) -> Names:
        """The names that occur in at least one row, ascending."""
        return self.names[occurring(self.codes, self.names.size)]


def distinct(names: Names) -> set[str]:
    """Return the different names in an array."""
    return {name for here in spans(names) for name in set(names[here].tolist())}


def among(names: Names, wanted: Iterable[str]) -> Bools:
    """Return a mask of the rows of an array whose name is one of ``wanted``."""
    known, marks = np.array(sorted(wanted), str), np.empty(names.size, bool)
    for here in spans(names, step=WIDE_ROWS):
        marks[here] = np.isin(names[here], known)
    return marks


def numbered(*columns: Coded) -> Codes:
    """Return a number for each row, from 0; two rows have equal numbers exactly if their names are equal in all
    columns.

    Numbers follow the order of the names, by the first column, then the next.
    """
    first, *others = columns
    code = _placed(first.codes)
    for column in others:
        code = _placed(code * np.int64(column.names.size) + column.codes)
    return code


def occurring(codes: Indices, count: int) -> Bools:
    """Return a mask of the numbers below ``count`` that occur in ``codes``; ``numpy.bincount`` would copy all codes as
    64 bits."""
    there = np.zeros(count, bool)
    for here in spans(codes):
        there[codes[here]] = True
    return there


def _placed(code: Indices) -> Codes:
    """Return the rows' numbers with the gaps between the numbers closed, in the same order."""
    count = int(code.max(initial=-1)) + 1
    if count > CODES_MAX:
        return np.asarray(np.unique(code, return_inverse=True)[1], np.int32)
    place = np.cumsum(occurring(code, count), dtype=np.int32) - np.int32(1)
    return looked_up(place, code)

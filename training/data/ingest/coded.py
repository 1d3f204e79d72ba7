"""Names of many rows in little memory: each name once, and a number for each row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

CODES_MAX = 1 << 24  # of two columns together that are numbered by a table


@dataclass(frozen=True, slots=True)
class Coded:
    """The ``names``, different and ascending, and for each row the number of its own."""

    names: NDArray[np.str_]
    codes: NDArray[np.int32]

    @classmethod
    def of(cls, names: ArrayLike | Coded) -> Coded:
        """The same as an array of names."""
        if isinstance(names, Coded):
            return names
        found, codes = np.unique(np.asarray(names, dtype=np.str_), return_inverse=True)
        return cls(found, codes.astype(np.int32))

    @classmethod
    def of_series(cls, parts: Iterable[pl.Series]) -> Coded:
        """The same as the strings of all parts, without nulls."""
        known: dict[str, int] = {}
        codes = [np.empty(0, dtype=np.int32)]
        for part in parts:
            words = part.unique().sort()
            place = np.array([known.setdefault(word, len(known)) for word in words.to_list()], dtype=np.int32)
            codes.append(place[part.cast(pl.Enum(words)).to_physical().to_numpy()])
        return cls(np.array(list(known), dtype=np.str_), np.concatenate(codes)).renamed(list(known))

    def renamed(self, names: Sequence[str]) -> Coded:
        """The rows under other names, one for each; equal ones become one."""
        found, place = np.unique(np.array(names, dtype=np.str_), return_inverse=True)
        return Coded(found, place.astype(np.int32)[self.codes] if len(names) else self.codes)

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

    @property
    def present(self) -> NDArray[np.str_]:
        """The names that occur."""
        return np.asarray(self.names[np.bincount(self.codes, minlength=self.names.size) > 0])


def numbered(*columns: Coded) -> NDArray[np.int32]:
    """A number for each row, equal where the columns' names are: ascending by the first column, then the next."""
    code: NDArray[np.int32] = np.zeros(len(columns[0]), dtype=np.int32)
    count = 1
    for column in columns:
        count *= column.names.size
        if count <= CODES_MAX:
            code = code * np.int32(column.names.size) + column.codes
            there = np.bincount(code, minlength=count) > 0
            place = np.cumsum(there, dtype=np.int32) - np.int32(1)
            code, count = place[code], int(there.sum())
        else:
            found, whole = np.unique(code * np.int64(column.names.size) + column.codes, return_inverse=True)
            code, count = whole.astype(np.int32), found.size
    return code

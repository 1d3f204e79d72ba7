"""Rows put in the order of their groups and times, column after column, however many there are.

Rows are dealt into buckets of neighbouring groups and times, of which each is sorted in memory: a file is then only
read and written from its beginning to its end. Equal rows keep their order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.data.ingest.times import is_out_of_order
from training.data.scratch import WorkingMemory, fill, release, spans

ROW_BYTES = 64  # of memory a row of a bucket, while it is sorted
SAMPLES = 64  # of the rows of each bucket, by which they are bounded


@dataclass(frozen=True, slots=True)
class RowOrder:
    """An order of rows; ``bucket`` (S) is the bucket of each, and ``place`` (S) where in it each of the sorted lay."""

    bucket: NDArray[np.uint16]
    edges: tuple[int, ...]  # the first row of each bucket, and the end
    place: NDArray[np.int32]
    room: WorkingMemory

    @classmethod
    def of(cls, t: NDArray[np.float64] | None, group: NDArray[np.int32], room: WorkingMemory) -> RowOrder | None:
        """The order by group and time; None where the rows stand in it."""
        if not any(
            is_out_of_order(group[here] if t is None else t[here], group[here]) for here in spans(group, t, overlap=1)
        ):
            return None
        buckets = min(1 << 15, -(-group.size * ROW_BYTES // room.part_bytes))
        drawn = np.linspace(0, group.size - 1, min(group.size, SAMPLES * buckets)).astype(np.int64)
        some = np.sort(_keys(None if t is None else t[drawn], group[drawn]))
        bounds = np.unique(some[np.arange(1, buckets) * some.size // buckets])
        parts = (
            np.searchsorted(bounds, _keys(None if t is None else t[here], group[here]), "right")
            for here in spans(group, t)
        )
        bucket = room.joined(parts, group.size, np.uint16)
        counts = sum((np.bincount(bucket[here], minlength=bounds.size + 1) for here in spans(bucket)), np.zeros(1, int))
        order = cls(bucket, (0, *np.cumsum(counts).tolist()), room.empty((group.size,), np.int32), room)
        dealt, dealt_t = order._dealt(group), None if t is None else order._dealt(t)
        for low, high in pairwise(order.edges):
            mine, at = dealt[low:high], None if dealt_t is None else dealt_t[low:high]
            order.place[low:high] = np.argsort(mine, kind="stable") if at is None else np.lexsort((at, mine))
            _release(dealt, dealt_t, order.place)
        return order

    def sorted(self, column: NDArray[Any]) -> NDArray[Any]:
        """A column (S) in this order."""
        return self.room.joined(self._parts(column), column.size, column.dtype)

    def sort(self, column: NDArray[Any]) -> None:
        """Bring a column (S) into this order, in its place."""
        fill(column, self._parts(column))

    def _parts(self, column: NDArray[Any]) -> Iterator[NDArray[Any]]:
        dealt = self._dealt(column)
        for low, high in pairwise(self.edges):
            yield np.array(dealt[low:high][self.place[low:high]])
            _release(dealt, self.place)

    def _dealt(self, column: NDArray[Any]) -> NDArray[Any]:
        """The column's values bucket by bucket."""
        dealt = self.room.empty(column.shape, column.dtype)
        at = list(self.edges)
        for here in spans(self.bucket, column):
            of = self.bucket[here]
            values = column[here][np.argsort(of, kind="stable")]
            ends = np.cumsum(np.bincount(of, minlength=len(at) - 1)).tolist()
            for number, (low, high) in enumerate(pairwise([0, *ends])):
                dealt[at[number] : at[number] + high - low] = values[low:high]
                at[number] += high - low
            release(dealt)
        return dealt


def _keys(t: NDArray[np.float64] | None, group: NDArray[np.int32]) -> NDArray[np.complex128]:
    """Numbers in the order of groups and times: complex ones are compared by their first part, then the other."""
    keys = group.astype(np.complex128)
    if t is not None:
        keys.imag = t
    return keys


def _release(*arrays: NDArray[Any] | None) -> None:
    for array in arrays:
        if array is not None:
            release(array)

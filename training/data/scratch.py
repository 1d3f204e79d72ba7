"""Arrays that may be larger than memory: they lie in files without a name, and are walked through block by block.

A file without a name is gone with its process, however that ends. Pages of a file that were read count as memory of the
process until it gives them back, which each walk does behind each block.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

PART_BYTES = 1 << 25
TOUCHES = 16  # of places in a file before its pages are given back
SPAN_ROWS = 1 << 20  # that are worked on at a time, of a few numbers each
WIDE_ROWS = 1 << 15  # and of some thousand
LARGE_FILES = Path("/var/tmp")  # where /tmp may lie in memory  # noqa: S108 - files there have no name


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkingMemory:
    """The memory that a step may take: results do not depend on it.

    ``part_bytes`` are worked on at a time, and a larger array lies in a file without a name. ``progress`` gets the
    step, and the share that is done.
    """

    part_bytes: int = PART_BYTES
    folder: Path | None = None  # of those files; None: the system's for large temporary ones
    progress: Callable[[str, float], None] = lambda _what, _share: None

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike, order: Literal["C", "F"] = "C") -> NDArray[Any]:
        """An array, in memory or not. Raises OSError where the disk has no room for it."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if size <= self.part_bytes:
            return np.empty(shape, dtype, order)
        folder = str(self.folder or folder_of_large_files())
        with tempfile.TemporaryFile(dir=folder) as file:
            try:
                reserve(file, size)
            except OSError as error:
                raise OSError(error.errno, error.strerror, folder) from None
            return np.memmap(file, dtype, "r+", shape=shape, order=order)

    def rows(self, bytes_a_row: int) -> int:
        """The number of rows in a part."""
        return max(1, self.part_bytes // max(1, bytes_a_row))

    def taken(self, array: NDArray[Any], keep: NDArray[np.bool_]) -> NDArray[Any]:
        """The rows of the array that ``keep`` selects."""
        if keep.all():
            return array
        result = self.empty((int(np.count_nonzero(keep)), *array.shape[1:]), array.dtype)
        fill(result, (part[keep[start : start + len(part)]] for start, part in blocks(array, self.part_bytes)))
        return result

    def joined(self, parts: Iterable[NDArray[Any]], size: int, dtype: DTypeLike) -> NDArray[Any]:
        """Arrays of one dimension as one of ``size`` values."""
        result = self.empty((size,), dtype)
        fill(result, parts)
        return result

    def at_rows(self, array: NDArray[Any], rows: NDArray[np.integer[Any]]) -> NDArray[Any]:
        """The rows of these numbers."""
        return self.joined((np.asarray(array[rows[here]]) for here in spans(rows, array)), rows.size, array.dtype)


ROOM = WorkingMemory()


def reserve(file: IO[bytes], size: int) -> None:
    """Make a file so long, and let it keep the room: else a full disk ends a program at the first page it lacks."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:
        file.truncate(size)


def folder_of_large_files() -> str:
    """The folder of temporary files that are too large for memory."""
    named = any(os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    return tempfile.gettempdir() if named or not os.access(LARGE_FILES, os.W_OK) else str(LARGE_FILES)


def blocks(array: NDArray[Any], part_bytes: int = PART_BYTES) -> Iterator[tuple[int, NDArray[Any]]]:
    """Walk through the rows of an array: each block with its first row's number."""
    step = max(1, part_bytes // max(1, math.prod(array.shape[1:]) * array.itemsize))
    for start in range(0, len(array), step):
        yield start, array[start : start + step]
        release(array)


def spans(*arrays: NDArray[Any] | None, overlap: int = 0, step: int = SPAN_ROWS) -> Iterator[slice]:
    """Walk through arrays of one length side by side: slices of some rows, each beginning ``overlap`` rows early."""
    there = [array for array in arrays if array is not None]
    size = len(there[0])
    for start in range(0, size, step):
        yield slice(max(0, start - overlap), min(size, start + step))
        for array in there:
            release(array)


def fill(target: NDArray[Any], parts: Iterable[NDArray[Any]]) -> int:
    """Put arrays one behind the other at the beginning of another, and count their rows."""
    at = 0
    for part in parts:
        target[at : at + len(part)] = part
        at += len(part)
        release(target)
    return at


def put(target: NDArray[Any], array: NDArray[Any], keep: NDArray[np.bool_] | None = None) -> int:
    """Put an array, or what ``keep`` selects of it, at the beginning of another (or of itself), and count it."""
    return fill(target, (np.array(array[here] if keep is None else array[here][keep[here]]) for here in spans(array)))


def edges_of(group: NDArray[np.integer[Any]]) -> list[tuple[int, int]]:
    """Find where each group of rows that stand together begins and ends."""
    changes = [here.start + np.flatnonzero(np.diff(group[here])) + 1 for here in spans(group, overlap=1)]
    return list(pairwise([0, *np.concatenate(changes).tolist(), group.size])) if group.size else []


def counted(numbers: NDArray[np.integer[Any]], least: int) -> NDArray[np.int64]:
    """Count how often each number from 0 on occurs, ``least`` counts at least."""
    counts = np.zeros(least, dtype=np.int64)
    for here in spans(numbers):
        part = np.bincount(numbers[here], minlength=counts.size)
        part[: counts.size] += counts
        counts = part
    return counts


def quantile(column: NDArray[Any], q: float) -> float:
    """The quantile of the known values in an array of one dimension, interpolated linearly; NaN where there is none.

    It is exact, of any number of values: of more than a few millions their bits are looked at as by :func:`median`.
    """

    def parts() -> Iterator[NDArray[np.float64]]:
        for here in spans(column):
            part = column[here].astype(np.float64)
            yield part[~np.isnan(part)]

    if column.size <= 2 * SPAN_ROWS:
        few = np.concatenate([np.empty(0), *parts()])
        return float(np.quantile(few, q)) if few.size else math.nan
    place = q * (sum(part.size for part in parts()) - 1)
    if place < 0:
        return math.nan
    low, high = _of_rank(parts, math.floor(place)), _of_rank(parts, math.ceil(place))
    return low + (high - low) * (place - math.floor(place))


def median(parts: Callable[[], Iterable[NDArray[np.float64]]]) -> float:
    """The median of all values in arrays that come some at a time, and may be asked for several times.

    Their bits are looked at sixteen by sixteen, as bits of numbers have the numbers' order; NaN where there are none.
    """
    size = 0
    few: list[NDArray[np.float64]] = []
    for part in parts():
        size += part.size
        few = [*few, part] if size <= 2 * SPAN_ROWS else []
    if size <= 2 * SPAN_ROWS:
        return float(np.median(np.concatenate(few))) if size else math.nan
    return sum(_of_rank(parts, rank) for rank in ((size - 1) // 2, size // 2)) / 2


def _of_rank(parts: Callable[[], Iterable[NDArray[np.float64]]], rank: int) -> float:
    """The value before which so many others come."""
    prefix = np.uint64(0)
    for shift in (48, 32, 16, 0):
        counts = np.zeros(1 << 16, dtype=np.int64)
        for part in parts():
            bits = _ordered_bits(part) >> np.uint64(shift)
            mine = bits if shift == 48 else bits[bits >> np.uint64(16) == prefix]
            counts += np.bincount((mine & np.uint64(0xFFFF)).astype(np.int64), minlength=1 << 16)
        below = np.cumsum(counts)
        found = int(np.searchsorted(below, rank, "right"))
        rank -= int(below[found] - counts[found])
        prefix = (prefix << np.uint64(16)) | np.uint64(found)
    negative = not prefix >> np.uint64(63)
    return float((~prefix if negative else prefix ^ np.uint64(1 << 63)).view(np.float64))


def _ordered_bits(values: NDArray[np.float64]) -> NDArray[np.uint64]:
    bits = np.ascontiguousarray(values, dtype=np.float64).view(np.uint64)
    return np.where(bits >> np.uint64(63), ~bits, bits | np.uint64(1 << 63))


def picked(array: NDArray[Any], rows: NDArray[np.integer[Any]]) -> NDArray[Any]:
    """The rows of these numbers, from all over an array: one touch of a file may map two MiB around it."""
    if _mapped(array) is None or not rows.size:
        return np.asarray(array[rows])
    parts = []
    for start in range(0, rows.size, TOUCHES):
        parts.append(np.asarray(array[rows[start : start + TOUCHES]]))
        release(array)
    return np.concatenate(parts)


def sliced(array: NDArray[Any], low: int, high: int) -> NDArray[Any]:
    """Some rows of an array (S, C) whose columns lie one behind the other."""
    part = np.empty((high - low, array.shape[1]), array.dtype, "F")
    for first in range(0, array.shape[1], TOUCHES):
        part[:, first : first + TOUCHES] = array[low:high, first : first + TOUCHES]
        release(array)
    return part


def release(array: NDArray[Any]) -> None:
    """Give back the pages of an array that lies in a file; what was written stays in the file."""
    mapped = _mapped(array)
    if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def _mapped(array: NDArray[Any]) -> mmap.mmap | None:
    """The mapping of the file that an array lies in, if changes go into the file."""
    base: Any = array
    mode = ""
    while isinstance(base, np.ndarray):
        mode = base.mode if isinstance(base, np.memmap) else mode
        base = base.base
    return base if isinstance(base, mmap.mmap) and mode != "c" else None

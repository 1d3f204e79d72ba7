"""Arrays that may be larger than memory: they are stored in unnamed files and processed block by block.

The system deletes an unnamed file when its process ends for any reason. Pages read from a file count as memory of the
process until it frees them, which every loop here does after each block.
"""

import math
import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from training.data.values import AnyArray, Bools, Indices

PART_BYTES = 1 << 25
TOUCHES = 16  # of places in a file before its pages are given back
SPAN_ROWS = 1 << 20  # that are worked on at a time, of a few numbers each
WIDE_ROWS = 1 << 15  # and of some thousand
LARGE_FILES = Path("/var/tmp")  # where /tmp may lie in memory  # noqa: S108 - files there have no name


class WorkingMemory(NamedTuple):
    """The memory that a step may use; results do not depend on it.

    ``part_bytes`` are processed at a time, and a larger array is stored in an unnamed file. ``progress`` gets the step,
    and the share that is done.
    """

    part_bytes: int = PART_BYTES
    folder: Path | None = None  # of those files; None: the system's for large temporary ones
    progress: Callable[[str, float], None] = lambda _what, _share: None

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike, order: Literal["C", "F"] = "C") -> AnyArray:
        """Make an array, in memory or in an unnamed file. Raises OSError where the disk has no room for it."""
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

    def taken(self, array: AnyArray, keep: Bools) -> AnyArray:
        """The rows of the array that ``keep`` selects."""
        if keep.all():
            return array
        result = self.empty((int(np.count_nonzero(keep)), *array.shape[1:]), array.dtype)
        fill(result, (part[keep[start : start + len(part)]] for start, part in blocks(array, self.part_bytes)))
        return result

    def joined(self, parts: Iterable[AnyArray], size: int, dtype: DTypeLike) -> AnyArray:
        """Arrays of one dimension as one of ``size`` values."""
        result = self.empty((size,), dtype)
        fill(result, parts)
        return result


ROOM = WorkingMemory()


def reserve(file: IO[bytes], size: int) -> None:
    """Make a file so long, and allocate its disk space: otherwise a full disk kills a program at the first missing
    page."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:
        file.truncate(size)


def folder_of_large_files() -> str:
    """The folder of temporary files that are too large for memory."""
    named = any(os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    return tempfile.gettempdir() if named or not os.access(LARGE_FILES, os.W_OK) else str(LARGE_FILES)


def blocks(array: AnyArray, part_bytes: int = PART_BYTES) -> Iterator[tuple[int, AnyArray]]:
    """Yield blocks of an array's rows, each with its first row's number."""
    step = max(1, part_bytes // max(1, math.prod(array.shape[1:]) * array.itemsize))
    for start in range(0, len(array), step):
        yield start, array[start : start + step]
        release(array)


def spans(*arrays: AnyArray | None, overlap: int = 0, step: int = SPAN_ROWS) -> Iterator[slice]:
    """Yield slices of some rows of equally long arrays, each beginning ``overlap`` rows early."""
    there = [array for array in arrays if array is not None]
    size = len(there[0])
    for start in range(0, size, step):
        yield slice(max(0, start - overlap), min(size, start + step))
        for array in there:
            release(array)


def fill(target: AnyArray, parts: Iterable[AnyArray]) -> int:
    """Copy arrays one after another into the beginning of another, and count their rows."""
    at = 0
    for part in parts:
        target[at : at + len(part)] = part
        at += len(part)
        release(target)
    return at


def edges_of(group: Indices) -> list[tuple[int, int]]:
    """Find where each group of consecutive rows begins and ends."""
    changes = np.flatnonzero(np.diff(group)) + 1
    return list(pairwise([0, *changes.tolist(), group.size])) if group.size else []


def columns(array: AnyArray) -> Iterator[AnyArray]:
    """Yield the columns of an array (S, C)."""
    for place in range(array.shape[1]):
        yield array[:, place]
        release(array)


def picked(array: AnyArray, rows: Indices) -> AnyArray:
    """Copy the rows of these numbers from all over an array: mapping one row may map two MiB of a file."""
    if _mapped(array) is None or not rows.size:
        return np.asarray(array[rows])
    parts = []
    for start in range(0, rows.size, TOUCHES):
        parts.append(np.asarray(array[rows[start : start + TOUCHES]]))
        release(array)
    return np.concatenate(parts)


def release(array: AnyArray) -> None:
    """Free the memory pages of an array in a file; what was written stays in the file."""
    mapped = _mapped(array)
    if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def _mapped(array: AnyArray) -> mmap.mmap | None:
    """The mapping of the file that an array lies in, if changes go into the file."""
    base: Any = array
    mode = ""
    while isinstance(base, np.ndarray):
        mode = base.mode if isinstance(base, np.memmap) else mode
        base = base.base
    return base if isinstance(base, mmap.mmap) and mode != "c" else None

"""Arrays that may be larger than memory: they lie in files without a name, and are walked through block by block.

A file without a name is gone with its process, however that ends. Pages of a file that were read count as memory of the
process until it gives them back, which each walk does behind each block.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

PART_BYTES = 1 << 25
TOUCHES = 16  # of places in a file before its pages are given back
LARGE_FILES = Path("/var/tmp")  # where /tmp may lie in memory  # noqa: S108 - files there have no name


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The memory that a step may take: results do not depend on it.

    ``part_bytes`` are worked on at a time, and a larger array lies in a file without a name. ``progress`` is told what
    is done, and the share of it that is.
    """

    part_bytes: int = PART_BYTES
    folder: Path | None = None  # of those files; None: the system's for large temporary ones
    progress: Callable[[str, float], None] = lambda _what, _share: None

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike, order: Literal["C", "F"] = "C") -> NDArray[Any]:
        """An array, in memory or not. Raises OSError where the disk has no room for it."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if size <= self.part_bytes:
            return np.empty(shape, dtype, order)
        folder = str(self.folder or _folder())
        with tempfile.TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):  # else a full disk ends the program at the first page it lacks
                try:
                    os.posix_fallocate(file.fileno(), 0, size)
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
        result = self.empty((int(keep.sum()), *array.shape[1:]), array.dtype)
        at = 0
        for start, part in blocks(array, self.part_bytes):
            some = part[keep[start : start + len(part)]]
            result[at : at + len(some)] = some
            at += len(some)
            release(result)
        return result


ROOM = Room()


def _folder() -> str:
    named = any(os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    return tempfile.gettempdir() if named or not os.access(LARGE_FILES, os.W_OK) else str(LARGE_FILES)


def blocks(array: NDArray[Any], part_bytes: int = PART_BYTES) -> Iterator[tuple[int, NDArray[Any]]]:
    """Walk through the rows of an array: each block with its first row's number."""
    step = max(1, part_bytes // max(1, math.prod(array.shape[1:]) * array.itemsize))
    for start in range(0, len(array), step):
        yield start, array[start : start + step]
        release(array)


def columns(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Walk through the columns of an array (S, C)."""
    for place in range(array.shape[1]):
        yield array[:, place]
        release(array)


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

"""Make and process arrays that may be larger than memory: they are stored in unnamed files, and processed in blocks.

The system deletes an unnamed file when its process ends for any reason. Pages read from a file count as the process's
memory until the process frees them, which the functions of this module do after each block.
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
from training.files import folder_of_large_files

PART_BYTES = 1 << 24
TOUCHES = 16  # of places in a file before its pages are given back
SPAN_ROWS = 1 << 17  # that are worked on at a time, of a few numbers each
WIDE_ROWS = 1 << 15  # and of some thousand


class WorkingMemory(NamedTuple):
    """The memory that a step may use; the amount does not change results.

    Arrays are processed ``part_bytes`` at a time, and a larger array is stored in an unnamed file. ``progress`` is
    called with the name of the step and the share of it that is done.
    """

    part_bytes: int = PART_BYTES
    folder: Path | None = None  # of those files; None: the system's for large temporary ones
    progress: Callable[[str, float], None] = lambda _what, _share: None
    unpacked_max: float | None = None  # bytes that a packed file may become; None: by its own size

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike, order: Literal["C", "F"] = "C") -> AnyArray:
        """Return a new array with undefined values, in memory or in an unnamed file. Where the system can reserve
        space, raises OSError if the disk has no room for the array."""
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
        """Return the number of rows of ``bytes_a_row`` bytes that are processed at a time, at least 1."""
        return max(1, self.part_bytes // max(1, bytes_a_row))

    def taken(self, array: AnyArray, keep: Bools) -> AnyArray:
        """Return the rows of the array that the mask ``keep`` selects; the array itself if those are all."""
        if keep.all():
            return array
        result = self.empty((int(np.count_nonzero(keep)), *array.shape[1:]), array.dtype)
        fill(result, (part[keep[start : start + len(part)]] for start, part in blocks(array, self.part_bytes)))
        return result

    def joined(self, parts: Iterable[AnyArray], size: int, dtype: DTypeLike) -> AnyArray:
        """Return one array with the values of all ``parts``, arrays of one dimension with ``size`` values together."""
        result = self.empty((size,), dtype)
        fill(result, parts)
        return result


ROOM = WorkingMemory()


def reserve(file: IO[bytes], size: int) -> None:
    """Set a file's length to ``size`` bytes and, where the system can, allocate the disk space.

    Without the space, a full disk would kill the program when it writes to a mapped page.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:
        file.truncate(size)


def blocks(array: AnyArray, part_bytes: int = PART_BYTES) -> Iterator[tuple[int, AnyArray]]:
    """Yield the rows of an array in blocks of at most ``part_bytes``, but at least one row, each as (number of its
    first row, rows)."""
    step = max(1, part_bytes // max(1, math.prod(array.shape[1:]) * array.itemsize))
    for start in range(0, len(array), step):
        yield start, array[start : start + step]
        release(array)


def spans(*arrays: AnyArray | None, overlap: int = 0, step: int = SPAN_ROWS) -> Iterator[slice]:
    """Yield slices of at most ``step`` rows that together cover arrays of equal length; each but the first also has the
    ``overlap`` rows before."""
    there = [array for array in arrays if array is not None]
    size = len(there[0])
    for start in range(0, size, step):
        yield slice(max(0, start - overlap), min(size, start + step))
        for array in there:
            release(array)


def fill(target: AnyArray, parts: Iterable[AnyArray]) -> int:
    """Copy the ``parts`` one after another into ``target``, from its first row on; return the number of rows copied."""
    at = 0
    for part in parts:
        target[at : at + len(part)] = part
        at += len(part)
        release(target)
    return at


def looked_up(table: AnyArray, numbers: AnyArray, room: WorkingMemory = ROOM) -> AnyArray:
    """Return ``table[numbers]``, in memory or, if large, in a file; one number that is repeated by broadcasting gives
    an array that is as well."""
    if numbers.strides == (0,) and numbers.size:
        return np.broadcast_to(table[numbers[0]], numbers.shape)
    found = room.joined((table[numbers[here]] for here in spans(numbers)), numbers.size, table.dtype)
    release(table)
    return found


def edges_of(group: Indices) -> list[tuple[int, int]]:
    """Return the (first row, row after the last) of each run of equal numbers in ``group``."""
    parts = [here.start + 1 + np.flatnonzero(np.diff(group[here])) for here in spans(group, overlap=1)]
    return list(pairwise([0, *np.concatenate(parts).tolist(), group.size])) if parts else []


def columns(array: AnyArray) -> Iterator[AnyArray]:
    """Yield the C columns of an array (S, C), one after another."""
    for place in range(array.shape[1]):
        yield array[:, place]
        release(array)


def picked(array: AnyArray, rows: Indices) -> AnyArray:
    """Return a copy of the rows with these numbers, freeing memory often, because reading one row may map two MiB of a
    file."""
    if _mapped(array) is None or not rows.size:
        return np.asarray(array[rows])
    parts = []
    for start in range(0, rows.size, TOUCHES):
        parts.append(np.asarray(array[rows[start : start + TOUCHES]]))
        release(array)
    return np.concatenate(parts)


def release(array: AnyArray) -> None:
    """Free the memory pages of an array that is stored in a file; its values stay in the file. Arrays in memory are
    left as they are."""
    mapped = _mapped(array)
    if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def _mapped(array: AnyArray) -> mmap.mmap | None:
    """Return the memory map in which an array is stored; None if there is none, or its changes do not reach the
    file."""
    base: Any = array
    mode = ""
    while isinstance(base, np.ndarray):
        mode = base.mode if isinstance(base, np.memmap) else mode
        base = base.base
    return base if isinstance(base, mmap.mmap) and mode != "c" else None

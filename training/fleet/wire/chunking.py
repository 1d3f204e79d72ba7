"""PURE: cutting a file into chunks by its content, so that a small change of a file is a small change of its chunks.

A chunk ends behind a mark of two bytes. The same bytes are cut alike wherever they lie (the idea of LBFS,
Muthitacharoen et al. 2001, with a mark in place of a fingerprint, because searching bytes runs at memory speed and a
rolling hash in Python does not). What has no mark is cut at the largest size, and only fails to be found again. The
least size is of the order of the distance between marks: far beyond it, two ways of cutting would take long to meet
again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from training.fleet.wire.dataset_listing import CHUNK_BYTES


class ChunkSizes(NamedTuple):
    """The bytes of a chunk: at ``least`` (but the last of a file), and at ``most``; and the mark that ends it."""

    least: int
    most: int
    mark: re.Pattern[bytes]


# Compressed data hold the one mark every 4 KiB or so, the other every 64; floats, a quarter as often.
FINE = ChunkSizes(16 * 1024, 256 * 1024, re.compile(rb"\xa5[\x50-\x5f]"))
COARSE = ChunkSizes(256 * 1024, CHUNK_BYTES, re.compile(rb"\xa5\x5a"))
FINE_TOTAL = 64 * 1024**2  # the largest data set that is cut finely


def sizes_for(total: int) -> ChunkSizes:
    """Choose the sizes of a data set of ``total`` bytes.

    A small one is cut finely, or a changed episode would be most of it; of a large one the listing stays small.
    """
    return FINE if total <= FINE_TOTAL else COARSE


def chunks(blocks: Iterable[bytes], sizes: ChunkSizes) -> Iterator[memoryview]:
    """Cut a file that comes in blocks; of equal files the chunks are equal, however they come."""
    held = b""
    for block in blocks:
        held, at = held + block, 0
        view = memoryview(held)
        while len(held) - at >= sizes.most:
            end = _end(held, at, sizes)
            yield view[at:end]
            at = end
        held = held[at:]
    at = 0
    while at < len(held):
        end = min(_end(held, at, sizes), len(held))
        yield memoryview(held)[at:end]
        at = end


def _end(held: bytes, at: int, sizes: ChunkSizes) -> int:
    found = sizes.mark.search(held, at + sizes.least, at + sizes.most)
    return at + sizes.most if found is None else found.end()

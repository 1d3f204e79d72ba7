"""PURE: cut a file into chunks by its content, so that a small change of the file changes few chunks.

A chunk ends after the first mark (two bytes) beyond its least size, at its largest size, or with the file. Equal bytes
are mostly cut equally, wherever they are in a file (the idea of LBFS, Muthitacharoen et al. 2001, with a mark in place
of a fingerprint, because searching bytes runs at memory speed and a rolling hash in Python does not). Bytes without a
mark are cut at the largest size; then equal content may not be recognised. The least size is about the usual distance
between two marks in floats. If the least size were much larger, two files would have equal chunks again only long after
a difference.
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from training.fleet.wire.dataset_listing import CHUNK_BYTES


class ChunkSizes(NamedTuple):
    """The limits of a chunk in bytes, ``least`` (a file's last chunk may be smaller) and ``most``, and the ``mark``
    that ends a chunk."""

    least: int
    most: int
    mark: re.Pattern[bytes]


# Compressed data hold the one mark every 4 KiB or so, the other every 64; floats, a quarter as often.
FINE = ChunkSizes(16 * 1024, 256 * 1024, re.compile(rb"\xa5[\x50-\x5f]"))
COARSE = ChunkSizes(256 * 1024, CHUNK_BYTES, re.compile(rb"\xa5\x5a"))
FINE_TOTAL = 64 * 1024**2  # the largest data set that is cut finely


def sizes_for(total: int) -> ChunkSizes:
    """Return the chunk limits for a data set of ``total`` bytes: ``FINE`` up to ``FINE_TOTAL``, ``COARSE`` above.

    A small data set is cut finely, so that a changed episode changes few chunks; a large one coarsely, so that its
    listing stays small.
    """
    return FINE if total <= FINE_TOTAL else COARSE


def chunks(blocks: Iterable[bytes], sizes: ChunkSizes) -> Iterator[memoryview]:
    """Cut a file, given as blocks of bytes, into chunks, and yield each. Equal files give equal chunks, however large
    the blocks are."""
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

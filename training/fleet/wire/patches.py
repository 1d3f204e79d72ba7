"""PURE: a transfer chunk as a patch of an older form of its file, so that a small change is a small push.

The chunks of a listing, here called pieces as in the API, have fixed places: inserted or removed bytes shift all that
follows into other pieces. The chunks of this module are cut by content: behind a mark of two bytes that compressed data
and floats hold every 64 KiB or so. The same bytes are cut alike wherever they lie (the idea of LBFS, Muthitacharoen et
al. 2001, with a mark in place of a fingerprint, because ``bytes.find`` runs at memory speed and a rolling hash in
Python does not). What has no mark is cut at :data:`MOST`, and only fails to be found again.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from training.fleet.wire.dataset_listing import CHUNK_BYTES, BadListing

MARK = b"\xa5\x5a"
LEAST, MOST = 16 * 1024, 256 * 1024
FILE_BYTES_MAX = 2 * 1024**3  # the largest file that is searched for known chunks
HEADER_BYTES_MAX = 256 * 1024


@dataclass(frozen=True, slots=True)
class Part:
    """``length`` bytes of a piece: copied from ``offset`` of the older file, or, where that is None, sent along."""

    length: int
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk at its place in its file."""

    begin: int
    length: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Patch:
    """The recipe of a chunk from ``path`` of the older data set ``like``; ``data`` is what that file lacks."""

    like: str
    path: str
    parts: tuple[Part, ...]
    data: bytes

    @property
    def body(self) -> bytes:
        """Encode the patch: a JSON line, then the data."""
        parts = [[part.length, part.offset] for part in self.parts]
        line = json.dumps({"like": self.like, "parts": parts, "path": self.path}, separators=(",", ":"))
        return line.encode() + b"\n" + self.data


def chunks(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Cut a file that comes in blocks into chunks, by its content."""
    held = bytearray()
    for block in blocks:
        held += block
        while len(held) >= MOST:
            yield _cut(held)
    while held:
        yield _cut(held)


def _cut(held: bytearray) -> bytes:
    found = held.find(MARK, LEAST, MOST)
    end = found + len(MARK) if found >= 0 else MOST
    chunk = bytes(held[:end])
    del held[:end]
    return chunk


def digests(blocks: Iterable[bytes]) -> list[tuple[str, int]]:
    """SHA-256 and length of each chunk, in their order."""
    return [(hashlib.sha256(chunk).hexdigest(), len(chunk)) for chunk in chunks(blocks)]


def placed(found: Iterable[tuple[str, int]]) -> list[Chunk]:
    """Give each chunk of a file, in order, its place."""
    laid, begin = list[Chunk](), 0
    for sha256, length in found:
        laid.append(Chunk(begin, length, sha256))
        begin += length
    return laid


def known(found: Iterable[Chunk]) -> dict[str, int]:
    """Map each chunk to its first place."""
    begins = dict[str, int]()
    for chunk in found:
        begins.setdefault(chunk.sha256, chunk.begin)
    return begins


def parts_of(first: int, length: int, new: Sequence[Chunk], known: Mapping[str, int]) -> tuple[Part, ...]:
    """Compose the piece of ``length`` bytes at ``first`` of a file with the chunks ``new`` from known chunks.

    Looks only at the chunks that the piece meets, however many the file has.
    """
    found, last = list[Part](), first + length
    at = max(0, bisect_right(new, first, key=lambda chunk: chunk.begin) - 1)
    while at < len(new) and new[at].begin < last:
        chunk = new[at]
        low, high = max(chunk.begin, first), min(chunk.begin + chunk.length, last)
        if low < high:
            there = known.get(chunk.sha256)
            part = Part(high - low, None if there is None else there + low - chunk.begin)
            if found and _continues(found[-1], part):
                found[-1] = Part(found[-1].length + part.length, found[-1].offset)
            else:
                found.append(part)
        at += 1
    return tuple(found)


def _continues(last: Part, part: Part) -> bool:
    if last.offset is None or part.offset is None:
        return last.offset is part.offset
    return last.offset + last.length == part.offset


def read_patch(body: bytes) -> Patch:
    """Parse a patch; raises BadListing for anything else, or for more than one piece."""
    line, _, data = body.partition(b"\n")
    try:
        said = json.loads(line[:HEADER_BYTES_MAX])
        parts = tuple(Part(length, offset) for length, offset in said["parts"])
        patch = Patch(said["like"], said["path"], parts, data)
        numbers = [part.length for part in parts] + [part.offset or 0 for part in parts]
        sound = (
            all(type(each) is int and 0 <= each <= FILE_BYTES_MAX for each in numbers)
            and isinstance(patch.like, str)
            and isinstance(patch.path, str)
            and sum(part.length for part in parts) <= CHUNK_BYTES
            and sum(part.length for part in parts if part.offset is None) == len(data)
        )
    except (ValueError, LookupError, TypeError, RecursionError):
        sound = False
    if not sound:
        raise BadListing("the body must be a JSON line that says the parts of one piece, then the bytes of those sent")
    return patch

"""PURE: a piece of a file as a patch of an older form of that file, so that a small change is a small push.

Pieces have fixed places, so bytes that come in or fall out move everything behind them into other pieces. Chunks are
cut by content: behind a mark of two bytes that compressed data and floats hold every 64 KiB or so. The same bytes are
cut alike wherever they lie (the idea of LBFS, Muthitacharoen et al. 2001, with a mark in place of a fingerprint,
because ``bytes.find`` runs at memory speed and a rolling hash in Python does not). What has no mark is cut at
:data:`MOST`, and only fails to be found again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from training.fleet.datasets.pieces import PIECE_BYTES, BadListing

MARK = b"\xa5\x5a"
LEAST, MOST = 16 * 1024, 256 * 1024
FILE_BYTES_MAX = 2 * 1024**3  # of a file that is looked through for what is known
HEADER_BYTES_MAX = 256 * 1024


@dataclass(frozen=True, slots=True)
class Part:
    """``length`` bytes of a piece: copied from ``offset`` of the older file, or, where that is None, sent along."""

    length: int
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Patch:
    """The recipe of a chunk from ``path`` of the older data set ``like``; ``data`` is what that file lacks."""

    like: str
    path: str
    parts: tuple[Part, ...]
    data: bytes

    @property
    def body(self) -> bytes:
        """As it travels: a JSON line, then the data."""
        parts = [[part.length, part.offset] for part in self.parts]
        line = json.dumps(
            {"like": self.like, "parts": parts, "path": self.path}, separators=(",", ":")
        )
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


def placed(found: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return where each chunk begins in its file."""
    known, offset = dict[str, int](), 0
    for sha256, length in found:
        known.setdefault(sha256, offset)
        offset += length
    return known


def parts_of(
    first: int, length: int, new: Sequence[tuple[str, int]], known: Mapping[str, int]
) -> tuple[Part, ...]:
    """The piece of ``length`` bytes at ``first`` of a file whose chunks are ``new``, by what is known of them."""
    found, begin = list[Part](), 0
    for sha256, size in new:
        low, high = max(begin, first), min(begin + size, first + length)
        if low < high:
            at = known.get(sha256)
            part = Part(high - low, None if at is None else at + low - begin)
            last = found[-1] if found else None
            if last is not None and _continues(last, part):
                found[-1] = Part(last.length + part.length, last.offset)
            else:
                found.append(part)
        begin += size
    return tuple(found)


def _continues(last: Part, part: Part) -> bool:
    if last.offset is None or part.offset is None:
        return last.offset is part.offset
    return last.offset + last.length == part.offset


def read_patch(body: bytes) -> Patch:
    """The patch of a body; raises BadListing when it is none, or makes more than one piece."""
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
            and sum(part.length for part in parts) <= PIECE_BYTES
            and sum(part.length for part in parts if part.offset is None) == len(data)
        )
    except (ValueError, LookupError, TypeError, RecursionError):
        sound = False
    if not sound:
        raise BadListing(
            "the body must be a JSON line that says the parts of one piece, then the bytes of those sent"
        )
    return patch

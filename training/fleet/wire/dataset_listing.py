"""PURE: a data set on the wire: files cut into chunks, each named by its SHA-256, and a small JSON listing.

::

    {"files":[{"path":"tensor_window_v1/tensors.npy","pieces":["9f86…","60303a…"],"size":1500000}],
     "format":1,"piece_bytes":1048576}

The JSON and the endpoints call a chunk a piece. Each has ``piece_bytes`` bytes but the last of its file. A listing has
one form (sorted keys and paths, no blanks), and its SHA-256 is the data set's id. Paths come from elsewhere and
become files on every worker, so :func:`parse` takes only those that mean the same file on every system, and nothing
outside the data set's folder.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from training import strict_json

T = TypeVar("T")

FORMAT = 1
CHUNK_BYTES = 1024 * 1024
FILES_MAX = 10_000
BYTES_MAX = 256 * 1024**3
BATCH_BYTES = CHUNK_BYTES  # of the chunks in one request
BATCH_CHUNKS = 256
BATCH_HEAD_BYTES = 32 + 4  # before each chunk: its digest, its length
LISTING_BYTES_MAX = 32 * 1024**2  # of the document
PATH_CHARS_MAX = 240
FOLDERS_MAX = 8

ID = re.compile(r"[0-9a-f]{64}")
NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
PREFIX = re.compile(r"[0-9a-f]{6,63}")  # the form of a shortened id
_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9_-])?")
_DEVICE = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)


class BadListing(ValueError):  # noqa: N818 - named like the refusal it becomes
    """The document is no valid listing. The text is one sentence."""


class UnknownDataset(LookupError):  # noqa: N818
    """A reference means no data set, or more than one. The text is one sentence."""


@dataclass(frozen=True, slots=True)
class File:
    """One file: its path below the data set's folder, with forward slashes, and its chunks in order."""

    path: str
    size: int
    pieces: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a chunk: ``length`` bytes of a file from ``offset`` on."""

    sha256: str
    path: str
    offset: int
    length: int


@dataclass(frozen=True)
class Listing:
    """The files and chunks of a data set."""

    files: tuple[File, ...]
    piece_bytes: int = CHUNK_BYTES

    @cached_property
    def document(self) -> bytes:
        """Write the listing in its one form."""
        files = [
            {"path": file.path, "pieces": list(file.pieces), "size": file.size}
            for file in sorted(self.files, key=lambda file: file.path)
        ]
        whole = {"files": files, "format": FORMAT, "piece_bytes": self.piece_bytes}
        return strict_json.canonical(whole, ascii_only=True).encode()

    @cached_property
    def dataset_id(self) -> str:
        return hashlib.sha256(self.document).hexdigest()

    @cached_property
    def size(self) -> int:
        """Sum the bytes of all files."""
        return sum(file.size for file in self.files)

    def size_of(self, path: str) -> int | None:
        """Return the bytes of a file; None when there is no such file."""
        file = self._by_path.get(path)
        return None if file is None else file.size

    def places(self) -> Iterator[Place]:
        """List every chunk's place, file by file. A chunk may have several places."""
        for file in self.files:
            yield from self._places(file, range(len(file.pieces)))

    def places_within(self, path: str, first: int, last: int) -> Iterator[Place]:
        """List the chunks of a file that hold its bytes from ``first`` to before ``last``."""
        file = self._by_path.get(path)
        last = min(last, 0 if file is None else file.size)
        if file is not None and first < last:
            numbers = range(first // self.piece_bytes, -(-last // self.piece_bytes))
            yield from self._places(file, numbers)

    def _places(self, file: File, numbers: range) -> Iterator[Place]:
        for number in numbers:
            offset = number * self.piece_bytes
            length = min(self.piece_bytes, file.size - offset)
            yield Place(file.pieces[number], file.path, offset, length)

    @cached_property
    def _by_path(self) -> Mapping[str, File]:
        return {file.path: file for file in self.files}

    @cached_property
    def lengths(self) -> Mapping[str, int]:
        """Map each chunk to its length, in the order of first places."""
        found: dict[str, int] = {}
        for place in self.places():
            found.setdefault(place.sha256, place.length)
        return found


def check_size(files: int, size: int) -> None:
    """Raise BadListing for more files or bytes than a data set may have."""
    if not 1 <= files <= FILES_MAX:
        raise BadListing(f"a data set has 1 to {FILES_MAX:,} files, not {files:,}")
    if size > BYTES_MAX:
        raise BadListing(f"a data set has at most {BYTES_MAX // 1024**3} GiB, not {size / 1024**3:.1f}")


def together(things: Iterable[T], length: Callable[[T], int]) -> Iterator[list[T]]:
    """Group chunks for requests, in their order; a large one alone."""
    group, size = list[T](), 0
    for thing in things:
        if group and (size + length(thing) > BATCH_BYTES or len(group) == BATCH_CHUNKS):
            yield group
            group, size = [], 0
        group.append(thing)
        size += length(thing)
    if group:
        yield group


def batch(chunks: Iterable[tuple[str, bytes]]) -> bytes:
    """Write small chunks as one body: of each its SHA-256 (32 bytes), its length (4, big-endian), its bytes."""
    return b"".join(bytes.fromhex(sha256) + len(data).to_bytes(4, "big") + data for sha256, data in chunks)


def batched(body: bytes) -> list[tuple[str, bytes]]:
    """Parse such a body into chunks; raises BadListing for anything else."""
    found, at = list[tuple[str, bytes]](), 0
    while at < len(body):
        begin = at + BATCH_HEAD_BYTES
        at = begin + int.from_bytes(body[begin - 4 : begin], "big")
        if begin > len(body) or at > len(body) or len(found) == BATCH_CHUNKS:
            raise BadListing(f"the body must hold at most {BATCH_CHUNKS} pieces, each behind its digest and its length")
        found.append((body[begin - BATCH_HEAD_BYTES : begin - 4].hex(), body[begin:at]))
    return found


def parse(document: bytes) -> Listing:
    """Parse a listing; raises BadListing unless it has the one form and its paths are harmless."""
    if len(document) > LISTING_BYTES_MAX:
        raise BadListing(f"the listing is larger than {LISTING_BYTES_MAX} bytes")
    try:
        whole = json.loads(document)
    except (ValueError, RecursionError) as error:
        raise BadListing(f"the listing is not JSON: {str(error)[:200]}") from None
    if not isinstance(whole, dict) or set(whole) != {"files", "format", "piece_bytes"}:
        raise BadListing("the listing must have files, format and piece_bytes, and nothing else")
    if whole["format"] != FORMAT or whole["piece_bytes"] != CHUNK_BYTES:
        raise BadListing(
            f"the listing is of format {str(whole['format'])[:20]} with pieces of "
            f"{str(whole['piece_bytes'])[:20]} bytes, this program knows {FORMAT} and {CHUNK_BYTES}"
        )
    files = whole["files"]
    if not isinstance(files, list):
        raise BadListing("the listing's files must be a list")
    check_size(len(files), 0)
    listing = Listing(tuple(_file(entry) for entry in files))
    check_paths(file.path for file in listing.files)
    check_size(len(files), listing.size)
    if not _agree(listing):
        raise BadListing("one piece is listed with two lengths")
    if listing.document != document:
        raise BadListing("the listing is not written in its one form (sorted, without blanks)")
    return listing


def _file(entry: Any) -> File:
    if not isinstance(entry, dict) or set(entry) != {"path", "pieces", "size"}:
        raise BadListing("a file must have path, pieces and size, and nothing else")
    path, size, pieces = entry["path"], entry["size"], entry["pieces"]
    if not isinstance(path, str):
        raise BadListing("a file's path must be text")
    if type(size) is not int or not 0 <= size <= BYTES_MAX:
        raise BadListing(f"the size of {path[:80]!r} must be a number from 0 to {BYTES_MAX}")
    whole = isinstance(pieces, list) and all(isinstance(sha256, str) and ID.fullmatch(sha256) for sha256 in pieces)
    if not whole or len(pieces) != -(-size // CHUNK_BYTES):
        raise BadListing(f"the pieces of {path[:80]!r} must be SHA-256 digests that cover its size")
    return File(path, size, tuple(pieces))


def _agree(listing: Listing) -> bool:
    return all(listing.lengths[place.sha256] == place.length for place in listing.places())


def check_paths(paths: Iterable[str]) -> None:
    """Raise BadListing unless each is a plain relative path, and no two meet on any system."""
    known: dict[str, str] = {}  # folded → as written, a folder with a slash at its end
    for path in paths:
        parts = path.split("/")
        if len(path) > PATH_CHARS_MAX or len(parts) > FOLDERS_MAX + 1:
            raise BadListing(f"the path {path[:80]!r} is too long or too deep")
        for part in parts:
            if not _PART.fullmatch(part) or _DEVICE.fullmatch(part):
                raise BadListing(
                    f"{path[:80]!r} cannot be a file of a data set: use letters, digits, dots, dashes and "
                    "underscores, below the folder itself"
                )
        for folder in ["/".join(parts[:depth]) + "/" for depth in range(1, len(parts))]:
            _note(known, folder)
        if path.casefold() in known:
            raise _meet(path, known[path.casefold()])
        _note(known, path)


def _note(known: dict[str, str], name: str) -> None:
    """Note a file or folder; raise BadListing when another one has its name but for letters' case."""
    folded = name.rstrip("/").casefold()
    there = known.setdefault(folded, name)
    if there != name:
        raise _meet(name, there)


def _meet(path: str, other: str) -> BadListing:
    return BadListing(f"{path[:80]!r} and {other[:80]!r} would meet on some systems; rename one")


def cut(path: str, blocks: Iterable[bytes]) -> File:
    """Make a file's entry from ``blocks``, each CHUNK_BYTES long but the last."""
    size, pieces = 0, []
    for block in blocks:
        pieces.append(hashlib.sha256(block).hexdigest())
        size += len(block)
    return File(path, size, tuple(pieces))


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The data sets of a receiver: ids, and names that stand for some of them."""

    ids: frozenset[str] = frozenset()
    names: Mapping[str, str] = field(default_factory=dict)  # name → id

    def resolve(self, reference: str) -> str:
        """Resolve an id, a name or a unique prefix of an id; raises UnknownDataset."""
        if reference in self.ids:
            return reference
        if reference in self.names:
            return self.names[reference]
        found = [each for each in self.ids if each.startswith(reference)]
        if len(found) == 1 and PREFIX.fullmatch(reference):
            return found[0]
        if len(found) > 1 and PREFIX.fullmatch(reference):
            raise UnknownDataset(f"{reference!r} begins the ids of {len(found)} data sets")
        raise UnknownDataset(f"there is no data set `{reference[:80]}`")


def is_reference(text: str) -> bool:
    """Return True when ``text`` can name a data set at all."""
    return bool(ID.fullmatch(text) or NAME.fullmatch(text))

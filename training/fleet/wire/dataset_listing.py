"""PURE: a data set on the wire: files cut into chunks, each named by its SHA-256, and a JSON listing of them.

::

{"files":[{"path":"tensor_window_v1/tensors.npy","pieces":"9f86…05c000…","size":1500000}],"format":2}

The JSON and the endpoints call a chunk a piece. ``pieces`` holds 70 hexadecimal digits of each chunk of the file, in
order: its SHA-256 (64) and its length in bytes (6). Chunks are cut by content (:mod:`.chunking`), so inserted or
removed bytes usually change only the chunks around them. In memory each chunk is 35 bytes of its file's
:attr:`File.packed`, not an object, because 10 GiB of data have about 30,000 chunks. A listing has one form (sorted keys
and paths, no blanks), and its SHA-256 is the data set's id. Paths come from other machines and become files on workers.
Therefore :func:`parse` accepts only paths inside the data set's folder that mean the same file on every system.
"""

import hashlib
import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple, TypeVar

import msgspec

from training import strict_json
from training.frozen import frozen

T = TypeVar("T")

FORMAT = 2
CHUNK_BYTES = 1024 * 1024  # at most
RECORD_BYTES = 32 + 3  # of a chunk in a listing: its digest, its length
MISSING_MAX = 4096  # chunks that one answer to a listing names
FILES_MAX = 10_000
BYTES_MAX = 256 * 1024**3
BATCH_BYTES = 4 * CHUNK_BYTES  # of the chunks in one request: they share the wait for the disk
BATCH_CHUNKS = 256
BATCH_HEAD_BYTES = 32 + 4  # before each chunk: its digest, its length
BATCH_BODY_BYTES_MAX = BATCH_BYTES + BATCH_CHUNKS * BATCH_HEAD_BYTES  # of such a request
LISTING_BYTES_MAX = 64 * 1024**2  # of the document
PATH_CHARS_MAX = 240
FOLDERS_MAX = 8

ID = re.compile(r"[0-9a-f]{64}")
NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
PREFIX = re.compile(r"[0-9a-f]{6,63}")  # the form of a shortened id
_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9_-])?")
_DEVICE = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)


class BadListing(ValueError):  # noqa: N818 - named like the refusal it becomes
    """An exception, with one sentence as its text: a listing, a file for a listing, or a body of chunks is invalid."""


class UnknownDataset(LookupError):  # noqa: N818
    """An exception, with a sentence as its text: a reference matches no data set or more than one, or is too short."""


@frozen
class File:
    """One file: its path below the data set's folder, with forward slashes, and its chunks in order.

    ``packed`` holds :data:`RECORD_BYTES` for each chunk: its SHA-256, then its length (3 bytes, big-endian).
    """

    path: str
    size: int
    packed: bytes

    @property
    def count(self) -> int:
        """Return the number of the file's chunks."""
        return len(self.packed) // RECORD_BYTES

    @property
    def pieces(self) -> tuple[str, ...]:
        """Return the SHA-256 of each chunk of the file, in order, in hexadecimal."""
        return tuple(sha256 for sha256, _ in self.chunks())

    def chunk(self, number: int) -> tuple[bytes, int]:
        """Return the SHA-256 (32 bytes) and the length of the file's chunk with this number, counted from 0."""
        at = number * RECORD_BYTES
        digest = self.packed[at : at + 32]
        return digest, int.from_bytes(self.packed[at + 32 : at + RECORD_BYTES], "big")

    def chunks(self) -> Iterator[tuple[str, int]]:
        """Yield the SHA-256 (in hexadecimal) and the length of each chunk of the file, in order."""
        for number in range(self.count):
            digest, length = self.chunk(number)
            yield digest.hex(), length


def pack(path: str, chunks: Iterable[tuple[bytes, int]]) -> File:
    """Make the :class:`File` of a path from the SHA-256 (32 bytes) and the length of each of its chunks."""
    packed, size = bytearray(), 0
    for digest, length in chunks:
        packed += digest + length.to_bytes(3, "big")
        size += length
    return File(path, size, bytes(packed))


class Place(NamedTuple):
    """The place of a chunk: the ``length`` bytes of the file ``path`` that begin at ``offset``."""

    sha256: str
    path: str
    offset: int
    length: int


@dataclass(frozen=True)
class Listing:
    """The files of a data set, each with its chunks. The chunks are numbered from 0 through all files in order."""

    files: tuple[File, ...]

    @property
    def document(self) -> bytes:
        """Return the listing as JSON in its one form: files sorted by path, keys sorted, no blanks."""
        files = [
            {"path": file.path, "pieces": file.packed.hex(), "size": file.size}
            for file in sorted(self.files, key=lambda file: file.path)
        ]
        return strict_json.canonical({"files": files, "format": FORMAT}, ascii_only=True).encode()

    @cached_property
    def dataset_id(self) -> str:
        return hashlib.sha256(self.document).hexdigest()

    @cached_property
    def size(self) -> int:
        """Return the sum of the sizes of all files in bytes."""
        return sum(file.size for file in self.files)

    @cached_property
    def count(self) -> int:
        """Return the number of chunks in all files; a repeated chunk counts each time."""
        return sum(file.count for file in self.files)

    def places(self, wanted: Callable[[str], bool] = lambda _: True) -> Iterator[Place]:
        """Yield the place of every chunk, file by file, in the files for whose path ``wanted`` is true. A repeated
        chunk has several places."""
        for file in self.files:
            offset = 0
            for sha256, length in file.chunks() if wanted(file.path) else ():
                yield Place(sha256, file.path, offset, length)
                offset += length

    def distinct(self) -> Iterator[Place]:
        """Yield the first place of each chunk, so that each SHA-256 comes once."""
        repeated = self._index[1]
        return (place for number, place in enumerate(self.places()) if not repeated[number])

    @property
    def distinct_count(self) -> int:
        return self.count - sum(self._index[1])

    def length_of(self, sha256: str) -> int | None:
        """Return the length of the chunk with this SHA-256; None if the listing has no such chunk."""
        number = self._find(sha256)
        return None if number is None else self._chunk(number)[1]

    def place_of(self, sha256: str) -> Place | None:
        """Return the first place of the chunk with this SHA-256; None if the listing has no such chunk."""
        number = self._find(sha256)
        if number is None:
            return None
        at = bisect_right(self._begins, number) - 1
        return Place(sha256, self.files[at].path, self._offsets[number], self._chunk(number)[1])

    # -- the index: four bytes a chunk, eight for its offset where these are asked for --------------------------

    def _find(self, sha256: str) -> int | None:
        """Return the number of the first chunk with this SHA-256; None if the listing has no such chunk."""
        if not ID.fullmatch(sha256):
            return None
        order, digest = self._index[0], bytes.fromhex(sha256)
        at = bisect_left(order, digest, key=lambda number: self._chunk(number)[0])
        return order[at] if at < len(order) and self._chunk(order[at])[0] == digest else None

    def _chunk(self, number: int) -> tuple[bytes, int]:
        at = bisect_right(self._begins, number) - 1
        return self.files[at].chunk(number - self._begins[at])

    @cached_property
    def _begins(self) -> Sequence[int]:
        """Return the number of the first chunk of each file."""
        return list(accumulate((file.count for file in self.files[:-1]), initial=0))

    @cached_property
    def _index(self) -> tuple[Sequence[int], bytearray]:
        """Return the numbers of all chunks sorted by digest, equal ones in their order. Return also, for each chunk, 1
        if an earlier chunk has its digest, else 0."""
        digests = [file.chunk(number)[0] for file in self.files for number in range(file.count)]
        order = array("I", sorted(range(len(digests)), key=digests.__getitem__))
        repeated = bytearray(len(order))
        for one, other in pairwise(order):
            repeated[other] = digests[one] == digests[other]
        return order, repeated

    @cached_property
    def _offsets(self) -> Sequence[int]:
        return array("Q", (place.offset for place in self.places()))

    def check_lengths(self) -> None:
        """Raise BadListing when a chunk is listed with two lengths."""
        order, repeated = self._index
        for one, other in pairwise(order):
            if repeated[other] and self._chunk(one)[1] != self._chunk(other)[1]:
                raise BadListing("one piece is listed with two lengths")


def check_size(files: int, size: int) -> None:
    """Raise BadListing for no file, and for more files or bytes than a data set may have."""
    if not 1 <= files <= FILES_MAX:
        raise BadListing(f"a data set has 1 to {FILES_MAX:,} files, not {files:,}")
    if size > BYTES_MAX:
        raise BadListing(f"a data set has at most {BYTES_MAX // 1024**3} GiB, not {size / 1024**3:.1f}")


def together(things: Iterable[T], length: Callable[[T], int]) -> Iterator[list[T]]:
    """Group things into lists, in their order; each list is what one request uploads.

    A list has at most ``BATCH_CHUNKS`` things and ``BATCH_BYTES`` bytes; a larger thing stands alone. ``length``
    returns a thing's number of bytes.
    """
    group, size = list[T](), 0
    for thing in things:
        if group and (size + length(thing) > BATCH_BYTES or len(group) == BATCH_CHUNKS):
            yield group
            group, size = [], 0
        group.append(thing)
        size += length(thing)
    if group:
        yield group


def batch(chunks: Iterable[tuple[str, bytes | memoryview]]) -> bytes:
    """Encode chunks (SHA-256, bytes) as one request's body: for each chunk its SHA-256 (32 bytes), its length (4,
    big-endian), and its bytes."""
    return b"".join(bytes.fromhex(sha256) + len(data).to_bytes(4, "big") + data for sha256, data in chunks)


def batched(whole: bytes | bytearray) -> list[tuple[str, memoryview]]:
    """Decode a body that :func:`batch` wrote; return the SHA-256 and the bytes of each chunk, as views of the body.

    Raises BadListing for a body of another form, or of more than ``BATCH_CHUNKS`` chunks. The digests are not checked.
    """
    found, at, body = list[tuple[str, memoryview]](), 0, memoryview(whole)
    while at < len(body):
        begin = at + BATCH_HEAD_BYTES
        at = begin + int.from_bytes(body[begin - 4 : begin], "big")
        if begin > len(body) or at > len(body) or len(found) == BATCH_CHUNKS:
            raise BadListing(f"the body must hold at most {BATCH_CHUNKS} pieces, each behind its digest and its length")
        found.append((body[begin - BATCH_HEAD_BYTES : begin - 4].hex(), body[begin:at]))
    return found


def parse(document: bytes) -> Listing:
    """Parse a listing; raises BadListing unless it has the one form, is within the limits, and has safe paths."""
    if len(document) > LISTING_BYTES_MAX:
        raise BadListing(f"the listing is larger than {LISTING_BYTES_MAX} bytes")
    if (named := document.count(b'"path":')) > FILES_MAX:  # before a million of them fill the memory of a small machine
        check_size(named, 0)
    try:
        whole = msgspec.json.decode(document, type=_Document)
    except ValueError as error:
        raise BadListing(f"the listing is of no form that this program knows: {str(error)[:200]}") from None
    if whole.format != FORMAT:
        raise BadListing(f"the listing is of format {whole.format}, this program knows only {FORMAT}")
    check_size(len(whole.files), 0)
    listing = Listing(tuple(map(_file, whole.files)))
    check_paths(file.path for file in listing.files)
    check_size(len(listing.files), listing.size)
    listing.check_lengths()
    if listing.document != document:
        raise BadListing("the listing is not written in its one form (sorted, without blanks)")
    return listing


class _File(msgspec.Struct, forbid_unknown_fields=True):
    path: str
    pieces: str
    size: int


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    files: list[_File]
    format: int


def _file(entry: _File) -> File:
    with suppress(ValueError):
        file = File(entry.path, entry.size, bytes.fromhex(entry.pieces))
        lengths = [file.chunk(number)[1] for number in range(file.count)]
        whole = len(file.packed) % RECORD_BYTES == 0 and sum(lengths) == file.size
        if whole and all(0 < length <= CHUNK_BYTES for length in lengths):
            return file
    raise BadListing(
        f"the pieces of {entry.path[:80]!r} must be digests with lengths of 1 byte to 1 MiB that add up to its size"
    )


def check_paths(paths: Iterable[str]) -> None:
    """Raise BadListing unless each path is relative, short and of plain characters, and no system takes two of the
    paths for one file."""
    known: dict[str, str] = {}  # folded → as written, a folder with a slash at its end
    for path in paths:
        parts = path.split("/")
        if len(path) > PATH_CHARS_MAX or len(parts) > FOLDERS_MAX + 1:
            raise BadListing(f"the path {path[:80]!r} has over {PATH_CHARS_MAX} characters or {FOLDERS_MAX} folders")
        for part in parts:
            if not _PART.fullmatch(part) or _DEVICE.fullmatch(part):
                raise BadListing(
                    f"{path[:80]!r} cannot be a file of a data set: name it and its folders with letters, digits, "
                    "dots, dashes and underscores, at most 100 each, no dot or dash first, no dot last, and not as a "
                    "device of Windows (con, nul)"
                )
        for folder in ["/".join(parts[:depth]) + "/" for depth in range(1, len(parts))]:
            _note(known, folder)
        if path.casefold() in known:
            raise _meet(path, known[path.casefold()])
        _note(known, path)


def _note(known: dict[str, str], name: str) -> None:
    """Add a file or a folder (with a slash at its end) to ``known``. Raises BadListing if another entry differs only by
    letter case or by that slash."""
    folded = name.rstrip("/").casefold()
    there = known.setdefault(folded, name)
    if there != name:
        raise _meet(name, there)


def _meet(path: str, other: str) -> BadListing:
    return BadListing(f"{path[:80]!r} and {other[:80]!r} would be one file on some systems; rename one")


def cut(path: str, chunks: Iterable[bytes | memoryview]) -> File:
    """Make the :class:`File` of a path from the bytes of each of its chunks."""
    return pack(path, ((hashlib.sha256(chunk).digest(), len(chunk)) for chunk in chunks))


@frozen
class Catalogue:
    """The data sets of a receiver: all their ids, and the id to which each name refers."""

    ids: frozenset[str] = frozenset()
    names: Mapping[str, str] = field(default_factory=dict)  # name → id

    def resolve(self, reference: str) -> str:
        """Return the id of the data set with the id or name ``reference``, or of the only one whose id begins with it.
        Raises UnknownDataset if no data set or several match, or if the beginning has fewer than 6 digits."""
        if reference in self.ids:
            return reference
        if reference in self.names:
            return self.names[reference]
        found = [each for each in self.ids if each.startswith(reference)]
        if len(found) == 1 and PREFIX.fullmatch(reference):
            return found[0]
        if len(found) > 1 and PREFIX.fullmatch(reference):
            raise UnknownDataset(f"{reference!r} begins the ids of {len(found)} data sets")
        raise UnknownDataset(f"there is no data set `{reference[:80]}` (the beginning of an id must have 6 digits)")


def is_reference(text: str) -> bool:
    """Return True if ``text`` has the form of a data set's id or name; a prefix of an id has the form of a name."""
    return bool(ID.fullmatch(text) or NAME.fullmatch(text))

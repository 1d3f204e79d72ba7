"""Push a folder as a data set: read it, announce it, send the chunks that the receiver lacks, publish it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from training import strict_json
from training.contract import HOSTS_FILE
from training.fleet.client.bundles import Progress
from training.fleet.client.datasets import ChunkCalls, DatasetCalls
from training.fleet.wire.dataset_listing import (
    CHUNK_BYTES,
    FILES_MAX,
    BadListing,
    File,
    Listing,
    Place,
    check_paths,
    check_size,
    cut,
    parse,
    together,
)
from training.fleet.wire.patches import Chunk, Patch, digests, known, parts_of, placed

HOSTS_MAX, HOSTS_BYTES_MAX = 256, 64 * 1024
PUSH_TRIES = 5  # in a row, of one chunk
PATCHED_LEAST = 64 * 1024  # a smaller chunk is sent as a whole
PATCHED_SHARE = 0.75  # share of new bytes up to which a patch is worth its request


class FolderError(Exception):
    """A folder cannot become a data set. The text is one sentence."""


def read_folder(root: Path, progress: Progress) -> Listing:
    """List and hash all files below ``root`` without those whose name, or folder's name, begins with a dot.

    Raises FolderError, also for a link, and for a file that cannot be read or that no other system could hold.
    """
    if not root.is_dir():
        raise FolderError(f"{root} is not a folder; name the one that holds the data set")
    try:
        files = sorted(_files(root))
        if not files:
            raise FolderError(f"there is no file in {root}; name the folder that holds the data set")
        check_paths(path.relative_to(root).as_posix() for path in files)
        whole, done, found = sum(path.stat().st_size for path in files), 0, []
        check_size(len(files), whole)  # before a byte is read
        for path in files:
            found.append(_read(path, path.relative_to(root).as_posix()))
            done += found[-1].size
            progress(done, whole)
        return parse(Listing(tuple(found)).document)  # checked before anything is sent
    except BadListing as error:
        raise FolderError(str(error)) from None
    except OSError as error:
        raise FolderError(
            f"{error.filename or root} cannot be read ({error.strerror or error}): make it readable for this user, or "
            "take it out of the folder; nothing was sent, because a data set holds all files of its folder"
        ) from None


def _files(root: Path) -> Iterator[Path]:
    """Find the data set's files; an unreadable folder is an error, not an empty one."""

    def fails(error: OSError) -> None:
        raise error

    count = 0
    for folder, folders, names in os.walk(root, onerror=fails):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in [*folders, *names]:
            path = Path(folder, name)
            if name.startswith("."):
                continue
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise FolderError(f"{path} is a link or a device; put the file itself there")
            if path.is_file():
                count += 1
                yield path
        if count > FILES_MAX:
            raise FolderError(f"{root} holds more than {FILES_MAX:,} files: pack them into fewer")


def _read(path: Path, name: str) -> File:
    with path.open("rb") as file:
        return cut(name, iter(lambda: file.read(CHUNK_BYTES), b""))


def recording_hosts(root: Path) -> list[str]:
    """Read the hosts that the data set in ``root`` was recorded on, as its build noted them."""
    with suppress(OSError, ValueError):
        with (root / HOSTS_FILE).open("rb") as file:
            said = strict_json.loads(file.read(HOSTS_BYTES_MAX))
        hosts = said.get("hosts") if isinstance(said, dict) else None
        if isinstance(hosts, list) and len(hosts) <= HOSTS_MAX:
            return [each for each in hosts if isinstance(each, str) and len(each) <= 128]
    return []


def push(
    calls: DatasetCalls, root: Path, listing: Listing, name: str | None, progress: Progress
) -> tuple[dict[str, Any], int]:
    """Upload missing chunks, then publish; returns the receiver's view and the bytes sent.

    Raises FolderError when a file changed meanwhile, ClientError, OSError. Repeated, it resumes.
    """
    draft = calls.announce(listing, tries=PUSH_TRIES)
    missing = set(draft["missing"])
    whole, done, sent = sum(listing.lengths[each] for each in missing), 0, 0
    first: dict[str, Place] = {}  # a chunk may have several places
    for place in listing.places():
        if place.sha256 in missing:
            first.setdefault(place.sha256, place)
    older = _Older(calls, root, name)
    for sha256, place in list(first.items()):
        if place.length >= PATCHED_LEAST and (travelled := older.bring(listing, place)):
            sent, done = sent + travelled, done + place.length
            del first[sha256]
            progress(done, whole)
    for size in send(calls, root, listing, first.values()):
        sent, done = sent + size, done + size
        progress(done, whole)
    return calls.publish(listing.dataset_id, name, recording_hosts(root)), sent


def send(calls: ChunkCalls, root: Path, listing: Listing, chunks: Iterable[Place]) -> Iterator[int]:
    """Upload these chunks of what was announced, small ones together; yields the bytes of each request.

    Raises FolderError when a file changed meanwhile, ClientError, OSError.
    """
    for places in together(chunks, lambda place: place.length):
        batch = []
        for place in places:
            data = _bytes_at(root, place)
            if hashlib.sha256(data).hexdigest() != place.sha256:
                raise FolderError(f"{root / place.path} changed while it was pushed; push again")
            batch.append((place.sha256, data))
        calls.bring(listing.dataset_id, batch, tries=PUSH_TRIES)
        yield sum(len(data) for _, data in batch)


class _Older:
    """The dataset that had the name before: chunks of the new one are sent as patches of its files."""

    def __init__(self, calls: DatasetCalls, root: Path, name: str | None) -> None:
        self._calls, self._root = calls, root
        self._name = name
        self._known: dict[str, dict[str, int]] = {}
        self._new: dict[str, list[Chunk]] = {}

    @cached_property
    def _like(self) -> str | None:
        """Find the older data set's id. Asked for only when a chunk might be patched: most pushes send none or all."""
        if self._name is None:
            return None
        rows = self._calls.datasets()["datasets"]
        return next((str(row["dataset_id"]) for row in rows if self._name in row["names"]), None)

    def bring(self, listing: Listing, place: Place) -> int:
        """Upload a chunk as a patch where that saves much; the number of bytes sent, else 0."""
        if self._like is None:
            return 0
        if place.path not in self._known:
            self._known[place.path] = known(placed(self._calls.chunks(self._like, place.path, tries=PUSH_TRIES)))
            self._new[place.path] = []
            if self._known[place.path]:
                with (self._root / place.path).open("rb") as file:
                    blocks = iter(lambda: file.read(CHUNK_BYTES), b"")
                    self._new[place.path] = placed(digests(blocks))
        parts = parts_of(place.offset, place.length, self._new[place.path], self._known[place.path])
        lacking = sum(part.length for part in parts if part.offset is None)
        if not parts or lacking > PATCHED_SHARE * place.length:
            return 0
        data, sent, begin = _bytes_at(self._root, place), bytearray(), 0
        for part in parts:
            if part.offset is None:
                sent += data[begin : begin + part.length]
            begin += part.length
        patch = Patch(self._like, place.path, parts, bytes(sent))
        return self._calls.patch(listing.dataset_id, place.sha256, patch.body, tries=PUSH_TRIES)


def _bytes_at(root: Path, place: Place) -> bytes:
    with (root / place.path).open("rb") as file:
        file.seek(place.offset)
        return file.read(place.length)

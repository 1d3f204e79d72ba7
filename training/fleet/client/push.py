"""Push a folder as a data set: read it, announce it, send the chunks that the receiver lacks, publish it.

Memory does not grow with the data set, except for its listing of about 50 bytes per chunk.
"""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from training import strict_json
from training.contract import HOSTS_FILE
from training.fleet.client.bundles import Progress
from training.fleet.client.datasets import ChunkCalls, DatasetCalls
from training.fleet.wire.chunking import chunks, sizes_for
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

HOSTS_MAX, HOSTS_BYTES_MAX = 256, 64 * 1024
PUSH_TRIES = 5  # in a row, of one chunk
READ_BYTES = 4 * CHUNK_BYTES  # at once


class FolderError(Exception):
    """A folder's files cannot be listed, or not be sent as listed, as a data set or a saved state. The text is one
    sentence."""


def read_folder(root: Path, progress: Progress) -> Listing:
    """List all files below ``root`` and hash their chunks; files and folders whose name begins with a dot are left out.

    Raises FolderError, also for a link, an unreadable file, and a name that some system could not hold.
    """
    if not root.is_dir():
        raise FolderError(f"{root} is not a folder; name the one that holds the data set")
    try:
        files = sorted(_files(root))
        if not files:
            raise FolderError(f"there is no file in {root}; name the folder that holds the data set")
        check_paths(path.relative_to(root).as_posix() for path in files)
        whole = sum(path.stat().st_size for path in files)
        check_size(len(files), whole)  # before a byte is read
        found = _read_all(root, files, whole, progress)
        return parse(Listing(found).document)  # checked before anything is sent
    except BadListing as error:
        raise FolderError(str(error)) from None
    except OSError as error:
        raise FolderError(
            f"{error.filename or root} cannot be read ({error.strerror or error}): make it readable for this user, or "
            "take it out of the folder; nothing was sent, because a data set holds all files of its folder"
        ) from None


def _files(root: Path) -> Iterator[Path]:
    """Yield the data set's files; raises OSError for an unreadable folder, and FolderError for a link, a device or too
    many files."""

    count, waiting = 0, [root]
    while waiting:
        for path in waiting.pop().iterdir():
            if path.name.startswith("."):
                continue
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise FolderError(f"{path} is a link or a device; put the file itself there")
            if path.is_dir():
                waiting.append(path)
                continue
            count += 1
            yield path
        if count > FILES_MAX:
            raise FolderError(f"{root} holds more than {FILES_MAX:,} files: pack them into fewer")


def _read_all(root: Path, files: Iterable[Path], whole: int, progress: Progress) -> tuple[File, ...]:
    found, done = list[File](), 0

    def blocks(path: Path) -> Iterator[bytes]:
        nonlocal done
        with path.open("rb") as file:
            while block := file.read(READ_BYTES):
                yield block
                done += len(block)
                progress(done, whole)

    for path in files:
        found.append(cut(path.relative_to(root).as_posix(), chunks(blocks(path), sizes_for(whole))))
    if done != whole:
        raise FolderError(f"a file in {root} changed while it was read; push again")
    return tuple(found)


def recording_hosts(root: Path) -> list[str]:
    """Return the hosts on which the data set in ``root`` was recorded, as its build noted; an empty list if that is not
    known, or if they are more than :data:`HOSTS_MAX`."""
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
    """Upload the chunks that the receiver lacks, then publish; return the receiver's ``DatasetPublishReply``, as a
    dict, and the number of bytes sent.

    Raises FolderError when a file changed meanwhile, ClientError, OSError. A repeated push uploads only what is still
    missing.
    """
    sent = 0
    for size, whole in send(calls, root, listing, tries=PUSH_TRIES):
        sent += size
        progress(min(sent, whole), whole)
    for file in listing.files:
        if (root / file.path).stat().st_size != file.size:
            raise FolderError(_changed(root / file.path))
    return calls.publish(listing.dataset_id, name, recording_hosts(root)), sent


def send(calls: ChunkCalls, root: Path, listing: Listing, *, tries: int = PUSH_TRIES) -> Iterator[tuple[int, int]]:
    """Announce a listing and upload missing chunks until none is missing, or none is missing that was not just
    uploaded; small chunks share a request.

    Yields, after each upload, its number of bytes, and the bytes of all chunks that were missing at the beginning. If
    the receiver does not say how many bytes are missing, the second number is the size of all files. ``tries`` bounds
    how often an announcement is sent. Raises FolderError when a file changed meanwhile, ClientError, OSError.
    """
    whole, before = 0, frozenset[str]()
    while True:
        draft = calls.announce(listing, tries=tries)
        missing = frozenset(draft["missing"])
        if missing <= before:  # none; or where nothing of it was kept, the receiver says so with the next call
            return
        before, whole = missing, whole or int(draft.get("missing_bytes") or listing.size)
        wanted = (place for place in listing.distinct() if place.sha256 in missing)
        for places in together(wanted, lambda place: place.length):
            group = [(place.sha256, _bytes_at(root, place)) for place in places]
            calls.bring(listing.dataset_id, group, tries=PUSH_TRIES)
            yield sum(len(data) for _, data in group), whole


def _bytes_at(root: Path, place: Place) -> bytes:
    with (root / place.path).open("rb") as file:
        file.seek(place.offset)
        data = file.read(place.length)
    if hashlib.sha256(data).hexdigest() != place.sha256:
        raise FolderError(_changed(root / place.path))
    return data


def _changed(path: Path) -> str:
    return f"{path} changed while it was pushed; push again"

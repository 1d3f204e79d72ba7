"""A folder of data sets on a training host: fetched chunk by chunk, verified, shared by all jobs that use them.

::

    <folder>/sets/<id>/…           the data set's files that some job has needed, as they were pushed
    <folder>/fetching/<id>/…       files that are being fetched; chunks here are not fetched again
    <folder>/listings/<id>.json    the list of all the data set's files and chunks
    <folder>/stamps/<id>.json      size and time of each file under ``sets``: changed files are checked and repaired
    <folder>/recent.json           the data sets' ids, the one used last at the end

The files that a job needs appear under ``sets`` only when all of them were verified and synced; those of a new data set
appear in one step. One worker uses the folder at a time, and runs one fetch at a time. While the receiver does not
answer, a fetch waits; its caller can cancel the fetch through :class:`Order`. Only one chunk and the listings of the
data sets are in memory.
"""

import errno
import hashlib
import json
import logging
import os
import random
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from training.crashpoint import crashpoint
from training.files import LocalFs, free_bytes, remove_tree, to_free, write_whole
from training.fleet.client.answers import Damaged, Refused, Unavailable, Unreachable, backoff_s
from training.fleet.client.datasets import DatasetCalls
from training.fleet.wire.dataset_listing import ID, BadListing, File, Listing, Place, parse
from training.locking import LockedError, exclusive
from training.printable import size as in_words
from training.sizes import measured, walk

log = logging.getLogger(__name__)
T = TypeVar("T")

GIB = 1024**3
FLOOR_BYTES = 256 * 1024**2  # of disk that stay free for training
TOLD_MAX = 20  # data sets that the receiver is told of
DAMAGED_MAX = 5  # times that one chunk may arrive damaged


class FetchError(Exception):
    """The data set cannot be fetched to this host; the error's text is one sentence."""


class NotGiven(FetchError):  # noqa: N818 - named for the event
    """The receiver refused the data set, or sent it repeatedly damaged or under a wrong id; this host is not at
    fault."""


class CacheInUse(FetchError):  # noqa: N818 - named for the event
    """Another process has locked the folder of data sets."""


class Stopped(Exception):  # noqa: N818 - no error
    """The fetch was stopped through its :class:`Order`, mostly because the attempt that needs the data set has
    ended."""


@dataclass(frozen=True)
class Order:
    """An order to fetch those files of a data set for whose path ``wanted`` returns True; setting ``stopped`` cancels
    the fetch. ``progress`` is called with the bytes done so far and the total bytes of the files that are being
    completed."""

    progress: Callable[[int, int], object]
    stopped: threading.Event = field(default_factory=threading.Event)
    wanted: Callable[[str], bool] = lambda _path: True

    def check(self) -> None:
        if self.stopped.is_set():
            raise Stopped("the order to fetch was cancelled")


class HeldDataset(NamedTuple):
    """A data set in the folder: the bytes here of complete files (``here``) and of incomplete ones (``unfinished``),
    and its full size."""

    dataset_id: str
    here: int
    unfinished: int
    size: int

    @property
    def sentence(self) -> str:
        short, arrived = f"data set {self.dataset_id[:12]}", in_words(self.here + self.unfinished)
        if self.unfinished:
            return f"{short}: {arrived} of {in_words(self.size)} have arrived; its next job fetches the rest"
        part = f"; of its {in_words(self.size)} no job here has read more" if self.here < self.size else ""
        return f"{short}: {arrived} are here, whole{part}"


@dataclass
class DatasetCache:
    """A folder of fetched data sets, limited to ``bytes_max`` in total.

    ``in_use`` returns the ids of the current jobs' data sets, which are not deleted to make room.
    """

    folder: Path
    bytes_max: int
    chance: Callable[[], float] = random.random
    free_bytes: Callable[[Path], int] = free_bytes
    in_use: Callable[[], Collection[str]] = tuple
    _held: ExitStack | None = None
    _sizes: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._one_at_a_time = threading.Lock()  # fetches
        self._presence = threading.RLock()  # of data sets: none goes while a job finds that it is here

    def provide(self, dataset_id: str, source: DatasetCalls, order: Order) -> Path:
        """Return the folder of a data set after checking its wanted files and fetching those that are missing or
        changed.

        Raises FetchError, Stopped, OSError.
        """
        if not ID.fullmatch(dataset_id):
            raise FetchError(f"{dataset_id[:80]!r} is not the id of a data set")
        whole = self.folder / "sets" / dataset_id
        with self._presence:
            self.hold()
            known = self._known(dataset_id)
            if known is not None and not self._lacking(known, order):
                self._used(dataset_id)
                return whole
        with self._one_at_a_time:
            order.check()
            listing = self._listing(dataset_id, source, order)
            lacking = self._lacking(listing, order)
            if lacking:
                self._fetch(dataset_id, listing, lacking, source, order)
            self._used(dataset_id)
            return whole

    def _lacking(self, listing: Listing, order: Order) -> list[File]:
        """List the wanted files that are missing, incomplete or changed."""
        unchanged = self._unchanged(listing.dataset_id)
        return [file for file in listing.files if order.wanted(file.path) and file.path not in unchanged]

    def doubt(self, dataset_id: str) -> None:
        """Mark a data set so that every chunk is hashed again before its next use, because a trainer found it
        damaged."""
        with self._one_at_a_time, suppress(OSError):
            self._stamps(dataset_id).unlink(missing_ok=True)

    def held(self) -> list[HeldDataset]:
        """Return the data sets in the folder, incomplete ones first, the one used last at the end. May be called while
        a fetch is under way."""
        found = []
        for dataset_id in dict.fromkeys(each.name for each in self._by_age()):
            here, unfinished = (_size(self.folder / kind / dataset_id) for kind in ("sets", "fetching"))
            if dataset_id not in self._sizes and (known := self._known(dataset_id)) is not None:
                self._sizes[dataset_id] = known.size  # an id stands for the same bytes for ever
            found.append(HeldDataset(dataset_id, here, unfinished, self._sizes.get(dataset_id, here + unfinished)))
        return found

    def told(self) -> dict[str, object]:
        """Return the folder's description for the receiver: its bytes, its limit, and the :data:`TOLD_MAX` data sets
        used last, newest first."""
        held = self.held()
        return {
            "bytes": sum(each.here + each.unfinished for each in held),
            "bytes_max": self.bytes_max,
            "sets": [
                {"dataset_id": each.dataset_id, "bytes": each.here, "of": each.size, "unfinished": each.unfinished}
                for each in reversed(held[-TOLD_MAX:])
            ],
        }

    def hold(self) -> None:
        """Lock the folder for this process, unless this was done before. Raises CacheInUse if another process has the
        lock."""
        if self._held is not None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            try:
                stack.enter_context(exclusive(self.folder / "lock"))
            except LockedError:
                raise CacheInUse(
                    f"another worker uses the data sets in {self.folder}; give this one its own --cache-dir"
                ) from None
            self._held = stack.pop_all()

    def close(self) -> None:
        """Unlock the folder."""
        if self._held is not None:
            self._held.close()
            self._held = None

    # ── fetching ────────────────────────────────────────────────────────────────────────────

    def _listing(self, dataset_id: str, source: DatasetCalls, order: Order) -> Listing:
        path = self.folder / "listings" / f"{dataset_id}.json"
        known = self._known(dataset_id)
        if known is not None:
            return known
        listing = self._patiently(partial(source.listing, dataset_id, tries=1), order)
        if listing.dataset_id != dataset_id:
            raise NotGiven(f"the receiver sent another listing than that of {dataset_id[:12]}")
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_whole(path, listing.document)
        return listing

    def _known(self, dataset_id: str) -> Listing | None:
        """Return the stored listing of a data set; None if it is missing, cannot be read, or does not match the id."""
        try:
            document = (self.folder / "listings" / f"{dataset_id}.json").read_bytes()
            sound = hashlib.sha256(document).hexdigest() == dataset_id
            return parse(document) if sound else None
        except (OSError, BadListing):
            return None

    def _fetch(
        self, dataset_id: str, listing: Listing, files: Sequence[File], source: DatasetCalls, order: Order
    ) -> None:
        """Complete the given files: keep chunks that are here, copy those of other data sets, fetch the rest; then move
        the files to ``sets``."""
        folder, whole = self.folder / "fetching" / dataset_id, self.folder / "sets" / dataset_id
        self._take_down(whole, folder, files)
        with self._presence:
            self._remove_oldest(dataset_id, files)
        find = self._near(dataset_id, listing, folder)
        wanted, done = {file.path for file in files}, 0
        for file in files:
            _make_way(folder, file.path).touch()
        here = bytearray(self._sound(folder, place, order) for place in listing.places(wanted.__contains__))
        size = sum(file.size for file in files)
        places = zip(here, listing.places(wanted.__contains__), strict=True)
        there = sum(place.length for present, place in places if present)
        log.info("fetching data set %s: %d of %d bytes are here", dataset_id[:12], there, size)
        for present, place in zip(here, listing.places(wanted.__contains__), strict=True):
            order.check()
            if not present:
                ask = partial(source.piece, dataset_id, place.sha256, tries=1)
                data = find(place) or self._patiently(ask, order)
                self._write(dataset_id, files, folder, place, data)
                crashpoint("worker.fetch.piece")
            done += place.length
            order.progress(done, size)
        for file in files:
            order.check()
            os.truncate(folder / file.path, file.size)
            LocalFs().sync_file(folder / file.path)
        stamps = self._stamps(dataset_id)
        stamps.parent.mkdir(mode=0o700, exist_ok=True)
        now = {**self._unchanged(dataset_id), **{file.path: _stamp(folder / file.path) for file in files}}
        write_whole(stamps, json.dumps(now).encode())
        whole.parent.mkdir(exist_ok=True)
        crashpoint("worker.fetch.stamped")
        if whole.exists():  # more of it is wanted than before
            for file in files:
                LocalFs().replace(folder / file.path, _make_way(whole, file.path))
                LocalFs().sync_folder((whole / file.path).parent)
            remove_tree(folder)
        else:
            LocalFs().replace(folder, whole)
        crashpoint("worker.fetch.whole")
        LocalFs().sync_folder(whole.parent)
        log.info("%s of data set %s are here, whole and verified", in_words(size), dataset_id[:12])

    def _write(self, dataset_id: str, files: Sequence[File], folder: Path, place: Place, data: bytes) -> None:
        """Write a chunk to its place. If the disk is full, delete old data sets and try once more. Raises FetchError if
        the disk is still full."""
        try:
            _write_at(folder / place.path, place.offset, data)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            with self._presence:
                self._remove_oldest(dataset_id, files)
            try:
                _write_at(folder / place.path, place.offset, data)
            except OSError:
                raise FetchError(
                    f"the disk of {self.folder} is full amid data set {dataset_id[:12]}; {to_free(self.folder)} "
                    "there: what has arrived is kept"
                ) from error

    def _patiently(self, call: Callable[[], T], order: Order) -> T:
        """Repeat a request until it is answered; return the answer. Raises NotGiven for a refusal or repeated damage,
        Stopped if the order is stopped."""
        failures = damaged = 0
        while True:
            order.check()
            try:
                return call()
            except Refused as error:
                raise NotGiven(f"the receiver does not give the data set: {error.detail}") from error
            except Damaged as error:
                damaged += 1
                if damaged >= DAMAGED_MAX:
                    raise NotGiven(f"{error}, {damaged} times in a row") from error
                least_s = 0.0
            except (Unreachable, Unavailable) as error:
                if not failures:
                    log.warning("a data set is being fetched: %s; trying again", error)
                failures += 1
                least_s = getattr(error, "retry_after_s", None) or 0.0
            if order.stopped.wait(backoff_s(failures + damaged, self.chance(), least_s=least_s)):
                raise Stopped("the order to fetch was cancelled")

    def _near(self, dataset_id: str, listing: Listing, folder: Path) -> Callable[[Place], bytes | None]:
        """Return a function that reads a chunk from this host's data sets; it returns None if none of them has the
        chunk.

        The function looks in this data set's own files that have arrived, and in other data sets, such as an earlier
        version.
        """
        whole = self.folder / "sets" / dataset_id
        others = [(each, self._known(each)) for each in self._ids("sets") if each != dataset_id]
        known = [(folder, listing), (whole, listing)]
        known += [(self.folder / "sets" / each, other) for each, other in others if other is not None]

        def find(place: Place) -> bytes | None:
            for where, other in known:
                there = other.place_of(place.sha256)
                data = None if there is None else _read_if_sound(where / there.path, there)
                if data is not None:
                    return data
            return None

        return find

    @staticmethod
    def _sound(folder: Path, place: Place, order: Order) -> bool:
        order.check()
        return _read_if_sound(folder / place.path, place) is not None

    # ── local state ────────────────────────────────────────────────────────────────────────

    def _stamps(self, dataset_id: str) -> Path:
        return self.folder / "stamps" / f"{dataset_id}.json"

    def _unchanged(self, dataset_id: str) -> Mapping[str, list[int]]:
        """Return size and modification time, by path, of the complete files that have not changed since they were
        complete."""
        try:
            found = msgspec.json.decode(self._stamps(dataset_id).read_bytes(), type=dict[str, list[int]])
        except (OSError, ValueError):
            return {}
        whole = self.folder / "sets" / dataset_id
        return {path: stamp for path, stamp in found.items() if stamp == _stamp(whole / path)}

    @staticmethod
    def _take_down(whole: Path, folder: Path, files: Sequence[File]) -> None:
        """Move those of ``files`` that lie under ``sets`` back to ``fetching``, so that no trainer reads them and their
        chunks are checked again."""
        for file in files:
            if (whole / file.path).is_file():
                log.warning("%s was changed on this host and is repaired", whole / file.path)
                LocalFs().replace(whole / file.path, _make_way(folder, file.path))

    def _remove_oldest(self, dataset_id: str, files: Sequence[File]) -> None:
        """Delete data sets that no current job uses, incomplete ones first, then the least recently used, until
        ``files`` fit within the limit and the disk's reserve. Raises FetchError if ``files`` cannot be made to fit."""
        wanted = sum(file.size for file in files)
        whole, arrived = (_size(self.folder / kind / dataset_id) for kind in ("sets", "fetching"))
        short = f"data set {dataset_id[:12]}"
        if whole + wanted > self.bytes_max:
            raise FetchError(
                f"{short} needs {(whole + wanted) / GIB:.2f} GiB and this host keeps at most "
                f"{self.bytes_max / GIB:.2f}; raise --cache-gib"
            )
        others = [each for each in self._by_age() if each.name != dataset_id]
        sizes = {each: _size(each) for each in others}
        used = set(self.in_use())
        while True:
            over = sum(sizes.values()) + whole + wanted - self.bytes_max
            missing = FLOOR_BYTES + max(0, wanted - arrived) - self.free_bytes(self.folder)
            if over <= 0 and missing <= 0:
                return
            oldest = next((each for each in sizes if each.name not in used), None)
            if oldest is None:
                why = f"{in_words(missing)} more are needed at {self.folder}; {to_free(self.folder)} there"
                if over > 0:
                    why = (
                        f"jobs that run here use {in_words(sum(sizes.values()))} of data sets, and "
                        f"this host keeps at most {in_words(self.bytes_max)}; raise --cache-gib"
                    )
                raise FetchError(f"no room for {short}: {why}")
            log.info("data set %s is removed from this host to make room", oldest.name[:12])
            remove_tree(oldest)
            del sizes[oldest]
            if oldest.parent.name == "sets":
                for kind in ("listings", "stamps"):
                    (self.folder / kind / f"{oldest.name}.json").unlink(missing_ok=True)

    def _by_age(self) -> list[Path]:
        """Return the folders of the data sets here: incomplete ones first, then complete ones, the one used last at the
        end."""
        recent = {each: number for number, each in enumerate(self._recent())}
        whole = sorted(self._ids("sets"), key=lambda each: recent.get(each, -1))
        unfinished = [self.folder / "fetching" / each for each in self._ids("fetching")]
        return unfinished + [self.folder / "sets" / each for each in whole]

    def _ids(self, kind: str) -> list[str]:
        try:
            return sorted(each.name for each in (self.folder / kind).iterdir() if ID.fullmatch(each.name))
        except OSError:
            return []

    def _recent(self) -> list[str]:
        try:
            return msgspec.json.decode((self.folder / "recent.json").read_bytes(), type=list[str])
        except (OSError, ValueError):
            return []

    def _used(self, dataset_id: str) -> None:
        with self._presence:
            there = set(self._ids("sets"))
            recent = [each for each in self._recent() if each in there and each != dataset_id]
            write_whole(self.folder / "recent.json", json.dumps([*recent, dataset_id]).encode())


# ── files ───────────────────────────────────────────────────────────────────────────────────


def _make_way(folder: Path, path: str) -> Path:
    """Create the folders above a file and return the file's path. Raises FetchError if the path leads over a link, or
    is a folder or device."""
    place = folder / path
    astray = place.resolve() != folder.resolve() / path
    if astray or (place.exists() and not place.is_file()):
        raise FetchError(f"a link, folder or device is in the way of {place}; remove it")
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def _read_if_sound(path: Path, place: Place) -> bytes | None:
    """Return a chunk read from its place in the file; None if it cannot be read or is damaged."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(place.offset)
        data = file.read(place.length)
        if hashlib.sha256(data).hexdigest() == place.sha256:
            return data
    return None


def _write_at(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def _stamp(path: Path) -> list[int] | None:
    """Return size and modification time (ns) of a file; None if it is missing or cannot be examined. A link is not
    followed."""
    try:
        about = path.stat(follow_symlinks=False)
    except OSError:
        return None
    return [about.st_size, about.st_mtime_ns]


def _size(folder: Path) -> int:
    """Return the sum of the bytes of all files below a folder."""
    return measured("", map(Path, walk(folder)), "").bytes or 0

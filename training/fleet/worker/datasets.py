"""Data sets on a training host: fetched chunk by chunk, verified, shared by all jobs that name them.

::

    <folder>/sets/<id>/…           a whole data set, as it was pushed
    <folder>/fetching/<id>/…       a partial one: present chunks are not fetched again
    <folder>/listings/<id>.json    its files and chunks
    <folder>/stamps/<id>.json      size and time of every file when it was whole: what has changed since is fetched anew
    <folder>/recent.json           ids, the one used last at the end

A data set appears under ``sets`` in one step, after its last byte was verified and synced. One worker uses the folder
at a time. A receiver that is away is waited for; whoever wants nothing any more says so by :class:`Order`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import shutil
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from training import strict_json
from training.crashpoint import crashpoint
from training.files import LocalFs, free_bytes, write_whole
from training.fleet.client.answers import Damaged, Refused, Unavailable, Unreachable, backoff_s
from training.fleet.wire.dataset_listing import ID, BadListing, Listing, Place, parse
from training.locking import LockedError, exclusive

log = logging.getLogger(__name__)
T = TypeVar("T")

GIB = 1024**3
FLOOR_BYTES = 256 * 1024**2  # of disk that stay free for training
DAMAGED_MAX = 5  # times that one chunk may arrive damaged


class FetchError(Exception):
    """The data set cannot be fetched to this host. The text is one sentence."""


class NotGiven(FetchError):  # noqa: N818 - named for the event
    """The receiver did not give it: no host is at fault."""


class CacheInUse(FetchError):  # noqa: N818 - named for the event
    """Another process holds the folder."""


class Stopped(Exception):  # noqa: N818 - no error
    """The attempt that needs the data set has ended."""


class Source(Protocol):
    """The source of data sets; :class:`training.fleet.client.datasets.DatasetCalls` is one."""

    def listing(self, dataset_id: str, *, tries: int | None = None) -> Listing: ...

    def piece(self, dataset_id: str, sha256: str, *, tries: int | None = None) -> bytes: ...


@dataclass(frozen=True)
class Order:
    """A request for a data set. ``progress`` gets the bytes present and in all."""

    progress: Callable[[int, int], object]
    stopped: threading.Event = field(default_factory=threading.Event)

    def check(self) -> None:
        if self.stopped.is_set():
            raise Stopped("the attempt that needs the data set has ended")


class DatasetCache:
    """A folder of fetched data sets, at most ``bytes_max`` of them unless one alone is needed now."""

    def __init__(
        self,
        folder: Path,
        bytes_max: int,
        *,
        chance: Callable[[], float] = random.random,
        free_bytes: Callable[[Path], int] = free_bytes,
        in_use: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """``in_use`` lists the data sets of the jobs in hand: none of them makes room for another."""
        self.folder = folder
        self._bytes_max = bytes_max
        self._chance = chance
        self._free_bytes = free_bytes
        self._in_use = in_use
        self._one_at_a_time = threading.Lock()
        self._held: ExitStack | None = None

    def provide(self, dataset_id: str, source: Source, order: Order) -> Path:
        """Return the folder of a whole, unchanged data set; fetch it if needed. Raises FetchError, Stopped, OSError."""
        if not ID.fullmatch(dataset_id):
            raise FetchError(f"{dataset_id[:80]!r} is not the id of a data set")
        with self._one_at_a_time:
            self.hold()
            listing = self._listing(dataset_id, source, order)
            whole = self.folder / "sets" / dataset_id
            if not self._untouched(dataset_id, listing):
                self._take_down(dataset_id)
                self._fetch(dataset_id, listing, source, order)
            self._used(dataset_id)
            return whole

    def hold(self) -> None:
        """Lock the folder for this process, at the latest before the first data set. Raises CacheInUse."""
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

    def _listing(self, dataset_id: str, source: Source, order: Order) -> Listing:
        path = self.folder / "listings" / f"{dataset_id}.json"
        known = self._known(dataset_id)
        if known is not None:
            return known
        listing = self._patiently(lambda: source.listing(dataset_id, tries=1), order)
        if listing.dataset_id != dataset_id:
            raise NotGiven(f"the receiver sent another listing than that of {dataset_id[:12]}")
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_whole(path, listing.document)
        return listing

    def _known(self, dataset_id: str) -> Listing | None:
        """Read the stored listing, if it is sound."""
        try:
            document = (self.folder / "listings" / f"{dataset_id}.json").read_bytes()
            sound = hashlib.sha256(document).hexdigest() == dataset_id
            return parse(document) if sound else None
        except (OSError, BadListing):
            return None

    def _fetch(self, dataset_id: str, listing: Listing, source: Source, order: Order) -> None:
        """Complete the data set: keep present chunks, copy those of other sets, fetch the rest; then name it."""
        folder = self.folder / "fetching" / dataset_id
        self._make_room(dataset_id, listing)
        near = self._near(dataset_id, listing)
        done, here = 0, _empty_files(folder, listing)
        there = sum(place.length for place in here)
        log.info("fetching data set %s: %d of %d bytes are here", dataset_id[:12], there, listing.size)
        for place in listing.places():
            order.check()
            if place not in here:
                data = near(place) or self._patiently(
                    lambda sha256=place.sha256: source.piece(dataset_id, sha256, tries=1),  # type: ignore[misc]
                    order,
                )
                _write_at(folder / place.path, place.offset, data)
                crashpoint("worker.fetch.piece")
            done += place.length
            order.progress(done, listing.size)
        for file in listing.files:
            os.truncate(folder / file.path, file.size)
            LocalFs().sync_file(folder / file.path)
        stamps = self.folder / "stamps" / f"{dataset_id}.json"
        stamps.parent.mkdir(mode=0o700, exist_ok=True)
        write_whole(stamps, json.dumps(_stamps(folder, listing)).encode())
        whole = self.folder / "sets" / dataset_id
        whole.parent.mkdir(exist_ok=True)
        crashpoint("worker.fetch.stamped")
        LocalFs().replace(folder, whole)
        crashpoint("worker.fetch.whole")
        LocalFs().sync_folder(whole.parent)
        log.info("data set %s is here, whole and verified", dataset_id[:12])

    def _patiently(self, call: Callable[[], T], order: Order) -> T:
        """Repeat a request until it is answered. Raises FetchError for a refusal, or repeated damage."""
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
            if order.stopped.wait(backoff_s(failures + damaged, self._chance(), least_s=least_s)):
                raise Stopped("the attempt that needs the data set has ended")

    def _near(self, dataset_id: str, listing: Listing) -> Callable[[Place], bytes | None]:
        """A finder of chunks in the other data sets here: of a new version only changed chunks are fetched."""
        wanted, places = set(listing.lengths), {}
        for other in self._ids("sets"):
            known = None if other == dataset_id else self._known(other)
            for place in () if known is None else known.places():
                if place.sha256 in wanted:
                    places[place.sha256] = (self.folder / "sets" / other / place.path, place)

        def find(place: Place) -> bytes | None:
            if place.sha256 not in places:
                return None
            path, there = places[place.sha256]
            return _read_if_sound(path, there)

        return find

    # ── local state ────────────────────────────────────────────────────────────────────────

    def _untouched(self, dataset_id: str, listing: Listing) -> bool:
        """Return True when the whole data set is here and its files are unchanged."""
        try:
            stamps = strict_json.loads((self.folder / "stamps" / f"{dataset_id}.json").read_bytes())
            return bool(stamps == _stamps(self.folder / "sets" / dataset_id, listing))
        except (OSError, ValueError):
            return False

    def _take_down(self, dataset_id: str) -> None:
        """Check changed files again, chunk by chunk."""
        whole, fetching = self.folder / "sets" / dataset_id, self.folder / "fetching" / dataset_id
        if whole.exists():
            log.warning("data set %s was changed on this host and is mended", dataset_id[:12])
            shutil.rmtree(fetching, ignore_errors=True)
            fetching.parent.mkdir(exist_ok=True)
            LocalFs().replace(whole, fetching)

    def _make_room(self, dataset_id: str, listing: Listing) -> None:
        """Remove the least recently used data sets until limit and disk are kept."""
        if listing.size > self._bytes_max:
            raise FetchError(
                f"data set {dataset_id[:12]} has {listing.size / GIB:.2f} GiB and this host keeps at most "
                f"{self._bytes_max / GIB:.2f}; raise --cache-gib"
            )
        in_use = {dataset_id, *self._in_use()}
        others = [each for each in self._by_age() if each.name not in in_use]
        sizes = {each: _size(each) for each in others}
        here = _size(self.folder / "fetching" / dataset_id)
        while True:
            too_many = sum(sizes.values()) + listing.size > self._bytes_max
            missing = FLOOR_BYTES + max(0, listing.size - here) - self._free_bytes(self.folder)
            if not too_many and missing <= 0:
                return
            if not others:
                raise FetchError(
                    f"no room for data set {dataset_id[:12]}: {missing} bytes more are needed at {self.folder}; "
                    "free some space there"
                )
            oldest = others.pop(0)
            log.info("data set %s is removed from this host to make room", oldest.name[:12])
            shutil.rmtree(oldest, ignore_errors=True)
            del sizes[oldest]
            for kind in ("listings", "stamps"):
                (self.folder / kind / f"{oldest.name}.json").unlink(missing_ok=True)

    def _by_age(self) -> list[Path]:
        """List data sets here: the unfinished first, then the whole ones, the one used last at the end."""
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
            found = strict_json.loads((self.folder / "recent.json").read_bytes())
            return [each for each in found if isinstance(each, str)]
        except (OSError, ValueError, TypeError):
            return []

    def _used(self, dataset_id: str) -> None:
        there = set(self._ids("sets"))
        recent = [each for each in self._recent() if each in there and each != dataset_id]
        write_whole(self.folder / "recent.json", json.dumps([*recent, dataset_id]).encode())


# ── files ───────────────────────────────────────────────────────────────────────────────────


def _empty_files(folder: Path, listing: Listing) -> set[Place]:
    """Make all files in full size; returns the chunks already in place."""
    here = set()
    for file in listing.files:
        path = folder / file.path
        astray = path.resolve() != folder.resolve() / file.path
        if astray or (path.exists() and not path.is_file()):
            raise FetchError(f"{path} is in the way; remove it")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for place in listing.places():
        if _read_if_sound(folder / place.path, place) is not None:
            here.add(place)
    return here


def _read_if_sound(path: Path, place: Place) -> bytes | None:
    """Read a chunk from its place; None unless it is sound."""
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


def _stamps(folder: Path, listing: Listing) -> dict[str, list[int]]:
    """Read size and time of every file. Raises OSError when one is missing or no file."""
    found = {}
    for file in listing.files:
        about = (folder / file.path).stat(follow_symlinks=False)
        found[file.path] = [about.st_size, about.st_mtime_ns]
    return found


def _size(folder: Path) -> int:
    """Sum the bytes of the files below a folder."""

    def files() -> Iterator[int]:
        for root, _, names in os.walk(folder):
            for name in names:
                with suppress(OSError):
                    yield Path(root, name).lstat().st_size

    return sum(files())

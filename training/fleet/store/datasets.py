"""The receiver's store of data sets: chunks named by their content and shared between data sets.

::

    <root>/pieces/ab/<sha256>     at most 1 MiB each
    <root>/sets/<id>.json         a listing whose chunks are all there; its SHA-256 is the id
    <root>/about/<id>.json        when it was published, with facts from the listing
    <root>/names/<name>           a name that means an id; publishing moves it
    <root>/drafts/<id>.json       a listing whose chunks are still arriving
    <root>/incoming/*.part        files on their way to their names

A file gets its name only when complete and synced, so a crash between two steps leaves at worst an unneeded draft,
chunk, temporary file or file of ``about``. :meth:`DatasetStore.sweep` removes unneeded drafts, chunks and temporary
files. All methods do synchronous file work; call them from any thread except the event loop's. Nothing is written
before the first data set comes.
"""

import hashlib
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from training.files import Fs, LocalFs, replace_all, sync_ways
from training.fleet.store.artifacts import RESERVE_BYTES
from training.fleet.store.errors import (
    BadName,
    ChunksMissing,
    NoDataset,
    OnlyName,
    StoreError,
    StoreFull,
    WrongDigest,
    disk_errors,
)
from training.fleet.store.reserve import DiskRoom
from training.fleet.wire.dataset_listing import (
    ID,
    MISSING_MAX,
    NAME,
    PREFIX,
    BadListing,
    Catalogue,
    Listing,
    Place,
    parse,
)
from training.frozen import frozen

_SUFFIX = ".json"
_DAMAGED = ".damaged"
_KEPT_LISTINGS, _KEPT_CHUNKS = 4, 100_000  # parsed ones, for the pushes and fetches under way: 4 MB at most


class About(msgspec.Struct, frozen=True):
    """The facts about a data set that are known without reading its listing."""

    size: int
    files: int
    pieces: int
    pushed_at: float  # epoch seconds: when it was published first
    hosts: tuple[str, ...] = ()  # recorded on these hosts, as the push says; empty: not known
    again_at: float = 0.0  # when it was published last, if it was here already


@frozen
class Shelved:
    """A published data set, which can be fetched from the receiver."""

    dataset_id: str
    names: tuple[str, ...]
    about: About


@frozen
class AnnouncedDataset:
    """The result of announcing a data set: the chunks that must be sent, each named once.

    If there are many, only the first are named; ``missing_bytes`` is the size of all missing chunks.
    """

    dataset_id: str
    size: int
    missing: tuple[str, ...]
    missing_bytes: int
    published: bool


class DatasetStore:
    """A folder of data sets, each of at most ``bytes_max`` bytes. One process owns it; ``reserve_bytes`` of disk stay
    free."""

    def __init__(
        self, root: Path, fs: Fs | None = None, *, reserve_bytes: int = RESERVE_BYTES, bytes_max: float = math.inf
    ) -> None:
        self.root = root
        self._fs: Fs = LocalFs() if fs is None else fs
        self.room, self._bytes_max = DiskRoom(root, self._fs, reserve_bytes), bytes_max
        self._lock = threading.RLock()
        self._parsed: dict[str, Listing] = {}
        self._sizes: dict[str, int] = {}

    # -- looking ------------------------------------------------------------------------------------------------

    def catalogue(self) -> Catalogue:
        """Return the published data sets' ids and names; a name whose data set is gone is left out."""
        with self._lock, disk_errors("looking for data sets"):
            ids = frozenset(self._ids("sets"))
            names = {name: self._named(name) for name in self._fs.names(self.root / "names")}
        return Catalogue(ids, {name: each for name, each in names.items() if each in ids})

    def sets(self) -> list[Shelved]:
        """Return the published data sets, sorted by first publication, the newest first."""
        with self._lock:
            known = self.catalogue()
            found = [self._shelved(each, known) for each in known.ids]
        return sorted(found, key=lambda each: (-each.about.pushed_at, each.dataset_id))

    def size_of(self, dataset_id: str) -> int | None:
        """Return the size of a published data set in bytes, even after its removal if asked before; None if that size
        cannot be read."""
        if dataset_id not in self._sizes:  # an id stands for the same bytes for ever
            try:
                self._sizes[dataset_id] = self._about(dataset_id).size
            except (StoreError, OSError):
                return None
        return self._sizes[dataset_id]

    def announced_size(self, dataset_id: str) -> int:
        """Return the size in bytes of a data set that was announced or published. Raises NoDataset, and ChunksMissing
        if its listing is damaged."""
        return self._announced(dataset_id).size

    def listing(self, dataset_id: str) -> bytes:
        """Return the verified bytes of a published data set's listing. Raises NoDataset, and ChunksMissing if the
        listing is damaged."""
        with self._lock, disk_errors("reading a listing"):
            return self._document("sets", dataset_id)

    def piece(self, dataset_id: str, sha256: str) -> bytes:
        """Return a verified chunk of a published data set; a damaged chunk is renamed. Raises NoDataset,
        ChunksMissing."""
        if self._listing("sets", dataset_id).length_of(sha256) is None:
            raise NoDataset(f"data set {dataset_id[:12]} has no chunk {sha256[:12]}")
        path = self._chunk(sha256)
        again = "push the data set again: only what is missing travels"
        with disk_errors("reading a chunk"):
            if self._fs.size(path) is None:
                raise ChunksMissing(f"chunk {sha256[:12]} is missing from the disk; {again}")
            data = b"".join(self._fs.read(path))
        if hashlib.sha256(data).hexdigest() != sha256:
            with self._lock, disk_errors("renaming a damaged chunk"):
                self._fs.replace(path, path.with_name(sha256 + _DAMAGED))
            raise ChunksMissing(f"chunk {sha256[:12]} was damaged on the disk; {again}")
        return data

    # -- pushing ------------------------------------------------------------------------------------------------

    def begin(
        self, dataset_id: str, document: bytes, check: Callable[[int], None] = lambda _size: None
    ) -> AnnouncedDataset:
        """Store a listing as a draft, unless its data set is published; return the missing chunks. Raises WrongDigest,
        BadName, StoreFull, StoreUnavailable, and what ``check`` raises for the size."""
        if hashlib.sha256(document).hexdigest() != dataset_id:
            raise WrongDigest(f"the listing that arrived is not that of {dataset_id[:12]}")
        try:
            listing = parse(document)
        except BadListing as error:
            raise BadName(str(error)) from None
        if listing.size > self._bytes_max:
            raise StoreFull(f"{listing.size} bytes are too many, {self._bytes_max} at most; they stay on their host")
        check(len(document) + listing.size)
        with self._lock, disk_errors("taking a listing"):
            published = self._is_published(dataset_id, document)
            missing, missing_bytes = list[str](), 0
            for place in self._missing(listing):
                missing_bytes += place.length
                if len(missing) < MISSING_MAX:
                    missing.append(place.sha256)
            self.room.check(missing_bytes)
            if not published:  # from here on the sweep leaves its chunks alone
                self.write(self._path("drafts", dataset_id), document)
            self._remember(dataset_id, listing)
        return AnnouncedDataset(dataset_id, listing.size, tuple(missing), missing_bytes, published)

    def put(self, dataset_id: str, chunks: Sequence[tuple[str, bytes | memoryview]]) -> None:
        """Store chunks (SHA-256, bytes) of an announced data set durably: all of them, or none if one is wrong.

        Raises NoDataset, WrongDigest, StoreFull.
        """
        listing = self._announced(dataset_id)
        for sha256, data in chunks:
            wanted = listing.length_of(sha256)
            if wanted is None:
                raise NoDataset(f"data set {dataset_id[:12]} has no chunk {sha256[:80]}")
            if len(data) != wanted or hashlib.sha256(data).hexdigest() != sha256:
                raise WrongDigest(f"the {len(data)} bytes that arrived are not chunk {sha256[:12]}")
        with self._lock, disk_errors("writing a chunk"):
            self._announced(dataset_id)  # it may have been abandoned meanwhile
            self.room.check(sum(len(data) for _, data in chunks))
            self._write_all(
                {
                    self._chunk(sha256): data
                    for sha256, data in chunks
                    if self._fs.size(self._chunk(sha256)) != len(data)
                }
            )
            # Also of present ones: a crash may have cut their first writing short.
            sync_ways(self._fs, [self._chunk(sha256) for sha256, _ in chunks], self.root.parent)

    def publish(self, dataset_id: str, name: str | None, now: float, hosts: Sequence[str] = ()) -> Shelved:
        """Publish an announced data set, under ``name`` if given. May be repeated.

        Raises NoDataset, ChunksMissing, BadName.
        """
        if name is not None and not NAME.fullmatch(name):
            raise BadName(
                f"{name[:80]!r} cannot name a data set: use up to 64 of a-z 0-9 . - _, first a letter or digit"
            )
        with self._lock, disk_errors("publishing a data set"):
            if name is not None:
                self._check_name(name, dataset_id)
            listing = self._announced(dataset_id)
            if missing := sum(1 for _ in self._missing(listing)):
                raise ChunksMissing(f"{missing} of {listing.distinct_count} chunks have not arrived; push again")
            self._make_durable(listing)
            if self._fs.size(self._path("sets", dataset_id)) is None:
                sizes = listing.size, len(listing.files), listing.distinct_count
                about = About(*sizes, now, tuple(hosts))
                self.write(self._path("about", dataset_id), msgspec.json.encode(about))
                self.write(self._path("sets", dataset_id), listing.document)
            else:
                known = self._about(dataset_id)
                # an earlier push may not have known the hosts
                about = msgspec.structs.replace(known, hosts=tuple(hosts) or known.hosts, again_at=now)
                self.write(self._path("about", dataset_id), msgspec.json.encode(about))
            self._fs.unlink(self._path("drafts", dataset_id))
            if name is not None:
                self.write(self.root / "names" / name, dataset_id.encode())
            return self._shelved(dataset_id, self.catalogue())

    def _check_name(self, name: str, dataset_id: str) -> None:
        """Raise BadName for a name that has the form of an id, or of a shortened id (``PREFIX``) with which a known
        data set's id begins."""
        known = {*self._ids("sets"), dataset_id}
        meant = [each for each in known if each.startswith(name)]
        if ID.fullmatch(name) or (PREFIX.fullmatch(name) and meant):
            whose = f"data set {meant[0][:12]}" if meant else "some data set"
            raise BadName(
                f"{name!r} cannot name a data set: it is the id of {whose}, or how it begins; "
                "choose another name with --name"
            )

    # -- removing -----------------------------------------------------------------------------------------------

    def remove(self, dataset_id: str) -> int:
        """Delete a data set, its names and the chunks that no other data set or draft uses; return the number of freed
        bytes. Raises NoDataset."""
        with self._lock, disk_errors("removing a data set"):
            listing = self._listing("sets", dataset_id)
            for name, named in self.catalogue().names.items():
                if named == dataset_id:
                    self._fs.unlink(self.root / "names" / name)
            self._fs.unlink(self._path("sets", dataset_id))
            self._fs.unlink(self._path("about", dataset_id))
            self._fs.sync_folder(self.root / "sets")
            self._parsed.pop(dataset_id, None)
            listed, freed = self._is_listed(), 0
            for place in listing.distinct():
                if not listed(place.sha256):
                    self._fs.unlink(self._chunk(place.sha256))
                    freed += place.length
            return freed

    def abandon(self, dataset_id: str) -> None:
        """If there is a draft, delete it and all chunks that no data set or other draft uses; else do nothing."""
        with self._lock, disk_errors("removing a draft"):
            if self._fs.size(path := self._path("drafts", dataset_id)) is not None:
                self._fs.unlink(path)
                self.sweep(0.0)

    def unname(self, dataset_id: str, name: str) -> Shelved:
        """Remove one of several names of a data set. Raises NoDataset when the data set lacks that name, OnlyName when
        it has no other."""
        with self._lock, disk_errors("freeing a name"):
            known = self.catalogue()
            if known.names.get(name) != dataset_id:
                raise NoDataset(f"data set {dataset_id[:12]} is not called {name[:80]!r}")
            if list(known.names.values()).count(dataset_id) == 1:
                raise OnlyName(f"{name} is the only name of data set {dataset_id[:12]}: remove the data set")
            self._fs.unlink(self.root / "names" / name)
            self._fs.sync_folder(self.root / "names")
            return self._shelved(dataset_id, self.catalogue())

    def sweep(self, older_than: float) -> int:
        """Delete drafts and temporary files last written before ``older_than`` (epoch s), and chunks in no listing;
        return their number."""
        with self._lock, disk_errors("sweeping the data sets"):
            gone = [
                path
                for folder in ("drafts", "incoming")
                for path in self._files(folder)
                if self._fs.modified_at(path) < older_than
            ]
            for path in gone:
                self._fs.unlink(path)
            listed, loose = self._is_listed(), 0
            for folder in self._files("pieces"):
                for path in map(folder.__truediv__, self._fs.names(folder)):
                    if not listed(path.name):
                        self._fs.unlink(path)
                        loose += 1
        return len(gone) + loose

    # -- inside -------------------------------------------------------------------------------------------------

    def _is_published(self, dataset_id: str, document: bytes) -> bool:
        """Return True if the data set is published; if its listing is damaged, write ``document`` in its place."""
        try:
            self._listing("sets", dataset_id)
        except NoDataset:
            return False
        except ChunksMissing:
            self.write(self._path("sets", dataset_id), document)
        return True

    def _announced(self, dataset_id: str) -> Listing:
        """Return the listing of a draft; without one, that of a published data set. Raises NoDataset and
        ChunksMissing."""
        try:
            return self._listing("drafts", dataset_id)
        except NoDataset:
            return self._listing("sets", dataset_id)

    def _listing(self, folder: str, dataset_id: str) -> Listing:
        with self._lock, disk_errors("reading a listing"):
            self._require(folder, dataset_id)
            if dataset_id not in self._parsed:
                self._remember(dataset_id, parse(self._document(folder, dataset_id)))
            return self._parsed[dataset_id]

    def _document(self, folder: str, dataset_id: str) -> bytes:
        document = b"".join(self._fs.read(self._require(folder, dataset_id)))
        if hashlib.sha256(document).hexdigest() != dataset_id:
            raise ChunksMissing(f"the listing of {dataset_id[:12]} is damaged; push again")
        return document

    def _require(self, folder: str, dataset_id: str) -> Path:
        path = self._path(folder, dataset_id)
        if self._fs.size(path) is None:
            raise NoDataset(f"there is no data set {dataset_id[:12]}; `cis490-jobs dataset list` shows all")
        return path

    def _remember(self, dataset_id: str, listing: Listing) -> None:
        self._parsed.pop(dataset_id, None)
        self._parsed[dataset_id] = listing
        while len(self._parsed) > 1 and (
            len(self._parsed) > _KEPT_LISTINGS or sum(each.count for each in self._parsed.values()) > _KEPT_CHUNKS
        ):
            del self._parsed[next(iter(self._parsed))]

    def _missing(self, listing: Listing) -> Iterator[Place]:
        return (place for place in listing.distinct() if self._fs.size(self._chunk(place.sha256)) != place.length)

    def _is_listed(self) -> Callable[[str], bool]:
        """Return a function that returns True if any listing has a chunk. The function keeps all listings in memory,
        about 40 bytes per chunk."""
        listings = [self._listing(folder, each) for folder in ("sets", "drafts") for each in self._ids(folder)]
        return lambda sha256: any(listing.length_of(sha256) is not None for listing in listings)

    def _shelved(self, dataset_id: str, known: Catalogue) -> Shelved:
        names = tuple(sorted(name for name, each in known.names.items() if each == dataset_id))
        return Shelved(dataset_id, names, self._about(dataset_id))

    def _about(self, dataset_id: str) -> About:
        path = self._path("about", dataset_id)
        try:
            return msgspec.json.decode(b"".join(self._fs.read(path)), type=About)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            listing = self._listing("sets", dataset_id)
            at = self._fs.modified_at(self._path("sets", dataset_id))
            return About(listing.size, len(listing.files), listing.distinct_count, at)

    def _named(self, name: str) -> str:
        return b"".join(self._fs.read(self.root / "names" / name)).decode("ascii", "replace")

    def _ids(self, folder: str) -> Iterator[str]:
        for path in self._files(folder):
            if path.name.endswith(_SUFFIX) and ID.fullmatch(path.name.removesuffix(_SUFFIX)):
                yield path.name.removesuffix(_SUFFIX)

    def _files(self, folder: str) -> list[Path]:
        return [self.root / folder / name for name in self._fs.names(self.root / folder)]

    def _path(self, folder: str, dataset_id: str) -> Path:
        if not ID.fullmatch(dataset_id):
            raise BadName(f"{dataset_id[:80]!r} is not the id of a data set")
        return self.root / folder / f"{dataset_id}{_SUFFIX}"

    def _chunk(self, sha256: str) -> Path:
        return self.root / "pieces" / sha256[:2] / sha256

    def _make_durable(self, listing: Listing) -> None:
        """Sync the folders that name a data set's files, because a killed process may not have done so."""
        kinds = (kind for kind in ("about", "sets") if self._fs.names(self.root / kind))
        there = [self._path(kind, listing.dataset_id) for kind in kinds]
        sync_ways(self._fs, [*there, *(self._chunk(place.sha256) for place in listing.distinct())], self.root.parent)

    def write(self, target: Path, data: bytes) -> None:
        """Write ``data`` durably under its name: to a temporary file, synced, renamed, with all folders above
        synced."""
        self._write_all({target: data})
        sync_ways(self._fs, [target], self.root.parent)

    def _write_all(self, wanted: Mapping[Path, bytes | memoryview]) -> None:
        incoming = self.root / "incoming"
        for folder in sorted({incoming, *(target.parent for target in wanted)}):
            self._fs.mkdir(folder)
        replace_all(self._fs, [(incoming / f"{target.name}.part", target, data) for target, data in wanted.items()])

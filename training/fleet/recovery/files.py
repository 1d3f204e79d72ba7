"""Copy files of a backup with their digests, make them durable, and put them in place without a gap."""

import contextlib
import hashlib
import itertools
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from training.clock import Clock
from training.files import Fs, LocalFs, replace_whole, settle
from training.fleet.database.sqlite import fold_log
from training.fleet.database.writer import DatabaseError
from training.fleet.recovery.owner import User, acting_as, owner_of
from training.fleet.service.state import Deployment, RecoveryError
from training.fleet.store.errors import StoreError
from training.fleet.store.incoming import PART_SUFFIX

Progress = Callable[[str, int, int], object]  # gets the present part of the work, how far it is and its end
T = TypeVar("T")
UNTOUCHED = "the state that was there is untouched"


@contextlib.contextmanager
def plainly(doing: str, comfort: str) -> Iterator[None]:
    """Turn errors of the system, the database and the store into a RecoveryError: one sentence that ends with
    ``comfort``, what is still whole."""
    try:
        yield
    except (DatabaseError, StoreError) as error:
        raise RecoveryError(f"{error}; {comfort}") from error
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        raise RecoveryError(f"{doing} failed:{where} {error.strerror or error}; {comfort}") from error


def steps(progress: Progress, what: str, things: Collection[T]) -> Iterator[T]:
    """Yield each of ``things``, after telling ``progress`` its number (from 0) and how many there are."""
    for number, each in enumerate(things):
        progress(what, number, len(things))
        yield each


def opened(fs: Fs, path: Path, user: User | None = None) -> Iterable[bytes]:
    """Open a file with the rights of ``user``, or without a user with our own, and return its blocks. The call itself,
    not the reading of the blocks, raises OSError if the file cannot be opened."""
    blocks = fs.read(path)
    with acting_as(user):
        first = next(blocks, b"")
    return itertools.chain([first], blocks)


def write_file(fs: Fs, target: Path, blocks: Iterable[bytes], *, sha256: str | None = None) -> str | None:
    """Write a file durably, except for its folder's entry, replacing ``target``; return its SHA-256.

    If the content does not have the SHA-256 ``sha256``, ``target`` stays as it was and None is returned.
    """
    digest = hashlib.sha256()

    def read() -> Iterator[bytes]:
        for chunk in blocks:
            digest.update(chunk)
            yield chunk

    fs.mkdir(target.parent)
    temporary = target.with_name(target.name + PART_SUFFIX)
    wanted = replace_whole(fs, temporary, target, read(), lambda: sha256 in (None, digest.hexdigest()))
    return digest.hexdigest() if wanted else None


def stamp(now: float) -> str:
    """Return a moment (UTC) as a folder's name; such names sort by time."""
    return datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")


@contextlib.contextmanager
def holding(doing: str, state: Deployment, *, force: bool) -> Iterator[None]:
    """Lock a state folder whose database will be replaced; if root runs this, act with the receiver's user's rights.

    Raises RecoveryError while a receiver, restore or rebuild uses the folder; without ``force``, also if the folder has
    a database.
    """
    owner = owner_of(state.db)
    # So that files that root once left can be written.
    give_to_owner(state.db, state.models, state.tls, state.datasets)
    with plainly(doing, UNTOUCHED):
        try:
            with acting_as(owner), state.alone():
                if state.db.exists() and not force:
                    found = f"there is a database at {state.db} already"
                    raise RecoveryError(f"{found}; --force keeps it beside under another name")
                yield
        except PermissionError as error:
            if owner is None:
                raise
            where = error.filename or state.db.parent
            raise RecoveryError(
                f"{where} is closed to user {owner.uid}, in whose name this is done because {state.db.parent} belongs "
                f"to it; see where that leads (namei -l {where}), remove a link that none of you made or give the user "
                f"its files (chown -hR {owner.uid}:{owner.gid}), and repeat"
            ) from error


def put_database(state: Deployment, clock: Clock, fill: Callable[[Path], None]) -> Path | None:
    """Let the function ``fill`` write a new database, and put it in place; return where the old one was moved, None if
    there was none.

    The old database stays in place until the new one replaces it, because a receiver that found none would create an
    empty one. The old database's log is written into that database, or removed if there is only a log: SQLite would
    replay the log into the new file.
    """
    db, new, aside = state.db, state.db.with_name(f"{state.db.name}.unfinished"), None
    try:
        _discard(new)
        fill(new)
        if Path(f"{new}-wal").exists():  # closing it has failed to bring everything into the one file
            raise OSError(f"{new} could not be finished")
        if db.exists():
            if db.stat().st_size:  # SQLite would throw the log of an empty file away
                fold_log(db)
            aside = _free(db.with_name(f"{db.name}.before-{stamp(clock.now())}"))
            write_file(LocalFs(), aside, LocalFs().read(db))
            for companion in ("-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    LocalFs().replace(Path(f"{db}{companion}"), Path(f"{aside}{companion}"))
        else:
            _discard(db)
        settle(new, db)
    finally:
        _discard(new)
    return aside


def _free(path: Path) -> Path:
    names = itertools.chain([path], (path.with_name(f"{path.name}-{number}") for number in itertools.count(2)))
    return next(each for each in names if not each.exists())


def _discard(database: Path) -> None:
    """Remove a database and the files ``-wal`` and ``-shm`` that SQLite makes beside it."""
    for companion in ("", "-wal", "-shm"):
        Path(f"{database}{companion}").unlink(missing_ok=True)


def give_to_owner(db: Path, *folders: Path) -> None:
    """Give files that root wrote to the receiver's user, the owner of the database's folder.

    The receiver's user may have made links, and may exchange them meanwhile, so no link is followed.
    """
    owner = owner_of(db)
    if owner is None:
        return
    handle = os.open(db.parent, os.O_RDONLY)
    try:
        for path in db.parent.glob(f"{db.name}*"):
            _give(path.name, handle, owner)
    finally:
        os.close(handle)
    for folder in folders:
        if not folder.is_dir():
            continue
        for _, _, names, place in os.fwalk(folder, follow_symlinks=False):
            if os.fstat(place).st_uid == 0:
                os.fchown(place, owner.uid, owner.gid)
            for name in names:
                _give(name, place, owner)


def _give(name: str, place: int, owner: User) -> None:
    """Make ``owner`` the owner of a file of root's that has only one hard link: under a second name the file may be
    another user's."""
    with contextlib.suppress(FileNotFoundError):  # a receiver that runs yet
        about = os.stat(name, dir_fd=place, follow_symlinks=False)
        if about.st_uid == 0 and about.st_nlink == 1 and stat.S_ISREG(about.st_mode):
            os.chown(name, owner.uid, owner.gid, dir_fd=place, follow_symlinks=False)

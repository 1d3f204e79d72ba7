"""Files of a backup and of a state: copied with their digest, made durable, and put in place without a gap."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from training.fleet.database_sqlite import fold_log
from training.fleet.state import RecoveryError
from training.fleet.storage.filesystem import Fs, file_sha256

PART = ".part"


@contextlib.contextmanager
def plainly(doing: str, comfort: str) -> Iterator[None]:
    """Turn the operating system's failures into one sentence that says what was being done, and what still holds."""
    try:
        yield
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        raise RecoveryError(
            f"{doing} failed:{where} {error.strerror or error}; {comfort}"
        ) from error


def copy_file(fs: Fs, source: Path, target: Path, *, sha256: str | None = None) -> str | None:
    """Copy a file durably but for its folder, replacing ``target``; returns its SHA-256.

    With ``sha256`` a source of other bytes is not copied, and None is returned.
    """
    temporary = target.with_name(target.name + PART)
    fs.unlink(temporary)
    fs.mkdir(target.parent)
    digest = hashlib.sha256()
    handle = fs.create(temporary)
    try:
        for chunk in fs.read(source):
            digest.update(chunk)
            fs.write(handle, chunk)
        fs.fsync(handle)
    finally:
        fs.close(handle)
    found = digest.hexdigest()
    if sha256 is not None and found != sha256:
        fs.unlink(temporary)
        return None
    fs.replace(temporary, target)
    return found


def write_file(fs: Fs, target: Path, body: bytes) -> None:
    """Write a private file durably but for its folder, replacing ``target``."""
    temporary = target.with_name(target.name + PART)
    fs.unlink(temporary)
    handle = fs.create(temporary)
    try:
        fs.write(handle, body)
        fs.fsync(handle)
    finally:
        fs.close(handle)
    fs.replace(temporary, target)


def sync_way(fs: Fs, folder: Path, root: Path) -> None:
    """Make the names in every folder from ``folder`` up to ``root`` durable."""
    while True:
        fs.sync_folder(folder)
        if folder == root or folder == folder.parent:
            return
        folder = folder.parent


def holds(fs: Fs, path: Path, size: int, sha256: str | None = None) -> bool:
    """Whether a file of this size is there; with ``sha256``, of these bytes."""
    if fs.size(path) != size:
        return False
    return sha256 is None or file_sha256(fs, path) == sha256


def stamp(now: float) -> str:
    """A moment as a folder's name; the order of names is that of time."""
    return datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")


def place_database(new: Path, db: Path, now: float) -> Path | None:
    """Put ``new`` in the place of ``db``. What was there is kept beside under the name that is returned.

    At no moment is there no database: a receiver that found none would begin an empty one. The old one's log is folded
    into it, or goes first if that cannot be: it would be replayed into the new file.
    """
    aside = None
    if Path(f"{new}-wal").exists():  # closing it has failed to bring everything into the one file
        raise OSError(f"{new} could not be finished")
    if db.exists():
        if db.stat().st_size:  # SQLite would throw the log of an empty file away
            fold_log(db)
        aside = _free(db.with_name(f"{db.name}.before-{stamp(now)}"))
        try:
            os.link(db, aside)
        except OSError:  # a file system without links
            shutil.copy2(db, aside)
        for companion in ("-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                Path(f"{db}{companion}").rename(f"{aside}{companion}")
    else:
        for companion in ("-wal", "-shm"):
            Path(f"{db}{companion}").unlink(missing_ok=True)
    new.replace(db)
    return aside


def _free(path: Path) -> Path:
    number = 2
    found = path
    while found.exists():
        found = path.with_name(f"{path.name}-{number}")
        number += 1
    return found


def discard_database(path: Path) -> None:
    """Remove an unfinished database, what SQLite laid beside it, and copies of its older version."""
    for companion in ("", "-wal", "-shm"):
        Path(f"{path}{companion}").unlink(missing_ok=True)
    for older in path.parent.glob(f"{path.name}.v*"):
        older.unlink()


def give_to_owner(db: Path, *folders: Path) -> None:
    """What root wrote becomes the receiver's: its user is the one whom the database's folder belongs to."""
    if os.name != "posix" or os.geteuid() != 0:
        return
    owner = db.parent.stat()
    if owner.st_uid == 0:
        return
    made = [*db.parent.glob(f"{db.name}*")]
    for folder in folders:
        if folder.exists():
            made += [folder, *folder.rglob("*")]
    for path in made:
        if path.lstat().st_uid == 0:
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)

"""Read the receiver's files without following links, and report links.

The receiver's user may have made a link in any folder it can write, even one to a file that only root may read. A link
that root or the caller created in place of a whole folder, for example to another disk, is intended, and is followed.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from training.files import BLOCK_BYTES, LocalFs
from training.fleet.recovery.findings import Finding
from training.fleet.service.state import Deployment
from training.sizes import walk

_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


class Unlinked(LocalFs):
    """A file system that treats links below its ``roots``, and what they point to, as missing; the roots themselves may
    be links."""

    def __init__(self, *roots: Path) -> None:
        super().__init__()
        self._roots = roots

    def read(self, path: Path) -> Iterator[bytes]:
        self._check(path)
        with os.fdopen(os.open(path, os.O_RDONLY | _NOFOLLOW), "rb", buffering=0) as file:
            while block := file.read(BLOCK_BYTES):
                yield block

    def size(self, path: Path) -> int | None:
        try:
            self._check(path)
            return path.lstat().st_size
        except FileNotFoundError:
            return None

    def modified_at(self, path: Path) -> float:
        self._check(path)
        return path.lstat().st_mtime

    def names(self, path: Path) -> list[str]:
        try:
            self._check(path)
            return super().names(path)
        except FileNotFoundError:
            return []

    def _check(self, path: Path) -> None:
        """Raise FileNotFoundError if a path is a link, or leads through one, below its root."""
        root = next((each for each in (path, *path.parents) if each in self._roots), path.parent)
        while path != root:
            if path.is_symlink():
                raise FileNotFoundError(f"{path} is a link")
            path = path.parent


def strange_root(path: Path) -> bool:
    """Tell whether ``path`` is a symbolic link that a user other than root and us made; on Windows, whether it is any
    link."""
    if os.name != "posix":
        return path.is_symlink()
    try:
        about = path.lstat()
    except OSError:
        return False
    return stat.S_ISLNK(about.st_mode) and about.st_uid not in (0, os.geteuid())


def links(state: Deployment) -> Iterator[Finding]:
    """Report the receiver's links; on POSIX, skip those by which root or we replaced a database file or a whole
    folder."""
    files = [Path(f"{state.db}{suffix}") for suffix in ("", "-wal", "-shm")]
    folders = [state.models, state.datasets, state.tls]
    yield from _named(path for path in [*files, *folders] if strange_root(path))
    for folder in folders:
        if not strange_root(folder):
            yield from _named(Path(each.path) for each in walk(folder) if each.is_symlink())


def _named(found: Iterable[Path]) -> Iterator[Finding]:
    for path in found:
        try:
            to = str(path.readlink())
        except OSError:
            continue
        yield Finding(
            "links",
            f"{path} is a link to {to}, which is not followed",
            "find out who made it; put the file itself in its place, or remove the link",
        )

"""Write files durably, by a few operations that a test can make fail, or interrupt with a simulated power cut.

Most code calls :func:`write_whole` and :func:`settle`; the store passes its own :class:`Fs` to the operations that
these two use. ``create`` and ``reopen`` return a handle that other operations take. A failed operation
of an :class:`Fs` raises :class:`OSError`.
"""

import errno
import hashlib
import logging
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from training.crashpoint import crashpoint

NESTED = 50  # folders that are open at once while one is deleted
BLOCK_BYTES = 1024 * 1024
INODES_KEPT = 100  # with fewer left, a file system counts as full
HELD_S = (0.01, 0.03, 0.1, 0.3, 0.6, 1.0)  # pauses while a scanner holds a file
SECRET_BYTES_MAX = 4096
_PLAINLY = (  # each where there is one: no link is followed, no pipe waited for
    getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
)
_PRIVATE_FILE, _PRIVATE_FOLDER = 0o600, 0o700
LARGE_FILES = Path("/var/tmp")  # where /tmp may lie in memory  # noqa: S108 - files there are removed or have no name
_BINARY = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_CANNOT_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP})
_unsynced = set[int]()  # devices of which the log says that their folders cannot be synced

log = logging.getLogger(__name__)


class LocalFs:
    """The machine's own disk.

    On Windows a virus scanner may hold a file that was just written, and Windows refuses to rename the file meanwhile;
    so a refused rename is tried again for about two seconds.
    """

    _mode = _PRIVATE_FILE

    def __init__(self, sleep: Callable[[float], object] = time.sleep, *, mode: int = _PRIVATE_FILE) -> None:
        """``mode``: the permissions of files made by ``create``, less what the umask takes."""
        self._sleep, self._mode = sleep, mode

    def mkdir(self, path: Path) -> None:
        """Make a folder and its missing parents, open to their owner only; no error if the folder exists."""
        if not path.parent.exists():  # `parents=True` would leave these to the umask
            self.mkdir(path.parent)
        path.mkdir(mode=_PRIVATE_FOLDER, exist_ok=True)

    def create(self, path: Path) -> int:
        """Make a file with the permissions given to ``__init__`` and open it for writing; FileExistsError if a file has
        the name."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, self._mode)

    def reopen(self, path: Path, size: int) -> int:
        """Open a file for writing at ``size``, cutting off what follows."""
        handle = os.open(path, os.O_WRONLY | _BINARY)
        try:
            os.ftruncate(handle, size)
            os.lseek(handle, size, os.SEEK_SET)
        except OSError:
            os.close(handle)
            raise
        return handle

    def write(self, handle: int, data: bytes | memoryview) -> None:
        """Write all of ``data`` to an open file, or raise OSError."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(handle, rest) :]

    def fsync(self, handle: int) -> None:
        os.fsync(handle)

    def close(self, handle: int) -> None:
        os.close(handle)

    def read(self, path: Path) -> Iterator[bytes]:
        """Yield the file's bytes in blocks of at most BLOCK_BYTES."""
        with path.open("rb", buffering=0) as file:
            while block := file.read(BLOCK_BYTES):
                yield block

    def append(self, path: Path, data: bytes) -> None:
        """Append to the file in one write and sync it; if the file is absent, make it, readable by its owner only."""
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _BINARY, _PRIVATE_FILE)
        try:
            written = os.write(handle, data)  # one call: a reader never sees half of two lines mixed
            if written != len(data):
                raise OSError(f"only {written} of {len(data)} bytes reached {path}")
            os.fsync(handle)
        finally:
            os.close(handle)

    def rename_new(self, source: Path, target: Path) -> None:
        """Rename a file; FileExistsError if ``target`` exists. The caller makes sure that no other process creates
        ``target`` meanwhile."""
        # Not link and unlink: a crash between the two leaves a part that shares the published file's bytes, and the
        # next resumed write would go through it into the published file.
        if target.exists():
            raise FileExistsError(f"{target} is there already")
        self._patiently(lambda: source.rename(target))

    def replace(self, source: Path, target: Path) -> None:
        self._patiently(lambda: source.replace(target))

    def _patiently(self, rename: Callable[[], object]) -> None:
        for pause_s in HELD_S if os.name == "nt" else ():
            try:
                rename()
            except PermissionError:
                self._sleep(pause_s)
            else:
                return
        rename()

    def sync_file(self, path: Path) -> None:
        """Sync a file that another process may have written."""
        handle = os.open(path, os.O_RDWR | _BINARY)  # Windows syncs only what is open for writing
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def sync_folder(self, path: Path) -> None:
        """Sync a folder's names; on Windows do nothing. If the file system cannot sync folders (some network shares),
        log one warning per device, without an error."""
        if os.name == "nt":  # Windows has no such thing; its renames are journalled
            return
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno not in _CANNOT_SYNC:
                raise
            if (device := os.fstat(handle).st_dev) not in _unsynced:
                _unsynced.add(device)
                log.warning("the file system of %s cannot sync folders: a power cut there may lose new files", path)
        finally:
            os.close(handle)

    def unlink(self, path: Path) -> None:
        """Remove a file; no error if it does not exist."""
        path.unlink(missing_ok=True)

    def size(self, path: Path) -> int | None:
        """Return the number of bytes in a file; None if the file does not exist."""
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return None

    def modified_at(self, path: Path) -> float:
        """Return when the file was last written, in epoch seconds."""
        return path.stat().st_mtime

    def names(self, path: Path) -> list[str]:
        """Return the sorted names in a folder; empty if the folder does not exist."""
        try:
            return sorted(entry.name for entry in path.iterdir())
        except FileNotFoundError:
            return []

    def free_bytes(self, path: Path) -> int:
        """Return the number of bytes that a process without special rights may still write to the disk of ``path``; 0
        if almost no inodes are free."""
        return 0 if lacks_inodes(path) else shutil.disk_usage(path).free


Fs = LocalFs  # the file system as the store uses it; a test hands it a class of its own


def free_bytes(path: Path) -> int:
    """Return the free bytes on the disk where ``path`` is, or will be; 0 if almost no inodes are free."""
    return LocalFs().free_bytes(_existing(path))


def keep_others_out() -> None:
    """Forbid the group and all others to write files that this process makes from now on, if the umask would let all
    users write them."""
    before = os.umask(0o022)
    os.umask(before if before & 0o002 else before | 0o022)


def lacks_inodes(path: Path) -> bool:
    """Return True if the file system where ``path`` is, or will be, can hold almost no further file, however small."""
    if not hasattr(os, "statvfs"):
        return False
    found = os.statvfs(_existing(path))
    return found.f_files > 0 and found.f_favail < INODES_KEPT  # no files at all: it does not count them


def to_free(path: Path) -> str:
    """Return what a person should do about the full disk where ``path`` is, or will be."""
    return "remove files, because its inodes are used up" if lacks_inodes(path) else "free some space"


def scarce(path: Path, free: int) -> str:
    """Return what a disk lacks: inodes, or bytes, of which ``free`` are free."""
    return "too few inodes are free" if lacks_inodes(path) else f"only {free // 1024**2} MiB are free"


def cause_of(error: OSError, path: Path) -> str:
    """Return why ``path`` cannot be written, in the system's words unless its disk lacks inodes."""
    full = error.errno == errno.ENOSPC and lacks_inodes(path)
    return "too few inodes are free" if full else error.strerror or str(error)


def _existing(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def folder_of_large_files() -> str:
    """Return the folder for large temporary files: the one that the environment names, else ``/var/tmp`` if it can be
    written, else the system's."""
    named = any(os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    return tempfile.gettempdir() if named or not os.access(LARGE_FILES, os.W_OK) else str(LARGE_FILES)


def file_sha256(path: Path, fs: Fs | None = None) -> str:
    """Return the SHA-256 (hex) of a file's bytes, read from the machine's own disk unless ``fs`` is given."""
    digest = hashlib.sha256()
    for block in (fs or LocalFs()).read(path):
        digest.update(block)
    return digest.hexdigest()


def mark_of(path: Path) -> str | None:
    """Return a digest of a file's content, device, inode, size and modification time; None if the file cannot be read.
    A copy of the file has another digest."""
    try:
        there = path.stat()
        told = f"{there.st_dev} {there.st_ino} {there.st_mtime_ns} {there.st_size} {file_sha256(path)}"
    except OSError:
        return None
    return hashlib.sha256(told.encode()).hexdigest()


def replace_all(fs: Fs, wanted: Sequence[tuple[Path, Path, bytes | memoryview]]) -> None:
    """Replace many small files (temporary, target, content): all written, all synced, then all renamed.

    One sync of the journal covers the other files, so each costs a fraction of a file written alone. The caller syncs
    the folders.
    """
    handles = []
    try:
        for temporary, _, content in wanted:
            fs.unlink(temporary)  # what a crash may have left
            handles.append(fs.create(temporary))
            fs.write(handles[-1], content)
        for handle in handles:
            fs.fsync(handle)
    finally:
        for handle in handles:
            fs.close(handle)
    crashpoint("store.replace.written")
    for temporary, target, _ in wanted:
        fs.replace(temporary, target)
    crashpoint("store.replace.done")


def replace_whole(
    fs: Fs,
    temporary: Path,
    target: Path,
    blocks: Iterable[bytes],
    only_if: Callable[[], bool] = lambda: True,
    *,
    durable: bool = True,
) -> bool:
    """Replace ``target`` atomically: write ``temporary``, sync it, rename it over ``target``. The caller syncs the
    folder.

    ``only_if`` is called after writing; if ``only_if`` returns False, ``target`` stays unchanged and this function
    returns False, otherwise True. ``durable=False`` syncs nothing: the file is whole after a crash of this process, not
    after a power cut.
    """
    fs.unlink(temporary)  # what a crash may have left
    handle = fs.create(temporary)
    try:
        for block in blocks:
            fs.write(handle, block)
        wanted = only_if()
        if wanted and durable:
            fs.fsync(handle)
    finally:
        fs.close(handle)
    if wanted:
        crashpoint("store.replace.written")
        fs.replace(temporary, target)
        crashpoint("store.replace.done")
    else:
        fs.unlink(temporary)
    return wanted


def sync_ways(fs: Fs, paths: Iterable[Path], root: Path) -> None:
    """Sync ``root`` and the folders below it on the way to these files, so that the files' names survive a power
    cut."""
    folders = {root, *(folder for path in paths for folder in path.parents if root in folder.parents)}
    for folder in sorted(folders, reverse=True):
        fs.sync_folder(folder)


def write_whole(
    path: Path, content: bytes, *, durable: bool = True, mode: int | None = None, part: Path | None = None
) -> None:
    """Replace a file's content. After an error the file has its old content, or all of the new if only the sync of its
    folder failed. Unless ``durable`` is False, the content survives a power cut once this function returns.

    ``mode``: the permissions, regardless of the umask; without ``mode``, the umask decides. ``part``: the temporary
    file's path, needed where two processes may write at once.
    """
    fs = LocalFs(mode=0o666 if mode is None else _PRIVATE_FILE)
    part = part or path.with_name(f"{path.name}.part")

    def permit() -> bool:
        if mode not in (None, _PRIVATE_FILE):
            part.chmod(mode)
        return True

    try:
        replace_whole(fs, part, path, [content], permit, durable=durable)
    except BaseException as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise named(error, path) from error
        raise
    if durable:
        fs.sync_folder(path.parent)


def remove_tree(folder: Path) -> None:
    """Delete a folder with all that it holds, at any depth; on POSIX also a file or link. What cannot be deleted stays,
    without an error.

    A deep folder is moved up first, because a program may leave thousands of levels, which no path and no nested call
    reaches. A program that still runs may put a link in place of a folder; what the link names stays.
    """
    if os.name == "nt":  # where a folder may be a junction
        shutil.rmtree(folder, ignore_errors=True)
        return
    with suppress(OSError):
        folder.unlink()
    with suppress(OSError):
        top = _open_folder(str(folder), None)
        try:
            while _empty(top, top, NESTED):
                pass
        finally:
            os.close(top)
        folder.rmdir()


def _open_folder(name: str, parent: int | None) -> int:
    """Open a folder, and permit its owner to change what is in it; a link is not followed."""
    with suppress(OSError, NotImplementedError, ValueError):  # without the right to read it, it cannot be opened
        os.chmod(name, _PRIVATE_FOLDER, dir_fd=parent, follow_symlinks=False)
    handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    with suppress(OSError):
        os.fchmod(handle, _PRIVATE_FOLDER)
    return handle


def _empty(inside: int, top: int, levels: int) -> bool:
    """Delete what an open folder holds, at most ``levels`` deep; move deeper folders to ``top``. Return True if any
    folder was moved."""
    moved = False
    for entry in list(os.scandir(inside)):
        with suppress(OSError):
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.name, dir_fd=inside)
                continue
            handle = _open_folder(entry.name, inside)
            try:
                if levels:
                    moved |= _empty(handle, top, levels - 1)
                else:
                    os.rename(entry.name, f".{secrets.token_hex(8)}", src_dir_fd=inside, dst_dir_fd=top)
                    moved = True
            finally:
                os.close(handle)
            os.rmdir(entry.name, dir_fd=inside)
    return moved


def named(error: OSError, path: Path) -> OSError:
    """Return the error; if it names no file, as for a full disk, a new OSError that names ``path``."""
    return error if error.filename is not None else OSError(error.errno, error.strerror, str(path))


def write_private(path: Path, content: bytes) -> None:
    """Write a file durably, all or nothing; only its owner can ever read it."""
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    write_whole(path, content, mode=_PRIVATE_FILE, part=part)


def settle(part: Path, target: Path) -> None:
    """Sync a written file and rename it to ``target``, replacing any file of that name; once this returns, the rename
    survives a power cut."""
    fs = LocalFs()
    fs.sync_file(part)
    fs.replace(part, target)
    fs.sync_folder(target.parent)


def plain_bytes(path: Path, most: int) -> bytes:
    """Return the content of a file that another user or program may have replaced by anything.

    Raises OSError for anything but a file of at most ``most`` bytes: a link (but not on Windows), a pipe, a device, a
    larger file.
    """
    handle = os.open(path, os.O_RDONLY | _PLAINLY)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "is no plain file", str(path))
        with os.fdopen(handle, "rb", closefd=False) as file:
            content = file.read(most + 1)
    finally:
        os.close(handle)
    if len(content) > most:
        raise OSError(errno.EFBIG, "is too large", str(path))
    return content


def check_plain(path: Path) -> None:
    """Raise OSError if something other than a file is at ``path``: a folder, a pipe, a device."""
    if os.path.exists(path) and not os.path.isfile(path):  # noqa: PTH110, PTH113 - these raise no PermissionError
        raise OSError(errno.EINVAL, "it is no plain file", str(path))


def only_line_of(path: Path) -> str:
    """Return the one line of a file that holds a secret. Raises ValueError, whose sentence names the file and holds no
    secret."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(SECRET_BYTES_MAX + 1)
        line = raw.decode().strip()
    except OSError as error:
        raise ValueError(
            f"the file {path} cannot be read ({error.strerror}); the user who runs this program must be able to"
        ) from None
    except UnicodeDecodeError:
        raise ValueError(f"the file {path} is no text; write one line into it") from None
    if len(raw) > SECRET_BYTES_MAX or not line or len(line.splitlines()) > 1:
        raise ValueError(f"the file {path} must hold one line of at most {SECRET_BYTES_MAX} bytes")
    return line

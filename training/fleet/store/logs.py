"""Files of trainers' output in the store: consecutive lines, compressed; each file is written once and never changed.

::

    <root>/logs/<job>/<attempt>-<first>-<digest>.log.gz   the lines of an attempt from number <first> on

The name ends in the beginning of the file's SHA-256, so that files with different content have different names: a
backup keeps files of several moments side by side. The row that names a file is committed after the file is durable,
and a file is deleted an hour or more after its row was marked as no longer kept.
"""

import gzip
import hashlib
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from training.files import Fs, replace_whole, sync_ways
from training.fleet.store.errors import BadName, DamagedArtifact, NotStored, disk_errors
from training.fleet.store.incoming import NAMING_ID, PART_SUFFIX
from training.frozen import frozen

LOGS = "logs"
LEVEL = 6  # of the compression
_DIGEST_SHOWN = 16
_NAME = re.compile(r"([0-9]{1,9})-([0-9]{1,12})-([0-9a-f]{16})\.log\.gz")


@frozen
class LogFile:
    """A file in the store with consecutive lines of an attempt."""

    job_id: str
    attempt: int
    first: int  # number of the first line
    count: int
    raw_bytes: int  # of the text, a line end for each line
    bytes: int  # of the file
    sha256: str

    @property
    def end(self) -> int:
        """The number of the line after the file's last one."""
        return self.first + self.count

    @property
    def path(self) -> str:
        """Return the file's path relative to the store's root, with forward slashes."""
        if not NAMING_ID.fullmatch(self.job_id):
            raise BadName(f"{self.job_id[:80]!r} cannot name a folder of the store")
        return f"{LOGS}/{self.job_id}/{self.attempt}-{self.first}-{self.sha256[:_DIGEST_SHOWN]}.log.gz"


class LogStore:
    """The files of output below a store's root. Several threads may use it."""

    def __init__(self, root: Path, fs: Fs) -> None:
        self.root, self._fs = root, fs

    def write(self, job_id: str, attempt: int, first: int, lines: list[str]) -> LogFile:
        """Store lines durably in a file, and return what describes it; storing the same lines again does no harm."""
        text = "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")
        packed = gzip.compress(text, LEVEL, mtime=0)
        digest = hashlib.sha256(packed).hexdigest()
        file = LogFile(job_id, attempt, first, len(lines), len(text), len(packed), digest)
        target = self.root / file.path
        with disk_errors("writing a file of output"):
            self._fs.mkdir(target.parent)
            replace_whole(self._fs, target.with_name(target.name + PART_SUFFIX), target, [packed])
            sync_ways(self._fs, [target], self.root)
        return file

    def read(self, file: LogFile) -> list[str]:
        """Return a file's lines; raises NotStored, or DamagedArtifact if its bytes are not the stored ones."""
        path = self.root / file.path
        with disk_errors("reading a file of output"):
            if self._fs.size(path) is None:
                raise NotStored(f"{file.path} is not in the store")
            packed = b"".join(self._fs.read(path))
        if hashlib.sha256(packed).hexdigest() != file.sha256:
            raise DamagedArtifact(f"{file.path} holds other bytes than were stored")
        text = _unpacked(packed, file.raw_bytes)
        if text is None or (len(text), text.count(b"\n")) != (file.raw_bytes, file.count):
            raise DamagedArtifact(f"{file.path} does not hold the lines that were stored")
        return _lines(text)

    def remove(self, job_id: str, attempt: int, first: int, end: int) -> None:
        """Delete an attempt's files whose first line is from ``first`` up to, but not including, ``end``; no error if
        there are none."""
        with disk_errors("removing a file of output"):
            for name in self._fs.names(self.root / LOGS / job_id):
                found = parsed(name)
                if found is not None and found[0] == attempt and first <= found[1] < end:
                    self._fs.unlink(self.root / LOGS / job_id / name)

    def found(self, job_id: str, attempt: int, bytes_max: int) -> list[LogFile]:
        """Return an attempt's undamaged files with at most ``bytes_max`` of text each, read from the disk without the
        database. The files are sorted by first line; of equal first lines, the file with the most lines comes first."""
        if not NAMING_ID.fullmatch(job_id):
            return []
        files = []
        for name in self._fs.names(self.root / LOGS / job_id):
            about = parsed(name)
            if about is None or about[0] != attempt:
                continue
            packed = b"".join(self._fs.read(self.root / LOGS / job_id / name))
            digest = hashlib.sha256(packed).hexdigest()
            text = _unpacked(packed, bytes_max) if digest.startswith(about[2]) else None
            if text:
                sizes = text.count(b"\n"), len(text), len(packed)
                files.append(LogFile(job_id, attempt, about[1], *sizes, digest))
        return sorted(files, key=lambda each: (each.first, -each.count))

    def names(self) -> Iterator[tuple[str, str]]:
        """Yield all files in the folder of output as (job id, file name), also files that contain no output."""
        for job_id in self._fs.names(self.root / LOGS):
            for name in self._fs.names(self.root / LOGS / job_id):
                yield job_id, name


def parsed(name: str) -> tuple[int, int, str] | None:
    """Return attempt, first line and the beginning of the digest from a file's name; None for a name of another
    form."""
    match = _NAME.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]), match[3])


def _lines(text: bytes) -> list[str]:
    return text.decode("utf-8", "replace").split("\n")[:-1]


def _unpacked(packed: bytes, bytes_max: int) -> bytes | None:
    """Return a file's text, uncompressed; None if it is not a file of ours, or has more than ``bytes_max``."""
    try:
        unpacker = zlib.decompressobj(wbits=31)
        text = unpacker.decompress(packed, bytes_max + 1)
    except zlib.error:
        return None
    if len(text) > bytes_max or not unpacker.eof or not text.endswith(b"\n"):
        return None
    return text

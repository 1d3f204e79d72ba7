"""Pack a trainer's output into one file: ``<model>_<mode>-<job_id>.tar.zst``.

Equal files give an equal bundle, to the byte, with the same version of zstandard. A bundle's members are a fixed list
of files, sorted, without folders, and with constant times, owners and modes. The members form a USTAR archive,
compressed as one stream of fixed blocks. Each member is hashed while it is archived, and the archive while it is
written.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from training.contract import CHECKPOINT_ENDING, file_name
from training.crashpoint import crashpoint
from training.families import family_of
from training.files import settle
from training.fleet.wire import bundles

if TYPE_CHECKING:
    import zstandard

LEVEL = 1
BLOCK_BYTES = 128 * 1024  # fixed: the blocks of a stream may show in its compressed form


class BundleError(Exception):
    """The trainer exited with 0, but its output is missing, invalid or too large for a bundle."""


class Bundle(NamedTuple):
    """A packed bundle on disk; its ``sha256`` (hex) becomes its artifact's id."""

    path: Path
    sha256: str
    size: int


class _Member(NamedTuple):
    path: Path
    sha256: str | None = None  # as the checkpoint names it
    size: int | None = None


def bundle_name(model: str, mode: str, job_id: str) -> str:
    return f"{model}_{mode}-{job_id}.tar.zst"


def pack(
    out_dir: Path, reports_dir: Path, target: Path, *, model: str, mode: str, outputs: Sequence[str] = ()
) -> Bundle:
    """Pack this model's files in ``out_dir`` and ``reports_dir`` into the file ``target``.

    ``outputs`` names the files of a custom trainer; if empty, the checkpoint, its sidecar and, if there is one, the
    report are packed. Raises BundleError when something is missing, invalid, too large or not what the checkpoint
    states, and OSError when the disk fails. After a BundleError ``target`` is as it was before the call.
    """
    if any(Path(name).name != name for name in outputs):
        raise BundleError(f"the outputs {', '.join(outputs)} must be names of files, without folders")
    if outputs:
        members = [_Member(out_dir / name) for name in outputs]
    else:
        members = [*_checkpoint_members(out_dir, model, mode), *_report(reports_dir, model, mode)]
    members.sort(key=lambda member: member.path.name)
    if len({member.path.name for member in members}) < len(members):
        raise BundleError("the outputs name one file twice; correct them in the manifest")
    sizes = {member.path.name: size for member in members if (size := _size(member.path))}
    _refuse(bundles.complaint(sizes) if sizes else None)
    if not target.parent.is_dir():
        raise BundleError("the trainer exited with 0 but removed its output folder")
    part = target.with_name(target.name + ".part")
    try:
        with part.open("wb") as file:
            writer = _Writer(file)
            for member in members:
                writer.add(member)
                crashpoint("bundle.member")
            writer.close()
            _refuse(bundles.complaint(writer.sizes, writer.size))
            for member in members:
                if member.path.name.endswith(CHECKPOINT_ENDING):
                    content = _checkpoint_bytes(member.path)
                    _refuse(bundles.sidecar_complaint(member.path.name, content, writer.files))
        crashpoint("bundle.written")
        settle(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return Bundle(target, writer.sha256.hexdigest(), writer.size)


def _refuse(complaint: str | None) -> None:
    if complaint is not None:
        raise BundleError(f"the trainer's output makes no bundle that could be fetched: {complaint}")


def _size(path: Path) -> int:
    """Return a file's size; 0 if it cannot be read, because opening it later reports the error."""
    try:
        return path.lstat().st_size
    except (OSError, ValueError):
        return 0


def _checkpoint_members(out_dir: Path, model: str, mode: str) -> list[_Member]:
    """Return the checkpoint and its sidecar as members, the sidecar with the size and SHA-256 that the checkpoint
    states, if any."""
    path = out_dir / file_name(model, mode, CHECKPOINT_ENDING)
    named = _document(path).get("sidecar")
    if named is None:
        # Some trainers do not name it. The file's name is agreed on; the rest cannot be checked.
        conventional = out_dir / file_name(model, mode, family_of(model).sidecar)
        return [_Member(path), _Member(conventional)]
    try:
        name, size, digest = str(named["file"]), int(named["bytes"]), str(named["sha256"])
    except (KeyError, TypeError, ValueError, OverflowError):
        raise BundleError(f"{path.name} does not name its sidecar with size and SHA-256") from None
    if Path(name).name != name or name in {"", ".", "..", path.name}:
        raise BundleError(f"{path.name} does not name another file of its own folder as its sidecar")
    return [_Member(path), _Member(out_dir / name, sha256=digest, size=size)]


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(_checkpoint_bytes(path))
    except (ValueError, RecursionError):
        raise BundleError(f"{path.name} holds no valid JSON") from None
    if not isinstance(document, dict):
        raise BundleError(f"{path.name} is not a JSON object")
    return document


def _checkpoint_bytes(path: Path) -> bytes:
    with _open(path) as file:
        content = file.read(bundles.CHECKPOINT_BYTES_MAX + 1)
    if len(content) > bundles.CHECKPOINT_BYTES_MAX:
        raise BundleError(f"{path.name} is too large for a checkpoint")
    return content


def report_paths(folder: Path, model: str, mode: str) -> list[Path]:
    """Return the paths in a folder at which a model's report may be, the preferred one first."""
    kinds = ("pretrain", "train") if model.endswith("_ssl") else ("train",)
    return [folder / f"{model}_{mode}_{kind}.json" for kind in kinds]


def _report(reports_dir: Path, model: str, mode: str) -> list[_Member]:
    return [_Member(path) for path in report_paths(reports_dir, model, mode) if path.exists()][:1]


@dataclass
class _Writer:
    """The writer of a bundle: it archives, compresses and hashes in one pass."""

    file: IO[bytes]
    sha256: Any = field(default_factory=hashlib.sha256)
    size: int = 0
    files: dict[str, tuple[int, str]] = field(default_factory=dict)  # name to size and SHA-256
    _archived: int = 0

    @property
    def sizes(self) -> dict[str, int]:
        return {name: size for name, (size, _) in self.files.items()}

    def __post_init__(self) -> None:
        import zstandard  # not needed by a worker at rest

        compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
        self._stream: zstandard.ZstdCompressionObj = compressor.compressobj()

    def add(self, member: _Member) -> None:
        with _open(member.path) as source:
            size = os.fstat(source.fileno()).st_size
            if size == 0:
                raise BundleError(f"the trainer exited with 0 but left {member.path.name} empty")
            _refuse(bundles.complaint({member.path.name: size}))  # it may have grown since
            if member.size not in (None, size):
                raise BundleError(f"{member.path.name} does not have the size its checkpoint says")
            header = tarfile.TarInfo(member.path.name)  # its defaults: no times, no owners, 0644
            header.size = size
            self._put(header.tobuf(tarfile.USTAR_FORMAT))
            digest = self._copy(source, member.path.name, size)
        self._put(b"\0" * (-size % tarfile.BLOCKSIZE))
        if member.sha256 not in (None, digest):
            raise BundleError(f"{member.path.name} is not the file its checkpoint was written with")
        self.files[member.path.name] = (size, digest)

    def close(self) -> None:
        """End the archive as tar does, with two empty blocks and zeros up to a whole record; flush the file."""
        end = self._archived + 2 * tarfile.BLOCKSIZE
        self._put(b"\0" * (2 * tarfile.BLOCKSIZE + -end % tarfile.RECORDSIZE))
        self._write(self._stream.flush())
        self.file.flush()

    def _copy(self, source: IO[bytes], name: str, size: int) -> str:
        digest = hashlib.sha256()
        left = size
        while left:
            block = source.read(min(left, BLOCK_BYTES))
            if not block:
                raise BundleError(f"{name} became shorter while it was packed")
            digest.update(block)
            self._put(block)
            left -= len(block)
        return digest.hexdigest()

    def _put(self, data: bytes) -> None:
        self._archived += len(data)
        self._write(self._stream.compress(data))

    def _write(self, compressed: bytes) -> None:
        if compressed:
            self.sha256.update(compressed)
            self.size += len(compressed)
            self.file.write(compressed)


def _open(path: Path) -> IO[bytes]:
    """Open a regular file for reading. Raises BundleError if there is none: for a missing file, a folder, a link or a
    pipe."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise BundleError(f"{path.name} is not a regular file")
        return os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)), "rb")
    except (FileNotFoundError, ValueError):  # ValueError: an impossible name
        raise BundleError(f"the trainer exited with 0 but left no {path.name}") from None

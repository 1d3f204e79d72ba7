"""Fuzz the index: it is brought in line with the database, no matter what a crash or a person left in it.

The first byte: how many rows the database has, and whether the rest is the index or a provenance file.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from training.fleet.store.artifacts import ArtifactStore, DamagedArtifact
from training.fleet.store.index import IndexRow
from training.fleet.store.provenance import BrokenSeal, unsealed

WORDS = (
    b"\n", b"\r\n", b"{", b"}", b'"', b'{"artifact_id":"', b"a" * 64, b'","model":"gbt","mode":"realistic"', b"null",
    b"[" * 300, b'{"a":' * 150, b"\x00", b"\xff", b"\xed\xa0\x80", b"1e999", b"9" * 30, b'"attempt":-1', b'"size":',
    b'"stored_at":', b'"path":"../../etc/passwd"', b'"job_id":"', b"\\ud800", b"NaN", b"Infinity",
)  # fmt: skip
ROOT = Path("/store")
_ROWS = [
    IndexRow(
        artifact_id=digit * 64,
        model="gbt",
        mode="realistic",
        job_id=f"job-{digit}",
        attempt=1,
        size=1000,
        stored_at=1_700_000_000.0,
        path=f"gbt_realistic/{digit * 64}/bundle.tar.zst",
    )
    for digit in "abcd"
]


_INDEX, _BUNDLE = ROOT / "index.jsonl", ROOT / _ROWS[0].path
_PROVENANCE = _BUNDLE.parent / "provenance" / "job-1.json"


class _Disk:
    """Whole files by their paths: a disk that never fails costs less than one that may."""

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}
        self._open: dict[int, bytearray] = {}
        self._handles = itertools.count()

    def create(self, path: Path) -> int:
        if str(path) in self.files:
            raise FileExistsError(str(path))
        return self._opened(self.files.setdefault(str(path), bytearray()))

    def reopen(self, path: Path, size: int) -> int:
        del self.files[str(path)][size:]
        return self._opened(self.files[str(path)])

    def _opened(self, file: bytearray) -> int:
        handle = next(self._handles)
        self._open[handle] = file
        return handle

    def write(self, handle: int, data: bytes) -> None:
        self._open[handle] += data

    def close(self, handle: int) -> None:
        del self._open[handle]

    def read(self, path: Path) -> Iterator[bytes]:
        if str(path) not in self.files:
            raise FileNotFoundError(str(path))
        yield bytes(self.files[str(path)])

    def append(self, path: Path, data: bytes) -> None:
        self.files.setdefault(str(path), bytearray()).extend(data)

    def replace(self, source: Path, target: Path) -> None:
        self.files[str(target)] = self.files.pop(str(source))

    def unlink(self, path: Path) -> None:
        self.files.pop(str(path), None)

    def size(self, path: Path) -> int | None:
        file = self.files.get(str(path))
        return None if file is None else len(file)

    def names(self, path: Path) -> list[str]:
        below = f"{path}/"
        return sorted({n[len(below) :].split("/")[0] for n in self.files if n.startswith(below)})

    def mkdir(self, path: Path) -> None: ...

    def fsync(self, handle: int) -> None: ...

    def sync_folder(self, path: Path) -> None: ...


def one_input(data: bytes) -> None:
    head, rest = (data[0], data[1:]) if data else (0, b"")
    disk = _Disk()
    store = ArtifactStore(ROOT, disk)  # type: ignore[arg-type]  # uploads are tried elsewhere
    if head & 4:
        _provenance(store, disk, rest)
    else:
        _index(store, disk, rest, _ROWS[: head & 3])


def _index(store: ArtifactStore, disk: _Disk, found: bytes, rows: list[IndexRow]) -> None:
    disk.append(_INDEX, found)
    repair = store.index.repair(rows)
    wanted = b"".join(row.line() for row in rows)
    assert disk.files == {str(_INDEX): wanted} or (disk.files == {} and not rows)
    assert repair.rows == len(rows)
    assert not store.index.repair(rows).rebuilt, "mended twice"
    store.index.append(_ROWS[3])
    assert disk.files == {str(_INDEX): wanted + _ROWS[3].line()}


def _provenance(store: ArtifactStore, disk: _Disk, found: bytes) -> None:
    disk.append(_BUNDLE, b"model")
    disk.append(_PROVENANCE, found)
    (artifact,) = store.artifacts()
    with suppress(BrokenSeal):
        assert isinstance(unsealed(found), dict)
    try:
        store.verify(artifact.artifact_id, model=artifact.model, mode=artifact.mode)
    except DamagedArtifact:
        assert disk.size(_BUNDLE) == 5
    else:
        raise AssertionError("a damaged bundle passed")

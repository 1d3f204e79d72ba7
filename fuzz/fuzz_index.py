"""What a crash, or a person, left in the store: the index is brought in line with the database, whatever it holds.

The first byte: how many rows the database has, and whether the rest is the index or a provenance file.
"""

from __future__ import annotations

from pathlib import Path

from tests.conformance.memory_fs import MemoryFs
from training.fleet.storage.index import IndexRow
from training.fleet.store import ArtifactStore

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


def one_input(data: bytes) -> None:
    head, rest = (data[0], data[1:]) if data else (0, b"")
    disk = MemoryFs()
    disk.mkdir(ROOT)
    store = ArtifactStore(ROOT, disk)
    if head & 4:
        _provenance(store, disk, rest)
    else:
        _index(store, disk, rest, _ROWS[: head & 3])


def _index(store: ArtifactStore, disk: MemoryFs, found: bytes, rows: list[IndexRow]) -> None:
    _write(disk, ROOT / "index.jsonl", found)
    repair = store.index.repair(rows)
    wanted = b"".join(row.line() for row in rows)
    assert _read(disk, ROOT / "index.jsonl") == wanted
    assert repair.rows == len(rows)
    assert not store.index.repair(rows).rebuilt, "mended twice"
    store.index.append(_ROWS[3])
    assert _read(disk, ROOT / "index.jsonl") == wanted + _ROWS[3].line()


def _provenance(store: ArtifactStore, disk: MemoryFs, found: bytes) -> None:
    bundle = ROOT / _ROWS[0].path
    disk.mkdir(bundle.parent / "provenance")
    _write(disk, bundle, b"model")
    _write(disk, bundle.parent / "provenance" / "job-1.json", found)
    (artifact,) = store.artifacts()
    for record in store.provenance(artifact):
        assert isinstance(record, dict)
    assert [each.problem is None for each in store.verify_all()] == [False]
    assert disk.size(bundle) == 5


def _write(disk: MemoryFs, path: Path, content: bytes) -> None:
    handle = disk.create(path)
    disk.write(handle, content)
    disk.close(handle)


def _read(disk: MemoryFs, path: Path) -> bytes:
    return b"".join(disk.read(path)) if disk.size(path) is not None else b""

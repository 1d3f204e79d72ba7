"""Fetched bundles: unpacked whole, or refused with nothing left, and never a byte outside the folder.

The first byte: bit 0, the rest is an archive that is still to be compressed; bit 1, its headers' check sums are made
right, so that what the headers say is looked at.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import zstandard

from training.fleet.commands.bundle import BundleRefused, unpack

ALLOWED = ("gbt_realistic.ckpt.json", "gbt_realistic.xgb.json", "gbt_realistic_train.json")
WORDS = (
    b"../../etc/passwd", b"/etc/passwd", b"..\\..\\x", b"C:\\x", b"gbt_realistic.xgb.json\0",
    b"gbt_realistic.ckpt.json\0",
    b"CON", b"a:b", b"\0", b"ustar\x0000", b"ustar  \0", b"0", b"1", b"2", b"3", b"5", b"x", b"g", b"L", b"K", b"S",
    b"77777777777\0", b"\x80" + b"\xff" * 11, b"00000000000\0", b"path=../x\n", b"GNU.sparse.major=1\n", b"\xff" * 100,
    b"\x28\xb5\x2f\xfd", b"\0" * 512, b'{"sidecar":"', b'"sha256":"', b"00000000024\0",
)  # fmt: skip
_BLOCK = 512
_ROOT = Path(tempfile.mkdtemp(prefix=f"fuzz-unpack-{os.getpid()}-"))
_COMPRESSOR = zstandard.ZstdCompressor(level=1)


def one_input(data: bytes) -> None:
    head, rest = (data[0], data[1:]) if data else (0, b"")
    if head & 1:
        rest = _COMPRESSOR.compress(_summed(rest) if head & 2 else rest)
    bundle, target = _ROOT / "bundle", _ROOT / "target"
    bundle.write_bytes(rest)
    try:
        found = unpack(bundle, target, ALLOWED)
    except BundleRefused:
        assert not target.exists() or os.listdir(target) == [], "something was left"  # noqa: PTH208
    else:
        assert {each.name for each in found} <= set(ALLOWED)
        assert set(os.listdir(target)) == {each.name for each in found}  # noqa: PTH208
        assert all(
            (target / each.name).is_file() and not (target / each.name).is_symlink()
            for each in found
        )
    finally:
        shutil.rmtree(target, ignore_errors=True)
    assert sorted(os.listdir(_ROOT)) == ["bundle"], "something was written outside"  # noqa: PTH208


def _summed(archive: bytes) -> bytes:
    """The archive with the check sum of each header that can be found by the sizes made right."""
    made, at = bytearray(archive), 0
    while at + _BLOCK <= len(made):
        header = made[at : at + _BLOCK]
        header[148:156] = b" " * 8
        made[at + 148 : at + 156] = b"%06o\0 " % sum(header)
        try:
            size = int(bytes(header[124:136]).split(b"\0")[0].strip() or b"0", 8)
        except ValueError:
            break
        at += _BLOCK + (max(size, 0) + _BLOCK - 1) // _BLOCK * _BLOCK
    return bytes(made)

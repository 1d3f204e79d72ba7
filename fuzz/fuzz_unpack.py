"""Fetched bundles: unpacked whole, or refused with nothing left, and never a byte outside the folder.

The first byte: bit 0, the rest is an archive that is still to be compressed; bit 1, its headers' check sums are made
right, so that what the headers say is looked at.
"""

from __future__ import annotations

import os
from pathlib import Path

import zstandard

from fuzz import scratch
from training.fleet.cli.models import BundleRefused, unpack

ALLOWED = ("gbt_realistic.ckpt.json", "gbt_realistic.xgb.json", "gbt_realistic_train.json")
WORDS = (
    b"../../etc/passwd", b"/etc/passwd", b"..\\..\\x", b"C:\\x", b"gbt_realistic.xgb.json\0",
    b"gbt_realistic.ckpt.json\0",
    b"CON", b"a:b", b"\0", b"ustar\x0000", b"ustar  \0", b"0", b"1", b"2", b"3", b"5", b"x", b"g", b"L", b"K", b"S",
    b"77777777777\0", b"\x80" + b"\xff" * 11, b"00000000000\0", b"path=../x\n", b"GNU.sparse.major=1\n", b"\xff" * 100,
    b"\x28\xb5\x2f\xfd", b"\0" * 512, b'{"sidecar":"', b'"sha256":"', b"00000000024\0",
)  # fmt: skip
_BLOCK = 512
_FOLDER = scratch.folder("unpack")
_ROOT = Path(_FOLDER.name)
_BUNDLE, _TARGET = _ROOT / "bundle", _ROOT / "target"
_COMPRESSOR = zstandard.ZstdCompressor(level=1)


def one_input(data: bytes) -> None:
    head, rest = (data[0], data[1:]) if data else (0, b"")
    if head & 1:
        rest = _COMPRESSOR.compress(_summed(rest) if head & 2 else rest)
    _BUNDLE.write_bytes(rest)
    try:
        names = [each.name for each in unpack(_BUNDLE, _TARGET, ALLOWED)]
    except BundleRefused:
        names = []
    else:
        assert names
    assert set(names) <= set(ALLOWED)
    there = list(os.scandir(_TARGET))
    assert sorted(each.name for each in there) == sorted(names), "something was left, or is missing"
    for each in there:
        assert each.is_file(follow_symlinks=False)
        os.unlink(each.path)  # noqa: PTH108
    assert set(os.listdir(_ROOT)) == {"bundle", "target"}, "something was written outside"  # noqa: PTH208


def _summed(archive: bytes) -> bytes:
    """The archive with the check sum of each header that can be found by the sizes made right."""
    made, at = bytearray(archive), 0
    while any(header := made[at : at + _BLOCK]):  # the end is a block of zeros, or nothing
        header[148:156] = b" " * 8
        made[at + 148 : at + 156] = b"%06o\0 " % sum(header)
        try:
            size = int(bytes(header[124:136]).split(b"\0")[0].strip() or b"0", 8)
        except ValueError:
            break
        at += _BLOCK + (max(size, 0) + _BLOCK - 1) // _BLOCK * _BLOCK
    return bytes(made)

"""The files that pages load: style, scripts, icon. The receiver serves each file from this package, under an address
that has the first digits of the file's digest. Third-party files are included unchanged, with their licences;
``tools/supply_chain.py`` has the SHA-256 of each."""

import gzip
import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).with_name("static")
MEDIA = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_DIGITS = 12


class StaticFile(NamedTuple):
    """One file as it is served. The first digits of a file's digest are part of its address, so a browser may cache the
    file without limit."""

    media: str
    digest: str
    body: bytes
    compressed: bytes  # by gzip


def static_path(name: str) -> str:
    """Return the address of the file with this name; the address has the first digits of the file's digest."""
    stem, _, suffix = name.rpartition(".")
    return f"/static/{stem}.{_files()[name].digest[:_DIGITS]}.{suffix}"


def static_file(address: str) -> StaticFile | None:
    """Return the file with this last segment of an address; None if there is no such file, or only another version of
    it."""
    return _by_address().get(address)


@cache
def _files() -> Mapping[str, StaticFile]:
    return {path.name: _read(path) for path in sorted(FOLDER.iterdir()) if path.suffix in MEDIA}


@cache
def _by_address() -> Mapping[str, StaticFile]:
    return {static_path(name).rpartition("/")[2]: found for name, found in _files().items()}


def _read(path: Path) -> StaticFile:
    body = path.read_bytes()
    return StaticFile(MEDIA[path.suffix], hashlib.sha256(body).hexdigest(), body, gzip.compress(body, 9, mtime=0))

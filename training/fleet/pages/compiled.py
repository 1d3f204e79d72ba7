"""Templates' code, kept beside them as Python keeps that of modules.

Compiling them costs the receiver 150 ms and leaves a megabyte of holes in its memory. The installation writes the code
once (``python -m training.fleet.pages``); a checkout compiles at the first page, and nothing is written.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import jinja2
from jinja2.bccache import Bucket, FileSystemBytecodeCache


class Compiled(FileSystemBytecodeCache):
    """Code that was written for the same template, version of Jinja2 and ``made_by``, the file with its settings."""

    def __init__(self, folder: Path, *, made_by: Path) -> None:
        super().__init__(str(folder), "%s.template")
        self._for = f"{jinja2.__version__} {sha256(made_by.read_bytes()).hexdigest()}"
        self._writes = False

    def writes(self) -> None:
        """Write what is compiled from now on."""
        Path(self.directory).mkdir(exist_ok=True)
        self._writes = True

    def get_source_checksum(self, source: str) -> str:
        return super().get_source_checksum(f"{self._for} {source}")

    def dump_bytecode(self, bucket: Bucket) -> None:
        if self._writes:
            super().dump_bytecode(bucket)
            Path(self._get_cache_filename(bucket)).chmod(0o644)  # the service is another user than who installs

"""Sizes of folders, files and database tables that grow, each with its limit and what makes room, if anything does."""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from training.printable import size


@dataclass(frozen=True)
class Grown:
    """The present size of a folder, a group of files or a database table that grows; ``bound`` is its limit in
    words."""

    what: str
    count: int
    bytes: int | None  # None: it lies in the database
    bound: str
    verb: str = ""  # the command that makes room; empty: there is none

    @property
    def sentence(self) -> str:
        """The line for a person: count, size, limit, and what makes room, if anything does."""
        much = "" if self.bytes is None else f", {size(self.bytes)}"
        verb = f"; {self.verb}" if self.verb else ""
        if self.verb.startswith("cis490"):
            verb = f"; `{self.verb}` makes room"
        return f"size: {self.what} {self.count}{much}; bound: {self.bound}{verb}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def walk(root: Path) -> Iterator[os.DirEntry[str]]:
    """Yield every file and every link below a folder, at any depth; folders that cannot be read are left out."""
    waiting = [root]
    while waiting:
        try:
            entries = list(os.scandir(waiting.pop()))
        except OSError:
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                waiting.append(Path(entry.path))
            else:
                yield entry


def measured(what: str, paths: Iterable[Path], bound: str, verb: str = "") -> Grown:
    """Return count and total size of these files as one :class:`Grown`; files that vanished meanwhile are left out."""
    sizes = []
    for path in paths:
        with suppress(OSError):
            sizes.append(path.lstat().st_size)
    return Grown(what, len(sizes), sum(sizes), bound, verb)

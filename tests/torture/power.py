"""The disk after a power cut: all that was synced, and any part of the rest.

The model is weaker than any file system: of what was not synced, every 512-byte sector survives or not on its own,
whatever the order of the writes; a cut survives or not; a removed file may be there again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from torture.recording import Op

SECTOR = 512
_ODDS = (0.1, 0.5, 0.9)  # how much of the unsynced survives


@dataclass
class _File:
    synced: bytearray = field(default_factory=bytearray)
    unsynced: list[tuple[int, bytes | None]] = field(default_factory=list)  # None: cut there
    fresh: bool = True  # its name was never synced

    def survivor(self, chance: random.Random) -> bytes:
        data = bytearray(self.synced)
        odds = chance.choice(_ODDS)
        for at, what in self.unsynced:
            if chance.random() >= odds:
                continue
            if what is None:
                del data[at:]
            else:
                if len(data) < at:
                    data.extend(bytes(at - len(data)))  # a hole reads as zeros
                data[at : at + len(what)] = what
        return bytes(data)

    def sync(self) -> None:
        for at, what in self.unsynced:
            if what is None:
                del self.synced[at:]
            else:
                if len(self.synced) < at:
                    self.synced.extend(bytes(at - len(self.synced)))
                self.synced[at : at + len(what)] = what
        self.unsynced.clear()
        self.fresh = False


class Platter:
    """The files of one folder, as far as power cuts are concerned."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        self._removed: dict[str, _File] = {}  # their removal is not synced yet

    def take(self, op: Op) -> None:
        """One operation more."""
        if op.kind == "delete":
            gone = self._files.pop(op.file, None)
            if gone is not None:
                self._removed[op.file] = gone
            return
        file = self._files.setdefault(op.file, _File())
        if op.kind == "write":
            end = op.at + len(op.data)
            at = op.at
            while at < end:
                stop = min(end, (at // SECTOR + 1) * SECTOR)
                file.unsynced.append((at, op.data[at - op.at : stop - op.at]))
                at = stop
        elif op.kind == "cut":
            file.unsynced.append((op.at, None))
        elif op.kind == "sync":
            if file.fresh:
                # SQLite syncs the folder together with a journal or log that it has just made.
                self._removed.clear()
            file.sync()

    def states(self, chance: random.Random, count: int) -> Iterator[dict[str, bytes]]:
        """``count`` of the states in which the disk may be found now, file → content; one, if all is synced."""
        doubtful = self._removed or any(file.unsynced for file in self._files.values())
        for _ in range(count if doubtful else 1):
            found = {name: file.survivor(chance) for name, file in self._files.items()}
            for name, file in self._removed.items():
                if name not in found and chance.random() < 0.5:
                    found[name] = file.survivor(chance)
            yield found

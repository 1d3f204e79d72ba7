"""The disk space above the reserve, shared by simultaneous uploads.

An announced length reserves nothing, because a slow sender of a large bundle would block the others. Each block of an
upload reserves its room just before it is written, and counts as written from then on.
"""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from training.files import Fs, to_free
from training.fleet.store.errors import StoreFull, disk_errors


class DiskRoom:
    """The space that may still be written under ``root``. Several threads may use it."""

    def __init__(self, root: Path, fs: Fs, reserve_bytes: int) -> None:
        self._root, self._fs = root, fs
        self._reserve_bytes = reserve_bytes
        self._writing = 0  # bytes being written, which the disk may not count yet
        self._lock = threading.Lock()

    def has(self, incoming_bytes: int) -> bool:
        """Return True if the reserve would still be free after ``incoming_bytes`` more."""
        with self._lock:
            return self._free() >= incoming_bytes

    def free(self) -> int:
        """Return the bytes that may still be written; below 0 if the reserve is already used."""
        with self._lock:
            return self._free()

    def check(self, incoming_bytes: int) -> None:
        """Raise StoreFull if ``incoming_bytes`` more would use the reserve."""
        with self._lock:
            self._require(incoming_bytes)

    @contextlib.contextmanager
    def writing(self, size: int) -> Iterator[None]:
        """Count ``size`` bytes as written during this context. Raises StoreFull if the bytes would use the reserve."""
        with self._lock:
            self._require(size)
            self._writing += size
        try:
            yield
        finally:
            with self._lock:
                self._writing -= size

    def _require(self, size: int) -> None:
        if self._free() < size:
            raise StoreFull(
                f"no room for {size} bytes: the store keeps {self._reserve_bytes} bytes free; "
                f"{to_free(self._root)} under {self._root} and the upload resumes"
            )

    def _free(self) -> int:
        place = self._root
        with disk_errors("asking for free space"):
            while self._fs.size(place) is None and place != place.parent:
                place = place.parent  # nothing was stored so far
            free = self._fs.free_bytes(place)
        return free - self._writing - self._reserve_bytes

"""Finished work that the receiver refused permanently, or whose claim ended, stored on this machine up to a limit.

::

    <state>/set-aside/<moment>-<job>-<claim>/work.json   its job, and why it was refused
    <state>/set-aside/<moment>-<job>-<claim>/*.tar.zst   the bundle

Beyond the limits of number and size the oldest entries are deleted first, but never the newest.
"""

import logging
import shutil
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from training import strict_json
from training.files import LocalFs, remove_tree, write_whole
from training.fleet.worker import reports
from training.fleet.worker.state.events import Delivery

log = logging.getLogger(__name__)

NOTE = "work.json"
BYTES_MAX = 4 * 1024**3
KEPT_MAX = 50


class FinishedTraining(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``work.json``: why the work was not delivered, and its delivery with the present path of the
    bundle."""

    why: str
    delivery: Delivery

    @property
    def folder(self) -> Path:
        return Path(self.delivery.path).parent


class SetAside:
    """The folder of refused finished work. One worker writes it; a second process, started with ``--deliver``, may read
    it, and remove what it delivered."""

    def __init__(self, folder: Path, *, bytes_max: int = BYTES_MAX) -> None:
        self.folder = folder
        self._bytes_max = bytes_max

    def put(self, delivery: Delivery, why: str, now: float) -> Path:
        """Move a bundle and its report into the folder and return the folder that now holds them; the bundle then
        survives a power cut. ``now`` is epoch seconds. Raises OSError."""
        assignment, source = delivery.assignment, Path(delivery.path)
        moment = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
        place = self.folder / f"{moment}-{assignment.job_id[:12]}-{assignment.claim_id[:8]}"
        place.mkdir(parents=True, exist_ok=True)
        target = place / source.name
        note = FinishedTraining(why=why, delivery=replace(delivery, path=str(target)))
        write_whole(place / NOTE, strict_json.dumps(msgspec.to_builtins(note)))
        with suppress(FileNotFoundError):
            shutil.move(reports.beside(source), reports.beside(target))
        shutil.move(source, target)  # to another disk, perhaps
        LocalFs().sync_file(target)
        LocalFs().sync_folder(place)
        LocalFs().sync_folder(self.folder)
        self._trim()
        return place

    def kept(self) -> list[FinishedTraining]:
        """Return the stored work, oldest first; entries that are unreadable or lack their bundle are left out."""
        found = []
        for place in sorted(self.folder.glob("*-*-*")):
            try:
                note = msgspec.json.decode((place / NOTE).read_bytes(), type=FinishedTraining)
                if Path(note.delivery.path).is_file() and note.folder.samefile(place):
                    found.append(note)
            except (OSError, ValueError, msgspec.MsgspecError, RecursionError):
                continue
        return found

    def named(self, ref: str) -> list[FinishedTraining]:
        """Return the entries that ``ref`` may mean: a folder's name, or a job's name, id, or the beginning of an id."""
        kept = self.kept()
        exact = [one for one in kept if one.folder.name == ref]
        return exact or [
            one
            for one in kept
            if ref and (one.delivery.assignment.name == ref or one.delivery.assignment.job_id.startswith(ref))
        ]

    @staticmethod
    def forget(one: FinishedTraining) -> None:
        """Delete an entry that was delivered."""
        remove_tree(one.folder)

    def _trim(self) -> None:
        kept = self.kept()
        size = sum(one.delivery.size for one in kept)
        while len(kept) > 1 and (len(kept) > KEPT_MAX or size > self._bytes_max):
            oldest = kept.pop(0)
            size -= oldest.delivery.size
            log.warning(
                "%s, kept in %s, is deleted: the folder is full", oldest.delivery.assignment.name, oldest.folder
            )
            remove_tree(oldest.folder)

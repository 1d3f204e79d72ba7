"""The worker's state on disk: its identity, what must survive a crash, and the paths of each attempt's files."""

import json
import logging
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from training import strict_json
from training.crashpoint import crashpoint
from training.files import LocalFs, cause_of, remove_tree, write_whole
from training.fleet.worker.state.events import Assignment, Saved
from training.locking import LockedError, exclusive

log = logging.getLogger(__name__)

KEPT_ATTEMPTS = 20  # the newest folders of ended attempts, for inspection


class StateFolderError(Exception):
    """The state directory, or another folder of the worker, cannot be used; the error's text is one sentence."""


class StateFolder:
    """The worker's state folder, which only one worker may use at a time."""

    def __init__(self, folder: Path, others: Mapping[str, Path] | None = None, host_id: str | None = None) -> None:
        """Lock the folder. Raises StateFolderError if the folder is not writable, in use, or holds another host's
        undelivered work.

        ``others`` maps flags to further folders. The writable ones of the ``others`` are locked, too; StateFolderError
        is raised if one is in use.
        """
        self.folder = folder
        self._host_id = host_id
        self._saved_for: str | None = None  # the host whose facts were loaded
        self._open = ExitStack()
        self._take(folder)
        self._leave_work_of_another()
        held = {folder}
        for flag, other in (others or {}).items():
            if other not in held:
                held.add(other)
                self._share_not(other, flag)

    def _leave_work_of_another(self) -> None:
        """Raise StateFolderError if the folder holds undelivered finished work of another host."""
        for slot in self._slots():
            delivery, theirs = self.load(slot).delivery, self._saved_for
            if delivery is None or not theirs or not self._host_id:
                continue
            if theirs.lower() != self._host_id.lower():
                self.close()
                raise StateFolderError(
                    f"{self.folder} holds finished work of host {theirs} ({delivery.assignment.name}) that is not "
                    f"delivered: start the worker with --host-id {theirs} until it is, or, if this is a copy of that "
                    "machine's folder, run it once with --new-identity"
                )

    def _share_not(self, folder: Path, flag: str) -> None:
        """Lock a further folder, so that no other worker uses it. A folder that is not writable stays unlocked; the
        self-test reports it."""
        with suppress(OSError):
            self._lock(folder, f"folder {folder}; stop it, or give this one its own {flag} or --host-id")

    def _lock(self, folder: Path, words: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._open.enter_context(exclusive(folder / "lock"))
        except LockedError:
            self.close()
            raise StateFolderError(f"another worker uses the {words}") from None

    def _take(self, folder: Path) -> None:
        try:
            self._lock(folder, f"state directory {folder}; stop it, or give this one its own --state-dir")
            self.instance_id = self._instance()
            self.session_id = f"{self._next_session():010d}-{secrets.token_hex(4)}"
        except OSError as error:
            raise StateFolderError(
                f"the state directory {folder} cannot be used ({cause_of(error, folder)}); "
                "name another with --state-dir"
            ) from None

    def load(self, slot: int = 0) -> Saved:
        """Return what the last session saved for a slot; an empty Saved if there is no file. An unreadable file is
        renamed and logged."""
        path = self._file(slot)
        try:
            content = path.read_bytes()
            saved = msgspec.json.decode(content, type=Saved)
            self._saved_for = msgspec.json.decode(content, type=_SavedFor).host_id
            return saved
        except FileNotFoundError:
            return Saved()
        except (OSError, msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            log.warning("%s cannot be read and was renamed: %s", path, error)
            with suppress(OSError):
                LocalFs().replace(path, path.with_suffix(".corrupt"))
            return Saved()

    def load_all(self) -> dict[int, Saved]:
        """Return by slot what the last session saved: of the first slot, and of each other slot that has a file."""
        return {slot: self.load(slot) for slot in self._slots()}

    def _slots(self) -> list[int]:
        """Return the numbers of the slots: the first one, 0, and the others that have a file."""
        found = (re.fullmatch(r"saved-([1-9]\d{0,4})\.json", path.name) for path in self.folder.glob("saved-*.json"))
        return [0, *sorted(int(match[1]) for match in found if match)]

    def _file(self, slot: int) -> Path:
        return self.folder / (f"saved-{slot}.json" if slot else "saved.json")

    def save(self, saved: Saved, slot: int = 0) -> None:
        """Save a slot's state so that it survives a crash of the process; an attempt's outcome survives a power cut,
        too. Raises OSError.

        For a slot after the first, an empty state deletes the slot's file.
        """
        if slot and saved == Saved():
            self._file(slot).unlink(missing_ok=True)
            return
        content = strict_json.dumps(msgspec.to_builtins(saved) | {"host_id": self._host_id})
        durable = saved.delivery is not None or saved.report is not None
        _keep(self._file(slot), content, durable=durable)

    def load_alone(self) -> tuple[str, ...]:
        """Return the ids of the jobs that must be trained alone here; none if the file is unreadable, because the
        worker learns them again."""
        try:
            return msgspec.json.decode((self.folder / _ALONE).read_bytes(), type=tuple[str, ...])
        except (OSError, ValueError):
            return ()

    def save_alone(self, jobs: Sequence[str]) -> None:
        """Save the ids of the jobs that must be trained alone. Raises OSError."""
        _keep(self.folder / _ALONE, json.dumps(jobs).encode(), durable=False)

    def begin_anew(self) -> str:
        """Turn the state folder of a copied disk into a new installation; return its new instance id.

        The saved state of each slot and the undelivered output are deleted, because they belong to the original
        machine.
        """
        for path in [*map(self._file, self._slots()), self.folder / "sessions"]:
            path.unlink(missing_ok=True)
        remove_tree(self.folder / "outbox")
        (self.folder / "instance").unlink(missing_ok=True)
        self.instance_id = self._instance()
        return self.instance_id

    def close(self) -> None:
        self._open.close()

    def _instance(self) -> str:
        """Return the instance id, which is made if the folder has none. A copied disk has the same id, by which the
        receiver detects the copy."""
        path = self.folder / "instance"
        with suppress(FileNotFoundError):
            if known := path.read_text().strip():
                return known
        made = secrets.token_hex(16)
        _keep(path, made.encode())
        return made

    def _next_session(self) -> int:
        """Count this start of the worker, and return the number of starts: this orders sessions without a clock."""
        path = self.folder / "sessions"
        try:
            count = int(path.read_text())
        except (OSError, ValueError):
            count = 0
        _keep(path, str(count + 1).encode())
        return count + 1


class _SavedFor(msgspec.Struct):
    """The part of a state file that names the host to which the file belongs."""

    host_id: str | None = None


def _keep(path: Path, content: bytes, *, durable: bool = True) -> None:
    crashpoint("worker.save.begin")
    write_whole(path, content, durable=durable)
    crashpoint("worker.save.replaced")


_ALONE = "alone.json"


class AttemptFolders(NamedTuple):
    """The paths of one attempt's folders and files. No other attempt writes to these output folders, so that only this
    attempt's files are packed."""

    out: Path
    reports: Path
    log: Path
    end: Path  # its trainer's end, if unrequested
    trained: Path  # its inputs
    stretches: Path  # what earlier attempts on other hosts had trained, where it went on from their state
    bundle: Path


def folders_of(artifacts: Path, reports: Path, assignment: Assignment) -> AttemptFolders:
    """Return the paths of this attempt's folders and files, which may not exist yet. The caller has checked the
    assignment's names."""
    from training.fleet.worker.bundle import bundle_name  # not needed by a worker at rest

    job = f"{assignment.model}_{assignment.mode}-{assignment.job_id[:12]}"
    attempt = attempt_name(assignment)
    return AttemptFolders(
        out=artifacts / job / attempt,
        reports=reports / job / attempt,
        log=artifacts / job / f"{attempt}.log",
        end=artifacts / job / f"{attempt}.log.end",
        trained=artifacts / job / f"{attempt}.log.trained",
        stretches=artifacts / job / f"{attempt}.log.stretches",
        bundle=artifacts / job / attempt / bundle_name(assignment.model, assignment.mode, assignment.job_id),
    )


def make_folders(folders: AttemptFolders) -> None:
    """Create the attempt's output and report folders, empty, and delete its files beside them. Raises OSError."""
    for folder in (folders.out, folders.reports):
        remove_tree(folder)
        folder.mkdir(parents=True)
    for file in (folders.log, folders.end, folders.trained, folders.stretches):
        file.unlink(missing_ok=True)


def attempt_name(assignment: Assignment) -> str:
    """Return the name of an attempt's folder, with which the names of its other files begin."""
    return f"attempt-{assignment.attempt}-{assignment.claim_id[:8]}"


def prune(*roots: Path, in_use: Collection[Assignment] = ()) -> None:
    """Delete the files of ended attempts, except the newest :data:`KEPT_ATTEMPTS` of each root and those ``in_use``.
    Other files are not touched; a job's folder is removed once it is empty. The roots belong to one worker: in shared
    roots the newest would all be those of the worker with the shortest jobs."""
    kept = set(map(attempt_name, in_use))
    for root in roots:
        newest: dict[Path, float] = {}  # by an attempt's folder, or where that is gone its log
        for entry in root.glob("*-*/attempt-*-*"):
            name, dot, _ = entry.name.partition(".log")
            folder = entry.with_name(name)
            with suppress(OSError):
                moment = entry.stat(follow_symlinks=False).st_mtime
                newest[folder] = newest.get(folder, moment) if dot else moment
        for folder in sorted(newest, key=lambda each: newest[each], reverse=True)[KEPT_ATTEMPTS:]:
            if folder.name in kept:
                continue
            remove_tree(folder)
            for log in folder.parent.glob(f"{folder.name}.log*"):
                log.unlink(missing_ok=True)
            with suppress(OSError):
                folder.parent.rmdir()

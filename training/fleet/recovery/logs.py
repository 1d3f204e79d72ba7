"""The files of trainers' output in the store: check them, and add rows for files that a restored database lacks."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from training.files import Fs
from training.fleet.database.writer import Database
from training.fleet.queue.jobs import JobQueue
from training.fleet.queue.logs import Gone, piece_of
from training.fleet.recovery.doctor_store import fault
from training.fleet.recovery.findings import Finding, Gravity
from training.fleet.service import logs
from training.fleet.service.output import keep_points
from training.fleet.store.errors import BadName
from training.fleet.store.logs import LOGS, LogFile, LogStore, parsed
from training.frozen import frozen

LOST = (
    "if a backup in FOLDER has it, `cis490-jobs backup FOLDER` and, with the receiver stopped, `cis490-jobs restore "
    "FOLDER --force` bring it back; the job and its model are right"
)
HARMLESS = "it is harmless, and may be removed by hand"
_FILE_BYTES_MAX = 8 * logs.FILE_BYTES  # no file of ours holds more


@frozen
class StoredLog:
    """A file of a trainer's output that a row of the database names."""

    file: LogFile
    name: str  # of the job

    @property
    def what(self) -> str:
        file = self.file
        return f"the output of attempt {file.attempt} of job {self.name}, lines {file.first + 1:,}–{file.end:,},"


@dataclass
class KnownLogs:
    """The files of trainers' output that the database names, and those that the receiver will delete."""

    stored: list[StoredLog] = field(default_factory=list)
    going: list[tuple[str, int, int, int]] = field(default_factory=list)  # job, attempt, first line, end

    def goes(self, job_id: str, attempt: int, first: int) -> bool:
        """Tell whether the receiver will delete the file of this attempt that begins at line ``first``."""
        return any((job_id, attempt) == each[:2] and each[2] <= first < each[3] for each in self.going)


def known_logs(database: Database) -> KnownLogs:
    """Return which output files must be in the store, without rows that name no valid file, and which the receiver
    will delete."""
    known = KnownLogs()
    for row in database.all("stored_logs"):
        file = logs.file_of(piece_of(row))
        try:
            _ = file.path
        except BadName:
            continue
        known.stored.append(StoredLog(file, row["name"] or row["job_id"]))
    for row in database.all("going_logs"):
        known.going.append((row["job_id"], row["attempt"], row["first"], row["first"] + row["count"]))
    return known


def look_at_logs(root: Path, fs: Fs, known: KnownLogs, *, deep: bool, old: Callable[[Path], bool]) -> Iterator[Finding]:
    """Report output files that a row names but that are missing or damaged; with ``deep``, every byte is read. Report
    also files that no row names and the receiver will not delete, if ``old`` returns True for their path."""
    for log in known.stored:
        file = log.file
        problem = fault(fs, root / file.path, file.bytes, file.sha256 if deep else None)
        if problem is not None:
            yield Finding("output-files", f"{log.what} {problem}", LOST)
    named = {log.file.path for log in known.stored}
    for job_id, name in LogStore(root, fs).names():
        about, place = parsed(name), f"{LOGS}/{job_id}/{name}"
        if place in named or (about is not None and known.goes(job_id, *about[:2])) or not old(root / place):
            continue
        yield Finding("output-strays", f"{place} is in the store and no row names it", HARMLESS, Gravity.NOTE)


def take_back_logs(queue: JobQueue, files: LogStore) -> int:
    """Add rows for the output files of attempts whose output the database does not know, and the points of their
    curves; return the number of such attempts."""
    done = 0
    for row in queue.db.all("without_output"):
        found = files.found(row["job_id"], row["attempt"], _FILE_BYTES_MAX)
        attempt = queue.attempts.by_claim(row["claim_id"]) if found else None
        if attempt is None:
            continue
        with queue.db.transaction():
            pieces = [logs.piece_of(each) for each in found]
            end = queue.logs.take_back(pieces, Gone.LOST)
            queue.attempts.restore_output(attempt, end)
            for each in _taken(found):
                keep_points(queue, attempt, each.first, files.read(each))
        done += 1
    return done


def _taken(found: Sequence[LogFile]) -> Iterator[LogFile]:
    end = 0
    for each in found:
        if each.first >= end:
            yield each
            end = each.end

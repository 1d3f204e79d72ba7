"""Move trainers' output from the database into files of the store, in steps: write the file, then commit its row.

A crash between the two leaves a file that no row names; the lines are still in the database, and are written into a
file again.
"""

from __future__ import annotations

import logging

from training.fleet.database.writer import Database
from training.fleet.queue.logs import LogRows, Piece
from training.fleet.service.delivery import Decide, Disk, Look, Steps
from training.fleet.service.service import Service
from training.fleet.store.errors import BadName
from training.fleet.store.logs import LogFile, LogStore
from training.fleet.wire.constants import LOG_BYTES_MAX

logger = logging.getLogger(__name__)

FILE_BYTES = 256 * 1024  # of text in one file, about: whoever reads a line holds as much in memory
LINES = 2000  # of a running attempt, in the database
SILENT_S = 3600.0  # after this no more lines are expected of an ended attempt whose worker did not say how many
REMOVED_AFTER_S = 3600.0  # a file stays so long after its row, for a backup that is being made
AT_ONCE = 50


class Folding:
    """The sequences of steps, and the state that they share. One instance per receiver."""

    def __init__(
        self,
        service: Service,
        files: LogStore,
        reader: Database,
        *,
        lines: int = LINES,
        file_bytes: int = FILE_BYTES,
        bytes_max: int = LOG_BYTES_MAX,
    ) -> None:
        """So many ``lines`` of a running attempt make a file of about ``file_bytes`` of text; at most ``bytes_max`` are
        kept."""
        self._lines, self._file_bytes, self._bytes_max = lines, file_bytes, bytes_max
        self._queue, self._files = service.queue, files
        self._rows = LogRows(reader, service.queue.clock)
        self._unnamed: set[str] = set()  # jobs whose id cannot name a folder: their output stays in the database

    def fold(self) -> Steps[int]:
        """Move output that is due into files, and delete files that are no longer wanted; return the number of new
        files."""
        done = 0
        while True:
            due: list[tuple[str, int]] = yield Look(
                lambda: self._rows.due(lines=self._lines, silent_s=SILENT_S, most=AT_ONCE + len(self._unnamed))
            )
            before = done
            for job_id, attempt in due:
                if job_id not in self._unnamed:
                    done += yield from self._fold(job_id, attempt)
            if done == before:
                break
        yield from self._remove()
        return done

    def _fold(self, job_id: str, attempt: int) -> Steps[int]:
        first, lines = yield Look(lambda: self._rows.head(job_id, attempt, self._file_bytes))
        if not lines:
            return 0
        try:
            file: LogFile = yield Disk(lambda: self._files.write(job_id, attempt, first, lines))
        except BadName:
            self._unnamed.add(job_id)
            return 0
        row = piece_of(file)
        folded: bool = yield Decide(lambda: self._queue.logs.fold(row, self._bytes_max), "fold")
        return int(folded)

    def _remove(self) -> Steps[None]:
        going: list[Piece] = yield Look(lambda: self._rows.going(REMOVED_AFTER_S, AT_ONCE))
        if not going:
            return

        def remove() -> None:
            for piece in going:
                self._files.remove(piece.job_id, piece.attempt, piece.first, piece.end)

        yield Disk(remove)
        yield Decide(lambda: self._queue.logs.removed(going), "fold")


def piece_of(file: LogFile) -> Piece:
    """Return the row that names a file."""
    return Piece(file.job_id, file.attempt, file.first, file.count, file.raw_bytes, file.bytes, file.sha256, None, None)

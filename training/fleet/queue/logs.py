"""The rows of trainers' output: the newest lines, and the files of the store that contain earlier ones.

Lines arrive in ``log_chunks``. From ``log_chunks`` lines go into files in order, so the rows of ``log_files`` cover all
lines before those in ``log_chunks``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from enum import StrEnum

from training.clock import Clock, SystemClock
from training.fleet.database.writer import Database, Row
from training.frozen import frozen


class Gone(StrEnum):
    """The reason why output lines are not kept."""

    SIZE = "size"  # the attempt printed more than is kept
    AGE = "age"
    WORKER = "worker"  # they never arrived; a line that did says so
    LOST = "lost"  # the database was made anew, and no file has them


@frozen
class Piece:
    """A row of ``log_files``: consecutive lines of an attempt, in a file or no longer stored."""

    job_id: str
    attempt: int
    first: int
    count: int
    raw_bytes: int
    bytes: int  # of the file, also while it waits to be removed
    sha256: str | None
    gone: Gone | None = None
    gone_at: float | None = None

    @property
    def end(self) -> int:
        return self.first + self.count


_COLUMNS = [each.name for each in fields(Piece)]


def piece_of(row: Row) -> Piece:
    """Convert a row of ``log_files`` to a value."""
    said = {name: row[name] for name in _COLUMNS}
    return Piece(**{**said, "gone": None if row["gone"] is None else Gone(row["gone"])})


def beyond(pieces: Sequence[Piece], limit: int) -> list[Piece]:
    """Return the files to delete if an attempt has more than ``limit`` bytes of output: from the middle, the oldest
    first.

    The beginning is kept, up to half of the limit, and so is the newest file.
    """
    kept = [piece for piece in pieces if piece.gone is None]
    over = sum(piece.raw_bytes for piece in kept) - limit
    head, chosen = 0, []
    for piece in kept[:-1]:
        if over <= 0:
            break
        head += piece.raw_bytes
        if head > limit // 2:
            over -= piece.raw_bytes
            chosen.append(piece)
    return chosen


class LogRows:
    """The rows of output in the queue's database. Any connection may read the rows."""

    def __init__(self, db: Database, clock: Clock | None = None) -> None:
        self._db, self._clock = db, clock or SystemClock()

    def due(self, *, lines: int, silent_s: float, most: int) -> list[tuple[str, int]]:
        """Return the attempts (job id, number) whose output must be moved into a file, at most ``most``.

        Output is due of attempts with at least ``lines`` lines in the database, and of ended ones whose output is
        complete or that ended over ``silent_s`` seconds ago.
        """
        rows = self._db.all("logs_due", lines=lines, before=self._clock.now() - silent_s, most=most)
        return [(row["job_id"], row["attempt"]) for row in rows]

    def head(self, job_id: str, attempt: int, bytes_max: int) -> tuple[int, list[str]]:
        """Return the oldest lines that are not in files: the number of the first, and about ``bytes_max`` of
        consecutive lines."""
        start, lines, size = -1, list[str](), 0
        for first, text in self.chunks(job_id, attempt, 0):
            if start < 0:
                start = first
            elif first != start + len(lines):
                break  # the worker lacked the lines between
            lines += text
            size += sum(map(len, text)) + len(text)
            if size >= bytes_max:
                break
        return max(0, start), lines

    def chunks(self, job_id: str, attempt: int, after: int) -> Iterator[tuple[int, list[str]]]:
        """Yield the chunks of output that contain lines from number ``after`` on: the number of a chunk's first line,
        and its lines."""
        while rows := self._db.all("log", job_id=job_id, attempt=attempt, after=after, most=_CHUNKS_AT_ONCE):
            for row in rows:
                yield row["first"], row["text"].split("\n")
            after = rows[-1]["first"] + rows[-1]["count"]

    def pieces(self, job_id: str, attempt: int, after: int = 0, most: int = -1) -> list[Piece]:
        """Return the first ``most`` rows of files that contain lines from number ``after`` on; by default all rows."""
        rows = self._db.all("log_pieces", job_id=job_id, attempt=attempt, after=after, most=most)
        return [piece_of(row) for row in rows]

    def fold(self, file: Piece, limit: int) -> bool:
        """Record that lines are in a file, and delete these lines' chunks; mark files beyond ``limit`` bytes of text as
        no longer kept.

        Return False, and change nothing, if the rows of files cover the first of these lines already.
        """
        there = self.pieces(file.job_id, file.attempt)
        end = there[-1].end if there else 0
        if file.first < end:
            return False
        key = {"job_id": file.job_id, "attempt": file.attempt}
        with self._db.transaction():
            if file.first > end:
                self._add(_nothing(file, end, file.first - end, Gone.WORKER, self._clock.now()))
            self._add(file)
            self._db.run("drop_chunks", **key, end=file.end)
            for piece in beyond([*there, file], limit):
                self.lose(piece, Gone.SIZE)
        return True

    def take_back(self, files: Sequence[Piece], gone: Gone) -> int:
        """Add rows for files found in the store to an attempt that has no such rows; return the number of the line
        after the last. Gaps before and between the files get the reason ``gone``."""
        end = 0
        for file in files:
            if file.first < end:
                continue
            if file.first > end:
                self._add(_nothing(file, end, file.first - end, gone, self._clock.now()))
            self._add(file)
            end = file.end
        return end

    def lose(self, piece: Piece, why: Gone) -> None:
        """Record that a file's lines are no longer kept; the file itself is deleted later."""
        key = {"job_id": piece.job_id, "attempt": piece.attempt, "first": piece.first}
        self._db.run("lose_log_file", **key, gone=why, now=self._clock.now())

    def expire(self, job_id: str, attempt: int, end: int) -> None:
        """Record that an attempt's lines in files, and its other lines before number ``end``, are no longer kept."""
        there = self.pieces(job_id, attempt)
        for piece in there:
            if piece.gone is None:
                self.lose(piece, Gone.AGE)
        filed = there[-1].end if there else 0
        if end > filed:
            self._add(Piece(job_id, attempt, filed, end - filed, 0, 0, None, Gone.AGE, self._clock.now()))
            self._db.run("drop_chunks", job_id=job_id, attempt=attempt, end=end)

    def going(self, older_s: float, most: int) -> list[Piece]:
        """Return at most ``most`` rows whose file has been unwanted for ``older_s`` seconds and is not yet deleted."""
        return [piece_of(row) for row in self._db.all("log_files_going", before=self._clock.now() - older_s, most=most)]

    def removed(self, pieces: Sequence[Piece]) -> None:
        """Record that these files are deleted; a row joins the row before it, if that has the same reason."""
        for piece in pieces:
            key = {"job_id": piece.job_id, "attempt": piece.attempt}
            said = {"gone": piece.gone, "first": piece.first}
            if self._db.run("extend_gap", **key, **said, count=piece.count, raw_bytes=piece.raw_bytes):
                self._db.run("forget_log_file", **key, first=piece.first)
            else:
                self._db.run("removed_log_file", **key, first=piece.first)

    def _add(self, piece: Piece) -> None:
        self._db.run("add_log_file", **{name: getattr(piece, name) for name in _COLUMNS})


_CHUNKS_AT_ONCE = 16


def _nothing(like: Piece, first: int, count: int, gone: Gone, now: float) -> Piece:
    return Piece(like.job_id, like.attempt, first, count, 0, 0, None, gone, now)

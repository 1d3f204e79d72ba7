"""Trainers' output: lines move from the database into files of the store, and are read by line number from both.

:class:`Folding` writes a file, then commits its row. A crash between the two leaves a file that no row names; the lines
are still in the database, and go into a file again. :class:`Logs` uses any connection but the writer's; the writer may
move lines into a file between two reads of ``Logs``.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields

from training.fleet.database.writer import Database
from training.fleet.queue.logs import Gone, LogRows, Piece
from training.fleet.service.delivery import Decide, Disk, Look, Steps
from training.fleet.service.service import Service
from training.fleet.store.errors import BadName, StoreError
from training.fleet.store.logs import LogFile, LogStore
from training.fleet.wire.constants import LOG_BYTES_MAX

FILE_BYTES = 256 * 1024  # of text in one file, about: to read a line takes as much memory
LINES = 2000  # of a running attempt, in the database
SILENT_S = 3600.0  # after this no more lines are expected of an ended attempt whose worker did not say how many
REMOVED_AFTER_S = 3600.0  # a file stays so long after its row, for a backup that is being made
AT_ONCE = 50
PAGE_BYTES = 128 * 1024  # of text, after which a page ends; a file is read whole
WHY = {
    Gone.SIZE: f"{LOG_BYTES_MAX // 1024**2} MiB an attempt",
    Gone.AGE: "too old",
    Gone.LOST: "the database was rebuilt from the store",
}


@dataclass
class Page:
    """Consecutive output lines of an attempt; ``next`` is the line number from which to ask for the next page."""

    first: int
    lines: list[str] = field(default_factory=list)
    gap: str | None = None  # why lines between the number asked for and ``first`` are missing, if nothing else says it

    @property
    def next(self) -> int:
        return self.first + len(self.lines)


class Logs:
    """The reader of trainers' output."""

    def __init__(self, database: Database, files: LogStore | None) -> None:
        self._db, self._rows, self._files = database, LogRows(database), files

    def page(self, job_id: str, attempt: int, after: int) -> Page:
        """Return a page of an attempt's output lines, beginning at line number ``after``, counted from 0; lines that
        are not kept are skipped."""
        page, missing, size = Page(after), list[Piece](), 0
        while size < PAGE_BYTES:
            pieces = self._rows.pieces(job_id, attempt, page.next, most=1)
            if not pieces:
                before = Page(page.next)
                begun = bool(page.lines)
                self._add_chunks(job_id, attempt, page, PAGE_BYTES - size)
                if begun or page.first == before.first or not self._rows.pieces(job_id, attempt, before.first, most=1):
                    break
                page = before  # the lines between went into a file after the first look
                continue
            piece = pieces[0]
            text = self._text(piece)
            if text is None:
                if page.lines:
                    break  # the next page says so
                missing.append(piece)
                page.first = piece.end
                continue
            if not page.lines:
                page.first = max(page.first, piece.first)
            page.lines += text[page.next - piece.first :]
            size += piece.raw_bytes
        page.gap = _sentence(missing, after)
        return page

    def end(self, job_id: str, attempt: int, most: int) -> Page:
        """Return the last lines of an attempt's output, at most ``most``; fewer if the lines before them are not
        kept."""
        lines: list[str] = []
        begin = None
        for row in self._db.all("log_end", job_id=job_id, attempt=attempt, most=most):
            if (begin is not None and row["first"] + row["count"] != begin) or len(lines) >= most:
                break
            begin, lines = row["first"], row["text"].split("\n") + lines
        for piece in reversed(self._rows.pieces(job_id, attempt)):
            text = None if len(lines) >= most or (begin is not None and piece.end < begin) else self._text(piece)
            if text is None:
                begin = piece.end if begin is None else begin
                break
            begin, lines = piece.first, (text if begin is None else text[: begin - piece.first]) + lines
        kept = lines[-most:]
        return Page((begin or 0) + len(lines) - len(kept), kept)

    def pages(self, job_id: str, attempt: int) -> Iterator[Page]:
        """Yield all of an attempt's output that is kept, page by page."""
        after = 0
        while True:
            page = self.page(job_id, attempt, after)
            if page.next == after:
                return
            yield page
            after = page.next

    def _add_chunks(self, job_id: str, attempt: int, page: Page, room: int) -> None:
        size = 0
        for first, text in self._rows.chunks(job_id, attempt, page.next):
            if not page.lines:
                page.first = max(first, page.first)
            elif first > page.next:
                break  # the next page begins behind what the worker lacked
            fresh = text[page.next - first :]
            page.lines += fresh
            size += sum(map(len, fresh)) + len(fresh)
            if size >= room:
                break

    def _text(self, piece: Piece) -> list[str] | None:
        """Read the lines of the file that a row names; None if the lines are not kept, or the file cannot be read."""
        if piece.sha256 is None or self._files is None:
            return None
        try:
            return self._files.read(file_of(piece))
        except StoreError:
            return None


def file_of(piece: Piece) -> LogFile:
    """Return the file that a row names."""
    return LogFile(*(getattr(piece, each.name) for each in fields(LogFile)))


def _sentence(missing: list[Piece], after: int) -> str | None:
    """Return a sentence about which lines are missing, and why; None if no lines are missing but those that never
    arrived, for which another line says so."""
    told = [piece for piece in missing if piece.gone is not Gone.WORKER]
    if not told:
        return None
    unread = "their file is damaged or gone; see `cis490-jobs doctor`"
    why = {WHY[piece.gone] if piece.gone else unread for piece in told}
    first, end = max(after, told[0].first), told[-1].end
    return f"lines {first + 1:,}–{end:,} were not kept: {', '.join(sorted(why))}"


class Folding:
    """The sequences of steps that move trainers' output from the database into files. One instance per receiver."""

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
        """``lines`` is the number of a running attempt's lines after which they move into a file, ``file_bytes`` that
        file's size, about. At most ``bytes_max`` of an attempt's output are kept."""
        self._lines, self._file_bytes, self._bytes_max = lines, file_bytes, bytes_max
        self._queue, self._files = service.queue, files
        self._rows = LogRows(reader, service.queue.clock)
        self._unnamed: set[str] = set()  # jobs whose id cannot name a folder: their output stays in the database

    def fold(self) -> Steps[int]:
        """Move output that is due into files, and delete at most ``AT_ONCE`` files that are no longer wanted; return
        the number of new files."""
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
    return Piece(**asdict(file))

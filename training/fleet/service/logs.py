"""Read trainers' output by line number, from the files of the store and, for the newest lines, from the database.

It may use any connection except the writer's; the writer may move lines into a file between two statements.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from training.fleet.database.writer import Database
from training.fleet.queue.logs import Gone, LogRows, Piece
from training.fleet.store.errors import StoreError
from training.fleet.store.logs import LogFile, LogStore
from training.fleet.wire.constants import LOG_BYTES_MAX

PAGE_BYTES = 128 * 1024  # of text, after which a page ends; a file is read whole
WHY = {
    Gone.SIZE: f"{LOG_BYTES_MAX // 1024**2} MiB an attempt",
    Gone.AGE: "too old",
    Gone.LOST: "the database was rebuilt from the store",
}


@dataclass
class Page:
    """Consecutive lines; ``first + len(lines)`` is the first line of the next page."""

    first: int
    lines: list[str] = field(default_factory=list)
    gap: str | None = None  # why lines between the number asked for and ``first`` are missing, if nothing else says it

    @property
    def next(self) -> int:
        return self.first + len(self.lines)


class Logs:
    """Reads output for people and tools."""

    def __init__(self, database: Database, files: LogStore | None) -> None:
        self._db, self._rows, self._files = database, LogRows(database), files

    def page(self, job_id: str, attempt: int, after: int) -> Page:
        """Return lines from number ``after`` on."""
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
        """Return the last lines, at most ``most``."""
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
        """Iterate over all lines."""
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
        """Read a row's lines; None if they are not kept, or cannot be read."""
        if piece.sha256 is None or self._files is None:
            return None
        try:
            return self._files.read(file_of(piece, piece.sha256))
        except StoreError:
            return None


def file_of(piece: Piece, sha256: str) -> LogFile:
    """Return the file that a row names."""
    return LogFile(piece.job_id, piece.attempt, piece.first, piece.count, piece.raw_bytes, piece.bytes, sha256)


def _sentence(missing: list[Piece], after: int) -> str | None:
    """Say which lines are missing, and why; for lines that never arrived, another line says so."""
    told = [piece for piece in missing if piece.gone is not Gone.WORKER]
    if not told:
        return None
    unread = "their file is damaged or gone; see `cis490-jobs doctor`"
    why = {WHY[piece.gone] if piece.gone else unread for piece in told}
    first, end = max(after, told[0].first), told[-1].end
    return f"lines {first + 1:,}–{end:,} were not kept: {', '.join(sorted(why))}"

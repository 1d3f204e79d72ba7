"""Follow the file into which a trainer prints, and keep that file small.

A trainer may print nothing, bytes that are not text, one endless line, or a terabyte. Lines are read block by block, in
order, and cut to a limited length; the disk keeps the beginning and the end of the output. If more than ``QUEUE_BYTES``
are unread, the oldest are skipped until half of ``QUEUE_BYTES`` is left; a line in the output then says how many bytes.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from training.fleet.wire.constants import LOG_BYTES_MAX, LOG_LINE_CHARS_MAX
from training.fleet.wire.progress import taken

READ_BYTES = 256 * 1024  # at one poll; the rest waits for the next, which may follow at once
QUEUE_BYTES = LOG_BYTES_MAX  # that may wait unread
POLLS_A_LOOK = QUEUE_BYTES // READ_BYTES + 1  # who prints faster than that is read for ever
LINE_BYTES_MAX = 16 * 1024  # of a line whose end was not printed yet; more is taken as a line
FILE_BYTES_MAX = LOG_BYTES_MAX  # a cut may lose what is printed meanwhile
KEPT_BYTES = 1024**2  # of the beginning, and of the end before a cut

TOO_LONG = f"a progress line of more than {LINE_BYTES_MAX // 1024} KiB is not taken"

_CONTROLS = {code: None for code in (*range(32), *range(127, 160)) if code != 9} | {9: "    "}


def clean_line(raw: bytes, chars_max: int = LOG_LINE_CHARS_MAX) -> str:
    """Return a printed line as text of at most ``chars_max`` characters, without control characters; of a progress bar,
    only its last state."""
    last_state = raw.rstrip(b"\r\n").rpartition(b"\r")[2]
    raw_max = 4 * chars_max  # a character has four bytes at most
    text = last_state[:raw_max].decode("utf-8", "replace")
    return text.translate(_CONTROLS)[:chars_max]


@dataclass
class OutputTail:
    """Reads the lines that a trainer printed to the file ``path`` since the last reading.

    When the file grows beyond ``file_bytes_max``, it is emptied in place: its beginning is kept once as
    ``<name>.head``, its end before each cut as ``<name>.previous``. The trainer continues writing (it appends). Where a
    file in use cannot be emptied (Windows), ``overflowing`` is set and the caller must stop the trainer.

    ``read_to`` is the number of bytes read so far; to continue an earlier session, pass its last ``position``, which
    excludes an unfinished line.
    """

    path: Path
    read_to: int = 0
    file_bytes_max: int = FILE_BYTES_MAX
    kept_bytes: int = KEPT_BYTES
    queue_bytes: int = QUEUE_BYTES
    overflowing: bool = False
    _complained: bool = False
    _rest: bytes = b""  # the beginning of a line whose end was not printed yet

    @property
    def position(self) -> int:
        """Return the number of the file's bytes whose lines were returned."""
        return max(0, self.read_to - len(self._rest))

    def poll(self, *, final: bool = False) -> list[str]:
        """Return the next lines, oldest first, from one block of the file; an empty list if the block ends no line, all
        is read, or the file cannot be read. Never raises OSError.

        Lines are cut to the length that a log allows, except progress lines, which the outbox cuts. With ``final``,
        read all that is left, also a last line without a line break.
        """
        try:
            lines = self._read_lines()
            while final and self._waiting():
                lines += self._read_lines()
            if self.read_to > self.file_bytes_max and self._waiting() <= READ_BYTES:
                self._keep_ends()
                # As late as possible: output between here and the cut is lost.
                lines += self._read_lines()
                self._cut()
                if self.read_to == 0 and self._rest:  # the end of this line may be lost as well
                    lines.append(self._rest)
                    self._rest = b""
        except (OSError, ValueError):
            # A removed file, a failing disk, an impossible name: the trainer's end will show it.
            lines = []
        if final and self._rest:
            lines.append(self._rest)
            self._rest = b""
        return [text for line in lines for text in self._texts(line)]

    def _texts(self, raw: bytes) -> list[str]:
        """Return a printed line as text; after the first long progress line that is refused or loses fields, add one
        line that says why."""
        if len(raw) <= LOG_LINE_CHARS_MAX or not raw.startswith(b"{"):
            return [clean_line(raw)]
        text = clean_line(raw, LINE_BYTES_MAX)
        fields, complaint = taken(text) if len(raw) <= LINE_BYTES_MAX else (None, TOO_LONG)
        lines = [text if fields is not None else text[:LOG_LINE_CHARS_MAX]]
        if complaint and not self._complained and b'"event"' in raw:
            self._complained = True
            lines.append(f"[… {complaint} …]")
        return lines

    def _waiting(self) -> int:
        """Return the number of unread bytes."""
        return self.path.stat().st_size - self.read_to

    def _read_lines(self) -> list[bytes]:
        size = self.path.stat().st_size
        if size < self.read_to:
            self.read_to = 0  # another program cut the file
        waiting = size - self.read_to
        if waiting <= 0:
            return []
        lines = []
        if waiting > self.queue_bytes:
            left_out = waiting - max(READ_BYTES, self.queue_bytes // 2)
            self.read_to += left_out
            self._rest = b""
            lines.append(f"[… {left_out:,} bytes of output left out …]".encode())
        with self.path.open("rb") as file:
            file.seek(self.read_to)
            block = file.read(min(waiting, READ_BYTES))
        data = self._rest + block
        self.read_to += len(block)
        *complete, self._rest = data.split(b"\n")
        if len(self._rest) > LINE_BYTES_MAX:
            complete.append(self._rest)
            self._rest = b""
        return lines + complete

    def _keep_ends(self) -> None:
        """Copy the file's beginning (once) and the last bytes that were read to separate files."""
        head = self.path.with_name(self.path.name + ".head")
        if not head.exists():
            self._copy(0, head)
        previous = self.path.with_name(self.path.name + ".previous")
        self._copy(max(0, self.read_to - self.kept_bytes), previous)

    def _copy(self, start: int, target: Path) -> None:
        with self.path.open("rb") as file:
            file.seek(start)
            target.write_bytes(file.read(self.kept_bytes))  # bounded: the trainer goes on printing

    def _cut(self) -> None:
        if os.name == "posix":
            os.truncate(self.path, 0)
            self.read_to = 0
        else:  # an appending handle keeps a position of its own there
            self.overflowing = True

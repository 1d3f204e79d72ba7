"""The dialect of a table of text: its encoding, delimiter, quotes, header, and the sign before its decimals.

Spreadsheets and loggers write all of them in their country's way. DuckDB's sniffer finds the layout (it tries dialects
and types on the first lines), a byte order mark or the bytes themselves tell the encoding, and whole columns tell
the decimal sign. What was found is said to the user; what two readings fit is refused.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple

import polars as pl

from training.data.errors import DataError
from training.data.scratch import ROOM, WorkingMemory

DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}
MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
COPIED = 1 << 20  # characters at a time
LOOKED_AT = 1 << 16  # bytes that show the encoding of a file without a mark
FALLBACK = "cp1252"  # a table that is no UTF-8 is an old program's of a western country
COMMA_DECIMAL = r"^\s*[+-]?(\d+|\d{1,3}([.' ]\d{3})+)?,\d+([eE][+-]?\d+)?\s*$"
WHOLE = r"^\s*[+-]?\d+\s*$"
POINT_GROUPS = r"^\s*[+-]?[1-9]\d{0,2}(\.\d{3})+\s*$"  # 1.234: thousands, or decimals
POINT_DECIMAL = r"^\s*[+-]?\d*\.\d+\s*$"
ENGLISH = r"^[+-]?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?$"  # 1,234.5
COMMA_GROUPS = r"^\s*[+-]?[1-9]\d{0,2}(,\d{3})+\s*$"
GROUPED = r",\d{3}\."
THOUSANDS = r"^[+-]?(\d|[1-9]\d{1,2}|[1-9]\d{0,2}(\.\d{3})+)$"  # 987, 1.234: whole numbers, if points group them
SEVERAL_POINTS = r"\.\d{3}\."
_UNCLEAR = (POINT_GROUPS, f"{COMMA_GROUPS}|{POINT_GROUPS}", COMMA_GROUPS)
_EACH, _ANY = (COMMA_DECIMAL, *_UNCLEAR), (",", WHOLE, *_UNCLEAR)
REMARK = re.compile(r'\s*(#|"?sep=|$)')  # a line before the names; `sep=;` is a spreadsheet's
NOTHING = ("", "na", "n/a", "#n/a", "nan", "null", "none", "nil", "-", "--", "?")  # what programs write for no number
REMARKS_MAX = 1000  # lines
COLUMNS_MAX = 2000
SNIFFED_ROWS, HEAD_MAX = 20_480, 1 << 23  # lines and characters that show the layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The layout of one file. ``skip`` counts the lines before the names of the columns."""

    encoding: str
    delimiter: str
    quote: str
    skip: int
    names: tuple[str, ...] = ()  # of the columns, where no line of its own names them
    aligned: bool = False  # by several spaces between two columns, as programs print tables

    def sentence(self) -> str:
        """Describe it for the user, as far as it is unusual."""
        parts = [] if self.delimiter == "," else [f"{DELIMITERS[self.delimiter]} between columns"]
        if self.encoding not in ("utf-8", "utf-8-sig"):
            parts.append("Windows-1252" if self.encoding == FALLBACK else self.encoding.upper())
        if self.skip:
            parts.append(f"{self.skip} line{'s' * (self.skip > 1)} before the names of the columns")
        return ", ".join(parts)


def dialect_of(path: Path, names: Sequence[str] = ()) -> Dialect:
    """Find how the table is written; ``names`` are the user's for its columns.

    Raises DataError, and OSError where the file cannot be read.
    """
    encoding = encoding_of(path)
    skip, remark = _remarks(path, encoding)
    aligned = _is_aligned(_first_lines(path, encoding, skip))
    with tempfile.TemporaryDirectory() as folder:
        head = Path(folder) / "head.csv"
        _write_head(path, encoding, skip, head, aligned=aligned)
        found = _sniffed(head, "")
        if found is None or found[2] < 2:  # one column: spaces are no delimiter that the sniffer tries
            found = _sniffed(head, ", delim = ' '") or found
    if found is None:
        raise DataError(f"{path} is not a table: its lines do not have equal columns; its first line must name them.")
    delimiter, quote, columns, header = found
    if columns < 2:
        with path.open(encoding=encoding, newline="\n") as file:
            lines = list(islice(file, skip, skip + SNIFFED_ROWS))
        if any(sign in line for line in lines[:2] for sign in DELIMITERS if sign != " "):
            raise DataError(f"{path} has lines of unlike numbers of columns: {_torn(lines, skip)}.")
        raise DataError(f"{path} has one column: a table needs at least a time, a label and a channel.")
    if names and len(names) != columns:
        raise DataError(f"--columns names {len(names)} columns, and {path} has {columns}.")
    if not header:
        names = names or _named_in(remark, delimiter, columns)
        if not names:
            raise DataError(
                f"{path} does not name its columns: name each of the {columns} with --columns NAME,NAME,…, or in a "
                "first line."
            )
    elif names:
        raise DataError(f"{path} names its columns in its first line: leave --columns out, or that line.")
    return Dialect(encoding=encoding, delimiter=delimiter, quote=quote, skip=skip, names=tuple(names), aligned=aligned)


def _torn(lines: Sequence[str], skip: int) -> str:
    """The first line that has another number of columns than most, and the remedy; ``skip`` lines stand before all."""
    sign = max((sign for sign in DELIMITERS if sign != " "), key=lambda sign: sum(line.count(sign) for line in lines))
    reader = csv.reader(lines, delimiter=sign)
    counts: dict[int, int] = {}
    with suppress(csv.Error):  # a quote that does not end: what stands before it may show enough
        for row in reader:
            counts |= {reader.line_num: len(row)} if row else {}
    usual, _ = Counter(counts.values()).most_common(1)[0] if counts else (0, 0)
    header = min(counts, default=0)
    odd = next((number for number, count in counts.items() if count != usual), header)
    if odd == header:
        return "its first line must name each of them"
    return f"line {skip + odd} has {counts[odd]} where most have {usual}: fix that line, or take it out"


class ReadableBytes(NamedTuple):
    """Bytes that may be read several times, also side by side."""

    open: Callable[[], BinaryIO]
    size: int


@contextmanager
def as_utf8(path: Path, dialect: Dialect, room: WorkingMemory = ROOM) -> Iterator[ReadableBytes]:
    """The file in UTF-8 with one delimiter between two columns: itself, or a copy without a name, gone with us."""
    encoding = dialect.encoding
    if encoding in ("utf-8", "utf-8-sig") and not dialect.aligned:
        yield ReadableBytes(lambda: path.open("rb"), path.stat().st_size)
        return
    with room.file() as copy:
        with path.open(encoding=encoding, newline="") as file:
            lines = map(_squeezed, file) if dialect.aligned else iter(partial(file.read, COPIED), "")
            for part in lines:
                copy.write(part.encode())
        yield ReadableBytes(lambda: io.BufferedReader(_Again(copy)), copy.tell())


class _Again(io.RawIOBase):
    """A file that is read at an own place."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._at = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, at: int, whence: int = io.SEEK_SET) -> int:
        assert whence in (io.SEEK_SET, io.SEEK_CUR)
        self._at = at + (self._at if whence == io.SEEK_CUR else 0)
        return self._at

    def readinto(self, buffer: Any) -> int:
        self._file.seek(self._at)
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _squeezed(line: str) -> str:
    return " ".join(line.split()) + "\n"


def _is_aligned(lines: Sequence[str]) -> bool:
    """Return True for lines whose columns stand below each other, with spaces alone between them."""
    return all(re.search(r"\S {2,}\S", line) and not re.search(r"[,;|\t]", line) for line in lines) and (
        len({len(line.split()) for line in lines}) == 1
    )


def tidied(names: Sequence[str]) -> list[str]:
    """The names without spaces around them, if they are different names then, too."""
    stripped = [name.strip() for name in names]
    return stripped if len(set(stripped)) == len(names) else list(names)


class Cells:
    """The cells of a column of text, as far as they show which numbers they are, however many there are."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._each: dict[str, bool] = {}
        self._any: dict[str, bool] = {}
        self._first: dict[str, str] = {}
        self._counts = dict.fromkeys(("cells", "written", "words", "failed", "failed_english", "failed_raw"), 0)
        self._counts["failed_points"] = 0

    def add(self, column: pl.Series) -> None:
        """Look at some more cells."""
        counts, written = self._counts, column.drop_nulls()
        text = _without_words(pl.col(column.name))
        frame = column.to_frame().select(
            text=text, english=_without_groups(text), points=_with_points(text), raw=column.name
        )
        failed = {
            name: frame[name].cast(pl.Float64, strict=False).null_count() - frame[name].null_count()
            for name in frame.columns
        }
        counts["cells"] += column.len()
        counts["written"] += written.len()
        counts["words"] += frame["text"].null_count()
        counts["failed"] += failed["text"]
        counts["failed_english"] += failed["english"]
        counts["failed_raw"] += failed["raw"]
        counts["failed_points"] += failed["points"]
        known = frame["text"].drop_nulls()
        if known.len():
            self._each[ENGLISH] = self._each.get(ENGLISH, True) and bool(known.str.contains(ENGLISH).all())
            self._each[THOUSANDS] = self._each.get(THOUSANDS, True) and bool(known.str.contains(THOUSANDS).all())
            for pattern in (GROUPED, SEVERAL_POINTS):
                self._any[pattern] = self._any.get(pattern, False) or bool(known.str.contains(pattern).any())
        for pattern in _EACH:
            if written.len():
                every = bool(written.str.contains(f"{pattern}|{WHOLE}").all())
                self._each[pattern] = self._each.get(pattern, True) and every
        for pattern in _ANY:
            here = written.str.contains(pattern)
            self._any[pattern] = self._any.get(pattern, False) or bool(here.any())
            if here.any():
                self._first.setdefault(pattern, str(written.filter(here)[0]))
        surely = written.str.contains(COMMA_DECIMAL) & ~written.str.contains(COMMA_GROUPS)
        points = written.str.contains(POINT_DECIMAL) & ~written.str.contains(POINT_GROUPS)
        self._any["surely commas"] = self._any.get("surely commas", False) or bool(surely.any())
        self._any["surely points"] = self._any.get("surely points", False) or bool(points.any())

    def each(self, pattern: str) -> bool:
        """Tell whether there is something in the cells, and each of these matches or is a whole number."""
        return self._each.get(pattern, False)

    def any(self, pattern: str) -> bool:
        """Tell whether some cell matches."""
        return self._any.get(pattern, False)

    def first(self, pattern: str) -> str:
        """The first cell that matches."""
        return self._first[pattern]

    @property
    def has_decimal_commas(self) -> bool:
        """Tell whether each cell is a number, one at least with a decimal comma."""
        return self.each(COMMA_DECIMAL) and self.any(",")

    @property
    def may_be_thousands(self) -> bool:
        """Tell whether each cell reads as a whole number with points between thousands, beside some without them."""
        return self.each(THOUSANDS) and self.any(POINT_GROUPS) and (self.any(WHOLE) or self.any(SEVERAL_POINTS))

    def count(self, what: str) -> int:
        return self._counts[what]


def has_words(column: pl.Series) -> bool:
    """True if some cell is neither a number in any spelling nor an empty value."""
    text = column.to_frame().select(text=_without_words(pl.col(column.name))).to_series().drop_nulls()
    odd = text.filter(text.cast(pl.Float64, strict=False).is_null())
    return not odd.str.contains(f"{ENGLISH}|{COMMA_DECIMAL}|{THOUSANDS}").all()


def _without_words(text: pl.Expr) -> pl.Expr:
    stripped = text.str.strip_chars()
    return pl.when(stripped.str.to_lowercase().is_in(NOTHING)).then(None).otherwise(stripped)


def _without_groups(text: pl.Expr) -> pl.Expr:
    return text.str.replace_all(",", "", literal=True)


def _with_points(text: pl.Expr) -> pl.Expr:
    return text.str.replace_all(r"[.' ]", "").str.replace(",", ".", literal=True)


def as_number(name: str, cells: Cells) -> pl.Expr | None:
    """The numbers of a column of text that holds numbers, spaces and words for nothing; None for any other."""
    text = _without_words(pl.col(name))
    english = cells.each(ENGLISH) and cells.any(GROUPED)
    failed = cells.count("failed_english" if english else "failed")
    if failed or cells.count("words") == cells.count("cells"):
        return None
    return (_without_groups(text) if english else text).cast(pl.Float64, strict=False)


def numbers_with_points(
    columns: Mapping[str, Cells], delimiter: str, where: str, decimal: str | None = None
) -> dict[str, pl.Expr]:
    """The numbers of those columns that hold some, in a table with decimal commas. Raises DataError.

    ``1,234`` and ``1.234`` beside decimal commas are thousands or decimals: a column in which no cell tells is refused.
    With other signs than commas between columns ``1,234`` is a decimal where another column's commas surely are, no
    column has decimal points, and no whole number stands in its own. ``decimal`` is what the user says of the sign
    before decimals, a comma or a point.
    """
    if decimal is not None:
        return _as_said(columns, decimal)
    commas = any(cells.any("surely commas") for cells in columns.values())
    points = any(cells.any("surely points") for cells in columns.values())
    numbers = {}
    for name, cells in columns.items():
        fraction = delimiter != "," and commas and not points and not cells.any(WHOLE)
        unclear = POINT_GROUPS if fraction else f"{COMMA_GROUPS}|{POINT_GROUPS}" if delimiter != "," else COMMA_GROUPS
        if cells.each(unclear) and cells.any(unclear):
            raise _unclear(name, where, cells.first(unclear))
        converted = cells.each(COMMA_DECIMAL)
        if not cells.count("failed_points" if converted else "failed_raw"):
            numbers[name] = (_with_points(_without_words(pl.col(name))) if converted else pl.col(name)).cast(
                pl.Float64, strict=False
            )
    return numbers


def check_points(columns: Mapping[str, Cells], where: str) -> None:
    """Refuse points that may stand between thousands, in a table of semicolons without decimal commas.

    Raises DataError.
    """
    for name, cells in columns.items():
        if cells.may_be_thousands:
            raise _unclear(name, where, cells.first(POINT_GROUPS))


def _unclear(name: str, where: str, cell: str) -> DataError:
    return DataError(
        f"The column {name!r} of {where} holds {cell}, which is a thousand or a fraction: say which sign stands before "
        "decimals with --decimal comma (or point), or leave the column out with --ignore."
    )


def _as_said(columns: Mapping[str, Cells], decimal: str) -> dict[str, pl.Expr]:
    numbers = {}
    for name, cells in columns.items():
        with_points, without = cells.count("failed_points"), cells.count("failed_english")
        if (
            decimal == ","
            and not with_points
            and (cells.any(",") or cells.each(POINT_GROUPS) or cells.may_be_thousands)
        ):
            numbers[name] = _with_points(_without_words(pl.col(name))).cast(pl.Float64, strict=False)
        elif decimal == "." and not without and cells.any(","):
            numbers[name] = _without_groups(_without_words(pl.col(name))).cast(pl.Float64, strict=False)
    return numbers


def encoding_of(path: Path) -> str:
    with path.open("rb") as file:
        head = file.read(LOOKED_AT)
        for mark, name in MARKS.items():
            if head.startswith(mark):
                return name
        if head[1::2].count(0) > len(head) // 4:
            return "utf-16-le"
        if head[::2].count(0) > len(head) // 4:
            return "utf-16-be"
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            while head:
                decoder.decode(head)
                head = file.read(1 << 20)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return FALLBACK
    return "utf-8"


def _remarks(path: Path, encoding: str) -> tuple[int, str]:
    """Count the lines of remarks before the names of the columns; also the last of them."""
    last = ""
    with path.open(encoding=encoding, newline="\n") as file:
        for number, line in enumerate(islice(file, REMARKS_MAX)):
            if not REMARK.match(line):
                return number, last
            last = line.strip() or last
    return 0, ""


def _named_in(remark: str, delimiter: str, columns: int) -> list[str]:
    """The names of the columns in a line of remarks (``# t,x``), as numpy writes them; none if they are not as many."""
    if not remark.startswith("#"):
        return []
    words = remark.lstrip("# ").strip()
    for sign in (delimiter, ",", None):
        found = [name.strip() for name in words.split(sign)]
        if len(found) == len(set(found)) == columns and all(found):
            return found
    return []


def _first_lines(path: Path, encoding: str, skip: int) -> list[str]:
    """Read the names of the columns and the first row of a table.

    Raises DataError for a file without rows, and for one too wide for the sniffer to be done with it this hour.
    """
    with path.open(encoding=encoding, newline="\n") as file:
        lines = list(islice((line for line in islice(file, skip, None) if line.strip()), 2))
    if len(lines) < 2:
        raise DataError(f"{path} holds no samples: it needs rows below the names of its columns.")
    columns = 1 + max(lines[0].count(sign) for sign in DELIMITERS)
    if columns > COLUMNS_MAX:
        raise too_wide(columns, COLUMNS_MAX, str(path))
    return lines


def too_wide(columns: int, most: int, where: str) -> DataError:
    """The error for a table that is rather one of whole windows."""
    return DataError(
        f"{where} has {columns:,} columns, more than {most:,}: if each row is a whole window, one column a sample, "
        "bring it as an array X of a .npz file; else leave columns out."
    )


def _write_head(path: Path, encoding: str, skip: int, head: Path, *, aligned: bool) -> None:
    """Write the first lines of the table as UTF-8."""
    left = HEAD_MAX
    with path.open(encoding=encoding, newline="\n") as file, head.open("w", encoding="utf-8", newline="\n") as out:
        for line in islice(file, skip, skip + SNIFFED_ROWS):
            left -= out.write(_squeezed(line) if aligned else line)
            if left < 0:
                break


def _sniffed(head: Path, options: str) -> tuple[str, str, int, bool] | None:
    """Return delimiter, quote, number of columns, and whether they are named; None for no table."""
    import duckdb  # 70 MB that only a table of text needs

    with duckdb.connect() as connection:
        try:
            found = connection.execute(f"FROM sniff_csv(?{options})", [str(head)])
            row = dict(zip((name for name, *_ in found.description), found.fetchone() or (), strict=False))
        except duckdb.Error:
            return None
    if row.get("Delimiter") not in DELIMITERS or row["SkipRows"]:  # lines of fewer columns come first
        return None
    quote = row["Quote"] if len(row["Quote"]) == 1 else '"'
    return row["Delimiter"], quote, len(row["Columns"]), row["HasHeader"]

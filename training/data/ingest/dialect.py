"""The dialect of a table of text: its encoding, delimiter, quotes, header, and the sign before its decimals.

Spreadsheets and loggers write all of them in their country's way. DuckDB's sniffer finds the layout (it tries dialects
and types on the first lines), a byte order mark or the bytes themselves tell the encoding, and whole columns tell
the decimal sign. What was found is said to the user; what two readings fit is refused.
"""

from __future__ import annotations

import codecs
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl

from training.data.errors import DataError

DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}
MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
LOOKED_AT = 1 << 16  # bytes that show the encoding of a file without a mark
FALLBACK = "cp1252"  # a table that is no UTF-8 is an old program's of a western country
COMMA_DECIMAL = r"^\s*[+-]?(\d+|\d{1,3}([.' ]\d{3})+)?,\d+([eE][+-]?\d+)?\s*$"
WHOLE = r"^\s*[+-]?\d+\s*$"
POINT_GROUPS = r"^\s*[+-]?[1-9]\d{0,2}(\.\d{3})+\s*$"  # 1.234: thousands, or decimals
POINT_DECIMAL = r"^\s*[+-]?\d*\.\d+\s*$"
ENGLISH = r"^[+-]?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?$"  # 1,234.5
COMMA_GROUPS = r"^\s*[+-]?[1-9]\d{0,2}(,\d{3})+\s*$"
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
            torn = any(sign in line for line in islice(file, skip, skip + 2) for sign in DELIMITERS if sign != " ")
        if torn:
            raise DataError(f"{path} has lines of unlike numbers of columns: its first line must name each of them.")
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


def read_text(
    path: Path, dialect: Dialect, as_text: Collection[str] = (), *, all_text: bool = False, rows: int | None = None
) -> pl.DataFrame:
    """Read the table, which is UTF-8, or its first ``rows``; the columns ``as_text`` stay as they are written.

    Raises OSError and PolarsError.
    """
    options: dict[str, Any] = {
        "has_header": not dialect.names,
        "separator": dialect.delimiter,
        "quote_char": dialect.quote,
        "skip_lines": dialect.skip,
    }
    found = pl.read_csv(path, n_rows=0, infer_schema=False, **options).columns
    named = list(dialect.names) or _tidied(found)
    table = pl.read_csv(
        path,
        n_rows=rows,
        infer_schema=not all_text,
        infer_schema_length=None,
        schema_overrides={name: pl.String for name, tidy in zip(found, named, strict=True) if tidy in as_text},
        **options,
    )
    table.columns = named
    if "" in named and 0 < table.height == table[""].null_count():  # each line ends with a delimiter
        table = table.drop("")
    return table.filter(~pl.all_horizontal(pl.all().is_null()))  # an empty line is no row


@contextmanager
def as_utf8(path: Path, dialect: Dialect) -> Iterator[Path]:
    """The file in UTF-8 with one delimiter between two columns: itself, or a copy for as long as it is needed."""
    encoding = dialect.encoding
    if encoding in ("utf-8", "utf-8-sig") and not dialect.aligned:
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        with path.open(encoding=encoding, newline="") as file, copy.open("w", encoding="utf-8", newline="") as out:
            if dialect.aligned:
                out.writelines(_squeezed(line) for line in file)
            else:
                shutil.copyfileobj(file, out, 1 << 20)
        yield copy


def _squeezed(line: str) -> str:
    return " ".join(line.split()) + "\n"


def _is_aligned(lines: Sequence[str]) -> bool:
    """Return True for lines whose columns stand below each other, with spaces alone between them."""
    return all(re.search(r"\S {2,}\S", line) and not re.search(r"[,;|\t]", line) for line in lines) and (
        len({len(line.split()) for line in lines}) == 1
    )


def _tidied(names: Sequence[str]) -> list[str]:
    """The names without spaces around them, if they are different names then, too."""
    stripped = [name.strip() for name in names]
    return stripped if len(set(stripped)) == len(names) else list(names)


def plain_numbers(table: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """The table with numbers in those columns ``names`` of text that hold numbers, spaces and words for nothing."""
    for name in names:
        if table[name].dtype == pl.String:
            text = table[name].str.strip_chars()
            text = text.set(text.str.to_lowercase().is_in(NOTHING), None)
            if _each(text, ENGLISH) and text.str.contains(r",\d{3}\.").any():
                text = text.str.replace_all(",", "")
            numbers = text.cast(pl.Float64, strict=False)
            if numbers.null_count() == text.null_count() < text.len():
                table = table.with_columns(numbers)
    return table


def decimal_commas(table: pl.DataFrame, names: Sequence[str]) -> list[str]:
    """The columns among ``names`` in which each cell is a number, one at least with a decimal comma."""
    return [
        name
        for name in names
        if _each(table[name], f"{COMMA_DECIMAL}|{WHOLE}") and table[name].str.contains(",", literal=True).any()
    ]


def with_points(table: pl.DataFrame, names: Sequence[str], delimiter: str, where: str) -> pl.DataFrame:
    """The table, read as text, with numbers in those columns ``names`` that hold them. Raises DataError.

    ``1,234`` and ``1.234`` beside decimal commas are thousands or decimals: a column in which no cell tells is refused.
    With other signs than commas between columns ``1,234`` is a decimal where another column's commas surely are, no
    column has decimal points, and no whole number stands in its own.
    """
    texts = [table[name] for name in names]
    commas = any((text.str.contains(COMMA_DECIMAL) & ~text.str.contains(COMMA_GROUPS)).any() for text in texts)
    points = any((text.str.contains(POINT_DECIMAL) & ~text.str.contains(POINT_GROUPS)).any() for text in texts)
    for name in names:
        column = table[name]
        decimal = delimiter != "," and commas and not points and not column.str.contains(WHOLE).any()
        unclear = POINT_GROUPS if decimal else f"{COMMA_GROUPS}|{POINT_GROUPS}" if delimiter != "," else COMMA_GROUPS
        if _each(column, f"{unclear}|{WHOLE}") and column.str.contains(unclear).any():
            shown = column.filter(column.str.contains(unclear))[0]
            raise DataError(
                f"The column {name!r} of {where} holds {shown}, which is a thousand or a fraction: write its numbers "
                "without a sign between thousands, or leave the column out with --ignore."
            )
        if _each(column, f"{COMMA_DECIMAL}|{WHOLE}"):
            column = column.str.replace_all(r"[.' ]", "").str.replace(",", ".", literal=True)
        numbers = column.cast(pl.Float64, strict=False)
        if numbers.null_count() == column.null_count():
            table = table.with_columns(numbers)
    return table


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


def _each(column: pl.Series, pattern: str) -> bool:
    """Return True when the column is text, holds something, and each cell that does matches."""
    if column.dtype != pl.String:
        return False
    written = column.drop_nulls()
    return bool(written.len() and written.str.contains(pattern).all())

"""Find the dialect of a text table: its encoding, delimiter, quotes and header.

DuckDB's sniffer finds the layout by trying dialects on the first lines. The encoding follows from a byte order mark or
from the bytes. An unusual dialect is shown to the user.
"""

import codecs
import csv
import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from training.data.errors import DataError

DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}
MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
COPIED = 1 << 20  # characters at a time
LOOKED_AT = 1 << 16  # bytes that show the encoding of a file without a mark
PAIR = re.compile(rb"[\xc2\xc3][\x80-\xbf]")  # a western letter in UTF-8, and no word in an old encoding
FALLBACK = "cp1252"  # a table that is no UTF-8 is an old program's of a western country
REMARK = re.compile(r'\s*(#|"?sep=|$)')  # a line before the names; `sep=;` is a spreadsheet's
REMARKS_MAX = 1000  # lines
COLUMNS_MAX = 2000
DIVIDED_LINES = 200
SNIFFED_ROWS, HEAD_MAX = 20_480, 1 << 23  # lines and characters that show the layout


class Dialect(NamedTuple):
    """The dialect of one file; ``skip`` is the number of lines before the column names (or the first row, without
    names)."""

    encoding: str
    delimiter: str
    quote: str
    skip: int
    columns: int
    names: tuple[str, ...] = ()  # of the columns, where no line of its own names them
    mixed_ends: bool = False  # of lines
    aligned: bool = False  # by several spaces between two columns, as programs print tables

    def sentence(self) -> str:
        """Return a description of the unusual parts of this dialect for the user; "" if nothing is unusual."""
        parts = [] if self.delimiter == "," else [f"{DELIMITERS[self.delimiter]} between columns"]
        if self.encoding not in ("utf-8", "utf-8-sig"):
            parts.append("Windows-1252" if self.encoding == FALLBACK else self.encoding.upper())
        if self.skip:
            parts.append(f"{self.skip} line{'s' * (self.skip > 1)} before the names of the columns")
        return ", ".join(parts)


def dialect_of(path: Path, names: Sequence[str]) -> Dialect:
    """Return the dialect of a text table; ``names`` are the column names that the user gave with --columns.

    Raises DataError if the file is no table of text, its columns have no names, or ``names`` do not fit it. Raises
    OSError or UnicodeError if the file cannot be read.
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
        sign = _dividing(head)
        if sign and (found is None or found[2] < 2):
            found = _sniffed(head, f", delim = '{sign}'") or found
    delimiter, quote, columns, header = found or ("", "", 0, False)
    if columns < 2:
        with path.open(encoding=encoding, newline="\n") as file:
            lines = list(islice(file, skip, skip + SNIFFED_ROWS))
        if found is None or any(sign in line for line in lines[:2] for sign in DELIMITERS if sign != " "):
            raise DataError(f"{path} has lines of unlike numbers of columns: {_torn(lines, skip)}.")
        if not all(map(_is_number, lines[1:])):
            raise DataError(f"{path} has one column: a table needs at least a time or a window, and a channel.")
    if len(names) == 1 < columns:
        names = [f"{names[0]}{number}" for number in range(1, columns + 1)]
    if names and len(names) != columns:
        raise DataError(f"--columns names {len(names)} columns, and {path} has {columns}.")
    if not header:
        names = names or (_named_in(remark, delimiter, columns) if columns > 1 else ["value"])
        if not names:
            raise DataError(
                f"{path} does not name its columns: name all {columns} with --columns NAME,NAME,…, or in a first line "
                "(--columns c makes it c1, c2, …)."
            )
    elif names:
        raise DataError(f"{path} names its columns in its first line: leave --columns out, or that line.")
    return Dialect(
        encoding=encoding,
        delimiter=delimiter,
        quote=quote,
        skip=skip,
        columns=columns,
        names=tuple(names),
        mixed_ends=_has_mixed_ends(path),
        aligned=aligned,
    )


def _is_number(line: str) -> bool:
    try:
        float(line.strip() or "0")
    except ValueError:
        return False
    return True


def _dividing(head: Path) -> str:
    """Return the only sign by which all of the first lines have equally many columns, two or more; "" if none or
    several do. Cells may hold other signs."""
    with head.open(encoding="utf-8") as file:
        lines = [line for line in islice(file, DIVIDED_LINES) if line.strip()]
    found = []
    for sign in (",", ";", "\t", "|"):
        with suppress(csv.Error):
            counts = {len(row) for row in csv.reader(lines, delimiter=sign)}
            found += [sign] if len(counts) == 1 and min(counts) > 1 else []
    return found[0] if len(found) == 1 else ""


def _torn(lines: Sequence[str], skip: int) -> str:
    """Return words that name the first line whose number of columns differs from most lines', and the remedy.

    ``skip`` is the number of lines before ``lines`` in the file.
    """
    sign = max((sign for sign in DELIMITERS if sign != " "), key=lambda sign: sum(line.count(sign) for line in lines))
    reader = csv.reader(lines, delimiter=sign)
    counts: dict[int, int] = {}
    with suppress(csv.Error):  # a quote that does not end: what stands before it may show enough
        for row in reader:
            counts |= {reader.line_num: len(row)} if row else {}
    usual, _ = Counter(counts.values()).most_common(1)[0] if counts else (0, 0)
    header = min(counts, default=0)
    odd = next((number for number, count in counts.items() if count != usual), header)
    if counts.get(odd, usual) == usual:
        return "its first line must name each of them"
    more = f"line {skip + odd} has {counts[odd]} by {DELIMITERS[sign]} where most have {usual}"
    if odd == header:
        return f"{more}, and the first line must name each of them (no title above)"
    return f"{more}: fix that line, or take it out"


def as_utf8(path: Path, dialect: Dialect, folder: Path) -> Path:
    """Return the path of the table as UTF-8 with one delimiter and one line ending: ``path`` itself if it is so, else a
    copy in ``folder``."""
    if dialect.encoding in ("utf-8", "utf-8-sig") and not dialect.aligned and not dialect.mixed_ends:
        return path
    copy = folder / "table.csv"
    with path.open(encoding=dialect.encoding) as file, copy.open("w", encoding="utf-8", newline="\n") as out:
        out.writelines(map(_squeezed, file) if dialect.aligned else iter(partial(file.read, COPIED), ""))
    return copy


def _squeezed(line: str) -> str:
    return " ".join(line.split()) + "\n"


def _is_aligned(lines: Sequence[str]) -> bool:
    """Return True if only spaces separate the columns, several of them somewhere or before a line, or spaces and tabs
    that are unlike from line to line; and all lines have equally many columns."""
    return (
        any(re.search(r"^ +\S|\S {2,}\S", line) for line in lines)
        and not any(re.search(r"[,;|]", line) for line in lines)
        and (len({line.count("\t") for line in lines}) > 1 or "\t" not in lines[0])
        and len({len(line.split()) for line in lines}) == 1
    )


def encoding_of(path: Path) -> str:
    with path.open("rb") as file:
        head = file.read(LOOKED_AT)
        for mark, name in MARKS.items():
            if head.startswith(mark):
                return name
        low, high = head[::2].count(0), head[1::2].count(0)
        if max(low, high) > len(head) // 4 and not min(low, high):
            return "utf-16-le" if high else "utf-16-be"
        decoder, is_utf8, has_pairs, block = codecs.getincrementaldecoder("utf-8")(), True, False, head
        while True:
            if b"\0" in block:
                raise DataError(
                    f"{path} has NUL bytes: it is no text, or a crash left them (tr -d '\\000' takes them out)."
                )
            has_pairs = has_pairs or not (block.isascii() or PAIR.search(block) is None)
            if is_utf8:
                try:
                    decoder.decode(block, final=not block)
                except UnicodeDecodeError:
                    is_utf8 = False
            if not block:
                break
            block = file.read(1 << 20)
    if has_pairs and not is_utf8:
        raise DataError(f"{path} is partly UTF-8 and partly another encoding: write it as one, or leave such text out.")
    return "utf-8" if is_utf8 else FALLBACK


def _has_mixed_ends(path: Path) -> bool:
    """Return True if some lines end with CR and LF, and others with LF alone."""
    crlf = lf = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            block += file.read(1) if block.endswith(b"\r") else b""
            crlf, lf = crlf + block.count(b"\r\n"), lf + block.count(b"\n")
    return 0 < crlf < lf


def _remarks(path: Path, encoding: str) -> tuple[int, str]:
    """Return the number of comment and empty lines at the beginning, and the last comment; 0 and "" if no other line is
    among the first ``REMARKS_MAX``."""
    last = ""
    with path.open(encoding=encoding, newline="\n") as file:
        for number, line in enumerate(islice(file, REMARKS_MAX)):
            if not REMARK.match(line):
                return number, last
            last = line.strip() or last
    return 0, ""


def _named_in(remark: str, delimiter: str, columns: int) -> list[str]:
    """Return the column names in a comment line such as ``# t,x``, as NumPy writes it; an empty list if they are not as
    many as the columns."""
    if not remark.startswith("#"):
        return []
    words = remark.lstrip("# ").strip()
    for sign in (delimiter, ",", None):
        found = [name.strip() for name in words.split(sign)]
        if len(found) == len(set(found)) == columns and all(found):
            return found
    return []


def _first_lines(path: Path, encoding: str, skip: int) -> list[str]:
    """Return the first lines of a table that are not empty, at most ``DIVIDED_LINES``, after ``skip`` lines.

    Raises DataError for a table without rows, or with more than ``COLUMNS_MAX`` columns, for which the sniffer would
    take hours.
    """
    with path.open(encoding=encoding, newline="\n") as file:
        lines = list(islice((line for line in islice(file, skip, None) if line.strip()), DIVIDED_LINES))
    if len(lines) < 2:
        raise DataError(f"{path} holds no samples: it needs rows below the names of its columns.")
    columns = 1 + max(lines[0].count(sign) for sign in DELIMITERS)
    if columns > COLUMNS_MAX:
        raise too_wide(columns, COLUMNS_MAX, str(path))
    return lines


def too_wide(columns: int, most: int, where: str) -> DataError:
    """Return the error for a table with more than ``most`` columns, in which each row is probably a whole window."""
    return DataError(
        f"{where} has {columns:,} columns, more than {most:,}: if each row is a whole window, one column a sample, "
        "bring it as an array X of a .npz file; else leave columns out."
    )


def _write_head(path: Path, encoding: str, skip: int, head: Path, *, aligned: bool) -> None:
    """Write the first lines of the table, after ``skip`` lines, into the file ``head`` as UTF-8."""
    left = HEAD_MAX
    with path.open(encoding=encoding, newline="\n") as file, head.open("w", encoding="utf-8", newline="\n") as out:
        for line in islice(file, skip, skip + SNIFFED_ROWS):
            left -= out.write(_squeezed(line) if aligned else line)
            if left < 0:
                break


def _sniffed(head: Path, options: str) -> tuple[str, str, int, bool] | None:
    """Return the delimiter, quote, number of columns, and whether a first line names them; None if DuckDB finds no
    table."""
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

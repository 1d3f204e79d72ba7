"""A table of text, read a part at a time, with the types that reading it in one piece gives.

Reading in parts needs a look before: a column of whole numbers may hold a fraction in the last line, and one of numbers
a word. The look takes what a part says of each column; two parts together say what their lines would.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, NamedTuple

import polars as pl
from polars.datatypes import DataType, DataTypeClass

from training.data.errors import DataError
from training.data.ingest.dialect import (
    Cells,
    Dialect,
    ReadableBytes,
    as_number,
    check_points,
    has_words,
    numbers_with_points,
    tidied,
)
from training.data.scratch import WorkingMemory

PolarsType = DataType | DataTypeClass
QUOTED_MAX = 1 << 26  # bytes of one row: a quote that never ends would take the rest of the table
HEAD = 1000  # cells of a part that are looked at for words
TYPES_TIMES = 4  # the size of text that finding its types takes


class Types(NamedTuple):
    """The type of each column, and the number of rows; columns that are empty, and such as surely hold no numbers."""

    of: dict[str, PolarsType]
    rows: int
    empty: set[str]
    words: set[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A table of text in UTF-8. ``names`` are its columns', tidied; ``as_text`` stay as they are written."""

    path: Path  # as the user knows it
    file: ReadableBytes
    dialect: Dialect
    room: WorkingMemory
    as_text: Collection[str] = ()
    decimal: str | None = None  # the sign before decimals, where the user says it

    @property
    def names(self) -> list[str]:
        """The names of all columns, in their order."""
        with self.file.open() as file:
            head = self._head(file)
            first = head if not self.dialect.names else next(self._blocks(file), b"")
        return list(self.dialect.names) or tidied(self._csv(first, n_rows=0, infer_schema=False).columns)

    def parts(self, types: Mapping[str, PolarsType] | None, say: str = "") -> Iterator[pl.DataFrame]:
        """The rows, some at a time, without empty lines; ``types`` None: all as they are written."""
        names, size = self.names, self.file.size
        with self.file.open() as file:
            head = self._head(file)
            for block in self._blocks(file):
                yield self._part(head + block, names, types)
                if say:
                    self.room.progress(say, file.tell() / max(1, size))

    def types(self, say: str) -> Types:
        """Find the type of each column."""
        known: dict[str, PolarsType] = dict.fromkeys(self.as_text, pl.String)
        words: set[str] = set(self.as_text)
        names, rows, filled = self.names, 0, set()
        size = self.file.size
        with self.file.open() as file:
            head = self._head(file)
            for block in self._blocks(file):
                try:
                    part = self._part(head + block, names, known, infer=set(known) < set(names))
                except pl.exceptions.PolarsError:  # a cell that is of another type
                    part = self._part(head + block, names, dict.fromkeys(self.as_text, pl.String), infer=True)
                rows += part.height
                here = [name for name in names if part[name].null_count() < part.height]
                filled.update(here)
                for name in here:
                    known[name] = _common(known.get(name), part[name].dtype)
                    if part[name].dtype == pl.String and name not in words and has_words(part[name].head(HEAD)):
                        words.add(name)
                self.room.progress(say, file.tell() / max(1, size))
        return Types({name: known.get(name, pl.String) for name in names}, rows, set(names) - filled, words)

    def _part(
        self, text: bytes, names: Sequence[str], types: Mapping[str, PolarsType] | None, *, infer: bool = False
    ) -> pl.DataFrame:
        found = self._csv(text, n_rows=0, infer_schema=False).columns
        known = types or {}
        said = {one: known[name] for one, name in zip(found, names, strict=True) if name in known}
        part = self._csv(text, infer_schema=infer, infer_schema_length=None, schema_overrides=said)
        part.columns = list(names)
        return part.filter(~pl.all_horizontal(pl.all().is_null()))  # an empty line is no row

    def _csv(self, text: bytes, **options: object) -> pl.DataFrame:
        return pl.read_csv(
            BytesIO(text),
            has_header=not self.dialect.names,
            separator=self.dialect.delimiter,
            quote_char=self.dialect.quote,
            **options,  # type: ignore[arg-type]
        )

    def _head(self, file: BinaryIO) -> bytes:
        """Skip what stands before the table, and read the names of its columns."""
        for _ in range(self.dialect.skip):
            file.readline()
        head = b""
        while not self.dialect.names and (line := file.readline()):
            head += line
            if head.count(self._quote) % 2 == 0 and head.strip():
                break
        return head

    def _blocks(self, file: BinaryIO) -> Iterator[bytes]:
        return whole_rows(file, max(1, self.room.part_bytes // TYPES_TIMES), self._quote, str(self.path))

    @property
    def _quote(self) -> bytes:
        return self.dialect.quote.encode()


def whole_rows(file: BinaryIO, size: int, quote: bytes, where: str) -> Iterator[bytes]:
    """Split the rest of a file at ends of lines that are not inside of quotes, into blocks of about ``size`` bytes.

    Raises DataError for a quote that never ends.
    """
    rest = b""
    while block := file.read(size):
        data = rest + block
        cut, quotes = len(data), data.count(quote)
        while (end := data.rfind(b"\n", 0, cut)) >= 0:
            quotes -= data.count(quote, end, cut)
            cut = end
            if quotes % 2 == 0:
                break
        rest = data[end + 1 :]
        if end >= 0:
            yield data[: end + 1]
        elif len(rest) > max(QUOTED_MAX, 2 * size):
            raise DataError(
                f"{where} has a quote that never ends: take it out, or double it where it belongs to a cell."
            )
    if rest:
        yield rest


def has_changed(path: Path) -> DataError:
    return DataError(f"{path} changed while it was read: wait for its recorder to end, or bring a copy.")


def _common(one: PolarsType | None, other: PolarsType) -> PolarsType:
    """The type of a column of which two parts have these types."""
    if one is None or one == other:
        return other
    if one.is_numeric() and other.is_numeric():
        return pl.Float64 if pl.Float64 in (one, other) else pl.Int128
    return pl.String


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """A table of text as it is to be read: the types, and what makes numbers of text."""

    text: Text
    names: tuple[str, ...]  # of the columns that are read
    types: Mapping[str, PolarsType] | None  # None: all as they are written
    written: tuple[str, ...]  # columns of text, before numbers were made of it
    numbers: Mapping[str, pl.Expr] = field(default_factory=dict)
    rows: int = 0
    layout: str = ""

    def parts(self) -> Iterator[pl.DataFrame]:
        """The rows, some at a time. Raises DataError."""
        at = 0
        for part in self.text.parts(self.types, "reading"):
            _check_header(self.text.path, part.select(self.written), at)
            at += part.height
            if at > self.rows:
                raise has_changed(self.text.path)
            yield part.with_columns(expression.alias(name) for name, expression in self.numbers.items()).select(
                self.names
            )


def looked_at(text: Text, choose: Callable[[Sequence[str]], list[str]]) -> Looked:
    """Look at the whole table; ``choose`` names the columns that are read. Raises DataError, OSError, PolarsError."""
    types, rows, empty, words = text.types("looking at the columns")
    ends = "" in empty and rows > 0  # each line ends with a delimiter
    names = [name for name in choose(list(types)) if name or not ends]
    written = [name for name in names if types[name] == pl.String]
    measured = [name for name in names if name not in text.as_text]
    layout = [text.dialect.sentence()]
    numbers: Mapping[str, pl.Expr] = {}
    read: Mapping[str, PolarsType] | None = types
    cells = _cells(text, [name for name in measured if types[name] == pl.String and name not in words])
    if text.decimal == "," or any(one.has_decimal_commas for one in cells.values()):
        cells = _cells(text, measured)
        numbers, read = numbers_with_points(cells, text.dialect.delimiter, str(text.path), text.decimal), None
        layout.append("commas between thousands" if text.decimal == "." else "decimal commas")
    elif text.decimal is None and text.dialect.delimiter == ";":
        floats = _cells(text, [name for name in measured if types[name] == pl.Float64])
        check_points(cells | floats, str(text.path))
    numbers = {**{name: made for name, one in cells.items() if (made := as_number(name, one)) is not None}, **numbers}
    return Looked(
        text=text,
        names=tuple(names),
        types=read,
        written=tuple(written),
        numbers=numbers,
        rows=rows,
        layout=", ".join(part for part in layout if part),
    )


def _cells(text: Text, names: Sequence[str]) -> dict[str, Cells]:
    found = {name: Cells() for name in names}
    for part in text.parts(None, "looking at cells of text") if names else ():
        for name, one in found.items():
            one.add(part[name])
    return found


def _check_header(path: Path, rows: pl.DataFrame, at: int) -> None:
    """Refuse files that were put one behind the other with their headers. Raises DataError."""
    if not rows.width:
        return
    again = rows.select(pl.all_horizontal(pl.col(name) == name for name in rows.columns)).to_series().arg_true()
    if again.len():
        raise DataError(
            f"Row {at + int(again[0]) + 1} of {path} repeats the names of the columns: take that line out, and give "
            "each part an episode of its own if the parts are recordings."
        )

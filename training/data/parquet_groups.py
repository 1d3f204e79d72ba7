"""Write a Parquet file one row group at a time.

Polars' streaming writer keeps several groups in memory at once. Until the file ends, Polars also keeps about 4 KiB for
each column of each group: 250 MiB for 64 groups of a thousand columns. So this module lets Polars write each group as a
separate file in memory, copies the pages, and writes one footer for all groups in Thrift's compact protocol
(https://parquet.apache.org/docs/file-format/metadata/, https://github.com/apache/thrift, doc/specs). Only the footer
contains file positions: equal pages have equal bytes wherever they are, so that the store recognises equal chunks. The
optional page index and the copies of column metadata also contain positions, and are left out.
"""

import io
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import polars as pl

MAGIC = b"PAR1"
TAIL = 8  # bytes behind the footer: its length, and MAGIC

# Types of Thrift, as far as a footer holds them.
STOP, TRUE, FALSE, BYTE, I16, I32, I64, _, BINARY, LIST, _, _, STRUCT = range(13)

# Fields of Parquet's footer, by their numbers in its definition.
SCHEMA, NUM_ROWS, ROW_GROUPS = 2, 3, 4  # of FileMetaData
COLUMNS, GROUP_OFFSET, ORDINAL = 1, 5, 7  # of RowGroup
CHUNK_OFFSET, META_DATA, PAGE_INDEX = 2, 3, (4, 5, 6, 7)  # of ColumnChunk
COMPRESSED_SIZE, DATA_PAGES, DICTIONARY_PAGE = 7, 9, 11  # of ColumnMetaData

# Type and value of each field, by its number; the value of a list is its values' type, and they.
Struct = dict[int, tuple[int, Any]]


def write_groups(path: Path, tables: Iterable[pl.DataFrame]) -> None:
    """Write tables into a Parquet file, each as a row group, uncompressed and without statistics.

    Raises ValueError if there is no table, or the tables' columns differ.
    """
    first: Struct = {}
    groups: list[bytes] = []
    rows = 0
    with path.open("wb") as file:
        file.write(MAGIC)
        for table in tables:
            buffer = io.BytesIO()
            table.write_parquet(buffer, compression="uncompressed", statistics=False, row_group_size=table.height)
            with buffer.getbuffer() as whole:
                size = int.from_bytes(whole[-TAIL:-4], "little")
                footer = ThriftReader(bytes(whole[-TAIL - size : -TAIL])).struct()
                first = first or footer
                if footer[SCHEMA] != first[SCHEMA]:
                    raise ValueError("the columns of the tables differ")
                for group in footer[ROW_GROUPS][1][1]:
                    _copy(group, whole, file, number=len(groups))
                    groups.append(_struct(group))
            rows += table.height
        if not first:
            raise ValueError("there is no table to write")
        first[NUM_ROWS] = (I64, rows)
        first[ROW_GROUPS] = (LIST, (STRUCT, groups))
        last = _struct(first)
        file.write(last + len(last).to_bytes(4, "little") + MAGIC)


def _copy(group: Struct, whole: memoryview, file: IO[bytes], *, number: int) -> None:
    """Append the pages of a row group, from the file content ``whole``, to ``file``; update the offsets and ordinal in
    the group's metadata ``group``."""
    group[ORDINAL] = (I16, number)
    group[GROUP_OFFSET] = (I64, file.tell())
    for chunk in group[COLUMNS][1][1]:
        for one in PAGE_INDEX:
            chunk.pop(one, None)
        chunk[CHUNK_OFFSET] = (I64, 0)  # no copy of its metadata lies outside of the footer
        meta = chunk[META_DATA][1]
        places = [one for one in (DICTIONARY_PAGE, DATA_PAGES) if one in meta]
        begin, to = min(meta[one][1] for one in places), file.tell()
        with whole[begin : begin + meta[COMPRESSED_SIZE][1]] as pages:
            file.write(pages)
        for one in places:
            meta[one] = (I64, meta[one][1] - begin + to)


class ThriftReader:
    """Reads the bytes ``content``, written in Thrift's compact protocol, from the beginning on."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0

    def struct(self) -> Struct:
        """Read a structure, and return the type and value of each field by the field's number."""
        fields: Struct = {}
        number = 0
        while (head := self._byte()) != STOP:
            number = number + (head >> 4) if head >> 4 else self._signed()
            kind = head & 15
            if I16 <= kind <= I64:
                fields[number] = (kind, self._signed())
            else:
                fields[number] = (kind, kind == TRUE if kind in (TRUE, FALSE) else self._value(kind))
        return fields

    def _value(self, kind: int) -> Any:
        if kind == STRUCT:
            return self.struct()
        if kind == BINARY:
            size = self._unsigned()
            self._at += size
            return self._content[self._at - size : self._at]
        if kind == LIST:
            head = self._byte()
            size, each = head >> 4 if head >> 4 < 15 else self._unsigned(), head & 15
            return each, [self._value(each) for _ in range(size)]
        if kind in (I16, I32, I64):
            return self._signed()
        if kind in (BYTE, TRUE, FALSE):  # within a list a truth has a byte of its own
            return self._byte()
        raise ValueError(f"the footer has a value of unknown type {kind}")

    def _byte(self) -> int:
        self._at += 1
        return self._content[self._at - 1]

    def _unsigned(self) -> int:
        content, at = self._content, self._at
        value, shift = content[at] & 127, 7
        while content[at] > 127:
            at += 1
            value |= (content[at] & 127) << shift
            shift += 7
        self._at = at + 1
        return value

    def _signed(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)


def _struct(fields: Struct) -> bytes:
    """Return the bytes of a structure with these fields; a value of type structure that is already bytes is copied
    unchanged."""
    out = bytearray()
    last = 0
    for number, (kind, value) in sorted(fields.items()):
        written = (TRUE if value else FALSE) if kind in (TRUE, FALSE) else kind
        if 0 < number - last < 16:
            out.append((number - last) << 4 | written)
        else:
            out.append(written)
            out += _signed(number)
        if I16 <= kind <= I64:
            out += _signed(value)
        elif kind not in (TRUE, FALSE):
            out += _value(kind, value)
        last = number
    out.append(STOP)
    return bytes(out)


def _value(kind: int, value: Any) -> bytes:
    if kind == STRUCT:
        return value if isinstance(value, bytes) else _struct(value)
    if kind == BINARY:
        return _unsigned(len(value)) + bytes(value)
    if kind == LIST:
        each, values = value
        size = len(values)
        head = bytes([size << 4 | each]) if size < 15 else bytes([15 << 4 | each]) + _unsigned(size)
        return head + b"".join([_value(each, one) for one in values])
    if kind in (I16, I32, I64):
        return _signed(value)
    return bytes([value])


_SMALL = [bytes([value]) for value in range(128)]


def _unsigned(value: int) -> bytes:
    if value < 128:
        return _SMALL[value]
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _signed(value: int) -> bytes:
    return _unsigned(value << 1 if value >= 0 else (-value << 1) - 1)

"""The table of programs in a recording: which programs ran on the host, and what each of them used.

``programs.parquet`` has a row for each second and program that is among the first eight by processor time, bytes read,
bytes written, processes started or sockets, and one row for the rest together. It holds no arguments, no paths and no
names of files.
"""

import io
from typing import NamedTuple

import polars as pl

MOST_OF_EACH = 8
# A recording with more programs than this counts further ones among the rest.
PROGRAMS_MAX = 4096


class Program(NamedTuple):
    """The marks that tell one program from another.

    All texts are printable and at most 64 characters long; each is empty if it is not known.

    ``path`` is a digest of the file's path, keyed by a secret of the host, so that it is of use on this host only.
    ``unit`` is the service unit, container or control group, ``kernel`` for kernel threads. ``parent`` is the parent
    program's name. ``user`` is root, service, you or other-1, other-2, …, or a name if the recorder was asked for
    names. ``session`` counts the sessions of processes in the order in which the recorder saw them, from 1.
    ``young`` is 1 if the program's file is younger than the host's reference, 0 if not, -1 if that is not known.
    ``place`` is home, temporary or memory for a file in such a place, and empty for any other.
    """

    name: str
    path: str = ""
    unit: str = ""
    parent: str = ""
    user: str = ""
    session: int = 0
    young: int = -1
    place: str = ""


REST = Program("")  # all programs that have no row of their own in that second

LEVELS = {
    "programs": "1",  # 1, and the number of the others in the row of the rest
    "processes": "1",
    "threads": "1",
    "memory": "B",  # resident
    "sockets": "1",  # when they were last counted
}
USED = {
    "cpu": "s",
    "ended_cpu": "s",  # of processes that the program waited for, as far as they were not seen themselves
    "ended_faults": "1",  # page faults of these
    "started": "1",  # processes that one of the program's started
    "read": "B",  # asked for, whether or not it reached a disk
    "write": "B",
    "reads": "1",  # calls
    "writes": "1",
    "disk_read": "B",
    "disk_write": "B",
    "switches": "1",  # context switches of each process's first thread
}
AMOUNTS = {**LEVELS, **USED}

SCHEMA: dict[str, pl.DataType] = {
    "t": pl.Float64(),
    **{name: pl.Int32() if kind is int else pl.String() for name, kind in Program.__annotations__.items()},
    **dict.fromkeys(AMOUNTS, pl.Float64()),
}


def write_table(frame: pl.DataFrame) -> bytes:
    """Return the bytes of ``programs.parquet``; ``frame`` has the columns of ``SCHEMA``."""
    buffer = io.BytesIO()
    frame.select(pl.col(name).cast(kind) for name, kind in SCHEMA.items()).write_parquet(
        buffer, compression="zstd", compression_level=15, statistics=False
    )
    return buffer.getvalue()


def read_table(data: bytes) -> pl.DataFrame:
    """Return the table of programs, given its file's bytes. Raises polars' errors for data that are no such table."""
    return typed(pl.read_parquet(io.BytesIO(data)))


def typed(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the columns of ``SCHEMA`` in its order and with its types; raise polars' errors if that cannot be."""
    return frame.select(pl.col(name).cast(kind) for name, kind in SCHEMA.items())

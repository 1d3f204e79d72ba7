"""The table ``RECORDERS`` of recorders that ingest reads: each one's flag, options, and function that reads it.

The command line, its messages and the choice of a reader follow from this table.
"""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from training.data.ingest.recorders.pcp import read_pcp
from training.data.ingest.recorders.perfmon import read_perfmon
from training.data.ingest.recorders.prometheus import RangeQuery, read_prometheus
from training.data.ingest.recorders.prometheus_http import is_address
from training.data.ingest.recorders.recorded import RecordedTable
from training.data.ingest.recorders.sysstat import read_sysstat

OF_SERVERS = ("since", "until", "query", "match", "every_s")  # options of recorders, as the parser stores them

Say = Callable[[str], None]
Read = Callable[[Sequence[str], RangeQuery, Say], RecordedTable]


class Recorder(NamedTuple):
    """One recorder that ingest reads: its flag, the function ``read`` that reads the data, and the function ``options``
    that returns the options which a source heeds."""

    name: str
    metavar: str
    help: str
    read: Read  # raises DataError
    several: bool = True  # the flag may be repeated
    options: Callable[[str], Collection[str]] = lambda _source: ()  # those of OF_SERVERS that a source heeds

    @property
    def flag(self) -> str:
        """The flag of the command line that chooses this recorder."""
        return f"--{self.name}"


def _of_files(read: Callable[..., RecordedTable], *options: str) -> Read:
    def read_all(sources: Sequence[str], asked: RangeQuery, say: Say) -> RecordedTable:
        say(f"reading {len(sources)} file{'s' * (len(sources) > 1)} …")
        return read([Path(source) for source in sources], *(getattr(asked, option) for option in options))

    return read_all


RECORDERS = (
    Recorder(
        name="pcp",
        metavar="ARCHIVE",
        help="archive of Performance Co-Pilot to read instead of a file; may be repeated",
        read=_of_files(read_pcp, "every_s"),
        options=lambda _source: ("every_s",),
    ),
    Recorder(
        name="prometheus",
        metavar="URL|FILE",
        help="server to ask for samples, or a file of its answers to range queries",
        read=lambda sources, asked, say: read_prometheus(sources[0], asked, say),
        several=False,
        options=lambda source: OF_SERVERS if is_address(source) else (),
    ),
    Recorder(
        name="sysstat",
        metavar="FILE",
        help="file of /var/log/sysstat, or what sadf -j writes; may be repeated",
        read=_of_files(read_sysstat),
    ),
    Recorder(
        name="perfmon",
        metavar="FILE",
        help="CSV that Windows' relog writes; may be repeated",
        read=_of_files(read_perfmon),
    ),
)

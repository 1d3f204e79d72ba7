"""The table "understood": lines of text that say how the source of a data set was read, and what was left out.

An ingest and a build show the table to the user. The table is stored in the metadata of the validation table's Parquet
file, and a report can begin with the table. Programs decide by the table only with --like: the numbers that count as
missing in the older data set count as missing in the new one.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import polars as pl

from training.data.coded import Coded
from training.data.errors import DataError
from training.data.values import Json, JsonDict, Names
from training.printable import first_line, some

KEY = "understood_v1"  # of the Parquet file's metadata
SHOWN = 12  # names in one line
EPOCH_FROM, EPOCH_TO = 1e9, 4.1e9  # 2001 to 2099: seconds that read as dates
ROUNDED = 1e-5  # of a time that was reckoned from a rate
NO_WINDOW = "it is shorter than a window"


class Understood(msgspec.Struct, frozen=True, kw_only=True):
    """The record of how each part of the source of a data set was read.

    Times are in seconds; ``sample_hz``, ``window_s`` and ``stride_s`` are null if unknown.

    ``roles`` has the meaning of each column (or array) that is no channel. ``hosts`` and ``classes`` have the number of
    windows of each, also if 0; ``recordings_of`` has, after an ingest, the number of recordings of each host. ``gaps``
    is the number of gaps inside recordings, and ``missing`` is the number of values that the source lacks, also outside
    of windows. For builds and NumPy archives, ``gaps`` and ``missing`` are 0. ``recordings`` is the number of
    recordings that could give windows; ``without_window`` has the number of those that gave none, by reason.
    ``left_out`` and ``notes`` are lines of text. ``stand_ins`` has the arguments of --missing; unset if there are none.
    """

    source: str
    roles: dict[str, str] = {}
    channels: tuple[str, ...] = ()
    oracle_only: tuple[str, ...] = ()
    hosts: dict[str, int] = {}
    recordings_of: dict[str, int] = {}
    recordings: int = 0
    without_window: dict[str, int] = {}
    baselines: int = 0
    quarantined: int = 0
    classes: dict[str, int] = {}
    benign: tuple[str, ...] = ()
    benign_why: str = ""
    window_samples: int = 0
    sample_hz: float | None = None
    window_s: float | None = None
    stride_s: float | None = None
    rate_why: str = ""
    span: tuple[float, float] | None = None
    clock: str = ""
    gaps: int = 0
    missing: int = 0
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    stand_ins: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET

    def lines(self) -> list[str]:
        """Return the table as lines of text, each of which begins with its subject."""
        hidden = f" (oracle only: {some(self.oracle_only, SHOWN)})" if self.oracle_only else ""
        rows = [
            ("benign", f"{', '.join(self.benign) or 'no class'}{f' ({self.benign_why})' if self.benign_why else ''}"),
            ("read", self.source),
            ("columns", ", ".join(f"{name}: {role}" for name, role in self.roles.items())),
            ("channels", f"{len(self.channels)}: {some(self.channels, SHOWN)}{hidden}"),
            ("hosts", self._hosts()),
            ("recordings", self._recordings()),
            ("classes", _counted(self.classes)),
            ("rate", self._rate()),
            ("clock", self._clock()),
            ("missing", f"{self.missing:,} values" if self.missing else ""),
            *(("left out", text) for text in self.left_out),
            *(("note", text) for text in self.notes),
        ]
        return [f"{name:11} {text}" for name, text in rows if text]

    def _hosts(self) -> str:
        if not self.recordings_of:
            return _counted(self.hosts)
        shown = [
            f"{name} {count:,} windows of {self.recordings_of.get(name, 0):,}" for name, count in self.hosts.items()
        ]
        return some(shown, SHOWN) + " recordings"

    def _recordings(self) -> str:
        parts = [f"{self.recordings:,}"]
        parts += [f"{n:,} of them without a window: {why}" for why, n in self.without_window.items()]
        if self.baselines:
            parts.append(f"{self.baselines:,} references beside them")
        if self.quarantined:
            parts.append(f"{self.quarantined:,} quarantined")
        return ", ".join(parts)

    def _rate(self) -> str:
        known = "unknown" if self.sample_hz is None else f"{self.sample_hz:g} Hz"
        why = f" ({self.rate_why})" if self.rate_why else ""
        length = "" if self.window_s is None else f" = {_seconds(self.window_s)} s"
        step = "" if self.stride_s is None else f", one each {_seconds(self.stride_s)} s"
        gaps = f"; {self.gaps:,} gaps" if self.gaps else ""
        samples = f"{self.window_samples} sample{'s' * (self.window_samples != 1)}"
        return f"{known}{why}; windows of {samples}{length}{step}{gaps}"

    def _clock(self) -> str:
        if self.span is None:
            return self.clock or "none"
        first, last = self.span
        shown = f"{first:,.10g} to {_seconds(last, self.window_s or 0.0)} s"
        if EPOCH_FROM <= first <= last <= EPOCH_TO:
            shown += f" = {_date(first)} to {_date(last)} UTC, if they count from 1970"
        return f"{self.clock}: {shown}" if self.clock else shown


def read(validation: Path) -> Understood | None:
    """Return the table that is stored in the file of a validation table; None if the file has none.

    Raises DataError if the file cannot be read.
    """
    try:
        text = pl.read_parquet_metadata(validation).get(KEY)
        return None if text is None else msgspec.json.decode(text, type=Understood)
    except (OSError, pl.exceptions.PolarsError, msgspec.DecodeError) as error:
        raise DataError(f"The validation table {validation} cannot be read ({first_line(error)}).") from None


def metadata(understood: Understood | None) -> dict[str, str]:
    """Return the table as metadata for the validation table's Parquet file; an empty dictionary for None."""
    return {} if understood is None else {KEY: msgspec.json.encode(understood).decode()}


def recordings_of(rows: Sequence[Json]) -> JsonDict:
    """Return the fields of ``Understood`` about recordings, computed from the rows of the validation table."""
    usable = [row for row in rows if row["ok"] and not row["baseline"]]
    empty = Counter(" ".join(row["reasons"]) or NO_WINDOW for row in usable if not row["windows"])
    return {
        "recordings": len(usable),
        "without_window": dict(sorted(empty.items())),
        "baselines": sum(bool(row["baseline"]) for row in rows),
        "quarantined": sum(not row["ok"] for row in rows),
    }


def counts_of(values: Names | Coded, names: Sequence[str]) -> dict[str, int]:
    """Return how often each of ``names`` occurs in ``values``, also if 0 times."""
    of = Coded.of(values)
    known = dict(zip(of.names.tolist(), np.bincount(of.codes).tolist(), strict=True))
    return {name: known.get(name, 0) for name in names}


def _counted(counts: Mapping[str, int]) -> str:
    return some([f"{name} {count:,}" for name, count in counts.items()], SHOWN)


def _seconds(value: float, scale: float | None = None) -> str:
    """Return a time as text without the rounding error of a six-digit rate: 480, not 479.999.

    ``scale`` is the length of time from which the size of that error follows; by default ``value`` itself.
    """
    whole = round(value)
    if abs(value - whole) <= ROUNDED * (value if scale is None else scale):
        value = whole
    return f"{value:,.10g}" if scale is not None else f"{value:,.6g}"


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")

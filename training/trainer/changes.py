"""Report "this host has changed since 13:40": apply the rule of `training.trainer.shift_test` to a growing record.

A host's windows come in one by one. About a minute of windows makes a *stretch*, which keeps the means of the windows'
measures. The record of stretches is first tested after ``FIRST_LOOK`` of them, and again whenever one in ``PACE`` of
those kept is new. The n-th test uses the error rate divided by n (n + 1). So over all tests at most about one unchanged
host in a hundred is reported as changed. A reported change stays, and no further test is made, until a person confirms
it or brings a new reference. A `Record` never affects a score, a threshold or an incident.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from math import ceil
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.data.rows import Rows
from training.data.schema import FeatureSchema
from training.data.values import Floats, Ints, JsonDict
from training.trainer import shift_test

Values = NDArray[np.floating[Any]]

STRETCH_S = 60.0
MEASURES = {"mean": "level", "std": "spread"}
SHOWN = 3  # channels of a change
LOOK = "An attack that stays looks like this, and so does new work: look at the host."
MOST = 240  # stretches that are kept of a host, and of its reference: the latest ones
FIRST_LOOK = 30  # stretches: fewer do not show how much a stretch resembles those before it
PACE = 5  # of the record's length: a part of it must be new before it is looked at again
EPOCH_LIKE = 1e8  # seconds: smaller ones are no dates


@dataclass(frozen=True, slots=True)
class Moved:
    """A channel whose level or spread (``measure``) shifted: the medians before and after, and the time of the shift.

    The medians are of values as models get them, compressed or normalised by the schema, so often not in the channel's
    unit.
    """

    channel: str
    measure: str
    before: float
    after: float
    since: float | None  # seconds, as the data count them; None: their times are no seconds
    p: float

    def __str__(self) -> str:
        spread = "" if self.measure == "level" else "spread of "
        return f"{spread}{self.channel} {self.before:.3g} → {self.after:.3g}"

    def to_dict(self) -> JsonDict:
        """Return the fields as JSON values."""
        return asdict(self)


def in_words(moved: Sequence[Moved]) -> str:
    """Describe the first ``SHOWN`` channels, such as ``forks 0.21 → 3.4; spread of load_1m 0.4 → 1.1``; count the
    others."""
    more = f" and {len(moved) - SHOWN} more" if len(moved) > SHOWN else ""
    return "; ".join(map(str, moved[:SHOWN])) + more


def when(seconds: float | None, start: int | None) -> str:
    """Format a moment for a person: in UTC for seconds since 1970, else as the data's own seconds.

    If ``seconds`` is None, return a phrase with the number of the window ``start``; the phrase counts from 1.
    """
    if seconds is None:
        return f"its window {(start or 0) + 1}"
    if seconds < EPOCH_LIKE:
        return f"second {seconds:.0f}"
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def in_order(rows: Rows) -> Ints:
    """Return the numbers of all windows: recordings in the order in which they begin, and each one's windows in time
    order."""
    _, recording = np.unique(rows.recording, return_inverse=True)
    begins = np.full(recording.max(initial=-1) + 1, np.inf)
    np.minimum.at(begins, recording, rows.t_start)
    return np.lexsort((rows.t_start, recording, begins[recording]))


class Measures(NamedTuple):
    """The measures (M) of a schema: level and spread of its channels; and how many windows make a stretch."""

    columns: tuple[int, ...]  # among the features
    channels: tuple[str, ...]
    kinds: tuple[str, ...]
    windows: int

    @classmethod
    def of(cls, schema: FeatureSchema) -> Measures:
        chosen = [(n, spec) for n, spec in enumerate(schema.features) if spec.statistic in MEASURES]
        return cls(
            tuple(number for number, _ in chosen),
            tuple(spec.channel for _, spec in chosen),
            tuple(MEASURES[spec.statistic] for _, spec in chosen),
            max(round(STRETCH_S / schema.stride_s), ceil(schema.window_s / schema.stride_s - 1e-9)),
        )

    def take(self, features: Values) -> Values:
        """Return the measures (N, M) of windows with features (N, F)."""
        return features[:, list(self.columns)]

    def usual(self, features: Values) -> Floats:
        """Return (R, M) the means of the M measures in each of the R stretches of a reference, from its windows'
        features."""
        record = Record()
        for row in self.take(features):
            record.grow("", None, row, self.windows)
        record.end(self.windows)
        return record.means(self)

    def moved(self, one: shift_test.Shift, since: float | None) -> Moved:
        before, after = (float(f"{value:.6g}") for value in (one.before, one.after))
        return Moved(self.channels[one.measure], self.kinds[one.measure], before, after, since, one.p)


@dataclass(frozen=True, slots=True)
class ClosedStretch:
    """A closed stretch, mostly about a minute of one recording: start, number of its first window, and means of its
    measures."""

    began: float | None
    window: int
    piece: int
    means: bytes  # (M,) of float32


@dataclass(slots=True)
class OpenStretch:
    """A stretch that is still being filled with windows."""

    began: float | None
    window: int
    windows: int
    total: bytes  # (M,) of float64, and how many windows have a value
    there: bytes


@dataclass(frozen=True, slots=True)
class ToldChange:
    """A reported change: ``at`` is the end of the host's last window when the change was reported, ``window`` the
    number of the change's first window.

    The number ``window`` counts the host's windows from 0, and again from 0 after a new reference recording. The number
    is 0 if the host differs from its reference from the beginning.
    """

    at: float | None
    since: float | None
    window: int
    moved: tuple[Moved, ...]

    @property
    def words(self) -> str:
        since = f"has changed since {when(self.since, self.window)}" if self.window else "is unlike its reference"
        return f"{since}: {in_words(self.moved)}"


@dataclass(slots=True)
class Record:
    """A host's stretches, those of its reference, and the reported change, if any; stored in a state file between calls
    of a program."""

    usual: list[bytes] = field(default_factory=list)
    reference: str = ""  # digest of the reference: another one begins a new record
    stretches: list[ClosedStretch] = field(default_factory=list)
    closed: int = 0  # stretches so far, of which the latest are kept
    windows: int = 0
    piece: str = ""
    pieces: int = 0
    growing: OpenStretch | None = None
    first_of_piece: bool = True
    looks: int = 0
    due: int = FIRST_LOOK  # stretches, at which it is looked at next
    told: ToldChange | None = None

    def beside(self, usual: Values) -> Record:
        """Return the record for a reference with stretches (R, M): this one if the reference is equal or missing (R =
        0), else a new one."""
        kept = [_packed(row) for row in usual[-MOST:]]
        digest = hashlib.sha256(b"".join(kept)).hexdigest()[:16] if kept else ""
        return self if digest in ("", self.reference) else Record(usual=kept, reference=digest)

    def take(self, piece: str, began: float | None, ended: float | None, values: Values, measures: Measures) -> bool:
        """Add the next window's measures (M,) of the recording ``piece``; return True if this window brings a new
        change to be reported."""
        return self.grow(piece, began, values, measures.windows) and self._look(ended, measures)

    def grow(self, piece: str, began: float | None, values: Values, windows: int) -> bool:
        """Add the next window's measures (M,) to the open stretch; return True if a stretch was closed.

        A stretch is closed when it has ``windows`` windows. If another recording ``piece`` begins, ``end`` decides
        first whether the open stretch is kept as it is.
        """
        closed = False
        if piece != self.piece:
            closed = self.end(windows)
            self.piece, self.pieces, self.first_of_piece = piece, self.pieces + 1, True
        one = self._add(began, values)
        if one.windows == windows:
            self._close(one)
        return closed or one.windows == windows

    def means(self, measures: Measures) -> Floats:
        """Return (N, M) the means of the measures in the closed stretches."""
        return _unpacked([one.means for one in self.stretches], measures)

    def confirmed(self) -> Record:
        """Return a record whose reference is the host's behaviour since the change; this one if no change was
        reported."""
        if self.told is None:
            return self
        usual = [one.means for one in self.stretches if one.window >= self.told.window]
        return Record(usual=usual, reference=self.reference, windows=self.windows, piece=self.piece, pieces=self.pieces)

    def _add(self, began: float | None, values: Values) -> OpenStretch:
        there = np.isfinite(values)
        if self.growing is None:
            nothing = np.zeros(values.size).tobytes()
            self.growing = OpenStretch(began, self.windows, 0, nothing, nothing)
        one = self.growing
        one.total = (np.frombuffer(one.total) + np.where(there, values, 0.0)).tobytes()
        one.there = (np.frombuffer(one.there) + there).tobytes()
        one.windows += 1
        self.windows += 1
        return one

    def end(self, windows: int) -> bool:
        """End a recording: keep its open stretch if more than half full, or if the recording has no other.

        Return True if a stretch was kept.
        """
        one, self.growing = self.growing, None
        if one is None or not (self.first_of_piece or 2 * one.windows > windows):
            return False
        self._close(one)
        return True

    def _close(self, one: OpenStretch) -> None:
        self.growing = None
        total, there = np.frombuffer(one.total), np.frombuffer(one.there)
        means = np.divide(total, there, out=np.full(total.shape, np.nan), where=there > 0)
        self.stretches.append(ClosedStretch(one.began, one.window, self.pieces, _packed(means)))
        self.closed += 1
        self.first_of_piece = False

    def _look(self, at: float | None, measures: Measures) -> bool:
        del self.stretches[:-MOST]
        if self.told is not None or self.closed < self.due:
            return False
        self.due = self.closed + max(1, len(self.stretches) // PACE)
        series = self.series(_unpacked(self.usual, measures), measures)
        rate = shift_test.ERROR_RATE / ((self.looks + 1) * (self.looks + 2))
        if not shift_test.can_tell(series, error_rate=rate):
            return False
        self.looks += 1
        found = shift_test.find(series, error_rate=rate)
        if found:
            first = self.stretches[found[0].start]
            self.told = ToldChange(at, first.began, first.window, self.moved(found, measures))
        return bool(found)

    def series(self, usual: Floats, measures: Measures) -> shift_test.StretchSeries:
        """Return the closed stretches, with those of the reference, ``usual`` (R, M), for the test."""
        pieces = np.array([one.piece for one in self.stretches], int)
        return shift_test.StretchSeries(usual, self.means(measures), pieces)

    def moved(self, found: Sequence[shift_test.Shift], measures: Measures) -> tuple[Moved, ...]:
        """Return for each channel that shifted the change of its surest measure; ``found`` begins with the surest."""
        first: dict[str, Moved] = {}
        for one in found:
            moved = measures.moved(one, self.stretches[one.start].began)
            first.setdefault(moved.channel, moved)
        return tuple(first.values())


def _packed(means: Values) -> bytes:
    return np.asarray(means, "<f4").tobytes()


def _unpacked(rows: Sequence[bytes], measures: Measures) -> Floats:
    found = np.frombuffer(b"".join(rows), "<f4").astype(float)
    return found.reshape(len(rows), len(measures.columns))

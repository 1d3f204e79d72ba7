"""Scored windows: a model's scores, with what is known about each window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from training.data.rows import Rows
from training.data.values import Bools, Floats, Ints, JsonDict
from training.printable import some

BENIGN, MALICIOUS, LIKE = "benign", "malicious", "malicious-like"  # our words for the two kinds
NAMELESS = "unknown"  # the host of data that name none
SHOWN = 3  # names of classes in one pair of brackets


@dataclass(frozen=True)
class Classes:
    """The classes' names, in the order of their numbers, and which of them are benign.

    A window of any class that is not benign should raise an alarm. Without benign classes there are no alarms, and the
    model only predicts classes.
    """

    names: tuple[str, ...]
    benign: tuple[str, ...]

    def __post_init__(self) -> None:
        """Raise ValueError if a benign class is not one of the classes."""
        unknown = sorted(set(self.benign) - set(self.names))
        if unknown:
            raise ValueError(f"{unknown[0]!r} is named as benign, but is no class of the data")

    @classmethod
    def of(cls, label_map: Mapping[str, int], benign: Sequence[str]) -> Classes:
        """Build the classes from ``label_map``, which has a number, 0 to K-1 without gaps, for each name."""
        return cls(tuple(sorted(label_map, key=label_map.__getitem__)), tuple(benign))

    def __len__(self) -> int:
        return len(self.names)

    @property
    def malicious(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if name not in self.benign)

    def is_benign(self, y: Ints) -> Bools:
        """Return (N,) True for the windows of ``y`` (N,) whose class is benign."""
        return np.isin(y, [self.names.index(name) for name in self.benign])

    def in_order(self, y: Ints) -> Ints:
        """Renumber the classes ``y`` (N,): benign ones first, then by name. The result does not depend on the given
        numbering."""
        order = sorted(self.names, key=lambda name: (name not in self.benign, name))
        return np.array([order.index(name) for name in self.names], int)[y]

    def likeliest(self, proba: Floats) -> Ints:
        """Return (N,) the class with the highest of probabilities (N, K); among equals the first by `in_order`."""
        order = np.argsort(self.in_order(np.arange(len(self))))
        return np.asarray(order[proba[:, order].argmax(axis=1)], int)

    def said(self, proba: Floats, alarm: Bools | None) -> Ints:
        """Return (N,) the predicted class from probabilities (N, K).

        The predicted class is the likeliest malicious-like class if the window alarms, else the likeliest benign one.
        Without a threshold (``alarm`` is None), or if no class or every class is benign, the likeliest of all classes
        is predicted.
        """
        is_benign = self.is_benign(np.arange(len(self)))
        if alarm is None or is_benign.all() or not is_benign.any():
            return self.likeliest(proba)
        return self.likeliest(np.where(alarm[:, None] != is_benign, proba, -1.0))

    def alarm_score(self, proba: Floats) -> Floats:
        """Return (N,) 1 - P(benign) from probabilities (N, K).

        If no class is benign the score is 1 - P(class 0), which no figure uses for ranking.
        """
        benign = self.benign or self.names[:1]
        # Summing the others instead of 1 - P keeps the digits of probabilities close to zero.
        others = [k for k, name in enumerate(self.names) if name not in benign]
        return proba[:, others].sum(axis=1)

    def words(self) -> dict[str, str]:
        """Return the words "benign" and "malicious-like", each with the data set's own class names if they differ."""
        return {BENIGN: _beside(BENIGN, self.benign, BENIGN), MALICIOUS: _beside(LIKE, self.malicious, MALICIOUS)}

    def kinds(self) -> list[str]:
        """Return the names of the two kinds that an alarm separates, benign first; a kind with one class has that
        class's name."""
        pairs = ((self.benign, BENIGN), (self.malicious, LIKE))
        return [names[0] if len(names) == 1 else ours for names, ours in pairs]

    def to_dict(self) -> JsonDict:
        """Return JSON values for reports."""
        return {
            "names": list(self.names),
            "benign": list(self.benign),
            "malicious": list(self.malicious) if self.benign else [],
            "words": self.words() if self.benign else {},
        }


def _beside(ours: str, names: Sequence[str], plain: str) -> str:
    if tuple(names) in ((plain,), ()):
        return ours
    return f"{ours} (here: {some(sorted(names), SHOWN)})"  # no order decides a word


@dataclass(frozen=True)
class Scored:
    """Scores of N windows with the rows that are needed to judge them; the rows' labels are class numbers.

    ``score`` (N) is finite, and higher means more malicious-like; ``proba`` (N, K) holds class probabilities, or is
    None for an anomaly score, which predicts no classes.
    """

    rows: Rows
    score: Floats
    proba: Floats | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for shapes that disagree, and for scores that are not finite: a NaN would silently rank
        somewhere."""
        for values, dimensions in ((self.score, 1), (self.proba, 2)):
            if values is not None and (values.ndim != dimensions or len(values) != self.y.size):
                raise ValueError("a model must answer with one score, or one row of probabilities, a window")
            if values is not None and not np.isfinite(values).all():
                raise ValueError("scores and probabilities must be finite: the model answered NaN or infinity")

    @classmethod
    def build(
        cls,
        rows: Rows,
        *,
        score: ArrayLike | None = None,
        proba: ArrayLike | None = None,
        classes: Classes | None = None,
    ) -> Scored:
        """Build from plain arrays; without ``score`` it is 1 - P(benign), computed from ``proba`` (N, K) and
        ``classes``. Raises ValueError if ``score`` is missing and so is ``proba`` or ``classes``, and for values that
        `Scored` refuses."""
        probabilities = None if proba is None else np.asarray(proba, float)
        if score is None:
            if probabilities is None or classes is None:
                raise ValueError("scored windows need a score, or probabilities with their classes")
            score = classes.alarm_score(probabilities)
        return cls(rows, np.asarray(score, float), probabilities)

    @property
    def y(self) -> Ints:
        return self.rows.label

    def take(self, rows: Ints) -> Scored:
        """Return only the windows with the given row numbers."""
        return Scored(self.rows.take(rows), self.score[rows], None if self.proba is None else self.proba[rows])

    def with_score(self, score: ArrayLike, proba: ArrayLike | None = None) -> Scored:
        """Return the same windows with another model's scores."""
        return Scored.build(self.rows, score=score, proba=proba)


class Pace(NamedTuple):
    """The mean time in seconds from one decision of a host to its next.

    ``of`` is "host", or "recording" where recordings of one host overlap on a clock that may restart with each of them.
    Whether such recordings ran at the same time is unknown, and the pace is that of a single recording.
    """

    every_s: float
    of: str


EPOCH = 1e8  # seconds: a clock beyond 1973 is no recording's own


def pace(scored: Scored) -> Pace | None:
    """Compute the hosts' mean pace: the time that each one's windows cover, summed over hosts, divided by the number of
    windows; None if no start is known, or if a host shows no time between windows.

    The length of a window only matters on a host none of whose recordings has two windows. Recordings of a single
    window are joined by host. Overlapping recordings on one clock count as simultaneous, and all their windows count.
    """
    known = np.isfinite(scored.rows.t_start)
    if not known.any():
        return None
    if not known.all():
        scored = scored.take(np.flatnonzero(known))
    decisions, covered, alone = 0, 0.0, 0.0
    beside = False
    for name in np.unique(scored.rows.host):
        here = _one_host(scored.take(np.flatnonzero(scored.rows.host == name)))
        if here is None:
            return None
        decisions += here.decisions
        covered += here.covered
        alone += here.alone
        beside |= here.overlaps and not here.one_clock
    total = alone if beside else covered
    return Pace(total / decisions, "recording" if beside else "host") if total > 0 else None


class _OneHost(NamedTuple):
    decisions: int
    covered: float  # seconds of its clock
    alone: float  # seconds of all recordings, one after the other
    one_clock: bool

    @property
    def overlaps(self) -> bool:
        return self.covered < 0.99 * self.alone


def _one_host(scored: Scored) -> _OneHost | None:
    """Measure one host's decisions; None if neither a second window nor a window's length shows the time between
    two."""
    _, stream, size = np.unique(scored.rows.episode, return_inverse=True, return_counts=True)
    stream = np.where(size[stream] == 1, -1, stream)
    order = np.lexsort((scored.rows.t_start, stream))
    start, stream = scored.rows.t_start[order], stream[order]
    steps, same = np.diff(start), stream[1:] == stream[:-1]
    length = float(np.median(scored.rows.t_end - scored.rows.t_start))
    new = np.r_[True, (steps > 0) | ~same]  # a copy is no decision of its own
    regular = steps[same & (steps > 0) & (stream[1:] >= 0)]
    single = steps[same & (steps > 0) & (stream[1:] < 0)]
    if regular.size:
        step = float(np.median(regular))
    else:
        steps = np.array([length, *([np.median(single)] if single.size else [])])
        if not np.isfinite(steps).any():
            return None
        step = float(np.nanmin(steps))
    decided = np.sort(start[new])
    covered = step + float(np.minimum(np.diff(decided), step).sum())
    return _OneHost(decided.size, covered, decided.size * step, bool(start.min() >= EPOCH))

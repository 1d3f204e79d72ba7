"""Incidents: join a host's alarming windows, so that a person is called once and not for each window.

A window *alarms* when its score exceeds its threshold; ``margin`` is score minus threshold. Consecutive windows of a
recording, without a gap, are a *run*. While no incident is open, an alarming window raises one when, as the rule says,
enough of the last windows of its run alarm, or their mean margin is above zero. An incident stays open, and no further
call is made, until a window begins ``quiet_s`` or more after the last alarming one ended.

``step`` takes a window at a time, ``find`` all of them at once; both give the same incidents wherever the stream is
cut. No function has side effects.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, NamedTuple, Self

import msgspec
import numpy as np

from training.data.values import AnyArray, Bools, Floats, Ints, JsonDict

LONGEST = 64  # windows that a rule may take together
QUIET_S = 60.0  # without an alarm, after which an incident is over: behaviours pause for less
QUIET_STRIDES = 10  # and no fewer strides than this
GAP_STRIDES = 2  # between the end of a window and the beginning of the next, from which a run ends


class JoinBy(StrEnum):
    """The way in which the last consecutive windows of a recording are combined."""

    COUNT = "count"  # at least k of the last n alarm
    MEAN = "mean"  # the mean margin of the last n is above zero


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRule:
    """The rule by which windows become an incident. Times are seconds of the windows' clock. With ``MEAN``, ``k`` has
    no effect, but must not exceed ``n``."""

    join: JoinBy
    k: Annotated[int, msgspec.Meta(ge=1)]
    n: Annotated[int, msgspec.Meta(le=LONGEST)]
    gap_s: Annotated[float, msgspec.Meta(gt=0)]
    quiet_s: Annotated[float, msgspec.Meta(gt=0)]

    def __post_init__(self) -> None:
        if self.k > self.n:
            raise ValueError(f"{self.k} of {self.n} windows are no rule of incidents")

    @property
    def words(self) -> str:
        if self.join is JoinBy.MEAN:
            return f"the mean of {self.n} windows in a row above the threshold"
        if self.n == 1:
            return "a window above the threshold"
        return f"{self.k} of {self.n} windows in a row above the threshold"

    def to_dict(self) -> JsonDict:
        return msgspec.to_builtins(self)


def paced(join: JoinBy, k: int, n: int, *, stride_s: float) -> JoinRule:
    """Return a rule for windows that begin ``stride_s`` after each other."""
    return JoinRule(join=join, k=k, n=n, gap_s=GAP_STRIDES * stride_s, quiet_s=max(QUIET_S, QUIET_STRIDES * stride_s))


def usual(stride_s: float) -> JoinRule:
    """Return the rule that is used where none can be chosen: two of three windows."""
    return paced(JoinBy.COUNT, 2, 3, stride_s=stride_s)


# -- one window after the other ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Window:
    """A scored window of a stream: its times, and its score minus the threshold."""

    t_start: float
    t_end: float
    margin: float


@dataclass(frozen=True, slots=True)
class Incident:
    """Alarms of one stream that belong together; times are on the clock of its windows."""

    began: float  # start of the first alarming window of those that raised it
    raised: float  # end of the window that raised it: the moment of the call
    last: float  # end of the last alarming window so far
    alarms: int  # alarming windows from ``began`` on
    peak: float  # the highest margin

    def grown(self, window: Window) -> Self:
        return replace(self, last=window.t_end, alarms=self.alarms + 1, peak=max(self.peak, window.margin))


@dataclass(frozen=True, slots=True)
class StreamState:
    """All that the next step must know about earlier windows of a stream."""

    recent: tuple[Window, ...] = ()  # of the run, at most n - 1
    last: Window | None = None
    open: Incident | None = None


class StreamStep(NamedTuple):
    """The result of a step: the new state, the incident that ended before the window, and the incident that the window
    raised; None if there is none."""

    state: StreamState
    over: Incident | None = None
    raised: Incident | None = None


def step(rule: JoinRule, state: StreamState, window: Window) -> StreamStep:
    """Process the next window of a stream; a window that is not later than the last one changes nothing."""
    if state.last is not None and window.t_start <= state.last.t_start:
        return StreamStep(state)
    joined = state.last is not None and window.t_start - state.last.t_end <= rule.gap_s
    together = (*(state.recent if joined else ()), window)
    still, over, raised = state.open, None, None
    if still is not None and window.t_start - still.last >= rule.quiet_s:
        still, over = None, still
    if window.margin > 0:
        if still is not None:
            still = still.grown(window)
        elif _enough(rule, [one.margin for one in together]):
            still = raised = _of(together)
    return StreamStep(StreamState(together[max(0, len(together) - rule.n + 1) :], window, still), over, raised)


def _enough(rule: JoinRule, margins: Sequence[float]) -> bool:
    if rule.join is JoinBy.COUNT:
        return sum(margin > 0 for margin in margins) >= rule.k
    return len(margins) == rule.n and sum(margins) > 0


def _of(together: Sequence[Window]) -> Incident:
    alarming = [one for one in together if one.margin > 0]
    return Incident(
        began=alarming[0].t_start,
        raised=together[-1].t_end,
        last=together[-1].t_end,
        alarms=len(alarming),
        peak=max(one.margin for one in alarming),
    )


# -- all windows at once -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Runs:
    """Windows sorted by stream and time; ``order`` (N,) are their places before sorting, the other arrays are
    sorted."""

    order: Ints
    stream: Ints
    t_start: Floats
    t_end: Floats

    @classmethod
    def of(cls, stream: AnyArray, t_start: Floats, t_end: Floats) -> Self:
        """Sort windows (N,) of named streams; of a stream's windows that begin at the same time only the first is
        kept."""
        number = np.unique(stream, return_inverse=True)[1]
        order = np.lexsort((t_start, number))
        later = (np.diff(number[order]) != 0) | (np.diff(t_start[order]) > 0)
        order = order[np.r_[True, later][: order.size]]
        return cls(order, number[order], t_start[order], t_end[order])

    def __len__(self) -> int:
        return int(self.order.size)

    def joined(self, gap_s: float) -> Bools:
        """Return (N,) True for a window that begins at most ``gap_s`` after the end of the window before it in the same
        stream."""
        same = (np.diff(self.stream) == 0) & (self.t_start[1:] - self.t_end[:-1] <= gap_s)
        return np.r_[False, same][: len(self)]

    def place(self, gap_s: float) -> Ints:
        """Return (N,) how many windows of the stream precede each window without a gap of more than ``gap_s``."""
        numbers = np.arange(len(self))
        return numbers - np.maximum.accumulate(np.where(self.joined(gap_s), 0, numbers))


class FoundIncidents(NamedTuple):
    """M incidents, by places of windows in ``runs``: of each, the first alarming window, the one that raised it, and
    the last alarming."""

    began: Ints  # the first alarming window
    raised: Ints
    last: Ints  # the last alarming window


def find(rule: JoinRule, runs: Runs, margin: Floats) -> FoundIncidents:
    """Find all incidents; ``margin`` (N,) is in the order of ``runs``.

    Alarming windows of a stream less than ``quiet_s`` apart are one group, and each group raises one incident at most:
    at its first alarming window at which the rule is met.
    """
    alarming = np.flatnonzero(margin > 0)
    if not alarming.size:
        return FoundIncidents(alarming, alarming, alarming)
    place = runs.place(rule.gap_s)
    apart = runs.t_start[alarming[1:]] - runs.t_end[alarming[:-1]] >= rule.quiet_s
    new = np.r_[True, apart | (np.diff(runs.stream[alarming]) != 0)]
    group = np.cumsum(new) - 1
    last = alarming[np.r_[np.flatnonzero(new)[1:], alarming.size] - 1]
    enough = _enough_at(rule, place, margin)[alarming]
    which, first = np.unique(group[enough], return_index=True)
    raised = alarming[enough][first]
    reach = raised - np.minimum(rule.n - 1, place[raised])
    return FoundIncidents(alarming[np.searchsorted(alarming, reach)], raised, last[which])


def _enough_at(rule: JoinRule, place: Ints, margin: Floats) -> Bools:
    """Return (N,) True where the last windows of the run, up to this one, meet the rule.

    Sums begin with the oldest window, as in ``step``, so that rounding is the same.
    """
    values = (margin > 0).astype(float) if rule.join is JoinBy.COUNT else margin
    total = np.zeros(margin.size)
    for back in range(min(rule.n, margin.size) - 1, -1, -1):
        total += np.where(place >= back, np.concatenate((np.zeros(back), values[: margin.size - back])), 0.0)
    if rule.join is JoinBy.COUNT:
        return total >= rule.k
    return (place >= rule.n - 1) & (total > 0)

"""Find numbers that mean a missing value: "not measured" in a channel, "unlabelled" among the classes.

Programs write "stand-ins", for example -999, -1, 255 or 65535, where they know nothing. A model would take a stand-in
in a channel for a strong signal, and one among the labels for a class. A number that is certainly a stand-in is
refused, and a possible one is noted; the sentence names the flag by which the user decides. The numbers 0, 1 and 100
are never suspected. In a channel, a number near the other values is suspected only if it is usual, as -1, and the only
negative one. All functions are pure, except that :func:`say_missing` changes arrays in place.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from training.data.classes import listed
from training.data.errors import DataError
from training.data.scratch import spans
from training.data.values import AnyArray, Bools, Floats

USUAL = frozenset(
    (
        *(-1.0, -9.0, -99.0),
        *(float(2**bits - 1) for bits in (8, 15, 16, 31, 32, 63, 64)),
        *(-float(2**bits) for bits in (15, 31, 63)),
        *(sign * float(10**digits - 1) for digits in range(3, 8) for sign in (1, -1)),
        *(2.0**31, 2.0**32),  # as 32-bit numbers hold the largest whole ones
    )
)
HUGE = 1e20  # what no counter reaches: 1e20 and 1e30 are fill values of climate and lab formats
LIMITS = (0.0, 1.0, 100.0)  # where shares and percentages end by nature
REPEATED_MIN = 3
DISTINCT_MAX = 1 << 22  # that are looked at
DISTINCT_MIN = 10  # other values: fewer are a state, of which -1 or 255 may be one
FAR = 3.0  # times the spread of all other values: further out nothing is measured
APART = 0.5
UNLABELLED = ("unlabelled", "unlabeled", "undefined", "unknown")
NAN = "nan"


class StandIn(NamedTuple):
    """A value of a channel that may mean "not measured"; ``sure`` if it certainly does."""

    channel: str
    value: float
    times: int
    low: float  # of all other values
    high: float
    sure: bool


def is_usual(value: float) -> bool:
    """Return True if programs often write this number for "not known"."""
    return value in USUAL or HUGE <= abs(value) < np.inf


# -- channels ----------------------------------------------------------------------------------------------------------


def stand_in(channel: str, column: AnyArray) -> StandIn | None:
    """Return the smallest or largest value of a channel if it occurs at least ``REPEATED_MIN`` times, and lies further
    from the other values than a measurement would; else None. A usual stand-in, as -1, that is the only negative value
    is returned at any distance.

    ``column`` has samples (S), or windows (N, T) that may overlap. In windows, a value's repetitions are counted at the
    one position with the most, so that a single peak in overlapping windows is no repetition. The values 0, 1 and 100,
    and values of a channel with fewer than ``DISTINCT_MIN`` different other values, are never returned.
    """
    low, high = _ends(column)
    for value in (low, high) if low < high else ():
        if value in LIMITS:
            continue
        count = int(np.max(sum((column[here] == value).sum(axis=0) for here in spans(column))))
        if count < REPEATED_MIN:
            continue
        least, most = _ends(column, value)
        gap, usual = least - value if value == low else value - most, is_usual(value)
        lonely = usual and value == low < 0 <= least
        if not usual and gap < FAR * (most - least):
            continue
        different = _distinct(column, value)
        if different.size < DISTINCT_MIN:
            continue
        # One peak among the others would make every distance small.
        spread = float(np.diff(np.quantile(different, (0.01, 0.99)))[0])
        if lonely or gap >= (APART if usual else FAR) * spread:
            sure = usual and gap >= FAR * spread
            return StandIn(channel, value, count, least, most, sure)
    return None


def _ends(column: AnyArray, but: float = np.nan) -> tuple[float, float]:
    """Return the smallest and the largest finite value other than ``but``."""
    low, high = np.inf, -np.inf
    for here in spans(column):
        part = column[here]
        known = np.isfinite(part) & (part != but)
        low, high = part.min(initial=low, where=known), part.max(initial=high, where=known)
    return float(low), float(high)


def _distinct(column: AnyArray, but: float) -> Floats:
    """Return the different finite values except ``but``; if they are more than DISTINCT_MAX, a selection by their
    bits."""
    found, thinned = np.empty(0), 0
    for here in spans(column):
        part = np.asarray(column[here], float)
        known = part[np.isfinite(part) & (part != but)] + 0.0
        found = np.unique(np.concatenate([found, known[_drawn(known, thinned)]]))
        while found.size > DISTINCT_MAX:
            thinned += 1
            found = found[_drawn(found, thinned)]
    return found


def _drawn(values: Floats, halvings: int) -> Any:
    """Return a mask that selects about one value in two to the power of ``halvings``, whatever the order of the
    values."""
    mixed = values.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)
    return (mixed & np.uint64((1 << halvings) - 1)) == 0


def judge_stand_ins(columns: Iterable[tuple[str, AnyArray]], level: Sequence[str]) -> list[str]:
    """Return notes on values that may mean "not measured"; ``columns`` has the channels' names and values.

    Channels in ``level`` (--level) are not judged. Raises DataError for a value that is certainly no measurement.
    """
    found = [one for name, column in columns if name not in level and (one := stand_in(name, column))]
    sure = [one for one in found if one.sure]
    if sure:
        first = sure[0]
        more = f" (so do {listed([one.channel for one in sure[1:]])})" if sure[1:] else ""
        raise DataError(
            f"The channel {first.channel!r} repeats {first.value:.10g}, far from all its other values "
            f"({first.low:.4g} to {first.high:.4g}){more}: if nothing was measured there say "
            f"--missing={first.value:.10g}, if it was say "
            f"--level {first.channel}."
        )
    return [
        f"The channel {one.channel} repeats {one.value:.10g}, apart from its other values ({one.low:.4g} to "
        f"{one.high:.4g}): if nothing was measured there say --missing={one.channel}={one.value:.10g}."
        for one in found
    ]


class Missing(NamedTuple):
    """A number that the user declared to mean "not measured", in one channel or, if ``channel`` is None, in all."""

    channel: str | None
    value: float
    is_like: bool = False  # said when the data set of --like was made; it need not occur

    @property
    def written(self) -> str:
        """This number as the argument of --missing, which :func:`read_missing` reads."""
        return f"{self.value!r}" if self.channel is None else f"{self.channel}={self.value!r}"


def read_missing(text: str, *, is_like: bool = False) -> Missing:
    """Return the number that an argument of --missing names: ``CHANNEL=NUMBER``, or ``NUMBER`` for all channels. Raises
    ValueError if NUMBER is no number."""
    channel, named, value = text.rpartition("=")
    return Missing(channel if named else None, float(value), is_like)


def say_missing(said: Sequence[Missing], names: Sequence[str], columns: Sequence[AnyArray]) -> list[str]:
    """Replace the numbers declared with --missing by NaN, in place; return a line of text, with the count, for each
    channel that held some.

    Raises DataError for a channel that does not exist, or a number that does not occur. Channels and numbers that were
    declared for the data set of --like need not occur.
    """
    counts = {(name, is_like): 0 for is_like in (False, True) for name in names}
    for one in said:
        if one.channel is not None and one.channel not in names and not one.is_like:
            raise DataError(f"--missing names {one.channel!r}, which is no channel here.")
        before = sum(counts.values())
        for name, column in zip(names, columns, strict=True):
            if one.channel in (None, name):
                here = column == one.value
                counts[name, one.is_like] += int(here.sum())
                column[here] = np.nan
        if sum(counts.values()) == before and not one.is_like:
            raise DataError(
                f"--missing says {one.value:.10g}, which {one.channel or 'no channel'} "
                f"{'holds nowhere' if one.channel else 'holds'}: leave it out, or correct it."
            )
    return [
        f"{count:,} values of {name}: --missing{', as in --like' if is_like else ''}"
        for (name, is_like), count in counts.items()
        if count
    ]


# -- labels ------------------------------------------------------------------------------------------------------------


def labelled(y: AnyArray, unlabelled: Sequence[str]) -> Bools:
    """Return a mask of the labels ``y`` (N) that name a class: all except those in ``unlabelled``.

    Raises DataError for a word in ``unlabelled`` that is no label here, or if no label is left.
    """
    keep = np.ones(y.shape, bool)
    for word in unlabelled:
        if y.dtype.kind in "fiu":
            number = _number(word)
            here = np.isnan(y) if np.isnan(number) else y == number
            if word.casefold() != NAN and np.isnan(number):
                here = np.zeros_like(keep)
        else:
            here = np.char.strip(y.astype(str)) == word
        if not here.any():
            raise DataError(f"--unlabelled says {word}, which no label is: leave it out, or correct it.")
        keep &= ~here
    if not keep.any():
        raise DataError("--unlabelled leaves no label at all: nothing is left.")
    return keep


def check_classes(present: Sequence[str], named: Sequence[str]) -> None:
    """Raise DataError if one of the labels ``present`` is usually written for "no label", unless the user declared it a
    class (``named``).

    A single label, the pair -1 and 1, and a number next to another label (255 beside 254, but not -1 beside 0) are
    accepted. Labels that are numbers must be in their shortest form.
    """
    if len(present) < 2 or set(present) == {"-1", "1"}:  # how some programs write two classes
        return
    odd = [label for label in present if label not in named and _reads_unlabelled(label, present)]
    if odd:
        raise DataError(
            f"The label {odd[0]} reads like a missing label (the labels are {listed(present)}): leave these out with "
            f"--unlabelled={odd[0]}, or say with --all-labelled that it is a class."
        )


def _reads_unlabelled(label: str, present: Sequence[str]) -> bool:
    if label.casefold() in UNLABELLED:
        return True
    number = _number(label)
    beside = {f"{number - 1:.0f}", f"{number + 1:.0f}"} - {"0"}
    return is_usual(number) and not beside & set(present)


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return float(NAN)

"""Convert times of other sources to seconds; refuse unclear units, because a wrong guess would make every number of
alarms a day wrong.

Dates become seconds since 1970. The unit of numbers is the one that the user gave, else the one at the end of the
column's name. Without both, numbers up to about 4e10 are assumed to be seconds. Larger numbers get the unit in which
they are dates of this century; without such a unit they are refused. Assumed seconds that make no sense (such as one
sample in a quarter of an hour) are refused. All functions are pure.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
import polars as pl

from training.data.coded import Coded
from training.data.errors import DataError
from training.data.scratch import ROOM, SPAN_ROWS, edges_of, fill, release, spans
from training.data.values import AnyArray, Bools, Codes, Floats

_Cells = Callable[[], Iterable[pl.Series]]

UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}  # parts of a second
LONG = {"min": 60.0, "h": 3600.0, "d": 86_400.0}  # seconds
CHOICES = (*UNITS, *LONG)
UNITS_SAID = f"{', '.join(CHOICES[:-1])} or {CHOICES[-1]}"
ASSUMED = "time in s"  # a role: nothing said so
DATE = r"^\s*(\d{1,4})([-/.])(\d{1,2})[-/.](\d{1,4})"  # with its year first or last
REST = r"(?:[T ,]+(.*?))?\s*$"  # the time of day, and the zone
NO_ZONE = "dates, read as UTC"  # a role
FROM_DAY = ", from --day on"  # a part of a role
OF_DAY = r"(?i)^\s*\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?(\s*[ap]m)?\s*$"
DAY_S = 86_400.0
HALF_DAY = r"(?i)[ap]m\s*$"
MIDNIGHT = r"^(.*[T ,])24(:00(?::00(?:[.,]0+)?)?)([^\d:.,].*)?$"  # of the next day, in ISO 8601
OFFSETS = (  # what stands behind a time of UTC+2, as it is usually written
    (r"(?i)\s*(?:utc|gmt)\s*$", "Z"),
    (r"(?i)\s*(?:utc|gmt)([+-])(\d(?::?\d{2})?)$", "${1}0${2}"),
    (r"(?i)\s*(?:utc|gmt)([+-]\d{2}(?::?\d{2})?)$", "${1}"),
)
NAMED_ZONE = r"\d\s*([A-Za-z]{2,5}|[A-Z][a-z]+/[A-Za-z_]+)\s*$"
ZONE = r":\d{2}(\.\d+)?\s*(Z|[+-]\d{2}(:?\d{2})?)$"
EPOCH_S = (1e9, 4.1e9)  # 2001 to 2099
YEARS = (1700, 2099)
STEP_MAX_S = 60.0  # between samples: more may be milliseconds
STEP_MIN_S = 0.0005  # less may be hours or days
UNLIKE = 10.0  # times by which two ways to the same length may differ
RATE_LEAVE = 0.10  # share by which a recording's own rate may differ from the data set's
STEPS_MIN = 3  # fewer show no rate
BLOCK = 32  # steps in which a rate of its own shows through jitter and lost samples


class SaidTimes(NamedTuple):
    """The hints for reading times: the unit that the user gave, the unit in the column's name, and the user's format of
    dates."""

    unit: str | None = None
    named: str | None = None
    format: str | None = None  # of strptime
    day: str | None = None  # the user's date of the first row, where times have no date or no year


def from_column(column: pl.Series, said: SaidTimes, where: str) -> tuple[Floats, str]:
    """Return the seconds of a table's column of times, and words on how they were read, such as "dates with a time
    zone". Raises DataError."""
    return from_parts(lambda: [column], said, where)


def from_parts(parts: Callable[[], Iterable[pl.Series]], said: SaidTimes, where: str) -> tuple[Floats, str]:
    """Return what :func:`from_column` does, for a column that the function ``parts`` yields some cells at a time; each
    call begins at the first cell."""
    first = next(iter(parts()))
    what = f"The column {first.name!r} of {where}"
    found = [(part.len(), part.null_count()) for part in parts()]
    size = sum(rows for rows, _ in found)
    if any(empty for _, empty in found):
        raise DataError(f"{what} has empty cells or values that are no times.")
    zones = isinstance(first.dtype, pl.Datetime) and first.dtype.time_zone is not None
    form, cells = "", parts
    is_text = first.dtype == pl.String or (said.format is not None and first.dtype.is_integer())  # %Y%m%d%H%M%S
    if is_text and (
        said.format is not None or any(part.cast(pl.Float64, strict=False).null_count() for part in parts())
    ):
        cells, zones, form = _dates(lambda: (part.cast(pl.String) for part in parts()), said, what)
    elif said.format is not None:
        raise DataError(f"{what} holds {first.dtype}, so --time-format has no effect: leave it out.")
    kind = first.dtype if cells is parts else pl.Datetime("us")
    if isinstance(kind, pl.Datetime | pl.Duration) or kind == pl.Date:
        _no_unit(said.unit, where)
        seconds = ROOM.joined((_seconds(part) for part in cells()), size, float)
        role = "durations" if isinstance(kind, pl.Duration) else "dates with a time zone" if zones else NO_ZONE
        if role == NO_ZONE:
            _check_half_days(seconds, what)
        return seconds, role + form
    if not kind.is_numeric() and not is_text:
        raise DataError(f"{what} must hold times (numbers, dates or durations), not {kind}.")
    numbers = ROOM.joined((part.cast(pl.Float64).to_numpy() for part in parts()), size, float)
    return _numbers(numbers, said, what)


def _check_half_days(t: Floats, what: str) -> None:
    """Raise DataError if the times seem to be of a clock of twelve hours without AM and PM: in the order of the file,
    an hour 1 follows an hour 12 of the same day, and no time has an hour of 0 or above 12."""
    falls = wraps = 0
    for here in spans(t, overlap=1):
        day, hour = np.divmod(t[here] // 3600, 24)
        if hour.min() < 1 or hour.max() > 12:
            return
        fell = (np.diff(t[here]) < 0) & (np.diff(day) == 0)
        falls += int(fell.sum())
        wraps += int((fell & (hour[:-1] == 12) & (hour[1:] == 1)).sum())
    if wraps and 2 * wraps >= falls:  # in shuffled rows, few falls are such
        raise DataError(
            f"{what} goes from an hour 12 back to an hour 1 on one day, as a clock of twelve hours does: write AM or "
            "PM behind the times, or, if the clock has 24 hours, sort the rows by time."
        )


def _seconds(dates: pl.Series) -> Floats:
    """Return dates (since 1970) or durations in seconds."""
    if dates.dtype == pl.Date:
        dates = dates.cast(pl.Datetime("us"))
    assert isinstance(dates.dtype, pl.Datetime | pl.Duration)
    return dates.to_physical().cast(pl.Float64).to_numpy() / UNITS[dates.dtype.time_unit]


def _dates(parts: Callable[[], Iterable[pl.Series]], said: SaidTimes, what: str) -> tuple[_Cells, bool, str]:
    """Return a reader of dates in UTC from text, whether they name a zone, and words on the order of day and month."""
    if said.format is not None and not re.search("%[YyGDFcsx+]", said.format):
        if said.day is None:
            raise _no_year(what)
        known, more = (said.day[:4], "%Y ") if re.search("%[debhBmj]", said.format) else (said.day, "%Y-%m-%d ")
        said = said._replace(format=more + said.format)
        return _from_day(_dates(lambda: (known + " " + part for part in parts()), said, what))
    if said.format is not None:
        sign, form_said = _with_fraction(said.format)
        zones = "%z" in form_said or "%Z" in form_said
        texts = (lambda: (_pointed(part, sign) for part in parts())) if sign else parts
        return _read(texts, form_said, what), zones, ""
    if all(part.str.contains(OF_DAY).all() for part in parts()):
        day = said.day
        if day is None:
            raise _no_year(what)
        return _from_day(_dates(lambda: (day + " " + part for part in parts()), said, what))
    form = _Form()
    try:
        for part in parts():
            form.add(_zulu(part))
    except pl.exceptions.PolarsError:
        raise _no_dates(what, "values that are no dates") from None
    if form.zone:
        raise DataError(
            f"{what} names its time zone {form.zone}, which says no offset for sure: write the times in UTC, or "
            "with their offset (2026-11-20 07:29:03+02:00)."
        )
    if form.lacks or len(form.signs) > 1:
        raise DataError(
            f"{what} must hold times: numbers, or dates such as 2026-11-20 07:29:03 (--time-format names another form)."
        )
    order = form.order(what)
    if form.named and form.unnamed:
        raise DataError(f"{what} names a time zone in some rows and none in others: write all times in UTC.")
    half = "%I:%M:%S%.f %p" if form.half else "%H:%M:%S%.f"
    written = f"%Y-%m-%d {half}{'' if form.unnamed else '%#z'}"
    found = _read(lambda: (_written(_zulu(part), order) for part in parts()), written, what)
    which = "" if form.signs == {"."} else ("", "", ", the month first")[order]
    return found, not form.unnamed, which


def _no_year(what: str) -> DataError:
    return DataError(
        f"{what} holds a time of day alone, or a date without a year: say the first row's date, as in --day 2026-11-20."
    )


def _from_day(dates: tuple[_Cells, bool, str]) -> tuple[_Cells, bool, str]:
    found, zones, form = dates
    return found, zones, form + FROM_DAY


def past_midnight(t: Floats, host: Codes, role: str, where: str) -> tuple[Floats, str]:
    """Return times that began on one day or in one year, in the order of the file: at each fall of over half a day of
    one ``host``, the next day begins. The words on how they were read name the midnights.

    Raises DataError if the times fall by half a year, as at New Year.
    """
    order = np.argsort(host, kind="stable")
    steps, same = np.diff(t[order]), np.diff(host[order]) == 0
    if (same & (steps < -180 * DAY_S)).any():
        raise DataError(f"The times of {where} pass New Year without naming it: write the year into each of them.")
    days = np.cumsum(np.r_[0, same & (steps < -DAY_S / 2)])
    days -= days[np.searchsorted(host[order], host[order])]
    found = t.copy()
    found[order] += days * DAY_S
    return found, role + (f", over {int(days.max())} midnights" if days.any() else "")


def _with_fraction(form: str) -> tuple[str, str]:
    """Return the sign before the fraction of a second in a format of strptime, "" if a point or nothing stands there,
    and the format as Polars takes it.

    Polars reads the ``%f`` of strptime as nanoseconds, and its own ``%.f`` as a point and a fraction. Raises DataError
    for a ``%f`` without a sign before it, or with another sign than a point if dates follow.
    """
    before, fraction, after = form.partition("%f")
    if not fraction or before.endswith("%."):
        return "", form
    sign = before[-1:]
    if not sign or sign.isalnum() or (sign != "." and re.search("%[^zZp]", after)):
        raise DataError(
            f"--time-format {form} has no point before its %f, by which the fraction of a second is found: bring times "
            "with a point there."
        )
    return sign.replace(".", ""), f"{before[:-1]}%.f{after}"


def _pointed(text: pl.Series, sign: str) -> pl.Series:
    """Return the times with a point in place of the last ``sign``, which is the one before the fraction."""
    return text.str.replace(rf"^(.*){re.escape(sign)}(\d)", "${1}.${2}")


def _read(parts: _Cells, form: str, what: str) -> _Cells:
    """Return a reader of the dates in ``parts``, written as ``form`` says; it raises DataError for a cell that is no
    date, and for a year outside ``YEARS``."""

    def checked() -> Iterator[pl.Series]:
        for part in parts():
            try:
                late = part.str.contains(MIDNIGHT) & bool(re.search("[T ,]%(H:%M|T|R)", form))
                text = part.str.replace(MIDNIGHT, "${1}00${2}${3}") if late.any() else part
                dates = text.str.to_datetime(form, time_zone="UTC", strict=False)
            except pl.exceptions.PolarsError:
                raise _no_dates(what, f"{part[0]!r}, which is no date") from None
            if dates.null_count():
                raise _no_dates(what, f"{part.filter(dates.is_null())[0]!r}, which is no date")
            days = (late.cast(pl.Int64) * int(DAY_S * 1e6)).cast(pl.Duration("us"))
            yield _of_our_time(dates + days, what)

    return checked


def _no_dates(what: str, found: str) -> DataError:
    return DataError(f"{what} holds {found}: say the format, as in --time-format '%d.%m.%Y %H:%M:%S', or fix it.")


def _zulu(text: pl.Series) -> pl.Series:
    for written, usual in OFFSETS:
        text = text.str.replace(written, usual)
    return text


def _parts_of_dates(text: pl.Series) -> list[pl.Series]:
    found = text.str.extract_groups(DATE + REST).struct.unnest()
    return [found[name] for name in found.columns]


def _written(text: pl.Series, order: int) -> pl.Series:
    """Return the dates as text with year, month, day and time of day; ``order`` is that of :meth:`_Form.order`."""
    first, _, second, third, clock = _parts_of_dates(text)
    year, month, day = ((first, second, third), (third, second, first), (third, first, second))[order]
    return year + "-" + month.str.zfill(2) + "-" + day.str.zfill(2) + " " + _clock(clock)


class _Form:
    """The form of a column's dates, as far as the cells added so far show it."""

    def __init__(self) -> None:
        self.signs: set[str] = set()
        self.lacks = self.half = self.named = self.unnamed = False
        self.zone = ""  # by its name
        self._digits = 9  # of the shortest first number
        self._over = [False, False]  # 12: the first number, the second
        self._shown = ""

    def add(self, text: pl.Series) -> None:
        first, sign, second, _, clock = _parts_of_dates(text)
        self.lacks |= first.null_count() > 0
        if self.lacks or not text.len():
            return
        self._shown = self._shown or f"{first[0]}{sign[0]}{second[0]}{sign[0]}…"
        self.signs |= set(sign.unique())
        digits = first.str.len_chars().min()
        self._digits = min(self._digits, int(digits))  # type: ignore[arg-type]
        for place, part in enumerate((first, second)):
            self._over[place] |= bool((part.cast(pl.Int64) > 12).any())
        zones = text.str.extract(NAMED_ZONE).drop_nulls()
        zones = zones.filter(~zones.str.contains("(?i)^[ap]m$"))
        self.zone = self.zone or (str(zones[0]) if zones.len() else "")
        named = text.str.contains(ZONE)
        self.named |= bool(named.any())
        self.unnamed |= not named.all()
        self.half |= bool(clock.str.contains(HALF_DAY).any())

    def order(self, what: str) -> int:
        """Return what dates begin with: 0 for the year, 1 for the day (if a point follows, or it exceeds 12), 2 for the
        month.

        Raises DataError if the first number may be the day or the month.
        """
        if self._digits == 4:
            return 0
        if self.signs == {"."}:
            return 1
        if self._over[0] == self._over[1]:
            raise DataError(
                f"{what} holds dates such as {self._shown}, of which the first number may be the day or the month: say "
                "it with --time-format '%d/%m/%Y %H:%M:%S' or '%m/%d/%Y %H:%M:%S'."
            )
        return 1 if self._over[0] else 2


def _of_our_time(dates: pl.Series, what: str) -> pl.Series:
    """Return the dates. Raises DataError for a year outside ``YEARS``, as when two digits were read as a whole year."""
    odd = dates.filter(~dates.dt.year().is_between(*YEARS))
    if odd.len():
        year, (least, most) = odd.dt.year()[0], YEARS
        if year >= 1000:
            raise DataError(f"{what} holds dates of the year {year}: bring years of {least} to {most}, or numbers.")
        raise DataError(
            f"{what} holds dates of the year {year}: say their format (a year of two digits is %y), as in "
            "--time-format '%d.%m.%y %H:%M:%S'."
        )
    return dates


def _clock(clock: pl.Series) -> pl.Series:
    """Return the times of day with seconds, and a point before their fraction; midnight for a date without a time."""
    written = clock.fill_null("").str.strip_chars().replace("", "00:00:00")
    return written.str.replace(r"^(\d{1,2}:\d{2})([^:\d]|$)", "${1}:00${2}").str.replace(r"(:\d{2}),(\d)", "${1}.${2}")


def from_array(values: AnyArray, unit: str | None, where: str) -> tuple[Floats, str]:
    """Return what :func:`from_column` does, for ``values``, the array ``t`` of an archive, whose ``unit`` the user may
    have given."""
    said = SaidTimes(unit=unit)
    if values.dtype.kind in "Mm":
        _no_unit(unit, where)
        if np.isnat(values).any():
            raise DataError("The array 't' holds values that are not finite numbers.")
        kind = "datetime64[ns]" if values.dtype.kind == "M" else "timedelta64[ns]"
        role = NO_ZONE if values.dtype.kind == "M" else "durations"
        return values.astype(kind).astype(int) / 1e9, role
    if values.dtype.kind in "US":
        return from_column(pl.Series("t", values.astype(str)), said, where)
    if values.dtype.kind not in "fiu":
        raise DataError(f"The array 't' must hold times (numbers, dates or durations), not {values.dtype}.")
    return _numbers(values.astype(float), said, "The array 't'")


def _no_unit(unit: str | None, where: str) -> None:
    if unit is not None:
        raise DataError(f"--t-unit has no effect on the dates or durations of {where}: leave it out.")


def _numbers(t: Floats, said: SaidTimes, what: str) -> tuple[Floats, str]:
    """Return the numbers ``t``, changed in place to seconds, and words on the unit in which they were read. Raises
    DataError."""
    if not all(np.isfinite(t[here]).all() for here in spans(t)):
        raise DataError(f"{what} holds values that are not finite numbers.")
    unit = said.unit or said.named
    if unit is not None:
        return _divided(t, unit), f"time in {unit}, as {'--t-unit' if said.unit else 'its name'} says"
    sizes = ROOM.joined((np.abs(t[here]) for here in spans(t)), t.size, float)
    since = float(np.median(sizes, overwrite_input=True)) if t.size else 0.0
    if since <= 10 * EPOCH_S[1]:
        return t, ASSUMED
    fits = [unit for unit, by in UNITS.items() if EPOCH_S[0] <= since / by <= EPOCH_S[1]]
    if not fits:
        raise DataError(
            f"{what} holds no usual seconds: say its unit with --t-unit {UNITS_SAID}, or, if it is a date without "
            "signs, its form with --time-format %Y%m%d%H%M%S."
        )
    return _divided(t, fits[0]), f"time in {fits[0]} since 1970, by its size"


def _divided(t: Floats, unit: str) -> Floats:
    for here in spans(t):
        t[here] = t[here] * LONG[unit] if unit in LONG else t[here] / UNITS[unit]
    return t


def shown(seconds: float) -> str:
    """Return a time as text for people: a date if the seconds seem to count from 1970, else a number of seconds."""
    if EPOCH_S[0] <= seconds <= EPOCH_S[1]:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"{seconds:,.10g} s"


def is_hour_left_out(before: float, after: float, step: float) -> bool:
    """Return True if two local times surround the hour that clocks skip in spring: from 2 to 3 on a Sunday in March."""
    begin = np.floor(after / 3600) * 3600 - 3600
    at = datetime.fromtimestamp(begin, UTC)
    around = before < begin and after - before <= 3600 + 2 * step
    is_sunday = at.weekday() == 6 and (8 <= at.day <= 14 or at.day > 24)  # of the United States, or of Europe
    return bool(around and is_sunday and at.hour == 2 and at.month == 3)


def is_night_of_clocks(hour: int) -> bool:
    """Return True if a local hour (numbered from 1970) may occur twice: before 4 on a Sunday of a month in which summer
    time ends."""
    at = datetime.fromtimestamp(hour * 3600.0, UTC)
    return at.weekday() == 6 and at.hour < 4 and at.month in (3, 4, 9, 10, 11)


def check_one_clock(t: Floats, host: Coded) -> None:
    """Raise DataError if the times of some hosts count from 1970, and those of others do not."""
    size = host.names.size
    counts, dated = np.zeros((2, size), int)
    for here in spans(t):
        codes, at = host.codes[here], t[here]
        counts += np.bincount(codes, minlength=size)
        dated += np.bincount(codes[(at >= EPOCH_S[0]) & (at <= EPOCH_S[1])], minlength=size)
    first: dict[bool, str] = {}
    for number in np.flatnonzero(counts).tolist():
        first.setdefault(bool(2 * dated[number] > counts[number]), str(host.names[number]))
    if len(first) > 1:
        raise DataError(
            f"The clock of the host {first[True]!r} counts seconds from 1970 and that of {first[False]!r} does not: "
            "bring all hosts to one clock."
        )


def is_known(role: str) -> bool:
    """Return True if the unit of times read as ``role`` (the words of `from_column`) is certain: dates, durations, or a
    unit from a flag or name."""
    return role != ASSUMED and "by its size" not in role


def check_step(step_s: float, role: str, what: str) -> None:
    """Raise DataError if the unit of times is not certain, and the step between samples suggests milliseconds, hours or
    days."""
    if not is_known(role) and not STEP_MIN_S <= step_s <= STEP_MAX_S:
        raise DataError(
            f"{what} are {step_s:,.6g} apart, if t counts seconds: say its unit with --t-unit {UNITS_SAID}."
        )


def check_length(window_s: float, step_s: float, role: str) -> None:
    """Raise DataError if the unit of times is not certain, and windows are far shorter or longer than the step between
    them."""
    if not is_known(role) and not window_s / UNLIKE <= step_s <= window_s * UNLIKE:
        raise DataError(
            f"By --hz a window is {window_s:g} s long, but by t one begins each {step_s:g} s: "
            f"correct --hz, or say the unit of t with --t-unit {UNITS_SAID}."
        )


def other_rates(t: Floats, hz: float) -> list[float]:
    """Return the rates of parts of one recording that were not sampled at ``hz``: at most one slower and one faster
    rate.

    ``t`` has the recording's sorted times. A part counts if it is long enough to show its rate; one whose long steps
    are unlike each other has lost samples, and no rate of its own.
    """
    whole = (part[: part.size // BLOCK * BLOCK].reshape(-1, BLOCK) * hz for part in steps_of(t))
    quartiles = [np.quantile(part, (0.25, 0.5, 0.75), axis=1) for part in whole if part.size]
    if not quartiles:
        return []
    low, middle, high = np.concatenate(quartiles, axis=1)
    found = []
    alike = (low >= 0.75 * middle) | (high <= 1.25 * middle)
    for odd in ((low > 1 + RATE_LEAVE) & alike, high < 1 - RATE_LEAVE):
        beside = np.flatnonzero(odd[1:] & odd[:-1])  # one block alone may be an accident
        if beside.size:
            found.append(float(hz / middle[beside[0]]))
    return found


def check_unlike_hosts(steps: Mapping[str, float]) -> None:
    """Raise DataError if the usual steps between windows, by host, are so different that units of time must differ."""
    if not steps:
        return
    slow, fast = max(steps, key=steps.__getitem__), min(steps, key=steps.__getitem__)
    if steps[slow] >= UNLIKE**2 * steps[fast]:
        raise DataError(
            f"The windows of the host {slow!r} are {steps[slow]:g} s apart and those of {fast!r} {steps[fast]:g} s: "
            "milliseconds? Bring all times to seconds."
        )


def steps_of(t: Floats, group: AnyArray | None = None) -> Iterator[Floats]:
    """Yield the differences between neighbouring times, ``SPAN_ROWS`` at a time; NaN where a new group begins."""
    for start in range(0, t.size - 1, SPAN_ROWS):
        here = slice(start, start + SPAN_ROWS + 1)
        steps = np.diff(t[here])
        if group is not None:
            steps[np.diff(group[here]) != 0] = np.nan
            release(group)
        yield steps
        release(t)


def chosen_steps(t: Floats, chosen: Callable[[Floats], Bools], group: AnyArray | None = None) -> Floats:
    """Return the steps of :func:`steps_of` that ``chosen`` marks, in memory or, if many, in a file."""
    steps = ROOM.empty((max(0, t.size - 1),), float)
    return steps[: fill(steps, (part[chosen(part)] for part in steps_of(t, group)))]


def rises(steps: Floats) -> Bools:
    """Return a mask of the steps above 0."""
    return steps > 0


def usual_steps(t: Floats, group: AnyArray, names: Sequence[str], *, least: int = STEPS_MIN) -> dict[str, float]:
    """Return the median of the steps above 0 of each group's times, by the group's name; groups with fewer than
    ``least`` such steps are left out.

    ``group`` has, for each time, the place of its group in ``names``.
    """
    if is_out_of_order(t, group):
        order = np.lexsort((t, group))
        t, group = t[order], group[order]
    found = {}
    for low, high in edges_of(group):
        steps = chosen_steps(t[low:high], rises)
        if steps.size >= least:
            found[names[group[low]]] = float(np.median(steps, overwrite_input=True))
    return found


def is_out_of_order(t: AnyArray, group: AnyArray) -> bool:
    """Return True if the rows are not sorted by group and time."""
    for here in spans(group, t, overlap=1):
        step = np.diff(group[here])
        if not ((step > 0) | ((step == 0) & (np.diff(t[here]) >= 0))).all():
            return True
    return False

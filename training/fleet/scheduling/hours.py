"""PURE: the hours of the week in which a host may train, by the host's local time.

A text of hours has days, times, or both: ``"mo-fr 18:00-08:00"``, ``"sa su"``, ``"22:00-07:00"``. A span that ends
before it begins ends on the next day; without days it holds every day, without times all day. Minutes count from
Monday, 0:00.
"""

import re
from collections.abc import Iterable

DAYS = ("mo", "tu", "we", "th", "fr", "sa", "su")
DAY = 24 * 60
WEEK = 7 * DAY

Span = tuple[int, int]  # from a minute of the week up to another, 0 ≤ from < up to ≤ WEEK
_TIMES = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)\s*-\s*([01]?\d|2[0-4]):([0-5]\d)")
_DAYS = re.compile(r"[a-z]{2}(\s*-\s*[a-z]{2})?([\s,]+[a-z]{2}(\s*-\s*[a-z]{2})?)*")


class BadHoursError(ValueError):
    """The text is not a valid span of hours. The message is a phrase without subject: ``names neither days nor
    times``."""


def parse(text: str) -> tuple[Span, ...]:
    """Return the spans of the week that one text of hours describes, joined and in the order of the week; raise
    BadHoursError if the text is invalid."""
    said = text.strip().lower()
    times = _TIMES.search(said)
    days = said if times is None else said[: times.start()].strip()
    if times is not None and said[times.end() :].strip():
        raise BadHoursError(f"has more behind its times: {said[times.end() :].strip()!r}")
    if not days and times is None:
        raise BadHoursError("names neither days nor times")
    begin, end = (0, DAY) if times is None else _minutes(times)
    return _spans([_on(day, begin, end) for day in (range(7) if not days else _named(days))])


def union(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return the spans in the order of the week, with spans that overlap or touch joined."""
    joined: list[Span] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return tuple(joined)


def holds(spans: Iterable[Span], minute: int) -> bool:
    """Return True if a minute of the week is within one of the spans; the minute at which a span ends is not within
    it."""
    return any(begin <= minute < end for begin, end in spans)


def opens(spans: Iterable[Span], minute: int) -> str:
    """Return when the next span begins, at or after a minute of the week, as ``mo 18:00``; ``spans`` must not be
    empty."""
    begins = min((begin for begin, _ in spans), key=lambda begin: (begin - minute) % WEEK)
    return f"{DAYS[begins // DAY]} {begins % DAY // 60}:{begins % 60:02}"


def _minutes(times: re.Match[str]) -> Span:
    begin, end = (60 * int(hour) + int(minute) for hour, minute in (times.groups()[:2], times.groups()[2:]))
    if end > DAY:
        raise BadHoursError("ends after 24:00")
    if begin == end:
        raise BadHoursError("begins when it ends; leave the times out for the whole day")
    return begin, end


def _named(days: str) -> set[int]:
    if not _DAYS.fullmatch(days):
        raise BadHoursError(f"names no days: {days!r}")
    found: set[int] = set()
    for first, _, last in (part.partition("-") for part in re.split(r"[\s,]+", re.sub(r"\s*-\s*", "-", days))):
        unknown = [each for each in (first, last or first) if each not in DAYS]
        if unknown:
            raise BadHoursError(f"names no day of the week: {unknown[0]!r}")
        begin, end = DAYS.index(first), DAYS.index(last or first)
        found |= {day % 7 for day in range(begin, (end if end >= begin else end + 7) + 1)}
    return found


def _on(day: int, begin: int, end: int) -> Span:
    return day * DAY + begin, day * DAY + (end if end > begin else end + DAY)


def _spans(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return the spans joined, after splitting each span that passes the end of the week into two."""
    cut: list[Span] = []
    for begin, end in spans:
        cut.append((begin, min(end, WEEK)))
        if end > WEEK:
            cut.append((0, end - WEEK))
    return union(cut)

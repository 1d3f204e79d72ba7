"""Find the columns with a role: time, label, host, episode and window, by their usual names or by flags.

Every other column is a channel. Two columns that could both have one role are refused, naming the flag that chooses
one. All functions are pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from training.data.errors import DataError


class Role(StrEnum):
    """The role of a column; its value is the column's name in all code after the reader."""

    TIME = "t"
    LABEL = "label"
    HOST = "host"
    EPISODE = "episode"
    WINDOW = "window"
    REFERENCE = "reference"

    @property
    def flag(self) -> str:
        return _FLAGS[self]


_FLAGS = {
    Role.TIME: "--time",
    Role.LABEL: "--label",
    Role.HOST: "--host-column",
    Role.EPISODE: "--episode",
    Role.WINDOW: "--window-column",
    Role.REFERENCE: "--reference-column",
}
MEANINGS = {
    Role.TIME: "times",
    Role.LABEL: "labels",
    Role.HOST: "hosts",
    Role.EPISODE: "recordings",
    Role.WINDOW: "windows, as they were cut before",
    Role.REFERENCE: "marks of the hosts' references: true where a row is of one",
}
# Each role's names without case, spaces, underscores, a unit and a closing "id", the surest first.
NAMES: Mapping[Role, tuple[str, ...]] = {
    Role.TIME: (
        *("t", "timestamp", "time", "datetime", "ts", "date", "unixtime", "elapsed"),
        *("zeitstempel", "zeit", "uhrzeit", "datum"),
    ),
    Role.LABEL: (
        *("label", "y", "phase", "target", "class", "category"),
        *("klasse", "annotation", "isanomaly", "isattack"),
    ),
    Role.HOST: ("host", "hostname", "machine", "computer", "node", "nodename", "server", "rechner"),
    Role.EPISODE: ("episode", "session", "recording", "run", "trial"),
    Role.WINDOW: ("window",),
    Role.REFERENCE: ("reference",),
}
LABEL_FIRST = ("label", "y", "phase")  # the first of them is the label, the others are second labels
DAYS, CLOCKS = ("date", "datum"), ("time", "zeit", "uhrzeit")  # a date in one column, the time of day in the next
UNITS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("ms", "msec", "millis", "milliseconds"), "ms"),
    **dict.fromkeys(("us", "µs", "μs", "usec", "micros", "microseconds"), "us"),
    **dict.fromkeys(("ns", "nsec", "nanos", "nanoseconds"), "ns"),
    **dict.fromkeys(("mins", "minute", "minutes"), "min"),
    **dict.fromkeys(("hr", "hrs", "hour", "hours"), "h"),
    **dict.fromkeys(("day", "days"), "d"),
}
UNITS_OF_TIMES = UNITS | {unit: unit for unit in ("min", "h", "d")}  # `t_min` may also be the least temperature
IN_BRACKETS = re.compile(r"\s*[(\[]\s*([^)\]]*?)\s*[)\]]\s*$")
SUFFIX = re.compile(r"[_\s.\-]([^_\s.\-]+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """The column of each role, by its name in the table."""

    columns: Mapping[Role, str] = field(default_factory=dict)
    clock: str | None = None  # the column of the time of day, where the role TIME is a date
    unit: str | None = None  # of the time, by the name of its column
    second_labels: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that are not channels."""
        return (*self.columns.values(), *((self.clock,) if self.clock else ()), *self.second_labels)


def plain(name: str) -> str:
    """A column's name without case, spaces, underscores, dots, and a unit in brackets."""
    return re.sub(r"[\s_\-.]", "", IN_BRACKETS.sub("", name).casefold())


def unit_in(name: str, *, is_time: bool = False) -> str | None:
    """The unit of time that a column's name ends in: ``Time (ms)``, ``t_ns``; None without one.

    Of a column that surely ``is_time`` the name may also be a unit itself (``minute``), or end in ``_min``.
    """
    is_time |= plain(SUFFIX.sub("", name)) == "elapsed"
    for pattern in (IN_BRACKETS, SUFFIX):
        found = pattern.search(name)
        known = UNITS_OF_TIMES if is_time or pattern is IN_BRACKETS else UNITS
        if found and found[1].casefold() in known:
            return known[found[1].casefold()]
    return UNITS_OF_TIMES.get(name.strip().casefold()) if is_time else None


def plural_of(name: str) -> Role | None:
    """The role whose plural a column is named after (``hosts``): that is rather a count than the role itself."""
    word = plain(name)
    singular = {f"{name}s": role for role, names in NAMES.items() for name in names}
    return None if any(word in names for names in NAMES.values()) else singular.get(word)


def roles_of(names: Sequence[str], said: Mapping[Role, str], where: str) -> Roles:
    """Find the column of each role among ``names``. ``said`` has the columns named by flags. Raises DataError."""
    for role, name in said.items():
        if name not in names:
            raise DataError(f"{role.flag} names {name!r}, which is no column of {where}.")
    if len(set(said.values())) < len(said):
        raise DataError("Two flags name one column: a column has one meaning.")
    free = [name for name in names if name not in said.values()]
    columns: dict[Role, str] = {}
    clock, second = None, []
    for role in Role:
        found = sorted((name for name in free if _may_be(role, name, free)), key=lambda name: _rank(role, name))
        if role is Role.LABEL and (role in said or _is_settled(found)):
            found, second = found[: role not in said], found[role not in said :]
        if role is Role.TIME and role not in said and len(found) == 2:
            days, clocks = (next((n for n in found if plain(n) in words), None) for words in (DAYS, CLOCKS))
            found, clock = ([days], clocks) if days and clocks else (found, None)
        one = [said[role]] if role in said else found[:1]
        if len(one) < len({*one, *found}):
            raise _several(role, [*one, *(name for name in found if name not in one)], is_said=role in said)
        columns |= dict.fromkeys((role,), one[0]) if one else {}
    unit = unit_in(columns[Role.TIME], is_time=True) if Role.TIME in columns and clock is None else None
    return Roles(columns=columns, clock=clock, unit=unit, second_labels=tuple(second))


def _may_be(role: Role, name: str, names: Sequence[str]) -> bool:
    """Return True for a usual name of the role. ``y`` beside ``x`` and ``z`` is an axis if another column is the
    label."""
    if role is Role.LABEL and plain(name) == "y":
        others = {plain(other) for other in names} - {"y"}
        if {"x", "z"} <= others and not others.isdisjoint(NAMES[role]):
            return False
    return _word(role, name) in NAMES[role]


def _word(role: Role, name: str) -> str:
    """The name as listed in NAMES, if it is: without "id" at its end, and for a time without its unit."""
    if role is Role.TIME and unit_in(name) and not IN_BRACKETS.search(name):
        name = SUFFIX.sub("", name)
    word = plain(name)
    return word if word in NAMES[role] else word.removesuffix("id")


def _rank(role: Role, name: str) -> int:
    return NAMES[role].index(_word(role, name))


def _is_settled(labels: Sequence[str]) -> bool:
    """Return True when the first of several columns is surely the label: it is called so, or all have an order."""
    words = [_word(Role.LABEL, name) for name in labels]
    if len(set(words)) < len(words):
        return False
    return words[:1] == ["label"] or all(word in LABEL_FIRST for word in words)


def _several(role: Role, names: Sequence[str], *, is_said: bool) -> DataError:
    quoted = ", ".join(repr(name) for name in names[1:])
    if is_said:
        return DataError(f"{role.flag} names {names[0]!r}, and {quoted} may mean the same: leave it out with --ignore.")
    return DataError(
        f"The columns {names[0]!r} and {quoted} may both be the {role.name.lower()}: say which with {role.flag} NAME, "
        "and leave the other out with --ignore."
    )

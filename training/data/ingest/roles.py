"""Find the columns with a role (time, label, host, episode, window, reference) by their usual names or by flags.

Every other column is a channel, except second labels, a time of day beside a date, and columns that --ignore names. Two
columns that could both have one role are refused, unless one of these exceptions applies; the sentence names the flag
for the choice. All functions are pure.
"""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from operator import itemgetter
from typing import NamedTuple

from training.data.errors import DataError


def words_of(table: str) -> dict[str, tuple[str, ...]]:
    """Return the words of each line of ``table``, as a dictionary whose keys are the lines' first words."""
    return {line.split()[0]: tuple(line.split()) for line in table.strip().splitlines()}


class Role(StrEnum):
    """The role of a column; the value is the name that the column has in all code after the reader."""

    TIME = "t"
    LABEL = "label"
    HOST = "host"
    EPISODE = "episode"
    WINDOW = "window"
    REFERENCE = "reference"
    KEY = "key"

    @property
    def flag(self) -> str:
        return _WORDS[self][0]

    @property
    def meaning(self) -> str:
        """The meaning of one cell of a column with this role, in words for the user."""
        return _WORDS[self][1]

    @property
    def cells(self) -> str:
        """The meaning of all cells of a column with this role, in words for the user."""
        return _WORDS[self][2]


_WORDS = {
    Role.TIME: ("--time", "time", "times"),
    Role.LABEL: ("--label", "class", "labels"),
    Role.HOST: ("--host-column", "host", "hosts"),
    Role.EPISODE: ("--episode", "recording", "recordings"),
    Role.WINDOW: ("--window-column", "window", "windows, as they were cut before"),
    Role.REFERENCE: (
        *("--reference-column", "reference of its host"),
        "marks of the hosts' references: true where a row is of one",
    ),
    Role.KEY: ("--key", "channel", "names of the channel that a row's reading is of"),
}
# Each role's names without case, spaces, underscores, a unit and a closing "id", the surest first.
NAMES = {
    Role(role): names
    for role, names in words_of(
        """
        t timestamp time datetime ts date unixtime elapsed zeitstempel zeit uhrzeit datum clock
        label y phase target class category klasse annotation anomaly attack outlier normal normal/attack attacklabel
        host hostname machine computer node nodename server rechner
        episode session recording run trial
        window
        reference
        key metric field series item itemid sensor sensorid parameter measurement variable
        """
    ).items()
}
ROW_NUMBERS = ("index", "row", "rownumber", "rowindex", "id", "")
READINGS = ("value", "val", "reading", "wert")  # of a long table, which has no other channel beside the role KEY
NAMED = tuple(role for role in Role if role is not Role.KEY)
# Of both, a flow, connection or packet has a column.
ENDS = (
    ("srcip", "sourceip", "srcaddr", "sourceaddress", "ipsrc", "idorigh", "saddr", "source"),
    ("dstip", "destinationip", "destip", "dstaddr", "destinationaddress", "ipdst", "idresph", "daddr", "destination"),
)
# Pairs of words in the names of two columns that hold the two ends of an incident.
BOUNDS = (("start", "end"), ("begin", "end"), ("start", "stop"), ("开始", "结束"))
LABEL_FIRST = ("label", "y", "phase")  # the first of them is the label, the others are second labels
SECOND = (  # beside a label, each of them says more of the same
    *("changepoint", "attackcat", "attackcategory", "attacktype", "attackname", "anomalytype", "anomalyclass"),
    *("subtype", "subcategory", "sublabel", "type", "labelname", "labeltype", "multilabel", "binarylabel"),
)
DAYS, CLOCKS = ("date", "datum"), ("time", "zeit", "uhrzeit")  # a date in one column, the time of day in the next
PARTS = ("year", "month", "day", "hour", "minute", "second")  # of a time in several columns; the first three must be
UNITS_OF_TIMES = {
    word: unit
    for unit, words in words_of(
        """
        s sec secs second seconds
        ms msec millis milliseconds
        us µs μs usec micros microseconds
        ns nsec nanos nanoseconds
        min mins minute minutes
        h hr hrs hour hours
        d day days
        """
    ).items()
    for word in words
}
# `t_min` may also be the least temperature.
UNITS = {word: unit for word, unit in UNITS_OF_TIMES.items() if word not in ("min", "h", "d")}
IN_BRACKETS = re.compile(r"\s*[(\[]\s*([^)\]]*?)\s*[)\]]\s*$")
SUFFIX = re.compile(r"[_\s.\-]([^_\s.\-]+)$")


class Roles(NamedTuple):
    """The name in the table of the column for each role, and of other columns that are not channels."""

    columns: Mapping[Role, str] = {}
    clock: tuple[str, ...] = ()  # the further columns of a time: its time of day, or its month, day and hour
    unit: str | None = None  # of the time, by the name of its column
    second_labels: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns that are not channels."""
        return (*self.columns.values(), *self.clock, *self.second_labels)


def plain(name: str) -> str:
    """Return a column's name casefolded, without spaces, underscores, hyphens, dots, and brackets at its end."""
    return re.sub(r"[\s_\-.]", "", IN_BRACKETS.sub("", name).casefold())


def unit_in(name: str, *, is_time: bool = False) -> str | None:
    """Return the unit of time at the end of a column's name, as in ``Time (ms)`` or ``t_ns``; None without one.

    If the column surely holds times (``is_time``), its name may also be a unit itself (``minute``), or end in ``_min``.
    """
    is_time |= plain(SUFFIX.sub("", name)) == "elapsed"
    for pattern in (IN_BRACKETS, SUFFIX):
        found = pattern.search(name)
        known = UNITS_OF_TIMES if is_time or pattern is IN_BRACKETS else UNITS
        if found and found[1].casefold() in known:
            return known[found[1].casefold()]
    return UNITS_OF_TIMES.get(name.strip().casefold()) if is_time else None


def is_row_number(name: str) -> bool:
    """Return True if a column is a row number or an id by its name."""
    word = plain(name)
    return word.startswith(("unnamed", "indexlevel")) or word in ROW_NUMBERS


def twin_of(name: str, names: Sequence[str]) -> str | None:
    """Return the name that a column has in the file, if it was told apart from another column of that name in
    ``names``; else None."""
    twin = re.fullmatch(r"(.*)_duplicated_\d+", name)
    return twin[1] if twin and twin[1] in names else None


def are_flows(names: Sequence[str]) -> bool:
    """Return True if each row of a table with these columns is a flow between two addresses, and no sample."""
    words = {plain(name) for name in names}
    return "flowid" in words or all(not words.isdisjoint(end) for end in ENDS)


def bounds_of(names: Sequence[str]) -> tuple[str, str] | None:
    """Return the names of two columns that may have the begin and the end of each row; None without such."""
    pairs = ((name, name.replace(begin, end)) for name in names for begin, end in BOUNDS if begin in name)
    return next((pair for pair in pairs if pair[1] in names), None)


def plural_of(name: str) -> Role | None:
    """Return the role whose plural is the column's name (``hosts``), as such a column is probably a count; else
    None."""
    word = plain(name)
    singular = {f"{name}s": role for role in NAMED for name in NAMES[role]}
    return None if any(word in names for names in NAMES.values()) else singular.get(word)


def roles_of(names: Sequence[str], said: Mapping[Role, str], where: str) -> Roles:
    """Return the column of each role among the column ``names``; ``said`` has the columns that flags name.

    Raises DataError if a flag names no column, two flags name one column, or several columns may have one role.
    """
    for role, name in said.items():
        if name not in names:
            raise DataError(f"{role.flag} names {name!r}, which is no column of {where}.")
    if len(set(said.values())) < len(said):
        raise DataError("Two flags name one column: a column has one meaning.")
    free = [name for name in names if name not in said.values()]
    columns: dict[Role, str] = {}
    clock: tuple[str, ...] = ()
    second: list[str] = []
    for role in Role:
        may_be = ((NAMES[role].index(_word(role, name)), name) for name in free if _may_be(role, name, free))
        found = [name for _, name in sorted(may_be, key=itemgetter(0))]
        if role is Role.LABEL and (role in said or _is_settled(found)):
            found, second = found[: role not in said], found[role not in said :]
        if role is Role.LABEL and (found or role in said):
            second += [name for name in free if plain(name) in SECOND]
        if role is Role.TIME and role not in said and len(found) == 2:
            days, clocks = (next((n for n in found if plain(n) in words), None) for words in (DAYS, CLOCKS))
            found, clock = ([days], (clocks,)) if days and clocks else (found, ())
        if role is Role.TIME and role not in said and not found:
            parts = {plain(name): name for name in free if plain(name) in PARTS}
            if {*PARTS[:3]} <= parts.keys():
                year, *rest = (parts[word] for word in PARTS if word in parts)
                found, clock = [year], tuple(rest)
        one = [said[role]] if role in said else found[:1]
        if len(one) < len({*one, *found}):
            raise _several(role, [*one, *(name for name in found if name not in one)], is_said=role in said)
        columns |= dict.fromkeys((role,), one[0]) if one else {}
    unit = unit_in(columns[Role.TIME], is_time=True) if Role.TIME in columns and not clock else None
    return Roles(columns=columns, clock=clock, unit=unit, second_labels=tuple(second))


def _may_be(role: Role, name: str, names: Sequence[str]) -> bool:
    """Return True if ``name`` is a usual name of the role; but ``y`` beside ``x`` and ``z`` is an axis if another
    column may be the label, and a table with more channels than one reading is not long."""
    if _word(role, name) not in NAMES[role]:
        return False
    if role is Role.LABEL and plain(name) == "y":
        others = {plain(other) for other in names} - {"y"}
        if {"x", "z"} <= others and not others.isdisjoint(NAMES[role]):
            return False
    if role is Role.TIME and _word(role, name) == "clock":  # of Zabbix, elsewhere a processor's
        return "itemid" in map(plain, names)
    if role is Role.KEY:
        rest = [other for other in names if other != name and not any(_may_be(one, other, names) for one in NAMED)]
        return len(rest) == 1 and plain(rest[0]) in READINGS
    return True


def _word(role: Role, name: str) -> str:
    """Return the plain name as ``NAMES`` lists it: without a final "id" if it is listed only so, for labels without
    "is" before it, and for times without a unit."""
    if role is Role.TIME and unit_in(name) and not IN_BRACKETS.search(name):
        name = SUFFIX.sub("", name)
    word = plain(name)
    if role is Role.LABEL:
        word = word.removeprefix("is")
    return word if word in NAMES[role] else word.removesuffix("id")


def _is_settled(labels: Sequence[str]) -> bool:
    """Return True if the first of several columns is surely the label: it is called ``label``, or ``LABEL_FIRST`` ranks
    all of them."""
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

"""Read one TOML table key by key, collecting every problem instead of stopping at the first.

A *kind* is a function that takes a raw value and returns it checked, or raises :class:`WrongValueError`. A
:class:`TomlTable` notes the keys that were read; :meth:`TomlTable.finish` reports every other key as unknown, with a
hint at the right name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

from training.fleet.capability.describe import shown, whole_number
from training.frozen import frozen
from training.printable import printable

KeyPath = tuple[str | int, ...]
T = TypeVar("T")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
# Finding the nearest name is quadratic; a file with this many mistakes is not going to be mended by spelling.
_SUGGESTIONS_MAX = 200


@frozen
class UnplacedMistake:
    """A mistake in the manifest, at the key ``path``; its line may not be known yet."""

    path: KeyPath
    message: str
    suggestion: str = ""
    line: int | None = None
    missing: bool = False  # a key is missing, not wrong


class WrongValueError(ValueError):
    """The value of a key is not allowed. ``more`` holds the further mistakes of a value that has several."""

    def __init__(
        self, message: str, suggestion: str = "", *, at: KeyPath = (), more: Sequence[WrongValueError] = ()
    ) -> None:
        super().__init__(message)
        self.message, self.suggestion, self.at, self.more = message, suggestion, at, more

    @classmethod
    def of(cls, wrong: Sequence[WrongValueError]) -> WrongValueError:
        """Join several mistakes of one value into one error."""
        return cls(wrong[0].message, wrong[0].suggestion, at=wrong[0].at, more=wrong[1:])


Kind = Callable[[Any], T]


class TomlTable:
    """A table of the manifest at ``path``; its mistakes are added to the list ``problems``, which all tables share.

    ``moved`` maps a key of a table that a matrix made to the place of its value in the file. ``once`` holds the
    problems of all tables made from one entry, so that each problem is reported once.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        path: KeyPath,
        problems: list[UnplacedMistake],
        *,
        moved: Mapping[KeyPath, KeyPath] = MappingProxyType({}),
        once: set[UnplacedMistake] | None = None,
    ) -> None:
        self.values, self.path, self.problems = values, path, problems
        self._asked: dict[str, None] = {}
        self._wrong: set[str] = set()
        self._moved, self._once = moved, once

    @property
    def varied(self) -> Iterable[str]:
        """The top-level keys by which tables made from the same entry differ; a rotation is represented by
        ``test_hosts`` alone."""
        return (str(place[0]) for place in self._moved)

    def has(self, key: str) -> bool:
        return key in self.values

    def is_wrong(self, *keys: str) -> bool:
        """Tell whether the value of one of these keys was found wrong."""
        return not self._wrong.isdisjoint(keys)

    def judge(self, kind: Kind[T], name: str, suggestion: str = "") -> None:
        """Check the table's own name, and report it if it is wrong."""
        try:
            kind(name)
        except WrongValueError as wrong:
            self.report((), wrong.message, suggestion)

    def table(self, key: str) -> TomlTable:
        """Return the sub-table under ``key``; an empty one if it is absent or, after reporting, not a table."""
        found = self.values.get(key, {})
        self._asked[key] = None
        if not isinstance(found, dict):
            hint = "write key = value pairs below its header"
            self.report((key,), f"must be a table, not {shown(found)}", hint)
            found = {}
        return TomlTable(found, (*self.path, key), self.problems)

    def take(self, key: str, kind: Kind[T], default: T, *, required: bool = False) -> T:
        """Return the checked value of ``key``; ``default`` when it is absent or, after reporting, wrong. An absent
        ``required`` key is reported."""
        self._asked[key] = None
        if key not in self.values:
            if required:
                self.report((), f"`{key}` is missing", f"add {key} = …", missing=True)
            return default
        try:
            return kind(self.values[key])
        except WrongValueError as wrong:
            self._wrong.add(key)
            for one in (wrong, *wrong.more):
                self.report((key, *one.at), one.message, one.suggestion)
            return default

    def skip(self, key: str) -> None:
        """Mark ``key`` as known, because another check reads it."""
        self._asked[key] = None

    def tables(self, key: str, *, array: bool = False) -> list[tuple[str, TomlTable]]:
        """Return (name, table) for each ``[key.<name>]``, or with ``array`` (number, table) for each ``[[key]]``. What
        is not a table is reported."""
        self._asked[key] = None
        value = self.values.get(key, [] if array else {})
        if array and not isinstance(value, list):
            self.report((key,), f"`{key}` must be a list of tables", f"begin each with [[{key}]]")
            return []
        if not array and not isinstance(value, dict):
            self.report((key,), f"`{key}` must be a table, not {shown(value)}", f"write [{key}]")
            return []
        found = []
        for name, entry in enumerate(value) if array else value.items():
            if isinstance(entry, dict):
                found.append((str(name), TomlTable(entry, (*self.path, key, name), self.problems)))
            else:
                header = f"[[{key}]]" if array else f"[{key}.{name}]"
                self.report((key, name), f"must be a table, not {shown(entry)}", f"write {header}")
        return found

    def report(self, at: KeyPath, message: str, suggestion: str = "", *, missing: bool = False) -> None:
        place = next((at[:length] for length in range(len(at), 0, -1) if at[:length] in self._moved), None)
        there = at if place is None else (*self._moved[place], *at[len(place) :])
        problem = UnplacedMistake((*self.path, *there), message, suggestion, missing=missing)
        if self._once is None:
            self.problems.append(problem)
            return
        same = replace(problem, path=at)  # of each value of a key
        if same not in self._once:
            self.problems.append(problem)
        self._once.add(same)

    def finish(self, what: str, instead: Mapping[str, str] | None = None) -> None:
        """Report the keys that were not read, as unknown. ``what`` names the table in the sentence, and ``instead``
        maps a key to its hint."""
        for key in self.values:
            if key not in self._asked:
                hint = (instead or {}).get(key) or nearest(key, self._asked, self.problems)
                self.report((key,), f"{what} has no key `{printable(key)[:80]}`", hint)


def nearest(name: str, known: Iterable[str], problems: Sequence[UnplacedMistake] = ()) -> str:
    """Return a hint at the right name: the nearest known name, or all known names when none is near or there are
    already too many ``problems``; empty if no name is known."""
    names = sorted(known)
    if len(problems) < _SUGGESTIONS_MAX and (near := closest(name, names)) is not None:
        return f"did you mean `{near}`?"
    return "known: " + ", ".join(names) if names else ""


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name nearest to a misspelled one; None if none is near."""
    if len(name) > 80:
        return None
    plain = {other.replace("_", "").lower(): other for other in sorted(known)}
    sought = name.replace("-", "").replace("_", "").lower()
    import difflib  # 150 KiB that the receiver would keep

    close = difflib.get_close_matches(sought, plain, n=1, cutoff=0.6)
    return plain[close[0]] if close else None


def whole(low: int, high: int) -> Kind[int]:
    """Make the check for a whole number from ``low`` to ``high``. 3.0 is accepted as 3, so that two ways of writing a
    number mean the same."""

    def kind(value: Any) -> int:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        number = whole_number(value) if is_number else None
        if number is not None and low <= number <= high:
            return number
        raise WrongValueError(f"must be a whole number from {low} to {high}, not {shown(value)}")

    return kind


def real(low: float, high: float) -> Kind[float]:
    def kind(value: Any) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:
            return float(value) + 0.0
        raise WrongValueError(f"must be a number from {low:g} to {high:g}, not {shown(value)}")

    return kind


def switch(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise WrongValueError(f"must be true or false, not {shown(value)}")


def text(chars_max: int, *, empty: bool = False) -> Kind[str]:
    """Make the check for printable text of 1 (with ``empty``: 0) to ``chars_max`` characters in one line, without
    blanks around it."""

    def kind(value: Any) -> str:
        if (
            isinstance(value, str)
            and (empty or value)
            and len(value) <= chars_max
            and value.isprintable()
            and value == value.strip()
        ):
            return value
        least = 0 if empty else 1
        raise WrongValueError(
            f"must be {least} to {chars_max} printable characters without blanks around them, not {shown(value)}"
        )

    return kind


def matching(pattern: re.Pattern[str], description: str) -> Kind[str]:
    def kind(value: Any) -> str:
        if isinstance(value, str) and pattern.fullmatch(value):
            return value
        raise WrongValueError(f"must be {description}, not {shown(value)}")

    return kind


def one_of(options: Iterable[str], what: str) -> Kind[str]:
    """Make the check for one of the names in ``options``; ``what`` says in errors what they name."""
    known = list(options)

    def kind(value: Any) -> str:
        if isinstance(value, str) and value in known:
            return value
        if isinstance(value, str):
            raise WrongValueError(f"there is no {what} `{printable(value)[:80]}`", nearest(value, known))
        raise WrongValueError(f"must be a {what}, not {shown(value)}", "known: " + ", ".join(known))

    return kind


def list_of(
    kind: Kind[str], *, least: int = 0, most: int = 10_000, words: Callable[[str], Iterable[str]] = lambda text: (text,)
) -> Kind[tuple[str, ...]]:
    """Make the check for a list of ``least`` to ``most`` entries, each checked by ``kind``; all wrong entries are
    reported.

    ``words`` splits a text that is given instead of a list into the probable entries, for the hint.
    """

    def whole_list(value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or not least <= len(value) <= most:
            hint = f"write [{', '.join(map(_quoted, words(value)))}]" if isinstance(value, str) else ""
            found = f"one of {len(value)}" if isinstance(value, list) else shown(value)
            raise WrongValueError(f"must be a list of {least} to {most} entries, not {found}", hint)
        good: list[str] = []
        wrong: list[WrongValueError] = []
        for index, entry in enumerate(value):
            try:
                good.append(kind(entry))
            except WrongValueError as found:
                wrong.append(WrongValueError(found.message, found.suggestion, at=(index,)))
        if wrong:
            raise WrongValueError.of(wrong)
        return tuple(good)

    return whole_list


def _quoted(value: str) -> str:
    return f'"{printable(value)[:60]}"'


def path_text(path: KeyPath) -> str:
    """Return a key path as a person writes it: ``("jobs", 2, "hyper", "lr")`` as ``jobs[2].hyper.lr``."""
    written = ""
    for part in path:
        if isinstance(part, int):
            written += f"[{part}]"
        else:
            bare = part if _BARE_KEY.fullmatch(part) else _quoted(part)
            written += f".{bare}" if written else bare
    return written

"""Decide which columns of text are numbers, and whether their decimal sign is a point or a comma.

Spreadsheets and loggers write numbers as usual in their country. A column with two possible readings is refused unless
--decimal or the other columns decide: ``1,234`` may be a thousand or a fraction. DuckDB counts the cells that match
each pattern of this module, and the decision follows from the counts.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from training.data.errors import DataError
from training.data.ingest.cells import CellStore, literal

BLANK = " \t\r\n\v\f\u00a0\u2007\u2009\u202f"
NOTHING = (  # what programs write for no number
    *("", "na", "n/a", "#n/a", "nan", "null", "none", "nil", "-", "--", "?", "[n/a]", "[not supported]"),
)
WHOLE = r"\s*[+-]?\d+\s*"
NUMBER = r"(?i)\s*[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf(inity)?|nan)\s*"
COMMA_DECIMAL = r"[+-]?(\d+|\d{1,3}([.' ]\d{3})+)?,\d+([eE][+-]?\d+)?"
POINT_GROUPS = r"[+-]?[1-9]\d{0,2}(\.\d{3})+"  # 1.234: thousands, or decimals
COMMA_GROUPS = r"[+-]?[1-9]\d{0,2}(,\d{3})+"
POINT_DECIMAL = r"[+-]?\d*\.\d+"
ENGLISH = r"[+-]?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?"  # 1,234.5
THOUSANDS = r"[+-]?(\d|[1-9]\d{1,2}|[1-9]\d{0,2}(\.\d{3})+)"  # 987, 1.234: whole numbers, if points group them
UNIT = r"([+-]?(?:\d+\.?\d*|\.\d+))\s*(%|°?[A-Za-zµ]{1,5}(?:/[A-Za-z]{1,3})?)(?:\s*/\s*\d.*)?"  # 63 %, 1.2GiB / 8GiB
BYTES = {  # units of one amount, as container tools change them from cell to cell
    **dict.fromkeys(("B",), 1),
    **{f"{sign}B": 1000**power for power, sign in enumerate(("k", "M", "G", "T"), 1)},
    **{f"{sign}iB": 1024**power for power, sign in enumerate(("K", "M", "G", "T"), 1)},
}
NUMERALS = "|".join([*map(re.escape, NOTHING), NUMBER.removeprefix("(?i)"), ENGLISH, COMMA_DECIMAL, THOUSANDS])
NUMERAL = f"(?i)[{BLANK}]*({NUMERALS})[{BLANK}]*"
HEAD = 1000  # rows that are looked at for words
AT_ONCE = 100  # counts in one query

Fact = Callable[[str], str]


class Kind(StrEnum):
    """The kind of content of a column."""

    WHOLE = "whole numbers"
    NUMBER = "numbers"
    BOOLEAN = "yes and no"
    TEXT = "text"
    OTHER = "other things"


class Verdict(NamedTuple):
    """The kind of a column, and an SQL expression that makes its cells ready to be cast to that kind; text stays as it
    is."""

    kind: Kind
    sql: str

    @property
    def is_number(self) -> bool:
        return self.kind in PLAIN

    @property
    def number(self) -> str:
        """The SQL expression for the values as floating-point numbers."""
        return f"TRY_CAST({f'CAST({self.sql} AS BOOLEAN)' if self.kind is Kind.BOOLEAN else self.sql} AS DOUBLE)"


def fits(pattern: str) -> Fact:
    """Return a function that makes the SQL condition that a cell matches the whole pattern."""
    return lambda cell: f"regexp_full_match({cell}, {literal(pattern)})"


def without_words(cell: str) -> str:
    """Return the SQL expression for a cell without spaces around it; it is NULL for a word that means "no value"."""
    trimmed = f"trim({cell}, {literal(BLANK)})"
    return f"CASE WHEN lower({trimmed}) IN ({', '.join(map(literal, NOTHING))}) THEN NULL ELSE {trimmed} END"


def without_unit(cell: str, units: Collection[str]) -> str:
    """Return the SQL expression for the number in a cell that ends with one of ``units``; several are of ``BYTES``."""
    number, unit = (f"regexp_extract({cell}, {literal(UNIT)}, {group})" for group in (1, 2))
    if len(units) == 1:
        return f"nullif({number}, '')"
    factor = " ".join(f"WHEN {literal(one)} THEN {BYTES[one]}" for one in sorted(units))
    return f"CAST(TRY_CAST({number} AS DOUBLE) * CASE {unit} {factor} END AS VARCHAR)"


def without_groups(cell: str) -> str:
    return f"replace({cell}, ',', '')"


def with_points(cell: str) -> str:
    return f"replace(regexp_replace({cell}, '[.'' ]', '', 'g'), ',', '.')"


PLAIN: Mapping[Kind, str] = {Kind.WHOLE: "whole", Kind.NUMBER: "number", Kind.BOOLEAN: "boolean"}
RAW: Mapping[str, Fact] = {  # of cells as they are written
    "cells": lambda cell: f"{cell} IS NOT NULL",
    "whole": fits(WHOLE),
    "number": fits(NUMBER),
    "boolean": fits("(?i)true|false"),
}
WRITTEN: Mapping[str, Fact] = {  # of cells without words
    "known": lambda cell: f"{cell} IS NOT NULL",
    "whole": fits(WHOLE),
    "number": fits(NUMBER),
    "comma": lambda cell: f"contains({cell}, ',')",
    "comma_decimal": fits(COMMA_DECIMAL),
    "comma_groups": fits(COMMA_GROUPS),
    "point_groups": fits(POINT_GROUPS),
    "surely_commas": lambda cell: f"{fits(COMMA_DECIMAL)(cell)} AND NOT {fits(COMMA_GROUPS)(cell)}",
    "surely_points": lambda cell: f"{fits(POINT_DECIMAL)(cell)} AND NOT {fits(POINT_GROUPS)(cell)}",
    "english": fits(ENGLISH),
    "grouped": fits(r".*,\d{3}\..*"),
    "thousands": fits(THOUSANDS),
    "several_points": fits(r".*\.\d{3}\..*"),
    "number_without_groups": lambda cell: fits(NUMBER)(without_groups(cell)),
    "number_with_points": lambda cell: fits(NUMBER)(with_points(cell)),
}


class Counts:
    """The number of a column's cells that match each pattern, by the pattern's name; ``known`` names the count of cells
    with a value."""

    def __init__(self, counts: Mapping[str, int], known: str = "known") -> None:
        self._counts, self._known = counts, counts[known]

    def any(self, fact: str) -> bool:
        """Return True if at least one cell matches the pattern called ``fact``."""
        return self._counts[fact] > 0

    def each(self, *facts: str) -> bool:
        """Return True if there are cells with a value, and the matches of these patterns add up to their number."""
        return 0 < self._known == sum(self._counts[fact] for fact in facts)

    @property
    def may_be_thousands(self) -> bool:
        """True if all cells may be whole numbers, some with points between thousands, and some without or with several
        points."""
        return self.each("thousands") and self.any("point_groups") and (self.any("whole") or self.any("several_points"))


def counted_facts(
    store: CellStore, names: Sequence[str], facts: Mapping[str, Fact], cell: Fact = str, most: int | None = None
) -> dict[str, dict[str, int]]:
    """Return, for each column, the number of cells that match each pattern in ``facts``, in the first ``most`` rows or
    in all.

    ``cell`` turns the name of a column into the SQL expression that is matched.
    """
    found: dict[str, dict[str, int]] = {}
    step = max(1, AT_ONCE // len(facts))
    for low in range(0, len(names), step):
        some = {name: store.column(name) for name in names[low : low + step]}
        counts = (f"count_if({fact(f'({cell(column)})')})" for column in some.values() for fact in facts.values())
        (answer,) = store.ask(", ".join(counts), f"WHERE rowid < {most or store.rows}")
        numbers = iter(answer)
        found |= {name: {fact: next(numbers) for fact in facts} for name in some}
    return found


def kinds_of(
    store: CellStore,
    names: Sequence[str],
    as_written: Collection[str] = (),
    decimal: str | None = None,
    roles: Collection[str] = (),
) -> tuple[dict[str, Verdict], str]:
    """Return the verdict on each column, and words on the decimal sign if that is unusual.

    In a text file, columns in ``as_written`` (ids) stay text, and those in ``roles`` are no numbers with a unit behind
    them. ``decimal`` is the decimal sign that the user gave, or None. Raises DataError for a column of numbers with two
    readings.
    """
    if store.dialect is None:
        return {name: Verdict(_of_type(store.types[store.column(name)]), store.column(name)) for name in names}, ""
    delimiter = store.dialect.delimiter
    found = {}
    raw = counted_facts(store, names, {**RAW, **({"thousands": fits(THOUSANDS)} if delimiter == ";" else {})})
    for name, counts in raw.items():
        of = Counts(counts, "cells")
        kind = next((kind for kind, fact in PLAIN.items() if of.each(fact)), Kind.TEXT)
        found[name] = Verdict(Kind.TEXT if name in as_written else kind, store.column(name))
    measured = [name for name in names if name not in as_written and raw[name]["cells"]]
    unlike = [name for name in measured if not found[name].is_number]
    heads = counted_facts(store, unlike, {"cells": RAW["cells"], "numerals": fits(NUMERAL)}, most=HEAD)
    words = [name for name in unlike if heads[name]["numerals"] < heads[name]["cells"]]
    measured, unlike = ([name for name in some if name not in words] for some in (measured, unlike))
    units = _with_units(store, [name for name in words if name not in roles])
    found |= {name: verdict for name, (verdict, _) in units.items()}
    written = _written(store, unlike)
    how = ""
    if decimal == "," or any(of.each("comma_decimal", "whole") and of.any("comma") for of in written.values()):
        written = _written(store, measured)
        how = "commas between thousands" if decimal == "." else "decimal commas"
        found |= {name: Verdict(Kind.TEXT, store.column(name)) for name in measured}
    elif decimal is None and delimiter == ";":
        grouped = [
            name
            for name in measured
            if found[name].kind is Kind.NUMBER and Counts(raw[name], "cells").each("thousands")
        ]
        for name, of in (written | _written(store, grouped)).items():
            if of.may_be_thousands:
                raise _unclear(store, name, ("point_groups",))
    for name, of in written.items():
        kind = Kind.WHOLE if of.each("whole") else Kind.NUMBER
        if of.each("number"):
            found[name] = Verdict(kind, without_words(store.column(name)))
        elif of.each("english") and of.any("grouped"):
            found[name] = Verdict(kind, without_groups(without_words(store.column(name))))
    if how:
        found |= _with_decimals(store, written, delimiter, decimal)
    return found, ", ".join(part for part in (how, *(words for _, words in units.values())) if part)


def _with_units(store: CellStore, names: Sequence[str]) -> dict[str, tuple[Verdict, str]]:
    """Return the verdicts on the columns whose cells all are a number with the same unit behind it, or units of bytes;
    and words on the unit."""
    found = {}
    for name in names:
        cell = without_words(store.column(name))
        unit = f"regexp_extract({cell}, {literal(UNIT)}, 2)"
        ((known, fit),) = store.ask(f"count({cell}), count_if({fits(UNIT)(cell)})")
        if not 0 < known == fit:
            continue
        units = [row[0] for row in store.ask(f"DISTINCT {unit}", f"WHERE {cell} IS NOT NULL LIMIT {len(BYTES) + 1}")]
        if len(units) == 1 or set(units) <= BYTES.keys():
            said = units[0] if len(units) == 1 else "bytes"
            found[name] = Verdict(Kind.NUMBER, without_unit(cell, units)), f"{name} in {said}"
    return found


def _written(store: CellStore, names: Sequence[str]) -> dict[str, Counts]:
    facts = counted_facts(store, names, WRITTEN, without_words)
    return {name: Counts(counts) for name, counts in facts.items()}


def _with_decimals(
    store: CellStore, columns: Mapping[str, Counts], delimiter: str, decimal: str | None
) -> dict[str, Verdict]:
    """Return the verdicts on those columns of numbers that contain commas or points. The table has decimal commas, or
    the user gave its decimal sign.

    In a table with decimal commas, ``1,234`` and ``1.234`` may be thousands or decimals. Raises DataError for a column
    in which neither a cell, nor --decimal, nor the other columns decide. Unless commas separate the columns, ``1,234``
    is a decimal if some column surely has decimal commas, none surely has decimal points, and its own column has no
    whole numbers.
    """
    commas = any(of.any("surely_commas") for of in columns.values())
    points = any(of.any("surely_points") for of in columns.values())
    found = {}
    for name, of in columns.items():
        if of.each("whole"):
            continue
        cell = without_words(store.column(name))
        unclear: tuple[str, ...] = ("comma_groups",)
        if delimiter != ",":
            fraction = commas and not points and not of.any("whole")
            unclear = ("point_groups",) if fraction else ("comma_groups", "point_groups")
        if decimal is None and of.each(*unclear, "whole") and any(map(of.any, unclear)):
            raise _unclear(store, name, unclear)
        if decimal == ",":
            is_comma = of.any("comma") or of.each("point_groups", "whole") or of.may_be_thousands
        else:
            is_comma = decimal is None and of.each("comma_decimal", "whole")
        if is_comma and of.each("number_with_points"):
            found[name] = Verdict(Kind.NUMBER, with_points(cell))
        elif decimal == "." and of.any("comma") and of.each("number_without_groups"):
            found[name] = Verdict(Kind.NUMBER, without_groups(cell))
    return found


def _unclear(store: CellStore, name: str, facts: Collection[str]) -> DataError:
    cell = without_words(store.column(name))
    condition = " OR ".join(WRITTEN[fact](f"({cell})") for fact in facts)
    ((first,),) = store.ask(cell, f"WHERE {condition} ORDER BY rowid LIMIT 1")
    return DataError(
        f"The column {name!r} of {store.path} holds {first}, which is a thousand or a fraction: say which sign stands "
        "before decimals with --decimal comma (or point), or leave the column out with --ignore."
    )


def _of_type(kind: str) -> Kind:
    if kind in ("BOOLEAN", "VARCHAR"):
        return Kind.TEXT if kind == "VARCHAR" else Kind.BOOLEAN
    if kind.removeprefix("U") in ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT"):
        return Kind.WHOLE
    return Kind.NUMBER if kind in ("FLOAT", "DOUBLE") or kind.startswith("DECIMAL(") else Kind.OTHER

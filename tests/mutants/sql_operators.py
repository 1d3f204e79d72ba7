"""Small bugs in the named SQL statements: a condition or a column dropped, an order reversed, a bound moved."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator

from mutants.mutant import Mutant, numbered

_NAMED = re.compile(r"^-- name: (\S+)[^\n]*\n", re.MULTILINE)
_BOUNDS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}


def mutants_of(path: str, text: str, schema: str) -> list[Mutant]:
    """Every mutant of a file of named statements that SQLite still accepts, in the order of the text."""
    database = sqlite3.connect(":memory:")
    database.executescript(schema)
    found = list[Mutant]()
    marks = list(_NAMED.finditer(text))
    for mark, following in zip(marks, [*marks[1:], None], strict=True):
        begin, end = mark.end(), following.start() if following else len(text)
        body = text[begin:end].rstrip()
        for operator, start, old, new in _changes(body):
            changed = body[:start] + new + body[start + len(old) :]
            if changed.strip() != body.strip() and _is_sql(database, changed):
                line = text.count("\n", 0, begin + start) + 1
                found.append(Mutant(path, mark[1], operator, line, begin + start, old, new))
    database.close()
    return numbered(found)


def _is_sql(database: sqlite3.Connection, statement: str) -> bool:
    names = dict.fromkeys(re.findall(r":(\w+)", statement))
    try:
        database.execute(f"EXPLAIN {statement}", names).fetchall()
    except sqlite3.Error:
        return False
    return True


def _changes(body: str) -> Iterator[tuple[str, int, str, str]]:
    yield from _dropped(body)
    for match in re.finditer(r"(?<![<>=])(<=|>=|<|>)(?![<>=])", body):
        yield "relation", match.start(), match[0], _BOUNDS[match[0]]
    for match in re.finditer(r" DESC\b", body):
        yield "order reversed", match.start(), match[0], " ASC"
    for match in re.finditer(r"ORDER BY [^\n)]*?(?= LIMIT|\)|$)", body, re.MULTILINE):
        yield "order dropped", match.start(), match[0], ""
    for match in re.finditer(r" LIMIT [:\w]+", body):
        yield "limit dropped", match.start(), match[0], ""
    for match in re.finditer(r"\bNOT EXISTS\b", body):
        yield "not dropped", match.start(), match[0], "EXISTS"
    for match in re.finditer(r"\b(min|max)\(", body):
        yield "other extreme", match.start(), match[0], "max(" if match[1] == "min" else "min("
    for match in re.finditer(r" \+ 1\b", body):
        yield "arithmetic", match.start(), match[0], " + 2"
    for match in re.finditer(r"\bIS NOT NULL\b|\bIS NULL\b", body):
        yield ("not dropped", match.start(), match[0], "IS NULL" if "NOT" in match[0] else "IS NOT NULL")


def _dropped(body: str) -> Iterator[tuple[str, int, str, str]]:
    """Each condition of a WHERE, ON or HAVING, and each column of a SET, left out in turn."""
    for clause in re.finditer(r"\b(WHERE|SET|ON(?!\s+CONFLICT)|HAVING)\b", body):
        begin = clause.end()
        end = _end_of(body, begin)
        comma = clause[1] == "SET"
        parts = list(_split(body, begin, end, "," if comma else "AND"))
        if len(parts) == 1:
            if not comma:
                start, stop = parts[0]
                yield "condition dropped", start, body[start:stop], " true "
            continue
        for number, (start, stop) in enumerate(parts):
            if comma:
                first = number == 0
                written = start + len(body[start:stop].rstrip())
                cut = (start, parts[1][0]) if first else (parts[number - 1][1], written)
                yield "column not set", cut[0], body[cut[0] : cut[1]], " " if first else ""
            else:
                yield "condition dropped", start, body[start:stop], " true "


def _end_of(body: str, begin: int) -> int:
    depth = 0
    for match in re.finditer(
        r"[()]|\b(?:RETURNING|GROUP BY|ORDER BY|LIMIT|LEFT JOIN|JOIN|WHERE|UNION|HAVING)\b", body[begin:]
    ):
        if match[0] == "(":
            depth += 1
        elif match[0] == ")":
            depth -= 1
            if depth < 0:
                return begin + match.start()
        elif depth == 0:
            return begin + match.start()
    return len(body)


def _split(body: str, begin: int, end: int, word: str) -> Iterator[tuple[int, int]]:
    depth, start = 0, begin
    pattern = r"[(),]" if word == "," else r"[()]|\bAND\b"
    for match in re.finditer(pattern, body[begin:end]):
        if match[0] == "(":
            depth += 1
        elif match[0] == ")":
            depth -= 1
        elif depth == 0:
            yield start, begin + match.start()
            start = begin + match.end()
    yield start, end

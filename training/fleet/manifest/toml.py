"""The parser of a manifest's TOML, which finds up to :data:`SYNTAX_MISTAKES_MAX` syntax mistakes if each stands alone
in its line.

``tomllib`` stops at the first mistake. A ``key = value`` line whose mistake stands alone is skipped and reading
continues, so that one wrong quote does not hide ten wrong names further down.
"""

import re
import tomllib
from dataclasses import field
from pathlib import Path
from typing import Any

from training.fleet.manifest.reader import UnplacedMistake
from training.frozen import frozen
from training.printable import printable

BYTES_MAX = 1024 * 1024
# A key of n parts costs tomllib n² memory, and so does a file of nested brackets in stack. Plans need three levels.
DOTS_A_LINE_MAX = 100
SYNTAX_MISTAKES_MAX = 20

_PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")
_STATEMENT = re.compile(r"""^\s*(?P<key>[A-Za-z0-9_."'-]+)\s*=""")
_REMEDIES = {
    "Cannot overwrite a value": "remove one",
    "Invalid value": 'write text in quotes ("…"), true and false in small letters, numbers plainly',
    "Unclosed array": "close the list with ]",
    "Illegal character '\\n'": "close the quote in the same line",
    "Expected newline or end of document after a statement": "write one key = value in a line",
    "Expected '=' after a key in a key/value pair": "write key = value",
}


class UnreadableError(Exception):
    """The file cannot be read at all; the attribute ``problem`` names the cause."""

    def __init__(self, message: str, suggestion: str = "", line: int | None = None) -> None:
        super().__init__(message)
        self.problem = UnplacedMistake((), message, suggestion, line)


@frozen
class Document:
    """The values of a manifest that could be parsed, and its syntax mistakes.

    ``partial``: unreadable lines were skipped, so a key that seems missing may be in one of them.
    """

    values: dict[str, Any]
    problems: list[UnplacedMistake] = field(default_factory=list)
    partial: bool = False


def read_source(path: Path) -> str:
    """Return the text of the file ``path``. Raises :class:`UnreadableError` if it cannot be read, is no regular file,
    is larger than :data:`BYTES_MAX`, or is not UTF-8."""
    try:
        if path.exists() and not path.is_file():
            raise UnreadableError("this is not a regular file", "name the manifest itself")
        with path.open("rb") as file:
            raw = file.read(BYTES_MAX + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnreadableError(f"cannot be read: {reason}", "check the path and its permissions") from None
    except ValueError:  # a NUL in the name
        raise UnreadableError("cannot be read: this is not a path") from None
    if len(raw) > BYTES_MAX:
        raise UnreadableError(
            f"is larger than {BYTES_MAX // 1024} KiB", "write jobs that differ in a few values as one, with `matrix`"
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UnreadableError("is not UTF-8 text", "save the file as UTF-8", line) from None


def parse(source: str) -> Document:
    """Parse TOML, skipping single lines that cannot be read; mistakes are in the returned document, none is raised.

    If a mistake is not in one line alone, or there are too many, the document has no values.
    """
    lines = source.split("\n")
    for number, line in enumerate(lines, 1):
        if line.count(".") > DOTS_A_LINE_MAX:
            message = f"more than {DOTS_A_LINE_MAX} dots in one line"
            return Document({}, [UnplacedMistake((), message, "shorten it", number)], partial=True)
    problems: list[UnplacedMistake] = []
    while True:
        try:
            return Document(tomllib.loads("\n".join(lines)), problems, partial=bool(problems))
        except RecursionError:
            problem = UnplacedMistake((), "values are nested too deeply", "no key takes nested lists")
            return Document({}, [*problems, problem], partial=True)
        except ValueError as error:  # TOMLDecodeError, and int() refusing thousands of digits
            problem, number = _explain(str(error), lines)
            problems.append(problem)
        if len(problems) >= SYNTAX_MISTAKES_MAX or not _stands_alone(lines, number):
            return Document({}, problems, partial=True)
        lines[number - 1] = ""


def _explain(error: str, lines: list[str]) -> tuple[UnplacedMistake, int]:
    """Return tomllib's error as a problem with its line, and the number of that line."""
    place = _PLACE.search(error)
    number = min(int(place[1]), len(lines)) if place and place[1] else len(lines)
    message = _PLACE.sub("", error)
    statement = _STATEMENT.match(lines[number - 1])
    if message == "Cannot overwrite a value" and statement:
        message = f"`{printable(statement['key'])}` is set a second time in its table"
        return UnplacedMistake((), message, _REMEDIES["Cannot overwrite a value"], number), number
    remedy = _REMEDIES.get(message, "see https://toml.io for the syntax")
    return UnplacedMistake((), f"this is not TOML: {printable(message)[:200]}", remedy, number), number


def _stands_alone(lines: list[str], number: int) -> bool:
    """Tell whether the mistake is in this line alone: the line begins a statement, and all lines before it parse."""
    if not _STATEMENT.match(lines[number - 1]):
        return False
    try:
        tomllib.loads("\n".join(lines[: number - 1]))
    except (ValueError, RecursionError):
        return False
    return True

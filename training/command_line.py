"""The start of every program's command line: the name that its user typed, and ``--version``."""

import argparse
import sys
from typing import Any, NoReturn, TypeVar

from training.installed import own_version

_Parser = TypeVar("_Parser", bound=argparse.ArgumentParser)


class _Version(argparse.Action):
    """Prints the version, which is looked up only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        print(f"{parser.prog} {own_version()}")
        parser.exit()


def typed(program: str) -> str:
    """Return the name by which the user started ``program``: ``cis490 VERB``, its own, or that of its module."""
    if sys.argv[0].startswith("cis490 "):
        return sys.argv[0]
    return f"python -m {program}" if "." in program else program


def parser_of(program: str, kind: type[_Parser] = argparse.ArgumentParser, **options: Any) -> _Parser:  # type: ignore[assignment]
    """Return the parser of a program that ``cis490 VERB`` or its module starts; ``kind`` is its class."""
    parser = kind(prog=typed(program), allow_abbrev=False, **options)
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and stop")
    return parser

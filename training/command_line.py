"""The start of every program's command line: the name that its user typed, and ``--version``."""

import argparse
import sys
from typing import Any, NoReturn

from training.installed import build_of, typed
from training.streams import complain


class _Version(argparse.Action):
    """Prints the version, which is looked up only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        print(build_of(parser.prog))
        parser.exit()


class _Parser(argparse.ArgumentParser):
    """Wraps errors at words."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        complain(f"{self.prog}: error: {message}")
        self.exit(2)


def parser_of(program: str, **options: Any) -> argparse.ArgumentParser:
    """Return the parser of a program that ``cis490 VERB`` or its module starts."""
    parser = _Parser(prog=typed(program), allow_abbrev=False, **options)
    add_version(parser)
    return parser


def add_version(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--version", action=_Version, nargs=0, default=argparse.SUPPRESS, help="show the version and stop"
    )

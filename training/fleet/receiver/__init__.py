"""The receiver: its program, its HTTP side, and who may call it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from training.fleet.receiver.hangups import note_hangups
from training.lazy import attribute
from training.streams import ignore_strays, replace_unprintable


def main(argv: Sequence[str] | None = None) -> int:
    """Run the receiver and return its exit code. Before the rest of the program is loaded, SIGHUP is set to be
    recorded, instead of ending the process."""
    replace_unprintable()
    note_hangups()
    ignore_strays()
    from training.fleet.receiver import program

    return program.main(argv)


def __getattr__(name: str) -> Any:
    return attribute(__name__, "program", name)

"""The receiver: its program, its HTTP side, and who may call it."""

from __future__ import annotations

from training.fleet.receiver.hangups import ignore_hangups, note_hangups

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def main(argv: Sequence[str] | None = None) -> int:
    """Run the receiver and return its exit code. Before the rest of the program is loaded, SIGHUP is set to be
    recorded, instead of ending the process."""
    note_hangups()
    from training.streams import ignore_strays, replace_unprintable

    replace_unprintable()
    ignore_strays()
    from training.fleet.receiver import program

    try:
        return program.main(argv)
    finally:
        ignore_hangups()


def __getattr__(name: str) -> Any:
    from training.lazy import attribute

    return attribute(__name__, "program", name)

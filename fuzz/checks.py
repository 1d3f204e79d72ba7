"""What the targets ask of text that people will see."""

from __future__ import annotations

from training.fleet.printable import printable


def shows_nothing_unseen(text: str, *, lines: bool = True) -> None:
    """Nothing that moves a cursor, hides, or turns the direction of what stands beside it."""
    for line in text.split("\n") if lines else [text]:
        assert printable(line) == line, f"a terminal would obey this: {line!a}"

"""Checks of text that people will see."""

from __future__ import annotations

import unicodedata
from functools import cache

from training.printable import printable


def shows_nothing_unseen(text: str, *, lines: bool = True) -> None:
    """Nothing that moves a cursor, hides, or turns the direction of what stands beside it."""
    obeyed = {c for c in set(text) if not _is_seen(c) and not (lines and c == "\n")}
    assert not obeyed, f"a terminal would obey {sorted(obeyed)!a} in this: {text!a}"


@cache
def _is_seen(c: str) -> bool:
    """By the classes of Unicode, and by our own list of what is in none of them."""
    return c == " " or (unicodedata.category(c)[0] not in "CZ" and printable(c) == c)

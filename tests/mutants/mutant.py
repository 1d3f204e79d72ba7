"""A mutant: one small bug at one place of one file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Mutant:
    """Replace ``old`` at ``start`` (a character offset of ``path``'s text) by ``new``."""

    path: str  # from the checkout's top, with forward slashes
    owner: str  # the function or the SQL statement that holds the place
    operator: str
    line: int
    start: int
    old: str
    new: str
    nth: int = 0  # among equal changes of one owner

    @property
    def key(self) -> str:
        """The mutant's name, which survives that lines move: what excuses and records refer to."""
        nth = f" #{self.nth}" if self.nth else ""
        return f"{self.path} · {self.owner} · {self.operator} · {_short(self.old)} → {_short(self.new)}{nth}"

    def applied_to(self, text: str) -> str:
        assert text[self.start : self.start + len(self.old)] == self.old, "the file has moved on"
        return text[: self.start] + self.new + text[self.start + len(self.old) :]


def numbered(found: Iterable[Mutant]) -> list[Mutant]:
    """Each mutant once, told apart from those of the same key by its number."""
    seen: Counter[str] = Counter()
    told = []
    for each in dict.fromkeys(found):
        told.append(replace(each, nth=seen[each.key]))
        seen[each.key] += 1
    return told


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 70 else flat[:45] + " … " + flat[-20:]

"""The data sets that a plan's references stand for: as the last reload found them, until the next. Pure.

A name moves with every push. Looked up at each start, it would change its jobs at a mere restart; refused or forgotten
because its data set is not on this disk today, its jobs would leave the plan. So what a reload found is remembered with
the jobs, and a missing data set is an obstacle of its jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from training.fleet.wire.dataset_listing import ID, Catalogue, UnknownDataset

_UNKNOWN = "not known: "  # before a reference to an unknown data set


@dataclass(frozen=True, slots=True)
class KnownReferences(Catalogue):
    """A catalogue that remembers. ``starting``: the memory counts more than the disk, and an unknown reference is no
    mistake, because a receiver must run for its data set to be pushed."""

    remembered: Mapping[str, str] = field(default_factory=dict)  # reference → id
    starting: bool = False
    found: dict[str, str] = field(default_factory=dict)  # the same, as far as they were asked for

    def resolve(self, reference: str) -> str:
        known = self.remembered.get(reference)
        if self.starting and known is not None:
            self.found[reference] = known
            return known
        try:
            self.found[reference] = Catalogue.resolve(self, reference)
        except UnknownDataset:
            if known is None and not self.starting:
                raise
            if known is None:  # an id means itself, a name nothing; neither is remembered
                return reference if ID.fullmatch(reference) else f"{_UNKNOWN}{reference}"
            self.found[reference] = known
        return self.found[reference]

    def moved(self) -> dict[str, str]:
        """Map each reference to its present data set where memory has another."""
        here = {name: self.names.get(name, known) for name, known in self.found.items()}
        return {name: dataset_id for name, dataset_id in here.items() if dataset_id != self.found[name]}


def unknown(resolved: str | None) -> str | None:
    """Return the reference if its data set is unknown."""
    prefix = _UNKNOWN if resolved is not None and resolved.startswith(_UNKNOWN) else None
    return None if prefix is None or resolved is None else resolved.removeprefix(prefix)

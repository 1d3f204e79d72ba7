"""Resolve the plan's references to data sets as the last reload did, until the next reload. Pure.

Every push may give a name another data set. If each start looked the name up again, a mere restart would change the
plan's jobs. What a reload found for each reference is stored with the jobs. A remembered data set that is missing is no
mistake; its jobs wait.
"""

from collections.abc import Mapping
from dataclasses import field

from training.fleet.wire.dataset_listing import ID, Catalogue, UnknownDataset
from training.frozen import frozen

_UNKNOWN = "not known: "  # before a reference to an unknown data set


@frozen
class KnownReferences(Catalogue):
    """A catalogue of data sets that remembers what references meant at the last reload. With ``starting``, a remembered
    data set counts more than the catalogue, and an unknown reference is no mistake, because its data set can be pushed
    only to a running receiver. Without ``starting``, the catalogue counts more; a reference that the catalogue does not
    know keeps its remembered data set, or without one raises UnknownDataset."""

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
        """Map each reference to its present data set, if that differs from the data set that was used."""
        here = {name: self.names.get(name, known) for name, known in self.found.items()}
        return {name: dataset_id for name, dataset_id in here.items() if dataset_id != self.found[name]}


def unknown(resolved: str | None) -> str | None:
    """Return the reference in a resolved text that marks an unknown data set; None if the data set is known, or there
    is none."""
    known = resolved is None or not resolved.startswith(_UNKNOWN)
    return None if known or resolved is None else resolved.removeprefix(_UNKNOWN)

"""The sides of a split: each side's hosts and classes, counted from its rows.

The counts show the test machines that the model has not seen, and the classes that were never trained.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from training.contract import Recipe
from training.data.classes import BENIGN, MALICIOUS
from training.data.rows import Rows
from training.data.split import Side, Split
from training.data.values import Floats, JsonDict
from training.trainer.evaluation.facts import listed
from training.trainer.evaluation.scored import Classes
from training.trainer.task import auroc

TELLING = 0.9  # AUROC of the place in a recording from which it is worth a note
FEW_IN_ORDER = 4  # recordings of a kind: fewer may stand in order by accident
SHOWN = 5  # names in one sentence


class Sides(NamedTuple):
    """The number of windows by side and host, and by side and class; sides, hosts and classes in a fixed order."""

    recipe: str
    hosts: Mapping[str, Mapping[str, int]]
    classes: Mapping[str, Mapping[str, int]]

    @property
    def seen(self) -> list[str]:
        """Test hosts that also trained, stopped or calibrated the model."""
        return [name for name in self.hosts[Side.TEST] if name in self._before()]

    @property
    def unseen(self) -> list[str]:
        return [name for name in self.hosts[Side.TEST] if name not in self._before()]

    def _before(self) -> set[str]:
        return {name for side in Side if side is not Side.TEST for name in self.hosts[side]}

    @property
    def never_trained(self) -> list[str]:
        """Classes on the test side of which no window was used for training or stopping."""
        learnt = (self.classes[Side.TRAIN], self.classes[Side.VAL])
        return [name for name, n in self.classes[Side.TEST].items() if n and not any(side[name] for side in learnt)]

    def notes(self) -> list[str]:
        """Return sentences for readers of the figures: classes missing on a side and, if split by time, hosts only in
        the test or not in it."""
        notes = []
        for side in Side:
            lacking = [name for name, n in self.classes[side].items() if not n]
            if lacking and sum(self.classes[side].values()):
                notes.append(f"The {side} side has no window of {_listed(lacking)}.")
        if self.recipe == Recipe.TIME:
            if self.unseen:
                new = "this machine is new to the model, or its clock is ahead"
                if len(self.unseen) > 1:
                    new = "these machines are new to the model, or their clocks are ahead"
                notes.append(f"All windows of {_listed(self.unseen)} are later than those that trained: {new}.")
            left = sorted(self._before() - set(self.hosts[Side.TEST]))
            if left:
                who = "it" if len(left) == 1 else "they"
                notes.append(f"The test has no window of {_listed(left)}: {who} recorded earlier.")
        return notes

    def to_dict(self) -> JsonDict:
        """Return JSON values for the report's ``split``."""
        return {
            "hosts": self.hosts,
            "classes": self.classes,
            "unseen_hosts": self.unseen,
            "seen_hosts": self.seen,
            "never_trained": self.never_trained,
        }


def sides_of(split: Split, rows: Rows, classes: Classes) -> Sides:
    """Count hosts and classes on each side; ``rows`` are the rows of the whole data set."""
    hosts, counts = {}, {}
    for side in Side:
        mine = split.side(side)
        names, number = np.unique(rows.host[mine], return_counts=True)
        hosts[side.value] = dict(zip(names.tolist(), number.tolist(), strict=True))
        each = np.bincount(rows.label[mine], minlength=len(classes)).tolist()
        counts[side.value] = dict(zip(classes.names, each, strict=True))
    return Sides(split.recipe.value, hosts, counts)


def place_notes(rows: Rows, classes: Classes) -> list[str]:
    """Return a sentence if a window's position in its recording separates benign windows from others; else an empty
    list.

    If position separates the windows, a detector may have learnt the drift of a channel, and no figure of the report
    would show it.
    """
    is_benign = classes.is_benign(rows.label)
    _, of, counts = np.unique(rows.recording, return_inverse=True, return_counts=True)
    if not classes.benign or np.intersect1d(of[is_benign], of[~is_benign]).size < 2:
        return []
    order = np.lexsort((rows.t_start, of))
    place = np.empty(len(rows))
    place[order] = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    place /= np.maximum(counts[of] - 1, 1)
    found = auroc(~is_benign, place)
    if found is None or max(found, 1 - found) < TELLING:
        return []
    words, late = classes.words(), "after" if found > 0.5 else "before"
    said = (
        f"In the test's recordings {words[MALICIOUS]} windows come {late} {words[BENIGN]} ones: how late a window "
        f"comes has an AUROC of {max(found, 1 - found):.2f} alone, so that what drifts, fills or warms up in a "
        "recording tells them apart as well."
    )
    return [said]


def order_notes(rows: Rows, classes: Classes) -> list[str]:
    """Return a sentence if nearly all malicious-like recordings come after the benign ones of their hosts, or nearly
    all before; else, and with few recordings, an empty list.

    If a quiet week is recorded first and then the attacks, any drift from day to day separates the two on every host.
    """
    ids, of = np.unique(rows.recording, return_inverse=True)
    alarming = np.bincount(of, weights=~classes.is_benign(rows.label)) / np.bincount(of)
    begins = np.full(ids.size, np.inf)
    np.minimum.at(begins, of, rows.t_start)
    on = rows.host[np.unique(of, return_index=True)[1]]
    won = pairs = loud = still = 0.0
    for name in np.unique(on).tolist():
        one, other = (begins[(on == name) & (alarming == share)] for share in (0, 1))
        won, pairs = won + _later(other, one), pairs + other.size * one.size
        if other.size and one.size:
            loud, still = loud + other.size, still + one.size
    if not classes.benign or min(loud, still) < FEW_IN_ORDER or not np.isfinite(won):
        return []
    share = won / pairs
    if max(share, 1 - share) < TELLING:
        return []
    words, late = classes.words(), "after" if share > 0.5 else "before"
    said = (
        f"Of the test's recordings those of {words[MALICIOUS]} windows were made {late} those of {words[BENIGN]} ones "
        f"on the same host ({100 * max(share, 1 - share):.0f} % of the pairs), so that what changed from one to the "
        "next tells them apart as well: record both kinds by turns."
    )
    return [said]


def _later(some: Floats, others: Floats) -> float:
    """Count the pairs in which the time from ``some`` is later; equal times count one half, unknown ones nothing."""
    some, others = some[~np.isnan(some)], np.sort(others[~np.isnan(others)])
    return float(sum(np.searchsorted(others, some, side).sum() for side in ("left", "right"))) / 2


def _listed(names: Sequence[str]) -> str:
    return listed(names if len(names) <= SHOWN else [*names[:SHOWN], f"{len(names) - SHOWN} more"])

"""Anomaly scores: how unlike a window is to benign ones, measured in several views on one scale of surprise.

A view is a row of numbers about a window: the means of its channels, their spreads, the outputs of a network. In each
view a window is measured from the ordinary work of its own host, or without a reference from the middle of the training
windows (`Centres`). A window's distance to the nearest benign windows is taken after whitening (`Neighbours`). To make
distances comparable between views, each is converted to how rare it is among benign windows from which neither
distances nor network weights were learnt (`Surprise`). Labelled windows of the training side choose which view, or
which views together, make the score (`choose`).

The class `Surprises` combines centres, distances and surprise of all views: ``fit(benign windows, further benign
windows, references)``, ``settled(references)``, then ``of(windows)`` gives their surprises (n, V), which another model
may use as inputs. Tables of distances are made block by block, so that the memory for them does not grow with the
number of windows scored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from sklearn.covariance import ledoit_wolf

from training.data.values import AnyArray, Bools, Floats, Floats32, JsonDict, Names
from training.trainer.task import auroc, evenly

Tables = Mapping[str, Floats32]  # by view: (n, D) numbers of n windows; NaN where a channel is absent

MOST_REFERENCES = 2_000  # benign windows that distances are taken to
MOST_FITTED = 20_000  # benign windows that whitening is learnt from
AT_ONCE = 2_048  # windows: a table of distances to all references is kept of no more
TAIL_SHARE = 0.1  # the rarest tenth of the benign windows says how the tail falls
EPSILON = 1e-12
FARTHEST = 10.0  # standard deviations: one dimension out of bounds must not drown all others
FEW = 4  # reference windows that count as much for a host's centre as all training windows do


class Centres(NamedTuple):
    """The centre (D,) of each host in one view: the mean of its reference windows, drawn towards ``usual``.

    ``usual`` is the mean of the benign training windows. The shorter a reference, the more its centre is drawn towards
    ``usual``. A host without a reference is measured from ``usual``.
    """

    usual: Floats
    own: Mapping[str, Floats]

    @classmethod
    def fit(cls, benign: Floats32) -> Centres:
        return cls(_mean(benign, np.zeros(benign.shape[1])), {})

    def settled(self, references: AnyArray, host: Names) -> Centres:
        """Return a copy that also has the centres of the hosts of these ``references``, windows (M, D)."""
        own = dict(self.own)
        for name in sorted(set(host.tolist())):
            mine = references[host == name]
            own[name] = self.usual + (_mean(mine, self.usual) - self.usual) * (len(mine) / (len(mine) + FEW))
        return self._replace(own=own)

    def of(self, host: Names) -> Floats:
        """Return the centre (n, D) of each window's host."""
        names, place = np.unique(host, return_inverse=True)
        table = [self.own.get(name, self.usual) for name in names.tolist()]
        return np.stack(table)[place] if table else np.zeros((0, self.usual.size))


def _mean(values: AnyArray, otherwise: Floats) -> Floats:
    known = ~np.isnan(values)
    total = np.where(known, values, 0.0).sum(axis=0, dtype=float)
    count = known.sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), otherwise)


class Neighbours(NamedTuple):
    """Computes distances to the nearest benign windows after whitening, so that usual variation counts little.

    Rows must already be relative to their hosts' centres; absent values (NaN) count as the centre's. Neighbours are
    searched in single precision, and their distances computed in double precision.
    """

    neighbours: int
    gain: Floats  # (D,) 0 for a dimension that never varied
    whiten: Floats32  # (D, D): distances after it are Mahalanobis distances
    benign: Floats32  # (R, D) standardised

    @classmethod
    def fit(cls, rows: Floats, neighbours: int) -> Neighbours:
        """Learn from benign rows (n, D), n at least 2."""
        rows = np.nan_to_num(rows)
        deviation = rows.std(axis=0)
        gain = np.where(deviation > EPSILON, 1 / np.maximum(deviation, EPSILON), 0.0)
        standard = _standard(rows, gain)
        covariance, _ = ledoit_wolf(standard, assume_centered=True)
        values, directions = np.linalg.eigh(covariance)
        whiten = directions / np.sqrt(np.maximum(values, 1e-6))
        benign = standard[evenly(len(standard), MOST_REFERENCES)].astype(np.float32)
        return cls(min(neighbours, len(benign) - 1), gain, whiten.astype(np.float32), benign)

    def distances(self, rows: Floats) -> Floats:
        """Return (n,) the mean distance of each row to its nearest neighbours."""
        parts = [np.sqrt(np.square(gap).sum(axis=2)).mean(axis=1) for _, gap in self._near(rows)]
        return np.concatenate(parts) if parts else np.zeros(0)

    def shares(self, rows: Floats) -> Floats:
        """Return (n, D) each dimension's share of the distance; a row adds up to 1, or to 0 where the distance is 0.

        A squared distance is a sum over products of two dimensions, so a dimension's share may be negative.
        """
        precision = self.whiten.astype(float) @ self.whiten.T.astype(float)
        found = []
        for gap, turned in self._near(rows):
            length = np.sqrt(np.square(turned).sum(axis=2, keepdims=True))
            part = np.divide(gap * (gap @ precision), length, out=np.zeros(gap.shape), where=length > 0).sum(axis=1)
            total = length.sum(axis=1)
            found.append(np.divide(part, total, out=np.zeros(part.shape), where=total > 0))
        return np.concatenate(found) if found else np.zeros(rows.shape)

    def _near(self, rows: Floats) -> Iterator[tuple[Floats, Floats]]:
        """Yield, block by block, the gaps (b, k, D) to the k nearest benign windows, before and after whitening."""
        white = self.benign @ self.whiten
        norms = np.square(white).sum(axis=1)
        exact = white.astype(float)
        step = max(1, min(AT_ONCE, 1 + 8_000_000 // max(1, self.neighbours * rows.shape[1])))
        for start in range(0, len(rows), step):
            standard = _standard(np.nan_to_num(rows[start : start + step]), self.gain)
            turned = standard.astype(np.float32) @ self.whiten
            # The row's own length is the same for all, and orders nothing.
            apart = norms - 2 * (turned @ white.T)
            who = np.argpartition(apart, self.neighbours - 1, axis=1)[:, : self.neighbours]
            who.sort(axis=1)  # a sum does not depend on the order in which neighbours were found
            yield standard[:, None] - self.benign[who], turned[:, None].astype(float) - exact[who]


def _standard(rows: Floats, gain: Floats) -> Floats:
    return np.clip(rows * gain, -FARTHEST, FARTHEST)


class Surprise(NamedTuple):
    """Converts scores (n,) to -log p: p estimates, by the scores in ``ladder``, the share of benign windows that are at
    least as strange.

    Up to the score at which the rarest tenth of the m windows begins, p is (1 + the number of windows at
    least as strange) / (m + 1). Beyond the score at which the rarest tenth begins, p falls exponentially, at the rate
    of that tenth, so that very unusual windows still differ.
    """

    ladder: Floats  # (m,) ascending benign scores
    rate: float  # of the tail

    @classmethod
    def fit(cls, benign: Floats) -> Surprise:
        """Learn from ``benign`` (m,), the scores of windows from which neither distances nor network weights were
        learnt."""
        ladder = np.sort(benign)
        edge = _edge(ladder.size)
        excess = float((ladder[edge:] - ladder[edge]).mean())
        return cls(ladder, 1 / max(excess, float(ladder[-1] - ladder[0]) * 1e-3, EPSILON))

    def of(self, scores: Floats) -> Floats:
        count, edge = self.ladder.size, _edge(self.ladder.size)
        above = count - np.searchsorted(self.ladder, scores)
        inside = -np.log((1 + above) / (count + 1))
        start = self.ladder[edge]
        beyond = math.log((count + 1) / (1 + count - edge)) + (scores - start) * self.rate
        return np.where(scores > start, beyond, inside)


def _edge(count: int) -> int:
    return min(int(count * (1 - TAIL_SHARE)), count - 1)


class Sided(NamedTuple):
    """Windows in every view, and the host of each."""

    tables: Tables
    host: Names

    def centred(self, name: str, centres: Centres) -> Floats:
        """Return (n, D) the windows in one view, relative to the centres of their hosts."""
        return self.tables[name] - centres.of(self.host)


class FittedView(NamedTuple):
    """One view: the hosts' centres, the nearest benign windows, and how rare a distance is."""

    centres: Centres
    near: Neighbours
    surprise: Surprise

    @classmethod
    def fit(cls, benign: Sided, judged: Sided, ordinary: Sided, name: str, neighbours: int) -> FittedView:
        centres = Centres.fit(benign.tables[name]).settled(ordinary.tables[name], ordinary.host)
        near = Neighbours.fit(benign.centred(name, centres), neighbours)
        rare = Surprise.fit(near.distances(judged.centred(name, centres)))
        return cls(centres._replace(own={}), near, rare)


class Surprises(NamedTuple):
    """A detector's fitted views (see the module). Hosts have no centre of their own before ``settled`` or
    ``recalled``."""

    views: Mapping[str, FittedView]

    @classmethod
    def fit(cls, benign: Sided, judged: Sided, ordinary: Sided, *, neighbours: int) -> Surprises:
        """Learn distances from ``benign`` windows, and from ``judged`` ones, benign too, how rare a distance is.

        ``ordinary`` are windows of hosts' references: the fit measures these hosts from them, but the result keeps no
        host's centre. Reference windows of training hosts may also be among ``benign``.
        """
        views = {name: FittedView.fit(benign, judged, ordinary, name, neighbours) for name in benign.tables}
        return cls(views)

    def settled(self, ordinary: Sided) -> Surprises:
        """Return a copy that measures the hosts of these reference windows from their own references."""
        return self._with(lambda name, centres: centres.settled(ordinary.tables[name], ordinary.host))

    def _with(self, made: Callable[[str, Centres], Centres]) -> Surprises:
        return Surprises({name: view._replace(centres=made(name, view.centres)) for name, view in self.views.items()})

    def only(self, names: Sequence[str]) -> Surprises:
        return Surprises({name: self.views[name] for name in names})

    def of(self, windows: Sided) -> Floats:
        """Return (n, V) the surprise of each window in each view, never below 0."""
        columns = [
            view.surprise.of(view.near.distances(windows.centred(name, view.centres)))
            for name, view in self.views.items()
        ]
        return np.stack(columns, axis=1)

    def shares(self, windows: Sided, name: str) -> Floats:
        """Return (n, D) each dimension's share of the distance in one view."""
        view = self.views[name]
        return view.near.shares(windows.centred(name, view.centres))

    def centres(self) -> dict[str, dict[str, list[float]]]:
        """Return, as JSON values by view, the centre of each host that has one."""
        return {
            name: {host: one.tolist() for host, one in view.centres.own.items()} for name, view in self.views.items()
        }

    def recalled(self, centres: Mapping[str, Mapping[str, Sequence[float]]]) -> Surprises:
        """Return a copy with the centres that a checkpoint stored."""
        own = {name: {host: np.array(one) for host, one in hosts.items()} for name, hosts in centres.items()}
        return self._with(lambda name, usual: usual._replace(own=own.get(name, {})))

    def arrays(self) -> dict[str, AnyArray]:
        """Return all learnt arrays by name, from which ``load`` rebuilds an equal object without hosts' centres."""
        found: dict[str, AnyArray] = {}
        for name, view in self.views.items():
            near, rare = view.near, view.surprise
            own: dict[str, AnyArray] = {
                "usual": view.centres.usual,
                "gain": near.gain,
                "whiten": near.whiten,
                "benign": near.benign,
            }
            own |= {"ladder": rare.ladder, "rate": np.array([rare.rate]), "neighbours": np.array([near.neighbours])}
            found |= {f"{name}.{key}": value for key, value in own.items()}
        return found

    @classmethod
    def load(cls, names: Sequence[str], arrays: Mapping[str, AnyArray]) -> Surprises:
        """Rebuild the views ``names`` from what the method ``arrays`` returned; hosts have no centres."""

        def view(name: str) -> FittedView:
            def own(key: str) -> AnyArray:
                return arrays[f"{name}.{key}"]

            near = Neighbours(int(own("neighbours")[0]), own("gain"), own("whiten"), own("benign"))
            return FittedView(Centres(own("usual"), {}), near, Surprise(own("ladder"), float(own("rate")[0])))

        return cls({name: view(name) for name in names})


# -- the choice among candidates ---------------------------------------------------------------------------------------


def shares_of(names: Sequence[str], lead: float = 0.0) -> dict[str, float]:
    """Return each view's share of the score, 1 in all: the first of ``names`` gets ``lead`` (0 to 1), and what is left
    is divided equally among all of them.

    With a ``lead`` of one half, the first view counts for more than half of the score.
    """
    return {name: (1 - lead) / len(names) + (lead if place == 0 else 0.0) for place, name in enumerate(names)}


class ChosenViews(NamedTuple):
    """The result of the choice: each view's share of the score, the AUROC of views and means on the training side, and
    the reason."""

    shares: Mapping[str, float]
    auroc: Mapping[str, float]
    network_adds: float | None  # None where nothing could be judged
    why: str

    def to_dict(self) -> JsonDict:
        return {
            "chosen": list(self.shares),
            "why": self.why,
            "auroc": dict(self.auroc),
            "network_adds": self.network_adds,
        }


def choose(names: Sequence[str], surprises: Floats, strange: Bools, *, network: Sequence[str]) -> ChosenViews:
    """Choose the views of the score by surprises (n, V) of training-side windows from which neither distances nor
    network weights were learnt.

    Windows marked in ``strange`` (n,) are not benign. Candidates are each view outside of ``network`` alone, the mean
    of these, and the mean of all views; among equals the first wins. A network's views alone, and pairs of views, are
    no candidates: the best of many on a few windows is mostly luck. If all windows are strange, or none is, the score
    is the mean of all views.
    """
    column = {name: surprises[:, number] for number, name in enumerate(names)}

    def judged(members: Sequence[str]) -> float:
        return auroc(strange, weighed(shares_of(members), column)) or 0.0

    every, plain = tuple(names), tuple(name for name in names if name not in network)
    if not strange.any() or strange.all():
        why = "no malicious-like window on the training side to choose by: the mean of all"
        return ChosenViews(shares_of(every), {}, None, why)
    without = {group: judged(group) for group in (*((name,) for name in plain), plain)}
    best, whole = max(without, key=without.__getitem__), judged(every)
    adds = whole - without[best]
    said = {name: judged((name,)) for name in names} | {"all without the network": without[plain], "all": whole}
    why = f"the best by labelled windows of the training side, where the network {'adds' if adds > 0 else 'would add'}"
    return ChosenViews(shares_of(every if adds > 0 else best), said, adds, f"{why} {adds:+.3f}")


def weighed(shares: Mapping[str, float], column: Mapping[str, Floats]) -> Floats:
    """Return (n,) the score: the sum of each view's surprise (n,) times its share, in a fixed order."""
    return np.asarray(sum(share * column[name] for name, share in shares.items()))

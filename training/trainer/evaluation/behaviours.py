"""New behaviours: how well a model ranks and catches a behaviour left out of its training, beside the model that was
shown it.

A behaviour is what was recorded (the scenario); where recordings do not tell several apart, it is the class. Each
behaviour's test windows are compared with all benign test windows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from training.data.coded import among, distinct
from training.data.rows import Rows
from training.data.scratch import ROOM, spans
from training.data.split import LeakError, Side, Split
from training.data.values import Bools, Floats, Ints, JsonDict, Names
from training.trainer.evaluation.figures import shown, shown_rate
from training.trainer.evaluation.intervals import RankMeasure, Weights, bootstrap, clusters
from training.trainer.evaluation.ratios import mean_of_present
from training.trainer.evaluation.scored import Classes, Scored

BENIGN = ""  # the behaviour of benign windows


def behaviours_of(rows: Rows, classes: Classes, scenarios: Mapping[str, str]) -> Names:
    """(N,) the behaviour of each window: the scenario of its episode, or the class; ``BENIGN`` for benign windows.

    Scenarios are used if every malicious-like recording has one, and there are several.
    """
    alarming = ~classes.is_benign(rows.label) if classes.benign else np.zeros(len(rows), dtype=bool)
    names = np.array(classes.names, dtype=np.str_)

    def recorded(here: slice) -> Names:
        return np.array([scenarios.get(name, "") for name in rows.episode[here].tolist()], dtype=np.str_)

    several = {name for here in spans(alarming) for name in set(recorded(here)[alarming[here]].tolist())}
    by_scenario = len(several) >= 2 and "" not in several
    parts = (
        np.where(alarming[here], recorded(here) if by_scenario else names[rows.label[here]], BENIGN)
        for here in spans(alarming)
    )
    return ROOM.joined(parts, len(rows), np.array(sorted(several)).dtype if by_scenario else names.dtype)


def without(split: Split, rows: Rows, behaviour: Names, name: str) -> Split:
    """The split without one behaviour on the sides that train, stop or calibrate; the test side is unchanged.

    A recording with no other behaviour is removed as a whole, because windows labelled benign around a behaviour may
    show it.
    """
    gone = about(rows.recording, behaviour, name)
    train, val, cal = (rows[~gone[rows]] for rows in map(split.side, (Side.TRAIN, Side.VAL, Side.CAL)))
    return replace(split, train=train, val=val, cal=cal)


def about(recording: Names, behaviour: Names, name: str) -> Bools:
    """(N,) mark a behaviour's windows, and all windows of recordings with no other malicious-like behaviour."""
    here = behaviour == name
    others = distinct(recording[~here & (behaviour != BENIGN)])
    return here | among(recording, distinct(recording[here]) - others)


def refuse_shown(split: Split, behaviour: Names, name: str) -> None:
    """Refuse a split that trains a model on a behaviour by which it is judged as new. Raises LeakError."""
    seen = np.concatenate((split.train, split.val, split.cal))
    if (behaviour[seen] == name).any():
        raise LeakError(
            f"windows of {name!r} trained, stopped or calibrated a model that is judged as one that was not shown it: "
            "this is a mistake of the program, not of the data: please report it"
        )


def places_of(name: str, behaviour: Names) -> Ints:
    """The row numbers of benign windows and of one behaviour's windows."""
    return np.flatnonzero((behaviour == BENIGN) | (behaviour == name))


@dataclass(frozen=True, slots=True)
class Unshown:
    """Scores and alarms of a model trained without a behaviour.

    Of ``places`` of the test side: the benign windows, and those of the behaviour.
    """

    name: str
    places: Ints
    score: Floats
    alarm: Bools | None  # None without a threshold
    left_out: bool = True  # False: no window of it trained the model that is reported


class ShownModel(NamedTuple):
    """The test-side scores of the model that the report is about."""

    scored: Scored
    alarm: Bools | None
    classes: Classes

    @property
    def benign(self) -> Bools:
        return self.classes.is_benign(self.scored.y)

    def of(self, one: Unshown) -> Unshown:
        """This model's scores and alarms on the same windows."""
        alarm = None if self.alarm is None else self.alarm[one.places]
        return Unshown(one.name, one.places, self.scored.score[one.places], alarm, one.left_out)


def figures(
    known: ShownModel,
    unshown: Sequence[Unshown],
    *,
    n_resamples: int,
    seed: int,
    skipped: Mapping[str, str] | None = None,
) -> JsonDict:
    """JSON values: figures for ``each`` new behaviour and for ``all``, each beside those of the model that was
    ``shown`` it.

    AUROC over all is the mean over behaviours; shares of caught windows and false alarms count every window once per
    model. Intervals come from resampled episodes, so they say nothing about other behaviours. ``skipped`` has the
    reason for which a behaviour was not left out.
    """
    scored = known.scored
    episodes = int(np.unique(scored.rows.recording[known.benign]).size)  # that have benign windows
    episode, n_episodes = clusters(scored.rows.recording)
    told = [known.of(one) for one in unshown if one.left_out]
    ranks = {kind: _ranks(some, known, episode) for kind, some in (("unshown", unshown), ("shown", told))}

    def measure(weights: Weights) -> dict[str, Floats]:
        found: dict[str, Floats] = {}
        for kind, measures in ranks.items():
            mine = {f"{kind} {name}": rank(weights)["auroc"] for name, rank in measures.items()}
            if mine:
                found |= mine | {kind: mean_of_present(np.stack(list(mine.values()), axis=1))}
        return found

    windows = sum(one.places.size for one in unshown)
    found = bootstrap([measure], n_episodes=n_episodes, n_windows=windows, n_resamples=n_resamples, seed=seed)

    def line(kind: str, some: Sequence[Unshown], name: str, support: int) -> JsonDict:
        rates = _rates(some, known, episode, n_episodes)
        return {"auroc": shown(found[f"{kind} {name}".strip()], support), **rates}

    each = []
    for one in unshown:
        row: JsonDict = {"name": one.name, "left_out": one.left_out, **_counts(one, known)}
        row |= line("unshown", [one], one.name, min(row["episodes"], episodes))
        row["shown"] = line("shown", [known.of(one)], one.name, row["episodes"]) if one.left_out else None
        each.append(row)
    made: JsonDict = {"why": None, "each": each, "skipped": dict(skipped or {}), "all": None}
    if unshown:
        support = min(sum(row["episodes"] for row in each), episodes)
        total = {key: sum(row[key] for row in each) for key in ("windows", "episodes")}
        made["all"] = {"behaviours": len(unshown), **total, **line("unshown", unshown, "", support)}
        made["all"]["shown"] = line("shown", told, "", support) if told else None
    return made


def _ranks(some: Sequence[Unshown], known: ShownModel, episode: Ints) -> dict[str, RankMeasure]:
    return {
        one.name: RankMeasure(one.score, ~known.benign[one.places], episode[one.places], auprc=False) for one in some
    }


def _rates(some: Sequence[Unshown], known: ShownModel, episode: Ints, n_episodes: int) -> JsonDict:
    """The shares of caught windows and false alarms; for several models their mean false alarms."""
    made = {}
    for name, where in (("tpr", ~known.benign), ("fpr", known.benign)):
        raised, windows = np.zeros(n_episodes), np.zeros(n_episodes)
        for one in some:
            if one.alarm is not None:
                mine = where[one.places]
                at = episode[one.places][mine]
                raised += np.bincount(at, weights=one.alarm[mine], minlength=n_episodes)
                windows += np.bincount(at, minlength=n_episodes)
        share = len(some) if name == "fpr" else 1  # each benign window once, however many models judge it
        made[name] = shown_rate(raised / share, windows / share)
    return made


def _counts(one: Unshown, known: ShownModel) -> dict[str, int]:
    mine = one.places[~known.benign[one.places]]
    return {"windows": int(mine.size), "episodes": int(np.unique(known.scored.rows.recording[mine]).size)}

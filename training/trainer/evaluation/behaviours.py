"""New behaviours: how well a model ranks and catches a behaviour left out of its training, beside the model that was
shown it.

A behaviour is a recording's scenario, or a class if a recording with malicious-like windows names no scenario, or all
name the same. Each behaviour's test windows are compared with all benign test windows.
"""

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
    """Return (N,) the behaviour of each window: its episode's scenario, or else its class; ``BENIGN`` for benign
    windows.

    Scenarios are used if every recording with a malicious-like window names one, and at least two differ; otherwise
    classes are. Without a benign class all windows are ``BENIGN``.
    """
    alarming = ~classes.is_benign(rows.label) if classes.benign else np.zeros(len(rows), bool)
    names = np.array(classes.names, str)

    def recorded(here: slice) -> Names:
        return np.array([scenarios.get(name, "") for name in rows.episode[here].tolist()], str)

    several = {name for here in spans(alarming) for name in set(recorded(here)[alarming[here]].tolist())}
    by_scenario = len(several) >= 2 and "" not in several
    parts = (
        np.where(alarming[here], recorded(here) if by_scenario else names[rows.label[here]], BENIGN)
        for here in spans(alarming)
    )
    return ROOM.joined(parts, len(rows), np.array(sorted(several)).dtype if by_scenario else names.dtype)


def without(split: Split, rows: Rows, behaviour: Names, name: str) -> Split:
    """Return the split without one behaviour on the sides that train, stop or calibrate; the test side is unchanged.

    A recording that shows this behaviour and no other is removed from these sides as a whole, because windows labelled
    benign around a behaviour may show it.
    """
    gone = about(rows.recording, behaviour, name)
    train, val, cal = (rows[~gone[rows]] for rows in map(split.side, (Side.TRAIN, Side.VAL, Side.CAL)))
    return replace(split, train=train, val=val, cal=cal)


def about(recording: Names, behaviour: Names, name: str) -> Bools:
    """Return (N,) True for a behaviour's windows, and for all windows of recordings that show it and no other
    behaviour."""
    here = behaviour == name
    others = distinct(recording[~here & (behaviour != BENIGN)])
    return here | among(recording, distinct(recording[here]) - others)


def refuse_shown(split: Split, behaviour: Names, name: str) -> None:
    """Raise LeakError if a side that trains, stops or calibrates has windows of a behaviour that was to be left out."""
    seen = np.concatenate((split.train, split.val, split.cal))
    if (behaviour[seen] == name).any():
        raise LeakError(
            f"windows of {name!r} trained, stopped or calibrated a model that is judged as one that was not shown it: "
            "this is a mistake of the program, not of the data: please report it"
        )


def places_of(name: str, behaviour: Names) -> Ints:
    """Return the row numbers of all benign windows and of one behaviour's windows."""
    return np.flatnonzero((behaviour == BENIGN) | (behaviour == name))


@dataclass(frozen=True)
class Unshown:
    """One model's scores and alarms for a behaviour: by default, of a model that was trained without the behaviour.

    ``places`` are positions on the test side: those of the benign windows and of the behaviour's windows; scores and
    alarms are in their order.
    """

    name: str
    places: Ints
    score: Floats
    alarm: Bools | None  # None without a threshold
    left_out: bool = True  # False: the reported model itself was trained on no window of the behaviour


class ShownModel(NamedTuple):
    """The model that the report is about: its scores and alarms on the test side, and its classes."""

    scored: Scored
    alarm: Bools | None
    classes: Classes

    @property
    def benign(self) -> Bools:
        return self.classes.is_benign(self.scored.y)

    def of(self, one: Unshown) -> Unshown:
        """Return this model's scores and alarms on the windows of ``one``."""
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
    """Compute the report's figures on new behaviours: of ``each`` behaviour and of ``all``; beside both, as ``shown``,
    those of the model that learnt the behaviours.

    JSON values. AUROC over all is the mean over behaviours; so is the rate of false alarms, while the share of caught
    windows pools the windows of all behaviours. Intervals show the variation between episodes, so they say nothing
    about further behaviours. ``skipped`` names behaviours that were not left out, each with the reason.
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
    """Return ``tpr``, over the windows of all these behaviours, and ``fpr``, the mean over their models, with
    intervals."""
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

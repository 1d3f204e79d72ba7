"""``combined``: one score from a supervised part, which knows classes, and an anomaly part, which knows benign windows.

A classifier may miss behaviours that it was not shown; distances from a host's own ordinary work do not depend on what
was shown. The parts' outputs, log odds and -log p among benign windows, are on one scale, and a logistic regression
converts them to a probability. To choose the weights of the regression, copies of both parts are trained in folds of
the training side. The copies score windows from which they did not learn: of behaviours that the supervised copy was
shown, and of others that were left out of its training. ``new_share`` is the weight of the left-out behaviours among
the malicious-like windows. The windows scored in the folds also choose the weight of the channel means within the
anomaly part. The supervised part alone decides how the alarm's probability divides among the classes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, Self, TypeVar

import numpy as np
import torch
from scipy.optimize import minimize

from training.certain import certain
from training.contract import Recipe
from training.data.coded import among
from training.data.values import Bools, Floats, Floats32, Ints, Json, JsonDict
from training.families import FAMILIES, Takes
from training.hyper import HyperValues, Value
from training.trainer import ssl
from training.trainer.contract import BadData, Keeper, TrainerError
from training.trainer.evaluation.behaviours import BENIGN, about
from training.trainer.reasons import log_odds
from training.trainer.stages import Stages
from training.trainer.task import Fitted, GivenWindows, History, Outputs, Task, WindowsToExplain, evenly
from training.trainer.weights_file import read, written

W = TypeVar("W", GivenWindows, WindowsToExplain, Task)

FOLDS = 3
MOST_LEFT_OUT = 8  # behaviours: of more, evenly drawn
FARTHEST = 8.0  # a log odds or a surprise beyond this says no more: one part must not drown the other
RIDGE = 1e-3
LEAD = 0.5  # of the channel means in the anomaly part (see `anomaly.shares_of`), unless the mean of all views …
CLEARLY = 0.95  # … has a loss of less than this share of its loss in the folds
FIXED = (-0.8, 0.8, 0.4)  # weights where none can be chosen; see `Weights`


@dataclass(frozen=True)
class Weights:
    """The weights of both parts: the log odds of an alarm are ``start`` + ``odds`` · log odds + ``surprise`` ·
    surprise, both compressed by `_bounded`.

    The weights ``odds`` and ``surprise`` are never below 0. ``rows`` are the data set's windows that chose the weights,
    none for fixed or loaded weights; ``why`` has sentences for the report.
    """

    start: float
    odds: float
    surprise: float
    why: str
    behaviours: tuple[str, ...] = ()
    rows: Ints = field(default_factory=lambda: np.zeros(0, int))

    def of(self, odds: Floats, surprise: Floats) -> Floats:
        """Return (n,) the log odds of an alarm, from the parts' log odds (n,) and surprises (n,)."""
        return self.start + self.odds * _bounded(odds) + self.surprise * _bounded(surprise)

    def to_dict(self) -> JsonDict:
        found = {"start": self.start, "supervised": self.odds, "anomaly": self.surprise, "why": self.why}
        return {**found, "left_out": list(self.behaviours), "windows": int(self.rows.size)}

    @classmethod
    def recorded(cls, found: Json) -> Self:
        start, odds, surprise = (float(found[name]) for name in ("start", "supervised", "anomaly"))
        return cls(start, odds, surprise, str(found["why"]), tuple(found["left_out"]))

    @classmethod
    def fixed(cls, why: str) -> Self:
        return cls(*FIXED, f"The weights of the two parts are fixed ones, not chosen by these data: {why}.")


def _bounded(values: Floats) -> Floats:
    """Compress values into ±``FARTHEST`` without changing their order, almost linearly near 0: clipping would make
    ties."""
    return FARTHEST * np.tanh(values / FARTHEST)


def choose(odds: Floats, surprise: Floats, alarming: Bools, weight: Floats) -> tuple[tuple[float, float, float], float]:
    """Fit ``start``, ``odds`` and ``surprise`` of `Weights` by a weighted logistic regression; return them and the
    loss.

    All arrays are (n,). A higher log odds or surprise of a part never lowers the log odds of an alarm. If neither part
    separates the windows, the weights are ``FIXED``.
    """
    both = np.stack((np.ones_like(odds), _bounded(odds), _bounded(surprise)), axis=1)
    sign = np.where(alarming, 1.0, -1.0)
    share = weight / weight.sum()

    def loss(b: Floats) -> tuple[float, Floats]:
        margin = sign * (both @ b)
        slope = -(share * sign / (1 + np.exp(np.clip(margin, -500, 500)))) @ both
        value = float(share @ np.logaddexp(0.0, -margin)) + RIDGE * float(b[1:] @ b[1:])
        return value, slope + 2 * RIDGE * np.array([0.0, b[1], b[2]])

    found = minimize(loss, np.array(FIXED), jac=True, method="L-BFGS-B", bounds=[(None, None), (0, None), (0, None)])
    start, own, unlike = (round(float(one), 6) for one in found.x)
    if own + unlike == 0:  # nothing told the windows apart
        return FIXED, float(found.fun)
    return (start, own, unlike), float(found.fun)


@dataclass(frozen=True)
class Combined:
    """Both trained parts, and their weights. ``alarm`` (K,) marks the classes that are not benign."""

    supervised: Fitted
    name: str  # of the supervised part
    anomaly: ssl.Anomaly
    weights: Weights
    alarm: Bools

    @property
    def history(self) -> History:
        return self.supervised.history

    @property
    def course(self) -> str:
        return f"Of the supervised part ({self.name}). {self.supervised.course}"

    @property
    def chosen_by(self) -> Ints:
        return self.weights.rows

    def predict(self, windows: GivenWindows, rows: Ints) -> Outputs:
        known = self.supervised.predict(taken(windows, self.name), rows)
        proba = certain(known.proba, "a supervised part answers with probabilities")
        score = certain(self.anomaly.predict(windows, rows).score, "an anomaly part answers with scores")
        if not rows.size:
            return Outputs(proba=proba)
        # Logs keep the digits of probabilities close to 0 or 1.
        alarm = self.weights.of(log_odds(proba, self.alarm), score)
        made = np.empty_like(proba)
        for mine, sign in ((self.alarm, -1.0), (~self.alarm, 1.0)):
            within = proba[:, mine].clip(1e-12)
            made[:, mine] = within / within.sum(axis=1, keepdims=True) / (1 + np.exp(sign * alarm))[:, None]
        return Outputs(proba=made)

    def settled(self, ordinary: GivenWindows) -> Self:
        """Return a copy whose anomaly part measures the hosts of these reference windows from their own references."""
        return replace(self, anomaly=self.anomaly.settled(ordinary))

    def own(self) -> JsonDict:
        """Return the hosts' centres as JSON values, for a checkpoint that is adapted to hosts."""
        return self.anomaly.own()

    def usual(self) -> Floats32:
        """Return (C, 1) the median of each channel in training."""
        return self.anomaly.usual()

    def carried(self, asked: WindowsToExplain) -> Floats:
        """Return (n, C) how much each channel adds to the log odds of an alarm, weighted like the parts."""
        mine = taken(asked, self.name)
        if mine is not asked:
            usual = self.supervised.usual()
            mine = replace(mine, usual=lambda: np.broadcast_to(usual, asked.features.shape).copy())
        own = self.weights.odds * self.supervised.carried(mine)
        return own + self.weights.surprise * self.anomaly.carried(asked)

    def sidecar(self) -> bytes:
        """Return both parts' own bytes as the tensors of one ``.pt``."""
        parts = {"supervised": self.supervised.sidecar(), "anomaly": self.anomaly.sidecar()}
        return written({name: torch.from_numpy(np.frombuffer(one, np.uint8).copy()) for name, one in parts.items()})

    def facts(self) -> JsonDict:
        return {
            "normaliser": {"kind": "of its parts", "why": "each part has its own"},
            "supervised": {"model": self.name, **self.supervised.facts()},
            "anomaly": self.anomaly.facts(),
            "weights": self.weights.to_dict(),
            "alarm": np.flatnonzero(self.alarm).tolist(),
        }


def taken(windows: W, name: str) -> W:
    """Return the windows in the form that the family of this name learns from."""
    return replace(windows, X=windows.features) if FAMILIES[name].takes is Takes.FEATURES else windows


def load(_model: str, facts: Json, sidecar: bytes, classes: int, hyper: HyperValues) -> Combined:
    """Load both parts from a verified sidecar, on the CPU."""
    found = read(sidecar)
    parts = {name: found[name].numpy().tobytes() for name in ("supervised", "anomaly")}
    own = dict(facts["supervised"])
    name = str(own.pop("model"))
    supervised = FAMILIES[name].load(name, own, parts["supervised"], classes, _hyper(name, hyper))
    unlike = {**facts["anomaly"], "centres": facts.get("centres", {})}
    anomaly = ssl.load("transformer_ssl", unlike, parts["anomaly"], classes, _hyper("transformer_ssl", hyper))
    alarm = np.isin(np.arange(classes), facts["alarm"])
    return Combined(supervised, name, anomaly, Weights.recorded(facts["weights"]), alarm)


def _hyper(part: str, hyper: HyperValues) -> dict[str, Value]:
    """Return a part's hyperparameters: its family's defaults, with the combined model's ``target_fpr`` and
    ``neighbours``, and its epochs (or trees) and patience unless they are 0."""
    found = FAMILIES[part].defaults()
    if hyper["epochs"]:
        found["epochs" if "epochs" in found else "n_estimators"] = hyper["epochs"]
    if hyper["patience"]:
        found["patience"] = hyper["patience"]
    return found | {key: hyper[key] for key in ("target_fpr", "neighbours") if key in found}


# -- training ----------------------------------------------------------------------------------------------------------


def fit(task: Task) -> Combined:
    """Train both parts on the whole training side, then again in folds; the folds' left-out windows choose the weights.
    If too few behaviours can be left out, or the folds leave too little to learn from, the weights are the fixed
    ones."""
    if not task.is_benign.any() or task.is_benign[task.split.learnt].all():
        raise BadData(
            "combined tells benign windows from others, and the training side has only one of the two: say which class "
            "is benign when you make the data set, or train another model"
        )
    folds = Folds.of(task)
    parts = Parts(task.keeper, task.progress, [1] * folds.parts)
    name = str(task.hyper["supervised"])
    supervised = parts.run("supervised", partial(_supervised, task))
    anomaly = parts.run("anomaly", partial(_anomaly, task), curve=False)
    classes = np.unique(task.y[task.is_benign])
    alarm = ~np.isin(np.arange(task.classes), classes)
    weights, lead = _weights(task, folds, parts, alarm, anomaly)
    return Combined(supervised, name, anomaly.led(lead), weights, alarm)


def _supervised(task: Task, keeper: Keeper) -> Fitted:
    name = str(task.hyper["supervised"])
    own = taken(task, name)
    names = task.names if own is task else task.feature_names
    return FAMILIES[name].fit(replace(own, model=name, names=names, hyper=_hyper(name, task.hyper), keeper=keeper))


def _anomaly(task: Task, keeper: Keeper) -> ssl.Anomaly:
    views = ssl.VIEWS if task.hyper["anomaly"] == "transformer_ssl" else ssl.PLAIN
    own = replace(task, hyper=_hyper("transformer_ssl", task.hyper), keeper=keeper)
    return ssl.fit_views(own, views, by_labels=False)


class Parts(Stages):
    """Runs the trainings of one model in sequence, as stages of one run."""

    def scores(self, name: str, ask: Callable[[Keeper], Floats]) -> Floats | None:
        """Return the scores that the function ``ask`` computes after a fold's training, or their stored copy, as one
        flat array.

        Return None if the fold's training failed, for example with too little to learn from.
        """

        def made(keeper: Keeper) -> bytes | None:
            try:
                return ask(keeper).astype(float).tobytes()
            except (TrainerError, BadData):
                return None

        kept = self.answer(name, made, curve=False)
        return None if kept is None else np.frombuffer(kept)


class Folds(NamedTuple):
    """The training windows in folds, and the behaviours to leave out, each with the fold whose windows judge it.

    A fold consists of whole hosts if the split is by host and enough hosts train, else of whole recordings.
    """

    rows: tuple[Ints, ...]  # to be judged, of each fold
    gone: tuple[Bools, ...]  # (N,) windows that the training of a fold is not shown
    behaviours: Mapping[str, int]
    why: str | None = None  # nothing can be chosen: why not

    @property
    def parts(self) -> int:
        return 2 + (0 if self.why else 2 * len(self.rows) + len(self.behaviours))

    @classmethod
    def of(cls, task: Task) -> Self:
        train = task.split.train
        shown = train[task.recording[train] != ""]  # windows of references are judged by nobody
        names = sorted(set(task.behaviour[shown].tolist()) - {BENIGN})
        if len(names) < 2:
            return cls((), (), {}, f"leaving one behaviour out needs two that train (here {len(names)})")
        hosts = Recipe(task.split.recipe).by_host and np.unique(task.host[shown]).size >= FOLDS
        of = task.host if hosts else task.recording
        kinds, kind = np.unique(task.behaviour[shown], return_inverse=True)
        each, place = np.unique(of[shown], return_inverse=True)
        last = np.zeros(each.size, int)
        np.maximum.at(last, place, kind)
        units = sorted(zip(kinds[last].tolist(), each.tolist(), strict=True))
        gone = tuple(among(of, [one for _, one in units[fold::FOLDS]]) for fold in range(FOLDS))
        rows = tuple(shown[mask[shown]] for mask in gone)
        names = [names[place] for place in evenly(len(names), MOST_LEFT_OUT).tolist()]
        judge = {}
        for number, name in enumerate(names):
            order = [(number + step) % FOLDS for step in range(FOLDS)]
            judge[name] = max(order, key=lambda fold: int((task.behaviour[rows[fold]] == name).sum()))
        return cls(rows, gone, judge)


def _weights(task: Task, folds: Folds, parts: Parts, alarm: Bools, anomaly: ssl.Anomaly) -> tuple[Weights, float]:
    """Choose the parts' weights, and the lead of the channel means within the anomaly part; return both.

    The weights are fixed ones if too few behaviours can be left out, or if the folds leave too little to learn from.
    """
    if folds.why:
        return Weights.fixed(folds.why), 0.0

    def split_without(gone: Bools) -> Task:
        train, val = (rows[~gone[rows]] for rows in (task.split.train, task.split.val))
        own = replace(task, split=replace(task.split, train=train, val=val))
        learnt = own.is_benign[own.split.train]
        if not own.split.val.size or learnt.all() or not learnt.any():
            raise BadData("a fold has too little to learn from")
        return own

    def known(gone: Bools, rows: Ints, keeper: Keeper) -> Floats:
        model = _supervised(split_without(gone), keeper)
        proba = model.predict(taken(task, str(task.hyper["supervised"])), rows).proba
        assert proba is not None
        return log_odds(proba, alarm)

    def unlike(gone: Bools, rows: Ints, keeper: Keeper) -> Floats:
        model = _anomaly(split_without(gone), keeper).settled(task.ordinary)
        return model.surprised(task, rows)

    found = []  # rows, log odds, surprises (n, V), if new
    surprises = []
    for number, (rows, gone) in enumerate(zip(folds.rows, folds.gone, strict=True), 1):
        odds = parts.scores(f"fold {number}", partial(known, gone, rows))
        unusual = parts.scores(f"views {number}", partial(unlike, gone, rows))
        unusual = None if unusual is None else unusual.reshape(rows.size, -1)
        surprises.append(unusual)
        if odds is not None and unusual is not None:
            found.append((rows, odds, unusual, False))
    left_out = []
    for name, fold in folds.behaviours.items():
        rows = folds.rows[fold]
        mine = np.isin(task.behaviour[rows], (name, BENIGN))
        gone = folds.gone[fold] | about(task.recording, task.behaviour, name)
        odds = parts.scores(f"without {name}", partial(known, gone, rows[mine]))
        unusual = surprises[fold]
        if odds is not None and unusual is not None:
            found.append((rows[mine], odds, unusual[mine], True))
            left_out.append(name)
    if len(left_out) < 2 or all(new for *_, new in found):
        why = "in folds of the training side too little is left to learn from without a behaviour"
        return Weights.fixed(why), 0.0
    return _chosen(task, found, tuple(left_out), anomaly)


def _chosen(
    task: Task, found: list[tuple[Ints, Floats, Floats, bool]], left_out: tuple[str, ...], anomaly: ssl.Anomaly
) -> tuple[Weights, float]:
    rows, odds, surprises = (np.concatenate([one[place] for one in found]) for place in range(3))
    new = np.concatenate([np.full(one[0].size, one[3]) for one in found])
    benign = task.is_benign[rows]
    share = task.number("new_share")
    weight = np.zeros(rows.size)
    # Benign windows count as much as all others; of new behaviours each as much as another.
    for mine, total in ((benign, 1.0), (~benign & ~new, 1 - share)):
        weight[mine] = total / max(int(mine.sum()), 1)
    for name in left_out:
        mine = ~benign & new & (task.behaviour[rows] == name)
        weight[mine] = share / len(left_out) / max(int(mine.sum()), 1)
    tried = {lead: choose(odds, anomaly.led(lead).weighed(surprises), ~benign, weight) for lead in (0.0, LEAD)}
    lead = 0.0 if tried[0.0][1] < CLEARLY * tried[LEAD][1] else LEAD
    chosen = np.unique(rows)
    much = ", of which the channel means are more than half" if lead else ""
    why = (
        f"The weights of the two parts were chosen by {chosen.size:,} windows of the training side in folds, with "
        f"{', '.join(left_out)} left out of the supervised part in turn; {100 * share:.0f} % of what is malicious-like "
        f"is expected to be new. The anomaly part is the mean of its views{much}."
    )
    return Weights(*tried[lead][0], why, left_out, chosen), lead

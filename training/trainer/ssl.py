"""``transformer_ssl``: measures how unlike a window is to benign ones, in several views.

Four views are plain statistics; two come from a network that learnt, on benign windows, to predict hidden channels from
the others. Labels are used twice, but never to fit weights: malicious windows are kept out of training, and labelled
windows of the training side choose which views make the score (`anomaly.choose`). If there are malicious-like windows
to choose by, the network is part of the score only if it raises their AUROC. On most data sets tried, the network added
.00 to .03 AUROC.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from training.certain import certain
from training.data.values import Floats, Floats32, Ints, Json, JsonDict
from training.hyper import HyperValues
from training.trainer import loop
from training.trainer.anomaly import MOST_FITTED, ChosenViews, Sided, Surprises, choose, shares_of, weighed
from training.trainer.contract import BadData
from training.trainer.masked import MaskedModel
from training.trainer.normalise import RobustAsinh
from training.trainer.stages import best_epoch
from training.trainer.supervised import AT_ONCE, loop_spec
from training.trainer.task import GivenWindows, History, Outputs, Task, WindowsToExplain, thinned
from training.trainer.weights_file import read, restored, written
from training.trainer.windows import to_learn_from, windows

LEAST_BENIGN = 8  # windows to learn from, and LEAST_JUDGED to calibrate p-values with
LEAST_JUDGED = 2
MOST_JUDGED = 50_000  # and at most: they hardly move a p-value any more
MOST_STRANGE = 2_000  # windows that choose
AT_LEAST = 0.03  # of a normalised channel: below such a spread lies rounding

PLAIN = ("means", "spreads", "roughness", "features")
NETWORK = ("residuals", "embedding")
VIEWS = (*PLAIN, *NETWORK)
BY_CHANNEL = ("means", "spreads", "roughness", "residuals")  # views with a number a channel
SURPRISES = "surprises."  # begins their arrays' names in the sidecar


class ViewMaker(nn.Module):
    """Computes the views of windows, by a network too if a view needs it; callers first apply its ``normalise``."""

    def __init__(self, channels: int, samples: int, features: int, hyper: HyperValues, *, network: bool = True) -> None:
        super().__init__()
        self.normalise = RobustAsinh(channels)
        self.scale = RobustAsinh(features)
        self.body = MaskedModel(channels, samples, hyper) if network else None

    def tables(self, x: Tensor, features: Tensor, names: Sequence[str]) -> dict[str, Floats32]:
        """Compute the views ``names`` of normalised windows ``x`` (n, C, T) and their unscaled ``features`` (n, F).

        Absent values are NaN, except in the embedding. The network runs only if one of its views is named.
        """
        with torch.no_grad():
            means = x.mean(dim=-1)
            found = {
                "means": means,
                "spreads": ((x - means.unsqueeze(-1)).square().mean(dim=-1).sqrt() + AT_LEAST).log(),
                "roughness": (x.diff(dim=-1).abs().mean(dim=-1) + AT_LEAST).log(),
                "features": self.scale(features.unsqueeze(-1)).squeeze(-1),
            }
            if self.body is not None and set(NETWORK) & set(names):
                residuals, errors = self.body.once_each(x)
                found["residuals"] = residuals.where(~errors.isnan(), torch.nan)
                found["embedding"] = self.body.embed(x)
        return {name: found[name].cpu().numpy() for name in names}


@dataclass(frozen=True)
class Anomaly:
    """A detector: its views, what is usual in each, and each view's share of the score.

    Hosts without a centre are measured from the middle of the training windows; see ``settled``.
    """

    detector: ViewMaker
    sizes: Mapping[str, int]  # of the data, which the detector's buffers follow
    surprises: Surprises
    shares: Mapping[str, float]  # of the score, by view
    judgement: Json
    device: torch.device
    history: History
    chosen_by: Ints = field(default_factory=lambda: np.zeros(0, int))  # rows that chose the views

    @property
    def course(self) -> str:
        if not self.history:
            return "No network learnt."
        best = best_epoch(self.history)
        return f"Of {len(self.history)} epochs number {best} was the best on the validation side; its weights are kept."

    def predict(self, windows: GivenWindows, rows: Ints) -> Outputs:
        return Outputs(score=self.weighed(self.surprised(windows, rows)))

    def surprised(self, windows: GivenWindows, rows: Ints) -> Floats:
        """Return (n, V) the surprise of these windows in each view that has a share."""
        found, at = np.empty((rows.size, len(self.shares))), 0
        asked = self.surprises.only(tuple(self.shares))
        for part in self.seen(windows, rows, tuple(self.shares)):
            found[at : at + part.host.size] = asked.of(part)
            at += part.host.size
        return found

    def weighed(self, surprises: Floats) -> Floats:
        """Return (n,) the score of windows from their surprises (n, V)."""
        return weighed(self.shares, dict(zip(self.shares, surprises.T, strict=True)))

    def led(self, lead: float) -> Self:
        """Return a copy whose first view gets the extra share ``lead`` of the score (see `anomaly.shares_of`); what is
        left is divided equally among all views."""
        shares = shares_of(tuple(self.shares), lead)
        first, share = next(iter(shares.items()))
        why = f"no label is asked: the mean of all views, {first} with {100 * share:.0f} % of it" if lead else None
        return replace(self, shares=shares, judgement={**self.judgement, **({"why": why} if why else {})})

    def settled(self, ordinary: GivenWindows) -> Self:
        """Return a copy that measures the hosts of these reference windows from their own references."""
        seen = self.whole(ordinary, np.arange(len(ordinary.host)), tuple(self.surprises.views))
        return replace(self, surprises=self.surprises.settled(seen))

    def usual(self) -> Floats32:
        """Return (C, 1) the median of each channel in training."""
        return self.detector.normalise.middle.numpy()

    def carried(self, asked: WindowsToExplain) -> Floats:
        """Return (n, C) each channel's share of the distances, weighted by each view's surprise and share of the score.

        The embedding adds nothing, because its dimensions belong to no channel.
        """
        seen = self.whole(asked, asked.rows, tuple(self.shares))
        surprise = self.surprises.only(tuple(self.shares)).of(seen)
        found = np.zeros(asked.X.shape[:2])
        for number, (name, share) in enumerate(self.shares.items()):
            if name == "embedding":
                continue
            own = self.surprises.shares(seen, name)
            found += share * surprise[:, number, None] * (own if name in BY_CHANNEL else own @ asked.parts)
        return found

    def sidecar(self) -> bytes:
        learnt = {SURPRISES + name: torch.from_numpy(one) for name, one in self.surprises.arrays().items()}
        return written(self.detector.state_dict() | learnt)

    def facts(self) -> JsonDict:
        return {
            "normaliser": self.detector.normalise.describe(),
            "sizes": dict(self.sizes),
            "views": list(self.surprises.views),
            "shares": dict(self.shares),
            "judgement": dict(self.judgement),
        }

    def own(self) -> JsonDict:
        """Return the hosts' centres as JSON values, for a checkpoint that is adapted to hosts."""
        return {"centres": self.surprises.centres()}

    def whole(self, given: GivenWindows, rows: Ints, names: Sequence[str]) -> Sided:
        """Return the windows ``rows`` in the named views, in one table."""
        parts = list(self.seen(given, rows, names))
        tables = {name: np.concatenate([part.tables[name] for part in parts]) for name in names}
        return Sided(tables, np.concatenate([part.host for part in parts]))

    def seen(self, given: GivenWindows, rows: Ints, names: Sequence[str]) -> Iterator[Sided]:
        """Yield the windows in the named views, block by block, so that memory does not grow with their number.

        If there are no windows, one empty block is yielded.
        """
        seen = windows(given.X, rows, self.detector.normalise, self.device, resident_bytes=0)
        self.detector.eval()
        for part in torch.arange(len(seen)).split(AT_ONCE):
            x, places = seen.take(part), rows[part.numpy()]
            features = torch.from_numpy(given.features[places])
            yield Sided(self.detector.tables(x, features, names), given.host[places])


def fit(task: Task) -> Anomaly:
    """Pre-train on the benign training windows, then fit the views and choose among them."""
    return fit_views(task, VIEWS)


def fit_views(task: Task, views: Sequence[str], *, by_labels: bool = True) -> Anomaly:
    """Fit like ``fit``, but only these views; the network trains only if one of them needs it.

    Without ``by_labels`` the score is the mean of all these views, and labels only keep malicious windows out. Raises
    ``BadData`` where there are too few benign windows.
    """
    if not task.is_benign.any():
        raise BadData(
            f"{task.model} learns from benign windows, and these data have none: say which class is benign when you "
            "make the data set, or train a model that tells classes apart"
        )
    learn, judge = (side[task.is_benign[side]] for side in (task.split.train, task.split.val))
    if learn.size < LEAST_BENIGN or judge.size < LEAST_JUDGED:
        raise BadData(
            f"{task.model} needs {LEAST_BENIGN} benign windows to learn from and {LEAST_JUDGED} "
            f"to judge by, and the training side has {learn.size} and {judge.size}: record more"
        )
    torch.manual_seed(task.seed)
    device = torch.device(task.device)
    sizes = {"channels": task.X.shape[1], "samples": task.X.shape[2], "features": task.features.shape[1]}
    network = bool(set(views) & set(NETWORK))
    detector = ViewMaker(**sizes, hyper=task.hyper, network=network)
    detector.normalise.fit(task.X, learn)
    fitted = thinned(learn, MOST_FITTED)
    detector.scale.fit(task.features[fitted][:, :, None], np.arange(fitted.size))
    history = []
    if detector.body is not None:
        detector.body.to(device)
        with task.progress.stage("pretraining", 0, [task.whole("epochs")]):
            history = _pretrain(task, detector, learn, judge, device)
    detector.eval()
    # Views are looked at from here on as they will be when windows are scored: one path for both.
    blank = Anomaly(detector, sizes, Surprises({}), {}, {}, device, history)

    def sided(rows: Ints) -> Sided:
        task.stop.check()
        return blank.whole(task, rows, views)

    ordinary = blank.whole(task.ordinary, np.arange(len(task.ordinary.host)), views)
    judged, asked = thinned(judge, MOST_JUDGED), _strange(task) if by_labels else judge[:0]
    calm, strange = sided(judged), sided(asked)
    surprises = Surprises.fit(sided(fitted), calm, ordinary, neighbours=task.whole("neighbours"))
    task.stop.check()
    chosen = _choose(surprises.settled(ordinary), calm, strange)
    if not by_labels:
        chosen = chosen._replace(why="no label is asked: the mean of all views")
    rows = np.union1d(judged, asked) if asked.size else asked
    return replace(
        blank, surprises=surprises, shares=chosen.shares, judgement=chosen.to_dict(), chosen_by=rows.astype(int)
    )


def _choose(surprises: Surprises, calm: Sided, strange: Sided) -> ChosenViews:
    said = np.concatenate((surprises.of(calm), surprises.of(strange)))
    return choose(tuple(surprises.views), said, np.arange(len(said)) >= calm.host.size, network=NETWORK)


def _strange(task: Task) -> Ints:
    """Return the row numbers of those windows of the train and val sides that are not benign, thinned; no view was
    fitted on them."""
    sides = task.split.learnt
    return thinned(sides[~task.is_benign[sides]], MOST_STRANGE)


def _pretrain(task: Task, detector: ViewMaker, learn: Ints, judge: Ints, device: torch.device) -> History:
    body, share = certain(detector.body, "only a network learns"), task.number("mask_ratio")
    train = to_learn_from(task.X, learn, detector.normalise, device, task.limits)
    val = windows(task.X, judge, detector.normalise, device)

    def loss_of(rows: Tensor) -> Tensor:
        x = train.take(rows)
        return body.loss(x, body.draw(len(rows), share, x.device))

    def validate() -> tuple[float, float | None]:
        total = 0.0
        for rows in torch.arange(len(val)).split(AT_ONCE):
            _, errors = body.once_each(val.take(rows))
            total += float(mean_error(errors).mean()) * len(rows)
        return total / len(val), None

    return loop.train(
        body,
        windows=train,
        loss_of=loss_of,
        validate=validate,
        spec=loop_spec(task),
        progress=task.progress,
        stop=task.stop,
        keeper=task.keeper,
    )


def mean_error(errors: Tensor) -> Tensor:
    """Return (n,) the mean of each window's ``errors`` (n, C) over its channels, without absent ones."""
    return errors.nanmean(dim=1) if errors.isnan().any() else errors.mean(dim=1)


def load(_model: str, facts: Json, sidecar: bytes, _classes: int, hyper: HyperValues) -> Anomaly:
    """Load the detector from a verified sidecar, on the CPU."""
    network = bool(set(facts["views"]) & set(NETWORK))
    state = read(sidecar)
    learnt = {name: state.pop(name).numpy() for name in list(state) if name.startswith(SURPRISES)}
    detector = restored(lambda: ViewMaker(**facts["sizes"], hyper=hyper, network=network), state)
    arrays = {name.removeprefix(SURPRISES): one for name, one in learnt.items()}
    surprises = Surprises.load(facts["views"], arrays).recalled(facts.get("centres", {}))
    return Anomaly(
        detector, facts["sizes"], surprises, dict(facts["shares"]), facts["judgement"], torch.device("cpu"), []
    )

"""``transformer_ssl``: learns what benign windows look like by guessing hidden channels from the others.

Labels are used twice and never for the weights: malicious windows are kept out of training, and
labelled windows of the training hosts decide whether the combined score may be trusted there, or
must give way to a single one (``choose``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from training.trainer import loop
from training.trainer.anomaly import EPSILON, MOST_REFERENCES, Distances, Surprise, fisher
from training.trainer.blocks import known
from training.trainer.contract import BadData
from training.trainer.flags import Value
from training.trainer.masked import MaskedModel
from training.trainer.normalise import RobustAsinh, spread
from training.trainer.reasons import Asked
from training.trainer.supervised import AT_ONCE, from_bytes, loop_spec, to_bytes
from training.trainer.task import FloatArray, History, IntArray, Outputs, Task, auroc
from training.trainer.windows import Windows, windows

SIDECAR = ".pt"
LIBRARIES = ("torch",)
LEAST_BENIGN = 8  # windows to learn from, and LEAST_JUDGED to calibrate p-values with
LEAST_JUDGED = 2
MAY_LOSE = 0.02  # AUROC by which a combination may stay behind the best plain method


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of the data that a detector's buffers follow."""

    channels: int
    samples: int
    features: int
    references: int  # benign windows that distances are taken to
    judged: int  # benign windows that p-values are calibrated on


@dataclass(frozen=True, slots=True)
class Given:
    """Windows and their features (n, F)."""

    windows: Windows
    features: Tensor


@dataclass(frozen=True, slots=True)
class Views:
    """The inputs of n windows, one row each."""

    residuals: Tensor  # (n, C) guess minus truth of each hidden channel, over the window
    errors: Tensor  # (n, C) the same, squared before the mean; NaN for a channel that is absent
    embeddings: Tensor  # (n, 2D)
    levels: Tensor  # (n, C)
    features: Tensor  # (n, F)


class Detector(nn.Module):
    """Everything that scores a window, in one module, so that one sidecar holds it all."""

    names = (
        "masked_error",
        *(f"residual_{name}" for name in Distances.names),
        *(f"embedding_{name}" for name in Distances.names),
        *(f"level_{name}" for name in Distances.names),
        *(f"feature_{name}" for name in Distances.names),
    )

    def __init__(self, sizes: Sizes, hyper: Mapping[str, Value]) -> None:
        super().__init__()
        neighbours, references = int(hyper["neighbours"]), sizes.references
        self.normalise = RobustAsinh(sizes.channels)
        self.scale = RobustAsinh(sizes.features)
        self.body = MaskedModel(sizes.channels, sizes.samples, hyper)
        self.by_residual = Distances(sizes.channels, references, neighbours)
        self.by_embedding = Distances(2 * int(hyper["hidden"]), references, neighbours)
        self.by_level = Distances(sizes.channels, references, neighbours)
        self.by_feature = Distances(sizes.features, references, neighbours)
        self.surprise = Surprise(len(self.names), sizes.judged)

    def fit_scores(self, given: Given) -> None:
        """Learn what is usual from benign windows."""
        seen = self._views(given)
        self.by_residual.fit(seen.residuals)
        self.by_embedding.fit(seen.embeddings)
        self.by_level.fit(seen.levels)
        self.by_feature.fit(seen.features)

    def scores(self, given: Given) -> Tensor:
        """(n, S) in the order of ``names``."""
        seen = self._views(given)
        columns = (
            mean_error(seen.errors).unsqueeze(1),
            self.by_residual(seen.residuals),
            self.by_embedding(seen.embeddings),
            self.by_level(seen.levels),
            self.by_feature(seen.features),
        )
        return torch.cat(columns, dim=1)

    def parts(self, given: Given, of_features: Tensor) -> Tensor:
        """(n, S, C): each channel's share of each score; none of those of embeddings, which know no channels.

        ``of_features`` (F, C) says how much of each feature is each channel's.
        """
        seen = self._views(given)
        errors = seen.errors.nan_to_num(0.0)
        masked = errors / errors.sum(dim=1, keepdim=True).clamp_min(EPSILON)
        embedding = torch.zeros(len(errors), len(Distances.names), errors.shape[1], dtype=torch.double)
        found = (
            masked.unsqueeze(1),
            self.by_residual.parts(seen.residuals),
            embedding,
            self.by_level.parts(seen.levels),
            self.by_feature.parts(seen.features) @ of_features,
        )
        return torch.cat(found, dim=1)

    def _views(self, given: Given) -> Views:
        """On the CPU in double precision."""
        parts = []
        with torch.no_grad():
            for rows in torch.arange(len(given.windows)).split(AT_ONCE):
                x = given.windows.take(rows)
                seen = (*self.body.once_each(x), self.body.embed(x), known(x.mean(dim=-1))[0])
                parts.append([view.double().cpu() for view in seen])
        residuals, errors, embeddings, levels = map(torch.cat, zip(*parts, strict=True))
        return Views(residuals, errors, embeddings, levels, self._scaled(given.features))

    def _scaled(self, features: Tensor) -> Tensor:
        with torch.no_grad():
            return known(self.scale(features.unsqueeze(-1)).squeeze(-1))[0]


def mean_error(errors: Tensor) -> Tensor:
    """(n,): the mean over the channels of each window (n, C), those that are absent left out."""
    return errors.nanmean(dim=1) if errors.isnan().any() else errors.mean(dim=1)


# Scores that are combined with each other: one kind of distance in every view, and all of them.
GROUPS: Mapping[str, tuple[int, ...]] = {
    "every": tuple(range(len(Detector.names))),
    **{
        kind: tuple(k for k, name in enumerate(Detector.names) if name.endswith(f"_{kind}")) for kind in Distances.names
    },
}


USUAL = "knn"  # the group that was best on most of the data sets tried

# The baselines that come to mind first, on the same features.
PLAIN = tuple(f"feature_{kind}" for kind in Distances.names)


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A pre-trained detector and the scores that it combines."""

    detector: Detector
    sizes: Sizes
    members: tuple[int, ...]
    judgement: Mapping[str, Any]
    device: torch.device
    history: History

    def predict(self, X: NDArray[np.float32], rows: IntArray, *, features: NDArray[np.float32]) -> Outputs:
        self.detector.eval()
        if rows.size == 0:
            return Outputs(score=np.zeros(0))
        seen = windows(X, rows, self.detector.normalise, self.device, resident_bytes=0)
        given = Given(seen, torch.from_numpy(features[rows]))
        surprise = self.detector.surprise(self.detector.scores(given))
        return Outputs(score=fisher(surprise, list(self.members)))

    def usual(self) -> NDArray[np.float32]:
        """(C, 1) the median of each channel in training."""
        return self.detector.normalise.middle.numpy()

    def carried(self, asked: Asked) -> FloatArray:
        """(n, C): the channels' shares of the distances, each as much as its surprise is of the score."""
        self.detector.eval()
        seen = windows(asked.X, asked.rows, self.detector.normalise, self.device, resident_bytes=0)
        given = Given(seen, torch.from_numpy(asked.features))
        members = list(self.members)
        surprise = self.detector.surprise(self.detector.scores(given))[:, members]
        parts = self.detector.parts(given, torch.from_numpy(asked.parts))[:, members]
        return np.asarray((surprise.unsqueeze(-1) * parts).mean(dim=1).numpy())

    def sidecar(self) -> bytes:
        return to_bytes(self.detector)

    def facts(self) -> dict[str, Any]:
        return {
            "normaliser": self.detector.normalise.describe(),
            "sizes": asdict(self.sizes),
            "scores": list(Detector.names),
            "members": [Detector.names[number] for number in self.members],
            "judgement": dict(self.judgement),
        }


def fit(task: Task) -> Anomaly:
    """Pre-train on the benign training windows, then fit the scores and choose among them."""
    if not task.is_benign.any():
        raise BadData(
            "transformer_ssl learns from benign windows, and these data have none: say which class is benign when you "
            "make the data set, or train a model that tells classes apart"
        )
    learn, judge = (side[task.is_benign[side]] for side in (task.split.train, task.split.val))
    if learn.size < LEAST_BENIGN or judge.size < LEAST_JUDGED:
        raise BadData(
            f"transformer_ssl needs {LEAST_BENIGN} benign windows to learn from and {LEAST_JUDGED} "
            f"to judge by, and the training side has {learn.size} and {judge.size}: record more"
        )
    torch.manual_seed(task.seed)
    device = torch.device(task.device)
    sizes = Sizes(
        channels=int(task.X.shape[1]),
        samples=int(task.X.shape[2]),
        features=int(task.features.shape[1]),
        references=min(MOST_REFERENCES, int(learn.size)),
        judged=int(judge.size),
    )
    detector = Detector(sizes, task.hyper)
    detector.normalise.fit(task.X, learn)
    detector.scale.fit(task.features[:, :, None], learn)
    detector.body.to(device)

    def given(rows: IntArray) -> Given:
        seen = windows(task.X, rows, detector.normalise, device)
        return Given(seen, torch.from_numpy(task.features[rows]))

    val = given(judge)
    history = _pretrain(task, detector.body, given(learn).windows, val.windows)
    detector.eval()
    detector.fit_scores(given(spread(learn)))
    detector.surprise.fit(detector.scores(val))
    task.stop.check()
    members, judgement = _judge(detector, val, given(_strange(task)))
    return Anomaly(detector, sizes, members, judgement, device, history)


def _strange(task: Task) -> IntArray:
    """Windows of the training side that are not benign; nothing was fitted on them."""
    sides = np.concatenate((task.split.train, task.split.val))
    return spread(sides[~task.is_benign[sides]], MOST_REFERENCES)


def _pretrain(task: Task, body: MaskedModel, train: Windows, val: Windows) -> History:
    share = task.number("mask_ratio")

    def loss_of(rows: Tensor) -> Tensor:
        x = train.take(rows)
        return body.loss(x, body.draw(len(rows), share, x.device))

    def validate() -> tuple[float, float | None]:
        total = 0.0
        for rows in torch.arange(len(val)).split(AT_ONCE):
            _, errors = body.once_each(val.take(rows))
            total += float(mean_error(errors).mean() if errors.isnan().any() else errors.mean()) * len(rows)
        return total / len(val), None

    return loop.train(
        body,
        n_train=len(train),
        loss_of=loss_of,
        validate=validate,
        spec=loop_spec(task),
        progress=task.progress,
        stop=task.stop,
        keeper=task.keeper,
    )


def _judge(detector: Detector, val: Given, strange: Given) -> tuple[tuple[int, ...], dict[str, Any]]:
    """AUROC of scores and groups on labelled windows of the training side that nothing was fitted on."""
    if len(strange.windows) == 0:
        why = f"no malicious-like window to judge by: the scores called {USUAL}, combined"
        return GROUPS[USUAL], {"why": why}
    surprise = torch.cat([detector.surprise(detector.scores(given)) for given in (val, strange)])
    truth = np.arange(len(surprise)) >= len(val.windows)

    def judged(members: Sequence[int]) -> float:
        return auroc(truth, fisher(surprise, list(members))) or 0.0

    alone = {name: judged([number]) for number, name in enumerate(Detector.names)}
    together = {name: judged(members) for name, members in GROUPS.items()}
    members, why = choose(alone, together)
    return members, {"why": why, "auroc": {**alone, **{f"all {k}": v for k, v in together.items()}}}


def choose(alone: Mapping[str, float], together: Mapping[str, float]) -> tuple[tuple[int, ...], str]:
    """Choose the scores to combine: the default group, unless another, or a plain method alone, is clearly better.

    Single scores of the network are no candidates: the best of many on a few windows is mostly luck.
    """
    group = max(together, key=lambda name: (together[name], name == USUAL))
    if together[group] <= together[USUAL] + MAY_LOSE:
        group = USUAL
    plain = max(PLAIN, key=lambda name: alone[name])
    if together[group] >= alone[plain] - MAY_LOSE:
        return GROUPS[group], f"the scores called {group}, combined; the best plain one is {plain}"
    return (Detector.names.index(plain),), (
        f"fell back to {plain}: on the training side it separates {alone[plain]:.3f} "
        f"where the best combination reaches {together[group]:.3f}"
    )


def load(facts: Mapping[str, Any], sidecar: bytes, *, hyper: Mapping[str, Value]) -> Anomaly:
    """The detector of a verified sidecar, on the CPU."""
    sizes = Sizes(**facts["sizes"])
    detector = Detector(sizes, hyper)
    from_bytes(detector, sidecar)
    members = tuple(Detector.names.index(name) for name in facts["members"])
    return Anomaly(detector, sizes, members, facts["judgement"], torch.device("cpu"), [])

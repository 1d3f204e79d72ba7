"""``transformer_ssl``: learns what benign windows look like by filling in hidden patches.

Labels are used twice and never for the weights: malicious windows are kept out of training, and
labelled windows of the training hosts decide whether the combined score may be trusted there, or
must give way to a single one (``choose``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from training.trainer import loop
from training.trainer.anomaly import MOST_REFERENCES, Distances, Surprise, fisher
from training.trainer.blocks import pad_to
from training.trainer.contract import BadData
from training.trainer.flags import Value
from training.trainer.normalise import RobustAsinh, spread
from training.trainer.supervised import AT_ONCE, from_bytes, loop_spec, to_bytes
from training.trainer.task import History, IntArray, Outputs, Task, auroc
from training.trainer.transformer import Encoder
from training.trainer.windows import Windows, windows

SIDECAR = ".pt"
LIBRARIES = ("torch",)
PASSES = 4  # each patch is hidden in exactly one of them
LEAST_BENIGN = 20  # windows to learn from, and LEAST_JUDGED to calibrate p-values with
LEAST_JUDGED = 5
MAY_LOSE = 0.02  # AUROC by which the combination may stay behind the best single score


class MaskedModel(nn.Module):
    """An encoder and a linear reconstruction of the patches."""

    def __init__(self, channels: int, samples: int, hyper: Mapping[str, Value]) -> None:
        super().__init__()
        self.encoder = Encoder(channels, samples, hyper)
        self.rebuild = nn.Linear(int(hyper["hidden"]), channels * self.encoder.patch)

    def errors(self, x: Tensor, hidden: Tensor) -> Tensor:
        """Squared errors (B, L, C), averaged over a patch's samples; ``hidden`` is (B, L)."""
        guess = self.rebuild(self.encoder(x, hidden))
        batch, length, _ = guess.shape
        patch = self.encoder.patch
        truth = pad_to(x, patch).unflatten(-1, (length, patch)).permute(0, 2, 1, 3)
        squared: Tensor = (guess.view(batch, length, -1, patch) - truth) ** 2
        return squared.mean(dim=-1)

    def loss(self, x: Tensor, hidden: Tensor) -> Tensor:
        error = self.errors(x, hidden).mean(dim=-1)
        return (error * hidden).sum() / hidden.sum().clamp_min(1)

    def once_each(self, x: Tensor) -> Tensor:
        """(B, C): reconstruction error of each channel, every patch guessed from the others once."""
        length = self.encoder.length
        turn = torch.arange(length, device=x.device) % min(PASSES, length)
        total = torch.zeros(x.shape[0], x.shape[1], device=x.device)
        for number in range(min(PASSES, length)):
            hidden = (turn == number).expand(x.shape[0], -1)
            total += (self.errors(x, hidden) * hidden.unsqueeze(-1)).sum(dim=1)
        return total / length

    def embed(self, x: Tensor) -> Tensor:
        """(B, 2D): mean and spread of the tokens."""
        tokens = self.encoder(x)
        return torch.cat((tokens.mean(dim=1), tokens.std(dim=1, correction=0)), dim=1)


def summaries(x: Tensor) -> Tensor:
    """(B, 6C): plain statistics of the normalised window, the bar that an encoder has to clear."""
    steps = torch.linspace(-1, 1, x.shape[-1], device=x.device)
    change = (x[..., 1:] - x[..., :-1]).abs().mean(dim=-1)
    slope = (x * steps).mean(dim=-1)
    parts = (x.mean(-1), x.std(-1, correction=0), x.amin(-1), x.amax(-1), slope, change)
    return torch.cat(parts, dim=1)


class Detector(nn.Module):
    """Everything that scores a window, in one module, so that one sidecar holds it all."""

    names = (
        "masked_error",
        *(f"error_{name}" for name in Distances.names),
        *(f"embedding_{name}" for name in Distances.names),
        *(f"summary_{name}" for name in Distances.names),
    )

    def __init__(
        self, shape: tuple[int, int], hyper: Mapping[str, Value], references: int, judged: int
    ) -> None:
        super().__init__()
        channels, samples = shape
        neighbours = int(hyper["neighbours"])
        self.normalise = RobustAsinh(channels)
        self.body = MaskedModel(channels, samples, hyper)
        self.by_error = Distances(channels, references, neighbours)
        self.by_embedding = Distances(2 * int(hyper["hidden"]), references, neighbours)
        self.by_summary = Distances(6 * channels, references, neighbours)
        self.surprise = Surprise(len(self.names), judged)

    def views(self, given: Windows) -> tuple[Tensor, Tensor, Tensor]:
        """Channel errors, embeddings and summaries of windows, on the CPU in double precision."""
        parts: list[tuple[Tensor, Tensor, Tensor]] = []
        with torch.no_grad():
            for rows in torch.arange(len(given)).split(AT_ONCE):
                x = given.take(rows)
                made = (self.body.once_each(x), self.body.embed(x), summaries(x))
                parts.append(
                    (made[0].double().cpu(), made[1].double().cpu(), made[2].double().cpu())
                )
        errors, embeddings, plain = zip(*parts, strict=True)
        return torch.cat(errors), torch.cat(embeddings), torch.cat(plain)

    def scores(self, given: Windows) -> Tensor:
        """(n, S) in the order of ``names``."""
        errors, embeddings, plain = self.views(given)
        # The error's logarithm is nearly normal; the error itself is ruled by its largest channel.
        logs = torch.log(errors + 1e-6)
        columns = (
            errors.mean(dim=1, keepdim=True),
            self.by_error(logs),
            self.by_embedding(embeddings),
            self.by_summary(plain),
        )
        return torch.cat(columns, dim=1)

    def fit_scores(self, given: Windows) -> None:
        errors, embeddings, plain = self.views(given)
        self.by_error.fit(torch.log(errors + 1e-6))
        self.by_embedding.fit(embeddings)
        self.by_summary.fit(plain)


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A pre-trained detector and the scores that it combines."""

    detector: Detector
    shape: tuple[int, int]
    members: tuple[int, ...]
    judgement: Mapping[str, Any]
    device: torch.device
    history: History

    def predict(self, X: NDArray[np.float32], rows: IntArray) -> Outputs:
        self.detector.eval()
        if rows.size == 0:
            return Outputs(score=np.zeros(0))
        given = windows(X, rows, self.detector.normalise, self.device, resident_bytes=0)
        surprise = self.detector.surprise(self.detector.scores(given))
        return Outputs(score=fisher(surprise, list(self.members)))

    def sidecar(self) -> bytes:
        return to_bytes(self.detector)

    def facts(self) -> dict[str, Any]:
        return {
            "normaliser": self.detector.normalise.describe(),
            "shape": list(self.shape),
            "references": int(self.detector.by_error.references.shape[0]),
            "judged": int(self.detector.surprise.ladder.shape[1]),
            "scores": list(Detector.names),
            "members": [Detector.names[number] for number in self.members],
            "judgement": dict(self.judgement),
        }


def fit(task: Task) -> Anomaly:
    """Pre-train on the benign training windows, then fit the scores and choose among them."""
    benign = task.y == task.benign
    learn, judge = (side[benign[side]] for side in (task.split.train, task.split.val))
    if learn.size < LEAST_BENIGN or judge.size < LEAST_JUDGED:
        raise BadData(
            f"transformer_ssl needs {LEAST_BENIGN} benign windows to learn from and {LEAST_JUDGED} "
            f"to judge by, and the training side has {learn.size} and {judge.size}: record more"
        )
    torch.manual_seed(task.seed)
    device = torch.device(task.device)
    shape = (int(task.X.shape[1]), int(task.X.shape[2]))
    references = min(MOST_REFERENCES, int(learn.size))
    detector = Detector(shape, task.hyper, references, int(judge.size))
    detector.normalise.fit(task.X, learn)
    detector.body.to(device)
    train = windows(task.X, learn, detector.normalise, device)
    val = windows(task.X, judge, detector.normalise, device)
    history = _pretrain(task, detector.body, train, val)

    detector.eval()
    usual = windows(task.X, spread(learn), detector.normalise, device)
    detector.fit_scores(usual)
    detector.surprise.fit(detector.scores(val))
    task.stop.check()
    members, judgement = _judge(task, detector, val, device)
    return Anomaly(detector, shape, members, judgement, device, history)


def _pretrain(task: Task, body: MaskedModel, train: Windows, val: Windows) -> History:
    length, share = body.encoder.length, task.number("mask_ratio")
    count = min(max(1, round(share * length)), max(length - 1, 1))

    def loss_of(rows: Tensor) -> Tensor:
        x = train.take(rows)
        order = torch.rand(len(rows), length, device=x.device).argsort(dim=1)
        return body.loss(x, order < count)

    def validate() -> tuple[float, float | None]:
        total = 0.0
        for rows in torch.arange(len(val)).split(AT_ONCE):
            total += float(body.once_each(val.take(rows)).mean()) * len(rows)
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


def _judge(
    task: Task, detector: Detector, val: Windows, device: torch.device
) -> tuple[tuple[int, ...], dict[str, Any]]:
    """AUROC of every score on labelled windows of the training side that nothing was fitted on."""
    everything = tuple(range(len(Detector.names)))
    sides = np.concatenate((task.split.train, task.split.val))
    strange = spread(sides[task.y[sides] != task.benign], MOST_REFERENCES)
    if strange.size == 0:
        return everything, {"why": "no malicious-like window to judge by: all scores combined"}
    other = windows(task.X, strange, detector.normalise, device)
    surprise = torch.cat([detector.surprise(detector.scores(given)) for given in (val, other)])
    truth = np.concatenate((np.zeros(len(val), dtype=bool), np.ones(strange.size, dtype=bool)))
    alone = [auroc(truth, fisher(surprise, [number])) for number in everything]
    together = auroc(truth, fisher(surprise, list(everything)))
    members, why = choose([value or 0.0 for value in alone], together or 0.0)
    judged = dict(zip(Detector.names, alone, strict=True))
    return members, {"why": why, "auroc": {"combined": together, **judged}}


def choose(alone: Sequence[float], together: float) -> tuple[tuple[int, ...], str]:
    """Which scores to combine: all, unless the best of them is clearly better by itself."""
    best = int(np.argmax(alone))
    name = Detector.names[best]
    if together >= alone[best] - MAY_LOSE:
        return tuple(range(len(alone))), f"all scores combined; the best alone is {name}"
    return (best,), (
        f"fell back to {name}: on the training side it separates {alone[best]:.3f} "
        f"where all combined reach {together:.3f}"
    )


def load(facts: Mapping[str, Any], sidecar: bytes, *, hyper: Mapping[str, Value]) -> Anomaly:
    """The detector of a verified sidecar, on the CPU."""
    shape = (int(facts["shape"][0]), int(facts["shape"][1]))
    detector = Detector(shape, hyper, int(facts["references"]), int(facts["judged"]))
    from_bytes(detector, sidecar)
    members = tuple(Detector.names.index(name) for name in facts["members"])
    return Anomaly(detector, shape, members, facts["judgement"], torch.device("cpu"), [])

"""Anomaly scores: distances to benign windows, each turned into a calibrated p-value, then combined.

No single score wins everywhere, and masked error alone was once worse than chance. Scores of
unlike scales are made comparable by asking the same of each: how rare is this among benign windows
that nothing was fitted on?

Everything is a module with buffers, so that it travels in the sidecar; sums are in double precision.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.covariance import ledoit_wolf
from torch import Tensor, nn

MOST_REFERENCES = 2_000
AT_ONCE = 4_096  # windows: a table of distances to all references is kept of no more
TAIL_SHARE = 0.1  # the rarest tenth of the benign windows says how the tail falls
EPSILON = 1e-12
FARTHEST = 10.0  # standard deviations: one dimension out of bounds must not drown all others


class Distances(nn.Module):
    """Three ways of being far from benign: nearest neighbours, local density, and Mahalanobis.

    ``vectors`` (n, D) in, three scores (n,) out; higher is stranger. Neighbours are looked for after
    whitening: what benign windows do every day counts little, however large it is. It was better
    than both plain neighbours and the distance to the mean on nearly every view and data set tried.
    """

    names = ("knn", "lof", "mahalanobis")
    mean: Tensor  # (D,)
    gain: Tensor  # (D,) 0 for a dimension that never varied
    whiten: Tensor  # (D, D): distances after it are Mahalanobis distances
    references: Tensor  # (R, D) benign windows, standardised; a stored name, no host's reference recording
    reach: Tensor  # (R,) distance to the k-th neighbour among the references
    density: Tensor  # (R,) local reachability density

    def __init__(self, dimensions: int, references: int, neighbours: int) -> None:
        super().__init__()
        self.neighbours = min(neighbours, references - 1)
        self.register_buffer("mean", torch.zeros(dimensions, dtype=torch.double))
        self.register_buffer("gain", torch.zeros(dimensions, dtype=torch.double))
        self.register_buffer("whiten", torch.eye(dimensions))
        self.register_buffer("references", torch.zeros(references, dimensions))
        self.register_buffer("reach", torch.zeros(references, dtype=torch.double))
        self.register_buffer("density", torch.zeros(references, dtype=torch.double))

    def fit(self, vectors: Tensor) -> None:
        """Learn what is usual from benign ``vectors`` (n, D), n at least the number of references."""
        vectors = vectors.double()
        deviation = vectors.std(dim=0)
        self.mean.copy_(vectors.mean(dim=0))
        self.gain.copy_(torch.where(deviation > EPSILON, 1 / deviation.clamp_min(EPSILON), 0.0))
        standard = self._standardise(vectors)
        covariance, _ = ledoit_wolf(standard.numpy())
        values, directions = np.linalg.eigh(covariance)
        root = directions / np.sqrt(np.maximum(values, 1e-6))
        self.whiten.copy_(torch.from_numpy(root))
        count = self.references.shape[0]
        chosen = torch.linspace(0, len(vectors) - 1, count).long()
        self.references.copy_(standard[chosen])
        apart = torch.cdist(self.references.double(), self.references.double())
        apart.fill_diagonal_(math.inf)
        near, who = apart.topk(self.neighbours, largest=False)
        self.reach.copy_(near[:, -1])
        self.density.copy_(1 / (torch.maximum(near, self.reach[who]).mean(dim=1) + EPSILON))

    def forward(self, vectors: Tensor) -> Tensor:
        """(n, 3) in the order of ``names``."""
        white = self.references.double() @ self.whiten.double()
        parts = [self._of(part, white) for part in vectors.split(AT_ONCE)]
        return torch.cat(parts) if parts else torch.zeros(0, len(self.names), dtype=torch.double)

    def _of(self, vectors: Tensor, white: Tensor) -> Tensor:
        standard = self._standardise(vectors.double())
        turned = standard @ self.whiten.double()
        knn = torch.cdist(turned, white).topk(self.neighbours, largest=False).values.mean(dim=1)
        near, who = torch.cdist(standard, self.references.double()).topk(self.neighbours, largest=False)
        density = 1 / (torch.maximum(near, self.reach[who]).mean(dim=1) + EPSILON)
        lof = self.density[who].mean(dim=1) / density
        return torch.stack((knn, lof, turned.norm(dim=1)), dim=1)

    def parts(self, vectors: Tensor) -> Tensor:
        """(n, 3, D): each dimension's share of each score, in the order of ``names``; of local density its distances'.

        A squared distance is a sum over the dimensions, whitened ones by their products with the others: such a part
        may be negative, and the parts of a score add up to 1.
        """
        standard, references = self._standardise(vectors.double()), self.references.double()
        precision = self.whiten.double() @ self.whiten.double().T
        by_white = torch.cdist(standard @ self.whiten.double(), references @ self.whiten.double())
        by_plain = torch.cdist(standard, references)

        def near(apart: Tensor) -> Tensor:
            who = apart.topk(self.neighbours, largest=False).indices
            return standard[:, None] - references[who]  # (n, k, D)

        def divided(gap: Tensor, turned: Tensor) -> Tensor:
            squares = gap * turned
            length = squares.sum(dim=-1, keepdim=True).clamp_min(EPSILON).sqrt()
            parts = (squares / length).sum(dim=1)
            return parts / parts.sum(dim=1, keepdim=True).clamp_min(EPSILON)

        white, plain, whole = near(by_white), near(by_plain), standard[:, None]
        found = divided(white, white @ precision), divided(plain, plain), divided(whole, whole @ precision)
        return torch.stack(found, dim=1)

    def _standardise(self, vectors: Tensor) -> Tensor:
        return ((vectors - self.mean) * self.gain).clamp(-FARTHEST, FARTHEST)


class Surprise(nn.Module):
    """Scores (n, S) to -log p (n, S), with p the share of benign calibration windows at least as strange.

    Inside the calibration windows p is the conformal (1 + rank) / (n + 1). Beyond the rarest tenth
    it falls off exponentially at the rate seen there, so that strange and stranger stay apart
    where a bare rank would tie them.
    """

    ladder: Tensor  # (S, n) ascending benign scores
    rate: Tensor  # (S,) of the tail

    def __init__(self, scores: int, windows: int) -> None:
        super().__init__()
        self.register_buffer("ladder", torch.zeros(scores, windows, dtype=torch.double))
        self.register_buffer("rate", torch.ones(scores, dtype=torch.double))

    def fit(self, benign: Tensor) -> None:
        """``benign`` (n, S): scores of windows that no score was fitted on."""
        self.ladder.copy_(benign.double().T.sort(dim=1).values)
        edge = self._edge()
        excess = (self.ladder[:, edge:] - self.ladder[:, edge : edge + 1]).mean(dim=1)
        spread = self.ladder[:, -1] - self.ladder[:, 0]
        self.rate.copy_(1 / torch.maximum(excess, spread * 1e-3).clamp_min(EPSILON))

    def forward(self, scores: Tensor) -> Tensor:
        count, edge = self.ladder.shape[1], self._edge()
        columns = scores.double().T.contiguous()
        above = count - torch.searchsorted(self.ladder, columns)
        inside = -torch.log((1 + above.double()) / (count + 1))
        start = self.ladder[:, edge : edge + 1]
        beyond = math.log((count + 1) / (1 + count - edge)) + (columns - start) * self.rate[:, None]
        return torch.where(columns > start, beyond, inside).T

    def _edge(self) -> int:
        count = self.ladder.shape[1]
        return min(int(count * (1 - TAIL_SHARE)), count - 1)


def fisher(surprise: Tensor, members: list[int]) -> NDArray[np.float64]:
    """(n,): the mean of -log p over the chosen scores, Fisher's combination up to a factor."""
    return surprise[:, members].mean(dim=1).numpy()

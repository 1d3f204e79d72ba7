"""``mlp``: several small networks on window features, trained side by side and averaged.

A single small network trained on a thousand windows depends on its seed as much as on the data. The mean of eight
networks depends less on the seed, and a layer of all eight costs one batched product. Each network also has a linear
layer straight from input to output, whose weights start at 0.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.hyper import HyperValues
from training.trainer.blocks import SPARED, known


class MembersLinear(nn.Module):
    """(M, B, inputs) → (M, B, outputs): a linear layer with separate weights for each of M members."""

    def __init__(self, members: int, inputs: int, outputs: int, *, zero: bool = False) -> None:
        super().__init__()
        bound = 0.0 if zero else 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(members, 1, outputs))
        self.bias.decays = False  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


class Mlp(nn.Module):
    """Features (B, F) → logits of the members (M, B, K).

    An absent feature counts as its median in training. ``spare`` has, for each channel that only some training windows
    have, the numbers of its features. In training each channel of ``spare`` is hidden in about half of the windows,
    drawn at random.
    """

    def __init__(self, features: int, classes: int, hyper: HyperValues, spare: Sequence[Sequence[int]] = ()) -> None:
        super().__init__()
        self.spare = [f"spare{number}" for number in range(len(spare))]
        for name, columns in zip(self.spare, spare, strict=True):
            self.register_buffer(name, torch.tensor(columns), persistent=False)
        self.members, width = int(hyper["members"]), int(hyper["hidden"])
        self.dropout = float(hyper["dropout"])
        widths = [features] + [width] * int(hyper["layers"])
        self.layers = nn.ModuleList(MembersLinear(self.members, a, b) for a, b in pairwise(widths))
        self.head = MembersLinear(self.members, width, classes)
        self.straight = MembersLinear(self.members, features, classes, zero=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self._spared(known(x)[0])
        x = x.expand(self.members, *x.shape)
        x = functional.dropout(x, self.dropout / 2, self.training)
        hidden = x
        for layer in self.layers:
            hidden = functional.gelu(layer(hidden))
            hidden = functional.dropout(hidden, self.dropout, self.training)
        return self.head(hidden) + self.straight(x)

    def _spared(self, x: Tensor) -> Tensor:
        for name in self.spare if self.training else ():
            x[:, self.get_buffer(name)] *= torch.rand(len(x), 1, device=x.device) >= SPARED
        return x

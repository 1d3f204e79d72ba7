"""Pieces that several networks share."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


def steps_of(samples: int, most: int) -> int:
    """The least stride that leaves at most ``most`` steps of ``samples``."""
    return math.ceil(samples / most)


class Patches(nn.Module):
    """(B, C, T) → (B, width, ceil(T / patch)): each run of ``patch`` samples as one step."""

    def __init__(self, channels: int, width: int, patch: int) -> None:
        super().__init__()
        self.patch = patch
        self.project = nn.Conv1d(channels, width, patch, stride=patch)

    def forward(self, x: Tensor) -> Tensor:
        return self.project(pad_to(x, self.patch))


def pad_to(x: Tensor, multiple: int) -> Tensor:
    """Repeat the last sample until the length is a multiple."""
    missing = -x.shape[-1] % multiple
    return functional.pad(x, (0, missing), mode="replicate") if missing else x


class MeanMax(nn.Module):
    """(B, C, T) → (B, 2C): what is usual in a window, and what was extreme in it."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((x.mean(dim=-1), x.amax(dim=-1)), dim=1)

"""Layers and helpers that several networks share."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


def steps_of(samples: int, most: int) -> int:
    """Return the smallest stride that divides ``samples`` into at most ``most`` steps."""
    return math.ceil(samples / most)


class Patches(nn.Module):
    """(B, C, T) → (B, width, ceil(T / patch)): maps each patch of ``patch`` successive samples linearly to one step."""

    def __init__(self, channels: int, width: int, patch: int) -> None:
        super().__init__()
        self.patch = patch
        self.project = nn.Conv1d(channels, width, patch, stride=patch)

    def forward(self, x: Tensor) -> Tensor:
        return self.project(pad_to(x, self.patch))


def pad_to(x: Tensor, multiple: int) -> Tensor:
    """Repeat the last sample until the number of samples is a multiple of ``multiple``."""
    missing = -x.shape[-1] % multiple
    return functional.pad(x, (0, missing), mode="replicate") if missing else x


SPARED = 0.5  # share of the windows in which a channel that some training windows lack is hidden from a network


def known(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``x`` with absent values replaced by 0, the middle after normalising; and a mask of the known values."""
    there = ~x.isnan()
    return torch.where(there, x, 0.0), there


class Perturb(nn.Module):
    """Change training windows (B, C, T) at random, so that a network does not see one twice in the same form; the shape
    stays.

    In training, levels of whole channels shift, as they do between hosts; samples get noise. With at least ``FEWEST``
    channels, each channel is hidden in some training windows; with fewer, only each channel in ``spare``. On recordings
    of four hosts, trained on two and tested on the other two, perturbing gained 0.03 AUROC. ``strength`` is the shift's
    standard deviation in normalised units; with 0 only absent values change. A hidden channel looks like an absent one.
    With a ``strength``, each channel in ``spare``, which some training windows lack, is hidden in about half of the
    training windows. Outside of training only absent values change: they become 0. Networks that were given a mask of
    present channels learnt to recognise hosts by the mask. With five channels that two of four hosts lacked, such a
    mask cost ``cnn`` 0.015 AUROC on an unseen host, and gained ``mlp`` 0.004.
    """

    spare: Tensor
    FEWEST = 16  # channels; of fewer, only those that some host lacks can be spared

    def __init__(self, strength: float, spare: Sequence[int] = ()) -> None:
        super().__init__()
        self.strength = strength
        self.hidden = min(2 / 3 * strength, 0.5)  # share of the channels
        self.register_buffer("spare", torch.tensor(spare, dtype=torch.long), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x, there = known(x)
        there = there[..., :1]
        if self.training and self.strength:
            shape, device = (*x.shape[:2], 1), x.device
            x = x + self.strength * torch.randn(shape, device=device)
            x = x + self.strength / 3 * torch.randn(x.shape, device=device)
            if x.shape[1] >= self.FEWEST or len(self.spare):
                there = there & (torch.rand(shape, device=device) >= self._shares(x))
            x = x * there
        return x

    def _shares(self, x: Tensor) -> Tensor | float:
        """Return the share of windows in which a channel is hidden: one number for all channels, or (C, 1)."""
        if not len(self.spare):
            return self.hidden
        shares = torch.full((x.shape[1], 1), self.hidden if x.shape[1] >= self.FEWEST else 0.0, device=x.device)
        return shares.index_fill_(0, self.spare, SPARED)


class MeanMax(nn.Module):
    """(B, C, T) → (B, 2C): each channel's mean and maximum over the window."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((x.mean(dim=-1), x.amax(dim=-1)), dim=1)

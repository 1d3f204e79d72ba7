"""Pre-training without labels: hide patches of a window, and guess them from the others."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from training.trainer.blocks import pad_to
from training.trainer.flags import Value
from training.trainer.transformer import Encoder

PASSES = 4  # each patch is hidden in exactly one of them


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

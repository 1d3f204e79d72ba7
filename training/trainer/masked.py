"""Pre-training without labels: hide channels of a window, and predict them from the others.

Of several channels, some are hidden, each for the whole window. Hiding patches in time was tried first. Smooth
telemetry can be predicted from the samples just before and after, whatever the host is doing: the errors of such
predictions ranked windows no better than chance. How channels depend on each other changes with the behaviour.
"""

import torch
from torch import Tensor, nn

from training.hyper import HyperValues
from training.trainer.blocks import known
from training.trainer.transformer import Encoder

PASSES = 4  # each channel is hidden in exactly one of them


class MaskedModel(nn.Module):
    """Encodes the visible part of a window, and reconstructs the hidden part from that code by a linear layer.

    If there is only one channel, patches of it are hidden instead of whole channels. An absent channel is always
    hidden, and no loss is computed for it.
    """

    def __init__(self, channels: int, samples: int, hyper: HyperValues) -> None:
        super().__init__()
        self.encoder = Encoder(2 * channels, samples, hyper)
        self.rebuild = nn.Linear(int(hyper["hidden"]), channels * self.encoder.patch)
        self.channels, self.samples = channels, samples
        self.parts = channels if channels > 1 else self.encoder.length  # what can be hidden

    def draw(self, batch: int, share: float, device: torch.device) -> Tensor:
        """Return (B, parts): True for about ``share`` of each window's parts, drawn at random: at least one part, and
        not all unless there is only one."""
        count = min(max(1, round(share * self.parts)), max(self.parts - 1, 1))
        order = torch.rand(batch, self.parts, device=device).argsort(dim=1)
        return order < count

    def loss(self, x: Tensor, hidden: Tensor) -> Tensor:
        """Return the mean squared error of the hidden values, without absent ones; 0 if none are left."""
        x, there = known(x)
        unseen = self._spread(hidden)
        asked = unseen * there
        return (self._residuals(x, unseen, there) ** 2 * asked).sum() / asked.sum().clamp_min(1)

    def once_each(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and mean square (B, C) of each channel's residuals, when every part is predicted once.

        Each pass hides a share of the parts and predicts them from the rest. For an absent channel mean and mean square
        are 0 and NaN.
        """
        x, there = known(x)
        passes = min(PASSES, self.parts)
        turn = torch.arange(self.parts, device=x.device) % passes
        residuals = torch.zeros_like(x)
        for number in range(passes):
            unseen = self._spread((turn == number).expand(x.shape[0], -1))
            residuals += self._residuals(x, unseen, there) * unseen * there
        errors = (residuals**2).mean(dim=-1)
        return residuals.mean(dim=-1), torch.where(there[..., 0], errors, torch.nan)

    def embed(self, x: Tensor) -> Tensor:
        """Return (B, 2D): mean and spread of the tokens of windows in which only absent values are hidden."""
        x, there = known(x)
        tokens = self.encoder(torch.cat((x, (~there).to(x.dtype)), dim=1))
        middle = tokens.mean(dim=1, keepdim=True)
        return torch.cat((middle[:, 0], (tokens - middle).square().mean(dim=1).sqrt()), dim=1)

    def _residuals(self, x: Tensor, unseen: Tensor, there: Tensor) -> Tensor:
        """Return prediction minus truth (B, C, T); ``there`` marks known values, ``unseen`` hidden ones (both B, C,
        T)."""
        unseen = torch.where(there, unseen, 1.0)
        tokens = self.encoder(torch.cat((x * (1 - unseen), unseen), dim=1))
        guess = self.rebuild(tokens).unflatten(-1, (self.channels, -1)).permute(0, 2, 1, 3)
        return guess.flatten(2)[..., : self.samples] - x

    def _spread(self, hidden: Tensor) -> Tensor:
        """Expand a mask over parts, (B, parts), to zeros and ones over channels and samples, (B, C, T)."""
        marks = hidden.float()
        if self.channels > 1:
            return marks.unsqueeze(-1).expand(-1, -1, self.samples)
        longer = marks.repeat_interleave(self.encoder.patch, dim=1)
        return longer[:, : self.samples].unsqueeze(1)

"""``transformer``: attention over the patches of a window; also the encoder of ``transformer_ssl``."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.hyper import HyperValues
from training.trainer.blocks import MeanMax, Patches, steps_of

PATCHES = 16  # about, where the patch is chosen for you


def patch_of(samples: int, hyper: HyperValues) -> int:
    """Return the number of samples in a patch, never more than the window has."""
    return min(int(hyper["patch"]) or steps_of(samples, PATCHES), samples)


class Block(nn.Module):
    """Attention, then a small network on each token; each adds its output to its input (B, L, D)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        # Heads that do not divide the width are rounded up instead of refused.
        self.heads, self.head_width = heads, -(-width // heads)
        inner = heads * self.head_width
        self.norm_a, self.norm_b = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * inner), nn.Linear(inner, width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self._attend(self.norm_a(x)))
        return x + self.dropout(self.narrow(functional.gelu(self.wide(self.norm_b(x)))))

    def _attend(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        shape = (batch, length, 3, self.heads, self.head_width)
        q, k, v = self.qkv(x).view(shape).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-2, -1) * self.head_width**-0.5, dim=-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class Encoder(nn.Module):
    """Windows (B, C, T) → tokens (B, L, D)."""

    def __init__(self, channels: int, samples: int, hyper: HyperValues) -> None:
        super().__init__()
        width, dropout = int(hyper["hidden"]), float(hyper["dropout"])
        self.patch = patch_of(samples, hyper)
        self.length = -(-samples // self.patch)
        self.patches = Patches(channels, width, self.patch)
        self.position = nn.Parameter(torch.randn(1, self.length, width) * 0.02)
        self.unseen = nn.Parameter(torch.randn(width) * 0.02)  # read by nothing: sidecars have it
        self.position.decays = False  # type: ignore[attr-defined]
        self.blocks = nn.ModuleList(Block(width, int(hyper["heads"]), dropout) for _ in range(int(hyper["layers"])))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).transpose(1, 2) + self.position
        for block in self.blocks:
            tokens = block(tokens)
        return self.norm(tokens)


class Transformer(nn.Module):
    """Windows (B, C, T) → logits (1, B, K)."""

    def __init__(self, channels: int, samples: int, classes: int, hyper: HyperValues) -> None:
        super().__init__()
        self.encoder = Encoder(channels, samples, hyper)
        self.pool = MeanMax()
        width, dropout = int(hyper["hidden"]), float(hyper["dropout"])
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(2 * width, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.encoder(x).transpose(1, 2))).unsqueeze(0)

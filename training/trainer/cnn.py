"""``cnn``: one-dimensional convolutions over a window, pooled over time."""

from torch import Tensor, nn

from training.hyper import HyperValues
from training.trainer.blocks import MeanMax, Patches, steps_of

MOST_STEPS = 128  # longer windows are first shortened to about this many steps


class Cnn(nn.Module):
    """Windows (B, C, T) → logits (1, B, K)."""

    def __init__(self, channels: int, samples: int, classes: int, hyper: HyperValues) -> None:
        super().__init__()
        hidden, layers, kernel = (int(hyper[key]) for key in ("hidden", "layers", "kernel"))
        stride = steps_of(samples, MOST_STEPS)
        self.shorten = Patches(channels, hidden, stride) if stride > 1 else nn.Identity()
        # Wide in the middle, narrow at both ends.
        widths = [hidden * (2 if 0 < layer < layers - 1 else 1) for layer in range(layers)]
        inputs = [hidden if stride > 1 else channels, *widths]
        self.convolutions = nn.Sequential(*(_convolution(a, b, kernel) for a, b in zip(inputs, widths, strict=False)))
        self.pool = MeanMax()
        self.head = nn.Sequential(nn.Dropout(float(hyper["dropout"])), nn.Linear(2 * widths[-1], classes))

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.pool(self.convolutions(self.shorten(x)))
        return self.head(pooled).unsqueeze(0)


def _convolution(inputs: int, outputs: int, kernel: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv1d(inputs, outputs, kernel, padding=kernel // 2, bias=False), nn.BatchNorm1d(outputs), nn.ReLU()
    )

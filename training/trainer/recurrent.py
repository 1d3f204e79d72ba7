"""``gru`` and ``lstm``: a window read in both directions, step by step.

Long windows are shortened to at most 64 steps first: a recurrent state forgets what was hundreds of steps earlier, and
each step costs time.
"""

from torch import Tensor, nn

from training.hyper import HyperValues
from training.trainer.blocks import MeanMax, Patches, steps_of

MOST_STEPS = 64


class Recurrent(nn.Module):
    """Windows (B, C, T) → logits (1, B, K)."""

    cell: type[nn.GRU] | type[nn.LSTM]

    def __init__(self, channels: int, samples: int, classes: int, hyper: HyperValues) -> None:
        super().__init__()
        hidden, layers = int(hyper["hidden"]), int(hyper["layers"])
        dropout = float(hyper["dropout"])
        self.steps = Patches(channels, hidden, steps_of(samples, MOST_STEPS))
        self.read = self.cell(
            hidden, hidden, layers, batch_first=True, bidirectional=True, dropout=dropout if layers > 1 else 0.0
        )
        self.pool = MeanMax()
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(4 * hidden, classes))

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.read(self.steps(x).transpose(1, 2))
        return self.head(self.pool(states.transpose(1, 2))).unsqueeze(0)


class Gru(Recurrent):
    """A network of gated recurrent units."""

    cell = nn.GRU


class Lstm(Recurrent):
    """A network of long short-term memory."""

    cell = nn.LSTM

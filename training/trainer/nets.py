"""The networks by their names. All take normalised windows and answer with logits (M, B, K)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from training.trainer.blocks import Perturb
from training.trainer.cnn import Cnn
from training.trainer.flags import Value
from training.trainer.mlp import Mlp
from training.trainer.normalise import QuantileNormal, RobustAsinh
from training.trainer.recurrent import Recurrent
from training.trainer.transformer import Transformer


class Net(nn.Module):
    """A normaliser and the body that learns; the loop normalises once and trains the body."""

    def __init__(self, normalise: QuantileNormal | RobustAsinh, body: nn.Module) -> None:
        super().__init__()
        self.normalise = normalise
        self.body = body


def build(
    model: str,
    shape: tuple[int, ...],
    classes: int,
    hyper: Mapping[str, Value],
    spare: Sequence[Sequence[int]] = (),
) -> Net:
    """A fresh network for windows of ``shape``: (F,) features, or (C, T) channels and samples.

    ``spare``, of use while training: the places of each channel that some training windows lack, of its features or its
    own.
    """
    if model == "mlp":
        return Net(QuantileNormal(shape[0]), Mlp(shape[0], classes, hyper, spare))
    channels, samples = shape
    body = _over_time(model, channels, samples, classes, hyper)
    perturb = Perturb(float(hyper["perturb"]), [place for places in spare for place in places])
    return Net(RobustAsinh(channels), nn.Sequential(perturb, body))


def _over_time(model: str, channels: int, samples: int, classes: int, hyper: Mapping[str, Value]) -> nn.Module:
    match model:
        case "cnn":
            return Cnn(channels, samples, classes, hyper)
        case "gru":
            return Recurrent(nn.GRU, channels, samples, classes, hyper)
        case "lstm":
            return Recurrent(nn.LSTM, channels, samples, classes, hyper)
        case "transformer":
            return Transformer(channels, samples, classes, hyper)
    raise AssertionError(f"no network is called {model}")

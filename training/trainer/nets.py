"""The networks by their names. All take normalised windows and return logits (M, B, K)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module

from torch import nn

from training.families import FAMILIES, Takes
from training.hyper import Value
from training.trainer.blocks import Perturb
from training.trainer.normalise import QuantileNormal, RobustAsinh


class Net(nn.Module):
    """A normaliser and the body that learns; the loop normalises once and trains the body."""

    def __init__(self, normalise: QuantileNormal | RobustAsinh, body: nn.Module) -> None:
        super().__init__()
        self.normalise = normalise
        self.body = body


def build(
    model: str, shape: tuple[int, ...], classes: int, hyper: Mapping[str, Value], spare: Sequence[Sequence[int]] = ()
) -> Net:
    """Make an untrained network for windows of ``shape``: (F,) features, or (C, T) channels and samples.

    ``spare``, used while training, has the input places of each channel that some training windows lack.
    """
    family = FAMILIES[model]
    module, _, name = family.body.partition(":")
    body = getattr(import_module(module), name)
    if family.takes is Takes.FEATURES:
        return Net(QuantileNormal(shape[0]), body(shape[0], classes, hyper, spare))
    perturb = Perturb(float(hyper["perturb"]), [place for places in spare for place in places])
    return Net(RobustAsinh(shape[0]), nn.Sequential(perturb, body(*shape, classes, hyper)))

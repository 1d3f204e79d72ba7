"""The eight families behind one face. Asking for one imports only the library that it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from training.trainer.flags import SSL_MODELS, Value
from training.trainer.task import Fitted, Task


class Takes(StrEnum):
    """The kind of input that a family learns from."""

    FEATURES = "features"
    TENSORS = "tensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """``load(facts, sidecar, classes, hyper)`` rebuilds what ``fit`` made, on the CPU."""

    takes: Takes
    supervised: bool
    suffix: str  # of the sidecar
    libraries: tuple[str, ...]
    prefers_cuda: bool
    quick: bool = False  # trains in seconds what others take minutes for
    fit: Callable[[Task], Fitted]
    load: Callable[[Mapping[str, Any], bytes, int, Mapping[str, Value]], Fitted]


def find(model: str) -> Family:
    """The family of a model that ``flags.MODELS`` names."""
    if model == "gbt":
        return _gbt()
    if model == "combined":
        return _combined()
    return _ssl() if model in SSL_MODELS else _network(model)


def _gbt() -> Family:
    from training.trainer import gbt

    return Family(
        takes=Takes.FEATURES,
        supervised=True,
        suffix=gbt.SIDECAR,
        libraries=gbt.LIBRARIES,
        # Below some hundred thousand windows the CPU is as fast, and its models repeat anywhere.
        prefers_cuda=False,
        quick=True,
        fit=gbt.fit,
        load=lambda facts, sidecar, classes, _hyper: gbt.load(facts, sidecar, classes=classes),
    )


def _network(model: str) -> Family:
    from training.trainer import supervised

    return Family(
        takes=Takes.FEATURES if model == "mlp" else Takes.TENSORS,
        supervised=True,
        suffix=supervised.SIDECAR,
        libraries=supervised.LIBRARIES,
        prefers_cuda=True,
        fit=supervised.fit,
        load=lambda facts, sidecar, classes, hyper: supervised.load(
            model, facts, sidecar, classes=classes, hyper=hyper
        ),
    )


def _combined() -> Family:
    from training.trainer import combined

    return Family(
        takes=Takes.TENSORS,
        supervised=True,
        suffix=combined.SIDECAR,
        libraries=combined.LIBRARIES,
        prefers_cuda=False,
        fit=combined.fit,
        load=lambda facts, sidecar, classes, hyper: combined.load(facts, sidecar, classes=classes, hyper=hyper),
    )


def _ssl() -> Family:
    from training.trainer import ssl

    return Family(
        takes=Takes.TENSORS,
        supervised=False,
        suffix=ssl.SIDECAR,
        libraries=ssl.LIBRARIES,
        prefers_cuda=True,
        fit=ssl.fit,
        load=lambda facts, sidecar, _classes, hyper: ssl.load(facts, sidecar, hyper=hyper),
    )

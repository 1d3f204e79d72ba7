"""Models and saved states of other machines: each is refused, or used as an honest one is; a process that dies shows.

The first byte: the reader of the rest. ``0``, ``1``: XGBoost's JSON of two classes, or three; ``2``: the weights of a
network; ``3``: the pickle within such weights; ``4``: the pickle within a network's saved state.
"""

from __future__ import annotations

import io
import pickle
import warnings
import zipfile
from collections.abc import Callable
from functools import cache

import msgspec
import numpy as np
import torch
from torch import nn

from training.clock import SystemClock
from training.families import FAMILIES
from training.trainer import loop, weights_file
from training.trainer.contract import Progress, Stop
from training.trainer.judging import NOT_WEIGHTS
from training.trainer.supervised import build
from training.trainer.task import GivenWindows, WindowsToExplain
from training.trainer.windows import Resident

WORDS = (
    b"-1", b"-2", b"1073741824", b"2147483647", b"4294967295", b"[]", b"[1]", b"[1, 2, -1]", b"1e39", b"NaN", b'"0"',
    b'"[5E-1]"', b'"left_children"', b"ctorch\nFloatStorage\n", b"ctorch\nDoubleStorage\n", b"ctorch\nLongStorage\n",
    b"ctorch._utils\n_rebuild_sparse_tensor\n", b"cposix\nsystem\n", b"J\xff\xff\xff\x7f", b"K\x00", b"\x85", b"\x86",
    b"r\xff\xff\xff\x7f", b"Q", b"R", b"b", b"exp_avg_sq", b"step", b"PK\x01\x02", b"PK\x05\x06", b"\x08\x00",
)  # fmt: skip
FACTS = {"gbt": {"temperatures": [1.0, 1.0], "weights": [1.0, 1.0]}, "mlp": {"shape": [2], "temperature": 1.0}}
HYPER = {
    "gbt": {**FAMILIES["gbt"].defaults(), "max_depth": 3},
    "mlp": {**FAMILIES["mlp"].defaults(), "members": 1, "hidden": 2, "layers": 1},
}
_VALUES = {width: np.linspace(-3, 3, 3 * width, dtype=np.float32).reshape(3, width) for width in (2, 3)}


def one_input(data: bytes) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numbers that are too large
        _read(data[:1], data[1:])


def _read(reader: bytes, rest: bytes) -> None:
    try:
        if reader == b"4":
            moments = {number: _repacked(own, rest) for number, own in _state().moments.items()}
            _train(_Keeper(msgspec.msgpack.encode(msgspec.structs.replace(_state(), moments=moments))))
        elif reader in (b"2", b"3"):
            _use("mlp", rest if reader == b"2" else _repacked(_weights(), rest), 2)
        else:
            _use("gbt", rest, 3 if reader == b"1" else 2)
    except (pickle.UnpicklingError, *NOT_WEIGHTS):
        return


def _use(model: str, sidecar: bytes, classes: int) -> None:
    """Score and explain three windows, as programs do with a checkpoint that they have read."""
    fitted = FAMILIES[model].load(model, FACTS[model], sidecar, classes, HYPER[model])
    values, host = _VALUES[2 if model == "mlp" else 3], np.array(["a", "a", "b"])
    fitted.predict(GivenWindows(values, values, host), np.arange(3))
    asked = {"usual": lambda: np.zeros_like(values), "parts": np.eye(values.shape[1]), "alarm": np.arange(classes) > 0}
    fitted.carried(WindowsToExplain(values, values, host, **asked))


class _Keeper:
    """Has a saved state, if any, and keeps what would be saved last."""

    def __init__(self, state: bytes | None = None) -> None:
        self.state = state

    def load(self) -> bytes | None:
        return self.state

    def watch(self, snapshot: Callable[[], bytes]) -> None:
        self.snapshot = snapshot

    def tick(self) -> None:
        self.state = self.snapshot()


def _train(keeper: _Keeper) -> None:
    """Train for two epochs of a step, or what is left of them behind a saved state."""
    torch.manual_seed(0)
    net, values = nn.Linear(2, 2), torch.ones(3, 2)
    loop.train(
        net,
        windows=Resident(values),
        loss_of=lambda rows: net(values[rows]).square().mean(),
        validate=None,
        spec=loop.LoopSpec(epochs=2, batch_size=3, lr=0.1, weight_decay=0.1, patience=2, seed=0),
        progress=Progress(io.StringIO(), SystemClock()),
        stop=Stop(),
        keeper=keeper,
    )


@cache
def _weights() -> bytes:
    torch.manual_seed(0)
    return weights_file.written(build("mlp", (2,), 2, HYPER["mlp"]).state_dict())


@cache
def _state() -> loop.SavedLoop:
    _train(keeper := _Keeper())
    assert keeper.state is not None
    return msgspec.msgpack.decode(keeper.state, type=loop.SavedLoop)


def pickled(whole: bytes) -> bytes:
    """Return the pickle within the bytes of a ``.pt``."""
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        return archive.read("archive/data.pkl")


def _repacked(whole: bytes, pickle_: bytes) -> bytes:
    """Return the bytes of a ``.pt`` with another pickle in it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as archive, zipfile.ZipFile(buffer, "w") as other:
        for name in archive.namelist():
            other.writestr(name, pickle_ if name.endswith("data.pkl") else archive.read(name))
    return buffer.getvalue()

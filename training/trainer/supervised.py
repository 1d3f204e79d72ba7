"""The supervised networks: a classifier's loss and its predictions around the loop."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from training.trainer import loop
from training.trainer.flags import Value
from training.trainer.nets import Net, build
from training.trainer.task import (
    FloatArray,
    History,
    IntArray,
    Outputs,
    Task,
    class_weights,
    quick_metric,
    softmax,
    tempered,
)
from training.trainer.windows import Windows, windows

SIDECAR = ".pt"
LIBRARIES = ("torch",)
AT_ONCE = 512  # windows in one forward pass when nothing is learnt


@dataclass(frozen=True, slots=True)
class Classifier:
    """A trained network with what is needed to build it again."""

    net: Net
    model: str
    shape: tuple[int, ...]
    classes: int
    hyper: Mapping[str, Value]
    temperature: float
    device: torch.device
    history: History

    def predict(self, X: NDArray[np.float32], rows: IntArray) -> Outputs:
        self.net.eval()
        if rows.size == 0:
            return Outputs(proba=np.zeros((0, self.classes)))
        # Read chunk by chunk, never all at once: new windows may be many.
        given = windows(X, rows, self.net.normalise, self.device, resident_bytes=0)
        return Outputs(proba=softmax(mean_logits(self.net, given) / self.temperature))

    def sidecar(self) -> bytes:
        return to_bytes(self.net)

    def facts(self) -> dict[str, Any]:
        return {
            "normaliser": self.net.normalise.describe(),
            "shape": list(self.shape),
            "temperature": self.temperature,
        }


def fit(task: Task) -> Classifier:
    """Train the network called ``task.model``."""
    torch.manual_seed(task.seed)
    device = torch.device(task.device)
    net = build(task.model, task.X.shape[1:], task.classes, task.hyper)
    net.normalise.fit(task.X, task.split.train)
    net.body.to(device)
    train = windows(task.X, task.split.train, net.normalise, device)
    val = windows(task.X, task.split.val, net.normalise, device)
    y_train, y_val = task.y[task.split.train], task.y[task.split.val]
    weights = class_weights(y_train, task.classes)
    labels = torch.from_numpy(y_train).to(device)
    weight = torch.from_numpy(weights.astype(np.float32)).to(device)
    smoothing = task.number("label_smoothing")

    def loss_of(rows: Tensor) -> Tensor:
        logits = net.body(train.take(rows))  # (M, B, K)
        truth = labels[rows.to(device)].expand(logits.shape[0], -1)
        return functional.cross_entropy(
            logits.flatten(0, 1), truth.flatten(), weight=weight, label_smoothing=smoothing
        )

    def validate() -> tuple[float, float | None]:
        logits = mean_logits(net, val)
        return tempered(y_val, logits, weights)[0], quick_metric(y_val, softmax(logits))

    history = loop.train(
        net.body,
        n_train=len(train),
        loss_of=loss_of,
        validate=validate,
        spec=loop_spec(task),
        progress=task.progress,
        stop=task.stop,
        keeper=task.keeper,
    )
    _, temperature = tempered(y_val, mean_logits(net, val), weights)
    shape = tuple(task.X.shape[1:])
    return Classifier(
        net, task.model, shape, task.classes, task.hyper, temperature, device, history
    )


def load(
    model: str,
    facts: Mapping[str, Any],
    sidecar: bytes,
    *,
    classes: int,
    hyper: Mapping[str, Value],
) -> Classifier:
    """The network of a verified sidecar, on the CPU."""
    shape = tuple(facts["shape"])
    net = build(model, shape, classes, hyper)
    from_bytes(net, sidecar)
    temperature = float(facts["temperature"])
    return Classifier(net, model, shape, classes, hyper, temperature, torch.device("cpu"), [])


def loop_spec(task: Task) -> loop.LoopSpec:
    return loop.LoopSpec(
        epochs=task.whole("epochs"),
        batch_size=task.whole("batch_size"),
        lr=task.number("lr"),
        weight_decay=task.number("weight_decay"),
        patience=task.whole("patience"),
        seed=task.seed,
    )


def mean_logits(net: Net, given: Windows) -> FloatArray:
    """(n, K): logarithms of the members' mean probabilities, on the CPU."""
    parts = []
    with torch.no_grad():
        for rows in torch.arange(len(given)).split(AT_ONCE):
            logits = net.body(given.take(rows))
            mean = torch.softmax(logits.double(), dim=-1).mean(dim=0)
            parts.append(mean.clamp_min(1e-12).log().cpu())
    return torch.cat(parts).numpy()


def to_bytes(net: torch.nn.Module) -> bytes:
    """The weights as a ``.pt``, made in memory: a file's own name would become part of its bytes."""
    state = {name: value.detach().cpu().contiguous() for name, value in net.state_dict().items()}
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def from_bytes(net: torch.nn.Module, sidecar: bytes) -> None:
    """Put verified weights into ``net``; only tensors are read, never code."""
    net.load_state_dict(torch.load(io.BytesIO(sidecar), weights_only=True))
    net.eval()

"""The supervised networks: a classifier's loss and predictions, as the shared training loop uses them."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from training.data.values import Floats, Floats32, Ints, Json, JsonDict
from training.families import FAMILIES, Takes
from training.hyper import HyperValues
from training.trainer import loop
from training.trainer.blocks import Perturb, known
from training.trainer.contract import Keeper
from training.trainer.normalise import QuantileNormal, RobustAsinh
from training.trainer.stages import Search, Stages, best_epoch, cross_fitted, mean_temperature, search_then_refit
from training.trainer.task import (
    GivenWindows,
    History,
    Outputs,
    Task,
    WindowsToExplain,
    class_weights,
    quick_metric,
    softmax,
    tempered,
)
from training.trainer.weights_file import read, restored, written
from training.trainer.windows import Windows, moved, to_learn_from, windows


class Net(nn.Module):
    """A normaliser and a trainable body; the body gets windows that were normalised before, and only the body is
    trained."""

    def __init__(self, normalise: QuantileNormal | RobustAsinh, body: nn.Module) -> None:
        super().__init__()
        self.normalise = normalise
        self.body = body


def build(
    model: str, shape: tuple[int, ...], classes: int, hyper: HyperValues, spare: Sequence[Sequence[int]] = ()
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


MOST_REFITTED = 20_000  # windows; with more, the validation windows are not missed
LEAST_SHARE = 3  # the second training has at least one in so many of the epochs allowed
FEW = 1.5  # batches: a network that has fewer windows takes smaller batches, as mlp always does;
LEAST_STEPS = 4  # then in an epoch,
LEAST_BATCH = 8  # but none with fewer windows
AT_ONCE = 512  # windows in one forward pass when nothing is learnt
STEPS = 16  # of integrated gradients


class Classifier(NamedTuple):
    """A trained network, and the values that are needed to build it again."""

    net: Net
    shape: tuple[int, ...]
    classes: int
    temperature: float
    device: torch.device
    history: History
    refitted: bool = False  # trained again with the validation windows

    @property
    def course(self) -> str:
        best = best_epoch(self.history)
        searched = f"Of {len(self.history)} epochs number {best} was the best on the validation side"
        if not self.refitted:
            return f"{searched}; its weights are kept."
        return f"{searched}. What is kept was trained again, for about as long, with the validation windows as well."

    def predict(self, given: GivenWindows, rows: Ints) -> Outputs:
        self.net.eval()
        if rows.size == 0:
            return Outputs(proba=np.zeros((0, self.classes)))
        # Read block by block, never all at once: new windows may be many.
        seen = windows(given.X, rows, self.net.normalise, self.device, resident_bytes=0)
        return Outputs(proba=softmax(mean_logits(self.net, seen) / self.temperature))

    def usual(self) -> Floats32:
        """Return the medians of the training windows: of each feature (F,), or of each channel (C, 1)."""
        return self.net.normalise.middle.cpu().numpy()

    def carried(self, asked: WindowsToExplain) -> Floats:
        """Return (n, C): integrated gradients of the log odds of an alarm, along a line from the usual values.

        The values of a window add up to about the difference between its log odds and those of the usual values.

        Removing one channel at a time misses what two channels show together. Without the five channels that integrated
        gradients named first, 1 % of ``cnn``'s alarms on an unseen host remained. Without the five channels that
        removing one at a time named first, 9 % of these alarms remained.
        """
        rise = _integrated(self.net, asked, self.device)
        return rise.sum(axis=2) if rise.ndim == 3 else rise @ asked.parts

    def sidecar(self) -> bytes:
        return written(self.net.state_dict())

    def facts(self) -> JsonDict:
        return {"normaliser": self.net.normalise.describe(), "shape": list(self.shape), "temperature": self.temperature}


def fit(task: Task) -> Classifier:
    """Search for the best epoch by the validation windows; then train again on training and validation windows, if
    these are at most ``MOST_REFITTED``.

    The second training has as many epochs as the first needed to its best one, and at least one in ``LEAST_SHARE`` of
    those allowed.
    """
    refitted = task.split.learnt.size <= MOST_REFITTED
    shape, device = tuple(task.X.shape[1:]), torch.device(task.device)

    def search(task: Task, keeper: Keeper) -> Search:
        train, val = task.split.train, task.split.val
        net, history = _train(task, train, val, keeper)
        logits = mean_logits(net, windows(task.X, val, net.normalise, device))
        loss, temperature = tempered(task.y[val], logits, class_weights(task.y[train], task.classes))
        return Search(best_epoch(history), temperature, loss, history, b"" if refitted else written(net.state_dict()))

    def refit(found: Search, keeper: Keeper) -> bytes:
        return written(_train(task, np.sort(task.split.learnt), None, keeper, found)[0].state_dict())

    parts = task.folds()
    stages = Stages(task.keeper, task.progress, [task.whole("epochs")] * (len(parts) + 1 + refitted))
    folds = cross_fitted(stages, parts, lambda fold: [partial(search, fold)])
    found, model = search_then_refit(stages, "", partial(search, task), refit if refitted else None)
    net = _restored(task.model, shape, task.classes, task.hyper, model).to(device)
    temperatures = [found.temperature, *(each for (each,) in folds)]
    return Classifier(net, shape, task.classes, mean_temperature(temperatures), device, found.history, refitted)


def _train(
    task: Task, rows: Ints, val: Ints | None, keeper: Keeper, found: Search | None = None
) -> tuple[Net, History]:
    """Train a new network on ``rows``: keep its best epoch on the windows ``val``, or train about as long as the search
    ``found`` says."""
    torch.manual_seed(task.seed)
    device = torch.device(task.device)
    net = build(task.model, task.X.shape[1:], task.classes, task.hyper, task.spare)
    net.normalise.fit(task.X, rows)
    net.to(device)
    train = to_learn_from(task.X, rows, net.normalise, device, task.limits)
    weights = class_weights(task.y[rows], task.classes)
    labels = torch.from_numpy(task.y[rows]).to(train.place)
    weight = torch.from_numpy(weights.astype(np.float32)).to(device)
    smoothing = task.number("label_smoothing")

    validate = None
    if val is not None:
        y_val, given = task.y[val], windows(task.X, val, net.normalise, device)

        def validate() -> tuple[float, float | None]:
            logits = mean_logits(net, given)
            return tempered(y_val, logits, weights)[0], quick_metric(y_val, softmax(logits))

    spec = loop_spec(task)
    # To stop in the middle of a longer schedule was two to three points worse; and of a few noisy validation windows
    # the best may come by chance in an early epoch.
    if found is not None:
        spec = replace(spec, epochs=max(found.length, spec.epochs // LEAST_SHARE))
    history = loop.train(
        net.body,
        windows=train,
        loss_of=lambda rows: loss_at(rows, net.body, train, labels, weight, smoothing),
        validate=validate,
        spec=_for_few(spec, task.model, rows.size),
        progress=task.progress,
        stop=task.stop,
        keeper=keeper,
    )
    return net, history


def _for_few(spec: loop.LoopSpec, model: str, windows: int) -> loop.LoopSpec:
    """Limit the batch size to a quarter of the ``windows``, but at least ``LEAST_BATCH``: for ``mlp`` always, for
    others only below ``FEW`` batches of windows.

    With larger batches, training on few windows ended before much was learnt.
    """
    if model != "mlp" and windows >= FEW * spec.batch_size:
        return spec
    return replace(spec, batch_size=min(spec.batch_size, max(LEAST_BATCH, windows // LEAST_STEPS)))


def loss_at(rows: Tensor, body: nn.Module, train: Windows, labels: Tensor, weight: Tensor, smoothing: float) -> Tensor:
    """Return the mean loss of the members for the windows ``rows``, which are on the device of ``train`` and
    ``labels``."""
    logits = body(train.take(rows))  # (M, B, K)
    truth = moved(labels[rows], logits.device).expand(logits.shape[0], -1)
    return smoothed(logits.flatten(0, 1), truth.flatten(), weight, smoothing)


def smoothed(logits: Tensor, truth: Tensor, weight: Tensor, smoothing: float) -> Tensor:
    """Compute the weighted cross-entropy of ``logits`` (B, K) with label ``smoothing``, bit for bit equal to torch's.

    With weights and smoothing ``functional.cross_entropy`` selects the labels that are not to be ignored, and must wait
    for a GPU to count them. This function ignores no label, and so need not wait.
    """
    said = functional.log_softmax(logits, dim=1)
    missed = functional.nll_loss(said, truth, weight=weight)
    spread = -(said * weight).sum(dim=1).sum() / weight.gather(0, truth).sum()
    return (1 - smoothing) * missed + spread * (smoothing / logits.shape[1])


def load(model: str, facts: Json, sidecar: bytes, classes: int, hyper: HyperValues) -> Classifier:
    """Load the network from a verified sidecar, on the CPU."""
    shape = tuple(facts["shape"])
    net = _restored(model, shape, classes, hyper, sidecar)
    return Classifier(net, shape, classes, float(facts["temperature"]), torch.device("cpu"), [])


def _restored(model: str, shape: tuple[int, ...], classes: int, hyper: HyperValues, weights: bytes) -> Net:
    """Build the network with these weights, on the CPU."""
    return restored(lambda: build(model, shape, classes, hyper), read(weights))


def loop_spec(task: Task) -> loop.LoopSpec:
    return loop.LoopSpec(
        epochs=task.whole("epochs"),
        batch_size=task.whole("batch_size"),
        lr=task.number("lr"),
        weight_decay=task.number("weight_decay"),
        patience=task.whole("patience"),
        seed=task.seed,
    )


def mean_logits(net: Net, given: Windows) -> Floats:
    """Return (n, K) the logarithms of the mean of the members' probabilities, on the CPU."""
    found = torch.empty(0, dtype=torch.float64, device=given.place)
    with torch.no_grad():
        for rows in torch.arange(len(given), device=given.place).split(AT_ONCE):
            logits = net.body(given.take(rows))
            mean = torch.softmax(logits.double(), dim=-1).mean(dim=0)
            if not found.numel():
                # At once: many small results would lie between what each pass frees, and the heap would grow with them.
                found = torch.empty((len(given), mean.shape[1]), dtype=mean.dtype, device=mean.device)
            found[rows.to(mean.device)] = mean.clamp_min(1e-12).log()
    return found.cpu().numpy()


def _integrated(net: Net, asked: WindowsToExplain, device: torch.device) -> Floats:
    """Return, in the shape of ``asked.X``, how much each value, compared with the usual one, raises the log odds of an
    alarm."""
    net.eval()
    alarm = torch.from_numpy(asked.alarm).to(device)
    with torch.no_grad():
        start, end = (known(net.normalise(torch.from_numpy(X).to(device)))[0] for X in (asked.usual(), asked.X))
        start = torch.where(torch.from_numpy(np.isnan(asked.X)).to(device), 0.0, start)  # as the absent is read
    parts = []
    for low, high in zip(start.split(AT_ONCE), end.split(AT_ONCE), strict=True):
        slope = torch.zeros_like(low)
        for step in range(STEPS):
            x = (low + (step + 0.5) / STEPS * (high - low)).requires_grad_()
            with torch.backends.cudnn.flags(enabled=False):  # its recurrent layers know no gradient without training
                proba = torch.softmax(net.body(x), dim=-1).mean(dim=0).clamp_min(1e-12)
                odds = proba[:, alarm].sum(dim=1).log() - proba[:, ~alarm].sum(dim=1).log()
                slope += torch.autograd.grad(odds.sum(), x)[0]
        parts.append((slope / STEPS * (high - low)).double().cpu())
    return torch.cat(parts).numpy()

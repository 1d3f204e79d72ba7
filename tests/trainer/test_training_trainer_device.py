"""Training on a device of its own: what a step waits for, and what it copies.

No GPU is asked for. Torch's ``meta`` device has shapes and no values; its tensors stand for those of a GPU, and every
operation is watched for what a GPU would have to wait for.
"""

from __future__ import annotations

import io
import sys
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pynvml
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from trainer_builders import Forgetful

from training import families
from training.clock import SystemClock
from training.trainer import machine
from training.trainer.contract import Progress, Stop
from training.trainer.loop import LoopSpec, train
from training.trainer.masked import MaskedModel
from training.trainer.normalise import RobustAsinh
from training.trainer.supervised import build, loss_at, smoothed
from training.trainer.windows import windows

aten = torch.ops.aten
DEVICE = torch.device("meta")
N, BATCH, EPOCHS = 8, 4, 2
STEPS = N // BATCH * EPOCHS
COPIES = {aten._to_copy.default, aten.copy_.default}


class Watched(TorchDispatchMode):
    """Counts what waits for the device, and what is copied to it; refuses what lies on two devices at once."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is aten._local_scalar_dense.default and args[0].device == DEVICE:
            self.counts["read"] += 1
            return 0.5
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        places = {leaf.device.type for leaf in given if leaf.ndim}
        if func in COPIES and (target := kwargs.get("device", args[0].device)) != (source := given[-1].device):
            quietly = kwargs.get("non_blocking", False) and source.type == "cpu"
            self.counts[f"copy from {source.type}" + ("" if quietly else ", waiting")] += 1
            if target.type == "cpu":  # there are no values to bring
                return torch.zeros(given[-1].shape, dtype=kwargs.get("dtype") or given[-1].dtype)
        else:
            assert len(places) < 2, f"{func} is given tensors of {places}"
        return func(*args, **kwargs)


@pytest.fixture
def watched(monkeypatch):
    counted = Watched()

    def pinned(values):
        assert values.device.type == "cpu"
        counted.counts["pinned"] += 1
        return values

    monkeypatch.setattr(Tensor, "pin_memory", pinned)
    fused = sys.modules["torch.optim.optimizer"]  # which `torch.optim` hides
    monkeypatch.setattr(fused, "_get_fused_kernels_supported_devices", lambda: ["cpu", "meta"])
    return counted


def prepared(model, *, fits=True):
    """A family's network and its windows, on the device or read batch by batch; one of the channels is spared."""
    hyper = families.FAMILIES[model].defaults()
    shape = (6,) if model == "mlp" else (3, 5)
    X = np.random.default_rng(0).normal(size=(N, *shape)).astype(np.float32)
    if model == "transformer_ssl":
        body, normal = MaskedModel(*shape, hyper), RobustAsinh(shape[0])
    else:
        net = build(model, shape, 2, hyper, ((0,), (1, 2)) if model == "mlp" else ((0,),))
        body, normal = net.body, net.normalise
    normal.fit(X, np.arange(N))
    return body.to(DEVICE), windows(X, np.arange(N), normal.to(DEVICE), DEVICE, resident_bytes=None if fits else 0)


def learn(model, body, given):
    labels = torch.zeros(N, dtype=torch.long, device=given.place)
    weight = torch.ones(2, device=DEVICE)

    def loss_of(rows):
        if model != "transformer_ssl":
            return loss_at(rows, body, given, labels, weight, 0.1)
        return body.loss(given.take(rows), body.draw(len(rows), 0.4, DEVICE))

    train(
        body,
        windows=given,
        loss_of=loss_of,
        validate=None,
        spec=LoopSpec(epochs=EPOCHS, batch_size=BATCH, lr=0.01, weight_decay=0.1, patience=9, seed=0),
        progress=Progress(io.StringIO(), SystemClock()),
        stop=Stop(),
        keeper=Forgetful(),
    )


@pytest.mark.parametrize("model", ["mlp", "cnn", "gru", "transformer", "transformer_ssl"])
def test_no_step_waits_for_the_device(model, watched):
    with watched:
        body, given = prepared(model)
        watched.counts.clear()
        learn(model, body, given)
    # Each epoch moves its order once, and reads the sum of its losses once.
    assert watched.counts == {"pinned": EPOCHS, "copy from cpu": EPOCHS, "read": EPOCHS}


@pytest.mark.parametrize("smoothing", [0.0, 0.05, 0.2])
def test_the_loss_is_torchs_and_waits_for_nothing(smoothing):
    """Torch takes another way through its own loss while operations are watched, as above: so it is profiled here."""
    draw = torch.Generator().manual_seed(0)
    logits, truth = torch.randn(300, 4, generator=draw) * 3, torch.randint(0, 4, (300,), generator=draw)
    weight = torch.rand(4, generator=draw) + 0.1
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    with profile(activities=[ProfilerActivity.CPU]) as told:
        loss = smoothed(ours, truth, weight, smoothing)
        loss.backward()
    expected = functional.cross_entropy(theirs, truth, weight=weight, label_smoothing=smoothing)
    expected.backward()
    assert torch.equal(loss, expected)
    assert torch.equal(ours.grad, theirs.grad)
    used = {each.name for each in told.events() or ()}
    assert "aten::nll_loss" in used
    assert not used & {"aten::masked_select", "aten::nonzero", "aten::item", "aten::_local_scalar_dense"}


def test_windows_that_do_not_fit_are_copied_without_waiting(watched):
    with watched:
        body, given = prepared("mlp", fits=False)
        watched.counts.clear()
        learn("mlp", body, given)
    # Samples and labels of each batch.
    assert watched.counts == {"pinned": 2 * STEPS, "copy from cpu": 2 * STEPS, "read": EPOCHS}


def test_the_run_key_names_what_chooses_a_gpus_kernels(monkeypatch):
    def named(**changed):
        card = {"name": "NVIDIA X", "processors": 80, "cudnn": 91_000, "driver": "580.65.06", "tf32": "1"} | changed
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _index: card["name"])
        properties = SimpleNamespace(multi_processor_count=card["processors"])
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: properties)
        monkeypatch.setattr(torch.backends.cudnn, "version", lambda: card["cudnn"])
        monkeypatch.setattr(machine, "driver_version", lambda: card["driver"])
        monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", card["tf32"])
        return machine.device_name("cuda")

    others = ({"name": "NVIDIA Y"}, {"processors": 82}, {"cudnn": 92_000}, {"driver": "590.1"}, {"tf32": "0"})
    assert len({named(), *(named(**other) for other in others)}) == 1 + len(others)
    assert machine.device_name("cpu") == "cpu"


def test_a_driver_that_does_not_tell_its_version_is_unknown(monkeypatch):
    def absent():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", absent)
    assert machine.driver_version() == "unknown"

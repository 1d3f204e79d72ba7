"""``gbt``: gradient-boosted trees on window features (XGBoost, histogram method)."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import xgboost
from numpy.typing import NDArray

from training.trainer.contract import BadArguments
from training.trainer.task import (
    FloatArray,
    History,
    IntArray,
    Outputs,
    Task,
    class_weights,
    log_loss,
    quick_metric,
    softmax,
    tempered,
)

SIDECAR = ".xgb.json"
LIBRARIES = ("xgboost", "xgboost-cpu")
# A booster's generator cannot be saved. So every run, interrupted or not, makes its booster anew
# after this many rounds, with a seed of its own: from there a resumed run goes on identically.
STRETCH = 20


@dataclass(frozen=True, slots=True)
class Gbt:
    """A trained booster, cut after its best round."""

    booster: xgboost.Booster
    classes: int
    threads: int
    temperature: float
    history: History

    def predict(self, X: NDArray[np.float32], rows: IntArray) -> Outputs:
        matrix = xgboost.DMatrix(X[rows], nthread=self.threads)
        return Outputs(proba=softmax(_logits(self.booster, matrix) / self.temperature))

    def sidecar(self) -> bytes:
        return bytes(self.booster.save_raw("json"))

    def facts(self) -> dict[str, Any]:
        return {
            "normaliser": {"kind": "none", "why": "trees only compare values"},
            "rounds": self.booster.num_boosted_rounds(),
            "temperature": self.temperature,
        }


def fit(task: Task) -> Gbt:
    """Boost until the validation loss has not improved for ``patience`` rounds."""
    if task.device == "cuda" and not xgboost.build_info().get("USE_CUDA"):
        raise BadArguments("this XGBoost has no CUDA: install the package xgboost, or use the CPU")
    train, val = task.split.train, task.split.val
    weights = class_weights(task.y[train], task.classes)
    dtrain = xgboost.QuantileDMatrix(
        task.X[train],
        label=task.y[train],
        weight=weights[task.y[train]],
        max_bin=task.whole("max_bin"),
        nthread=task.threads,
    )
    dval = xgboost.DMatrix(task.X[val], nthread=task.threads)
    saved = task.keeper.load()
    model, history = (None, []) if saved is None else _unpack(saved)
    matrices = [dtrain, dval]
    booster = _booster(task, matrices, model, 0)
    rounds, patience = task.whole("n_estimators"), task.whole("patience")
    task.progress.begin_epochs(len(history))

    while len(history) < rounds and len(history) - _best(history) < patience:
        if len(history) % STRETCH == 0:
            model = bytes(booster.save_raw("ubj")) if history else None
            booster = _booster(task, matrices, model, len(history) // STRETCH)
            task.keeper.watch(partial(_pack, model, tuple(history)))
        task.stop.check()
        task.keeper.tick()
        booster.update(dtrain, len(history))
        history.append(_judge(task, booster, dtrain, dval, weights, len(history) + 1))
        latest = history[-1]
        loss, metric = float(latest["train_loss"] or 0.0), latest["val_metric"]
        task.progress.epoch(len(history), rounds, loss=loss, metric=metric)

    booster = booster[: _best(history)]
    _, temperature = tempered(task.y[val], _logits(booster, dval), weights)
    return Gbt(booster, task.classes, task.threads, temperature, history)


def load(facts: Mapping[str, Any], sidecar: bytes, *, classes: int, threads: int = 1) -> Gbt:
    """The booster of a verified sidecar; its format is data only."""
    booster = xgboost.Booster({"nthread": threads})
    booster.load_model(bytearray(sidecar))
    return Gbt(booster, classes, threads, float(facts["temperature"]), [])


def _parameters(task: Task) -> dict[str, Any]:
    two = task.classes == 2
    kind = {"objective": "binary:logistic"} if two else {"objective": "multi:softprob"}
    return {
        **kind,
        **({} if two else {"num_class": task.classes}),
        "tree_method": "hist",
        "device": task.device,
        "max_depth": task.whole("max_depth"),
        "eta": task.number("lr"),
        "subsample": task.number("subsample"),
        "colsample_bytree": task.number("colsample"),
        "min_child_weight": task.number("min_child_weight"),
        "reg_lambda": task.number("reg_lambda"),
        "max_bin": task.whole("max_bin"),
        "nthread": task.threads,
        "disable_default_eval_metric": True,
        "verbosity": 0,
    }


def _judge(
    task: Task,
    booster: xgboost.Booster,
    dtrain: xgboost.DMatrix,
    dval: xgboost.DMatrix,
    weights: FloatArray,
    number: int,
) -> dict[str, float | int | None]:
    y_train, y_val = task.y[task.split.train], task.y[task.split.val]
    val = _logits(booster, dval)
    return {
        "epoch": number,
        "train_loss": log_loss(y_train, softmax(_logits(booster, dtrain)), weights),
        "val_loss": tempered(y_val, val, weights)[0],
        "val_metric": quick_metric(y_val, softmax(val)),
    }


def _logits(booster: xgboost.Booster, matrix: xgboost.DMatrix) -> FloatArray:
    """(n, K), whatever the number of classes."""
    raw = np.asarray(booster.predict(matrix, output_margin=True), dtype=np.float64)
    return raw if raw.ndim == 2 else np.stack((np.zeros_like(raw), raw), axis=1)


def _best(history: History) -> int:
    """The number of rounds after which the validation loss was lowest."""
    losses = [float(row["val_loss"] or 0.0) for row in history]
    return 1 + int(np.argmin(losses)) if losses else 0


def _booster(
    task: Task, matrices: list[xgboost.DMatrix], model: bytes | None, stretch: int
) -> xgboost.Booster:
    parameters = _parameters(task) | {"seed": task.seed * 10_007 + stretch}
    booster = xgboost.Booster(parameters, matrices)
    if model is not None:
        booster.load_model(bytearray(model))
        booster.set_param(parameters)
    return booster


def _pack(model: bytes | None, history: Sequence[Mapping[str, Any]]) -> bytes:
    text = None if model is None else base64.b64encode(model).decode()
    return json.dumps({"model": text, "history": history}).encode()


def _unpack(saved: bytes) -> tuple[bytes | None, History]:
    state = json.loads(saved)
    return state["model"] and base64.b64decode(state["model"]), state["history"]

"""``gbt``: gradient-boosted trees on window features (XGBoost, histogram method).

Boosted three times: from nothing and from a linear model, each until the validation windows gain no
more; then the better start again, on training and validation windows together, for as many rounds
as it took.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import xgboost
from numpy.typing import NDArray

from training.trainer.contract import BadArguments
from training.trainer.linear import Linear, fit_linear
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
STARTS = ("nothing", "linear model")
# A booster's generator cannot be saved. So every run, interrupted or not, makes its booster anew
# after this many rounds, with a seed of its own: from there a resumed run goes on identically.
STRETCH = 20


@dataclass(frozen=True, slots=True)
class Gbt:
    """Trained trees, and the linear model under them if they started from one."""

    booster: xgboost.Booster
    linear: Linear | None
    classes: int
    threads: int
    temperature: float
    history: History

    def predict(
        self,
        X: NDArray[np.float32],
        rows: IntArray,
        *,
        features: NDArray[np.float32],  # noqa: ARG002 - X already is these
    ) -> Outputs:
        if rows.size == 0:
            return Outputs(proba=np.zeros((0, self.classes)))
        matrix = _matrix(X, rows, self.linear, self.threads)
        return Outputs(proba=softmax(_logits(self.booster, matrix) / self.temperature))

    def sidecar(self) -> bytes:
        self.booster.set_attr(linear=None if self.linear is None else self.linear.to_json())
        return bytes(self.booster.save_raw("json"))

    def facts(self) -> dict[str, Any]:
        return {
            "normaliser": {"kind": "none", "why": "trees only compare values"},
            "start": STARTS[self.linear is not None],
            "rounds": self.booster.num_boosted_rounds(),
            "temperature": self.temperature,
        }


@dataclass(frozen=True, slots=True)
class Search:
    """How boosting from one start went until the validation loss stopped falling."""

    loss: float
    rounds: int
    temperature: float
    history: History


@dataclass(frozen=True, slots=True)
class Memory:
    """All that an interrupted run needs: searches that ended, and the one under way at its last stretch."""

    searches: tuple[Search, ...] = ()
    model: str | None = None  # base64 of the booster
    history: History = field(default_factory=list)


def fit(task: Task) -> Gbt:
    """Search from each start, choose, and boost again with all that may be learnt from."""
    if task.device == "cuda" and not xgboost.build_info().get("USE_CUDA"):
        raise BadArguments("this XGBoost has no CUDA: install the package xgboost, or use the CPU")
    train, val = task.split.train, task.split.val
    both = np.sort(np.concatenate((train, val)))
    saved = task.keeper.load()
    memory = Memory() if saved is None else _unpack(saved)
    done = sum(len(search.history) for search in memory.searches) + len(memory.history)
    task.progress.begin_epochs(done)
    for start in range(len(memory.searches), len(STARTS)):
        found = _search(task, start, memory)
        memory = Memory((*memory.searches, found))
    best = min(range(len(STARTS)), key=lambda start: memory.searches[start].loss)
    chosen = memory.searches[best]
    linear = _linear(task, best, both)
    rounds = round(chosen.rounds * both.size / train.size)
    booster, _ = _boost(task, linear, both, None, rounds, memory)
    return Gbt(booster, linear, task.classes, task.threads, chosen.temperature, chosen.history)


def load(facts: Mapping[str, Any], sidecar: bytes, *, classes: int, threads: int = 1) -> Gbt:
    """The booster of a verified sidecar; its format is data only."""
    booster = xgboost.Booster({"nthread": threads})
    booster.load_model(bytearray(sidecar))
    text = booster.attr("linear")
    linear = None if text is None else Linear.from_json(text)
    return Gbt(booster, linear, classes, threads, float(facts["temperature"]), [])


def _search(task: Task, start: int, memory: Memory) -> Search:
    train, val = task.split.train, task.split.val
    linear = _linear(task, start, train)
    booster, history = _boost(task, linear, train, val, task.whole("n_estimators"), memory)
    rounds = _best(history)
    weights = class_weights(task.y[train], task.classes)
    logits = _logits(booster[:rounds], _matrix(task.X, val, linear, task.threads))
    loss, temperature = tempered(task.y[val], logits, weights)
    return Search(loss, rounds, temperature, history)


def _linear(task: Task, start: int, rows: IntArray) -> Linear | None:
    if STARTS[start] == "nothing":
        return None
    weights = class_weights(task.y[rows], task.classes)[task.y[rows]]
    return fit_linear(task.X[rows], task.y[rows], weights)


def _boost(
    task: Task,
    linear: Linear | None,
    rows: IntArray,
    val: IntArray | None,
    rounds: int,
    memory: Memory,
) -> tuple[xgboost.Booster, History]:
    """Boost on ``rows`` for ``rounds``, or with ``val`` until its loss has not fallen for ``patience``."""
    weights = class_weights(task.y[rows], task.classes)
    dtrain = xgboost.QuantileDMatrix(
        task.X[rows],
        label=task.y[rows],
        weight=weights[task.y[rows]],
        base_margin=None if linear is None else linear.margins(task.X[rows]),
        max_bin=task.whole("max_bin"),
        nthread=task.threads,
    )
    dval = None if val is None else _matrix(task.X, val, linear, task.threads)
    cache: list[xgboost.DMatrix] = [dtrain]
    if dval is not None:
        cache.append(dval)
    stage, most = len(memory.searches), task.whole("n_estimators")
    before = sum(len(search.history) for search in memory.searches)
    model, history = memory.model, list(memory.history)
    booster = _booster(task, cache, model, 0)
    while len(history) < rounds:
        if dval is not None and len(history) - _best(history) >= task.whole("patience"):
            break
        if len(history) % STRETCH == 0:
            if history:
                model = base64.b64encode(bytes(booster.save_raw("ubj"))).decode()
            booster = _booster(task, cache, model, stage * most + len(history) // STRETCH)
            task.keeper.watch(partial(_pack, replace(memory, model=model, history=list(history))))
        task.stop.check()
        task.keeper.tick()
        booster.update(dtrain, len(history))
        latest = _judge(task, booster, dtrain, rows, dval, val, weights)
        history.append({"epoch": len(history) + 1, **latest})
        task.progress.epoch(
            before + len(history),
            before + rounds + most * (len(STARTS) - 1 - stage if dval is not None else 0),
            loss=float(latest["train_loss"] or 0.0),
            metric=latest["val_metric"],
        )
    return booster, history


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
    rows: IntArray,
    dval: xgboost.DMatrix | None,
    val: IntArray | None,
    weights: FloatArray,
) -> dict[str, float | int | None]:
    loss = log_loss(task.y[rows], softmax(_logits(booster, dtrain)), weights)
    if dval is None or val is None:
        return {"train_loss": loss, "val_loss": None, "val_metric": None}
    truth, logits = task.y[val], _logits(booster, dval)
    return {
        "train_loss": loss,
        "val_loss": tempered(truth, logits, weights)[0],
        "val_metric": quick_metric(truth, softmax(logits)),
    }


def _matrix(
    X: NDArray[np.float32], rows: IntArray, linear: Linear | None, threads: int
) -> xgboost.DMatrix:
    values = X[rows]
    margin = None if linear is None else linear.margins(values)
    return xgboost.DMatrix(values, base_margin=margin, nthread=threads)


def _logits(booster: xgboost.Booster, matrix: xgboost.DMatrix) -> FloatArray:
    """(n, K), whatever the number of classes."""
    raw = np.asarray(booster.predict(matrix, output_margin=True), dtype=np.float64)
    return raw if raw.ndim == 2 else np.stack((np.zeros_like(raw), raw), axis=1)


def _best(history: History) -> int:
    """The number of rounds after which the validation loss was lowest; at least one."""
    losses = [float(row["val_loss"] or 0.0) for row in history]
    return 1 + int(np.argmin(losses)) if losses else 0


def _booster(
    task: Task, cache: list[xgboost.DMatrix], model: str | None, number: int
) -> xgboost.Booster:
    """A booster with a seed of its own that goes on from ``model``."""
    parameters = _parameters(task) | {"seed": task.seed * 100_003 + number}
    booster = xgboost.Booster(parameters, cache)
    if model is not None:
        booster.load_model(bytearray(base64.b64decode(model)))
        booster.set_param(parameters)
    return booster


def _pack(memory: Memory) -> bytes:
    return json.dumps(asdict(memory)).encode()


def _unpack(saved: bytes) -> Memory:
    state = json.loads(saved)
    searches = tuple(Search(**search) for search in state["searches"])
    return Memory(searches, state["model"], state["history"])

"""``gbt``: gradient-boosted trees on window features (XGBoost, histogram method).

Two boosters answer together: one grew from nothing, one from a linear model. Trees hold where levels
shift from host to host, the line holds where trees see too few windows; which of them a new host
will favour cannot be told from validation windows, and their mean was better than either. Each is
boosted until the validation windows gain no more, then again for as long on these as well.
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
LEAST_SHARE = 6  # boosting from nothing takes at least one in so many of the rounds allowed


@dataclass(frozen=True, slots=True)
class Part:
    """A trained booster, and the line under it if it started from one."""

    booster: xgboost.Booster
    linear: Linear | None
    temperature: float

    def proba(self, values: NDArray[np.float32], threads: int) -> FloatArray:
        matrix = _matrix(values, self.linear, threads)
        return softmax(_logits(self.booster, matrix) / self.temperature)


@dataclass(frozen=True, slots=True)
class Gbt:
    """The parts, in the order of ``STARTS``."""

    parts: tuple[Part, ...]
    classes: int
    threads: int
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
        values = X[rows]
        each = [part.proba(values, self.threads) for part in self.parts]
        return Outputs(proba=np.mean(each, axis=0))

    def sidecar(self) -> bytes:
        """XGBoost's own JSON of the first part; line and second booster are attributes in it."""
        first, second = self.parts
        assert second.linear is not None
        raw = base64.b64encode(bytes(second.booster.save_raw("ubj"))).decode()
        first.booster.set_attr(line=second.linear.to_json(), over_the_line=raw)
        return bytes(first.booster.save_raw("json"))

    def facts(self) -> dict[str, Any]:
        return {
            "normaliser": {"kind": "none", "why": "trees only compare values"},
            "starts": list(STARTS),
            "rounds": [part.booster.num_boosted_rounds() for part in self.parts],
            "temperatures": [part.temperature for part in self.parts],
        }


@dataclass(frozen=True, slots=True)
class Search:
    """How boosting from one start went until the validation loss stopped falling."""

    rounds: int
    temperature: float
    history: History


@dataclass(frozen=True, slots=True)
class Memory:
    """All that an interrupted run needs: what ended, and the boosting under way at its last stretch."""

    searches: tuple[Search, ...] = ()
    models: tuple[str, ...] = ()  # base64 of boosters that are done
    model: str | None = None  # of the one under way
    history: History = field(default_factory=list)

    @property
    def stage(self) -> int:
        return len(self.searches) + len(self.models)

    @property
    def rounds(self) -> int:
        """Rounds boosted so far, for the progress lines."""
        return sum(len(search.history) for search in self.searches) + len(self.history)


def fit(task: Task) -> Gbt:
    """For each start: search for the number of rounds, then boost with all that may be learnt from."""
    if task.device == "cuda" and not xgboost.build_info().get("USE_CUDA"):
        raise BadArguments("this XGBoost has no CUDA: install the package xgboost, or use the CPU")
    train = task.split.train
    both = np.sort(np.concatenate((train, task.split.val)))
    saved = task.keeper.load()
    memory = Memory() if saved is None else _unpack(saved)
    task.progress.begin_epochs(memory.rounds)
    parts = []
    for start in range(len(STARTS)):
        if len(memory.searches) == start:
            found = _search(task, start, memory)
            memory = Memory((*memory.searches, found), memory.models)
        search, linear = memory.searches[start], _linear(task, start, both)
        if len(memory.models) == start:
            rounds = round(search.rounds * both.size / train.size)
            booster, _ = _boost(task, linear, both, None, rounds, memory)
            memory = Memory(memory.searches, (*memory.models, _text(booster)))
        booster = xgboost.Booster({"nthread": task.threads})
        booster.load_model(bytearray(base64.b64decode(memory.models[start])))
        parts.append(Part(booster, linear, search.temperature))
    return Gbt(tuple(parts), task.classes, task.threads, memory.searches[0].history)


def load(facts: Mapping[str, Any], sidecar: bytes, *, classes: int, threads: int = 1) -> Gbt:
    """The boosters of a verified sidecar; their formats are data only."""
    first, second = (xgboost.Booster({"nthread": threads}) for _ in STARTS)
    first.load_model(bytearray(sidecar))
    line, raw = first.attr("line"), first.attr("over_the_line")
    if line is None or raw is None:
        raise ValueError("the line that one of the boosters starts from is missing")
    second.load_model(bytearray(base64.b64decode(raw)))
    heat, heat_over = (float(value) for value in facts["temperatures"])
    parts = (Part(first, None, heat), Part(second, Linear.from_json(line), heat_over))
    return Gbt(parts, classes, threads, [])


def _search(task: Task, start: int, memory: Memory) -> Search:
    train, val = task.split.train, task.split.val
    linear = _linear(task, start, train)
    booster, history = _boost(task, linear, train, val, task.whole("n_estimators"), memory)
    rounds = _best(history)
    if linear is None:
        # By chance the first few trees may suit few windows best; alone they are no model yet.
        rounds = min(max(rounds, task.whole("n_estimators") // LEAST_SHARE), len(history))
    weights = class_weights(task.y[train], task.classes)
    logits = _logits(booster[:rounds], _matrix(task.X[val], linear, task.threads))
    return Search(rounds, tempered(task.y[val], logits, weights)[1], history)


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
    dval = None if val is None else _matrix(task.X[val], linear, task.threads)
    cache: list[xgboost.DMatrix] = [dtrain]
    if dval is not None:
        cache.append(dval)
    most = task.whole("n_estimators")
    before = memory.rounds - len(memory.history)
    model, history = memory.model, list(memory.history)
    booster = _booster(task, cache, model, 0)
    while len(history) < rounds:
        if dval is not None and len(history) - _best(history) >= task.whole("patience"):
            break
        if len(history) % STRETCH == 0:
            if history:
                model = _text(booster)
            booster = _booster(task, cache, model, memory.stage * most + len(history) // STRETCH)
            task.keeper.watch(partial(_pack, replace(memory, model=model, history=list(history))))
        task.stop.check()
        task.keeper.tick()
        booster.update(dtrain, len(history))
        latest = _judge(task, booster, dtrain, rows, dval, val, weights)
        history.append({"epoch": len(history) + 1, **latest})
        loss, metric = float(latest["train_loss"] or 0.0), latest["val_metric"]
        shown = before + len(history)
        ahead = rounds - len(history) + most * (2 * len(STARTS) - 1 - memory.stage)
        task.progress.epoch(shown, shown + ahead, loss=loss, metric=metric)
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


def _matrix(values: NDArray[np.float32], linear: Linear | None, threads: int) -> xgboost.DMatrix:
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


def _text(booster: xgboost.Booster) -> str:
    return base64.b64encode(bytes(booster.save_raw("ubj"))).decode()


def _pack(memory: Memory) -> bytes:
    return json.dumps(asdict(memory)).encode()


def _unpack(saved: bytes) -> Memory:
    state = json.loads(saved)
    searches = tuple(Search(**search) for search in state["searches"])
    return Memory(searches, tuple(state["models"]), state["model"], state["history"])

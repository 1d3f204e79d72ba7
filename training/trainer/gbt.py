"""``gbt``: gradient-boosted trees on window features (XGBoost, histogram method).

The prediction is the weighted mean of two boosters: one starts from nothing, one from a linear model. Trees were better
if levels shift between hosts, the linear model if there are few windows. Validation windows hardly show which booster
suits a new host, and the mean was better than either. A booster that is clearly worse on the validation windows gets
less weight. To find its number of rounds, each booster is boosted until the loss on the validation windows has not
fallen for ``patience`` rounds, at most ``n_estimators``. A new booster is then made from training and validation
windows together, with proportionally more rounds.

From windows that lack a feature, trees learn which branch to take without it. A feature that no training window lacked
is replaced by its median where it is absent.
"""

import errno
import math
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import xgboost

from training.certain import certain
from training.data.scratch import WIDE_ROWS, release, spans
from training.data.values import Bools, Floats, Floats32, Ints, Json, JsonDict
from training.files import folder_of_large_files
from training.hyper import HyperValues
from training.trainer.contract import BadArguments, Keeper
from training.trainer.linear import Linear, fit_linear
from training.trainer.stages import (
    SEARCHES,
    Search,
    Stages,
    best_epoch,
    cross_fitted,
    mean_temperature,
    search_then_refit,
)
from training.trainer.task import (
    GivenWindows,
    History,
    Outputs,
    Task,
    WindowsToExplain,
    class_weights,
    evenly,
    log_loss,
    quick_metric,
    softmax,
    tempered,
)
from training.trainer.trees import checked, learner_of, objective, to_json

STARTS = ("nothing", "linear model")
# XGBoost has one generator for all boosters, which cannot be saved, and which any other booster disturbs.
# So every run, interrupted or not, makes its booster again after this many rounds, with a seed of its own:
# from there a resumed run goes on identically. Only before that is the state saved, which makes a booster.
STRETCH = 20
LEAST_SHARE = 6  # boosting from nothing takes at least one in so many of the rounds allowed
MOST_SKETCHED = 4_096  # windows that say where a feature's bins lie; more hardly move an edge
SURE = 0.05  # added to a validation loss before a weight is computed: on few windows the loss may be 0
MOST_SHOWN = 1_024  # windows that say how training goes
BINS_A_BYTE = 256
HELD_TWICE = 2  # a window held unbinned takes so many times its size in single precision


class BoosterPart(NamedTuple):
    """A trained booster, and the linear model that it started from, if any."""

    booster: xgboost.Booster
    linear: Linear | None
    temperature: float
    weight: float  # in the mean

    def proba(self, values: Floats32, threads: int) -> Floats:
        matrix = _matrix(values, self.linear, threads)
        return softmax(_logits(self.booster, matrix) / self.temperature)

    def contributions(self, values: Floats32, threads: int) -> Floats:
        """Return (n, K, F + 1): what each feature adds to each logit over the temperature, and last the constant part;
        exact for trees."""
        matrix = _matrix(values, self.linear, threads)
        raw = np.asarray(self.booster.predict(matrix, pred_contribs=True), float)
        found = raw if raw.ndim == 3 else np.stack((np.zeros_like(raw), raw), axis=1)
        if self.linear is not None:  # so far its margin is there without any feature
            line = self.linear.contributions(values)
            found[:, -line.shape[1] :, :-1] += line
            found[:, -line.shape[1] :, -1] -= line.sum(axis=2)
        return found / self.temperature


class Gbt(NamedTuple):
    """A trained model: its two boosters, in the order of ``STARTS``."""

    parts: tuple[BoosterPart, ...]
    classes: int
    threads: int
    history: History
    lacked: Ints  # features that some training windows lack

    @property
    def course(self) -> str:
        first, second = (part.booster.num_boosted_rounds() for part in self.parts)
        return (
            f"The search for the number of rounds from {STARTS[0]}: {len(self.history)}, of which "
            f"number {best_epoch(self.history)} was the best on the validation side. A second search began at a "
            f"{STARTS[1]}. What is kept was boosted again, with the validation windows as well: {first:,} rounds from "
            f"{STARTS[0]} and {second:,} from the {STARTS[1]}, {first + second:,} in all."
        )

    def predict(self, windows: GivenWindows, rows: Ints) -> Outputs:
        proba, weights = np.zeros((rows.size, self.classes)), [part.weight for part in self.parts]
        for here in spans(rows, step=WIDE_ROWS):
            values = self._usual_where_absent(windows.X[rows[here]])
            each = [part.proba(values, self.threads) for part in self.parts]
            proba[here] = np.average(each, axis=0, weights=weights)
        return Outputs(proba=proba)

    def usual(self) -> Floats32:
        """Return (F,) the median of each feature in training."""
        return self._line.center.astype(np.float32)

    @property
    def _line(self) -> Linear:
        return certain(self.parts[1].linear, "the second part starts from a line")

    def carried(self, asked: WindowsToExplain) -> Floats:
        return self.contributions(asked.X, asked.alarm)[:, :-1] @ asked.parts

    def contributions(self, X: Floats32, alarm: Bools) -> Floats:
        """Return (n, F + 1): what each feature adds to the margin of an alarm, and last the constant part.

        The margin is the mean over the parts, by their weights, of the log odds; for several classes on one side the
        margins are weighted by the classes' probabilities. Each row sums to the margin.
        """
        values, each = self._usual_where_absent(X), []
        for part in self.parts:
            proba = part.proba(values, self.threads)
            total = np.where(alarm, *(proba[:, mine].sum(axis=1, keepdims=True) for mine in (alarm, ~alarm)))
            weight = np.where(alarm, 1.0, -1.0) * proba / total
            each.append(np.einsum("nk,nk...->n...", weight, part.contributions(values, self.threads)))
        return np.average(each, axis=0, weights=[part.weight for part in self.parts])

    def _usual_where_absent(self, values: Floats32) -> Floats32:
        absent = np.isnan(values)
        absent[:, self.lacked] = False
        return np.where(absent, self.usual(), values) if absent.any() else values

    def sidecar(self) -> bytes:
        """Return XGBoost's own JSON of the first part; its attributes hold the linear model and the second booster."""
        first, second = self.parts
        raw = to_json(second.booster).decode()
        first.booster.set_attr(line=self._line.to_json(), over_the_line=raw)
        return to_json(first.booster)

    def facts(self) -> JsonDict:
        return {
            "normaliser": {"kind": "none", "why": "trees only compare values"},
            "starts": list(STARTS),
            "rounds": [part.booster.num_boosted_rounds() for part in self.parts],
            "temperatures": [part.temperature for part in self.parts],
            "weights": [part.weight for part in self.parts],
            **({"lacked": self.lacked.tolist()} if self.lacked.size else {}),
        }


class BoostingState(msgspec.Struct):
    """The state of a boosting in progress, as it was after the last full ``STRETCH`` rounds: booster (as XGBoost's
    JSON) and losses."""

    model: bytes | None = None
    history: History = []


def fit(task: Task) -> Gbt:
    """For each start, search for the number of rounds, then boost again on training and validation windows."""
    if task.device == "cuda" and not xgboost.build_info().get("USE_CUDA"):
        raise BadArguments("this XGBoost has no CUDA: install the package xgboost, or use the CPU")
    both = np.sort(task.split.learnt)
    searches, parts, divided = list[Search](), list[BoosterPart](), task.folds()
    most, more = task.whole("n_estimators"), both.size / task.split.train.size
    weights = [most] * (len(STARTS) * len(divided)) + [most, round(most * more)] * len(STARTS)
    stages = Stages(task.keeper, task.progress, weights)
    with ExitStack() as files:
        folds = cross_fitted(
            stages, divided, lambda fold: [partial(_search, fold, Bins(fold, files), n) for n in range(len(STARTS))]
        )
        bins = Bins(task, files)
        for start, name in enumerate(SEARCHES):
            line = _linear(task, start, both)
            search = partial(_search, task, bins, start)

            def refit(found: Search, keeper: Keeper, start: int = start, line: Linear | None = line) -> bytes:
                rounds = round(found.length * both.size / task.split.train.size)
                boosting = Boosting(task, keeper, 2 * start + 1)
                return to_json(boosting.boost(bins.of(both, line), None, rounds)[0])

            found, model = search_then_refit(stages, name, search, refit)
            searches.append(found)
            temperature = mean_temperature([found.temperature, *(each[start] for each in folds)])
            parts.append(BoosterPart(_checked(task, model), line, temperature, weight_of(found)))
    return Gbt(tuple(parts), task.classes, task.threads, searches[0].history, np.flatnonzero(task.lacking(both)))


def weight_of(found: Search) -> float:
    """Return the weight of a part in the mean, by the loss of its search: a lower loss gives a higher weight."""
    return float((found.loss + SURE) ** -2)


def load(_model: str, facts: Json, sidecar: bytes, classes: int, hyper: HyperValues) -> Gbt:
    """Load the boosters from a verified sidecar, after a check of their trees. Raises ValueError or LookupError for
    other bytes."""
    first = learner_of(sidecar)
    line, second = Linear.from_json(first["attributes"]["line"]), learner_of(first["attributes"]["over_the_line"])
    sizes = {"features": line.center.size, "classes": classes, "depth": int(hyper["max_depth"])}
    boosters = (checked(one, **sizes) for one in (first, second))
    each = zip(boosters, (None, line), facts["temperatures"], facts["weights"], strict=True)
    parts = tuple(BoosterPart(*one) for one in each)
    return Gbt(parts, classes, 1, [], np.array(facts.get("lacked", []), int))


class Binned(NamedTuple):
    """Windows in XGBoost's binned form, and those of them on which the training loss is computed."""

    matrix: xgboost.DMatrix
    shown: Ints | None  # places in the matrix; None: all
    truth: Ints  # of those shown
    weights: Floats  # (K,) of the classes

    def logits(self, booster: xgboost.Booster) -> Floats:
        return _logits(booster, self.matrix, self.shown)


class Bins:
    """Bins the features of the windows to learn from once for both starts, which differ only in the linear model that
    trees start from.

    If windows exceed the limit of memory (never on a GPU), the bins are in files until ``files`` is closed. Bins in
    files give the same trees.
    """

    def __init__(self, task: Task, files: ExitStack) -> None:
        self._task, self._files = task, files
        self._made: dict[int, Binned] = {}
        self._paged_before = 0

    def of(self, rows: Ints, linear: Linear | None) -> Binned:
        """Return the windows ``rows`` in bins, starting from the margins of ``linear``.

        For equal ``rows`` call this without ``linear`` first: a matrix that once got such margins cannot lose them.
        Matrices are kept by their number of rows, so different ``rows`` must differ in number.
        """
        binned = self._made.get(rows.size)
        if binned is None:
            binned = self._made[rows.size] = self._sort(rows)
        if linear is not None:
            binned.matrix.set_base_margin(linear.margins(self._task.X, rows))
        return binned

    def judge(self, rows: Ints, linear: Linear | None, train: Binned) -> Binned:
        """Return the windows ``rows``, which decide when to stop, starting from the margins of ``linear``.

        If twice the size of these windows exceeds the limit of memory, all are stored in files (never on a GPU). In
        files they are in bins with the edges of ``train``.
        """
        task, y = self._task, self._task.y[rows]
        if self._holds(HELD_TWICE * rows.size):
            matrix = _matrix(task.X[rows], linear, task.threads)
        else:
            matrix = self._paged(rows, y, train.weights, train.matrix)
            if linear is not None:
                matrix.set_base_margin(linear.margins(task.X, rows))
        return Binned(matrix, None, y, train.weights)

    def _sort(self, rows: Ints) -> Binned:
        task, y = self._task, self._task.y[rows]
        few, shown = evenly(y.size, MOST_SKETCHED), evenly(y.size, MOST_SHOWN)
        weights = class_weights(y, task.classes)
        ref = _matrix(task.X[rows[few]], None, task.threads) if few.size < y.size else None
        matrix: xgboost.DMatrix
        if self._holds(rows.size):
            matrix = xgboost.QuantileDMatrix(
                task.X[rows], label=y, weight=weights[y], max_bin=task.whole("max_bin"), nthread=task.threads, ref=ref
            )
        else:
            matrix = self._paged(rows, y, weights, ref)
        return Binned(matrix, shown, y[shown], weights)

    def _holds(self, windows: int) -> bool:
        """Tell whether this number of windows is kept in memory: always on a GPU, where XGBoost's pages would change
        the trees."""
        task = self._task
        return task.device == "cuda" or task.limits.holds(windows, 4 * task.X.shape[1])

    def _paged(
        self, rows: Ints, y: Ints, weights: Floats, ref: xgboost.DMatrix | None
    ) -> xgboost.ExtMemQuantileDMatrix:
        task, features, bins = self._task, self._task.X.shape[1], self._task.whole("max_bin")
        step = min(rows.size, max(1, task.limits.page_bytes // (4 * features)))
        page = bytes_of_page(step, features, bins)
        require_room(self._folder, page * math.ceil(rows.size / step))
        self._paged_before += 1
        files = self._folder / f"bins{self._paged_before}"
        pages = Pages(task.X, rows, y, weights, step=step, files=files, page_bytes=page)
        return xgboost.ExtMemQuantileDMatrix(pages, max_bin=bins, nthread=task.threads, missing=np.nan, ref=ref)

    @cached_property
    def _folder(self) -> Path:
        made = tempfile.TemporaryDirectory(prefix="cis490-gbt-", dir=folder_of_large_files())
        return Path(self._files.enter_context(made))


def bytes_of_page(windows: int, features: int, bins: int) -> int:
    """Return the bytes of a page in XGBoost's files, as measured with version 3.2.

    The bin of each value is stored twice, by rows and by columns, with a bit that says if the value is missing. Each
    window also has its place, and each page the edges of all bins, and a little more.
    """
    cells = windows * features
    own = 2 * cells * (1 if bins <= BINS_A_BYTE else 2) + cells // 8 + 8 * windows
    return own + features * (8 * bins + 16) + 1024


def require_room(folder: Path, size: int) -> None:
    """Raise OSError if the disk has less than ``size`` bytes free: XGBoost itself would end the process without a
    message."""
    if shutil.disk_usage(folder).free < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


class Pages(xgboost.DataIter):
    """Feeds windows to XGBoost's external memory, ``step`` at a time; XGBoost stores their bins in files whose paths
    begin with ``files``."""

    def __init__(
        self, X: Floats32, rows: Ints, y: Ints, weights: Floats, *, step: int, files: Path, page_bytes: int
    ) -> None:
        """Take the windows at ``rows`` of ``X``, with their classes ``y``; ``weights`` has one for each class."""
        super().__init__(cache_prefix=str(files))
        self._X, self._rows, self._y, self._weights = X, rows, y, weights
        self._step, self._at = step, 0
        self._folder, self._page_bytes = files.parent, page_bytes

    def next(self, input_data: Callable[..., Any]) -> bool:
        here = slice(self._at, self._at + self._step)
        if here.start >= self._rows.size:
            return False
        require_room(self._folder, 2 * self._page_bytes)  # others fill the disk meanwhile
        y = self._y[here]
        input_data(data=self._X[self._rows[here]], label=y, weight=self._weights[y])
        release(self._X)
        self._at = here.stop
        return True

    def reset(self) -> None:
        self._at = 0


def _search(task: Task, bins: Bins, start: int, keeper: Keeper) -> Search:
    train, val = task.split.train, task.split.val
    linear = _linear(task, start, train)
    binned = bins.of(train, linear)
    judge, most = bins.judge(val, linear, binned), task.whole("n_estimators")
    booster, history = Boosting(task, keeper, 2 * start).boost(binned, judge, most)
    rounds = best_epoch(history)
    if linear is None:
        # By chance the first few trees may suit few windows best; alone they are no model yet.
        rounds = min(max(rounds, most // LEAST_SHARE), len(history))
    logits = judge.logits(booster[:rounds])
    loss, temperature = tempered(judge.truth, logits, judge.weights)
    return Search(rounds, temperature, loss, history)


def _linear(task: Task, start: int, rows: Ints) -> Linear | None:
    if STARTS[start] == "nothing":
        return None
    weights = class_weights(task.y[rows], task.classes)[task.y[rows]]
    return fit_linear(task.X, task.y[rows], weights, task.classes, rows)


class Boosting(NamedTuple):
    """One of a run's boostings: its ``number``, from which its random seeds follow."""

    task: Task
    keeper: Keeper
    number: int

    def boost(self, train: Binned, judge: Binned | None, rounds: int) -> tuple[xgboost.Booster, History]:
        """Boost for ``rounds``, or until the loss on the windows ``judge``, if given, has not fallen for ``patience``
        rounds.

        Return the booster and the history of its losses.
        """
        task, cache = self.task, [train.matrix, *([] if judge is None else [judge.matrix])]
        most = task.whole("n_estimators")
        saved = self.keeper.load()
        found = BoostingState() if saved is None else msgspec.msgpack.decode(saved, type=BoostingState)
        model, history = found.model and _raw(_checked(task, found.model)), found.history
        task.progress.begin_epochs()
        booster = _booster(task, cache, model, 0)
        while len(history) < rounds:
            if judge is not None and len(history) - best_epoch(history) >= task.whole("patience"):
                break
            if len(history) % STRETCH == 0:
                if history:
                    model = _raw(booster)
                self.keeper.watch(partial(_packed, model, list(history)))
                self.keeper.tick()
                booster = _booster(task, cache, model, self.number * most + len(history) // STRETCH)
            task.stop.check()
            booster.update(train.matrix, len(history))
            latest = _latest(booster, train, judge)
            history.append({"epoch": len(history) + 1, **latest})
            loss, metric = float(latest["train_loss"] or 0.0), latest["val_metric"]
            task.progress.epoch(len(history), rounds, loss=loss, metric=metric)
        return booster, history


def _parameters(task: Task) -> JsonDict:
    return {
        **objective(task.classes),
        **{key: task.hyper[key] for key in ("max_depth", "subsample", "min_child_weight", "reg_lambda", "max_bin")},
        "eta": task.number("lr"),
        "colsample_bytree": task.number("colsample"),
        "tree_method": "hist",
        "device": task.device,
        "nthread": task.threads,
        "disable_default_eval_metric": True,
        "verbosity": 0,
    }


def _latest(booster: xgboost.Booster, train: Binned, judge: Binned | None) -> dict[str, float | int | None]:
    loss, val_loss, metric = log_loss(train.truth, softmax(train.logits(booster)), train.weights), None, None
    if judge is not None:
        logits = judge.logits(booster)
        val_loss, metric = tempered(judge.truth, logits, judge.weights)[0], quick_metric(judge.truth, softmax(logits))
    return {"train_loss": loss, "val_loss": val_loss, "val_metric": metric}


def _matrix(values: Floats32, linear: Linear | None, threads: int) -> xgboost.DMatrix:
    margin = None if linear is None else linear.margins(values)
    return xgboost.DMatrix(values, base_margin=margin, nthread=threads)


def _logits(booster: xgboost.Booster, matrix: xgboost.DMatrix, places: Ints | None = None) -> Floats:
    """Return (n, K) the logits of all windows, or of those at ``places``, for any number of classes."""
    raw = np.asarray(booster.predict(matrix, output_margin=True))
    raw = (raw if places is None else raw[places]).astype(float)
    return raw if raw.ndim == 2 else np.stack((np.zeros_like(raw), raw), axis=1)


def _booster(task: Task, cache: list[xgboost.DMatrix], model: bytes | None, number: int) -> xgboost.Booster:
    """Make a booster with a random seed of its own that continues from ``model``, if given."""
    parameters = _parameters(task) | {"seed": task.seed * 100_003 + number}
    booster = xgboost.Booster(parameters, cache)
    if model is not None:
        booster.load_model(bytearray(model))
        booster.set_param(parameters)
    return booster


def _raw(booster: xgboost.Booster) -> bytes:
    return bytes(booster.save_raw("ubj"))


def _packed(model: bytes | None, history: History) -> bytes:
    """Return the state of a boosting, with the booster in the form that is checked when it is read."""
    if model is not None:
        booster = xgboost.Booster()
        booster.load_model(bytearray(model))
        model = to_json(booster)
    return msgspec.msgpack.encode(BoostingState(model, history))


def _checked(task: Task, model: bytes) -> xgboost.Booster:
    """Read a booster of this task, which may come from another machine. Raises ValueError or LookupError for a booster
    of another form."""
    sizes = {"features": task.X.shape[1], "classes": task.classes, "depth": task.whole("max_depth")}
    return checked(learner_of(model), **sizes, threads=task.threads)

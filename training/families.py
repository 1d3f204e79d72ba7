"""The model families, each declared once: the family's flags, and the facts that trainers, fleet and documentation
share.

The command line, ``--describe`` and the table in docs/trainer-contract.md are generated from ``FAMILIES``. The fleet
reads in ``FAMILIES`` which models use a GPU, how far threads help, and which files a model reads. This module needs
only the standard library; ``fit`` and ``load`` import what a family needs.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import Any

from training import strict_json
from training.flag import DESCRIBE_VERSION, BoundBy, FlagType
from training.hyper import Hyper, HyperValues, Value, choice, fraction, learning_rate, share, weight, whole

PROGRAM, SELF_SUPERVISED_PROGRAM = "training.trainer.run", "training.trainer.run_ssl"

# The imports of the process from which trainers are forked, beside a family's library: only what starts no thread.
PRELOAD = (
    *("numpy", "msgspec", "jinja2", "scipy.stats", "sklearn.ensemble", "sklearn.linear_model"),
    *("sklearn.covariance", "sklearn.neighbors", "sklearn.preprocessing", "threadpoolctl"),
)


class Takes(StrEnum):
    """The kind of input that a family learns from."""

    FEATURES = "features"
    TENSORS = "tensors"


@dataclass(frozen=True, kw_only=True)
class Family:
    """A model family: its code, flags and libraries, and the facts by which its trainings are scheduled.

    ``module`` names the module that has ``fit(task)`` and ``load(model, facts, sidecar, classes, hyper)``; ``load``
    rebuilds on the CPU what ``fit`` made. ``parallel`` is the share of a training that threads can divide, measured by
    bench/threads.py; 0 if not measured.
    """

    module: str
    hyper: tuple[Hyper, ...]
    libraries: tuple[str, ...]  # distributions; the first is preloaded
    cuda: bool  # trains on the GPU where there is one
    quick: bool  # trains in seconds what others take minutes for
    bound_by: BoundBy
    takes: Takes = Takes.TENSORS
    supervised: bool = True  # else its program takes no --model, and reads windows alone
    body: str = ""  # of a network: the class that learns, as module:class
    sidecar: str = ".pt"  # ending of the file beside a checkpoint, which holds what was learned
    parallel: float = 0.0

    def fit(self, task: Any) -> Any:
        """Train a model of this family on a ``Task`` (of the trainers) and return it as a ``Fitted``."""
        return import_module(self.module).fit(task)

    def load(self, model: str, facts: Mapping[str, Any], sidecar: bytes, classes: int, hyper: HyperValues) -> Any:
        """Rebuild the ``Fitted`` that was stored in a checkpoint and its sidecar."""
        return import_module(self.module).load(model, facts, sidecar, classes, hyper)

    def defaults(self) -> dict[str, Value]:
        return {hyper.key: hyper.default for hyper in self.hyper}


_TARGET_FPR = Hyper(
    key="target_fpr",
    type=FlagType.FLOAT,
    default=0.05,
    min=0,
    max=0.5,
    min_open=True,
    max_open=True,
    help="share of benign windows that the operating point may flag",
)


def _common(patience: int) -> tuple[Hyper, ...]:
    unit = "epochs (gbt: trees) without improvement on the validation side before training stops"
    return (_TARGET_FPR, whole("patience", patience, 1, None, unit))


def _torch(
    *,
    epochs: int,
    batch: int,
    lr: float,
    decay: float,
    dropout: float,
    patience: int,
    step: str = "windows in one step",
) -> tuple[Hyper, ...]:
    """Return the flags that every network takes, with one family's defaults (listed in docs/trainer-contract.md)."""
    return (
        *_common(patience),
        whole("epochs", epochs, 1, 10_000, "most passes over the training windows"),
        whole("batch_size", batch, 1, 65_536, step),
        learning_rate(lr, 10, "peak learning rate of AdamW"),
        weight("weight_decay", decay, "weight decay of AdamW"),
        fraction("dropout", dropout, "share of activations dropped while training"),
    )


def _smoothing(default: float) -> Hyper:
    return fraction("label_smoothing", default, "probability moved from the label to all classes")


def _attention(hidden: int) -> tuple[Hyper, ...]:
    return (
        whole("hidden", hidden, 4, 1_024, "width of a token"),
        whole("layers", 2, 1, 12, "attention blocks"),
        whole("heads", 4, 1, 64, "attention heads"),
        whole("patch", 0, 0, 2_000, "samples in a patch; 0 chooses about 16 patches a window"),
    )


def _recurrent(hidden: int) -> tuple[Hyper, ...]:
    return (
        whole("hidden", hidden, 1, 1_024, "width of the state, each direction"),
        whole("layers", 1, 1, 4, "recurrent layers"),
    )


def _network(**own: Any) -> Family:
    return Family(libraries=("torch",), cuda=True, quick=False, bound_by=BoundBy.STEPS, **own)


def _sequence(body: str, usual: tuple[Hyper, ...], *own: Hyper) -> Family:
    """Declare a family of networks that learn from whole windows; ``usual`` and ``own`` are its flags."""
    text = "how far training windows are disturbed, in deviations of a channel"
    perturb = Hyper(key="perturb", type=FlagType.FLOAT, default=0.3, min=0, max=10, help=text)
    return _network(module=SUPERVISED, body=body, hyper=(*usual, _smoothing(0.05), perturb, *own))


SUPERVISED, SELF_SUPERVISED = "training.trainer.supervised", "training.trainer.ssl"

_PARTS = {
    "gbt": Family(
        module="training.trainer.gbt",
        takes=Takes.FEATURES,
        libraries=("xgboost", "xgboost-cpu"),
        sidecar=".xgb.json",
        cuda=False,  # below some hundred thousand windows the CPU is as fast, and its models repeat anywhere
        quick=True,
        bound_by=BoundBy.BRANCHES,
        parallel=0.13,
        hyper=(
            *_common(patience=40),
            whole("n_estimators", 300, 1, 20_000, "most boosting rounds"),
            whole("max_depth", 4, 1, 16, "depth of a tree"),
            learning_rate(0.1, 1, "shrinkage of each tree"),
            share("subsample", 0.8, "share of the windows that a tree sees"),
            share("colsample", 0.5, "share of the features that a tree sees"),
            weight("min_child_weight", 1.0, "least sum of the windows' second derivatives in a leaf"),
            weight("reg_lambda", 1.0, "penalty on the squares of the leaves' values"),
            whole("max_bin", 128, 2, 1_024, "most bins a feature is sorted into"),
        ),
    ),
    "mlp": _network(
        module=SUPERVISED,
        takes=Takes.FEATURES,
        body="training.trainer.mlp:Mlp",
        hyper=(
            *_torch(
                epochs=60,
                batch=256,
                lr=0.003,
                decay=0.02,
                dropout=0.3,
                patience=12,
                step="most windows in one step; never over a quarter of the training windows, or 8 if that is more",
            ),
            _smoothing(0.2),
            whole("hidden", 64, 1, 4_096, "width of a hidden layer"),
            whole("layers", 2, 1, 8, "hidden layers"),
            whole("members", 8, 1, 64, "networks trained side by side and averaged"),
        ),
    ),
    "cnn": _sequence(
        "training.trainer.cnn:Cnn",
        _torch(epochs=40, batch=64, lr=0.003, decay=0.01, dropout=0.2, patience=10),
        whole("hidden", 48, 1, 1_024, "channels of a convolution"),
        whole("layers", 3, 1, 8, "convolutions"),
        whole("kernel", 5, 1, 63, "samples under a convolution"),
    ),
    "gru": _sequence(
        "training.trainer.recurrent:Gru",
        _torch(epochs=40, batch=128, lr=0.004, decay=0.01, dropout=0.2, patience=10),
        *_recurrent(hidden=40),
    ),
    "lstm": _sequence(
        "training.trainer.recurrent:Lstm",
        _torch(epochs=40, batch=64, lr=0.004, decay=0.01, dropout=0.2, patience=10),
        *_recurrent(hidden=48),
    ),
    "transformer": _sequence(
        "training.trainer.transformer:Transformer",
        _torch(epochs=40, batch=64, lr=0.002, decay=0.02, dropout=0.1, patience=10),
        *_attention(hidden=48),
    ),
}

FAMILIES = {
    **_PARTS,
    "combined": Family(
        module="training.trainer.combined",
        libraries=("torch", "xgboost", "xgboost-cpu"),
        cuda=False,
        quick=False,
        bound_by=BoundBy.BRANCHES,
        hyper=(
            _TARGET_FPR,
            choice("supervised", "gbt", tuple(_PARTS), "family of the part that knows classes"),
            choice(
                "anomaly",
                "views",
                ("views", "transformer_ssl"),
                "part that knows benign windows: plain views, or plain views and a network's",
            ),
            fraction("new_share", 0.35, "share of the malicious-like windows to come that show a new behaviour"),
            whole("neighbours", 10, 1, 1_000, "neighbours that the anomaly part looks at"),
            whole("epochs", 0, 0, 10_000, "most epochs (gbt: trees) of a part; 0: its family's own default"),
            whole(
                "patience",
                0,
                0,
                None,
                "epochs (gbt: trees) without improvement before a part stops; 0: its own default",
            ),
        ),
    ),
    "transformer_ssl": _network(
        module=SELF_SUPERVISED,
        supervised=False,
        hyper=(
            *_torch(epochs=40, batch=64, lr=0.002, decay=0.02, dropout=0.0, patience=8),
            *_attention(hidden=48),
            fraction("mask_ratio", 0.4, "share of the patches hidden in pre-training", low_open=True),
            whole("neighbours", 10, 1, 1_000, "neighbours that the distance scores look at"),
        ),
    ),
}
RUN_MODELS = tuple(model for model, family in FAMILIES.items() if family.supervised)
SSL_MODELS = tuple(model for model, family in FAMILIES.items() if not family.supervised)
OWN = _network(module="", hyper=())  # what is assumed of a custom trainer


def family_of(model: str) -> Family:
    """Return the family of a model; for a custom trainer, assumed values."""
    return FAMILIES.get(model, OWN)


def program(model: str) -> list[str]:
    """Return the arguments after the interpreter that start our trainer of ``model``."""
    if family_of(model).supervised:
        return ["-m", PROGRAM, "--model", model]
    return ["-m", SELF_SUPERVISED_PROGRAM]


def preloads(model: str) -> tuple[str, ...]:
    """Return the modules that the parent process imports before it forks our trainers of ``model``."""
    return (*PRELOAD, family_of(model).libraries[0])


def describe(program: str, models: Sequence[str]) -> dict[str, Any]:
    """Return the answer to ``--describe``: each model's hyperparameters and what bounds its training, and the SHA-256
    of all hyperparameters."""
    hyper = {model: {"hyper": {each.key: each.describe() for each in FAMILIES[model].hyper}} for model in models}
    return {
        "describe_version": DESCRIBE_VERSION,
        "program": program,
        "models": {model: {**own, "bound_by": FAMILIES[model].bound_by.value} for model, own in hyper.items()},
        # Of what changes a result: what bounds a training is advice to the fleet.
        "digest": hashlib.sha256(strict_json.canonical(hyper).encode()).hexdigest(),
    }


def markdown() -> str:
    """Return all hyperparameters as the Markdown table of docs/trainer-contract.md, with each family's default."""
    rows: dict[tuple[str, str, str], dict[str, list[str]]] = {}  # families by default, of each key, range and meaning
    for model, family in FAMILIES.items():
        for one in family.hyper:
            row = rows.setdefault((one.key, _bounds(one), one.help), {})
            row.setdefault(f"`{one.default}`", []).append(model)
    lines = ["| key and values | meaning | default |", "|---|---|---|"]
    for (key, bounds, meaning), defaults in sorted(rows.items(), key=lambda row: -sum(map(len, row[1].values()))):
        said = [f"{'all' if len(of) == len(FAMILIES) else ', '.join(of)} {value}" for value, of in defaults.items()]
        lines.append(f"| `{key}` {bounds} | {meaning} | {'; '.join(said)} |")
    return "\n".join(lines) + "\n"


def _bounds(one: Hyper) -> str:
    """Return what a hyperparameter may be, as briefly as a table needs it: ``1–4096``, ``>0, <1`` or the choices."""
    if one.choices is not None:
        return ", ".join(one.choices)
    if None not in (one.min, one.max) and not (one.min_open or one.max_open):
        return f"{one.min:g}–{one.max:g}"
    low = "" if one.min is None else f"{'>' if one.min_open else '≥'}{one.min:g}"
    high = "" if one.max is None else f"{'<' if one.max_open else '≤'}{one.max:g}"
    return ", ".join(bound for bound in (low, high) if bound)


if __name__ == "__main__":
    print(markdown(), end="")

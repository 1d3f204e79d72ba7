"""The trainers' flags: one table that makes the parser, the ranges, the help and ``--describe``.

Standard library only: a receiver on a small machine asks ``--describe`` to check a manifest and has
neither torch nor NumPy. A hyperparameter exists exactly once, in ``MODELS`` below.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from training import strict_json
from training.flag import DESCRIBE_VERSION, BoundBy, Flag, FlagType

FEWEST_RESAMPLES = 200  # that make an interval: the ends of fewer are a matter of the draw

Value = int | float | bool | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyper(Flag):
    """One hyperparameter."""

    default: Value
    help: str

    @property
    def allowed(self) -> str:
        """The permitted values in words, for help texts and refusals."""
        if self.type is FlagType.BOOL:
            return "true or false"
        if self.choices is not None:
            return "one of " + ", ".join(self.choices)
        noun = "a whole number" if self.type is FlagType.INT else "a number"
        low = None if self.min is None else f"{'above' if self.min_open else 'at least'} {self.min:g}"
        high = None if self.max is None else f"{'below' if self.max_open else 'at most'} {self.max:g}"
        bounds = " and ".join(part for part in (low, high) if part)
        return f"{noun} {bounds}".strip()

    def parse(self, text: str) -> Value:
        """The value of ``text``; raises ``ArgumentTypeError`` that says what is allowed instead."""
        value = _convert(self.type, text)
        if value is None or not self._permits(value):
            raise argparse.ArgumentTypeError(f"{text!r} is not {self.allowed}")
        return value

    def _permits(self, value: Value) -> bool:
        if isinstance(value, bool):
            return True
        if isinstance(value, str):
            return self.choices is None or value in self.choices
        return self.permits_number(value)

    def describe(self) -> dict[str, Any]:
        number = int if self.type is FlagType.INT else float
        return {
            "flag": self.flag,
            "type": self.type.value,
            "min": None if self.min is None else number(self.min),
            "max": None if self.max is None else number(self.max),
            "min_open": self.min_open,
            "max_open": self.max_open,
            "choices": None if self.choices is None else list(self.choices),
            "default": self.default,
            "help": self.help,
        }


def _convert(type_: FlagType, text: str) -> Value | None:
    try:
        match type_:
            case FlagType.INT:
                return int(text)
            case FlagType.FLOAT:
                return float(text)
            case FlagType.BOOL:
                return {"true": True, "false": False}.get(text.lower())
            case FlagType.STR:
                return text
    except ValueError:
        return None


def _int(key: str, default: int, low: int, high: int | None, help: str) -> Hyper:  # noqa: A002
    return Hyper(key=key, type=FlagType.INT, default=default, min=low, max=high, help=help)


def _share(key: str, default: float, help: str) -> Hyper:  # noqa: A002
    """A share of something that may be all of it: 0 < x ≤ 1."""
    return Hyper(key=key, type=FlagType.FLOAT, default=default, min=0, max=1, min_open=True, help=help)


def _weight(key: str, default: float, help: str) -> Hyper:  # noqa: A002
    """A penalty: at least 0, without an upper bound."""
    return Hyper(key=key, type=FlagType.FLOAT, default=default, min=0, help=help)


def _rate(default: float, high: float, help: str) -> Hyper:  # noqa: A002
    return Hyper(key="lr", type=FlagType.FLOAT, default=default, min=0, max=high, min_open=True, help=help)


def _fraction(key: str, default: float, help: str, *, low_open: bool = False) -> Hyper:  # noqa: A002
    """A share that may never be all of it: 0 ≤ x < 1 (or 0 < x < 1)."""
    return Hyper(
        key=key, type=FlagType.FLOAT, default=default, min=0, max=1, min_open=low_open, max_open=True, help=help
    )


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
    return (_TARGET_FPR, _int("patience", patience, 1, None, unit))


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
    """The flags that every network takes; the defaults are chosen per family (see docs/trainer-contract.md)."""
    return (
        *_common(patience),
        _int("epochs", epochs, 1, 10_000, "most passes over the training windows"),
        _int("batch_size", batch, 1, 65_536, step),
        _rate(lr, 10, "peak learning rate of AdamW"),
        _weight("weight_decay", decay, "weight decay of AdamW"),
        _fraction("dropout", dropout, "share of activations dropped while training"),
    )


def _smoothing(default: float) -> Hyper:
    return _fraction("label_smoothing", default, "probability moved from the label to all classes")


def _perturb() -> Hyper:
    text = "how far training windows are disturbed, in deviations of a channel"
    return Hyper(key="perturb", type=FlagType.FLOAT, default=0.3, min=0, max=10, help=text)


def _attention(hidden: int) -> tuple[Hyper, ...]:
    return (
        _int("hidden", hidden, 4, 1_024, "width of a token"),
        _int("layers", 2, 1, 12, "attention blocks"),
        _int("heads", 4, 1, 64, "attention heads"),
        _int("patch", 0, 0, 2_000, "samples in a patch; 0 chooses about 16 patches a window"),
    )


SUPERVISED = ("gbt", "mlp", "cnn", "gru", "lstm", "transformer")
ANOMALIES = ("views", "transformer_ssl")


def _choice(key: str, default: str, choices: tuple[str, ...], help: str) -> Hyper:  # noqa: A002
    return Hyper(key=key, type=FlagType.STR, default=default, choices=choices, help=help)


MODELS: Mapping[str, tuple[Hyper, ...]] = {
    "gbt": (
        *_common(patience=40),
        _int("n_estimators", 300, 1, 20_000, "most boosting rounds"),
        _int("max_depth", 4, 1, 16, "depth of a tree"),
        _rate(0.1, 1, "shrinkage of each tree"),
        _share("subsample", 0.8, "share of the windows that a tree sees"),
        _share("colsample", 0.5, "share of the features that a tree sees"),
        _weight("min_child_weight", 1.0, "least weight of windows in a leaf"),
        _weight("reg_lambda", 1.0, "penalty on the squares of the leaves' values"),
        _int("max_bin", 128, 2, 1_024, "bins a feature is sorted into"),
    ),
    "mlp": (
        *_torch(
            epochs=60,
            batch=256,
            lr=0.003,
            decay=0.02,
            dropout=0.3,
            patience=12,
            step="most windows in one step: of few never more than a quarter, or 8",
        ),
        _smoothing(0.2),
        _int("hidden", 64, 1, 4_096, "width of a hidden layer"),
        _int("layers", 2, 1, 8, "hidden layers"),
        _int("members", 8, 1, 64, "networks trained side by side and averaged"),
    ),
    "cnn": (
        *_torch(epochs=40, batch=64, lr=0.003, decay=0.01, dropout=0.2, patience=10),
        _smoothing(0.05),
        _perturb(),
        _int("hidden", 48, 1, 1_024, "channels of a convolution"),
        _int("layers", 3, 1, 8, "convolutions"),
        _int("kernel", 5, 1, 63, "samples under a convolution"),
    ),
    "gru": (
        *_torch(epochs=40, batch=128, lr=0.004, decay=0.01, dropout=0.2, patience=10),
        _smoothing(0.05),
        _perturb(),
        _int("hidden", 40, 1, 1_024, "width of the state, each direction"),
        _int("layers", 1, 1, 4, "recurrent layers"),
    ),
    "lstm": (
        *_torch(epochs=40, batch=64, lr=0.004, decay=0.01, dropout=0.2, patience=10),
        _smoothing(0.05),
        _perturb(),
        _int("hidden", 48, 1, 1_024, "width of the state, each direction"),
        _int("layers", 1, 1, 4, "recurrent layers"),
    ),
    "transformer": (
        *_torch(epochs=40, batch=64, lr=0.002, decay=0.02, dropout=0.1, patience=10),
        _smoothing(0.05),
        _perturb(),
        *_attention(hidden=48),
    ),
    "combined": (
        _TARGET_FPR,
        _choice("supervised", "gbt", SUPERVISED, "family of the part that knows classes"),
        _choice("anomaly", "views", ANOMALIES, "part that knows benign windows: plain views, or with a network's"),
        _fraction("new_share", 0.35, "share of the malicious-like windows to come that show a new behaviour"),
        _int("neighbours", 10, 1, 1_000, "neighbours that the anomaly part looks at"),
        _int("epochs", 0, 0, 10_000, "most epochs (gbt: trees) of a part; 0: its family's own default"),
        _int("patience", 0, 0, None, "epochs (gbt: trees) without improvement before a part stops; 0: its own default"),
    ),
    "transformer_ssl": (
        *_torch(epochs=40, batch=64, lr=0.002, decay=0.02, dropout=0.0, patience=8),
        *_attention(hidden=48),
        _fraction("mask_ratio", 0.4, "share of the patches hidden in pre-training", low_open=True),
        _int("neighbours", 10, 1, 1_000, "neighbours that the distance scores look at"),
    ),
}
SSL_MODELS = ("transformer_ssl",)
BOUND_BY = {model: BoundBy.BRANCHES if model in ("gbt", "combined") else BoundBy.STEPS for model in MODELS}
RUN_MODELS = tuple(model for model in MODELS if model not in SSL_MODELS)


def describe(program: str, models: Sequence[str]) -> dict[str, Any]:
    """Return the answer to ``--describe``: every model's hyperparameters, and a digest to compare hosts by."""
    described = {model: {"hyper": {hyper.key: hyper.describe() for hyper in MODELS[model]}} for model in models}
    canonical = strict_json.canonical(described)
    return {
        "describe_version": DESCRIBE_VERSION,
        "program": program,
        "models": described,
        "bound_by": {model: BOUND_BY[model].value for model in models},  # not in the digest: it changes no result
        "digest": hashlib.sha256(canonical.encode()).hexdigest(),
    }


def markdown() -> str:
    """The hyperparameters as the tables of docs/trainer-contract.md."""
    lines: list[str] = []
    for model, table in MODELS.items():
        lines += [f"### `{model}`", "", "| key | value | default | meaning |", "|---|---|---|---|"]
        for hyper in table:
            meaning = f"{hyper.help} |"
            lines.append(f"| `{hyper.key}` | {hyper.allowed} | `{hyper.default}` | {meaning}")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown(), end="")

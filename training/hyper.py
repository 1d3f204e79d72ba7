"""A hyperparameter: its permitted values, used by the parser, the help and ``--describe``.

The model families declare their hyperparameters in `training.families`. This module and `training.families` need only
the standard library.
"""

import argparse
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from training.flag import Flag, FlagType

FEWEST_RESAMPLES = 200  # that make an interval: the ends of fewer are a matter of the draw

Value = int | float | bool | str
HyperValues = Mapping[str, Value]  # by key
_CONVERTED = {FlagType.INT: int, FlagType.FLOAT: float}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyper(Flag):
    """A hyperparameter: its permitted values, its default and its help text."""

    default: Value
    help: str

    @property
    def allowed(self) -> str:
        """The permitted values as a phrase, for help texts and error messages."""
        if self.choices is not None:
            return "one of " + ", ".join(self.choices)
        noun = "a whole number" if self.type is FlagType.INT else "a number"
        low = None if self.min is None else f"{'above' if self.min_open else 'at least'} {self.min:g}"
        high = None if self.max is None else f"{'below' if self.max_open else 'at most'} {self.max:g}"
        bounds = " and ".join(part for part in (low, high) if part)
        return f"{noun} {bounds}".strip()

    def parse(self, text: str) -> Value:
        """Return ``text`` converted to the type of this hyperparameter. Raises ``ArgumentTypeError``, which says what
        is allowed instead."""
        value: Value | None = None
        with suppress(ValueError):
            value = _CONVERTED.get(self.type, str)(text)
        if value is None or not self._permits(value):
            raise argparse.ArgumentTypeError(f"{text!r} is not {self.allowed}")
        return value

    def _permits(self, value: Value) -> bool:
        if isinstance(value, str):
            return self.choices is None or value in self.choices
        return self.permits_number(value)

    def describe(self) -> dict[str, Any]:
        number = int if self.type is FlagType.INT else float
        low, high = (None if bound is None else number(bound) for bound in (self.min, self.max))
        found = {**asdict(self), "flag": self.flag, "min": low, "max": high}
        return {name: value for name, value in found.items() if name != "key"}


def whole(key: str, default: int, low: int, high: int | None, help: str) -> Hyper:  # noqa: A002
    return Hyper(key=key, type=FlagType.INT, default=default, min=low, max=high, help=help)


def share(key: str, default: float, help: str) -> Hyper:  # noqa: A002
    """Declare a hyperparameter that is a share and may be 1: 0 < x ≤ 1."""
    return Hyper(key=key, type=FlagType.FLOAT, default=default, min=0, max=1, min_open=True, help=help)


def weight(key: str, default: float, help: str) -> Hyper:  # noqa: A002
    """Declare a hyperparameter that is a penalty: at least 0, without an upper bound."""
    return Hyper(key=key, type=FlagType.FLOAT, default=default, min=0, help=help)


def learning_rate(default: float, high: float, help: str) -> Hyper:  # noqa: A002
    return Hyper(key="lr", type=FlagType.FLOAT, default=default, min=0, max=high, min_open=True, help=help)


def fraction(key: str, default: float, help: str, *, low_open: bool = False) -> Hyper:  # noqa: A002
    """Declare a hyperparameter that is a share and may not be 1: 0 ≤ x < 1, or with ``low_open`` 0 < x < 1."""
    return Hyper(
        key=key, type=FlagType.FLOAT, default=default, min=0, max=1, min_open=low_open, max_open=True, help=help
    )


def choice(key: str, default: str, choices: tuple[str, ...], help: str) -> Hyper:  # noqa: A002
    return Hyper(key=key, type=FlagType.STR, default=default, choices=choices, help=help)

"""The declaration of a hyperparameter's flag, which trainers print with ``--describe`` and the fleet reads."""

import math
from dataclasses import dataclass
from enum import StrEnum

DESCRIBE_VERSION = 1


class FlagType(StrEnum):
    """The type of a hyperparameter's value."""

    INT = "int"
    FLOAT = "float"
    BOOL = "bool"
    STR = "str"


class BoundBy(StrEnum):
    """The kind of work that takes most of a model's training time: each host measures its own speed at each kind."""

    MATRICES = "matrices"  # large products, on the GPU where there is one
    STEPS = "steps"  # small steps, of which the overhead counts
    BRANCHES = "branches"  # comparisons, on all cores: trees


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """The values that a hyperparameter may have. Bounds are inclusive unless marked open; ``None`` is unbounded."""

    key: str
    type: FlagType
    min: int | float | None = None  # a float would blur large whole numbers
    max: int | float | None = None
    min_open: bool = False
    max_open: bool = False
    choices: tuple[str, ...] | None = None

    @property
    def flag(self) -> str:
        return "--" + self.key.replace("_", "-")

    def permits_number(self, number: float) -> bool:
        """Tell whether a number is finite and within the bounds."""
        if isinstance(number, float) and not math.isfinite(number):
            return False
        low = self.min is None or (number > self.min if self.min_open else number >= self.min)
        high = self.max is None or (number < self.max if self.max_open else number <= self.max)
        return low and high

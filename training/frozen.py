"""Decorators of the house's plain values: dataclasses that cannot change and hold nothing but their fields."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(made: type[T]) -> type[T]:
    """Make a value of the class ``made``."""
    return dataclass(frozen=True, slots=True)(made)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def frozen_kw(made: type[T]) -> type[T]:
    """Make a value of the class ``made``, whose fields are given by their names only."""
    return dataclass(frozen=True, slots=True, kw_only=True)(made)

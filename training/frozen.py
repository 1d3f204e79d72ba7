"""Decorators for plain values: frozen dataclasses with slots."""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(made: type[T]) -> type[T]:
    """Return the class ``made`` as a frozen dataclass with slots."""
    return dataclass(frozen=True, slots=True)(made)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def frozen_kw(made: type[T]) -> type[T]:
    """Return the class ``made`` as a frozen dataclass with slots, whose fields are given by name only."""
    return dataclass(frozen=True, slots=True, kw_only=True)(made)

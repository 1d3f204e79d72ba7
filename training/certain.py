"""A check of what the program itself ensures; unlike an assert statement it also runs under ``python -O``."""

from typing import TypeVar

T = TypeVar("T")


def certain(value: T | None, why: str) -> T:
    """Return ``value``. Raise AssertionError with the text ``why`` if ``value`` is None or False."""
    if value is None or value is False:
        raise AssertionError(why)
    return value

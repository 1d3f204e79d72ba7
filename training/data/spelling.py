"""Names that are spelled alike: a host or a class under two spellings would be two."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from training.data.errors import DataError


def tidy(names: NDArray[np.str_], what: str) -> NDArray[np.str_]:
    """Names without spaces around them. Raises DataError for an empty one, and for two that differ by case only."""
    found, place = np.unique(names, return_inverse=True)
    stripped = np.array([name.strip() for name in found.tolist()])
    if "" in stripped:
        raise DataError(f"A {what} is empty: name each one, or leave these rows out.")
    check_alike(stripped.tolist(), what)
    return np.asarray(stripped[place.reshape(names.shape)])


def check_alike(names: Iterable[str], what: str) -> None:
    """Refuse two names that differ by case, or by spaces around them, only. Raises DataError."""
    spellings: dict[str, str] = {}
    for name in names:
        other = spellings.setdefault(name.strip().casefold(), name)
        if other != name:
            by = "case" if other.strip() != name.strip() else "spaces"
            raise DataError(
                f"The {what}s {other!r} and {name!r} differ by {by} only: spell them alike if they are one, "
                "or rename one of them."
            )

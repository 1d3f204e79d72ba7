"""Decide which columns of a table are channels, and refuse channels that a model should not get.

A model that gets a row number or an id as a channel seems perfect but learns nothing useful. Columns with names of row
numbers or ids are refused, and so are channels whose changes 32-bit numbers would lose. All functions are pure.
"""

import shlex
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from training.data.doubts.ids_and_totals import FALLING_MAX
from training.data.errors import DataError
from training.data.ingest.roles import Roles, is_row_number, twin_of
from training.data.missing import Missing
from training.data.scratch import spans
from training.data.values import AnyArray, Floats, Indices, Names

SAME = 1e-13  # of the largest value: what a constant's mean is rounded by
ROUNDING_MAX = 0.01  # of a channel's standard deviation


class Wanted(NamedTuple):
    """The user's flags about columns.

    ``oracle`` has the channels hidden from the realistic mode, and ``ignore`` the columns to leave out. ``counter`` has
    the running totals. ``level`` has the channels to keep although they look like an id, a total or the label, or
    repeat a value like a missing one. ``missing`` has the numbers that mean a missing value.
    """

    oracle: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    counter: tuple[str, ...] = ()
    level: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()


def channel_names(columns: Sequence[str], roles: Roles, wanted: Wanted, where: str) -> list[str]:
    """Return the names of the columns that are channels, sorted.

    Raises DataError for a name of a row number or id, a repeated name, or a flag that names no channel.
    """
    channels = sorted(name for name in columns if name not in roles.columns)
    for name in channels:
        if name not in wanted.level:
            _check_name(name, columns, where)
    check_named(channels, wanted, where)
    return channels


def check_named(channels: Sequence[str], wanted: Wanted, where: str) -> None:
    """Raise DataError if --oracle, --counter or --level names something that is not in ``channels``; ``where`` names
    the table or archive in the error."""
    for flag, said in (("--oracle", wanted.oracle), ("--counter", wanted.counter), ("--level", wanted.level)):
        unknown = sorted(set(said) - set(channels))
        if unknown:
            raise DataError(f"{flag} names {unknown[0]!r}, which is no channel of {where}.")


def _check_name(name: str, names: Sequence[str], where: str) -> None:
    out = f"leave it out with --ignore {shlex.quote(name)}"
    if is_row_number(name):
        raise DataError(
            f"The column {name!r} is a row number or an id by its name: {out}, or, if it is measured, keep it with "
            f"--level {shlex.quote(name)}."
        )
    twin = twin_of(name, names)
    if twin is not None:
        raise DataError(
            f"Two columns of {where} are called {twin!r}, and differ: leave the first out with --ignore "
            f"{shlex.quote(twin)} or the other with --ignore {shlex.quote(name)}, or give each a name of its own."
        )


# -- values ------------------------------------------------------------------------------------------------------------


def check_total(name: str, falls: int, steps: int) -> None:
    """Raise DataError if a channel given as a running total falls in more than ``FALLING_MAX`` of its steps, as a total
    does not."""
    falling = falls / steps if steps else 0.0
    if falling > FALLING_MAX:
        raise DataError(
            f"The channel {name!r} falls in {100 * falling:.0f} % of its steps, so that it is no running total: leave "
            "it out of --counter."
        )


def check_rounding(columns: Iterable[tuple[str, AnyArray]], host: Names) -> None:
    """Raise DataError if 32-bit numbers would lose the changes of a channel inside its hosts.

    ``columns`` has each channel's name and values, with a row of one or several values for each entry of ``host``.
    """
    _, of_host = np.unique(host, return_inverse=True)
    for name, column in columns:
        check_rounding_of(name, column, of_host)


def check_rounding_of(name: str, column: AnyArray, of_host: Indices) -> None:
    """Raise DataError if 32-bit numbers would lose the changes of this channel. ``column`` has a row of one or several
    values for each entry of ``of_host``, the number of the row's host."""
    values = np.asarray(column, float).reshape(of_host.size, -1)
    parts = (values[here] for here in spans(values))
    largest = max((float(np.abs(part[np.isfinite(part)]).max(initial=0.0)) for part in parts), default=0.0)
    with np.errstate(over="ignore"):
        rounding = float(np.spacing(np.float32(largest))) / 2
    if not np.isfinite(rounding):
        return  # no 32-bit number at all, which is refused as not finite
    spread = _within(values, of_host)
    if SAME * largest < spread < rounding / ROUNDING_MAX:
        raise DataError(
            f"The channel {name!r} changes by about {spread:.3g} around values of {largest:.3g}, which 32 bits "
            f"round to {2 * rounding:.3g}: subtract a constant, or bring rates (--counter)."
        )


def _within(values: Floats, group: Indices) -> float:
    """Return the standard deviation of the values after each group's own mean is subtracted."""
    groups = int(group.max()) + 1
    counts, sums = np.zeros(groups), np.zeros(groups)
    for rows in spans(values):
        part = values[rows]
        known = np.isfinite(part)
        counts += np.bincount(group[rows], known.sum(axis=1), groups)
        sums += np.bincount(group[rows], np.where(known, part, 0.0).sum(axis=1), groups)
    mean = np.divide(sums, counts, out=np.zeros_like(sums), where=counts > 0)
    squares = 0.0
    for rows in spans(values):
        part = values[rows]
        squares += float((np.where(np.isfinite(part), part - mean[group[rows]][:, None], 0.0) ** 2).sum())
    return float(np.sqrt(squares / max(1, counts.sum())))

"""Separate the windows of hosts' references, which a column or array marks, from the other windows.

Until windows are cut, the mark counts as a label. As no window crosses a change of label, no window mixes samples of a
reference with others.
"""

from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np

from training.data.classes import listed
from training.data.dataset import REFERENCE, WindowSet
from training.data.errors import DataError
from training.data.ingest.ingested import Ingested
from training.data.rows import Rows
from training.data.scratch import WorkingMemory
from training.data.summary import counts_of
from training.data.values import AnyArray, Bools, Codes

MARK = "(reference)"  # the label, until the windows are set apart


def marks_refused(what: str, way_out: str) -> Callable[[str], str]:
    """Return a function that makes the sentence for a value that is neither true nor false; ``what`` names the column
    or array of marks, ``way_out`` a remedy."""
    said = f"The {what} marks which rows are of a host's reference by true or false, or 1 or 0, and holds"
    return lambda odd: f"{said} {odd!r}: correct it, or {way_out}."


def booleans(values: AnyArray, refusal: Callable[[str], str]) -> Bools:
    """Return the values as booleans: numbers 1 and 0, or texts 1, 0, true and false in upper or lower case. Raises
    DataError with the sentence of ``refusal`` for other values."""
    if values.dtype.kind in "fiub" and np.isin(values, (0, 1)).all():
        return values.astype(bool)
    words = [word.strip().casefold() for word in values.astype(str).tolist()]
    odd = [word for word in words if word not in ("true", "false", "1", "0")]
    if odd:
        raise DataError(refusal(odd[0]))
    return np.array([word in ("true", "1") for word in words], bool)


def marked(label: Codes, names: tuple[str, ...], benign: Collection[str], mark: Bools) -> tuple[Codes, tuple[str, ...]]:
    """Return the class numbers and names with one more class, ``MARK``, for the rows or windows of references.

    ``mark`` is the mask of the rows or windows of references; if it marks none, numbers and names stay as they are.
    Raises DataError if a class is called ``MARK`` already, all are marked, or one is marked whose class is not benign.
    """
    if MARK in names:
        raise DataError(f"A class is called {MARK}, which means something else here: rename it.")
    if not mark.any():
        return label, names
    if mark.all():
        raise DataError("Everything is marked as reference: bring other samples too.")
    odd = sorted({names[number] for number in np.unique(label[mark]).tolist()} - set(benign))
    if odd:
        raise DataError(
            f"A reference shows a host's ordinary work, and some is labelled {listed(odd)}: fix label or mark."
        )
    return np.where(mark, np.int32(len(names)), label), (*names, MARK)


def set_apart(windows: Ingested, room: WorkingMemory) -> Ingested:
    """Return the windows with those of references moved into the field ``reference``. Raises DataError if all windows
    are of references."""
    mark = windows.label.among([MARK])
    if not mark.any():
        return windows
    if mark.all():
        raise DataError("Only windows of references are left: allow more missing values, or bring longer recordings.")
    names = tuple(name for name in windows.label_names if name != MARK)
    own, rest = (windows.take(keep, room.taken(windows.X, keep)) for keep in (mark, ~mark))
    rest = replace(rest, label_names=names)
    rows = Rows.of(
        episode=own.episode.strings(),
        host=own.host.strings(),
        t_start=own.t_start,
        t_end=own.t_end,
        label=np.full(len(own.label), REFERENCE),
    )
    said = listed([f"{name} {count:,}" for name, count in counts_of(own.host, own.host.present.tolist()).items()])
    note = f"Windows of references, which tell their hosts' levels and are not among the others: {said}."
    return replace(rest, reference=WindowSet(X=own.X, rows=rows), notes=(*rest.notes, note))

"""Recognise by content the windows that trained, stopped, calibrated or tested a model; its checkpoint stores their
digests for ``score`` and ``compare``.

Windows that were cut elsewhere from the same samples are recognised by *marks*: runs of samples a quarter of a window
long. The content of such samples alone decides whether they are a mark, so that any cut selects the same ones. A window
has about four to eight marks, fewer in a large data set.

The checkpoint has, for each side of its split, the sorted digests of the windows, six bytes each, unless there are more
than ``MOST_WINDOWS``. With a million digests stored, one in 280 million other windows would be mistaken for a stored
one. A digest covers names and samples of the channels that the model's mode may see, but not the window's name, host or
time.
"""

import math
from typing import Annotated

import msgspec
import numpy as np

from training.data.identity import marks_of, run_length, window_digests
from training.data.scratch import spans
from training.data.split import Side, Split
from training.data.values import Digests, Ints, Json, Names
from training.trainer.inputs import Inputs

BYTES = 6
MOST_WINDOWS = 4_000_000  # beyond, a checkpoint would be larger than what is read of one
PART_VALUES = 1 << 24  # samples whose marks are worked on at a time
MARKS = 8  # at most as many in a window, before those that neighbours share are counted once
MOST_MARKS = 1 << 20
NEW = "new"  # the side of a window that is on none
TOO_MANY = f"a checkpoint keeps the digests of at most {MOST_WINDOWS:,} windows, and it saw more"

_Packed = Annotated[bytes, msgspec.Meta(max_length=MOST_WINDOWS * BYTES)]


class SeenWindows(msgspec.Struct, frozen=True):
    """The member ``seen`` of a checkpoint. ``sides`` and ``marks`` are None where there were too many windows to store.

    On average one in ``every`` runs of successive samples is a mark.
    """

    sides: dict[Side, _Packed] | None
    marks: dict[Side, _Packed] | None
    every: Annotated[int, msgspec.Meta(ge=1, le=1 << 62)]

    def digests(self, side: Side) -> Digests:
        """Return the digests of one side's windows, sorted, shortened to ``BYTES``; empty if none are stored.

        Raises ValueError for damaged ones.
        """
        return _unpacked(self.sides, "sides", side)

    def marked(self, side: Side) -> Digests:
        """Return the digests of one side's marks, in the same form as :meth:`digests`."""
        return _unpacked(self.marks, "marks", side)


def _unpacked(kept: dict[Side, bytes] | None, what: str, side: Side) -> Digests:
    data = (kept or {}).get(side, b"")
    if len(data) % BYTES:
        raise ValueError(f"seen.{what}.{side} is no sequence of digests of {BYTES} bytes")
    whole = np.zeros((len(data) // BYTES, 8), np.uint8)
    whole[:, 8 - BYTES :] = np.frombuffer(data, np.uint8).reshape(-1, BYTES)
    return whole.view(">u8")[:, 0].astype(np.uint64)


def keep(inputs: Inputs, split: Split, references: Ints) -> SeenWindows:
    """Return the digests that a checkpoint stores for the windows of each side.

    ``references`` are the row numbers of the reference windows that were used for training.
    """
    digests = inputs.window_digests
    if digests.size + references.size > MOST_WINDOWS:
        return SeenWindows(sides=None, marks=None, every=1)
    every = _every(*inputs.tensors.shape[::2])
    marks = marks_of(inputs.tensors, inputs.channel_names, every, telling=True)
    sides = {side: digests[split.side(side)] for side in Side}
    marked = {side: marks.digest[np.isin(marks.window, split.side(side))] for side in Side}
    if references.size:
        learnt = inputs.reference_tensors[references]
        own = marks_of(learnt, inputs.channel_names, every, telling=True)
        sides[Side.TRAIN] = np.concatenate((sides[Side.TRAIN], window_digests(learnt, inputs.channel_names)))
        marked[Side.TRAIN] = np.concatenate((marked[Side.TRAIN], own.digest))
    return SeenWindows(
        sides={side: _packed(found) for side, found in sides.items()},
        marks={side: _packed(found) for side, found in marked.items()},
        every=every,
    )


def fresh_references(document: Json, inputs: Inputs) -> Ints:
    """Return the row numbers of the reference windows that the model has not learnt from, by content; all if the
    checkpoint cannot tell."""
    seen = msgspec.convert(document["seen"], SeenWindows)
    places = np.arange(inputs.reference_host.size)
    if seen.sides is None or not places.size:
        return places
    short = _short(window_digests(inputs.reference_tensors, inputs.channel_names))
    return places[~np.isin(short, seen.digests(Side.TRAIN))]


def _every(windows: int, samples: int) -> int:
    """Choose the n of "one in n runs is a mark": a power of two that gives windows enough marks and a checkpoint
    few."""
    runs, every = samples - run_length(samples) + 1, 1
    while runs > MARKS * every or runs * windows > MOST_MARKS * every:
        every *= 2
    return every


def _packed(digests: Digests) -> bytes:
    short = np.unique(_short(digests)).astype(">u8").view(np.uint8).reshape(-1, 8)
    return short[:, 8 - BYTES :].tobytes()


def _short(digests: Digests) -> Digests:
    return digests >> np.uint64(8 * (8 - BYTES))


def sides_by_content(document: Json, inputs: Inputs) -> Names | None:
    """Return (N,) the side that each window, or part of it, was on in training, or ``new``; None if the checkpoint
    stores no digests.

    A window that was on two sides counts for the first of train, val, cal and test: a window that trained a model
    cannot test it.
    """
    seen = msgspec.convert(document["seen"], SeenWindows)
    if seen.sides is None:
        return None
    side = np.full(inputs.window_digests.size, NEW, "U5")
    short = _short(inputs.window_digests)
    for name in reversed(Side):
        side[np.isin(short, seen.digests(name))] = name.value
    if not (side == NEW).any():
        return side
    marked = {name: seen.marked(name) for name in reversed(Side)}
    step = max(1, PART_VALUES // math.prod(inputs.tensors.shape[1:]))
    for here in spans(new := np.flatnonzero(side == NEW), step=step):
        rows = new[here]
        marks = marks_of(inputs.tensors[rows], inputs.channel_names, seen.every, telling=False)
        short = _short(marks.digest)
        for name, found in marked.items():
            side[rows[marks.window[np.isin(short, found)]]] = name.value
    return side


def same_data(document: Json, inputs: Inputs) -> bool:
    """Tell whether the model was trained on exactly this data set."""
    return bool(document["run_key"]["data"] == inputs.digest)


def sides_of_split(split: Split, windows: int) -> Names:
    """Return (N,) the side of each window of the data set that ``split`` divides; ``new`` for windows on no side."""
    side = np.full(windows, NEW, "U5")
    for name in Side:
        side[split.side(name)] = name.value
    return side

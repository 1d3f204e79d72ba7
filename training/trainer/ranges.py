"""The range of values that a model was trained on: stored in its checkpoint, compared with the windows that it scores.

For each channel: the lowest and highest value, and how rough its quietest and its liveliest window is (the mean size of
the steps from sample to sample). A window lies outside when one of its channels leaves the range by more than half the
range's width. A window also lies outside when a channel is less than half as rough as in the quietest training window,
or more than twice as rough as in the liveliest. Possible causes are a sensor that died, a unit that changed, or samples
of another rate.
"""

import msgspec
import numpy as np

from training.data.features import STATISTICS
from training.data.scratch import WIDE_ROWS, spans
from training.data.values import Bools, Floats, Ints, Json
from training.trainer.inputs import Inputs

MARGIN = 0.5  # of the range, on either side
FACTOR = 2.0  # of the roughness, on either side
ROUNDING = 1e-5  # of a value: what single precision may add
SHOWN = 3  # channels
WORTH_SAYING = 0.01  # of a host's windows
KEPT = ("min", "max", "diff_abs_mean")


class Range(msgspec.Struct, frozen=True):
    """The range of one channel over all training windows: its lowest and highest value, and its least and greatest
    roughness."""

    low: float
    high: float
    quietest: float
    liveliest: float


def ranges_of(inputs: Inputs, rows: Ints) -> dict[str, Range]:
    """Return the range of each channel over the windows ``rows``; channels that all of them lack are left out."""
    channels = inputs.channel_names
    edges = np.stack([np.full(len(channels), edge) for edge in (np.inf, -np.inf, np.inf, -np.inf)])
    for here in spans(rows, step=WIDE_ROWS):
        low, high, rough = _statistics(inputs, rows[here])
        for number, values in enumerate((low, high, rough, rough)):
            farthest = (np.fmin, np.fmax)[number % 2]  # which leave out what is not known
            edges[number] = farthest(edges[number], farthest.reduce(values))
    return {
        channel: Range(*(float(f"{edge[number]:.6g}") for edge in edges))
        for number, channel in enumerate(channels)
        if edges[0, number] < np.inf
    }


def outside(inputs: Inputs, document: Json) -> Bools:
    """Return (N, C) True where a window lies outside a checkpoint's range in a channel (see the module)."""
    ranges, channels = msgspec.convert(document["ranges"], dict[str, Range]), inputs.channel_names
    odd = np.zeros((len(inputs.features), len(channels)), bool)
    for here in spans(inputs.features, step=WIDE_ROWS):
        low, high, rough = _statistics(inputs, here)
        for number, channel in enumerate(channels):
            if (one := ranges.get(channel)) is None:
                continue
            noise = ROUNDING * max(abs(one.low), abs(one.high))
            slack = MARGIN * (one.high - one.low) + noise
            odd[here, number] = (
                (low[:, number] < one.low - slack)
                | (high[:, number] > one.high + slack)
                | (rough[:, number] < one.quietest / FACTOR)
                | (rough[:, number] > one.liveliest * FACTOR + noise)
            )
    return odd


def said_of(inputs: Inputs, document: Json) -> list[str]:
    """Return a sentence for each host of whose windows at least the share ``WORTH_SAYING`` lies outside."""
    return [
        f"{100 * share:.0f} % of the windows of {host} lie outside of what the model was trained on (most often in "
        f"{', '.join(worst)}): what it says of them is a guess."
        for host, (share, worst) in shares_outside(inputs, document).items()
        if share >= WORTH_SAYING
    ]


def shares_outside(inputs: Inputs, document: Json) -> dict[str, tuple[float, list[str]]]:
    """Return for each host the share of its windows outside a checkpoint's ranges, and the at most ``SHOWN`` channels
    that are outside most often."""
    odd, names, found = outside(inputs, document), inputs.channel_names, {}
    for host in np.unique(inputs.rows.host).tolist():
        here = odd[inputs.rows.host == host]
        often = np.argsort(-here.sum(axis=0), kind="stable")[:SHOWN].tolist()
        found[host] = float(here.any(axis=1).mean()), [names[number] for number in often if here[:, number].any()]
    return found


def _statistics(inputs: Inputs, rows: Ints | slice) -> list[Floats]:
    """Read the statistics ``KEPT``, each (n, C), from the features, which begin with all statistics of each channel."""
    channels = len(inputs.channel_names)
    if inputs.schema.has_examples:
        values = inputs.features[rows][:, :channels].astype(float)
        return [values, values, np.zeros_like(values)]
    width = channels * len(STATISTICS)
    by_channel = inputs.features[rows][:, :width].reshape(-1, channels, len(STATISTICS))
    return [by_channel[:, :, STATISTICS.index(name)].astype(float) for name in KEPT]

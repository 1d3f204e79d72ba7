"""Reasons for alarms: the channels and the seconds of a window that raised its score most.

A family computes by how much each channel raised the score (``Fitted.carried``). Channels that raised the score have
shares; the share is 0 for a channel that lowered it, and for one that the window lacks. The seconds of a window (in
long windows, longer stretches) are ranked by replacing each with the host's usual values, and measuring how far the
score falls. No step is random. "Carried the score" says what the model looked at, not what caused the alarm.
"""

import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from training.certain import certain
from training.data.absent import absent, channels_of
from training.data.features import extract
from training.data.values import Bools, Floats, Floats32, Ints, JsonDict
from training.trainer.inputs import Inputs
from training.trainer.task import Fitted, GivenWindows, WindowsToExplain, evenly

SHOWN = 3  # channels
MOST_EXPLAINED = 512  # windows of one call, evenly drawn
MOST_REPORTED, REPORTED = 128, 8  # windows that speak for the alarms of a report, and channels shown there
MOST_STRETCHES = 30  # in a window: of long ones a stretch lasts more than a second
CARRIES = 1.25  # times an even share, from which a stretch is named


def parts_of(features: Sequence[str], channels: Sequence[str]) -> Floats:
    """Return (F, C): the part of each feature that belongs to each channel; a correlation belongs half to each of
    two."""
    found = np.zeros((len(features), len(channels)))
    place = {name: number for number, name in enumerate(channels)}
    for row, feature in enumerate(features):
        names = channels_of(feature)
        for name in names:
            found[row, place[name]] += 1 / len(names)
    return found


def log_odds(proba: Floats, alarm: Bools) -> Floats:
    """Return (n,) the log odds that a window is of any class that alarms, from probabilities (n, K)."""
    p, rest = (proba[:, mine].sum(axis=1).clip(1e-12) for mine in (alarm, ~alarm))
    return np.log(p) - np.log(rest)


def shares(carried: Floats, lacks: Bools | None = None) -> Floats:
    """Return (n, C) the share of each channel in what raised a window's score; 0 for absent channels.

    All shares of a window are 0 if none of its channels raised the score.
    """
    up = np.where(np.isfinite(carried), carried, 0.0).clip(0.0)
    if lacks is not None:
        up[lacks] = 0.0
    total = up.sum(axis=1, keepdims=True)
    return np.divide(up, total, out=np.zeros_like(up), where=total > 0)


def together(each: ArrayLike) -> Floats:
    """Combine the shares (n, C) of several windows into one row (C,)."""
    return shares(np.asarray(each, float).sum(axis=0, keepdims=True))[0]


def named(channels: Sequence[str], share: Floats, most: int = SHOWN) -> list[tuple[str, float]]:
    """Return at most ``most`` channels with their shares (C,), the largest first; those of share 0 are left out."""
    order = np.argsort(-share, kind="stable")[:most].tolist()
    return [(channels[place], float(share[place])) for place in order if share[place] > 0]


# -- windows of a data set ---------------------------------------------------------------------------------------------


class Usual(NamedTuple):
    """The median of each channel (C,) and feature (F,) on a host.

    The median is taken over the host's reference; for what the reference lacks, or without one, over the training
    windows.
    """

    channels: Floats32
    features: Floats32 | None  # None: the model learns from samples, and has no reference here

    @classmethod
    def of(cls, fitted: Fitted, windows: Inputs, host: str) -> Self:
        names, mine = windows.schema.feature_names, windows.reference_host == host
        training = fitted.usual()
        features = training if training.ndim == 1 else None
        figure = "value" if windows.schema.has_examples else "q50"
        middle = [names.index(f"{name}.{figure}") for name in windows.channel_names]
        channels = training[:, 0] if features is None else features[middle]
        if mine.any():
            own = windows.reference_tensors[mine]
            channels = _or(_median(own.transpose(0, 2, 1).reshape(-1, own.shape[1])), channels)
            own = _median(windows.reference_features[mine])
            features = own if features is None else _or(own, features)
        return cls(channels=channels, features=features)


def _median(values: Floats32) -> Floats32:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # what a reference lacks has no median
        return np.asarray(np.nanmedian(values, axis=0), np.float32)


def _or(first: Floats32, second: Floats32) -> Floats32:
    return np.where(np.isnan(first), second, first)


def asked_of(fitted: Fitted, windows: Inputs, rows: Ints) -> WindowsToExplain:
    """Return the windows to explain, in the form that a family takes."""

    def usual() -> Floats32:
        found = np.empty((rows.size, *windows.X.shape[1:]), np.float32)
        for host, where in _by_host(windows, rows):
            own = Usual.of(fitted, windows, host)
            found[where] = own.features if windows.X.ndim == 2 else own.channels[:, None]
        return found

    classes = windows.classes
    return WindowsToExplain(
        X=np.ascontiguousarray(windows.X[rows]),
        features=windows.features[rows],
        host=windows.rows.host[rows],
        usual=usual,
        parts=parts_of(windows.schema.feature_names, windows.channel_names),
        alarm=~classes.is_benign(np.arange(len(classes))),
    )


def _by_host(windows: Inputs, rows: Ints) -> Iterator[tuple[str, Ints]]:
    host = windows.rows.host[rows]
    for name in np.unique(host).tolist():
        yield name, np.flatnonzero(host == name)


def stretches_of(samples: int, sample_hz: float) -> list[tuple[int, int]]:
    """Divide a window's samples into stretches of a second and at least one sample; longer ones if there would be too
    many."""
    step = max(1, round(sample_hz), -(-samples // MOST_STRETCHES))
    return [(start, min(start + step, samples)) for start in range(0, samples, step)]


def carried_by_stretch(fitted: Fitted, windows: Inputs, asked: WindowsToExplain, rows: Ints) -> Floats:
    """Return (n, S): how far the score, or the log odds of an alarm, falls if one stretch of all known channels gets
    usual values."""
    schema = windows.schema
    tensors = np.array(windows.tensors[rows], np.float32)
    usual = np.empty(tensors.shape[:2], np.float32)
    for host, where in _by_host(windows, rows):
        usual[where] = Usual.of(fitted, windows, host).channels
    usual = np.where(np.isnan(tensors[:, :, 0]), np.nan, usual)

    def score(X: Floats32, features: Floats32) -> Floats:
        outputs = fitted.predict(GivenWindows(X, features, asked.host), asked.rows)
        if outputs.proba is not None:
            return log_odds(outputs.proba, asked.alarm)
        return certain(outputs.score, "a model answers with probabilities or scores")

    whole, falls = score(asked.X, asked.features), []
    for start, end in stretches_of(tensors.shape[2], schema.sample_hz):
        without = tensors.copy()
        without[:, :, start:end] = usual[:, :, None]
        features = extract(without, schema.channels, schema.sample_hz)
        falls.append(whole - score(features if asked.X.ndim == 2 else without, features))
    return np.stack(falls, axis=1)


class Reasons(NamedTuple):
    """The explanations of the n windows ``rows``: each channel's share of the score, and each stretch's.

    The channels' shares of a window add up to 1, or to 0 if no channel raised its score. So do the stretches' shares;
    all of these are 0 if only channels were explained.
    """

    rows: Ints
    channels: tuple[str, ...]
    share: Floats  # (n, C)
    stretches: tuple[tuple[float, float], ...]  # from and to, in seconds of a window
    moment: Floats  # (n, S)
    alarms: int  # as many there were; more than n where not all were explained

    def named(self, share: Floats, most: int = SHOWN) -> list[tuple[str, float]]:
        """Return at most ``most`` channels with their shares (C,), the largest first; those of share 0 are left out."""
        return named(self.channels, share, most)

    def mean(self, rows: Ints) -> Floats | None:
        """Return the shares (C,) of several windows together, using only explained ones; None if none is explained."""
        here = np.isin(self.rows, rows)
        return together(self.share[here]) if here.any() else None

    def moments(self, number: int) -> list[tuple[float, float]]:
        """Return the spans, in seconds, of the explained window ``number`` (from 0) that have at least ``CARRIES``
        times an equal share of the score.

        Neighbouring spans are joined. If no span has ``CARRIES`` times an equal share, all spans that raised the score
        are returned; an empty list if none did.
        """
        share, spans = self.moment[number], list[tuple[float, float]]()
        more = share * share.size >= CARRIES
        for (start, end), named in zip(self.stretches, more if more.any() else share > 0, strict=True):
            if named and spans and spans[-1][1] == start:
                spans[-1] = spans[-1][0], end
            elif named:
                spans.append((start, end))
        return spans


def explain(
    fitted: Fitted, windows: Inputs, rows: Ints, *, most: int = MOST_EXPLAINED, seconds: bool = True
) -> Reasons:
    """Explain the scores of these windows, or of at most ``most`` of them, evenly drawn.

    If ``seconds`` is False, or windows have one sample, only channels are explained; to explain the seconds takes the
    most time.
    """
    drawn, hz = rows[evenly(rows.size, most)], windows.schema.sample_hz
    lacks = absent(windows.tensors[drawn])
    spans = stretches_of(windows.tensors.shape[2], hz)
    asked = asked_of(fitted, windows, drawn)
    share, moment = np.zeros(lacks.shape), np.zeros((drawn.size, len(spans)))
    if drawn.size:
        share = shares(fitted.carried(asked), lacks)
        moment = shares(carried_by_stretch(fitted, windows, asked, drawn)) if seconds and len(spans) > 1 else moment
    return Reasons(
        rows=drawn,
        channels=windows.channel_names,
        share=share,
        stretches=tuple((start / hz, end / hz) for start, end in spans),
        moment=moment,
        alarms=int(rows.size),
    )


def reported(fitted: Fitted, windows: Inputs, rows: Ints) -> JsonDict:
    """Name the channels that carried the alarms at ``rows`` together, as JSON values for a report."""
    found = explain(fitted, windows, rows, most=MOST_REPORTED, seconds=False)
    mean = found.mean(rows)
    named = [] if mean is None else found.named(mean, REPORTED)
    return {
        "alarms": found.alarms,
        "explained": int(found.rows.size),
        "channels": [{"channel": channel, "share": round(share, 4)} for channel, share in named],
    }


def in_words(named: Sequence[tuple[str, float]]) -> str:
    """Format channels and shares, ``net_tx_bytes 41 %, cpu_user 22 %``; "no channel of its own" if no channel raised
    the score."""
    return ", ".join(f"{channel} {100 * share:.0f} %" for channel, share in named) or "no channel of its own"

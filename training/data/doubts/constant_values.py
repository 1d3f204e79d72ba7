"""Detect values that repeat where measured ones change: numbers for missing values, padding, data filled forward.

Repeated values can have natural causes as well, so they are noted, and nothing is refused. A few windows of each class
or recording are examined. All functions are pure.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from training.data.classes import listed
from training.data.coded import Coded
from training.data.doubts.windows import WindowsInQuestion, evenly
from training.data.scratch import picked
from training.data.values import Bools, Floats32, Ints

SHARE = 0.05  # of a class's samples (or windows), from which
SHARE_MAX = 0.5
TENTH = 0.1  # of it the other classes have less by nature
OFTENER = 5.0  # than the second commonest value: a channel of few values repeats them all
DISTANCE = 0.02  # of the spread of all others: nearer to its end idle hours lie
RUN_MAX = 3.0  # samples: what lasts longer is a state
SAMPLES_MIN = 100  # of a class, for a share of it to mean something
SAMPLES_MAX, WINDOWS_MIN = 16_384, 32  # that are looked at, of each class
HOSTS_MAX = 8
PADDED_MIN = 3  # samples
RECORDINGS_MAX = 32
CHANGES_MIN = 10
ON_TIME = 0.95  # of them


# -- one value, in one class -------------------------------------------------------------------------------------------


def one_sided(windows: WindowsInQuestion) -> list[str]:
    """Return sentences about values that are often repeated in windows of some classes and rare in those of the others.

    At most one value is described for each channel that is not exempt, on all hosts together or on one. Idle hours
    also repeat a value, but in long runs, or just beyond the range of the other values; such values are not reported.
    The sentence names the value only with ``by_flags``, because otherwise the windows are normalised.
    """
    found = {}
    X, label, host = windows.X, windows.rows.label, windows.rows.host
    asked = [(number, name) for number, name in enumerate(windows.channels) if name not in windows.exempt]
    every = np.ones(len(label), bool)
    several = range(min(HOSTS_MAX, host.names.size) if host.names.size > 1 else 0)
    for here in (every, *(host.codes == number for number in several)):
        for rows, away, classes, others in _sides(label, here, windows.benign):
            one, other = (picked(X, _few(side, X.shape[2])) for side in (rows, away))
            for number, name in asked:
                if name in found:
                    continue
                value, share = _repeated(one[:, number])
                elsewhere = _moving(other[:, number])
                if value is None or elsewhere.size < SAMPLES_MIN:
                    continue
                less = float((elsewhere == value).mean())
                if less > TENTH * share:
                    continue
                what, remedy = "One value", "If so, leave it empty"
                if windows.by_flags:
                    what, remedy = f"The value {value:.10g}", f"Then say --missing={name}={value:.10g}"
                found[name] = (
                    f"{what} makes up {100 * share:.0f} % of {name} in windows of {classes} and {100 * less:.2g} % of "
                    f"it in those of {others}: a missing value? {remedy}."
                )
    return [found[name] for _, name in asked if name in found]


def _sides(label: Coded, among: Bools, benign: Sequence[str]) -> Iterator[tuple[Ints, Ints, str, str]]:
    """Yield divisions of the rows that ``among`` marks: a group of classes, and all others, as the rows and class names
    of each.

    The groups are the benign classes and the rest. If ``among`` marks all rows, or there are no benign classes, each
    single class is a group too.
    """
    classes = label.take(among).present.tolist()
    good = [name for name in classes if name in benign]
    groups = [good, [name for name in classes if name not in good]] if good else []
    if among.all() or not good:  # on one host the two sides are enough
        groups += [[name] for name in classes if [name] not in groups]
    for group in groups:
        here = label.among(group)
        rows, others = np.flatnonzero(among & here), np.flatnonzero(among & ~here)
        if rows.size and others.size:
            away = [name for name in classes if name not in group]
            yield rows, others, listed(group), listed(away)


def _few(rows: Ints, samples: int) -> Ints:
    """Return some of the ``rows`` of windows, drawn evenly: at most ``SAMPLES_MAX`` samples in all, or ``WINDOWS_MIN``
    windows if these have more."""
    return evenly(rows, max(WINDOWS_MIN, SAMPLES_MAX // samples))


def _moving(windows: Floats32) -> Floats32:
    """Return those of a channel's windows (N, T) in which the channel changes; a value that fills whole windows is a
    state."""
    return np.asarray(windows[windows.min(axis=1) < windows.max(axis=1)])


def _repeated(windows: Floats32) -> tuple[float | None, float]:
    """Return the value that a channel's windows (N, T) repeat more often than a measurement would, and its share; None
    and 0 without such a value."""
    moving = _moving(windows)
    if moving.size < SAMPLES_MIN:
        return None, 0.0
    values, counts = np.unique(moving, return_counts=True)
    most = int(counts.argmax())
    share, value = float(counts[most] / moving.size), float(values[most])
    others = np.delete(values, most)
    if not SHARE <= share <= SHARE_MAX or counts[most] < OFTENER * np.delete(counts, most).max():
        return None, 0.0
    here = moving == value
    runs = int(here[:, 0].sum() + (here[:, 1:] & ~here[:, :-1]).sum())
    low, high = np.quantile(others, (0.01, 0.99)).tolist()
    near = DISTANCE * (high - low)
    if here.sum() > RUN_MAX * runs or low - near < value < low or high < value < high + near:
        return None, 0.0
    return value, share


# -- padding -----------------------------------------------------------------------------------------------------------


def padding(windows: WindowsInQuestion) -> list[str]:
    """Return a sentence for each class whose windows often end (or begin) with samples in which no channel changes.

    A class is reported only if its windows are rarely so at the other end, and the other classes' windows rarely at the
    same end. A window that never changes counts as one without padding.
    """
    X, label = windows.X, windows.rows.label
    classes = label.names.tolist()
    ends = {
        name: _still_ends(picked(X, _few(np.flatnonzero(label.codes == number), X.shape[2])))
        for number, name in enumerate(classes)
    }
    notes = []
    for name in classes:
        for place, what in ((1, "end"), (0, "begin")):
            share, back = ends[name][place], ends[name][1 - place]
            others = [ends[other][place] for other in classes if other != name]
            if share >= SHARE and max((back, *others)) <= TENTH * share:
                notes.append(
                    f"{100 * share:.0f} % of the windows of {name} {what} in a stretch in which no channel moves, and "
                    "nearly none of the other classes: padding? Then cut all to one length."
                )
    return notes


def _still_ends(X: Floats32) -> tuple[float, float]:
    """Return the shares of the windows ``X`` (N, C, T) in which no channel changes in the first samples, and in the
    last; a window that never changes counts in neither share."""
    run = max(PADDED_MIN, X.shape[2] // 8)
    moves = np.any(np.abs(np.diff(X, axis=2)) > 0, axis=1)  # (N, T - 1)
    alive = moves.any(axis=1)
    first, last = ~moves[:, : run - 1].any(axis=1), ~moves[:, -(run - 1) :].any(axis=1)
    return float((alive & first).mean()), float((alive & last).mean())


# -- filled forward ----------------------------------------------------------------------------------------------------


def filled_forward(windows: WindowsInQuestion) -> list[str]:
    """Return a list with one sentence if most channels that change do so only at every k-th sample; else an empty list.

    Without a sampling rate, the distance between windows is unknown, and each window is examined separately.
    """
    X, t_start, sample_hz, timed = windows.X, windows.rows.t_start, windows.sample_hz, windows.timed
    gaps: list[list[Ints]] = [[] for _ in range(X.shape[1])]
    of = windows.rows.episode.codes
    for number in np.argsort(-np.bincount(of), kind="stable")[:RECORDINGS_MAX].tolist():
        rows = _few(np.flatnonzero(of == number), X.shape[2])
        place = np.rint((t_start[rows] - t_start[rows].min()) * sample_hz).astype(int)
        if not timed:
            place = np.arange(rows.size) * 2 * X.shape[2]
        moved = np.abs(np.diff(picked(X, rows), axis=2)) > 0
        at = place[:, None] + np.arange(X.shape[2] - 1)
        for one, each in enumerate(gaps):
            apart = np.diff(np.sort(at[moved[:, one]], kind="stable"))  # in order but for windows that overlap
            each.append(apart[apart > 0] if timed else apart[(apart > 0) & (apart < X.shape[2])])
    steps = [step for each in gaps if (step := _usual_step(np.concatenate(each)))]
    every = max(sorted(set(steps)), key=steps.count, default=1)
    if every == 1 or 2 * steps.count(every) <= len(steps):
        return []
    if not timed:
        return [f"Values change only at every {every}. sample: the data were recorded more slowly."]
    own = f"{every / sample_hz:g} s: the data were recorded at {sample_hz / every:g} Hz, and filled forward"
    return [f"Values change only every {own}."]


def _usual_step(gaps: Ints) -> int:
    """Return the number of samples of which almost all ``gaps`` between changes are multiples; 1 if there is no such
    number, 0 for few changes."""
    if gaps.size < CHANGES_MIN:
        return 0
    values, counts = np.unique(gaps, return_counts=True)
    usual = int(values[counts.argmax()])
    return usual if (gaps % usual == 0).mean() >= ON_TIME else 1

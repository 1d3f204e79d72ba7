"""Read windows from a NumPy archive: arrays X and y, and optional arrays about them.

X        (N, C, T) numbers        the windows
y        (N)  numbers or names    their classes; if all are 0 or 1, benign and malicious
episode  (N)  optional            recording of each window; absent: each window is a recording of its own
host     (N)  optional            machine that recorded each window
channel  (C)  optional            names; absent: c0, c1, …
oracle   (C)  optional booleans   channels that the realistic mode must not see
t        (N)  optional            start of each window in seconds or as a date, on one clock for all
reference (N) optional booleans   windows of a host's reference (see `references`)
"""

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from training.data.coded import Coded
from training.data.dataset import UNLABELLED
from training.data.doubts.spelling import tidy
from training.data.errors import DataError
from training.data.ingest import ingested, times
from training.data.ingest.columns import Wanted, check_named, check_rounding, check_total
from training.data.ingest.references import booleans, marked, marks_refused
from training.data.missing import judge_stand_ins, labelled, say_missing
from training.data.schema import Timing
from training.data.values import AnyArray, Bools, Floats, Floats32, Names
from training.printable import first_line

ROLES = {
    "X": "windows",
    "y": "class",
    "episode": "recording",
    "host": "host",
    "channel": "names of the channels",
    "oracle": "hidden from realistic",
    "t": "time in seconds",
    "reference": "reference of its host",
}
KEYS = tuple(ROLES)


def read_npz(
    path: Path,
    *,
    hz: float | None,
    t_unit: str | None,
    said: ingested.SaidClasses,
    wanted: Wanted,
    scoring: bool,
) -> ingested.Ingested:
    """Return the windows in the archive ``path``.

    ``hz`` is the sampling rate of X, None if the user did not give it. With ``scoring``, the array y may be missing.
    Raises DataError.
    """
    found = _load(path)
    for key in ("X",) if scoring else ("X", "y"):
        if key not in found:
            raise DataError(f"{path} has no array {key!r}: it needs X (N, C, T) and, without --like, y (N).")
    X = found["X"]
    if X.ndim != 3 or 0 in X.shape or X.dtype.kind not in "fiub":
        raise DataError(
            f"X must hold numbers in the shape (windows, channels, samples), but it is {X.dtype} {X.shape}."
        )
    n, n_channels, samples = X.shape
    if samples == 1:
        raise DataError("X has one sample a window: bring such rows as a table, with --rows-are-windows.")
    columns = {key: _column(found, key, n_channels if key in ("channel", "oracle") else n) for key in KEYS[1:]}
    if "y" not in found:
        ingested.check_says_nothing(said, str(path))
    y = found.get("y", np.full(n, UNLABELLED))
    left_out = [f"channel {name}: --ignore" for name in wanted.ignore]
    if said.unlabelled:
        keep = labelled(y, said.unlabelled)
        columns |= {
            key: column[keep]
            for key, column in columns.items()
            if column is not None and key not in ("channel", "oracle")
        }
        X, y = X[keep], y[keep]
        left_out.append(f"{n - len(X):,} windows: --unlabelled")
        n = len(X)
    labels = ingested.name_labels(y, said) if "y" in found else ingested.Labels(y, (UNLABELLED,), ingested.NOT_LABELLED)
    if columns["reference"] is not None:
        number = {name: place for place, name in enumerate(labels.names)}
        of_window = np.array([number[name] for name in labels.of_window.tolist()], np.int32)
        mark = booleans(columns["reference"], marks_refused("array 'reference'", "rename it if it is none"))
        of_window, kinds = marked(of_window, labels.names, labels.benign.names, mark)
        labels = ingested.Labels(np.array(kinds)[of_window], kinds, labels.benign)
    names = [f"c{number}" for number in range(n_channels)]
    if columns["channel"] is not None:
        names = columns["channel"].astype(str).tolist()
    if wanted.missing:
        X = X.astype(float)
        left_out += say_missing(wanted.missing, names, [X[:, c] for c in range(n_channels)])
    host = np.full(n, ingested.UNKNOWN_HOST)
    if columns["host"] is not None:
        host = tidy(columns["host"].astype(str), "host")
    episode = ingested.own_episodes(_as_float32(X), names)
    if columns["episode"] is not None:
        episode = ingested.unite(host, tidy(columns["episode"].astype(str), "episode"))
    hidden = np.zeros(n_channels, bool)
    if columns["oracle"] is not None:
        hidden = booleans(
            columns["oracle"],
            lambda odd: f"The array 'oracle' holds {odd!r}: each value must be true or false, or 1 or 0.",
        )
    X, names, hidden, notes = _chosen(X, names, hidden, hz, wanted, str(path))
    check_rounding(((name, X[:, number]) for number, name in enumerate(names)), host)
    if "y" not in found:
        notes.append(ingested.FOR_SCORING)
    roles = dict(ROLES)
    t_start, timing, stride_s = (ingested.following(episode, samples / (hz or 1.0)), Timing.NONE, samples / (hz or 1.0))
    if columns["t"] is None:
        if t_unit is not None:
            raise DataError(f"{path} has no array 't', so --t-unit has no effect.")
        timing = Timing.NONE if hz is None else Timing.SECONDS
        notes.append("There is no array t: a split by time is not possible.")
    else:
        timing = Timing.STARTS if hz is None else Timing.SECONDS
        t_start, roles["t"] = times.from_array(columns["t"], t_unit, str(path))
        if columns["episode"] is not None:
            _check_equal_times(X, t_start, episode)
        stride_s = _step(t_start, episode, host, samples, hz, roles["t"]) or stride_s
    unused = sorted(set(found) - set(KEYS))
    if unused:
        notes.append(f"Arrays that mean nothing here were ignored: {', '.join(unused)}.")
    if n_channels > samples and columns["channel"] is None:
        notes.append(
            f"X has {n_channels} channels of {samples} samples: if it is (windows, samples, channels), turn it with "
            "X.transpose(0, 2, 1)."
        )
    return ingested.Ingested(
        X=_as_float32(X),
        label=Coded.of(labels.of_window),
        episode=Coded.of(episode),
        host=Coded.of(host),
        t_start=t_start,
        channels=ingested.channel_specs(names, hidden.tolist(), counters=wanted.counter),
        label_names=labels.names,
        benign=labels.benign,
        sample_hz=hz or 1.0,
        stride_s=stride_s,
        timing=timing,
        source=f"{path.name}: {n:,} windows",
        roles={key: roles[key] for key in KEYS if key in found},
        rate_why="unknown: give --hz" if hz is None else "--hz",
        clock="t" if "t" in found else "",
        left_out=tuple(left_out),
        notes=tuple(notes),
    )


def _chosen(
    X: AnyArray, names: list[str], hidden: Bools, hz: float | None, wanted: Wanted, where: str
) -> tuple[AnyArray, list[str], Bools, list[str]]:
    """Return the windows with only the channels that are kept, their names, the mask of hidden ones, and notes.

    Running totals are turned into rates. Raises DataError.
    """
    unknown = [name for name in wanted.ignore if name not in names]
    if unknown:
        raise DataError(f"--ignore names {unknown[0]!r}, which is no channel of {where}.")
    keep = [number for number, name in enumerate(names) if name not in wanted.ignore]
    if not keep:
        raise DataError("--ignore leaves no channel.")
    names = [names[number] for number in keep]
    check_named(names, wanted, where)
    if len(keep) < X.shape[1]:
        X = X[:, keep]
    notes = judge_stand_ins(((name, X[:, i]) for i, name in enumerate(names)), wanted.level)
    if wanted.counter:
        if hz is None:
            raise DataError("--counter needs --hz: a rate is a change by the second.")
        X = X.astype(float)
        for name in wanted.counter:
            steps = np.diff(X[:, names.index(name)], axis=1)
            check_total(name, int((steps < 0).sum()), int(np.isfinite(steps).sum()))
            grown = np.maximum(steps, 0.0) * hz
            X[:, names.index(name)] = np.concatenate([grown[:, :1], grown], axis=1)
    return X, names, hidden[keep], notes


def _check_equal_times(X: AnyArray, t: Floats, episode: Names) -> None:
    """Raise DataError if different windows of one recording begin at the same time, as then alarms a day would be
    counted wrongly.

    Equal windows are copies, which another check handles.
    """
    order = np.lexsort((t, episode))
    before, after = order[:-1], order[1:]
    equal = (t[before] == t[after]) & (episode[before] == episode[after])
    for row, other in zip(before[equal].tolist(), after[equal].tolist(), strict=True):
        if not np.array_equal(X[row], X[other]):
            raise DataError(
                f"Two windows of the recording {str(episode[row])!r} begin at the time {t[row]:.10g}: two recordings "
                "share the id, or the times are rounded (32 bits hold dates to two minutes): fix t, or leave it out."
            )


def _as_float32(X: AnyArray) -> Floats32:
    """Return the windows as 32-bit floats; numbers too large for that become infinite, which another check refuses."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(X, np.float32)


def _step(t: Floats, episode: Names, host: Names, samples: int, hz: float | None, role: str) -> float | None:
    """Return the median step in seconds from window to window; None if there are too few steps.

    Steps are those inside episodes or, if each episode is one window, inside hosts. Raises DataError for steps that
    suggest a wrong unit of time.
    """
    times.check_one_clock(t, Coded.of(host))
    hosts, of_host = np.unique(host, return_inverse=True)
    ids, of_episode = np.unique(episode, return_inverse=True)
    single = ids.size == episode.size
    by_host = times.usual_steps(t, of_host, hosts.tolist())
    times.check_unlike_hosts(by_host)
    steps = by_host if single else times.usual_steps(t, of_episode, ids.tolist(), least=1)
    if not steps:
        return None
    step = ingested.measured(float(np.median(list(steps.values()))))
    if hz is None:
        times.check_step(step / samples, role, "The samples of windows that follow each other")
    else:
        times.check_length(samples / hz, step, role)
    return step


def _load(path: Path) -> Mapping[str, AnyArray]:
    try:
        # Opened here, because NumPy forgets to close a file that it cannot read.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}).") from None
    except (ValueError, EOFError, AttributeError, TypeError, RuntimeError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is not an archive of plain NumPy arrays ({first_line(error)}).") from None


def _column(found: Mapping[str, AnyArray], key: str, n: int) -> AnyArray | None:
    if key not in found:
        return None
    values = found[key]
    if values.shape != (n,):
        raise DataError(f"The array {key!r} has the shape {values.shape} where ({n},) is needed.")
    return values

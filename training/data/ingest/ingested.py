"""Ingested windows: their labels, episodes and missing values, and writing them as a processed data set."""

import hashlib
import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from msgspec import UNSET

from training.contract import Mode
from training.data.absent import KNOWN_MIN, Rare, notes_on_absent, rare_channels, settled
from training.data.channels import Measure
from training.data.classes import BENIGN, MALICIOUS, NO_ALARM, Benign, choose_benign, listed, quoted
from training.data.coded import Coded
from training.data.dataset import UNLABELLED, Labelling, ManyWindows, Sampling, WindowSet, write_processed
from training.data.doubts.spelling import tidy
from training.data.errors import DataError
from training.data.identity import window_digests
from training.data.missing import check_classes
from training.data.rows import CodedRows
from training.data.schema import ChannelSpec, FeatureSchema, Timing
from training.data.scratch import PART_BYTES, ROOM, WorkingMemory, blocks, fill, release
from training.data.summary import NO_WINDOW, Understood, counts_of, recordings_of
from training.data.values import AnyArray, Bools, Floats, Floats32, Ints, JsonDict, Names

NUMBERS = "0 is benign and 1 malicious-like; --benign or --labels says otherwise"
BOOLEANS = "false is benign and true malicious-like; --benign or --labels says otherwise"
SAMPLES_MIN = 4  # shorter windows have no shape to describe
EXACT = 1e-12  # share by which a step differs from another by the rounding of floats alone
UNKNOWN_HOST = "unknown"
SCENARIO = "ingested"


class Empty(NamedTuple):
    """A recording that gave no window, and the reason for that."""

    episode: str
    host: str
    started_at: float
    duration_s: float
    samples: int
    reason: str = NO_WINDOW


class Counts(NamedTuple):
    """The numbers of one recording: its samples (each counted once, also those in no window), its gaps, and the share
    of missing values."""

    samples: int
    gaps: int
    longest_gap_s: float
    nan_share: float


@dataclass(frozen=True, kw_only=True)
class Ingested:
    """N windows of T samples on C channels, with the facts about them. Arrays have length N unless noted; times are in
    seconds, or count samples, according to ``timing``."""

    X: Floats32  # (N, C, T)
    label: Coded
    episode: Coded
    host: Coded
    t_start: Floats
    channels: tuple[ChannelSpec, ...]
    label_names: tuple[str, ...]  # in the order of their class numbers, which means nothing else
    benign: Benign
    sample_hz: float
    stride_s: float
    timing: Timing = Timing.SECONDS
    source: str = ""  # what was read, in a few words
    roles: dict[str, str] = field(default_factory=dict)  # what columns or arrays mean
    rate_why: str = ""
    clock: str = ""  # of t_start; empty: there is none
    gaps: int = 0  # inside recordings, where the samples show them
    missing: int = 0  # values, before windows were left out for them
    left_out: tuple[str, ...] = ()  # sentences
    empty: tuple[Empty, ...] = ()  # recordings that gave no window
    notes: tuple[str, ...] = ()  # what was assumed, one sentence each
    counts: Mapping[str, Counts] = field(default_factory=dict)  # by episode, where windows were cut from samples
    stand_ins: tuple[str, ...] = ()  # numbers that --missing said to be none
    reference: WindowSet | None = None  # of the hosts' own references

    @property
    def window_s(self) -> float:
        return int(self.X.shape[2]) / self.sample_hz

    @property
    def t_end(self) -> Floats:
        """The times (N,) at which windows end; NaN without a clock and rate, and the windows' starts if only the rate
        is unknown."""
        if self.timing is Timing.SECONDS:
            return self.t_start + self.window_s
        return self.t_start + (np.nan if self.timing is Timing.NONE else 0.0)

    @property
    def rows(self) -> CodedRows:
        episode, host, label = map(Coded.of, (self.episode, self.host, self.label))
        return CodedRows(episode=episode, host=host, t_start=self.t_start, t_end=self.t_end, label=label)

    def take(self, keep: Bools, X: Floats32) -> Self:
        """Return the windows that the mask ``keep`` (N,) selects, with ``X`` as their values."""
        return replace(
            self,
            X=X,
            label=self.label.take(keep),
            episode=self.episode.take(keep),
            host=self.host.take(keep),
            t_start=self.t_start[keep],
        )


def channel_specs(
    names: Sequence[str], oracle: Sequence[bool], counters: Sequence[str] = ()
) -> tuple[ChannelSpec, ...]:
    """Return the channels with these names; ``oracle`` marks those hidden from the realistic mode, and ``counters``
    names those that are rates of totals."""
    return tuple(
        ChannelSpec(
            name=name,
            unit="1/s" if name in counters else "",
            kind=str(Measure.COUNTER if name in counters else Measure.GAUGE),
            modes=(str(Mode.ORACLE),) if hidden else (str(Mode.ORACLE), str(Mode.REALISTIC)),
        )
        for name, hidden in zip(names, oracle, strict=True)
    )


def measured(seconds_or_hz: float) -> float:
    """Return a rate or step that was computed from time stamps, rounded to six significant digits.

    Further digits are rounding errors of the stamps. The rate becomes part of the schema, and two files of one recorder
    must have equal schemas.
    """
    return float(f"{seconds_or_hz:.6g}")


def rate_of_step(step_s: float) -> float:
    """Return the sampling rate for a step, rounded by :func:`measured`. Of a step over a second, the step is rounded if
    a rounded rate would change it (0.00333333 Hz is not 300 s)."""
    hz, step = measured(1 / step_s), measured(step_s)
    return hz if step <= 1 or abs(hz * step - 1) < EXACT else 1 / step


def own_episodes(X: AnyArray, channels: Sequence[str]) -> Names:
    """Return an episode name (N,) for each window of ``X`` (N, C, T), for data that do not tell which windows belong
    together.

    The name is a digest of the window's content, because a number would mean another window in the next export; copies
    are numbered.
    """
    counts: Counter[int] = Counter()
    names = []
    for digest in window_digests(np.asarray(X, np.float32), channels).tolist():
        names.append(f"window-{digest:016x}" + (f"-{counts[digest]}" if counts[digest] else ""))
        counts[digest] += 1
    return np.array(names)


class SaidClasses(NamedTuple):
    """The user's flags about classes. ``labels`` has the names in the order of their numbers, ``benign`` those without
    alarm, and ``unlabelled`` the labels that mean "no label"."""

    labels: tuple[str, ...] = ()
    benign: tuple[str, ...] = ()
    no_benign: bool = False
    unlabelled: tuple[str, ...] = ()
    all_labelled: bool = False
    hint: str = ""  # to the refusal of classes of which none is benign


NOTHING_SAID = SaidClasses()
NOT_LABELLED = Benign(names=(UNLABELLED,), why="nothing is labelled")


FOR_SCORING = "There are no labels: training.trainer.score takes this data set, and no trainer does."


def check_says_nothing(said: SaidClasses, where: str) -> None:
    """Raise DataError if the user gave flags about classes; called for data without labels, which ``where`` names in
    the error."""
    flags = ("labels", "benign", "no_benign", "unlabelled", "all_labelled")
    given = [flag.replace("_", "-") for flag in flags if getattr(said, flag)]
    if given:
        raise DataError(
            f"{where} has no labels, so --{given[0]} has no effect: leave it out, or (of a table) say --label NAME."
        )


class Labels(NamedTuple):
    """The class name of each window (or sample), the names of all classes in the order of their numbers, and the benign
    ones."""

    of_window: Names
    names: tuple[str, ...]
    benign: Benign


def name_labels(y: AnyArray, said: SaidClasses = NOTHING_SAID) -> Labels:
    """Return the class name of each label in ``y`` (N,), and the classes. Raises DataError.

    If all labels are the number 0 or 1, or booleans, they mean benign and malicious unless the user's flags say
    otherwise. Other numbers become names, unless ``--labels`` names them. Without ``--labels``, classes other than 0
    and 1 are in ascending order, the benign ones before the others.
    """
    if y.ndim != 1:
        raise DataError(f"y must have one label a window, but its shape is {y.shape}.")
    if y.dtype.kind in "fiub":
        if y.dtype.kind == "f" and (unknown := int(np.isnan(y).sum())):
            raise DataError(
                f"{unknown:,} of {y.size:,} labels are empty (nan): label them, or leave them out with "
                "--unlabelled nan."
            )
        with np.errstate(invalid="ignore"):
            numbers = y.astype(int)
        if not np.array_equal(numbers, y):
            raise DataError(
                "The labels are numbers that are not whole: in a table, name another column with --label, or leave "
                "this one out with --ignore, and bring a log of incidents with --labels-from."
            )
        return _name_numbers(numbers, said, is_bool=y.dtype.kind == "b")
    labels = tidy(y.astype(str), "label")
    found = np.unique(labels).tolist()
    if said.labels:
        unnamed = sorted(set(found) - set(said.labels))
        if unnamed:
            raise DataError(f"The label {unnamed[0]!r} is not among those of --labels.")
        found = list(said.labels)
    elif not said.all_labelled:
        check_classes(found, said.benign)
    return _with_benign(labels, found, said)


def _name_numbers(numbers: Ints, said: SaidClasses, *, is_bool: bool) -> Labels:
    present = np.unique(numbers)
    names = said.labels
    if names and present[0] < 0:
        raise DataError(
            f"The labels hold the class number {present[0]}, and --labels names numbers from 0 on: leave that out, "
            f"or say --unlabelled={present[0]} if that means a missing label."
        )
    if not names and not said.all_labelled:
        check_classes([str(number) for number in present], said.benign)
    if not names:
        if present[0] < 0 or present[-1] > 1:
            return _with_benign(numbers.astype(str), [str(number) for number in present], said)
        if not said.no_benign and set(said.benign) <= {BENIGN, MALICIOUS}:
            chosen = Benign(
                names=said.benign or (BENIGN,), why="--benign" if said.benign else (BOOLEANS if is_bool else NUMBERS)
            )
            return Labels(np.array((BENIGN, MALICIOUS))[numbers], (BENIGN, MALICIOUS), chosen)
        names = ("false", "true") if is_bool else ("0", "1")
    if present[-1] >= len(names):
        raise DataError(
            f"The labels hold the class number {present[-1]}, but {len(names)} labels are named: name it, or say "
            f"--unlabelled {present[-1]} if that means a missing label."
        )
    return _with_benign(np.array(names)[numbers], names, said)


def _with_benign(labels: Names, names: Sequence[str], said: SaidClasses) -> Labels:
    chosen = choose_benign(names, said.benign, none=said.no_benign, hint=said.hint)
    if not said.labels:
        names = sorted(names, key=lambda name: name not in chosen.names)  # stable
    return Labels(labels, tuple(names), chosen)


def unite(host: Names, episode: Names) -> Names:
    """Return a recording name for each window: its episode; if two hosts share any episode id, ``host/episode`` for all
    windows."""
    pairs, place = np.unique(np.stack([host, episode]), axis=1, return_inverse=True)
    if np.unique(pairs[1]).size == pairs.shape[1]:
        return episode
    known = [(str(h), str(e)) for h, e in pairs.T]
    names = [f"{h}/{e}" for h, e in known]
    if len(set(names)) < len(names):  # a + b/c and a/b + c: a host without a slash makes them two again
        names = [f"{h.replace('%', '%25').replace('/', '%2F')}/{e}" for h, e in known]
    return np.array(names)[place.reshape(-1)]


def following(episode: Names, window_s: float) -> Floats:
    """Return a start for each window of data without times: the windows of an episode follow each other, from 0 on."""
    order = np.lexsort((np.arange(episode.size), episode))
    same = episode[order][1:] == episode[order][:-1]
    place = np.arange(episode.size)
    run = place - np.maximum.accumulate(np.where(np.r_[True, ~same], place, 0))
    start = np.empty(episode.size)
    start[order] = run * window_s
    return start


def without_missing(windows: Ingested, *, most: float, drop: bool, room: WorkingMemory) -> Ingested:
    """Return the windows without those that lack more than the share ``most`` of their values, with notes.

    In the windows that are kept, a channel with gaps is interpolated or becomes absent (:func:`settled`). A channel
    without any value on a host is absent there, and does not count as missing. Raises DataError for a channel that
    never has enough values for a window, or if no window is left. With ``drop``, windows with infinite values are left
    out; without ``drop``, they raise DataError.
    """
    X, names = windows.X, [channel.name for channel in windows.channels]
    samples = X.shape[2]
    if 1 < samples < SAMPLES_MIN:
        raise DataError(f"The windows have {samples} samples; at least {SAMPLES_MIN} are needed.")
    gone = np.empty(X.shape[:2], np.min_scalar_type(samples))  # of each channel's samples
    infinite = np.zeros(len(X), bool)
    for start, part in blocks(X, room.part_bytes):
        gone[start : start + len(part)] = np.isnan(part).sum(axis=2)
        infinite[start : start + len(part)] = np.isinf(part).any(axis=(1, 2))
    if infinite.any() and not drop:
        channel = names[int(np.flatnonzero(np.isinf(X[infinite.argmax()]).any(axis=1))[0])]
        raise DataError(
            f"{infinite.sum():,} of {len(X):,} windows hold infinite values (or larger ones than 32 bits can hold), "
            f"first in the channel {channel!r}: fix them, or leave these windows out with --drop-nan."
        )
    if not gone.any() and not infinite.any():
        return windows
    empty = [name for name, least in zip(names, gone.min(axis=0).tolist(), strict=True) if least == samples]
    if empty:
        raise DataError(f"No window has a value of the channel {empty[0]!r}: leave it out with --ignore {empty[0]}.")
    rare = rare_channels(names, windows.host, gone, samples)
    lost = [one for one in rare if one.share == 1 and not one.hosts]
    if lost:
        ignored = shlex.quote(",".join(quoted(one.channel) for one in lost))
        first = _said_rare(lost[0], windows)
        raise DataError(f"{first}, or leave {'it' if len(lost) == 1 else 'all such'} out with --ignore {ignored}.")
    keep = ~infinite & _known_enough(gone, samples, windows.host, most)
    limit = (
        f"values missing{' or infinite' if infinite.any() else ''}"
        if drop
        else f"more than {100 * most:.0f} % of the values missing"
    )
    if not keep.any():
        if rare:
            raise DataError(f"Nothing is left: {_said_rare(rare[0], windows)}, or leave it out with --ignore.")
        raise DataError(
            f"Nothing is left: each window has {limit}: allow more with --max-missing, or --ignore channels."
        )
    out = (
        []
        if keep.all()
        else [f"{_by_class(windows.label, ~keep)}: {limit} ({'--drop-nan' if drop else '--max-missing'})"]
    )
    said = notes_on_absent(names, windows.label, windows.host, gone, samples)
    parts = (settled(part[keep[start : start + len(part)]]) for start, part in blocks(X, room.part_bytes))
    X = room.empty((int(keep.sum()), *X.shape[1:]), np.float32)
    fill(X, parts)
    return replace(
        windows.take(keep, X),
        left_out=(*windows.left_out, *out),
        notes=(*windows.notes, *said, *(f"{_said_rare(one, windows)}." for one in rare)),
    )


def _said_rare(one: Rare, windows: Ingested) -> str:
    """Return words, without a full stop, that explain why windows lack values of a channel, and the remedy."""
    samples, timed = windows.X.shape[2], windows.timing is Timing.SECONDS
    of = f" of {'the hosts' if len(one.hosts) > 1 else 'the host'} {listed(one.hosts)}" if one.hosts else ""
    share = "all" if one.share == 1 else f"{100 * min(one.share, 0.999):.1f} % of them"
    if not one.every:
        return f"{one.channel}{of} has values in few windows, too few in {share}: bring more of its samples"
    step = one.every / windows.sample_hz
    each = f"{'' if one.even else 'about '}each {step:.6g} s" if timed else f"in 1 of {one.every} samples"
    help_ = "bring windows with more of its samples"
    if windows.counts:  # they were cut here, at a rate that can be chosen
        longer = f" --window-s {SAMPLES_MIN * step:.6g}" if samples < SAMPLES_MIN * one.every else ""
        help_ = f"say --hz {1 / step:.6g}{longer}"
    return (
        f"{one.channel}{of} has a value {each} only, too few for windows of {samples} samples, and is missing in "
        f"{share}: {help_}"
    )


def _known_enough(gone: AnyArray, samples: int, host: Coded, most: float) -> Bools:
    """Return a mask of the windows to keep: those that lack at most the share ``most`` of the values of their host's
    channels, and keep at least one channel."""
    of_host = host.codes
    least = np.full((of_host.max() + 1, gone.shape[1]), samples)
    np.minimum.at(least, of_host, gone)
    keep = np.empty(len(gone), bool)
    for start, part in blocks(gone, PART_BYTES // 8):  # as shares they take eight times as much
        here = slice(start, start + len(part))
        has, share = least[of_host[here]] < samples, part / samples
        missing = np.where(has, share, 0.0).sum(axis=1) / has.sum(axis=1).clip(min=1)
        keep[here] = (missing <= most) & ~((samples - part) / samples < KNOWN_MIN).all(axis=1)
    return keep


def _by_class(label: Coded, out: Bools) -> str:
    # Gaps that lie in one class tell that class, or leave nothing of it.
    lost, total = np.bincount(label.codes[out], minlength=label.names.size), np.bincount(label.codes)
    of = " and ".join(
        f"{lost[number]:,} of {total[number]:,} of {label.names[number]}" for number in np.flatnonzero(lost).tolist()
    )
    return f"{out.sum():,} windows ({of})"


def described(windows: Ingested) -> tuple[list[JsonDict], Understood]:
    """Return the rows of the validation table, and the summary of how the data were read."""
    rows = _validation_rows(windows)
    return rows, understand(windows, rows)


def write(
    windows: Ingested, rows: list[JsonDict], understood: Understood, out_dir: Path, room: WorkingMemory = ROOM
) -> FeatureSchema:
    """Write the windows as a data set, with the rows and the summary from :func:`described`; return its schema. Raises
    DataError."""
    binary = windows.label_names == (BENIGN, MALICIOUS) and windows.benign.names == (BENIGN,)
    target = "malicious" if binary else "phase"
    if not windows.benign.names:
        target = NO_ALARM
    return write_processed(
        out_dir,
        ManyWindows(X=windows.X, rows=windows.rows),
        Sampling(
            channels=windows.channels,
            sample_hz=windows.sample_hz,
            window_s=windows.window_s,
            stride_s=windows.stride_s,
            time=windows.timing,
        ),
        Labelling(target=target, names=windows.label_names, benign=windows.benign.names),
        validation_rows=rows,
        reference=windows.reference,
        understood=understood,
        progress=lambda share: room.progress("writing", share),
    )


def understand(windows: Ingested, rows: Sequence[JsonDict]) -> Understood:
    """Return the summary of how each part of the data was read; ``rows`` are those of the validation table."""
    start, timed = windows.t_start, windows.timing is Timing.SECONDS
    end = float((start if windows.timing is Timing.NONE else windows.t_end).max())
    return Understood(
        source=windows.source,
        roles=windows.roles,
        channels=tuple(channel.name for channel in windows.channels),
        oracle_only=tuple(c.name for c in windows.channels if Mode.REALISTIC not in c.modes),
        hosts=counts_of(windows.host, sorted({str(row["host"]) for row in rows})),
        recordings_of=dict(Counter(sorted(str(row["host"]) for row in rows))),
        **recordings_of(rows),
        classes=counts_of(windows.label, windows.label_names),
        benign=windows.benign.names,
        benign_why=windows.benign.why,
        window_samples=int(windows.X.shape[2]),
        sample_hz=windows.sample_hz if timed else None,
        window_s=windows.window_s if timed else None,
        stride_s=None if windows.timing is Timing.NONE else windows.stride_s,
        rate_why=windows.rate_why,
        clock=windows.clock,
        span=(float(start.min()), end) if windows.clock else None,
        gaps=windows.gaps,
        missing=windows.missing,
        left_out=windows.left_out,
        notes=windows.notes,
        stand_ins=windows.stand_ins or UNSET,
    )


def _validation_rows(windows: Ingested) -> list[JsonDict]:
    episodes = Coded.of(windows.episode)
    ids, order = episodes.names, np.argsort(episodes.codes, kind="stable")
    timed = windows.timing is Timing.SECONDS
    rows = []
    for number, members in enumerate(np.split(order, np.cumsum(np.bincount(episodes.codes))[:-1])):
        start = windows.t_start[members]
        digest = hashlib.sha256()
        for _, some in blocks(members, PART_BYTES // windows.X.shape[1] // windows.X.shape[2]):
            digest.update(windows.X[some].tobytes())
            release(windows.X)
        for at, some in blocks(members, PART_BYTES // 64):
            digest.update(("\0" * bool(at) + "\0".join(windows.label.strings(some).tolist())).encode())
        found = windows.counts.get(name := str(ids[number]))
        known = {"samples": int(members.size * windows.X.shape[2])} if found is None else found._asdict()
        rows.append(
            _validation_row(name, windows.host[int(members[0])], float(start.min()), windows=int(members.size))
            | known
            | {
                "duration_s": float(windows.t_end[members].max() - start.min()) if timed else None,
                "sample_hz": windows.sample_hz if timed else None,
                "label_coverage": 0.0 if windows.label.names.tolist() == [UNLABELLED] else 1.0,
                "digest": digest.hexdigest(),
            }
        )
    for one in windows.empty:
        more = {"duration_s": one.duration_s, "sample_hz": windows.sample_hz, "samples": one.samples}
        rows.append(_validation_row(one.episode, one.host, one.started_at, reasons=[one.reason], **more))
    return rows + _reference_rows(windows, {str(row["episode_id"]) for row in rows})


def _reference_rows(windows: Ingested, known: Collection[str]) -> list[JsonDict]:
    """Return a validation row for each recording that has only windows of references; ``known`` has the ids of the
    others."""
    if windows.reference is None:
        return []
    own = windows.reference.rows
    ids, first = np.unique(own.episode, return_index=True)
    return [
        _validation_row(name, str(own.host[place]), float(own.t_start[own.episode == name].min()), baseline=True)
        for name, place in zip(ids.tolist(), first.tolist(), strict=True)
        if name not in known
    ]


def _validation_row(episode: str, host: str, started_at: float, **more: Any) -> JsonDict:
    """Return a row of the validation table; ``more`` replaces the usual values of other columns."""
    usual = {"scenario": SCENARIO, "baseline": False, "windows": 0, "ok": True, "reasons": []}
    return {"episode_id": episode, "host": host, "started_at": started_at, **usual, **more}

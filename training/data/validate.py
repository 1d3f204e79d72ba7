"""Judge episodes before they are used for training.

Each check is a small function that takes an episode and yields reasons against its use, one sentence each. An episode
with a reason is quarantined: it gives no windows, and training reports have the number of quarantined episodes. Checks
that compare episodes are in `cross_episode_checks`.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from training.contract import Mode
from training.data.channels import Measure
from training.data.episode import SCHEMA_VERSION, Episode, Meta
from training.data.identity import digest_of_recording, sketch_of_recording
from training.data.missing import StandIn, stand_in
from training.data.values import JsonDict
from training.data.windows import gap_limit_s

NAN_SHARE_MAX = 0.05
GAP_SHARE_MAX = 0.20
RATE_SHARE_MIN = 0.80
LABEL_COVERAGE_MIN = 0.95
FALLING_SHARE_MAX = 0.01
SAMPLES_MIN = 16
SECONDS_MAX = 1e11  # since 1970: the year 5138
LATE_LABEL = 2.0  # times the recording's end: a label beyond counts in another unit
CLASSES = ("benign", "malicious")

Finding = Callable[[Episode], Iterator[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeFindings:
    """The findings on one episode: the values of its row in the validation table, and its meta data (None if the
    episode cannot be read)."""

    episode_id: str
    meta: Meta | None
    reasons: tuple[str, ...]
    digest: str = ""
    content: str = ""  # digest of the samples alone
    sketch: bytes = b""  # of the samples' steps, by which parts of recordings are known: eight bytes an entry
    labelling: str = ""  # digest of the labels alone
    samples: int = 0
    gaps: int = 0
    longest_gap_s: float = 0.0
    nan_share: float = 0.0
    label_coverage: float = 0.0
    undeclared: tuple[str, ...] = ()  # columns that are no channels
    doubtful: tuple[str, ...] = ()  # channels that repeat a value which may say that nothing was measured

    @property
    def ok(self) -> bool:
        return not self.reasons

    @property
    def is_reference(self) -> bool:
        return self.meta is not None and self.meta.baseline

    def row(self, windows: int) -> JsonDict:
        """Return this episode's row of ``validation_v1.parquet``; ``windows`` is the number of its windows."""
        meta = ("host", "scenario", "baseline", "started_at", "duration_s", "sample_hz")
        own = ("episode_id", "samples", "gaps", "longest_gap_s", "nan_share", "label_coverage", "ok", "digest")
        return {
            **{name: getattr(self.meta, name, None) for name in meta},
            **{name: getattr(self, name) for name in own},
            "windows": windows,
            "reasons": list(self.reasons),
            "undeclared": list(self.undeclared),
        }


def unreadable(episode_id: str, reason: str) -> EpisodeFindings:
    return EpisodeFindings(episode_id=episode_id, meta=None, reasons=(f"It cannot be read: {reason}.",))


def judge(episode: Episode, name: str) -> EpisodeFindings:
    """Return the findings of all checks on an episode; if `_time` finds a fault, only those of `_identity` and `_time`.

    ``name`` is the id in the name of the episode's folder or file.
    """
    reasons = list(_identity(episode.meta, name))
    fatal = list(_time(episode))
    found = EpisodeFindings(
        episode_id=name, meta=episode.meta, reasons=(*reasons, *fatal), digest=episode.digest, samples=len(episode.t)
    )
    if fatal:
        return found
    for finding in FINDINGS:
        reasons += finding(episode)
    steps = np.diff(episode.t)
    names = [channel.name for channel in episode.meta.channels]
    return replace(
        found,
        reasons=tuple(reasons),
        content=digest_of_recording(episode.values, names),
        sketch=np.array(sketch_of_recording(episode.values, names), "<u8").tobytes(),
        labelling=_labelling(episode),
        gaps=int((steps > gap_limit_s(episode.meta.sample_hz)).sum()),
        longest_gap_s=float(steps.max()),
        nan_share=float(np.isnan(episode.values).mean()),
        label_coverage=_label_coverage(episode),
        undeclared=episode.undeclared,
        doubtful=tuple(f"{one.channel} ({one.value:.10g})" for one in _found(episode) if not one.sure),
    )


def _identity(meta: Meta, name: str) -> Iterator[str]:
    if meta.schema_version != SCHEMA_VERSION:
        yield f"Its schema version is {meta.schema_version}; this program reads {SCHEMA_VERSION}."
    if meta.episode_id != name:
        yield f"Its meta data call it {meta.episode_id}, its file {name}."
    if not meta.host.strip():
        yield "It names no host."
    kinds, modes = [str(k) for k in Measure], [str(m) for m in Mode]
    for channel in meta.channels:
        if channel.kind not in kinds:
            yield f"The kind of its channel {channel.name} is {channel.kind!r}, not gauge or counter."
        if not channel.modes or any(m not in modes for m in channel.modes):
            yield f"The modes of its channel {channel.name} are {channel.modes}, not realistic or oracle."
    if len({c.name for c in meta.channels}) != len(meta.channels):
        yield "It declares a channel twice."


def _time(episode: Episode) -> Iterator[str]:
    """Yield the first fault of an episode's times, or that it has too few samples or no channels. After a fault found
    here, the checks of values and labels would mean nothing."""
    meta, t = episode.meta, episode.t
    if not (0 < meta.sample_hz < 10_000 and meta.duration_s > 0 and meta.started_at >= 0):
        yield "Its sampling rate, duration or start is not a sensible number."
        return
    if len(t) < SAMPLES_MIN:
        yield f"It holds {len(t)} samples; at least {SAMPLES_MIN} are needed."
    elif not np.isfinite(t).all() or (np.diff(t) <= 0).any():
        yield "Its time does not run forward."
    elif not episode.meta.channels:
        yield "It has no channels."
    elif t[0] > meta.duration_s:
        yield (
            f"Its times begin at {t[0]:,.0f} s, but it lasts {meta.duration_s:g} s: they do not count from its start."
        )
    elif meta.started_at > SECONDS_MAX:
        yield f"Its start is {meta.started_at:.0f}, which is no number of seconds since 1970."


def _sampling(episode: Episode) -> Iterator[str]:
    meta, t = episode.meta, episode.t
    expected = meta.duration_s * meta.sample_hz
    if len(t) < RATE_SHARE_MIN * expected:
        yield f"It holds {len(t)} of the {expected:.0f} samples that its rate and duration promise."
    steps = np.diff(t)
    lost = steps[steps > gap_limit_s(meta.sample_hz)].sum() / (t[-1] - t[0])
    if lost > GAP_SHARE_MAX:
        yield f"{100 * lost:.0f} % of its time lies in gaps."


def _values(episode: Episode) -> Iterator[str]:
    if np.isinf(episode.values).any():
        yield "It holds infinite values."
    # A channel without any value is one that the host lacks, which is no damage.
    measured = episode.values[:, ~np.isnan(episode.values).all(axis=0)]
    if not measured.size:
        yield "It holds no value at all."
        return
    share = float(np.isnan(measured).mean())
    if share > NAN_SHARE_MAX:
        yield f"{100 * share:.0f} % of its values are missing."
    with np.errstate(invalid="ignore"):
        if (np.nanmax(measured, axis=0) == np.nanmin(measured, axis=0)).all():
            yield "Nothing in it ever changes: the recorder was not looking at anything."


def _stand_ins(episode: Episode) -> Iterator[str]:
    for one in _found(episode):
        if one.sure:
            yield (
                f"Its channel {one.channel} repeats {one.value:.10g}, far from all its other values: leave empty what "
                "was not measured."
            )


def _found(episode: Episode) -> list[StandIn]:
    """Return the values that may mean "not measured"; in a counter only negative ones, as a counter may stay at any
    other value."""
    found = [stand_in(c.name, episode.values[:, i]) for i, c in enumerate(episode.meta.channels)]
    counters = {c.name for c in episode.meta.channels if c.kind == Measure.COUNTER}
    return [one for one in found if one and (one.value < 0 or one.channel not in counters)]


def _counters(episode: Episode) -> Iterator[str]:
    for i, channel in enumerate(episode.meta.channels):
        if channel.kind == Measure.COUNTER:
            counted = episode.values[np.isfinite(episode.values[:, i]), i]
            # Sums of floating-point seconds may fall by a rounding error; a broken counter falls by more.
            noise = 1e-9 * max(1.0, np.abs(counted).max(initial=0.0))
            if len(counted) > 1 and (np.diff(counted) < -noise).mean() > FALLING_SHARE_MAX:
                yield f"Its counter {channel.name} keeps falling."


def _labels(episode: Episode) -> Iterator[str]:
    if not len(episode.label_t):
        yield "It has no labels."
        return
    if not np.isfinite(episode.label_t).all() or (np.diff(episode.label_t) < 0).any():
        yield "The times of its labels do not ascend."
        return
    coverage = _label_coverage(episode)
    if coverage < LABEL_COVERAGE_MIN:
        yield f"Its labels cover only {100 * coverage:.0f} % of its time."
    if episode.label_t[-1] > LATE_LABEL * episode.t[-1]:
        yield (
            f"Its labels reach to {episode.label_t[-1]:,.0f} s, but it ends at {episode.t[-1]:,.0f} s: they do "
            "not count seconds from its start."
        )
    for phase in dict.fromkeys(episode.label_phase):
        if episode.meta.phases.get(phase) not in CLASSES:
            yield f"Its meta data do not say whether the phase {phase!r} is benign or malicious."
    if episode.meta.baseline and any(c == "malicious" for c in episode.meta.phases.values()):
        yield "It is a reference, yet it has a malicious phase."


def _labelling(episode: Episode) -> str:
    """Return the SHA-256 of an episode's labels: their times, their phases, and the class of each phase."""
    said = [(p, episode.meta.phases.get(p)) for p in episode.label_phase]
    return hashlib.sha256(f"{episode.label_t.tolist()}{said}".encode()).hexdigest()


FINDINGS = (_sampling, _values, _stand_ins, _counters, _labels)


def _label_coverage(episode: Episode) -> float:
    if not len(episode.label_t):
        return 0.0
    first, last = episode.t[0], episode.t[-1]
    return float(min(1.0, max(0.0, (last - episode.label_t[0]) / (last - first))))

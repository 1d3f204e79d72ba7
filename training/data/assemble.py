"""Windows of extracted episodes: the choice of channels, the hosts' references, the labels."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from training.data import normalise
from training.data.channels import CHANNELS, UNLIKE, view_of
from training.data.classes import BENIGN, MALICIOUS, benign_of
from training.data.dataset import REFERENCE, WindowSet
from training.data.episode import Meta
from training.data.errors import DataError
from training.data.extract import Extract
from training.data.rows import Rows
from training.data.schema import ChannelSpec, FeatureSchema
from training.data.windows import class_spans, place_windows


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a build.

    ``like``: an existing schema that the result must have, to score new recordings with a model.
    """

    window_s: float = 4.0
    stride_s: float = 2.0
    target: str = "malicious"
    jobs: int = 1
    like: FeatureSchema | None = None


def _meta(extracted: Extract) -> Meta:
    assert extracted.verdict.meta is not None, "a good episode has been read"
    return extracted.verdict.meta


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The channels of a data set, in the order of the channel table.

    ``views``: the view whose meaning a channel has, where recordings of several were put together or the schema says
    so; in recordings of another view it is absent. ``dropped``: names of channels that the schema does not have.
    """

    channels: tuple[ChannelSpec, ...]
    views: dict[str, str]
    dropped: list[str]

    def has(self, meta: Meta, name: str) -> bool:
        """Tell whether a recording's channel means what the data set's does."""
        return self.views.get(name, meta.view) == meta.view


def choose_channels(good: Sequence[Extract], like: FeatureSchema | None) -> Chosen:
    """The channels that some good episode has, or those of the schema."""
    everything = {c.name: c for e in good for c in _meta(e).channels}
    if like is not None:
        view = view_of(like.channel_names)
        views = like.views or ({} if view is None else {name: str(view) for name in UNLIKE & set(like.channel_names)})
        return Chosen(channels=like.channels, views=views, dropped=sorted(set(everything) - set(like.channel_names)))
    table = list(CHANNELS)
    ordered = sorted(everything, key=lambda n: (table.index(n) if n in CHANNELS else len(table), n))
    specs = []
    for name in ordered:
        info = everything[name]
        unit = f"{info.unit}/s" if info.kind == "counter" else info.unit
        specs.append(
            ChannelSpec(
                name=name,
                unit=unit,
                kind=info.kind,
                modes=tuple(sorted(info.modes)),
                transform="symlog",
                scale=normalise.scale_of(unit),
            )
        )
    return Chosen(channels=tuple(specs), views=_views(good, everything), dropped=[])


def _views(good: Sequence[Extract], names: Collection[str]) -> dict[str, str]:
    """The view of the most hosts, for channels by which views mean two things; none where all have one view."""
    hosts = {(_meta(e).view, _meta(e).host) for e in good}
    counts = Counter(view for view, _ in hosts)
    if len(counts) < 2:
        return {}
    most = max(sorted(counts), key=lambda view: counts[view])
    return dict.fromkeys(sorted(UNLIKE & set(names)), most)


def _values(extracted: Extract, chosen: Chosen) -> np.ndarray:
    """The episode's compressed grid (G, C), with the data set's channels in its order; NaN for those it lacks."""
    assert extracted.grid is not None
    meta = _meta(extracted)
    places = {c.name: i for i, c in enumerate(meta.channels) if chosen.has(meta, c.name)}
    found = extracted.grid.values
    values = np.full((len(found), len(chosen.channels)), np.nan, dtype=np.float32)
    for place, channel in enumerate(chosen.channels):
        if channel.name in places:
            values[:, place] = found[:, places[channel.name]]
    return normalise.compress(values, chosen.channels)


def measure_references(good: Sequence[Extract], chosen: Chosen, sample_hz: float) -> normalise.References:
    recordings: dict[str, list[np.ndarray]] = defaultdict(list)
    for extracted in good:
        if _meta(extracted).baseline and extracted.grid is not None:
            recordings[_meta(extracted).host].append(_values(extracted, chosen)[~extracted.grid.holes])
    return normalise.measure(recordings, chosen.channels, sample_hz)


def label_names(good: Sequence[Extract], options: Options) -> list[str]:
    if options.like is not None:
        return sorted(options.like.label_map, key=options.like.label_map.__getitem__)
    if options.target == "malicious":
        return [BENIGN, MALICIOUS]
    return sorted({p for e in good if not _meta(e).baseline for p in e.label_phase})


def benign_names(good: Sequence[Extract], options: Options) -> tuple[str, ...]:
    """The classes that raise no alarm, as the recordings declare their phases. Raises DataError where they disagree."""
    if options.like is not None:
        return benign_of(options.like)
    if options.target == "malicious":
        return (BENIGN,)
    kinds: dict[str, set[str]] = defaultdict(set)
    for extracted in good:
        if not _meta(extracted).baseline:
            for phase in set(extracted.label_phase):
                kinds[phase].add(_meta(extracted).phases[phase])
    if odd := sorted(phase for phase, said in kinds.items() if len(said) > 1):
        raise DataError(
            f"The phase {odd[0]!r} is benign in some episodes and malicious in others: "
            "declare it alike in each meta.json."
        )
    return tuple(sorted(phase for phase, said in kinds.items() if said == {BENIGN}))


def reference_windows(
    good: Sequence[Extract],
    chosen: Chosen,
    references: normalise.References,
    sample_hz: float,
    options: Options,
) -> WindowSet | None:
    """Windows of the hosts' own references, or None when there is none that a window fits into."""
    recorded = [e for e in good if _meta(e).baseline]
    try:
        return cut_windows(recorded, chosen, references, sample_hz, options, of_references=True)[0]
    except DataError:
        return None


def _spans(
    extracted: Extract, options: Options, *, of_references: bool = False
) -> list[tuple[float, float, str | None]]:
    phases = _meta(extracted).phases
    classes: list[str | None] = [
        REFERENCE if of_references else (phases[p] if options.target == "malicious" else p)
        for p in extracted.label_phase
    ]
    return class_spans(extracted.label_t, classes, extracted.end_s)


def too_short(good: Sequence[Extract], sample_hz: float, options: Options) -> list[str]:
    """Sentences on the stretches of each class that no window fits into."""
    all_of: Counter[str] = Counter()
    short: Counter[str] = Counter()
    for extracted in good:
        if _meta(extracted).baseline:
            continue
        for begin, end, name in _spans(extracted, options):
            if name is not None:
                all_of[name] += 1
                short[name] += end - begin < options.window_s - 1 / sample_hz
    return [
        f"{short[name]:,} of {all_of[name]:,} stretches of {name}: shorter than a window of {options.window_s:g} s"
        for name in sorted(short)
        if short[name]
    ]


def cut_windows(
    good: Sequence[Extract],
    chosen: Chosen,
    references: normalise.References,
    sample_hz: float,
    options: Options,
    *,
    of_references: bool = False,
) -> tuple[WindowSet, Counter[str]]:
    """All windows, episode by episode in the order of their ids; and how many each episode gave.

    Of recordings that are no references, or only of those that are.
    """
    window, stride = round(options.window_s * sample_hz), round(options.stride_s * sample_hz)
    if window < 4 or stride < 1:
        raise DataError(f"At {sample_hz:g} Hz, {options.window_s:g} s is too short for a window (or its stride).")
    parts: list[np.ndarray] = []
    rows: list[tuple[str, str, float, float, str]] = []
    counts: Counter[str] = Counter()
    for extracted in good:
        meta, grid = _meta(extracted), extracted.grid
        if meta.baseline is not of_references or grid is None:
            continue
        spans = _spans(extracted, options, of_references=of_references)
        values = normalise.apply(_values(extracted, chosen), meta.host, references)
        for place in place_windows(grid, spans, window, stride):
            parts.append(values[place.row : place.row + window].T)
            start = meta.started_at + grid.start_s + place.row / sample_hz
            rows.append((meta.episode_id, meta.host, start, start + window / sample_hz, place.label))
            counts[meta.episode_id] += 1
    if not parts:
        raise DataError(f"No episode is long enough for a window of {options.window_s:g} s with a single label.")
    episode, host, start_s, end_s, label = zip(*rows, strict=True)
    known = Rows.of(episode=episode, host=host, t_start=start_s, t_end=end_s, label=label)
    return WindowSet(X=np.stack(parts).astype(np.float32), rows=known), counts

"""Make windows from extracted episodes: choose the channels, compute the hosts' resting levels, assign the labels."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from training.contract import Mode
from training.data import normalise
from training.data.channels import CHANNELS, UNLIKE, view_of
from training.data.classes import BENIGN, MALICIOUS, benign_of
from training.data.dataset import REFERENCE
from training.data.episode import Meta
from training.data.errors import DataError
from training.data.executors.names import PROCESSES, Name
from training.data.extract import EpisodeFacts, Extract, Loadable
from training.data.schema import ChannelSpec, FeatureSchema
from training.data.values import Floats32, Indices, Ints
from training.data.windows import ClassSpan, class_spans, placed_rows


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """The options of a build.

    ``like`` is an existing schema that the new data set must have, so that a model can score it; None otherwise.
    """

    window_s: float = 4.0
    stride_s: float = 2.0
    target: str = "malicious"
    jobs: int | None = 1  # None: as many as the engine can
    executor: Name = PROCESSES
    like: FeatureSchema | None = None


class ChosenChannels(NamedTuple):
    """The channels of a data set: the realistic ones before the others, each group in the order of the channel table,
    then by name; or the channels of a schema.

    ``views`` has, for each channel that means two things in two views, the view that defines its meaning here; in
    recordings of the other view the channel is absent. Without ``like``, ``views`` is empty if all recordings are of
    the same view. ``dropped`` names the recorded channels that a schema given as ``like`` lacks; without one, none.
    """

    channels: tuple[ChannelSpec, ...]
    views: dict[str, str]
    dropped: list[str]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(channel.name for channel in self.channels)

    def has(self, meta: Meta, name: str) -> bool:
        """Return True if the channel ``name`` has the same meaning in the recording ``meta`` as in the data set."""
        return self.views.get(name, meta.view) == meta.view


def choose_channels(good: Sequence[EpisodeFacts], like: FeatureSchema | None) -> ChosenChannels:
    """Return the channels that at least one good episode has, or those of the schema ``like`` if it is given."""
    everything = {c.name: c for e in good for c in e.meta.channels}
    if like is not None:
        view = view_of(like.channel_names)
        views = like.views or ({} if view is None else {name: str(view) for name in UNLIKE & set(like.channel_names)})
        return ChosenChannels(
            channels=like.channels, views=views, dropped=sorted(set(everything) - set(like.channel_names))
        )
    table = list(CHANNELS)
    ordered = sorted(everything, key=lambda n: (table.index(n) if n in CHANNELS else len(table), n))
    ordered.sort(key=lambda name: Mode.REALISTIC not in everything[name].modes)  # as the files want them
    infos = [everything[name] for name in ordered]
    specs = tuple(normalise.spec_of(c.name, c.unit, c.kind, c.modes) for c in infos)
    return ChosenChannels(channels=specs, views=_views(good, everything), dropped=[])


def _views(good: Sequence[EpisodeFacts], names: Collection[str]) -> dict[str, str]:
    """Return, for each channel that two views define differently, the view of most hosts; an empty dictionary if all
    recordings are of the same view."""
    hosts = {(e.meta.view, e.meta.host) for e in good}
    counts = Counter(view for view, _ in hosts)
    if len(counts) < 2:
        return {}
    most = max(sorted(counts), key=counts.__getitem__)
    return dict.fromkeys(sorted(UNLIKE & set(names)), most)


def values_of(extracted: Extract, chosen: ChosenChannels) -> Floats32:
    """Return the compressed grid (G, C) of an episode, in the order of the data set's channels; NaN for channels that
    the episode lacks or that its view defines otherwise."""
    meta = extracted.facts.meta
    places = {c.name: i for i, c in enumerate(meta.channels) if chosen.has(meta, c.name)}
    values = np.full((len(extracted.values), len(chosen.channels)), np.nan, np.float32)
    for number, channel in enumerate(chosen.channels):
        if channel.name in places:
            values[:, number] = extracted.values[:, places[channel.name]]
    return normalise.compress(values, chosen.channels)


def measured_values(extracted: Extract, chosen: ChosenChannels, references: normalise.NormalReferences) -> Floats32:
    """Return the grid of :func:`values_of` (G, C), normalised by :func:`normalise.apply`."""
    return normalise.apply(values_of(extracted, chosen), extracted.facts.meta.host, references)


def measure_references(
    good: Sequence[Loadable], chosen: ChosenChannels, sample_hz: float
) -> normalise.NormalReferences:
    """Compute each host's resting levels from its reference episodes among ``good``, loading the samples of one episode
    at a time."""
    of_host = defaultdict(list)
    for episode in good:
        if episode.facts.meta.baseline:
            of_host[episode.facts.meta.host].append(episode)

    def rows_of(episodes: Sequence[Loadable]) -> Iterator[Floats32]:
        for episode in episodes:
            yield values_of(episode.load(), chosen)[~episode.facts.ground.holes]

    def recorded(episodes: Sequence[Loadable]) -> normalise.Recorded:
        rows = sum(int((~episode.facts.ground.holes).sum()) for episode in episodes)
        return normalise.Recorded(len(episodes), rows, rows_of(episodes))

    return normalise.measure(
        {host: recorded(episodes) for host, episodes in of_host.items()}, chosen.channels, sample_hz
    )


def label_names(good: Sequence[EpisodeFacts], options: BuildOptions) -> list[str]:
    if options.like is not None:
        return sorted(options.like.label_map, key=options.like.label_map.__getitem__)
    if options.target == "malicious":
        return [BENIGN, MALICIOUS]
    return sorted({p for e in good if not e.meta.baseline for p in e.label_phase})


def benign_names(good: Sequence[EpisodeFacts], options: BuildOptions) -> tuple[str, ...]:
    """Return the classes that raise no alarm: with ``options.like`` those of that schema, under the target
    ``malicious`` only ``benign``, else the phases declared benign.

    Raises DataError if, without ``options.like`` and under the target ``phase``, a phase is benign in some recordings
    and malicious in others.
    """
    if options.like is not None:
        return benign_of(options.like)
    if options.target == "malicious":
        return (BENIGN,)
    kinds = defaultdict(set)
    for extracted in good:
        if not extracted.meta.baseline:
            for phase in set(extracted.label_phase):
                kinds[phase].add(extracted.meta.phases[phase])
    if odd := sorted(phase for phase, said in kinds.items() if len(said) > 1):
        raise DataError(
            f"The phase {odd[0]!r} is benign in some episodes and malicious in others: "
            "give it the same class in each meta.json."
        )
    return tuple(sorted(phase for phase, said in kinds.items() if said == {BENIGN}))


def _spans(extracted: EpisodeFacts, options: BuildOptions) -> list[ClassSpan]:
    meta = extracted.meta
    classes = [
        REFERENCE if meta.baseline else (meta.phases[p] if options.target == "malicious" else p)
        for p in extracted.label_phase
    ]
    return class_spans(extracted.label_t, classes, extracted.end_s)


def too_short(good: Sequence[EpisodeFacts], sample_hz: float, options: BuildOptions) -> list[str]:
    """Return a line of text for each class that has labelled periods shorter than a window, with their number;
    reference episodes do not count."""
    all_of: Counter[str] = Counter()
    short: Counter[str] = Counter()
    for extracted in good:
        if extracted.meta.baseline:
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


class WindowPlaces(NamedTuple):
    """The places of an episode's n windows: the first grid row of each, the number of each one's class, and the names
    of the classes."""

    rows: Ints
    of: Ints
    names: list[str]


def lengths(options: BuildOptions, sample_hz: float) -> tuple[int, int]:
    """Return the number of samples in a window, and from one window's start to the next. Raises DataError if a window
    has fewer than 4 samples, or the step has none."""
    window, stride = round(options.window_s * sample_hz), round(options.stride_s * sample_hz)
    if window < 4 or stride < 1:
        raise DataError(
            f"At {sample_hz:g} Hz, a window of {options.window_s:g} s must hold 4 samples and a stride of "
            f"{options.stride_s:g} s one; lengthen the one that is too short."
        )
    return window, stride


def places_of(episode: EpisodeFacts, sample_hz: float, options: BuildOptions) -> WindowPlaces:
    """Return the places of an episode's windows in the order of time; the windows of a reference episode all get the
    label ``REFERENCE``."""
    window, stride = lengths(options, sample_hz)
    spans = _spans(episode, options)
    rows, of = placed_rows(episode.ground, spans, window, stride)
    names = sorted({name for _, _, name in spans if name is not None})
    number = np.array([-1 if name is None else names.index(name) for _, _, name in spans], int)
    return WindowPlaces(rows, number[of], names)


def windows_of(values: Floats32, rows: Indices, window: int) -> Floats32:
    """Return windows (n, C, T), each cut from the grid ``values`` (G, C): ``window`` grid rows from each of the n first
    ``rows``."""
    every = np.lib.stride_tricks.sliding_window_view(values, window, axis=0)
    return np.ascontiguousarray(every[rows])

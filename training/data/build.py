"""Build the processed data set from episodes: validate, grid, normalise, window, summarise.

    python -m training.data.build examples/telemetry-sample --out-dir data/processed

Unchanged episodes are not read again; equal episodes and options give byte-identical files, on one core or many.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from training.clock import SystemClock
from training.contract import SCHEMA_FILE, TENSORS_FOLDER, Exit, Mode
from training.data.absent import absent, notes_on_absent
from training.data.alone import FolderBusy, alone
from training.data.assemble import (
    Options,
    benign_names,
    choose_channels,
    cut_windows,
    label_names,
    measure_references,
    reference_windows,
    too_short,
)
from training.data.classes import NO_ALARM, listed
from training.data.dataset import (
    MEMORY_FOLDER,
    REFERENCES_FILE,
    Labelling,
    Sampling,
    WindowSet,
    other_data_set,
    write_processed,
)
from training.data.episode import EpisodeError, deeper, find_episodes, without_checksum
from training.data.errors import DataError
from training.data.extract import Extract, extract, remember, remembered
from training.data.identity import find_kin
from training.data.label_copies import notes_on_copies, telling
from training.data.label_echoes import echoes, notes_on_echoes
from training.data.pool import Mapper
from training.data.schema import ChannelSpec, FeatureSchema, read_schema
from training.data.spelling import check_alike, notes_on_hosts
from training.data.still import notes_on_filled, notes_on_values, one_sided_values
from training.data.tensors import read_manifest
from training.data.together import judge_together
from training.data.understood import Understood, counts_of, recordings_of
from training.streams import replace_unprintable

TARGETS = ("malicious", "phase")
POOL_MIN = 24  # fewer new episodes are read faster than processes start

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The summary of a build, for a person or as JSON."""

    episodes: int
    baselines: int
    quarantined: dict[str, list[str]]
    windows: int
    labels: dict[str, int]
    benign: list[str]
    hosts: dict[str, int]
    hosts_without_baseline: list[str]
    channels: dict[str, int]
    features: dict[str, int]
    dropped_channels: list[str]
    schema_hash: str
    data_digest: str
    seconds: float
    out_dir: str
    understood: Understood


def build(episodes: Path, out_dir: Path, options: Options, progress: Progress = lambda _done, _of: None) -> Summary:
    """Build the data set. Raises DataError, with one sentence, when nothing usable would come of it, and FolderBusy."""
    try:
        paths = find_episodes(episodes)
    except EpisodeError as error:
        raise DataError(str(error)) from None
    with alone(out_dir):
        return _build(paths, out_dir, options, progress)


def _build(paths: Sequence[Path], out_dir: Path, options: Options, progress: Progress) -> Summary:
    clock = SystemClock()
    begun = clock.monotonic()
    found = _gather(paths, out_dir / MEMORY_FOLDER, options.jobs, progress)
    found, sample_hz = _one_rate(_together(found, options.like), paths, out_dir / MEMORY_FOLDER, options.like)
    good = [e for e in found if e.verdict.ok and e.grid is not None]
    if all(_is_reference(e) for e in good):
        raise DataError(_nothing_good(found))
    check_alike(sorted({e.verdict.meta.host for e in good if e.verdict.meta}), "host")
    check_alike(sorted({phase for e in good for phase in e.label_phase}), "phase")
    chosen = choose_channels(good, options.like)
    channels = chosen.channels
    references = measure_references(good, chosen, sample_hz)
    if options.like is not None and options.like.normaliser != references.rule:
        raise DataError(
            "The schema measures hosts against their references, and there are none here: record some with "
            "python -m training.data.record --baseline."
            if references.fleet is None
            else "The schema was made without references, so its data cannot be normalised: leave them out."
        )
    labels, benign = label_names(good, options), benign_names(good, options)
    windows, counts = cut_windows(good, chosen, references, sample_hz, options)
    reference = reference_windows(good, chosen, references, sample_hz, options)
    rows = [e.verdict.row(counts[e.verdict.episode_id]) for e in found]
    left_out = too_short(good, sample_hz, options)
    if chosen.dropped:
        left_out.insert(0, f"channels that the schema does not have: {', '.join(chosen.dropped)}")
    left_out += undeclared(found)
    understood = understand(windows, channels, left_out, rows, sample_hz, labels, benign, options)
    kin = find_kin(windows.X, [channel.name for channel in channels], windows.rows)
    said = (
        *kin.notes,
        *notes_on_absent(
            [channel.name for channel in channels],
            windows.rows.label,
            windows.rows.host,
            absent(windows.X).astype(np.uint8),
        ),
        *notes_on_views(good, chosen.views),
        *notes_on_hosts(windows.rows.host.tolist()),
        *notes_on_channels(windows, channels, benign, sample_hz),
        *notes_on_filled(
            windows.X, episode=windows.rows.episode, t_start=windows.rows.t_start, sample_hz=sample_hz, timed=True
        ),
        *doubtful(found),
    )
    understood = msgspec.structs.replace(understood, notes=(*understood.notes, *said))
    schema = write_processed(
        out_dir,
        windows,
        Sampling(
            channels=channels,
            sample_hz=sample_hz,
            window_s=options.window_s,
            stride_s=options.stride_s,
            normaliser=references.rule,
            optional=None if options.like is None else options.like.optional,
            views=chosen.views if options.like is None else options.like.views,
        ),
        Labelling(target=options.target if benign else NO_ALARM, names=labels, benign=benign),
        validation_rows=rows,
        reference=reference,
        understood=understood,
    )
    (out_dir / REFERENCES_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(references), indent=1) + b"\n")
    hosts = dict(sorted(Counter(windows.rows.host.tolist()).items()))
    return Summary(
        episodes=len(found),
        baselines=sum(bool(e.verdict.meta and e.verdict.meta.baseline) for e in found),
        quarantined={e.verdict.episode_id: list(e.verdict.reasons) for e in found if not e.verdict.ok},
        windows=len(windows.X),
        benign=list(benign),
        labels={name: int((windows.rows.label == name).sum()) for name in labels},
        hosts=hosts,
        hosts_without_baseline=references.without(list(hosts)),
        channels={str(m): sum(m in c.modes for c in schema.channels) for m in Mode},
        features={str(m): sum(m in f.modes for f in schema.features) for m in Mode},
        dropped_channels=chosen.dropped,
        schema_hash=schema.hash(),
        data_digest=read_manifest(out_dir / TENSORS_FOLDER).data_digest,
        seconds=round(clock.monotonic() - begun, 3),
        out_dir=str(out_dir),
        understood=understood,
    )


def understand(
    windows: WindowSet,
    channels: Sequence[ChannelSpec],
    left_out: Sequence[str],
    rows: Sequence[dict[str, Any]],
    sample_hz: float,
    labels: Sequence[str],
    benign: Sequence[str],
    options: Options,
) -> Understood:
    """The table of what was read as what."""
    hosts = sorted({str(row["host"]) for row in rows if row["host"] and not row["baseline"]})
    return Understood(
        source=f"{len(rows):,} recordings",
        channels=tuple(channel.name for channel in channels),
        oracle_only=tuple(c.name for c in channels if Mode.REALISTIC not in c.modes),
        hosts=counts_of(windows.rows.host, hosts),
        **recordings_of(rows),
        classes=counts_of(windows.rows.label, labels),
        benign=tuple(benign),
        benign_why="as the recordings declare their phases",
        window_samples=int(windows.X.shape[2]),
        sample_hz=sample_hz,
        window_s=options.window_s,
        stride_s=options.stride_s,
        rate_why="the schema's" if options.like else "the commonest of the recordings",
        clock="the recordings' own",
        span=(float(windows.rows.t_start.min()), float(windows.rows.t_end.max())),
        left_out=tuple(left_out),
    )


def undeclared(found: Sequence[Extract]) -> list[str]:
    """Sentences on columns that recordings hold and no meta data name: nothing is read of them."""
    counts = Counter(name for extracted in found for name in extracted.verdict.undeclared)
    return [
        f"column {name} of {count:,} recordings: their meta.json does not declare it"
        for name, count in sorted(counts.items())
    ]


def notes_on_views(good: Sequence[Extract], views: Mapping[str, str]) -> list[str]:
    """A sentence on channels that count as absent where a recording's view means something else by them."""
    metas = [e.verdict.meta for e in good if e.verdict.meta is not None]
    by_view: dict[str, set[str]] = {}
    for meta in metas:
        for name in {c.name for c in meta.channels} & {name for name, view in views.items() if view != meta.view}:
            by_view.setdefault(f"{name} in the view {views[name]}", set()).add(meta.host)
    return [
        f"{what} means something else than on {listed(sorted(hosts))}: absent there."
        for what, hosts in sorted(by_view.items())
    ]


def doubtful(found: Sequence[Extract]) -> list[str]:
    """A sentence on the values by which some recorder may mean that nothing was measured."""
    counts = Counter(said for extracted in found for said in extracted.verdict.doubtful)
    shown = [f"{said} in {count} recordings" for said, count in sorted(counts.items())]
    if not shown:
        return []
    return [
        f"Repeated, and apart from all other values: {listed(shown)}: if nothing was measured there, leave it empty."
    ]


def notes_on_channels(
    windows: WindowSet, channels: Sequence[ChannelSpec], benign: Sequence[str], sample_hz: float
) -> list[str]:
    """Sentences on channels that may be the label again, and on values that one class repeats.

    The laboratory's privileged channels may well tell the label. Values are measured against the host's reference here.
    """
    names = [channel.name for channel in channels]
    seen = {channel.name for channel in channels if Mode.REALISTIC in channel.modes}
    X, label, host = windows.X, windows.rows.label, windows.rows.host
    found = telling(X, names, label=label, host=host, benign=benign)
    named = [name for name in (*found.states, *found.levels) if name in seen]
    late = echoes(X, names, windows.rows, sample_hz=sample_hz, benign=benign)
    repeated = one_sided_values(X, names, label=label, host=host, benign=benign)
    mend = "if so, take it out of each meta.json"
    return [
        *notes_on_copies(named, mend),
        *notes_on_echoes([one for one in late if one in seen and one not in named], mend),
        *notes_on_values([one for one in repeated if one.channel in seen], "If so, leave it empty"),
    ]


def _gather(paths: Sequence[Path], memory: Path, jobs: int, progress: Progress) -> list[Extract]:
    """Every episode's extract, in the order of ``paths``: remembered, or read by several processes."""
    known = {path: remembered(path, memory) for path in paths}
    new = [path for path, extracted in known.items() if extracted is None]
    done = len(paths) - len(new)
    progress(done, len(paths))
    with Mapper(jobs if len(new) >= POOL_MIN else 1) as mapped:
        for path, extracted in zip(new, mapped(extract, new), strict=True):
            remember(extracted, path, memory)
            known[path] = extracted
            done += 1
            progress(done, len(paths))
    return [e for path in paths if (e := known[path]) is not None]


def _together(found: Sequence[Extract], like: FeatureSchema | None) -> list[Extract]:
    verdicts = judge_together([e.verdict for e in found], like)
    return [replace(e, verdict=v) for e, v in zip(found, verdicts, strict=True)]


def _one_rate(
    found: Sequence[Extract], paths: Sequence[Path], memory: Path, like: FeatureSchema | None
) -> tuple[list[Extract], float]:
    """Bring all episodes to the commonest sampling rate (or the schema's); a slower recording cannot be brought up."""
    rates = Counter(e.verdict.meta.sample_hz for e in found if e.verdict.ok and e.verdict.meta)
    if not rates:
        return list(found), 0.0
    wanted = like.sample_hz if like else max(sorted(rates), key=lambda hz: rates[hz])
    result = []
    for extracted, path in zip(found, paths, strict=True):
        meta = extracted.verdict.meta
        if not extracted.verdict.ok or meta is None or meta.sample_hz == wanted:
            result.append(extracted)
        elif meta.sample_hz < wanted:
            reason = f"It was sampled at {meta.sample_hz:g} Hz, slower than the data set's {wanted:g} Hz."
            result.append(replace(extracted, verdict=replace(extracted.verdict, reasons=(reason,))))
        else:
            again = remembered(path, memory, wanted) or extract(path, wanted)
            remember(again, path, memory, wanted)
            result.append(replace(again, verdict=extracted.verdict))
    return result, wanted


def _is_reference(extracted: Extract) -> bool:
    return extracted.verdict.meta is not None and extracted.verdict.meta.baseline


def _nothing_good(found: Sequence[Extract]) -> str:
    """Explain why there is nothing to cut windows from; a reference never becomes windows."""
    others = [e for e in found if not _is_reference(e)]
    if not others:
        return (
            f"All {len(found)} episodes are references, which only show what is usual on a host: record some without "
            "--baseline."
        )
    first, kind = others[0].verdict, "" if len(others) == len(found) else " that are no references"
    return (
        f"None of the {len(others)} episodes{kind} can be used; the first, {first.episode_id}: "
        f"{first.reasons[0] if first.reasons else 'it holds nothing.'}"
    )


def main(argv: list[str] | None = None) -> int:
    replace_unprintable()
    args = _parser().parse_args(argv)
    try:
        options = _options(args)
        replaced = other_data_set(args.out_dir, built=True)
        summary = build(args.episodes, args.out_dir, options, _progress(quiet=args.json))
    except DataError as error:
        print(f"build: {error}", file=sys.stderr)
        return Exit.BAD_DATA
    except FolderBusy as error:
        print(f"build: {error}", file=sys.stderr)
        return Exit.INTERRUPTED
    except OSError as error:
        print(
            f"build: {error.filename or args.out_dir}: {error.strerror}; choose another --out-dir, or make room",
            file=sys.stderr,
        )
        return Exit.NO_ACCESS
    except KeyboardInterrupt:
        print("build: stopped; run it again and it goes on where it was.", file=sys.stderr)
        return 130
    if replaced is not None:
        print(f"note: {replaced}", file=sys.stderr)
    for note in (deeper(args.episodes), without_checksum(find_episodes(args.episodes))):
        if note is not None:
            print(note, file=sys.stderr)
    print(json.dumps(msgspec.to_builtins(summary)) if args.json else describe(summary))
    return 0


def _options(args: argparse.Namespace) -> Options:
    like = read_schema(args.like / SCHEMA_FILE if args.like.is_dir() else args.like) if args.like else None
    if like is not None:
        return Options(window_s=like.window_s, stride_s=like.stride_s, target=like.target, jobs=args.jobs, like=like)
    return Options(window_s=args.window_s, stride_s=args.stride_s, target=args.target, jobs=args.jobs)


def _progress(*, quiet: bool) -> Progress:
    tty = sys.stderr.isatty()

    def show(done: int, of: int) -> None:
        if quiet or not of:
            return
        if tty:
            end = "\n" if done == of else ""
            print(f"\rReading episodes: {done} of {of}", end=end, file=sys.stderr, flush=True)
        elif done == of or done % max(1, of // 4) == 0:
            print(f"Reading episodes: {done} of {of}", file=sys.stderr, flush=True)

    return show


def describe(summary: Summary) -> str:
    """The summary in words."""
    lines = [
        *summary.understood.lines(),
        f"{summary.episodes} episodes, {summary.baselines} of them references, {len(summary.quarantined)} quarantined",
        f"{summary.windows} windows",
    ]
    for mode, count in summary.channels.items():
        lines.append(f"{mode}: {count} channels, {summary.features[mode]} features")
    for episode, reasons in summary.quarantined.items():
        lines.append(f"quarantined {episode}: {' '.join(reasons)}")
    if summary.hosts_without_baseline:
        lines.append("without a reference of their own: " + ", ".join(summary.hosts_without_baseline))
    if any(n == 0 for n in summary.labels.values()):
        lines.append("warning: a class has no windows; a detector cannot be trained on this alone")
    lines.append(f"{summary.out_dir}, schema {summary.schema_hash[:12]}, {summary.seconds:.1f} s")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    def seconds(text: str) -> float:
        value = float(text)
        if not 0 < value <= 86_400:
            raise argparse.ArgumentTypeError(f"{text} is not between 0 and 86400 seconds")
        return value

    def jobs(text: str) -> int:
        value = int(text)
        if not 1 <= value <= 1024:
            raise argparse.ArgumentTypeError(f"{text} is not between 1 and 1024")
        return value

    parser = argparse.ArgumentParser(
        prog="python -m training.data.build", description=__doc__.split("\n")[0], allow_abbrev=False
    )
    parser.add_argument("episodes", type=Path, help="folder of recorded episodes (folders or .tar.zst files)")
    out_dir = Path("data/processed")
    parser.add_argument("--out-dir", type=Path, default=out_dir, help=f"folder of the data set (default {out_dir})")
    parser.add_argument("--window-s", type=seconds, default=4.0, help="length of a window in seconds (default 4)")
    parser.add_argument(
        "--stride-s", type=seconds, default=2.0, help="step from window to window in seconds (default 2)"
    )
    parser.add_argument(
        "--target",
        choices=TARGETS,
        default="malicious",
        help="classes: benign and malicious, or the phases by name (default malicious)",
    )
    parser.add_argument(
        "--jobs", type=jobs, default=os.cpu_count() or 1, help="number of processes (default: one for each core)"
    )
    parser.add_argument(
        "--like", type=Path, help="folder (or feature_schema_v1.json) of a data set whose schema this one must have"
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""Build the processed data set from episodes: validate, grid, normalise, window, summarise.

    python -m training.data.build examples/telemetry-sample --out-dir data/processed

A second build into the same folder, by the same code, does not read unchanged episodes again. Equal episodes and
options give byte-identical files, on one core or many, with the same versions of the libraries.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from training.clock import SystemClock
from training.command_line import parser_of
from training.contract import SCHEMA_FILE, Mode
from training.data import assemble, dataset
from training.data.absent import notes_on_absent
from training.data.alone import FolderBusy, alone, ended
from training.data.classes import NO_ALARM, listed
from training.data.cut import POOL_MIN, BuildWork, Cutting, KeptEpisode, PlannedWindows
from training.data.doubts.constant_values import filled_forward, one_sided
from training.data.doubts.cross_episode_checks import judge_together
from training.data.doubts.label_copies import label_again
from training.data.doubts.spelling import check_alike, hosts_alike
from training.data.doubts.windows import WindowsInQuestion, doubts
from training.data.episode import Meta, deeper, find_episodes
from training.data.errors import DataError
from training.data.executors.engine import EngineError
from training.data.executors.names import SCRATCH, add_executor, spread_over
from training.data.extract import EpisodeFacts, key, load_facts, remembered
from training.data.identity import find_kin
from training.data.meter import on_stderr
from training.data.schema import FeatureSchema, read_schema
from training.data.summary import Understood, counts_of, recordings_of
from training.data.validate import EpisodeFindings
from training.streams import complain, replace_unprintable

DETECTORS = (hosts_alike, label_again, one_sided, filled_forward)
TARGETS = ("malicious", "phase")
POOL_BYTES = 4 << 20  # of new recordings, from which processes are worth their start
STEPS = {"reading": 0.3, "references": 0.0, "cutting": 0.6, "judging": 0.1}  # shares of the time, as measured
LIBRARIES = ("msgspec", "numpy", "polars", "zstandard")  # whose versions may show in the bytes

Progress = Callable[[str, float], None]  # the step, and the share of it that is done
UNHEARD = lambda _what, _share: None  # noqa: E731
Asked = tuple[Path, float | None]  # an episode, and the rate at which it is wanted: its own without


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The results of a build, shown to a person or printed as JSON."""

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


def build(episodes: Path, out_dir: Path, options: assemble.BuildOptions, progress: Progress = UNHEARD) -> Summary:
    """Build the data set of the folder ``episodes`` in ``out_dir``; return its summary.

    Raises DataError, with one sentence, if the episodes give no usable data set; FolderBusy if another process writes
    there, EngineError if the engine fails.
    """
    paths = find_episodes(episodes.absolute())  # workers of an engine have folders of their own
    with alone(out_dir):
        return _build(paths, out_dir, options, progress)


def _build(paths: Sequence[Path], out_dir: Path, options: assemble.BuildOptions, progress: Progress) -> Summary:
    clock = SystemClock()
    begun = clock.monotonic()
    memory = out_dir.absolute() / dataset.MEMORY_FOLDER
    for left in out_dir.glob(f"{SCRATCH}*"):  # of a build that was killed
        shutil.rmtree(left, ignore_errors=True)
    spread = spread_over(
        options.executor, options.jobs, libraries=LIBRARIES, files=_ends(paths), folder=out_dir.absolute()
    )
    with spread as mapped:
        memory.mkdir(exist_ok=True)
        work = BuildWork(mapped, progress, clock, always=options.executor.far)
        found = _together(_gather([(path, None) for path in paths], memory, work), options.like)
        found, sample_hz = _one_rate(found, memory, work, options.like)
        good = [e for e in found if e.verdict.ok]
        return _made(found, good, sample_hz, out_dir, options, work, begun)


def _ends(paths: Sequence[Path]) -> list[Path]:
    """Return the files of the first and the last episode; a worker that sees these is assumed to see the whole
    folder."""
    found = []
    for path in (*paths[:1], *paths[-1:]):
        found += sorted(path.iterdir()) if path.is_dir() and os.access(path, os.R_OK | os.X_OK) else [path]
    return found


def _made(
    found: Sequence[KeptEpisode],
    good: Sequence[KeptEpisode],
    sample_hz: float,
    out_dir: Path,
    options: assemble.BuildOptions,
    work: BuildWork,
    begun: float,
) -> Summary:
    facts = [e.facts for e in good]
    if all(one.meta.baseline for one in facts):
        raise DataError(_nothing_good([e.verdict for e in found]))
    check_alike(sorted({one.meta.host for one in facts}), "host")
    check_alike(sorted({phase for one in facts for phase in one.label_phase}), "phase")
    chosen = assemble.choose_channels(facts, options.like)
    references = assemble.measure_references(good, chosen, sample_hz)
    if options.like is not None and options.like.normaliser != references.rule:
        raise DataError(
            "The schema has another normaliser than episodes without references: record some with "
            "cis490 record --baseline, or build without --like."
            if references.fleet is None
            else "The schema has another normaliser than episodes with references: leave the references or --like out."
        )
    benign = assemble.benign_names(facts, options)
    target = options.target if benign else NO_ALARM
    labelling = dataset.Labelling(target=target, names=assemble.label_names(facts, options), benign=benign)
    planned = PlannedWindows.of([e for e in good if not e.facts.meta.baseline], sample_hz, options)
    if planned is None:
        raise DataError(f"No episode is long enough for a window of {options.window_s:g} s with a single label.")
    usual = PlannedWindows.of([e for e in good if e.facts.meta.baseline], sample_hz, options)
    rows = [e.verdict.row(planned.counts[e.verdict.episode_id]) for e in found]
    left_out = assemble.too_short(facts, sample_hz, options)
    if chosen.dropped:
        left_out.insert(0, f"channels that the schema does not have: {', '.join(chosen.dropped)}")
    verdicts = [e.verdict for e in found]
    left_out += undeclared(verdicts)
    memory = out_dir.absolute() / dataset.MEMORY_FOLDER
    with dataset.making(out_dir) as new, tempfile.TemporaryDirectory(prefix=SCRATCH, dir=out_dir) as scratch:
        cutting = Cutting(chosen, references, sample_hz, options, new, Path(scratch).absolute(), memory)
        reference = None if usual is None else cutting.references(usual, work)
        windows, kept = cutting.windows(planned, work)
        work.progress("judging", 0.0)
        names, of = chosen.names, windows.rows
        hidden = tuple(c.name for c in chosen.channels if Mode.REALISTIC not in c.modes)
        # Values are measured against the host's reference, and privileged channels may well tell the label.
        asked = WindowsInQuestion(windows.X, names, of, benign, sample_hz, exempt=hidden, by_flags=False)
        understood = Understood(
            source=f"{len(rows):,} recordings",
            channels=names,
            oracle_only=hidden,
            hosts=counts_of(of.host, sorted({str(row["host"]) for row in rows if row["host"] and not row["baseline"]})),
            **recordings_of(rows),
            classes=counts_of(of.label, labelling.names),
            benign=benign,
            benign_why="as the recordings declare their phases",
            window_samples=windows.X.shape[2],
            sample_hz=sample_hz,
            window_s=options.window_s,
            stride_s=options.stride_s,
            rate_why="the schema's" if options.like else "the commonest of the recordings",
            clock="the recordings' own",
            span=(float(of.t_start.min()), float(of.t_end.max())),
            left_out=tuple(left_out),
            notes=(
                *find_kin(windows.X, names, of, kept.digests).notes,
                *notes_on_absent(names, of.label, of.host, kept.absent),
                *notes_on_views(verdicts, chosen.views),
                *doubts(asked, DETECTORS),
                *doubtful(verdicts),
            ),
        )
        manifest = dataset.write_beside(
            new,
            (windows.X, kept.index),
            dataset.Sampling(
                channels=chosen.channels,
                sample_hz=sample_hz,
                window_s=options.window_s,
                stride_s=options.stride_s,
                normaliser=references.rule,
                optional=dataset.lacked(windows, chosen.names) if options.like is None else options.like.optional,
                views=chosen.views if options.like is None else options.like.views,
            ),
            labelling,
            features_sha256=kept.features_sha256,
            validation_rows=rows,
            reference=reference,
            understood=understood,
        )
        (new / dataset.REFERENCES_FILE).write_bytes(
            msgspec.json.format(msgspec.json.encode(references), indent=1) + b"\n"
        )
    used = {e.samples for e in found} | kept.files
    for path in memory.iterdir():  # of episodes that are gone or changed, and under other options
        if dataset.MEMORY_NAME.fullmatch(path.name) and path not in used:
            path.unlink(missing_ok=True)
    hosts = counts_of(windows.rows.host, windows.rows.host.names.tolist())
    return Summary(
        episodes=len(found),
        baselines=sum(one.is_reference for one in verdicts),
        quarantined={one.episode_id: list(one.reasons) for one in verdicts if not one.ok},
        windows=len(windows.X),
        benign=list(benign),
        labels=understood.classes,
        hosts=hosts,
        hosts_without_baseline=references.without(list(hosts)),
        channels={str(m): sum(m in c.modes for c in chosen.channels) for m in Mode},
        features={str(m): sum(m in f.modes for f in manifest.schema.features) for m in Mode},
        dropped_channels=chosen.dropped,
        schema_hash=manifest.schema_hash,
        data_digest=manifest.data_digest,
        seconds=round(work.clock.monotonic() - begun, 3),
        out_dir=str(out_dir),
        understood=understood,
    )


def undeclared(verdicts: Sequence[EpisodeFindings]) -> list[str]:
    """Return a line of text for each column that is in recordings but not in their meta.json; these columns are not
    read."""
    counts = Counter(name for verdict in verdicts for name in verdict.undeclared)
    return [
        f"column {name} of {count:,} recordings: their meta.json does not declare it"
        for name, count in sorted(counts.items())
    ]


def notes_on_views(verdicts: Sequence[EpisodeFindings], views: Mapping[str, str]) -> list[str]:
    """Return a sentence for each channel that counts as absent in some recordings, because it means something else in
    their view."""
    by_view: dict[str, set[str]] = {}
    for meta in (verdict.meta for verdict in verdicts if verdict.ok and verdict.meta is not None):
        for name in {c.name for c in meta.channels} & {name for name, view in views.items() if view != meta.view}:
            by_view.setdefault(f"{name} in the view {views[name]}", set()).add(meta.host)
    return [
        f"{what} means something else than on {listed(sorted(hosts))}: absent there."
        for what, hosts in sorted(by_view.items())
    ]


def doubtful(verdicts: Sequence[EpisodeFindings]) -> list[str]:
    """Return a list with one sentence on repeated values which may mean "not measured"; an empty list without any."""
    counts = Counter(said for verdict in verdicts for said in verdict.doubtful)
    shown = listed([f"{said} in {count} recordings" for said, count in sorted(counts.items())])
    said = f"Repeated, and apart from all other values: {shown}: if nothing was measured there, leave it empty."
    return [said] if shown else []


def _gather(asked: Sequence[Asked], memory: Path, work: BuildWork) -> list[KeptEpisode]:
    """Return every episode that was asked for, in order, with its facts.

    Facts stored by an earlier build are read from the folder ``memory``. The others are extracted, by the engine's
    workers if there is much to read or workers may be on other machines.
    """
    places = [memory / key(path, hz) for path, hz in asked]
    known = [load_facts(place) for place in places]
    new = [number for number, facts in enumerate(known) if facts is None]
    tasks = [(*asked[number], places[number]) for number in new]
    size = sum(path.stat().st_size for task in tasks for path in (task[0], *task[0].glob("*")))
    much = len(new) >= POOL_MIN or size >= POOL_BYTES
    for number, facts in zip(new, work.done("reading", remembered, tasks, much=much), strict=True):
        known[number] = facts
    work.progress("reading", 1.0)
    shared: dict[bytes, Meta] = {}
    return [
        KeptEpisode(_sharing(facts, shared), path, hz, place)
        for (path, hz), place, facts in zip(asked, places, known, strict=True)
        if facts is not None
    ]


def _sharing(facts: EpisodeFacts, known: dict[bytes, Meta]) -> EpisodeFacts:
    """Return an episode's facts without notes; episodes with equal channels and phases share the objects for these, to
    save memory."""
    meta = facts.verdict.meta
    if meta is None:
        return facts
    own = known.setdefault(msgspec.json.encode((meta.channels, meta.phases)), meta)
    meta = msgspec.structs.replace(meta, channels=own.channels, phases=own.phases, notes={})
    return replace(facts, verdict=replace(facts.verdict, meta=meta))


def _together(found: Sequence[KeptEpisode], like: FeatureSchema | None) -> list[KeptEpisode]:
    verdicts = judge_together([e.verdict for e in found], like)
    return [episode.judged(verdict) for episode, verdict in zip(found, verdicts, strict=True)]


def _one_rate(
    found: Sequence[KeptEpisode], memory: Path, work: BuildWork, like: FeatureSchema | None
) -> tuple[list[KeptEpisode], float]:
    """Resample faster episodes to the commonest sampling rate (or the schema's), and mark slower ones as unusable.

    Returns all episodes and that rate; the rate is 0 if no episode is usable.
    """
    verdicts = [e.verdict for e in found]
    rates = Counter(one.meta.sample_hz for one in verdicts if one.ok and one.meta)
    if not rates:
        return list(found), 0.0
    wanted = like.sample_hz if like else max(sorted(rates), key=rates.__getitem__)
    result = list(found)
    faster = []
    for number, verdict in enumerate(verdicts):
        hz = verdict.meta.sample_hz if verdict.ok and verdict.meta else wanted
        if hz < wanted:
            reason = f"It was sampled at {hz:g} Hz, slower than the data set's {wanted:g} Hz."
            result[number] = found[number].judged(replace(verdict, reasons=(reason,)))
        elif hz > wanted:
            faster.append(number)
    again = _gather([(found[number].path, wanted) for number in faster], memory, work) if faster else []
    for number, episode in zip(faster, again, strict=True):
        result[number] = episode.judged(verdicts[number])
    return result, wanted


def _nothing_good(found: Sequence[EpisodeFindings]) -> str:
    """Return the sentence that explains why no recording can give windows; reference recordings give none for a
    split."""
    others = [one for one in found if not one.is_reference]
    if not others:
        return (
            f"All {len(found)} episodes are references, which give no windows: record some episodes without --baseline."
        )
    first, kind = others[0], "" if len(others) == len(found) else " that are no references"
    return (
        f"None of the {len(others)} episodes{kind} can be used; the first, {first.episode_id}: "
        f"{first.reasons[0] if first.reasons else 'it holds nothing.'}"
    )


def main(argv: list[str] | None = None) -> int:
    replace_unprintable()
    args = _parser().parse_args(argv)
    try:
        options = _options(args)
        replaced = dataset.other_data_set(args.out_dir, built=True)
        summary = build(args.episodes, args.out_dir, options, UNHEARD if args.json else on_stderr(STEPS))
    except (DataError, OSError, FolderBusy, EngineError) as error:
        return ended(error, args.out_dir, "build")
    except KeyboardInterrupt:
        complain("build: stopped; run it again and it resumes.")
        return 130
    if replaced is not None:
        complain(f"note: {replaced}")
    if (note := deeper(args.episodes)) is not None:
        complain(note)
    print(json.dumps(msgspec.to_builtins(summary)) if args.json else describe(summary))
    return 0


def _options(args: argparse.Namespace) -> assemble.BuildOptions:
    like = read_schema(args.like / SCHEMA_FILE if args.like.is_dir() else args.like) if args.like else None
    own = assemble.BuildOptions(
        window_s=args.window_s, stride_s=args.stride_s, target=args.target, jobs=args.jobs, executor=args.executor
    )
    if like is None:
        return own
    return replace(own, window_s=like.window_s, stride_s=like.stride_s, target=like.target, like=like)


def describe(summary: Summary) -> str:
    """Return the summary of a build as text for a person."""
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

    parser = parser_of("training.data.build", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("episodes", type=Path, help="folder of recorded episodes (folders or .tar.zst files)")
    out_dir = Path("data/processed")
    add("--out-dir", type=Path, default=out_dir, help=f"folder of the data set (default {out_dir})")
    add("--window-s", type=seconds, default=4.0, help="length of a window in seconds (default 4; unused with --like)")
    add("--stride-s", type=seconds, default=2.0, help="seconds from window to window (default 2; unused with --like)")
    add(
        "--target",
        choices=TARGETS,
        default="malicious",
        help="classes: benign and malicious, or the phases by name (default malicious; unused with --like)",
    )
    add_executor(parser, processes="one for each core")
    add("--like", type=Path, help="folder (or feature_schema_v1.json) of a data set whose schema this one must have")
    add("--json", action="store_true", help="print the summary as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""Record one episode: run a scenario's behaviours on this host, and sample the host meanwhile.

    python -m training.data.record --scenario database --host office --duration-s 60 --hz 8 --out data/episodes
    python -m training.data.record --list

Behaviours write only into a scratch folder, and send nothing off the host. Ctrl-C ends every process that was started.
"""

import argparse
import json
import math
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from training.clock import Clock, SystemClock
from training.command_line import parser_of
from training.contract import RECORDING_HOST
from training.data import episode
from training.data.channels import CHANNELS, Measure, View
from training.streams import complain, replace_unprintable
from training.watch.recording import cgroups
from training.watch.recording.behaviours import fill_scratch
from training.watch.recording.collect import Collector, ContainerCollector, MachineCollector, TreeCollector
from training.watch.recording.proc import Sample
from training.watch.recording.programs import Programs, programs_of_host
from training.watch.recording.scenarios import SCENARIOS, Phase, draw_phases, phase_labels
from training.watch.recording.stage import RecordError, Stage

SCRATCH_BYTES = 6 << 20


class RecordingOrder(NamedTuple):
    """The order for one recording: its scenario, host, length, rate of samples, seed and phases.

    ``notes`` is copied into meta.json. The behaviours in ``background`` run all the time, and belong to no phase.
    """

    scenario: str
    host: str
    duration_s: float
    hz: float
    reference: bool
    seed: int
    phases: tuple[Phase, ...]
    background: tuple[Phase, ...] = ()
    notes: Mapping[str, Any] = {}


@dataclass
class Tape:
    """The recorded values: the samples, their times in seconds since the episode began, and for each phase the pair
    (time, name) of its real beginning."""

    t: list[float] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    labels: list[tuple[float, str]] = field(default_factory=list)
    started_at: float = 0.0


def record(
    order: RecordingOrder,
    collector: Collector,
    stage: Stage,
    out: Path,
    *,
    clock: Clock,
    programs: Programs | None = None,
    sleep: Callable[[float], None] = time.sleep,
    progress: Callable[[float, str], None] = lambda _t, _phase: None,
) -> Path:
    """Record one episode and return its folder below ``out``.

    Raises RecordError if a behaviour ends early, or the servers that behaviours contact cannot be started.

    The scratch folder of every phase is filled beforehand, so that this work is not recorded.
    """
    scratches = [_filled(stage.scratch, phase.all(), f"phase{n}") for n, phase in enumerate(order.phases)]
    behind = _filled(stage.scratch, order.background, "background")
    try:
        stage.open()
        for phase, scratch in zip(order.background, behind, strict=True):
            stage.background.append(stage.start(phase, scratch))
        if stage.background:
            sleep(1.5)  # interpreters start in a burst that belongs to no phase
        tape, tree = Tape(), TreeCollector(stage.roots)
        tape.started_at = clock.now()
        begun, tick, upcoming, programs_due = clock.monotonic(), 0, 0, 0.0
        while (now := clock.monotonic() - begun) < order.duration_s:
            while upcoming < len(order.phases) and order.phases[upcoming].start_s <= now:
                phase = order.phases[upcoming]
                stage.clear_front()
                for each, scratch in zip(phase.all(), scratches[upcoming], strict=True):
                    stage.front.append(stage.start(each, scratch))
                tape.labels.append((0.0 if upcoming == 0 else clock.monotonic() - begun, phase.name))
                upcoming += 1
            taken = clock.monotonic() - begun
            tape.samples.append({**collector.sample(), **tree.sample()})
            tape.t.append(taken)
            if programs is not None and taken >= programs_due:
                programs.sample(taken)
                programs_due = math.floor(taken) + 1.0
            if tick % max(1, int(order.hz)) == 0:
                stage.check()
                progress(taken, tape.labels[-1][1])
            # Late ticks are skipped rather than caught up: two samples at once would measure nothing.
            tick = max(tick + 1, int((clock.monotonic() - begun) * order.hz))
            sleep(max(0.0, tick / order.hz - (clock.monotonic() - begun)))
    finally:
        stage.close()
    return write(out, order, collector.view, tape, clock, programs)


def _filled(scratch: Path, phases: tuple[Phase, ...], name: str) -> list[Path]:
    """Make a scratch folder with files for each of ``phases``; return the folders."""
    folders = [scratch / f"{name}-{n}" for n in range(len(phases))]
    for folder, phase in zip(folders, phases, strict=True):
        fill_scratch(folder, random.Random(phase.seed), SCRATCH_BYTES)
    return folders


def write(
    out: Path, order: RecordingOrder, view: View, tape: Tape, clock: Clock, programs: Programs | None = None
) -> Path:
    """Write the recorded values as an episode in a new folder below ``out``; return that folder.

    Channels that were never measured are left out.
    """
    channels = [c for c in CHANNELS.values() if any(s.get(c.name) is not None for s in tape.samples)]
    values = np.array([[s.get(c.name) for c in channels] for s in tape.samples], float)
    for i, channel in enumerate(channels):
        if channel.kind is Measure.COUNTER:
            # Counters start at zero here: their absolute value tells uptime, which is no business of a detector.
            values[:, i] -= values[0, i]
    meta = episode.Meta(
        schema_version=episode.SCHEMA_VERSION,
        episode_id=episode.new_ulid(clock, random.Random(f"{order.host}:{order.seed}")),
        host=order.host,
        started_at=tape.started_at,
        sample_hz=order.hz,
        duration_s=order.duration_s,
        scenario=order.scenario,
        baseline=order.reference,
        code_version=code_version(),
        view=str(view),
        channels=[episode.ChannelInfo(**c.to_dict()) for c in channels],
        phases={name: label for name, label in phase_labels().items() if name in {p for _, p in tape.labels}},
        notes=dict(order.notes),
    )
    folder = out / meta.episode_id
    episode.write_folder(
        folder, meta, np.array(tape.t), values, tape.labels, None if programs is None else programs.table()
    )
    return folder


def code_version() -> episode.CodeVersion:
    """Return the commit and branch of the checkout (``unknown`` without a checkout or git), and whether tracked files
    of this package have uncommitted changes. If git cannot tell, ``dirty`` is True."""

    def git(*arguments: str) -> str:
        with suppress(OSError):
            done = subprocess.run(
                ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
            )
            if done.returncode == 0:
                return done.stdout.strip()
        return "unknown"

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".")
    return episode.CodeVersion(
        commit=git("rev-parse", "HEAD"), branch=git("rev-parse", "--abbrev-ref", "HEAD"), dirty=bool(changed)
    )


def choose_collector(view: str) -> Collector:
    """Return the collector of a view; ``auto`` means ``container`` if this process runs in a limited control group,
    else ``machine``.

    Raises RecordError for ``container`` if this process has no control group with usage counts.
    """
    group = cgroups.own_cgroup() if view != View.MACHINE else None
    if group is None and view == View.CONTAINER:
        raise RecordError("This process is in no control group that counts its usage: give --view machine.")
    if group is None or (view != View.CONTAINER and not cgroups.is_bounded(group)):
        return MachineCollector()
    return ContainerCollector(group)


def main(argv: list[str] | None = None) -> int:
    replace_unprintable()
    args = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # both end what was started
    if args.list:
        for scenario in SCENARIOS.values():
            kind = "malicious-like" if scenario.malicious else "benign"
            print(f"{scenario.name:16} {kind:15} {scenario.summary}")
        return 0
    try:
        folder = _record_here(args)
    except (RecordError, ValueError, OSError) as error:
        complain(f"record: {error}")
        return 2 if isinstance(error, ValueError) else 1
    except KeyboardInterrupt:
        complain("record: stopped; nothing was kept.")
        return 130
    print(json.dumps({"episode": str(folder)}) if args.json else f"Recorded {folder}")
    return 0


def _record_here(args: argparse.Namespace) -> Path:
    if not 0.5 <= args.hz <= 100:
        raise ValueError(f"--hz {args.hz:g} is outside 0.5 to 100 samples a second.")
    if not RECORDING_HOST.fullmatch(args.host):
        raise ValueError(
            f"--host {args.host!r} cannot be a host's name: 1 to 64 letters, digits, dots, dashes and underscores, "
            "the first a letter or digit, so that train_hosts in a plan can name it."
        )
    clock = SystemClock()
    seed = random.SystemRandom().getrandbits(31) if args.seed is None else args.seed
    rng = random.Random(seed)
    scenario = args.scenario or ("idle" if args.baseline else "ordinary")
    order = RecordingOrder(
        scenario=scenario,
        host=args.host,
        duration_s=args.duration_s,
        hz=args.hz,
        reference=args.baseline,
        seed=seed,
        phases=draw_phases(scenario, args.duration_s, rng),
    )

    def progress(at_s: float, phase: str) -> None:
        if sys.stderr.isatty():
            print(f"\r{at_s:5.0f} / {args.duration_s:.0f} s  {phase:20}", end="", file=sys.stderr, flush=True)

    collector = choose_collector(args.view)
    programs = programs_of_host(
        state_folder(args.host),
        clock,
        reference=args.baseline,
        show_users=args.show_users,
        pids=collector.pids if isinstance(collector, ContainerCollector) else None,
    )
    with tempfile.TemporaryDirectory(prefix="cis490-record-", ignore_cleanup_errors=True) as scratch:
        stage = Stage(Path(scratch))
        folder = record(order, collector, stage, args.out, clock=clock, programs=programs, progress=progress)
    if (blind := programs.blind_spot()) is not None:
        complain(f"note: {blind}")
    if args.pack:
        packed = folder.with_name(folder.name + episode.PACKED_SUFFIX)
        episode.pack(folder, packed)
        for name in episode.MEMBERS:
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()
        return packed
    return folder


def state_folder(host: str) -> Path:
    """Return the folder in which the recorder keeps a host's secret and the time of its reference: below
    ``$XDG_STATE_HOME``, else ``~/.local/state``."""
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "cis490-record" / host


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("training.data.record", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--list", action="store_true", help="list the scenarios and stop")
    add(
        "--scenario",
        choices=list(SCENARIOS),
        metavar="NAME",
        help="scenario to run (default ordinary; with --baseline idle, which starts nothing)",
    )
    add("--host", default=platform.node() or "host", help="host name to record under (default: this host's)")
    add("--duration-s", type=float, default=60.0, help="length of the episode in seconds (default 60)")
    add("--hz", type=float, default=8.0, help="samples a second (default 8)")
    out = Path("data/episodes")
    add("--out", type=Path, default=out, help=f"folder of episodes (default {out})")
    add("--baseline", action="store_true", help="mark the episode as a reference of this host's ordinary work")
    add(
        "--view",
        choices=["auto", *map(str, View)],
        default="auto",
        help="measure the whole machine or this container (default: the container if its resources are limited)",
    )
    add("--seed", type=int, default=None, help="seed of the phases, a whole number (default: random)")
    add("--pack", action="store_true", help="pack the episode into one .tar.zst file")
    add("--show-users", action="store_true", help="record users by name, not as root, service, you or other-1")
    add("--json", action="store_true", help="print the result as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())

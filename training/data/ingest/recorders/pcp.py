"""Windows from archives of Performance Co-Pilot, the standard recorder of Linux telemetry.

``pmrep`` (Debian's package pcp) reads the archive; nothing has to run or be configured. An archive says which host it
comes from and when, never what went on: every window counts as benign, which is what an anomaly detector learns from
and what a false alarm is measured on.

An archive is cut into episodes of a few windows each, so that splits have something to divide; no window crosses from
one episode into the next. The first part of every host's time is its reference: it is set apart before anything is
known of it, the host's other windows are normalised against it, and it trains and tests nothing.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from training.contract import Mode
from training.data import normalise
from training.data.channels import Measure
from training.data.classes import BENIGN, MALICIOUS, Benign
from training.data.coded import Coded
from training.data.dataset import REFERENCE, WindowSet
from training.data.errors import DataError
from training.data.ingest.ingested import Empty, Ingested
from training.data.ingest.samples import window_starts
from training.data.rows import Rows
from training.data.schema import ChannelSpec

PMREP_TIMEOUT_S = 600
STAMP = re.compile(r"\d{2}:\d{2}:\d{2}\.\d+\s")
# By unit: differences below these are noise of the measurement.
SCALES = {"ms/s": 10.0, "KiB": 64.0, "B/s": 1024.0}
# Recorded by practically every archive, and at one interval.
OWN_STEP_METRICS = ("kernel.all.nprocs", "kernel.all.cpu.user")
FINER = 0.9  # of an archive's own step: reading below it draws straight lines
# From this share of rows without a value on, a host counts as not recording a metric.
TOO_MUCH_MISSING = 0.5

# Metrics that practically every Linux archive holds; rates where PCP counts. Instances (interfaces) are summed.
METRICS: dict[str, tuple[str, Measure]] = {
    "kernel.all.cpu.user": ("ms/s", Measure.COUNTER),
    "kernel.all.cpu.sys": ("ms/s", Measure.COUNTER),
    "kernel.all.cpu.idle": ("ms/s", Measure.COUNTER),
    "kernel.all.cpu.wait.total": ("ms/s", Measure.COUNTER),
    "kernel.all.cpu.nice": ("ms/s", Measure.COUNTER),
    "kernel.all.cpu.intr": ("ms/s", Measure.COUNTER),
    "kernel.all.intr": ("1/s", Measure.COUNTER),
    "kernel.all.pswitch": ("1/s", Measure.COUNTER),
    "kernel.all.sysfork": ("1/s", Measure.COUNTER),
    "kernel.all.nprocs": ("1", Measure.GAUGE),
    "kernel.all.runnable": ("1", Measure.GAUGE),
    "disk.all.read": ("1/s", Measure.COUNTER),
    "disk.all.write": ("1/s", Measure.COUNTER),
    "disk.all.read_bytes": ("KiB/s", Measure.COUNTER),
    "disk.all.write_bytes": ("KiB/s", Measure.COUNTER),
    "disk.all.avactive": ("ms/s", Measure.COUNTER),
    "mem.util.free": ("KiB", Measure.GAUGE),
    "mem.util.used": ("KiB", Measure.GAUGE),
    "mem.util.cached": ("KiB", Measure.GAUGE),
    "mem.util.bufmem": ("KiB", Measure.GAUGE),
    "mem.util.dirty": ("KiB", Measure.GAUGE),
    "network.interface.in.bytes": ("B/s", Measure.COUNTER),
    "network.interface.out.bytes": ("B/s", Measure.COUNTER),
    "network.tcp.insegs": ("1/s", Measure.COUNTER),
    "network.tcp.outsegs": ("1/s", Measure.COUNTER),
    "network.tcp.activeopens": ("1/s", Measure.COUNTER),
    "network.tcp.passiveopens": ("1/s", Measure.COUNTER),
    "network.tcp.currestab": ("1", Measure.GAUGE),
    "network.udp.indatagrams": ("1/s", Measure.COUNTER),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PcpCut:
    """The way in which archives become windows. Counts are of samples and windows, so that any rate makes sense."""

    every_s: float = 60.0
    window_samples: int = 16
    stride_samples: int = 4
    episode_windows: int = 8
    reference_share: float = 0.25  # of each host's rows, from its beginning

    @property
    def episode_samples(self) -> int:
        return self.window_samples + (self.episode_windows - 1) * self.stride_samples


@dataclass(frozen=True, slots=True)
class Archive:
    """One archive in memory: ``values`` (S, M) in the order of METRICS, NaN where nothing was recorded."""

    host: str
    t: NDArray[np.float64]  # epoch seconds
    values: NDArray[np.float64]


def read_pcp(archives: Sequence[Path], cut: PcpCut) -> Ingested:
    """Windows of all archives together. Raises DataError."""
    tool = _find("pmrep")
    recorded = [read_archive(tool, path, cut.every_s) for path in archives]
    # Numbered by host and time: the order in which they were named must not name their episodes.
    recorded.sort(key=lambda archive: (archive.host, float(archive.t[0]), archive.t.size))
    kept = [
        name
        for number, name in enumerate(METRICS)
        if all(_is_recorded(archive.values[:, number]) for archive in recorded)
    ]
    if not kept:
        raise DataError("The archives have none of the usual metrics of a Linux host in common.")
    channels = tuple(_spec(name) for name in kept)
    stretches = [_divide(archive, channels, cut) for archive in recorded]
    own_days: dict[str, list[NDArray[np.float32]]] = {}
    for archive, stretch in zip(recorded, stretches, strict=True):
        own_days.setdefault(archive.host, []).append(stretch.reference)
    recorded_of = {host: normalise.Recorded.of(days) for host, days in own_days.items()}
    references = normalise.measure(recorded_of, channels, 1 / cut.every_s)
    windows = [
        _windows_of(archive.host, number, stretch.values, stretch.t, references, cut)
        for number, (archive, stretch) in enumerate(zip(recorded, stretches, strict=True))
    ]
    if not any(w.t_start.size for w in windows):
        raise DataError(
            f"No archive has {cut.window_samples} samples in a row behind its reference: choose a shorter --every-s."
        )
    notes = []
    if len(kept) < len(METRICS):
        missing = ", ".join(name for name in METRICS if name not in kept)
        notes.append(f"Metrics that some archive lacks were left out: {missing}.")
    notes.append("Archives carry no labels: every window counts as benign.")
    joined = _joined(windows)
    return Ingested(
        X=joined.X,
        label=Coded.of(np.full(len(joined.X), BENIGN)),
        episode=Coded.of(joined.episode),
        host=Coded.of(joined.host),
        t_start=joined.t_start,
        channels=channels,
        label_names=(BENIGN, MALICIOUS),
        benign=Benign(names=(BENIGN,), why="archives carry no labels: every window counts as it"),
        sample_hz=1 / cut.every_s,
        stride_s=cut.stride_samples * cut.every_s,
        scenario="pcp",
        source=f"{len(archives)} archives of Performance Co-Pilot",
        clock="the archives' own",
        rate_why="--every-s",
        normaliser={**references.rule, "baseline": f"first {cut.reference_share:.0%} of the archive"},
        notes=tuple(notes),
        empty=_empty(recorded, windows, cut),
        reference=_reference_windows(recorded, stretches, references, cut),
    )


def _empty(recorded: Sequence[Archive], windows: Sequence[_ArchiveWindows], cut: PcpCut) -> tuple[Empty, ...]:
    why = f"it has no {cut.window_samples} samples in a row behind its reference"
    return tuple(
        Empty(
            f"{archive.host}-{number}",
            archive.host,
            float(archive.t[0]),
            float(archive.t[-1] - archive.t[0] + cut.every_s),
            archive.t.size,
            why,
        )
        for number, (archive, found) in enumerate(zip(recorded, windows, strict=True))
        if not found.t_start.size
    )


def _spec(name: str) -> ChannelSpec:
    unit, kind = METRICS[name]
    return ChannelSpec(
        name=name,
        unit=unit,
        kind=str(kind),
        modes=(str(Mode.ORACLE), str(Mode.REALISTIC)),
        transform="symlog",
        scale=SCALES.get(unit, 1.0),
    )


def _is_recorded(values: NDArray[np.float64]) -> bool:
    return bool(np.isnan(values).mean() <= TOO_MUCH_MISSING)


# -- from PCP's tools to arrays ----------------------------------------------------------------------------------------


def _find(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise DataError(
            f"Reading archives of Performance Co-Pilot needs its program {name}: "
            "install it (Debian and Ubuntu: apt install pcp; Fedora: dnf install pcp-system-tools)."
        )
    return found


def read_archive(pmrep: str, path: Path, every_s: float) -> Archive:
    """Host, times and metrics of one archive, interpolated by PCP to one row each ``every_s``. Raises DataError."""
    label = _run([_find("pmdumplog"), "-l", str(path)], path)
    host = next((line.split()[-1] for line in label.splitlines() if line.startswith("Performance metrics")), None)
    if host is None:
        raise DataError(f"{path} is not an archive of Performance Co-Pilot.")
    own = own_step_s(path)
    if own is not None and every_s < FINER * own:
        raise DataError(
            f"{path} holds a sample each {own:.3g} s: --every-s {every_s:g} would draw straight lines between them, "
            f"so say --every-s {own:.0f} or more."
        )
    options = ["--ignore-unknown", "--timezone", "UTC", "--timestamp-format", "%s", "--precision", "6"]
    # Old archives call some gauges counters: asked for raw, they are levels all the same.
    wanted = [name + (",,,,raw" if kind is Measure.GAUGE else "") for name, (_, kind) in METRICS.items()]
    command = [pmrep, "-a", str(path), "-t", f"{every_s:g}s", "-o", "csv", *options, *wanted]
    table = _parse(_run(command, path), path)
    columns = [_metric(table, name) for name in METRICS]
    return Archive(host, table["Time"].to_numpy().astype(np.float64), np.stack(columns, axis=1))


def own_step_s(path: Path) -> float | None:
    """Seconds from sample to sample in the archive itself, or None where it holds none of the metrics asked for."""
    steps = []
    for metric in OWN_STEP_METRICS:
        try:
            said = _run([_find("pmdumplog"), str(path), metric], path)
        except DataError:  # it lacks the metric
            continue
        times = np.array([_of_day(line) for line in said.splitlines() if STAMP.match(line)])
        if times.size > 1:
            steps.append(float(np.median(np.diff(times) % 86_400)))
    return max(steps, default=None)


def _of_day(line: str) -> float:
    hours, minutes, seconds = line.split()[0].split(":")
    return 3600 * float(hours) + 60 * float(minutes) + float(seconds)


def _run(command: Sequence[str], path: Path) -> str:
    # pmrep runs under the first python3 on the path, which must be the system's: it has PCP's module.
    environment = dict(os.environ, TZ="UTC", LC_ALL="C.UTF-8")
    environment["PATH"] = os.pathsep.join([str(Path(command[0]).parent), environment.get("PATH", "")])
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PMREP_TIMEOUT_S, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        raise DataError(f"Reading {path} took longer than {PMREP_TIMEOUT_S} s.") from None
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise DataError(f"{path} cannot be read: {said[-1] if said else 'no reason given'}.")
    return done.stdout


def _parse(text: str, path: Path) -> pl.DataFrame:
    try:
        table = pl.read_csv(io.StringIO(text), infer_schema_length=0)
        return table.with_columns(pl.all().cast(pl.Float64, strict=False))
    except pl.exceptions.PolarsError:
        raise DataError(f"{path} holds none of the usual metrics of a Linux host.") from None


def _metric(table: pl.DataFrame, name: str) -> NDArray[np.float64]:
    """One metric, summed over its instances; the loopback interface carries nothing of interest twice."""
    columns = [
        column
        for column in table.columns
        if column == name or (column.startswith(f"{name}-") and column != f"{name}-lo")
    ]
    if not columns:
        return np.full(table.height, np.nan)
    values = table.select(columns).to_numpy()
    total = np.nansum(values, axis=1)
    return np.where(np.isnan(values).all(axis=1), np.nan, total)


# -- from arrays to windows --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Stretch:
    """The content of an archive, compressed: the reference's rows (B, C), and the rest (S, C); each with its times."""

    reference: NDArray[np.float32]
    values: NDArray[np.float32]
    t_reference: NDArray[np.float64]
    t: NDArray[np.float64]


class _ArchiveWindows(NamedTuple):
    X: NDArray[np.float32]
    episode: NDArray[np.str_]
    host: NDArray[np.str_]
    t_start: NDArray[np.float64]


def _joined(parts: Sequence[_ArchiveWindows]) -> _ArchiveWindows:
    return _ArchiveWindows(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _divide(archive: Archive, channels: Sequence[ChannelSpec], cut: PcpCut) -> _Stretch:
    places = [list(METRICS).index(channel.name) for channel in channels]
    values = archive.values[:, places]
    complete = np.flatnonzero(np.isfinite(values).all(axis=1))
    n_reference = int(cut.reference_share * complete.size)
    if n_reference < cut.window_samples:
        raise DataError(f"{archive.host} has {complete.size} complete samples: too few for a reference and windows.")
    compressed = normalise.compress(values[complete].astype(np.float32), channels)
    t = archive.t[complete]
    return _Stretch(compressed[:n_reference], compressed[n_reference:], t[:n_reference], t[n_reference:])


def _reference_windows(
    recorded: Sequence[Archive], stretches: Sequence[_Stretch], references: normalise.NormalReferences, cut: PcpCut
) -> WindowSet | None:
    parts = [
        _windows_of(archive.host, number, stretch.reference, stretch.t_reference, references, cut)
        for number, (archive, stretch) in enumerate(zip(recorded, stretches, strict=True))
    ]
    X, episode, host, start = _joined(parts)
    if not start.size:
        return None
    return WindowSet(
        X=np.ascontiguousarray(X, dtype=np.float32),
        rows=Rows.of(
            episode=episode,
            host=host,
            t_start=start,
            t_end=start + cut.window_samples * cut.every_s,
            label=np.full(start.size, REFERENCE),
        ),
    )


def _windows_of(
    host: str,
    number: int,
    values: NDArray[np.float32],
    t: NDArray[np.float64],
    references: normalise.NormalReferences,
    cut: PcpCut,
) -> _ArchiveWindows:
    normal = normalise.apply(values, host, references)
    block = _blocks(t, cut)
    first = window_starts(t, block, 1 / cut.every_s, cut.window_samples, cut.stride_samples)
    X = np.empty((0, normal.shape[1], cut.window_samples), dtype=np.float32)
    if first.size:
        X = sliding_window_view(normal, cut.window_samples, axis=0)[first]
    begun = t[np.searchsorted(block, block[first])]  # blocks are numbered in the order of time
    episode = np.array([f"{host}-{number}-{int(begin)}" for begin in begun], dtype=np.str_)
    return _ArchiveWindows(X, episode, np.full(first.size, host), t[first])


def _blocks(t: NDArray[np.float64], cut: PcpCut) -> NDArray[np.int64]:
    """Number of the episode that each row belongs to: blocks of equal length, afresh after every gap."""
    rows = np.arange(t.size)
    gap = np.r_[True, np.diff(t) > 1.5 * cut.every_s]
    place = rows - np.maximum.accumulate(np.where(gap, rows, 0))
    return np.cumsum(place % cut.episode_samples == 0)

"""Windows from archives of Performance Co-Pilot, the standard recorder of Linux telemetry.

``pmrep`` (Debian's package pcp) reads the archive; nothing has to run or be configured. An archive says which host it
comes from and when, never what went on: every window counts as benign, which is what an anomaly detector learns from
and what a false alarm is measured on.

An archive is cut into episodes of a few windows each, so that splits have something to divide; no window crosses from
one episode into the next. The first part of every host's time is its baseline: it is set apart before anything is known
of it, the host's other windows are normalised against it, and it trains and tests nothing.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from training.data.channels import Kind, Mode
from training.data.errors import DataError
from training.data.ingest_long import window_starts
from training.data.ingested import BENIGN, MALICIOUS, Ingested
from training.data.schema import ChannelSpec

PMREP_TIMEOUT_S = 600
SCALE_MIN = 0.05  # of a channel that hardly moved in the baseline, on the scale of log1p
CLIP = 10.0  # scales: what is further off than this is simply far off
TOO_MUCH_MISSING = (
    0.5  # share of a host's rows without a value from which a channel is not recorded there
)

# Metrics that practically every Linux archive holds; rates where PCP counts. Instances (interfaces) are summed.
METRICS: dict[str, tuple[str, Kind]] = {
    "kernel.all.cpu.user": ("ms/s", Kind.COUNTER),
    "kernel.all.cpu.sys": ("ms/s", Kind.COUNTER),
    "kernel.all.cpu.idle": ("ms/s", Kind.COUNTER),
    "kernel.all.cpu.wait.total": ("ms/s", Kind.COUNTER),
    "kernel.all.cpu.nice": ("ms/s", Kind.COUNTER),
    "kernel.all.cpu.intr": ("ms/s", Kind.COUNTER),
    "kernel.all.intr": ("1/s", Kind.COUNTER),
    "kernel.all.pswitch": ("1/s", Kind.COUNTER),
    "kernel.all.sysfork": ("1/s", Kind.COUNTER),
    "kernel.all.nprocs": ("1", Kind.GAUGE),
    "kernel.all.runnable": ("1", Kind.GAUGE),
    "disk.all.read": ("1/s", Kind.COUNTER),
    "disk.all.write": ("1/s", Kind.COUNTER),
    "disk.all.read_bytes": ("KiB/s", Kind.COUNTER),
    "disk.all.write_bytes": ("KiB/s", Kind.COUNTER),
    "disk.all.avactive": ("ms/s", Kind.COUNTER),
    "mem.util.free": ("KiB", Kind.GAUGE),
    "mem.util.used": ("KiB", Kind.GAUGE),
    "mem.util.cached": ("KiB", Kind.GAUGE),
    "mem.util.bufmem": ("KiB", Kind.GAUGE),
    "mem.util.dirty": ("KiB", Kind.GAUGE),
    "network.interface.in.bytes": ("B/s", Kind.COUNTER),
    "network.interface.out.bytes": ("B/s", Kind.COUNTER),
    "network.tcp.insegs": ("1/s", Kind.COUNTER),
    "network.tcp.outsegs": ("1/s", Kind.COUNTER),
    "network.tcp.activeopens": ("1/s", Kind.COUNTER),
    "network.tcp.passiveopens": ("1/s", Kind.COUNTER),
    "network.tcp.currestab": ("1", Kind.GAUGE),
    "network.udp.indatagrams": ("1/s", Kind.COUNTER),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PcpCut:
    """How archives become windows. Counts are of samples and windows, so that any rate makes sense."""

    every_s: float = 60.0
    window_samples: int = 16
    stride_samples: int = 4
    episode_windows: int = 8
    baseline_share: float = 0.25  # of each host's rows, from its beginning

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
    metrics = list(METRICS)
    shared = np.array(
        [all(_is_recorded(a.values[:, m]) for a in recorded) for m in range(len(metrics))]
    )
    if not shared.any():
        raise DataError("The archives have none of the usual metrics of a Linux host in common.")
    missing = [name for name, kept in zip(metrics, shared, strict=True) if not kept]
    parts = [_windows_of(archive, shared, cut, n) for n, archive in enumerate(recorded)]
    X = np.concatenate([part[0] for part in parts])
    if X.shape[0] == 0:
        raise DataError(
            f"No archive has {cut.window_samples} samples in a row behind its baseline: "
            "choose a shorter --every-s."
        )
    notes = [f"Metrics that some archive lacks were left out: {', '.join(missing)}."] * bool(
        missing
    )
    notes += [
        f"{a.host} has no windows." for a, p in zip(recorded, parts, strict=True) if not p[0].size
    ]
    notes.append("Archives carry no labels: every window counts as benign.")
    names = [name for name, kept in zip(metrics, shared, strict=True) if kept]
    return Ingested(
        X=X,
        label=np.full(X.shape[0], BENIGN),
        episode=np.concatenate([part[1] for part in parts]),
        host=np.concatenate(
            [np.full(p[0].shape[0], a.host) for p, a in zip(parts, recorded, strict=True)]
        ),
        t_start=np.concatenate([part[2] for part in parts]),
        channels=tuple(_spec(name) for name in names),
        label_names=(BENIGN, MALICIOUS),
        sample_hz=1 / cut.every_s,
        stride_s=cut.stride_samples * cut.every_s,
        scenario="pcp",
        normaliser={
            "kind": "baseline",
            "rule": "log1p, then (x - median) / scale of the host's own baseline",
            "scale": "half the distance between the 16th and the 84th percentile",
            "scale_min": str(SCALE_MIN),
            "clip": str(CLIP),
            "baseline": f"first {cut.baseline_share:.0%} of the host's recording",
        },
        notes=tuple(notes),
    )


def _spec(name: str) -> ChannelSpec:
    unit, kind = METRICS[name]
    modes = (str(Mode.ORACLE), str(Mode.REALISTIC))
    return ChannelSpec(name=name, unit=unit, kind=str(kind), modes=modes, transform="log1p")


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
    host = next(
        (line.split()[-1] for line in label.splitlines() if line.startswith("Performance metrics")),
        None,
    )
    if host is None:
        raise DataError(f"{path} is not an archive of Performance Co-Pilot.")
    options = [
        "--ignore-unknown",
        "--timezone",
        "UTC",
        "--timestamp-format",
        "%s",
        "--precision",
        "6",
    ]
    command = [pmrep, "-a", str(path), "-t", f"{every_s:g}s", "-o", "csv", *options, *METRICS]
    table = _parse(_run(command, path), path)
    columns = [_metric(table, name) for name in METRICS]
    return Archive(host, table["Time"].to_numpy().astype(np.float64), np.stack(columns, axis=1))


def _run(command: Sequence[str], path: Path) -> str:
    # pmrep runs under the first python3 on the path, which must be the system's: it has PCP's module.
    environment = dict(os.environ, TZ="UTC", LC_ALL="C.UTF-8")
    environment["PATH"] = os.pathsep.join(
        [str(Path(command[0]).parent), environment.get("PATH", "")]
    )
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=PMREP_TIMEOUT_S,
            env=environment,
            check=False,
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


def _windows_of(
    archive: Archive, shared: NDArray[np.bool_], cut: PcpCut, number: int
) -> tuple[NDArray[np.float32], NDArray[np.str_], NDArray[np.float64]]:
    """Windows (n, C, T) of one archive, their episodes and their starts."""
    values = np.log1p(np.maximum(archive.values[:, shared], 0.0))  # NaN stays NaN
    complete = np.flatnonzero(np.isfinite(values).all(axis=1))
    n_baseline = int(cut.baseline_share * complete.size)
    if n_baseline < cut.window_samples:
        raise DataError(
            f"{archive.host} has {complete.size} complete samples: too few for a baseline and windows."
        )
    baseline, rows = values[complete[:n_baseline]], complete[n_baseline:]
    low, middle, high = np.quantile(baseline, [0.16, 0.5, 0.84], axis=0)
    normal = np.clip((values[rows] - middle) / np.maximum((high - low) / 2, SCALE_MIN), -CLIP, CLIP)
    t = archive.t[rows]
    block = _blocks(t, cut)
    first = window_starts(t, block, 1 / cut.every_s, cut.window_samples, cut.stride_samples)
    if first.size == 0:
        empty = np.empty((0, normal.shape[1], cut.window_samples), dtype=np.float32)
        return empty, np.empty(0, dtype=np.str_), np.empty(0)
    X = sliding_window_view(normal, cut.window_samples, axis=0)[first].astype(np.float32)
    begun = t[np.searchsorted(block, block[first])]  # blocks are numbered in the order of time
    episode = [f"{archive.host}-{number}-{int(begin)}" for begin in begun]
    return X, np.array(episode), t[first]


def _blocks(t: NDArray[np.float64], cut: PcpCut) -> NDArray[np.int64]:
    """Number of the episode that each row belongs to: blocks of equal length, afresh after every gap."""
    rows = np.arange(t.size)
    gap = np.r_[True, np.diff(t) > 1.5 * cut.every_s]
    place = rows - np.maximum.accumulate(np.where(gap, rows, 0))
    return np.cumsum(place % cut.episode_samples == 0)

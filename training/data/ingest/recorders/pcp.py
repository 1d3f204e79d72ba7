"""Samples from archives of Performance Co-Pilot, the standard recorder of Linux telemetry.

``pmrep`` (Debian's package pcp) reads an archive, and converts PCP's counters to growth per second; no service has to
run. An archive names its host and times, but has no labels.
"""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from training.data.errors import DataError
from training.data.ingest.recorders.recorded import RecordedTable, Recording, is_counter, recorded
from training.data.values import Floats

PMREP_TIMEOUT_S = 600
STAMP = re.compile(r"\d{2}:\d{2}:\d{2}\.\d+\s")
# Recorded by practically every archive, and at one interval.
OWN_STEP_METRICS = ("kernel.all.nprocs", "kernel.all.cpu.user")
FINER = 0.9  # of an archive's own step: reading below it draws straight lines
MS, KIB = 0.001, 1024.0
# Channel: its metric, whose instances (interfaces) are summed, and what one of its unit is in ours.
METRICS: Mapping[str, tuple[str, float]] = {
    "cpu_user": ("kernel.all.cpu.user", MS),
    "cpu_system": ("kernel.all.cpu.sys", MS),
    "cpu_iowait": ("kernel.all.cpu.wait.total", MS),
    "cpu_irq": ("kernel.all.cpu.intr", MS),
    "cpu_steal": ("kernel.all.cpu.steal", MS),
    "context_switches": ("kernel.all.pswitch", 1.0),
    "interrupts": ("kernel.all.intr", 1.0),
    "forks": ("kernel.all.sysfork", 1.0),
    "page_faults": ("mem.vmstat.pgfault", 1.0),
    "page_faults_major": ("mem.vmstat.pgmajfault", 1.0),
    "disk_read_bytes": ("disk.all.read_bytes", KIB),
    "disk_write_bytes": ("disk.all.write_bytes", KIB),
    "disk_reads": ("disk.all.read", 1.0),
    "disk_writes": ("disk.all.write", 1.0),
    "net_rx_bytes": ("network.interface.in.bytes", 1.0),
    "net_tx_bytes": ("network.interface.out.bytes", 1.0),
    "net_rx_packets": ("network.interface.in.packets", 1.0),
    "net_tx_packets": ("network.interface.out.packets", 1.0),
    "tcp_active_opens": ("network.tcp.activeopens", 1.0),
    "tcp_passive_opens": ("network.tcp.passiveopens", 1.0),
    "tcp_attempt_fails": ("network.tcp.attemptfails", 1.0),
    "tcp_resets_sent": ("network.tcp.outrsts", 1.0),
    "tcp_retransmits": ("network.tcp.retranssegs", 1.0),
    "udp_rx_datagrams": ("network.udp.indatagrams", 1.0),
    "udp_tx_datagrams": ("network.udp.outdatagrams", 1.0),
    "processes": ("kernel.all.nprocs", 1.0),
    "memory_dirty": ("mem.util.dirty", KIB),
    "memory_writeback": ("mem.util.writeback", KIB),
    "tcp_established": ("network.tcp.currestab", 1.0),
}


def read_pcp(archives: Sequence[Path], every_s: float) -> RecordedTable:
    """Read the archives. Raises DataError."""
    pmrep = _find("pmrep")
    source = archives[0] if len(archives) == 1 else Path(f"{len(archives)} archives of Performance Co-Pilot")
    return recorded(source, [_read(pmrep, path, every_s) for path in archives], "Performance Co-Pilot")


def _find(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise DataError(
            f"Reading archives of Performance Co-Pilot needs its program {name}: "
            "install it (Debian and Ubuntu: apt install pcp; Fedora: dnf install pcp-system-tools)."
        )
    return found


def _read(pmrep: str, path: Path, every_s: float) -> Recording:
    """Host, times and channels of one archive, interpolated by PCP to one row each ``every_s``. Raises DataError."""
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
    wanted = [metric + ("" if is_counter(name) else ",,,,raw") for name, (metric, _) in METRICS.items()]
    said = _run([pmrep, "-a", str(path), "-t", f"{every_s:g}s", "-o", "csv", *options, *wanted], path)
    names, *rows = [row for row in csv.reader(said.splitlines()) if row] or [[]]
    if names[:1] != ["Time"] or not rows:
        raise DataError(f"{path} holds none of the usual metrics of a Linux host.")
    cells = np.array([[_number(cell) for cell in row] for row in rows])
    values = {name: _summed(cells, names, metric) * by for name, (metric, by) in METRICS.items()}
    return Recording(host=host, t=cells[:, 0], values=values)


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return np.nan


def _summed(cells: Floats, names: Sequence[str], metric: str) -> Floats:
    """One metric, summed over its instances; NaN if no instance has a value."""
    values = cells[:, [name == metric or name.startswith(f"{metric}-") for name in names]]
    known = ~np.isnan(values)
    return np.where(known.any(axis=1), np.where(known, values, 0.0).sum(axis=1), np.nan)


def own_step_s(path: Path) -> float | None:
    """Return the archive's own step in seconds: the longest median step of ``OWN_STEP_METRICS``; None where unknown."""
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

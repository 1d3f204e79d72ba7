"""Read samples from archives of Performance Co-Pilot, a recorder of Linux telemetry.

``pmrep`` (Debian's package pcp) reads an archive, and converts PCP's counters to growth per second; no service has to
run. An archive names its host and times, but has no labels.
"""

import csv
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from training.data.errors import DataError
from training.data.ingest.recorders import recorded as shared
from training.data.values import Floats

STAMP = re.compile(r"\d{2}:\d{2}:\d{2}\.\d+\s")
# Recorded by practically every archive, and at one interval.
OWN_STEP_METRICS = ("kernel.all.nprocs", "kernel.all.cpu.user")
FINER = 0.9  # of an archive's own step: reading below it draws straight lines
# Channel: its metric, whose instances (interfaces) are summed, and what one of its unit is in ours.
_METRICS = """
    cpu_user kernel.all.cpu.user 0.001
    cpu_system kernel.all.cpu.sys 0.001
    cpu_iowait kernel.all.cpu.wait.total 0.001
    cpu_irq kernel.all.cpu.intr 0.001
    cpu_steal kernel.all.cpu.steal 0.001
    context_switches kernel.all.pswitch
    interrupts kernel.all.intr
    forks kernel.all.sysfork
    page_faults mem.vmstat.pgfault
    page_faults_major mem.vmstat.pgmajfault
    disk_read_bytes disk.all.read_bytes 1024
    disk_write_bytes disk.all.write_bytes 1024
    disk_reads disk.all.read
    disk_writes disk.all.write
    net_rx_bytes network.interface.in.bytes
    net_tx_bytes network.interface.out.bytes
    net_rx_packets network.interface.in.packets
    net_tx_packets network.interface.out.packets
    tcp_active_opens network.tcp.activeopens
    tcp_passive_opens network.tcp.passiveopens
    tcp_attempt_fails network.tcp.attemptfails
    tcp_resets_sent network.tcp.outrsts
    tcp_retransmits network.tcp.retranssegs
    udp_rx_datagrams network.udp.indatagrams
    udp_tx_datagrams network.udp.outdatagrams
    processes kernel.all.nprocs
    memory_dirty mem.util.dirty 1024
    memory_writeback mem.util.writeback 1024
    tcp_established network.tcp.currestab
"""
METRICS = shared.in_our_units(_METRICS)


def read_pcp(archives: Sequence[Path], every_s: float) -> shared.RecordedTable:
    """Return the samples in the archives, one for each ``every_s`` seconds. Raises DataError."""
    pmrep = _find("pmrep")
    source = shared.source_of(archives, "archives of Performance Co-Pilot")
    return shared.recorded(source, [_read(pmrep, path, every_s) for path in archives], "Performance Co-Pilot")


def _find(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise DataError(
            f"Reading archives of Performance Co-Pilot needs its program {name}: "
            "install it (Debian and Ubuntu: apt install pcp; Fedora: dnf install pcp-system-tools)."
        )
    return found


def _read(pmrep: str, path: Path, every_s: float) -> shared.Recording:
    """Return the host, times and channels of one archive; ``pmrep`` interpolates them to one row for each ``every_s``
    seconds. Raises DataError."""
    label = _run([_find("pmdumplog"), "-l", str(path)], path)
    host = next((line.split()[-1] for line in label.splitlines() if line.startswith("Performance metrics")), None)
    if host is None:
        raise DataError(f"{path} is not an archive of Performance Co-Pilot.")
    own = own_step_s(path)
    if own is not None and every_s < FINER * own:
        raise DataError(
            f"{path} holds a sample each {own:.3g} s: --every-s {every_s:g} would draw straight lines between them, "
            f"so say --every-s {own:.3g} or more."
        )
    options = ["--ignore-unknown", "--timezone", "UTC", "--timestamp-format", "%s", "--precision", "6"]
    # Old archives call some gauges counters: asked for raw, they are levels all the same.
    wanted = [metric + ("" if shared.is_counter(name) else ",,,,raw") for name, (metric, _) in METRICS.items()]
    said = _run([pmrep, "-a", str(path), "-t", f"{every_s:g}s", "-o", "csv", *options, *wanted], path)
    names, *rows = [row for row in csv.reader(said.splitlines()) if row] or [[]]
    if names[:1] != ["Time"] or not rows:
        raise DataError(f"{path} holds no values of the usual metrics of a Linux host.")
    cells = np.array([[_number(cell) for cell in row] for row in rows])
    values = {name: _summed(cells, names, metric) * by for name, (metric, by) in METRICS.items()}
    return shared.Recording(host=host, t=cells[:, 0], values=values)


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return np.nan


def _summed(cells: Floats, names: Sequence[str], metric: str) -> Floats:
    """Return one metric's values (S), summed over its instances; NaN if no instance has a value."""
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
    done = shared.run(command, path, PATH=os.pathsep.join([str(Path(command[0]).parent), os.environ.get("PATH", "")]))
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
        raise DataError(f"{path} cannot be read: {said[-1] if said else 'no reason given'}.")
    return done.stdout.decode()

"""Read samples from sysstat's daily files (``/var/log/sysstat/sa23``).

``sadf`` (Debian's package sysstat) converts these files to JSON. A file that already contains that JSON is read
directly, so that nothing has to be installed on the machine that ingests. The rates in the JSON are growth per second;
shares of processor time are multiplied by the number of processors, and become seconds per second.
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from training.data.errors import DataError
from training.data.ingest.printed import is_sysstat
from training.data.ingest.recorders import recorded as shared
from training.data.values import Json

# Activities of `sar`: processors, tasks, interrupts, paging, transfers, queues and pressure, memory, network.
ACTIVITIES = ("-u", "ALL", "-w", "-I", "SUM", "-B", "-b", "-q", "ALL", "-r", "ALL", "-n", "DEV,TCP,ETCP,UDP")
KIB = 1024.0
# Channel: its place in a record, and what one of its unit is in ours. Shares of a processor's time are in CPU_SHARES.
_PLACES = """
    pressure_cpu psi.psi-cpu.some_avg 0.01
    pressure_io psi.psi-io.some_avg 0.01
    pressure_memory psi.psi-mem.some_avg 0.01
    context_switches process-and-context-switch.cswch
    forks process-and-context-switch.proc
    page_faults paging.fault
    page_faults_major paging.majflt
    disk_read_bytes io.io-reads.bread 512
    disk_write_bytes io.io-writes.bwrtn 512
    disk_reads io.io-reads.rtps
    disk_writes io.io-writes.wtps
    tcp_active_opens network.net-tcp.active
    tcp_passive_opens network.net-tcp.passive
    tcp_attempt_fails network.net-etcp.atmptf
    tcp_resets_sent network.net-etcp.orsts
    tcp_retransmits network.net-etcp.retrans
    udp_rx_datagrams network.net-udp.idgm
    udp_tx_datagrams network.net-udp.odgm
    load_1m queue.ldavg-1
    threads queue.plist-sz
    memory_dirty memory.dirty 1024
"""
PLACES = shared.in_our_units(_PLACES)
CPU_SHARES = {
    "cpu_user": ("usr", "guest"),  # ours has the guests' time in it
    "cpu_system": ("sys",),
    "cpu_iowait": ("iowait",),
    "cpu_irq": ("irq", "soft"),
    "cpu_steal": ("steal",),
}
_INTERFACES = """
    net_rx_bytes rxkB 1024
    net_tx_bytes txkB 1024
    net_rx_packets rxpck
    net_tx_packets txpck
"""
INTERFACES = shared.in_our_units(_INTERFACES)
HEAD_BYTES = 512
MEMORY = ("memfree", "memused", "buffers", "cached", "slab")  # all of it together


def read_sysstat(paths: Sequence[Path]) -> shared.RecordedTable:
    """Return the samples in daily files of ``sadc``, or in JSON that ``sadf -j`` made of them. Raises DataError."""
    recordings = [recording for path in paths for recording in _recordings(_json_of(path), path)]
    return shared.recorded(shared.source_of(paths, "files of sysstat"), recordings, "sysstat")


def _json_of(path: Path) -> bytes:
    content = shared.content_of(path)
    if content.lstrip().startswith(b"{"):
        return content
    if is_sysstat([content[:HEAD_BYTES].decode(errors="replace")]):
        raise DataError(f"{path} is the text that sar or iostat printed: give it as a file, without --sysstat.")
    sadf = shutil.which("sadf")
    if sadf is None:
        raise DataError(
            "Reading files of sysstat needs its program sadf: install it (Debian and Ubuntu: apt install sysstat), or "
            f"bring what it makes of them where they are: sadf -j {path} -- -A > {path.name}.json."
        )
    done = shared.run([sadf, "-j", str(path), "--", *ACTIVITIES], path)
    if done.returncode:  # sysstat before 12.3 has fewer words for its activities
        done = shared.run([sadf, "-j", str(path), "--", "-A"], path)
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
        raise DataError(
            f"{path} cannot be read by sadf ({said[0] if said else 'no reason given'}): if another version of sysstat "
            f"wrote it, say sadf -c {path} > {path.name}.new there, and bring that."
        )
    return done.stdout


def _recordings(document: bytes, path: Path) -> Iterable[shared.Recording]:
    try:
        hosts = msgspec.json.decode(document)["sysstat"]["hosts"]
        found = [_recording(host) for host in hosts]
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, IndexError):
        raise DataError(
            f"{path} is not what sadf -j writes of a file of sysstat, or only a part of it: write it again."
        ) from None
    if not any(one.t.size for one in found):
        raise DataError(f"{path} holds no samples: sysstat needs two records for one.")
    return found


def _recording(host: Json) -> shared.Recording:
    records = [record for record in host["statistics"] if "timestamp" in record]
    if any(not record["timestamp"].get("utc", 1) for record in records):
        raise DataError("sadf wrote local times (-t or -T): write it again without, in UTC.")
    cpus = float(host["number-of-cpus"])
    rows = [_sample(record, cpus) for record in records]
    names = sorted({name for row in rows for name in row})
    values = {name: np.array([row.get(name, np.nan) for row in rows], float) for name in names}
    return shared.Recording(
        host=str(host["nodename"]), t=np.array([_seconds(r["timestamp"]) for r in records]), values=values
    )


def _seconds(stamp: Json) -> float:
    return datetime.fromisoformat(f"{stamp['date']} {stamp['time']}").replace(tzinfo=UTC).timestamp()


def _sample(record: Json, cpus: float) -> dict[str, float]:
    """Return the values of one record by channel, in this project's units; ``cpus`` is the number of processors."""
    found = {name: value * by for name, (place, by) in PLACES.items() if (value := _at(record, place)) is not None}
    everything = next((one for one in record.get("cpu-load", ()) if one["cpu"] == "all"), None)
    if everything is not None and "irq" in everything:  # else guests, or interrupts, count elsewhere
        for name, parts in CPU_SHARES.items():
            found[name] = sum(float(everything[part]) for part in parts) / 100 * cpus
    for one in record.get("interrupts", ()):
        if one["intr"] == "sum":
            found["interrupts"] = float(one["all"] if "all" in one else one["value"])
    devices = record.get("network", {}).get("net-dev", ())
    for name, (key, by) in INTERFACES.items() if devices else ():
        found[name] = sum(float(device[key]) for device in devices) * by
    memory = record.get("memory", {})
    if "avail" in memory and all(part in memory for part in MEMORY):
        found["memory_used"] = (sum(float(memory[part]) for part in MEMORY) - float(memory["avail"])) * KIB
    return found


def _at(record: Any, place: str) -> float | None:
    for key in place.split("."):
        record = record.get(key) if isinstance(record, Mapping) else None
    return None if record is None else float(record)

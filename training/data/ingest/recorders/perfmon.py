"""Samples from Windows' performance monitor: the CSV that ``relog`` and ``typeperf`` write, in English or German.

Its first line is ``"(PDH-CSV 4.0) (zone)(minutes)","\\\\HOST\\Object(instance)\\Counter",…``;
times are local, the month first, and the minutes say what to add for UTC. An empty cell is a missing value.
"""

from __future__ import annotations

import csv
import io
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np

from training.data.errors import DataError
from training.data.ingest import even
from training.data.ingest.dialect import encoding_of
from training.data.ingest.recorders.recorded import RecordedTable, Recording, recorded

FIRST_CELL = re.compile(r'\ufeff?"?\(PDH-[^"]*?"?([,;\t])"')
HEAD = re.compile(r"^\(PDH-[CT]SV \d+\.\d+\)\s*(?:\((?P<zone>.*)\)\((?P<minutes>-?\d+)\))?\s*$")
PATH = re.compile(r"^\\\\(?P<host>[^\\]+)\\(?P<object>[^\\(]+?)(?:\((?P<instance>.*)\))?\\(?P<counter>.+)$")
STAMP = "%m/%d/%Y %H:%M:%S.%f"
PER_SECOND = re.compile(r"\s*/\s*(sec|sek|sekunde|s)\.?$")
OBJECTS = {
    "prozessor": "processor",
    "processor information": "processor",
    "prozessorinformationen": "processor",
    "arbeitsspeicher": "memory",
    "speicher": "memory",
    "physikalischer datenträger": "physicaldisk",
    "physischer datenträger": "physicaldisk",
    "netzwerkschnittstelle": "network interface",
    "tcpv6": "tcpv4",
    "udpv6": "udpv4",
}
COUNTERS = {
    "benutzerzeit (%)": "% user time",
    "% benutzerzeit": "% user time",
    "privilegierte zeit (%)": "% privileged time",
    "% privilegierte zeit": "% privileged time",
    "interruptzeit (%)": "% interrupt time",
    "% interruptzeit": "% interrupt time",
    "kontextwechsel/s": "context switches/s",
    "prozesse": "processes",
    "seitenfehler/s": "page faults/s",
    "bytes gelesen/s": "disk read bytes/s",
    "gelesene bytes/s": "disk read bytes/s",
    "bytes geschrieben/s": "disk write bytes/s",
    "geschriebene bytes/s": "disk write bytes/s",
    "lesevorgänge/s": "disk reads/s",
    "schreibvorgänge/s": "disk writes/s",
    "empfangene bytes/s": "bytes received/s",
    "bytes empfangen/s": "bytes received/s",
    "gesendete bytes/s": "bytes sent/s",
    "bytes gesendet/s": "bytes sent/s",
    "empfangene pakete/s": "packets received/s",
    "pakete empfangen/s": "packets received/s",
    "gesendete pakete/s": "packets sent/s",
    "pakete gesendet/s": "packets sent/s",
    "aktive verbindungen": "connections active",
    "passive verbindungen": "connections passive",
    "verbindungsfehler": "connection failures",
    "hergestellte verbindungen": "connections established",
    "erneut übertragene segmente/s": "segments retransmitted/s",
    "segmente erneut übertragen/s": "segments retransmitted/s",
    "empfangene datagramme/s": "datagrams received/s",
    "datagramme empfangen/s": "datagrams received/s",
    "gesendete datagramme/s": "datagrams sent/s",
    "datagramme gesendet/s": "datagrams sent/s",
}
TOTAL, EACH, SUM = "_total", "each", "sum"


class Meaning(NamedTuple):
    """The channel that a counter becomes, the instances that are summed for it, and whether it is a running total."""

    channel: str
    of: str
    is_total: bool = False


MEANINGS: Mapping[tuple[str, str], Meaning] = {
    ("processor", "% user time"): Meaning("cpu_user", EACH),
    ("processor", "% privileged time"): Meaning("cpu_system", EACH),
    ("processor", "% interrupt time"): Meaning("cpu_irq", EACH),
    ("processor", "interrupts/s"): Meaning("interrupts", TOTAL),
    ("system", "context switches/s"): Meaning("context_switches", SUM),
    ("system", "processes"): Meaning("processes", SUM),
    ("system", "threads"): Meaning("threads", SUM),
    ("memory", "page faults/s"): Meaning("page_faults", SUM),
    ("physicaldisk", "disk read bytes/s"): Meaning("disk_read_bytes", TOTAL),
    ("physicaldisk", "disk write bytes/s"): Meaning("disk_write_bytes", TOTAL),
    ("physicaldisk", "disk reads/s"): Meaning("disk_reads", TOTAL),
    ("physicaldisk", "disk writes/s"): Meaning("disk_writes", TOTAL),
    ("network interface", "bytes received/s"): Meaning("net_rx_bytes", SUM),
    ("network interface", "bytes sent/s"): Meaning("net_tx_bytes", SUM),
    ("network interface", "packets received/s"): Meaning("net_rx_packets", SUM),
    ("network interface", "packets sent/s"): Meaning("net_tx_packets", SUM),
    ("tcpv4", "connections active"): Meaning("tcp_active_opens", SUM, is_total=True),
    ("tcpv4", "connections passive"): Meaning("tcp_passive_opens", SUM, is_total=True),
    ("tcpv4", "connection failures"): Meaning("tcp_attempt_fails", SUM, is_total=True),
    ("tcpv4", "segments retransmitted/s"): Meaning("tcp_retransmits", SUM),
    ("tcpv4", "connections established"): Meaning("tcp_established", SUM),
    ("udpv4", "datagrams received/s"): Meaning("udp_rx_datagrams", SUM),
    ("udpv4", "datagrams sent/s"): Meaning("udp_tx_datagrams", SUM),
}


def read_perfmon(paths: Sequence[Path]) -> RecordedTable:
    """Read the files. Raises DataError."""
    recordings: list[Recording] = []
    notes: list[str] = []
    for path in paths:
        found, said = _read(path)
        recordings += found
        notes += said
    source = paths[0] if len(paths) == 1 else Path(f"{len(paths)} files of the performance monitor")
    return recorded(source, recordings, "performance monitor", tuple(dict.fromkeys(notes)))


def _read(path: Path) -> tuple[list[Recording], list[str]]:
    try:
        text = path.read_bytes().decode(encoding_of(path))
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}).") from None
    lines = [line for line in text.splitlines() if line.strip()]
    sign = FIRST_CELL.match(lines[0]) if lines else None
    rows = list(csv.reader(io.StringIO("\n".join(lines)), delimiter=sign[1] if sign else ","))
    head = HEAD.match(rows[0][0].lstrip("\ufeff")) if rows and rows[0] else None
    if head is None:
        raise DataError(
            f"{path} is not what relog writes as CSV (its first line begins with (PDH-CSV 4.0)): make it with relog "
            "LOG.blg -f csv -o FILE.csv; other tables are read without --perfmon."
        )
    notes = [] if head["minutes"] else [f"{path.name} names no time zone: its times are read as UTC."]
    t, cells = _samples(rows, path, int(head["minutes"] or 0))
    by_host: dict[str, dict[Meaning, dict[str, np.ndarray]]] = defaultdict(lambda: defaultdict(dict))
    unknown = 0
    for place, name in enumerate(rows[0][1:]):
        found = PATH.match(name)
        meaning = _meaning(found["object"], found["counter"]) if found else None
        if found is None or meaning is None:
            unknown += 1
        else:
            key = f"{found['object'].casefold()}({found['instance']})" if meaning.of == SUM else found["instance"] or ""
            by_host[found["host"]][meaning][key.casefold()] = cells[:, place]
    if unknown:
        notes.append(f"{unknown:,} counters of {path.name} mean none of our channels: left out.")
    recordings = []
    for host, meanings in by_host.items():
        values = {}
        for meaning, instances in meanings.items():
            column = _channel(meaning, instances, t)
            if column is None:
                notes.append(
                    f"{meaning.channel} of {host} was left out: it needs a column for each processor, as in relog -c "
                    r'"\Processor(*)\*".'
                )
            else:
                values[meaning.channel] = column
        recordings.append(Recording(host=host, t=t, values=values))
    return recordings, notes


def _meaning(of: str, counter: str) -> Meaning | None:
    of = OBJECTS.get(of.casefold(), of.casefold())
    word = PER_SECOND.sub("/s", counter.strip().casefold())
    return MEANINGS.get((of, COUNTERS.get(word, word)))


def _samples(rows: Sequence[Sequence[str]], path: Path, minutes: int) -> tuple[np.ndarray, np.ndarray]:
    """Times in UTC and cells (S, columns); lines with a program's closing messages are left out."""
    width = len(rows[0])
    kept = [row for row in rows[1:] if len(row) == width]
    if not kept:
        raise DataError(f"{path} holds no samples.")
    if len(rows[1:]) - len(kept) > 2:
        raise DataError(
            f"{len(rows[1:]) - len(kept)} lines of {path} have not {width} columns: it is torn, write it again."
        )
    try:
        t = [datetime.strptime(row[0], STAMP).replace(tzinfo=UTC) + timedelta(minutes=minutes) for row in kept]
        # A German system may write decimal commas; the cells are in quotes.
        cells = np.array(
            [[float(cell.replace(",", ".")) if cell.strip() else np.nan for cell in row[1:]] for row in kept]
        )
    except ValueError as error:
        raise DataError(f"{path} holds what relog does not write ({error}): make it with relog -f csv.") from None
    begins = int(len(kept) > 1 and bool((np.isnan(cells[0]) & ~np.isnan(cells[1])).any()))  # a rate needs two
    return np.array([at.timestamp() for at in t])[begins:], cells[begins:]


def _channel(meaning: Meaning, instances: Mapping[str, np.ndarray], t: np.ndarray) -> np.ndarray | None:
    """A channel computed from its instances' columns; None if they are not enough."""
    if meaning.of == EACH:  # shares of a processor's time, in percent
        each = {name: column / 100 for name, column in instances.items() if TOTAL not in name}
        # "Processor Information" has "0,3" for the fourth processor of the first group, "Processor" has "3".
        plain = [column for name, column in each.items() if "," not in name]
        return np.sum(plain or list(each.values()), axis=0) if each else None
    parts = [column for name, column in instances.items() if TOTAL not in name]
    if meaning.of == TOTAL and any(TOTAL in name for name in instances):
        parts = [column for name, column in instances.items() if name == TOTAL]
    if meaning.is_total:
        parts = [even.rates(column, t, np.zeros(t.size, dtype=np.int64)) for column in parts]
    return np.sum(parts, axis=0) if parts else None

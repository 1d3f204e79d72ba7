"""Read samples of Windows' performance monitor from the CSV that ``relog`` and ``typeperf`` write, in English or
German.

The first line of this CSV is ``"(PDH-CSV 4.0) (zone)(minutes)","\\\\HOST\\Object(instance)\\Counter",…``; times are
local, the month first, and the minutes say what to add for UTC. An empty cell is a missing value.
"""

import csv
import io
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np

from training.data.errors import DataError
from training.data.ingest import even
from training.data.ingest.dialect import encoding_of
from training.data.ingest.recorders.recorded import RecordedTable, Recording, content_of, recorded, source_of

FIRST_CELL = re.compile(r'\ufeff?"?\(PDH-[^"]*?"?([,;\t])"')
HEAD = re.compile(r"^\(PDH-[CT]SV \d+\.\d+\)\s*(?:\((?P<zone>.*)\)\((?P<minutes>-?\d+)\))?\s*$")
PATH = re.compile(r"^\\\\(?P<host>[^\\]+)\\(?P<object>[^\\(]+?)(?:\((?P<instance>.*)\))?\\(?P<counter>.+)$")
STAMP = "%m/%d/%Y %H:%M:%S.%f"
PER_SECOND = re.compile(r"\s*/\s*(sec|sek|sekunde|s)\.?$")
TOTAL, EACH, SUM = "_total", "each", "sum"


def _lines(table: str) -> Iterator[list[str]]:
    """Return an iterator over the lines of a table, each divided at ": "."""
    return (line.strip().split(": ") for line in table.strip().splitlines())


# English names of objects and counters, and what else Windows calls them.
_NAMES = """
    processor: prozessor, processor information, prozessorinformationen
    memory: arbeitsspeicher, speicher
    physicaldisk: physikalischer datenträger, physischer datenträger
    network interface: netzwerkschnittstelle
    tcpv4: tcpv6
    udpv4: udpv6
    % user time: benutzerzeit (%), % benutzerzeit
    % privileged time: privilegierte zeit (%), % privilegierte zeit
    % interrupt time: interruptzeit (%), % interruptzeit
    context switches/s: kontextwechsel/s
    processes: prozesse
    page faults/s: seitenfehler/s
    disk read bytes/s: bytes gelesen/s, gelesene bytes/s
    disk write bytes/s: bytes geschrieben/s, geschriebene bytes/s
    disk reads/s: lesevorgänge/s
    disk writes/s: schreibvorgänge/s
    bytes received/s: empfangene bytes/s, bytes empfangen/s
    bytes sent/s: gesendete bytes/s, bytes gesendet/s
    packets received/s: empfangene pakete/s, pakete empfangen/s
    packets sent/s: gesendete pakete/s, pakete gesendet/s
    connections active: aktive verbindungen
    connections passive: passive verbindungen
    connection failures: verbindungsfehler
    connections established: hergestellte verbindungen
    segments retransmitted/s: erneut übertragene segmente/s, segmente erneut übertragen/s
    datagrams received/s: empfangene datagramme/s, datagramme empfangen/s
    datagrams sent/s: gesendete datagramme/s, datagramme gesendet/s
"""
ENGLISH = {name: english for english, names in _lines(_NAMES) for name in names.split(", ")}


class Meaning(NamedTuple):
    """The meaning of a counter: its channel, the instances from which that is computed, and ``total`` if it is a
    running total."""

    channel: str
    of: str
    total: str = ""


_MEANINGS = """
    processor | % user time: cpu_user each
    processor | % privileged time: cpu_system each
    processor | % interrupt time: cpu_irq each
    processor | interrupts/s: interrupts _total
    system | context switches/s: context_switches sum
    system | processes: processes sum
    system | threads: threads sum
    memory | page faults/s: page_faults sum
    physicaldisk | disk read bytes/s: disk_read_bytes _total
    physicaldisk | disk write bytes/s: disk_write_bytes _total
    physicaldisk | disk reads/s: disk_reads _total
    physicaldisk | disk writes/s: disk_writes _total
    network interface | bytes received/s: net_rx_bytes sum
    network interface | bytes sent/s: net_tx_bytes sum
    network interface | packets received/s: net_rx_packets sum
    network interface | packets sent/s: net_tx_packets sum
    tcpv4 | connections active: tcp_active_opens sum total
    tcpv4 | connections passive: tcp_passive_opens sum total
    tcpv4 | connection failures: tcp_attempt_fails sum total
    tcpv4 | segments retransmitted/s: tcp_retransmits sum
    tcpv4 | connections established: tcp_established sum
    udpv4 | datagrams received/s: udp_rx_datagrams sum
    udpv4 | datagrams sent/s: udp_tx_datagrams sum
"""
MEANINGS = {counter: Meaning(*words.split()) for counter, words in _lines(_MEANINGS)}


def read_perfmon(paths: Sequence[Path]) -> RecordedTable:
    """Return the samples in the files of all hosts. Raises DataError."""
    recordings = []
    notes = []
    for path in paths:
        found, said = _read(path)
        recordings += found
        notes += said
    source = source_of(paths, "files of the performance monitor")
    return recorded(source, recordings, "performance monitor", tuple(dict.fromkeys(notes)))


def _read(path: Path) -> tuple[list[Recording], list[str]]:
    text = content_of(path).decode(encoding_of(path))
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
    of, word = of.casefold(), PER_SECOND.sub("/s", counter.strip().casefold())
    return MEANINGS.get(f"{ENGLISH.get(of, of)} | {ENGLISH.get(word, word)}")


def _samples(rows: Sequence[Sequence[str]], path: Path, minutes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the times in UTC and the cells (S, columns); up to two lines of another width, a program's final messages,
    are left out. A first row without values that the second has is left out.

    Raises DataError.
    """
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
    """Return a channel's values computed from the columns of its instances; None if necessary instances are missing."""
    if meaning.of == EACH:  # shares of a processor's time, in percent
        each = {name: column / 100 for name, column in instances.items() if TOTAL not in name}
        # "Processor Information" has "0,3" for the fourth processor of the first group, "Processor" has "3".
        plain = [column for name, column in each.items() if "," not in name]
        return np.sum(plain or list(each.values()), axis=0) if each else None
    parts = [column for name, column in instances.items() if TOTAL not in name]
    if meaning.of == TOTAL and any(TOTAL in name for name in instances):
        parts = [column for name, column in instances.items() if name == TOTAL]
    if meaning.total:
        parts = [even.rates(column, t, np.zeros(t.size, int)) for column in parts]
    return np.sum(parts, axis=0) if parts else None

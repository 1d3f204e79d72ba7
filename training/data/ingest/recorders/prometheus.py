"""Read samples from a Prometheus server, or from a file with answers of its HTTP API: each instance is one host.

This module requests the node exporter's metrics (the "preset") sample by sample. This module, not the server,
computes the growth per second of each counter. A server repeats the last sample for up to five minutes if no new one
came. A step at which no value of an instance's preset changed is left out. The user's own queries to a server become
additional channels.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

import msgspec
import numpy as np

from training.data.errors import DataError
from training.data.ingest import even
from training.data.ingest.recorders import recorded as shared
from training.data.ingest.recorders.prometheus_http import fetcher, is_address, without_password, words_of
from training.data.values import Bools, Floats

STEPS_A_QUERY = 2000  # a server answers 11,000 at most; a host has some hundred series
# Channels, their metrics, and the modes of a processor's time that they are.
_SELECTORS = """
    cpu_user node_cpu_seconds_total user
    cpu_system node_cpu_seconds_total system
    cpu_iowait node_cpu_seconds_total iowait
    cpu_irq node_cpu_seconds_total irq softirq
    cpu_steal node_cpu_seconds_total steal
    pressure_cpu node_pressure_cpu_waiting_seconds_total
    pressure_io node_pressure_io_waiting_seconds_total
    pressure_memory node_pressure_memory_waiting_seconds_total
    context_switches node_context_switches_total
    interrupts node_intr_total
    forks node_forks_total
    page_faults node_vmstat_pgfault
    page_faults_major node_vmstat_pgmajfault
    disk_read_bytes node_disk_read_bytes_total
    disk_write_bytes node_disk_written_bytes_total
    disk_reads node_disk_reads_completed_total
    disk_writes node_disk_writes_completed_total
    net_rx_bytes node_network_receive_bytes_total
    net_tx_bytes node_network_transmit_bytes_total
    net_rx_packets node_network_receive_packets_total
    net_tx_packets node_network_transmit_packets_total
    tcp_active_opens node_netstat_Tcp_ActiveOpens
    tcp_passive_opens node_netstat_Tcp_PassiveOpens
    tcp_attempt_fails node_netstat_Tcp_AttemptFails
    tcp_resets_sent node_netstat_Tcp_OutRsts
    tcp_retransmits node_netstat_Tcp_RetransSegs
    tcp_established node_netstat_Tcp_CurrEstab
    udp_rx_datagrams node_netstat_Udp_InDatagrams
    udp_tx_datagrams node_netstat_Udp_OutDatagrams
    load_1m node_load1
    processes node_processes_pids
    threads node_processes_threads
    memory_dirty node_memory_Dirty_bytes
    memory_writeback node_memory_Writeback_bytes
    memory_cached node_memory_Cached_bytes
    memory_cached node_memory_SReclaimable_bytes
    memory_used node_memory_MemTotal_bytes
    memory_used node_memory_MemAvailable_bytes
"""
SELECTORS = shared.rows_of(_SELECTORS)
SUBTRACTED = "node_memory_MemAvailable_bytes"
TOGETHER = ("memory_cached", "memory_used")  # of several metrics, all of which must be there
METRICS = tuple(dict.fromkeys(metric for _, metric, *_ in SELECTORS))
NETWORK, LOOPBACK = "node_network_receive_bytes_total", "lo"
ALWAYS = "node_context_switches_total"  # on every host

Fetch = Callable[[str], bytes]  # a GET; raises DataError where nothing comes


class PromSeries(msgspec.Struct, frozen=True):
    metric: dict[str, str] = {}
    values: list[tuple[float, str]] = []


class Data(msgspec.Struct, frozen=True):
    kind: str = msgspec.field(default="", name="resultType")
    result: list[msgspec.Raw] = []


class Answer(msgspec.Struct, frozen=True):
    """An answer of Prometheus's HTTP API, with only the fields that are needed."""

    status: str
    data: Data | list[str] | None = None
    error: str = ""
    warnings: list[str] = []


class RangeQuery(NamedTuple):
    """The question to a server, from ``since`` to ``until`` in seconds since 1970.

    ``match`` has labels that limit the preset to some hosts, as in ``job="node"``. ``queries`` maps names of channels
    to the user's own PromQL.
    """

    since: float
    until: float
    every_s: float = 60.0
    match: str = ""
    queries: Mapping[str, str] = {}

    @property
    def steps(self) -> int:
        return int((self.until - self.since) / self.every_s) + 1


def read_prometheus(source: str, asked: RangeQuery, say: Callable[[str], None]) -> shared.RecordedTable:
    """Return the samples from a file of answers, or from the server whose address ``source`` is. Raises DataError."""
    if not is_address(source):
        say(f"reading {source} …")
        return read_file(Path(source))
    base, header = without_password(source)
    say(f"asking {base} for {asked.steps:,} samples of each host …")
    return read_server(base, fetcher(base, header), asked, header)


def read_server(base: str, fetch: Fetch, asked: RangeQuery, header: str | None = None) -> shared.RecordedTable:
    """Return the samples of all hosts for which the server at ``base`` has an answer to ``asked``; ``fetch`` requests
    an address with ``header``, whose password is not shown. Raises DataError."""
    where = urlsplit(base).hostname or base
    notes: list[str] = []

    def ask(path: str, **fields: object) -> Answer:
        document = fetch(f"{base.rstrip('/')}/api/v1/{path}?{urlencode(fields)}")
        answer = _decoded(document, where, f"The Prometheus at {where} refuses a query", header)
        notes.extend(f"The Prometheus at {where} warns: {words_of(text, header)}." for text in answer.warnings)
        return answer

    def series(query: str) -> Iterable[PromSeries]:
        begin = asked.since
        while begin <= asked.until:
            end = min(asked.until, begin + (STEPS_A_QUERY - 1) * asked.every_s)
            yield from _series(ask("query_range", query=query, start=begin, end=end, step=asked.every_s), where)
            begin = end + asked.every_s

    names = "|".join(METRICS)
    narrowed = f",{asked.match}" if asked.match else ""
    found = {}
    selector = f'{{__name__="{ALWAYS}"{narrowed}}}'
    span = {"start": asked.since, "end": asked.until}
    instances = ask("label/instance/values", **{"match[]": selector}, **span).data
    if not isinstance(instances, list):
        raise DataError(f"{where} lists no instances: is it a Prometheus of version 2.24 or later?")
    for instance in sorted(instances):
        quoted = instance.replace("\\", "\\\\").replace('"', '\\"')
        asked_for = list(series(f'{{__name__=~"{names}",instance="{quoted}"{narrowed}}}'))
        found[instance] = _preset(instance, asked_for)
        notes += _without_loopback(instance, asked_for)
    fresh = {instance: t for instance, channels in found.items() for t, _ in channels.values()}
    for name, query in asked.queries.items():
        for instance, values in _own(name, series(query)).items():
            found.setdefault(instance, {})[name] = _at(fresh.get(instance, values[0]), values)
    if not found:
        raise DataError(
            f"The Prometheus at {where} has no host of the node exporter in that time (metric {ALWAYS}): say another "
            "--since and --until, another --match, or queries of your own with --query NAME=PROMQL."
        )
    return _recorded(Path(where), found, notes)


def read_file(path: Path) -> shared.RecordedTable:
    """Return the samples from a file with answers to range queries, one answer in each line or a single one. Raises
    DataError."""
    by_instance = defaultdict(list)
    for document in _documents(shared.content_of(path), path):
        for one in _series(_decoded(document, str(path), f"{path} holds a Prometheus' refusal"), str(path)):
            by_instance[_instance(one, str(path))].append(one)
    found = {instance: _preset(instance, series) for instance, series in by_instance.items()}
    notes = [note for instance, series in by_instance.items() for note in _without_loopback(instance, series)]
    if not any(found.values()):
        raise DataError(
            f"{path} holds no metric of the node exporter: ask the server itself with --prometheus URL and --query "
            "NAME=PROMQL, which names the channels of other queries."
        )
    return _recorded(path, found, notes)


# -- from answers to series --------------------------------------------------------------------------------------------


def _decoded(document: bytes, where: str, refusal: str, header: str | None = None) -> Answer:
    try:
        answer = msgspec.json.decode(document, type=Answer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        half = document.lstrip()[:1] == b"{"
        why = "is only half an answer" if half else "is no answer of a Prometheus' HTTP API"
        raise DataError(
            f"What {where} holds {why}: ask it again, or name the address under which it serves /api/v1."
        ) from None
    if answer.status != "success":
        raise DataError(f"{refusal}: {words_of(answer.error, header) or 'it gives no reason'}.")
    return answer


def _documents(text: bytes, path: Path) -> list[bytes]:
    """Return the answers in a file: one for each line, or a single one over many lines. Raises DataError for an empty
    file."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise DataError(f"{path} is empty: save what the server answers to a range query.")
    whole = all(line.lstrip().startswith(b'{"status"') for line in lines)
    return lines if whole else [text]


def _series(answer: Answer, where: str) -> list[PromSeries]:
    data = answer.data
    if not isinstance(data, Data) or data.kind != "matrix":
        kind = f"a {data.kind}" if isinstance(data, Data) else "nothing"
        raise DataError(f"{where} answers with {kind} where samples of a time are needed: ask /api/v1/query_range.")
    try:
        return [msgspec.json.decode(one, type=PromSeries) for one in data.result]
    except msgspec.DecodeError:
        raise DataError(f"{where} answers with series that are none: ask it again.") from None


def _instance(series: PromSeries, where: str) -> str:
    try:
        return series.metric["instance"]
    except KeyError:
        raise DataError(
            f"A series of {where} names no instance, which is the host: keep that label (sum by (instance) (…))."
        ) from None


# -- from series to recordings -----------------------------------------------------------------------------------------

Times = Floats
_Values = tuple[Times, Floats]


def _numbers(series: Iterable[PromSeries]) -> _Values:
    """Return the times and values of one series, joined from its parts and sorted by time; infinite values become
    NaN."""
    pairs = [pair for one in series for pair in one.values]
    t = np.array([at for at, _ in pairs], float)
    values = np.array([float(text) for _, text in pairs], float)
    order = np.argsort(t, kind="stable")
    return t[order], np.where(np.isfinite(values), values, np.nan)[order]


def _preset(instance: str, series: Sequence[PromSeries]) -> dict[str, _Values]:
    """Return the times and values of one instance's channels, computed from series of the node exporter's metrics.
    Raises DataError if the instance is scraped more than once."""
    _check_once(instance, series)
    parts = defaultdict(list)
    for one in series:
        if one.metric.get("__name__") in METRICS:
            parts[tuple(sorted(one.metric.items()))].append(one)
    if not parts:
        return {}
    known = {labels: _numbers(found) for labels, found in parts.items()}
    t = np.unique(np.concatenate([at for at, _ in known.values()]))
    raw = {labels: _placed(t, at, values) for labels, (at, values) in known.items()}
    fresh = _fresh(np.stack(list(raw.values()), axis=1))
    t = t[fresh]
    found = {}
    for name in dict.fromkeys(channel for channel, *_ in SELECTORS):
        columns, metrics = [], set()
        for channel, metric, *modes in SELECTORS:
            for labels, values in raw.items() if channel == name else ():
                of = dict(labels)
                if of["__name__"] == metric and (not modes or of.get("mode") in modes):
                    metrics.add(metric)
                    columns.append(-values[fresh] if metric == SUBTRACTED else values[fresh])
        lacks = name in TOGETHER and len(metrics) < sum(channel == name for channel, *_ in SELECTORS)
        if not columns or lacks:
            continue
        if shared.is_counter(name):
            columns = [_rate(values, t) for values in columns]
        found[name] = t, _summed(columns, every=name in TOGETHER)
    return found


def _check_once(instance: str, series: Iterable[PromSeries]) -> None:
    """Raise DataError if a host is scraped more than once, because its sums would be twice the true values."""
    labels = {tuple(sorted(one.metric.items())) for one in series if one.metric.get("__name__") == ALWAYS}
    if len(labels) > 1:
        first, other = (dict(each) for each in sorted(labels)[:2])
        unlike = next(key for key in sorted({*first, *other}) if first.get(key) != other.get(key))
        raise DataError(
            f"The instance {instance!r} is scraped more than once (by {unlike} {first.get(unlike)!r} and "
            f"{other.get(unlike)!r}): say which with --match '{unlike}=\"{first.get(unlike)}\"'."
        )


def _without_loopback(instance: str, series: Iterable[PromSeries]) -> list[str]:
    devices = {one.metric.get("device") for one in series if one.metric.get("__name__") == NETWORK}
    if not devices or LOOPBACK in devices:
        return []
    return [f"The network channels of {instance} are without its loopback interface, which our recordings count."]


def _placed(t: Times, at: Times, values: Floats) -> Floats:
    column = np.full(t.size, np.nan)
    column[np.searchsorted(t, at)] = values
    return column


def _fresh(raw: Floats) -> Bools:
    """Return a mask of the first step, and of each step at which a value of ``raw`` (S, series) changed; all others
    repeat the last sample."""
    same = (raw[1:] == raw[:-1]) | (np.isnan(raw[1:]) & np.isnan(raw[:-1]))
    return np.asarray(np.r_[True, ~same.all(axis=1)])


def _rate(total: Floats, t: Times) -> Floats:
    """Return a series' growth per second, as ``even.rates`` does; NaN where the series is missing, or has a single
    value."""
    known = np.flatnonzero(~np.isnan(total))
    rate = np.full(t.size, np.nan)
    if known.size > 1:
        rate[known] = even.rates(total[known], t[known], np.zeros(known.size, int))
    return rate


def _summed(columns: Sequence[Floats], *, every: bool) -> Floats:
    """Return the sum of the columns' known values, NaN if there are none; with ``every``, NaN if any value is
    missing."""
    values = np.stack(columns)
    missing = np.isnan(values)
    gone = missing.any(axis=0) if every else missing.all(axis=0)
    return np.where(gone, np.nan, np.where(missing, 0.0, values).sum(axis=0))


def _own(name: str, series: Iterable[PromSeries]) -> dict[str, _Values]:
    """Return the times and values of a user's query, by instance. Raises DataError if there are none, a series names no
    instance, or an instance has several series."""
    parts: dict[str, dict[tuple[tuple[str, str], ...], list[PromSeries]]] = defaultdict(lambda: defaultdict(list))
    for one in series:
        parts[_instance(one, f"the query {name!r}")][tuple(sorted(one.metric.items()))].append(one)
    if not parts:
        raise DataError(f"The query {name!r} has no samples in that time: fix it, or leave it out.")
    for instance, found in parts.items():
        if len(found) > 1:
            raise DataError(
                f"The query {name!r} has {len(found)} series of the instance {instance!r}, and a channel has one: "
                "write sum by (instance) (…) around it."
            )
    return {instance: _numbers(next(iter(found.values()))) for instance, found in parts.items()}


def _at(fresh: Times, values: _Values) -> _Values:
    """Return those of the values whose time is among ``fresh``; between the times of a preset's samples, the server
    repeats values."""
    t, column = values
    keep = np.isin(t, fresh)
    return t[keep], column[keep]


def _recorded(source: Path, found: Mapping[str, Mapping[str, _Values]], notes: Sequence[str]) -> shared.RecordedTable:
    hosts = {instance: instance.rpartition(":")[0] or instance for instance in found}
    short = len(set(hosts.values())) == len(hosts)
    recordings = []
    for instance, channels in found.items():
        if not channels:
            continue
        t = np.unique(np.concatenate([at for at, _ in channels.values()]))
        values = {name: _placed(t, at, column) for name, (at, column) in channels.items()}
        recordings.append(shared.Recording(host=hosts[instance] if short else instance, t=t, values=values))
    return shared.recorded(source, recordings, "Prometheus", tuple(dict.fromkeys(notes)))

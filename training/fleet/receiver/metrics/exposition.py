"""Write the receiver's metrics as text for Prometheus, by prometheus-client. The module is loaded at the first scrape,
to save memory in a receiver that is not scraped.

:data:`METRICS` lists all metrics in the order of the text; a test checks that docs/metrics.md and the exported metrics
agree with the list.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import CollectorRegistry

from training.fleet.receiver.metrics.counters import Histogram
from training.fleet.receiver.metrics.snapshot import NAMES_MAX, Samples, Snapshots

PREFIX = "cis490_"
_KINDS = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "histogram": HistogramMetricFamily,
    "info": InfoMetricFamily,
}


class Metric(NamedTuple):
    """A metric under the name that expressions use; of a histogram, without ``_bucket``, ``_count`` and ``_sum``."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


def _gauge(name: str, help: str, *labels: str) -> Metric:  # noqa: A002 - Prometheus' own word
    return Metric(name, "gauge", labels, help)


METRICS = (
    _gauge("cis490_oldest_pending_job_age_seconds",
        "Longest wait of a pending job that is not held, 0 without one.", "needs"),
    _gauge("cis490_jobs", "Jobs by status.", "status"),
    _gauge("cis490_blocked_jobs", "Pending jobs that no host takes now, by the first obstacle.", "obstacle"),
    Metric("cis490_attempts_total", "counter", ("end", "fault"), "Attempts that ended since the receiver's start."),
    Metric("cis490_attempt_duration_seconds",
        "histogram", ("model",), "Durations of completed attempts, from grant to delivery."),
    Metric("cis490_claim_duration_seconds",
        "histogram", (), "Time to decide one claim, with its commit, without waiting."),
    Metric("cis490_transaction_duration_seconds",
        "histogram", (), "Time of one transaction of the writer, with its commit."),
    Metric("cis490_http_requests_total", "counter", ("operation", "status"), "Answers since the receiver's start."),
    _gauge("cis490_waiting_claims", "Claims that wait for a job now."),
    Metric("cis490_notifications_total",
        "counter", ("channel", "result"), "Tries to send a message, sent or failed, since the receiver's start."),
    _gauge("cis490_hosts", "Hosts that ever asked for work, by state.", "state"),
    _gauge("cis490_host_seen_timestamp_seconds", "When a host last contacted the receiver.", "host"),
    _gauge("cis490_host_attempts", "Attempts that a host holds now.", "host"),
    _gauge("cis490_host_quarantined", "1 while a host is in quarantine.", "host"),
    _gauge("cis490_host_undelivered_jobs", "Finished jobs that lie undelivered on a host, as last reported.", "host"),
    _gauge("cis490_host_memory_bytes", "A host's memory, as its worker said with its last claim.", "host", "kind"),
    _gauge("cis490_host_gpu_memory_bytes",
        "The memory of a host's GPU, as its worker said last.", "host", "gpu", "kind"),
    _gauge("cis490_open_incidents", "Incidents of a watched host that are not over and not judged.", "host"),
    _gauge("cis490_host_changed",
        "1 while a watched host differs from its reference and the change is not confirmed.", "host"),
    _gauge("cis490_watch_heard_timestamp_seconds", "When a host's watch last contacted the receiver.", "host"),
    _gauge("cis490_watch_silent", "1 while a host's watch is silent, for twice its interval and a minute.", "host"),
    _gauge("cis490_disk_free_bytes", "Free space on the disk of models, database or data sets.", "kind"),
    _gauge("cis490_disk_size_bytes", "Size of the disk of models, database or data sets.", "kind"),
    _gauge("cis490_database_bytes", "Size of the database with its log."),
    _gauge("cis490_store_bytes", "Size of all models, and of all data sets.", "kind"),
    _gauge("cis490_granting", "1 while the receiver grants jobs, 0 when its disk is low."),
    _gauge("cis490_missing_datasets", "Data sets that the plan names and that are not here."),
    _gauge("cis490_backup_timestamp_seconds", "When the state was backed up last; absent while it never was."),
    _gauge("cis490_certificate_expiry_timestamp_seconds", "When a certificate ends.", "role", "name"),
    _gauge("cis490_token_expiry_timestamp_seconds", "When a token ends.", "role", "name"),
    _gauge("cis490_snapshot_timestamp_seconds", "When these figures were taken."),
    Metric("cis490_build_info", "info", (), "The receiver's version."),
)  # fmt: skip


@dataclass(eq=False)
class FleetCollector:
    """The collector that passes a snapshot to prometheus-client, metric by metric."""

    _snapshots: Snapshots
    _version: str

    def describe(self) -> list[Any]:
        """Return no metrics, so that the registration of this collector makes no snapshot."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield every metric of :data:`METRICS`; most values may be a few seconds old, the store's sizes ten
        minutes."""
        tally = self._snapshots.tally
        found: dict[str, Samples] = {
            "claim_duration_seconds": [((), tally.claims)],
            "transaction_duration_seconds": [((), tally.transactions)],
            "http_requests_total": sorted(tally.requests.items()),
            "notifications_total": sorted(tally.notifications.items())[: 2 * NAMES_MAX],
            "build_info": [((), {"version": self._version})],
            **self._snapshots.latest(),
        }
        for metric in METRICS:
            name = metric.name.removesuffix("_info")  # which prometheus-client adds
            family = _KINDS[metric.kind](name, metric.help, labels=metric.labels)
            for labels, value in found[metric.name.removeprefix(PREFIX)]:
                if isinstance(value, Histogram):
                    family.add_metric(labels, _buckets(value), value.total_s)
                else:
                    family.add_metric(labels, value)
            yield family


class Exposition:
    """The writer of the metrics' text. Only the thread that owns the snapshots uses it."""

    def __init__(self, snapshots: Snapshots, version: str) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(FleetCollector(snapshots, version))
        ProcessCollector(registry=self._registry)

    def text(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics and their media type, OpenMetrics or plain text as this ``Accept`` header prefers.

        Raises DatabaseError and StoreError.
        """
        encode, media = choose_encoder(accept)
        return encode(self._registry), media


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = [*(str(each) for each in histogram.bounds), "+Inf"]
    return list(zip(bounds, histogram.cumulative(), strict=True))

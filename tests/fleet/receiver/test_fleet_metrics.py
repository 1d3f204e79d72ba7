"""The figures for Prometheus: what is counted, from what, and how much of it there can be."""

import contextlib
import re
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest
from builders import a_capability, a_claim, a_host, a_job, needs
from fakes import FakeClock
from prometheus_client.parser import text_string_to_metric_families
from receiver_running import Receiver, Wire

from training.fleet.database.sqlite import SqliteDatabase
from training.fleet.database.writer import DatabaseError
from training.fleet.queue.jobs import JobQueue
from training.fleet.receiver.metrics.counters import Histogram, Tally
from training.fleet.receiver.metrics.exposition import METRICS, PREFIX, Exposition
from training.fleet.receiver.metrics.snapshot import FRESH_S, HOSTS_MAX, Credential, Obstacle, Snapshots, obstacle_of
from training.fleet.scheduling.job import EndReason
from training.fleet.scheduling.policy import Policy
from training.fleet.service.audit import AuditLog
from training.fleet.service.hosts import KnownHost
from training.fleet.service.incident_table import IncidentTable
from training.fleet.service.service import Service
from training.fleet.service.state import note_backup
from training.fleet.service.views import Views
from training.fleet.store.artifacts import ArtifactStore
from training.fleet.store.datasets import DatasetStore
from training.fleet.wire.incident_messages import WatchedIncident, WatchRequest

DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"
LEASE_S = 600.0


class World:
    """A service over a real database, and the figures beside it."""

    def __init__(self, folder):
        self.clock = FakeClock()
        self.path = folder / "jobs.db"
        self.queue = JobQueue(self.path, clock=self.clock, policy=Policy(stale_after_s=LEASE_S))
        self.store = ArtifactStore(folder / "models")
        self.service = Service(self.queue, self.store)
        self.reader = SqliteDatabase(self.path)
        self.credentials = ([], [])
        self.begin()

    def begin(self):
        """As a receiver begins."""
        self.tally = Tally()
        self.snapshots = Snapshots(
            reader=self.reader,
            service=self.service,
            views=Views(self.reader, self.service),
            store=self.store,
            datasets=DatasetStore(self.store.root.with_name("datasets")),
            database=self.path,
            credentials=lambda: self.credentials,
            clock=self.clock,
            tally=self.tally,
            last_event=self.reader.number("newest_event"),
        )
        self.exposition = Exposition(self.snapshots, "1.2")

    def add(self, *jobs):
        self.queue.sync_from_manifest(list(jobs))

    def scrape(self):
        """Metric and values of its labels, in the order of their names → value, some seconds later."""
        self.clock.advance(FRESH_S)
        text, _ = self.exposition.text("text/plain")
        return {
            (sample.name.removeprefix(PREFIX), *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text.decode())
            for sample in family.samples
            if family.name.startswith(PREFIX)
        }


def told(world, host, checkpoint, **parts):
    known = IncidentTable(world.queue.db, world.clock, AuditLog(world.queue.db, world.clock))
    with world.queue.db.transaction():
        known.report(WatchRequest(host_id=host, model="gbt realistic", checkpoint=checkpoint, **parts))


@pytest.fixture
def world(tmp_path):
    found = World(tmp_path)
    yield found
    found.reader.close()
    found.queue.close()


# ── the list ────────────────────────────────────────────────────────────────────────────────


def test_the_docs_list_what_is_exported(tmp_path):
    rows = re.findall(r"^\| `(cis490_\w+)` \|([^|]*)\|", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    said = {name: tuple(re.findall(r"`(\w+)`", labels)) for name, labels in rows}
    assert said == {metric.name: metric.labels for metric in METRICS}
    assert [name for name, _ in rows] == [metric.name for metric in METRICS], "in the same order"
    assert len(said) <= 50
    with Receiver(tmp_path, [a_job()]) as receiver, Wire(receiver) as wire:
        _, headers, body = wire.request("GET", "/metrics").answer()
    assert headers["content-type"].startswith("text/plain; version=")
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    exported = {name for name in families if name.startswith(PREFIX)}
    assert exported == {metric.name.removesuffix("_total") for metric in METRICS}
    assert "process_resident_memory_bytes" in families


def test_open_metrics_for_those_who_prefer_it(world):
    text, media = world.exposition.text("application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert media.startswith("application/openmetrics-text; version=1.0.0")
    assert text.endswith(b"# EOF\n")


def test_open_pages_and_messages_are_counted(world):
    found = world.scrape()
    assert not any(key[0] == "notifications_total" for key in found)
    world.tally.notified("phone", None)
    world.tally.notified("phone", "refused")
    world.tally.notified("phone", "refused")
    found = world.scrape()
    assert (found["notifications_total", "phone", "sent"], found["notifications_total", "phone", "failed"]) == (1, 2)


# ── jobs ────────────────────────────────────────────────────────────────────────────────────


def test_the_oldest_waiting_job_counts_from_when_it_could_be_claimed(world):
    first = a_job("one"), a_job("held"), a_job("gpu", require_cuda=True)
    world.add(*first, a_job("gone", require_cuda=True))
    world.clock.advance(100)
    world.add(*first, a_job("late"))
    found = world.scrape()
    assert found["oldest_pending_job_age_seconds", "cpu"] == 100 + FRESH_S
    assert found["oldest_pending_job_age_seconds", "cuda"] == 100 + FRESH_S
    world.queue.cancel("id-one")
    world.queue.hold("id-held", by="ada")
    world.queue.cancel("id-gpu")
    found = world.scrape()
    assert found["oldest_pending_job_age_seconds", "cpu"] == 2 * FRESH_S, "late's"
    assert found["oldest_pending_job_age_seconds", "cuda"] == 0
    assert (found["jobs", "pending"], found["jobs", "cancelled"]) == (3, 2)
    blocked = [found["blocked_jobs", each] for each in ("held", "no_host", "not_in_plan")]
    assert blocked == [1, 1, 1]


def test_every_obstacle_by_what_holds_first():
    pi, gpu = a_host("pi"), a_host("gpu", cuda=True, vram_free_gib=8.0)
    asks, wants = needs(), needs(require_cuda=True)
    set_id = "5" * 64
    assert obstacle_of(asks, [(pi, True)], {}, {}, None) is None
    assert obstacle_of(needs(dataset=set_id), [(pi, True)], {}, {}, frozenset()) is Obstacle.DATASET
    assert obstacle_of(asks, [], {}, {}, None) is Obstacle.NO_HOST
    assert obstacle_of(wants, [(pi, True)], {}, {}, None) is Obstacle.UNFIT
    assert obstacle_of(wants, [(pi, True), (gpu, True)], {"gpu": "it"}, {}, None) is Obstacle.QUARANTINED
    assert obstacle_of(wants, [(pi, True), (gpu, False)], {}, {}, None) is Obstacle.SILENT
    assert obstacle_of(asks, [(pi, True), (gpu, False)], {"gpu": "it"}, {}, None) is None


# ── counters ────────────────────────────────────────────────────────────────────────────────


def test_ends_are_counted_once_and_never_taken_back(world):
    world.add(a_job("one"), a_job("two", model="mlp"))
    grants = [world.service.claim(a_claim("pi")) for _ in range(2)]
    world.clock.advance(LEASE_S + 1)
    assert world.queue.sweep_stale() == 2
    assert world.scrape()["attempts_total", "host_lost", "infrastructure"] == 2
    job = world.queue.get(str(grants[0].job_id))
    world.queue.moves.readopt(job, world.queue.attempts.of_job(job.job_id)[-1])  # it lives on …
    assert world.scrape()["attempts_total", "host_lost", "infrastructure"] == 2
    assert world.queue.complete(job.job_id, "pi", artifact_id="a" * 64)
    found = world.scrape()
    assert found["attempts_total", "host_lost", "infrastructure"] == 2, "… which a counter does not undo"
    assert found["attempts_total", "completed", "nobody"] == 1
    took = LEASE_S + 1 + 2 * FRESH_S
    assert found["attempt_duration_seconds_sum", job.model] == took
    assert found["attempt_duration_seconds_bucket", "300.0", job.model] == 0
    assert found["attempt_duration_seconds_bucket", "900.0", job.model] == 1
    assert found["attempt_duration_seconds_count", job.model] == 1
    assert {key[1] for key in found if key[0] == "attempts_total"} == set(EndReason), "each from the start on, at 0"


def test_counters_begin_anew_with_the_receiver(world):
    """A counter that went down by little, as old rows go, would look like a burst; one that begins at 0 is right."""
    world.add(a_job("one"), a_job("two"))
    world.service.claim(a_claim("pi"))
    world.queue.cancel("id-one")
    assert world.scrape()["attempts_total", "cancelled", "nobody"] == 1
    world.begin()
    assert world.scrape()["attempts_total", "cancelled", "nobody"] == 0
    world.service.claim(a_claim("pi"))
    world.queue.requeue("id-two")  # before anybody scraped
    for _ in range(2):
        assert world.scrape()["attempts_total", "superseded", "nobody"] == 1
        world.queue.hold("id-one")  # an event that is no end


def test_a_histogram_adds_up():
    histogram, clock = Histogram((1.0, 5.0)), FakeClock()
    for seconds in (0.5, 1.0, 3.0, 9.0, -2.0):
        histogram.observe(seconds)
    assert (histogram.cumulative(), histogram.total_s) == ([3, 4, 5], 13.5)
    with contextlib.suppress(ZeroDivisionError), histogram.timing(clock):
        clock.advance(2)
        raise ZeroDivisionError
    assert histogram.cumulative() == [3, 5, 6]


# ── bounds ──────────────────────────────────────────────────────────────────────────────────


def test_the_number_of_series_is_bounded_and_labels_are_printable(world):
    """Everything that can be many is, and what comes from elsewhere is hostile."""
    gpu = {"name": "GPU", "vram_total_gib": 8.0, "vram_free_gib": 1e400}
    odd = {"ram_total_gib": True, "ram_available_gib": -1.0, "cuda_devices": [gpu] * 20}
    for number in range(HOSTS_MAX + 50):
        name = f'h{number}\n"\u202e\x1b[2J' + "x" * 100
        capability = a_capability(ram=8.0) | {"cuda_devices": [{**gpu, "vram_free_gib": 1.0}] * 20}
        world.service.host_registry.put(KnownHost(name, capability if number else odd, 0.0, world.clock.now()))
    for number in range(30):
        world.snapshots._ends._histogram(f"model {number}\x07").observe(1.0)
    for operation in range(45):
        for status in (200, 404, 500):
            world.tally.answered(f"operation_{operation}", status)
    until = world.clock.now() + 9e5
    hosts = [Credential("host", f"h{number}", until) for number in range(HOSTS_MAX + 50)]
    others = [Credential(role, f"n{number}", until) for role in ("operator", "reader") for number in range(50)]
    world.credentials = ([Credential("receiver", "receiver", until), *hosts, *others], others)
    note_backup(world.path, world.clock.now())
    found = world.scrape()
    assert len({key[1] for key in found if key[0] == "host_seen_timestamp_seconds"}) == HOSTS_MAX
    assert found["hosts", "idle"] == HOSTS_MAX + 50, "all are counted"
    of_hosts = [key for key in found if key[0].startswith("host_") or (
        key[0] == "certificate_expiry_timestamp_seconds" and key[2] == "host")]  # fmt: skip
    assert len(of_hosts) <= 15 * HOSTS_MAX
    assert len(found) - len(of_hosts) <= 500
    assert found["attempt_duration_seconds_count", "other"] == 20
    assert all(label.isprintable() and len(label) <= 64 for key in found for label in key[1:])


def test_of_a_watched_host_the_watch_that_was_heard_last_counts(world):
    begin = world.clock.now()
    numbers = dict.fromkeys(("began_at", "raised_at", "last_alarm_at", "alarms", "peak", "threshold"), 1)
    for number in range(HOSTS_MAX + 5):
        told(world, f"h{number}", "ab")
    world.clock.advance(1000)
    told(world, "h0", "cd", incident=msgspec.convert({"id": "ab" * 8, "event": "raised"} | numbers, WatchedIncident))
    told(world, "h1", "ab", incident=WatchedIncident(id="ab" * 8, event="changed"))
    told(world, "h2", "ab", incident=WatchedIncident(id="ab" * 8, event="changed"))
    told(world, "h2", "ab", incident=WatchedIncident(id="ab" * 8, event="confirmed"))
    world.clock.advance(1000)
    found = world.scrape()
    of = {host: [found[name, host] for name in
                 ("open_incidents", "host_changed", "watch_heard_timestamp_seconds", "watch_silent")]
          for host in ("h0", "h1", "h2", "h50")}  # fmt: skip
    heard = begin + 1000
    assert of == {"h0": [1, 0, heard, 0], "h1": [0, 1, heard, 0], "h2": [0, 0, heard, 0], "h50": [0, 0, begin, 1]}
    assert len([key for key in found if key[0] == "watch_silent"]) == HOSTS_MAX


def test_a_snapshot_serves_all_who_ask_within_seconds(world):
    first = world.snapshots.latest()
    world.add(a_job())
    world.clock.advance(FRESH_S - 0.1)
    assert world.snapshots.latest() is first
    world.clock.advance(0.2)
    assert (("pending",), 1) in world.snapshots.latest()["jobs"]


def test_of_several_certificates_the_one_that_ends_last_counts(world):
    now = world.clock.now()
    ends = [now + 100.0, now + 900.0, now + 500.0]
    world.credentials = ([Credential("host", "pi", end) for end in ends], [])
    assert world.scrape()["certificate_expiry_timestamp_seconds", "pi", "host"] == now + 900.0


def test_free_and_total_memory_are_told_apart(world):
    device = {"name": "GPU", "vram_total_gib": 8.0, "vram_free_gib": 3.0}
    capability = a_capability() | {"ram_total_gib": 16.0, "ram_available_gib": 5.0, "cuda_devices": [device]}
    world.service.host_registry.put(KnownHost("pi", capability, 0.0, world.clock.now()))
    found = world.scrape()
    gib = 1024**3
    of_host = {kind: found["host_memory_bytes", "pi", kind] / gib for kind in ("total", "free")}
    of_gpu = {kind: found["host_gpu_memory_bytes", "0", "pi", kind] / gib for kind in ("total", "free")}
    assert (of_host, of_gpu) == ({"total": 16.0, "free": 5.0}, {"total": 8.0, "free": 3.0})


def test_what_is_not_known_is_left_out(world):
    capability = {"ram_total_gib": float("inf")}
    world.service.host_registry.put(KnownHost("pi", capability, 0.0, world.clock.now()))
    found = world.scrape()
    names = {key[0] for key in found}
    assert not names & {"host_memory_bytes", "host_gpu_memory_bytes", "backup_timestamp_seconds"}
    assert found["host_quarantined", "pi"] == 0
    note_backup(world.path, 12.5)
    assert world.scrape()["backup_timestamp_seconds",] == 12.5


def test_a_refused_scrape_is_counted(tmp_path, monkeypatch):
    with Receiver(tmp_path, [a_job()]) as receiver, Wire(receiver) as wire:
        with monkeypatch.context() as broken:
            broken.setattr("training.fleet.receiver.http.figures.exposition", Mock(side_effect=DatabaseError))
            assert wire.request("GET", "/metrics").problem() == (503, "unavailable")
        for path in ("/v1/health", "/nowhere", "/metrics"):
            _, _, body = wire.request("GET", path).answer()
    assert b'cis490_http_requests_total{operation="health",status="2xx"} 1.0' in body
    assert b'cis490_http_requests_total{operation="metrics",status="5xx"} 1.0' in body
    assert b'cis490_http_requests_total{operation="none",status="4xx"} 1.0' in body

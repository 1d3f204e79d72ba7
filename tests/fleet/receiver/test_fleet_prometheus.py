"""A real Prometheus reads a running fleet over TLS: every figure of the dashboard is there, every alert is silent until
its cause is brought about."""

import json
import math
import re
import shutil
import socket
import subprocess
import threading
import urllib.parse
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builders import a_capability, a_job
from programs import installed
from receiver_running import TOKEN, Wire, running
from recovery_builders import deliver
from tls_world import SecureReceiver

from training.fleet.receiver.metrics.exposition import METRICS
from training.fleet.receiver.metrics.snapshot import FRESH_S
from training.fleet.service.state import note_backup, noted_beside
from training.fleet.wire.identity import Role

ROOT = Path(__file__).parents[3]
ALERTS = ROOT / "etc" / "prometheus" / "cis490-alerts.yml"
CONFIG = ROOT / "etc" / "prometheus" / "prometheus.yml"
DASHBOARD = ROOT / "etc" / "grafana" / "cis490.json"
PATIENCE_S = 30.0
DAY_S = 86400.0


def program(name):
    return installed(name, "prometheus")


def told(*command, text=None, folder=None):
    done = subprocess.run([program(command[0]), *command[1:]], input=text, text=True, capture_output=True, cwd=folder)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


def test_the_text_is_to_promtools_liking(tmp_path):
    with running(tmp_path) as receiver, Wire(receiver) as wire:
        receiver.client().claim(a_capability(cuda=True))
        note_backup(tmp_path / "jobs.db", 1.0)
        _, _, body = wire.request("GET", "/metrics").answer()
    assert told("promtool", "check", "metrics", text=body.decode()) == "", "no complaint about a name or a unit"


def test_alerts_that_need_days(tmp_path):
    text = Path(__file__).with_name("alerts.test.yml").read_text(encoding="utf-8")
    (tmp_path / "test.yml").write_text(text.replace("ALERTS", str(ALERTS)), encoding="utf-8")
    told("promtool", "test", "rules", "test.yml", folder=tmp_path)


def expressions():
    """Every expression of the dashboard, with a value for the variables that Grafana fills in."""
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    found = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    return [each.replace("$__rate_interval", "1m") for each in found]


def test_dashboard_and_docs_show_everything():
    shown = " ".join(expressions())
    assert [metric.name for metric in METRICS if not re.search(rf"\b{metric.name}(_bucket)?\b", shown)] == []
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(CIS490\w+)`", page, re.MULTILINE) == re.findall(
        r"- alert: (\w+)", ALERTS.read_text(encoding="utf-8")
    )


class Watched:
    """A receiver over TLS with an imitated worker, and the Prometheus that reads it as the shipped files say."""

    def __init__(self, folder, receiver):
        self.folder, self.receiver = folder, receiver
        self.clock = receiver.clock
        jobs = receiver.folder / "jobs.db"
        note_backup(jobs, self.clock.now())
        self.noted = noted_beside(jobs)
        self.desk = receiver.showing(receiver.admitted("desk")[0], name="desk")
        self.bundles = folder / "bundles"
        self.bundles.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._configure()

    def _configure(self):
        receiver, folder = self.receiver, self.folder
        told_token = receiver.showing(None, TOKEN).call("add_token", name="prometheus", role="reader")
        (folder / "token").write_text(told_token["token"])
        (folder / "client.pem").write_bytes(receiver.admitted("grafana", Role.READER)[0])
        shutil.copy(receiver.tls / "ca.pem", folder)
        shutil.copy(ALERTS, folder)
        text = CONFIG.read_text(encoding="utf-8").replace("/etc/prometheus/cis490", str(folder))
        text = text.replace("pi.lan:8445", f"localhost:{receiver.address[1]}").replace("30s", "1s")
        by_token, _, _ = text.partition("      # Or,")
        scrape, _, rest = text.partition("  - job_name: cis490")
        own = f"      cert_file: {folder}/client.pem\n      key_file: {folder}/client.pem\n"
        targets = rest[rest.index("    static_configs") :]
        plain = re.sub(r"    authorization:\n.*\n", "", by_token.removeprefix(scrape))
        second = plain.replace("job_name: cis490", "job_name: by_certificate") + own + targets
        # Only whether it is let in matters; the series are there already.
        second += (
            '    metric_relabel_configs:\n      - { source_labels: [__name__], regex: "cis490_.*", action: drop }\n'
        )
        (folder / "prometheus.yml").write_text(by_token + targets + second, encoding="utf-8")
        told("promtool", "check", "config", "prometheus.yml", folder=folder)

    @contextmanager
    def prometheus(self):
        flags = [f"--web.listen-address=127.0.0.1:{self.port}", "--storage.tsdb.path=data", "--log.level=warn"]
        command = [program("prometheus"), "--config.file=prometheus.yml", *flags]
        with (self.folder / "log").open("wb") as log:
            process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.kill()
            process.wait()

    def ask(self, expression):
        """The vector that an expression gives now."""
        query = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/query?{query}", timeout=20) as answer:
            return list(json.load(answer)["data"]["result"])

    def alerts(self):
        """Each alert with its expression, as Prometheus reads them; all can be evaluated."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/rules", timeout=20) as answer:
            rules = json.load(answer)["data"]["groups"][0]["rules"]
        assert {rule["health"] for rule in rules} == {"ok"}
        return {rule["name"]: rule["query"] for rule in rules}

    def until(self, expression, wanted=True):
        """Wait until an expression gives something, or nothing any more."""
        pause, found = threading.Event(), list[dict[str, Any]]()
        for _ in range(int(PATIENCE_S / 0.1)):
            try:
                found = self.ask(expression)
                if bool(found) is wanted:
                    return found
            except OSError:
                found = []
            pause.wait(0.1)
        log = (self.folder / "log").read_text(errors="replace")
        raise AssertionError(f"{expression} gives {found}; {log[-2000:]}")

    def scraped(self):
        """Wait until Prometheus has what is true now."""
        self.clock.advance(FRESH_S)
        self.until(f"cis490_snapshot_timestamp_seconds > {self.clock.now() - 1}")

    def work(self):
        """Everything of which there are figures, brought about through the worker's own calls."""
        self.desk.watch({"model": "gbt realistic"})
        deliver(self.desk, self.desk.claim(a_capability(cuda=True)), self.bundles, b"model")
        self.desk.fail(self.desk.claim(a_capability(cuda=True)).job_id, error="no", exit_code=1)
        assert self.desk.claim(a_capability(cuda=True)) is not None


@pytest.fixture
def watched(tmp_path, monkeypatch):
    roomy = SimpleNamespace(free=50 * 2**30, total=100 * 2**30)  # the disk of whoever runs this is no part of it
    monkeypatch.setattr(shutil, "disk_usage", lambda _place: roomy)
    place = tmp_path / "receiver"
    place.mkdir()
    with SecureReceiver(place, [a_job(f"job {number}") for number in range(5)]) as receiver:
        receiver.judged = False  # rows are changed by hand below
        found = Watched(tmp_path, receiver)
        with found.prometheus():
            found.until('up{job="cis490"} == 1')
            found.until('up{job="by_certificate"} == 1')
            found.work()
            found.scraped()
            found.until("sum(rate(cis490_attempt_duration_seconds_bucket[1m])) > 0")
            yield found


def test_a_healthy_fleet_fills_the_dashboard_and_raises_no_alert_until_one_has_a_cause(watched):
    fills_the_dashboard(watched)
    raises_no_alert(watched)
    raises_every_alert(watched)


def fills_the_dashboard(watched):
    for expression in expressions():
        values = [float(each["value"][1]) for each in watched.until(expression)]
        assert not all(map(math.isnan, values)), expression


def raises_no_alert(watched):
    raised = {name: found for name, expression in watched.alerts().items() if (found := watched.ask(expression))}
    assert raised == {}


def raises_every_alert(watched):
    """All causes at once, then a receiver that is gone; ``for`` is what alerts.test.yml tries."""
    receiver, now = watched.receiver, watched.clock.now()
    sick = receiver.showing(receiver.admitted("sick")[0], name="sick")
    assert sick.claim(a_capability(healthy=False)) is None
    sick.watch({"model": "gbt realistic"})
    receiver.reader.connection.execute("UPDATE watches SET heard_at = heard_at - 3600 WHERE host = 'sick'")
    incident = dict.fromkeys(("began_at", "raised_at", "last_alarm_at", "alarms", "peak", "threshold"), 1)
    watched.desk.watch({"model": "gbt realistic", "incident": {"id": "ab" * 8, "event": "raised"} | incident})
    watched.desk.watch({"model": "gbt realistic", "incident": {"id": "cd" * 8, "event": "changed"}})
    receiver.disk.free = 0
    watched.noted.unlink()
    receiver.enter("f" * 64, "desk", Role.HOST, now, now + DAY_S)
    registry = receiver.hub.authenticator.registry
    registry._certificates = {
        each.fingerprint: each
        for each in registry.certificates()
        if each.name != "desk" or each.fingerprint == "f" * 64
    }
    receiver.reader.connection.execute("UPDATE jobs SET claimable_at = 1 WHERE status = 'pending'")
    hosts = receiver.service.host_registry
    hosts.shift(-DAY_S / 1.5, now)
    hosts.heard("desk", now)
    watched.scraped()
    raised = {name: watched.ask(expression) for name, expression in watched.alerts().items()}
    said = {name: sorted(each["metric"].get("host") or each["metric"].get("name", "") for each in found)
            for name, found in raised.items()}  # fmt: skip
    assert said == {
        "CIS490ReceiverDown": [],
        "CIS490OldestJob": [""],
        "CIS490HostSilent": ["sick"],
        "CIS490HostQuarantined": ["sick"],
        "CIS490Incident": ["desk"],
        "CIS490HostChanged": ["desk"],
        "CIS490WatchSilent": ["sick"],
        "CIS490DiskLow": [""],
        "CIS490CertificateEnds": ["desk"],
        "CIS490BackupOld": [""],
    }
    down = watched.alerts()["CIS490ReceiverDown"]
    receiver.server.stop()
    watched.until(down)

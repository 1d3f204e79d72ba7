"""The walks of docs/ingest.md, as they stand there: from a Prometheus that runs, and from a log of incidents."""

import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from node_exporter import BEGIN, END, EVERY_S, free_port, get, log_of_incidents, measured, prometheus, rates, started

from training.data.ingest.recorders.prometheus import METRICS, RangeQuery, read_server
from training.data.ingest.recorders.prometheus_http import fetcher

PAGE = Path(__file__).parents[2] / "docs" / "ingest.md"
COMMANDS_MOST = 6
# Of the metrics that are asked for, those of which an exporter needs an option, or a kernel a setting.
OPTIONAL = ("AttemptFails", "node_processes_", "node_pressure_", "node_disk_")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with prometheus(tmp_path_factory.mktemp("prometheus")) as address:
        yield address


def walk(heading):
    """The commands of a chapter of the page."""
    chapter = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    commands = "".join(re.findall(r"```sh\n(.*?)```", chapter, re.DOTALL)).splitlines()
    assert 0 < len(commands) <= COMMANDS_MOST
    return commands


def follow(commands, folder, **instead):
    """Run the commands in a folder; what they said, each."""
    said = []
    for command in commands:
        for word, other in instead.items():
            command = command.replace(word, other)
        words = shlex.split(command.replace("http://localhost:9090", instead.get("server", "")))
        if words[0] == "cis490":
            words[:1] = [sys.executable, "-m", "training.command"]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        said.append(done.stdout)
    return said


def caught(folder):
    report = json.loads((folder / "reports" / "eval" / "gbt_realistic_train.json").read_text())
    return report["metrics"]["test"]["auroc"]["value"]


@pytest.mark.thorough
def test_from_a_prometheus_that_runs_to_a_report(server, tmp_path):
    (tmp_path / "incidents.csv").write_text(log_of_incidents())
    said = follow(walk("From a Prometheus to a report"), tmp_path, server=server)
    assert "nothing was written: --dry-run" in said[0]
    assert "web1" in said[1]
    assert said[1].splitlines()[:-1] == said[0].splitlines()[:-1]
    assert 0.7 < caught(tmp_path) <= 1


def of_sysstat(path):
    """A file of the minute that sadf wrote, repeated at the pace of that Prometheus."""
    document = json.loads((Path(__file__).parents[1] / "data" / "recorded" / "sysstat.json").read_text())
    host = document["sysstat"]["hosts"][0]
    rng = np.random.default_rng(0)
    records = []
    for number in range(240):
        record = json.loads(json.dumps(host["statistics"][number % len(host["statistics"])]))
        day, clock = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(BEGIN + number * EVERY_S)).split()
        record["timestamp"] = {"date": day, "time": clock, "utc": 1, "interval": EVERY_S}
        record["process-and-context-switch"]["cswch"] *= rng.uniform(0.8, 1.2)
        records.append(record)
    host["statistics"] = records
    path.write_text(json.dumps(document))


@pytest.mark.thorough
def test_a_model_of_one_recorders_data_scores_anothers(server, tmp_path):
    (tmp_path / "incidents.csv").write_text(log_of_incidents())
    follow(walk("From a Prometheus to a report")[1:3], tmp_path, server=server)
    of_sysstat(tmp_path / "sa.json")
    said = follow(
        [
            "cis490 ingest --sysstat sa.json --like data/processed --out-dir other",
            "cis490 score artifacts/gbt_realistic.ckpt.json other --out scores.csv",
        ],
        tmp_path,
    )
    assert "Channels of --like that nothing measures here are missing: " not in said[0]
    assert pl.read_csv(tmp_path / "scores.csv").height >= 20


def test_from_a_log_of_incidents_to_a_report(tmp_path):
    (tmp_path / "incidents.csv").write_text(log_of_incidents())
    measured().write_csv(tmp_path / "measured.csv")
    follow(walk("From an incident log to a report"), tmp_path)
    assert 0.7 < caught(tmp_path) <= 1


def test_a_server_says_what_was_put_into_it(server):
    found = read_server(
        server,
        fetcher(server, None),
        RangeQuery(since=BEGIN, until=END, every_s=EVERY_S, queries={"mine": "node_load1"}),
    )
    rows = found.rows.filter(pl.col("host") == "web2")
    made = rates("web2")
    assert rows.height == len(made["node_load1"])
    assert rows["load_1m"].to_numpy() == pytest.approx(made["node_load1"], rel=1e-5)
    assert rows["mine"].to_numpy() == pytest.approx(made["node_load1"], rel=1e-5)
    users = sum(made[f'node_cpu_seconds_total{{cpu="{cpu}",mode="user"}}'] for cpu in (0, 1))
    assert rows["cpu_user"].to_numpy()[1:] == pytest.approx(users[1:], rel=1e-3)
    rx = sum(made[f'node_network_receive_bytes_total{{device="{device}"}}'] for device in ("eth0", "lo"))
    assert rows["net_rx_bytes"].to_numpy()[1:] == pytest.approx(rx[1:], rel=1e-3)
    used = made["node_memory_MemTotal_bytes"] - made["node_memory_MemAvailable_bytes"]
    assert np.allclose(rows["memory_used"].to_numpy(), used)


def test_the_node_exporter_exports_what_is_asked_for(tmp_path):
    port = free_port()
    with started("prometheus-node-exporter", f"--web.listen-address=127.0.0.1:{port}", folder=tmp_path):
        page = get(f"http://127.0.0.1:{port}/metrics").decode()
    exported = set(re.findall(r"^(\w+)", page, re.MULTILINE))
    lacking = [metric for metric in METRICS if metric not in exported]
    assert [metric for metric in lacking if not any(word in metric for word in OPTIONAL)] == []

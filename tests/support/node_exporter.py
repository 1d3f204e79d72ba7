"""The words of a node exporter to a Prometheus over some hours, and the real server that serves it.

The samples are made, in the metrics' real names and labels, and imported by `promtool`: nobody waits for them.
"""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.request
from contextlib import contextmanager

import numpy as np
import polars as pl
from programs import installed

HOSTS = ("web1", "web2", "web3")
BEGIN, END, EVERY_S = 1_795_161_600, 1_795_176_000, 15  # 2026-11-20, 8 to 12 o'clock
INCIDENTS_EACH, LASTS_S = 6, 900
PATIENCE_S = 30.0


def program(name):
    return installed(name, "prometheus prometheus-node-exporter")


def incidents():
    """Begin, end and host of each, a while apart and at another time on every host."""
    each = (END - BEGIN) // INCIDENTS_EACH
    return [
        (BEGIN + n * each + 300 + 120 * number, BEGIN + n * each + 300 + 120 * number + LASTS_S, host)
        for number, host in enumerate(HOSTS)
        for n in range(INCIDENTS_EACH)
    ]


def log_of_incidents():
    def at(seconds):
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))

    rows = [f"{at(begin)},{at(end)},attack,{host}\n" for begin, end, host in incidents()]
    return "start,end,label,host\n" + "".join(rows)


def rates(host):
    """By series: growth by the second of counters, levels of gauges, at each scrape."""
    t = np.arange(BEGIN, END, EVERY_S)
    rng = np.random.default_rng(HOSTS.index(host))
    busy = np.zeros(t.size)
    for begin, end, of in incidents():
        busy[(t >= begin) & (t < end) & (host == of)] = 1.0

    def noisy(usual, more):
        return (usual + more * busy) * rng.lognormal(0, 0.35, t.size)

    return {
        'node_cpu_seconds_total{cpu="0",mode="user"}': noisy(0.2, 0.2),
        'node_cpu_seconds_total{cpu="1",mode="user"}': noisy(0.2, 0.1),
        'node_cpu_seconds_total{cpu="0",mode="system"}': noisy(0.05, 0.03),
        "node_context_switches_total": noisy(2000, 900),
        "node_intr_total": noisy(900, 100),
        "node_forks_total": noisy(3, 2),
        'node_disk_read_bytes_total{device="sda"}': noisy(3e5, 6e5),
        'node_disk_written_bytes_total{device="sda"}': noisy(2e5, 1e5),
        'node_network_receive_bytes_total{device="eth0"}': noisy(5e4, 1e4),
        'node_network_receive_bytes_total{device="lo"}': noisy(1e3, 0),
        "node_load1": noisy(0.5, 0.3),
        "node_memory_MemTotal_bytes": np.full(t.size, 8e9),
        "node_memory_MemAvailable_bytes": noisy(5e9, -1e8),
    }


GAUGES = ("node_load1", "node_memory_MemTotal_bytes", "node_memory_MemAvailable_bytes")


def openmetrics():
    """All samples as OpenMetrics text, a family after the other."""
    t = np.arange(BEGIN, END, EVERY_S)
    families = {}
    for host in HOSTS:
        for series, rate in rates(host).items():
            name, _, labels = series.partition("{")
            values = rate if name in GAUGES else 1e6 + np.cumsum(rate) * EVERY_S
            inside = f'{{instance="{host}:9100",job="node"' + (f",{labels}" if labels else "}")
            families.setdefault(name, []).extend(
                f"{name}{inside} {value:.6f} {at}\n" for at, value in zip(t.tolist(), values.tolist(), strict=True)
            )
    parts = [f"# TYPE {name} gauge\n" + "".join(lines) for name, lines in families.items()]
    return "".join(parts) + "# EOF\n"


def measured():
    """The same machines as a table of some other recorder."""
    t = np.arange(BEGIN, END, EVERY_S)
    parts = []
    for host in HOSTS:
        names = {"node_load1": "load", "node_intr_total": "interrupts", "node_context_switches_total": "switches"}
        columns = {name: rates(host)[series] for series, name in names.items()}
        parts.append(pl.DataFrame({"timestamp": t, "host": [host] * t.size, **columns}))
    return pl.concat(parts).with_columns((pl.col("timestamp") * 1000).cast(pl.Datetime("ms", "UTC")))


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def get(url):
    """Ask again until something answers, or patience is at its end."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
                return answer.read()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


@contextmanager
def started(*command, folder):
    with (folder / "said.log").open("wb") as said:
        process = subprocess.Popen([program(command[0]), *command[1:]], stdout=said, stderr=said, cwd=folder)
        try:
            yield
        finally:
            process.terminate()
            process.wait()


@contextmanager
def prometheus(folder):
    """A real Prometheus with these samples: its address."""
    (folder / "samples.txt").write_text(openmetrics())
    command = [program("promtool"), "tsdb", "create-blocks-from", "openmetrics", "samples.txt", "data"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    (folder / "prometheus.yml").write_text("global: {}\n")
    port = free_port()
    flags = ("--storage.tsdb.path=data", "--storage.tsdb.retention.time=100y", f"--web.listen-address=127.0.0.1:{port}")
    with started("prometheus", "--config.file=prometheus.yml", *flags, folder=folder):
        get(f"http://127.0.0.1:{port}/-/ready")
        yield f"http://127.0.0.1:{port}"

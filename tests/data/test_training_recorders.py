"""Recordings of sysstat, a Prometheus and Windows' performance monitor, under the names and units of our channels.

``recorded/`` holds what the real tools wrote of one machine in the same minute: ``sa23`` is sadc's, ``sysstat.json``
what sadf made of it, ``prometheus.json`` the answer of a Prometheus that read the node exporter. The performance
monitor's files are made here, in the form that its documentation gives, and so are ``perfmon.csv`` and ``pmrep.csv``.
``examples.json`` has files of each recorder and the mean of each channel in them. A real, quiet machine has nought in
many channels; in the files called ``made`` each channel has a number of its own.
"""

import csv
import importlib
import json
import pkgutil
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec
import numpy as np
import polars as pl
import pytest
from programs import installed
from small_servers import serving

from training.data import ingest
from training.data.channels import CHANNELS
from training.data.errors import DataError
from training.data.ingest import recorders
from training.data.ingest.recorders import pcp, prometheus_http
from training.data.ingest.recorders.perfmon import read_perfmon
from training.data.ingest.recorders.prometheus import STEPS_A_QUERY, RangeQuery, read_file, read_server
from training.data.ingest.recorders.prometheus_http import fetcher, without_password
from training.data.ingest.recorders.recorded import ORDER
from training.data.ingest.recorders.registry import OF_SERVERS, RECORDERS
from training.data.ingest.recorders.sysstat import read_sysstat
from training.data.normalise import spec_of
from training.data.schema import read_schema

HERE = Path(__file__).parent / "recorded"
SA, SYSSTAT, PROMETHEUS = HERE / "sa23", HERE / "sysstat.json", HERE / "prometheus.json"
DOCS = Path(__file__).parents[2] / "docs" / "ingest.md"
SHORT = ("--window-s", "16", "--stride-s", "8")


def columns(found):
    """Values by channel."""
    return {name: found.rows[name].to_numpy() for name in found.channels}


@pytest.fixture
def run(tmp_path, capsys):
    """Ingest with options: exit code, and what was said."""

    def run(*options):
        try:
            code = ingest.main([*options, "--out-dir", str(tmp_path / "out"), "--json"])
        except SystemExit as end:
            code = end.code
        said = capsys.readouterr()
        return code, json.loads(said.out) if code == 0 else said.err

    return run


def refused(run, *options):
    code, said = run(*options)
    assert code in (2, 65), said
    assert said.count("error: ") == 1
    assert said.count("\n") == 1 or "usage: " in said  # argparse shows the options as well
    return said


# -- one machine, two recorders ----------------------------------------------------------------------------------------


def test_two_recorders_of_one_machine_agree():
    one, other = columns(read_sysstat([SYSSTAT])), columns(read_file(PROMETHEUS))
    # The exporter of that version leaves the loopback interface out, and connections were few in that minute.
    apart = {name for name in CHANNELS if name.startswith(("net_", "tcp_"))}
    both = sorted({*one, *other} & set(one) & set(other) - apart)
    assert len(both) >= 18
    for name in both:
        mine, theirs = np.nanmean(one[name]), np.nanmean(other[name])
        assert mine == pytest.approx(theirs, rel=0.12, abs=0.02), name
    assert set(other) - set(one) == {"memory_cached", "memory_writeback", "tcp_established"}
    assert {"threads", "tcp_attempt_fails"} <= set(one) - set(other)


def test_both_become_data_sets_of_our_channels_and_units(run, tmp_path):
    seen = {}
    for option, path in (("--sysstat", SYSSTAT), ("--prometheus", PROMETHEUS)):
        code, found = run(option, str(path), *SHORT)
        assert code == 0, found
        assert found["labels"] == {"benign": found["windows"]}
        assert found["understood"]["sample_hz"] == 0.5
        assert found["benign"] == {"classes": ["benign"], "why": "as nothing is labelled"}
        schema = read_schema(tmp_path / "out" / "feature_schema_v1.json")
        for channel in schema.channels:
            ours = CHANNELS[channel.name]
            assert channel == spec_of(ours.name, ours.unit, ours.kind, ours.modes)
        assert set(schema.channel_names) <= set(ORDER)
        seen[option] = {channel.name: channel for channel in schema.channels}
    for name in set(seen["--sysstat"]) & set(seen["--prometheus"]):
        assert seen["--sysstat"][name] == seen["--prometheus"][name]
    assert any("--labels-from FILE brings some" in note for note in found["notes"])


def test_incidents_label_what_a_recorder_measured(run, tmp_path):
    log = tmp_path / "incidents.csv"
    log.write_text("start,end,label\n2026-11-23T11:49:40Z,2026-11-23T11:50:10Z,attack\n")
    code, found = run("--prometheus", str(PROMETHEUS), *SHORT, "--labels-from", str(log), "--rest", "normal")
    assert code == 0, found
    assert set(found["labels"]) == {"attack", "normal"}
    log.write_text("start,end,label\n2026-11-23 11:49:40,2026-11-23 11:50:10,attack\n")
    assert "name no time zone" in refused(run, "--prometheus", str(PROMETHEUS), "--labels-from", str(log))


# -- sysstat -----------------------------------------------------------------------------------------------------------


def test_a_file_of_sadc_is_read_by_sadf_as_its_json_is():
    installed("sadf", "sysstat")
    assert read_sysstat([SA]).rows.equals(read_sysstat([SYSSTAT]).rows)


@pytest.fixture
def elsewhere(monkeypatch):
    """A machine that is nine hours ahead of UTC."""
    monkeypatch.setenv("TZ", "JST-9")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("elsewhere")
def test_stamps_are_utc_wherever_they_are_read(tmp_path):
    assert read_sysstat([SYSSTAT]).rows["t"][0].isoformat() == "2026-11-23T11:49:16+00:00"
    perfmon = read_perfmon([relogged(tmp_path / "a.csv", ENGLISH)])
    assert perfmon.rows["t"][0].isoformat() == "2026-11-23T11:00:01.001000+00:00"


def test_files_of_sysstat_that_cannot_be_used_are_refused(run, tmp_path, monkeypatch):
    installed("sadf", "sysstat")
    half = tmp_path / "half.json"
    half.write_bytes(SYSSTAT.read_bytes()[:9000])
    assert "or only a part of it: write it again" in refused(run, "--sysstat", str(half))
    other = tmp_path / "sa01"
    other.write_bytes(b"\x00nothing of sysstat" * 40)
    assert "cannot be read by sadf" in refused(run, "--sysstat", str(other))
    assert "cannot be read (No such file" in refused(run, "--sysstat", str(tmp_path / "none"))
    bare = msgspec.json.decode(SYSSTAT.read_bytes())
    bare["sysstat"]["hosts"][0]["statistics"][0]["timestamp"]["utc"] = 0
    half.write_bytes(msgspec.json.encode(bare))
    assert "sadf wrote local times" in refused(run, "--sysstat", str(half))
    bare["sysstat"]["hosts"][0]["statistics"] = []
    half.write_bytes(msgspec.json.encode(bare))
    assert "holds no samples" in refused(run, "--sysstat", str(half))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "apt install sysstat" in refused(run, "--sysstat", str(SA))


# -- Prometheus --------------------------------------------------------------------------------------------------------


class Told:
    """A server's answers, made from functions of the time, and the questions that it got."""

    def __init__(self, hosts=("pi:9100", "desk:9100"), scrape=15.0, until=1e12):
        self.hosts, self.scrape, self.until, self.urls = hosts, scrape, until, []

    def __call__(self, url):
        self.urls.append(url)
        parts = urlsplit(url)
        fields = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if parts.path.endswith("/label/instance/values"):
            return msgspec.json.encode({"status": "success", "data": list(self.hosts)})
        assert parts.path.endswith("/query_range")
        start, end, step = (float(fields[name]) for name in ("start", "end", "step"))
        t = np.arange(start, end + 1e-6, step)
        assert t.size <= STEPS_A_QUERY
        scraped = np.minimum(np.floor(t / self.scrape) * self.scrape, self.until)
        t, scraped = t[t - scraped < 300], scraped[t - scraped < 300]  # a server repeats for five minutes
        query = fields["query"]
        series = []
        for host in self.hosts:
            if f'instance="{host}"' in query or "instance=" not in query:
                for labels, value in self.series(query, scraped):
                    pairs = [[at, repr(float(each))] for at, each in zip(t.tolist(), value, strict=True)]
                    series.append({"metric": {**labels, "instance": host, "job": "node"}, "values": pairs})
        return msgspec.json.encode({"status": "success", "data": {"resultType": "matrix", "result": series}})

    def series(self, query, t):
        if "__name__" not in query:
            return [({}, np.sin(t))]
        cpu = "node_cpu_seconds_total"
        restart = np.where(t >= 1_700_003_600, t - 1_700_003_600, t - 1_690_000_000)
        return [
            ({"__name__": "node_context_switches_total"}, 100 * restart),
            ({"__name__": cpu, "mode": "user", "cpu": "0"}, 0.25 * restart),
            ({"__name__": cpu, "mode": "user", "cpu": "1"}, 0.5 * restart),
            ({"__name__": cpu, "mode": "idle", "cpu": "1"}, 0.1 * restart),
            ({"__name__": "node_load1"}, 1 + np.cos(t)),
            ({"__name__": "node_memory_MemTotal_bytes"}, np.full(t.size, 8e9)),
            ({"__name__": "node_memory_MemAvailable_bytes"}, 5e9 + t),
            ({"__name__": "node_memory_Cached_bytes"}, 1e9 + t),
        ]


ASKED = RangeQuery(since=1_700_000_000.0, until=1_700_007_200.0, every_s=15.0, queries={})


def test_counters_of_a_server_become_rates_and_a_restart_is_no_growth():
    told = Told()
    rows = read_server("http://pi:9090", told, ASKED).rows
    assert rows["host"].unique(maintain_order=True).to_list() == ["desk", "pi"]
    one = rows.filter(pl.col("host") == "pi")
    assert one["cpu_user"].round(9).unique().to_list() in ([0.0, 0.75], [0.75, 0.0])
    assert (one["cpu_user"] == 0).sum() == 1
    assert one["context_switches"].max() == pytest.approx(100)
    assert one["memory_used"][0] == pytest.approx(3e9 - 1.7e9)
    assert "memory_cached" not in rows.columns  # half of it is another metric
    assert len(rows) == 2 * 481


def test_memory_of_which_a_part_is_missing_is_missing(tmp_path):
    """Without what is available, all of the memory would count as used."""
    whole = msgspec.json.decode(PROMETHEUS.read_bytes())
    for one in whole["data"]["result"]:
        if one["metric"]["__name__"] == "node_memory_MemAvailable_bytes":
            one["values"] = one["values"][3:]
    (tmp_path / "a.json").write_bytes(msgspec.json.encode(whole))
    used, before = (read_file(path).rows["memory_used"] for path in (tmp_path / "a.json", PROMETHEUS))
    assert used.null_count() == before.null_count() + 3
    assert used[3:].equals(before[3:])


def test_two_ports_of_one_name_are_two_hosts():
    rows = read_server("http://pi:9090", Told(hosts=("pi:9100", "pi:9200")), ASKED).rows
    assert rows["host"].unique(maintain_order=True).to_list() == ["pi:9100", "pi:9200"]


def test_a_host_that_is_scraped_twice_is_refused(tmp_path):
    whole = msgspec.json.decode(PROMETHEUS.read_bytes())
    again = msgspec.json.decode(PROMETHEUS.read_bytes())["data"]["result"]
    for one in again:
        one["metric"]["job"] = "spare"
    whole["data"]["result"] += again
    path = tmp_path / "twice.json"
    path.write_bytes(msgspec.json.encode(whole))
    said = r"is scraped more than once \(by job 'node' and 'spare'\): say which with --match"
    with pytest.raises(DataError, match=said):
        read_file(path)


def test_what_a_server_repeats_is_no_sample():
    rows = read_server("http://pi:9090", Told(scrape=60.0), ASKED).rows
    steps = rows.filter(pl.col("host") == "pi")["t"].diff().dt.total_seconds().drop_nulls()
    assert steps[1:].unique().to_list() == [60]
    mine = read_server("http://pi:9090", Told(scrape=60.0), ASKED._replace(queries={"users": "u"})).rows
    assert mine.drop("users").equals(rows)
    rows = read_server("http://pi:9090", Told(until=1_700_001_000.0), ASKED).rows
    assert rows["t"].max().timestamp() <= 1_700_001_015.0


def test_each_query_keeps_its_own_times_on_a_host_without_the_preset():
    told = Told(hosts=("db:9187",))
    told.series = lambda query, t: [] if "__name__" in query else [({}, np.sin(t))]

    def fetch(url):
        return told(url.replace("start=1700000000.0", "start=1700003600.0") if "query=late" in url else url)

    rows = read_server("http://pi:9090", fetch, ASKED._replace(queries={"late": "late", "early": "early"})).rows
    assert (rows["late"].count(), rows["early"].count()) == (241, 481)


def test_long_times_are_asked_for_in_pieces(run):
    told = Told(hosts=("pi:9100",))
    long = ASKED._replace(until=1_700_086_400.0, match='job="node"', queries={"users": "u"})
    found = read_server("http://pi:9090/prom/", told, long)
    assert len(found.rows) == 5761
    assert found.channels[0] == "cpu_user"
    assert "users" in found.rows.columns
    assert len(told.urls) == 1 + 2 * -(-5761 // STEPS_A_QUERY)
    assert all(url.startswith("http://pi:9090/prom/api/v1/") for url in told.urls)
    assert "job%3D%22node%22" in told.urls[0]


def answers(body):
    return lambda url: b'{"status":"success","data":["pi:9100"]}' if "/label/" in url else body


def matrix(series):
    return b'{"status":"success","data":{"resultType":"matrix","result":[' + series + b"]}}"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b'{"status":"success","data":{"resultType":"matrix","resu', "is only half an answer"),
        (b"<html>Sign in</html>", "is no answer of a Prometheus' HTTP API"),
        (b'{"status":"error","error":"query timed out"}', "refuses a query: query timed out"),
        (b'{"status":"success","data":{"resultType":"vector","result":[]}}', "a vector where samples of a time"),
        (matrix(b'{"metric":{},"values":1}'), "series that are none"),
        (matrix(b""), "none of the channels of a host"),
    ],
)
def test_answers_that_cannot_be_used_are_refused(body, sentence):
    with pytest.raises(DataError, match=sentence):
        read_server("http://pi:9090", answers(body), ASKED)


def test_a_query_with_several_series_or_none_or_without_hosts_is_refused(monkeypatch):
    told, mine = Told(), ASKED._replace(queries={"x": "up"})
    monkeypatch.setattr(told, "series", lambda query, t: [({"cpu": "0"}, t), ({"cpu": "1"}, t)])
    with pytest.raises(DataError, match=r"has 2 series of the instance 'pi:9100'.*sum by \(instance\)"):
        read_server("http://pi:9090", told, mine)
    monkeypatch.setattr(told, "series", lambda query, t: [])
    with pytest.raises(DataError, match="'x' has no samples in that time"):
        read_server("http://pi:9090", told, mine)
    with pytest.raises(DataError, match="names no instance, which is the host"):
        read_server("http://pi:9090", answers(matrix(b'{"metric":{},"values":[[1,"2"]]}')), mine)
    with pytest.raises(DataError, match="has no host of the node exporter in that time"):
        read_server("http://pi:9090", Told(hosts=()), ASKED)


@pytest.mark.parametrize("header", [None, "Bearer s3cret", "Basic bWU6czNjcmV0"])
def test_words_of_a_server_are_noted_unless_they_repeat_the_password(header):
    def warns(url):
        words = b'"warnings":["a store is away","no me:s3cret"],"data"'
        return Told()(url).replace(b'"data"', words, "/query_range" in url)

    echo = "its words repeat the password" if header else "no me:s3cret"
    notes = tuple(f"The Prometheus at pi warns: {each}." for each in ("a store is away", echo))
    assert read_server("http://pi:9090", warns, ASKED, header).notes == notes
    with pytest.raises(DataError, match=f"refuses a query: {echo}."):
        read_server("http://pi:9090", answers(b'{"status":"error","error":"no me:s3cret"}'), ASKED, header)


class Server(BaseHTTPRequestHandler):
    """Answers each GET as the address says."""

    def do_GET(self):
        status = int(self.path.split("/")[1].partition("?")[0])
        self.server.shown = self.headers["Authorization"]
        body = b'{"status":"error","error":"parse error"}' if status == 400 else b"<html>"
        if status == 500:
            body = b'{"error":' * 7000
        if status == 422:
            asked = unquote(self.path.partition("?")[2]) or self.headers["Authorization"]
            body = b'{"error":"what is %s?"}' % asked.encode()
        self.send_response(status, self.headers["Authorization"] if status == 418 else None)
        self.send_header("Location", f"http://127.0.0.1:{getattr(self.server, 'elsewhere', 1)}/200")
        if status != 203:
            self.send_header("Content-Length", str(len(body) + (50 if status in (200, 206) else 0)))
        self.end_headers()
        self.wfile.write(body)
        with suppress(OSError):  # the client hangs up
            if status == 206:
                self.server.given_up.wait(60)
            while status == 203:
                self.wfile.write(b" " * 10_000)

    def log_message(self, *_):
        pass


def test_servers_that_refuse_break_off_or_are_away_are_named_without_their_password(run, tmp_path):
    with serving(HTTPServer(("127.0.0.1", 0), Server)) as port:
        said = {}
        for status in (401, 403, 400, 404, 200):
            said[status] = refused(run, "--prometheus", f"http://me:secret@127.0.0.1:{port}/{status}")
    assert "asks for a password" in said[401]
    assert "asks for a password" in said[403]
    assert "refuses a query: parse error" in said[400]
    assert "answers 404 Not Found where a Prometheus has its HTTP API" in said[404]
    assert "broke off in the middle" in said[200]
    assert not any("secret" in each for each in said.values())
    assert "No Prometheus answers at http://127.0.0.1" in refused(run, "--prometheus", f"http://127.0.0.1:{port}")
    assert not (tmp_path / "out").exists()


def test_an_answer_that_never_ends_and_a_reason_too_deep_to_read_are_sentences(monkeypatch):
    server = HTTPServer(("127.0.0.1", 0), Server)
    server.given_up = threading.Event()
    with serving(server) as port:
        with pytest.raises(DataError, match="answers 500 Internal Server Error where a Prometheus has its HTTP API"):
            fetcher("the server", None)(f"http://127.0.0.1:{port}/500")
        monkeypatch.setattr(prometheus_http, "ANSWER_S", 0.1)
        with pytest.raises(DataError, match="the server has not answered in full within 0 s"):
            fetcher("the server", None)(f"http://127.0.0.1:{port}/206")
        server.given_up.set()


def test_a_token_is_shown_to_its_server_alone_and_no_answer_is_read_without_end(monkeypatch):
    monkeypatch.setattr(prometheus_http, "ANSWER_BYTES_MAX", 100_000)
    elsewhere, named = HTTPServer(("127.0.0.1", 0), Server), HTTPServer(("127.0.0.1", 0), Server)
    elsewhere.shown, said = None, {}
    with serving(elsewhere) as other, serving(named) as port:
        named.elsewhere = other
        basic = {"422?s3cret": "bWU6czNjcmV0", "422": "bWU6czNjcmV0", "422?s3cr%2540": "bWU6czNjckA="}
        for status in (203, 418, 422, f"422?{'x' * 188}s3cret", *basic, "422?s3cr", 302):
            way = f"Basic {basic[status]}" if status in basic else "Bearer s3cret"
            with pytest.raises(DataError) as caught:
                fetcher("the server", way)(f"http://127.0.0.1:{port}/{status}")
            said[status] = str(caught.value)
    assert (named.shown, elsewhere.shown) == ("Bearer s3cret", None)
    assert "answers 302 Found where a Prometheus has its HTTP API" in said[302]
    assert "more than 0 MiB" in said[203]
    assert "what is s3cr?" in said.pop("422?s3cr"), "that is not the token"
    assert not any("s3cr" in each or "bWU6" in each for each in said.values())


def test_a_name_and_a_password_or_a_token_become_a_header(monkeypatch):
    assert without_password("https://me:a%40b@pi/prom") == ("https://pi/prom", "Basic bWU6YUBi")
    monkeypatch.setenv("PROMETHEUS_TOKEN", "abc")
    assert without_password("http://pi:9090") == ("http://pi:9090", "Bearer abc")
    monkeypatch.setenv("PROMETHEUS_TOKEN", "me:a@b\n")  # others can read a command line
    assert without_password("http://pi:9090") == ("http://pi:9090", "Basic bWU6YUBi")
    for wrong in ("ftp://me:secret@pi", "http://me:secret@", "http://me:secret@[pi"):
        with pytest.raises(DataError, match="is no address") as caught:
            without_password(wrong)
        assert "secret" not in str(caught.value)
    assert callable(fetcher("http://pi", None))


def test_files_of_answers_that_cannot_be_used_are_refused(run, tmp_path):
    path = tmp_path / "a.json"
    whole = PROMETHEUS.read_bytes()
    for body, sentence in (
        (whole[:4000], "is only half an answer"),
        (b"", "is empty"),
        (b'{"status":"error","error":"no"}', "holds a Prometheus' refusal: no"),
        (matrix(b'{"metric":{"instance":"a","__name__":"up"},"values":[[1,"1"]]}'), "no metric of the node exporter"),
    ):
        path.write_bytes(body)
        assert sentence in refused(run, "--prometheus", str(path))
    assert "--since has no effect" in refused(run, "--prometheus", str(path), "--since", "2026-11-20")
    path.write_bytes(whole + b"\n" + whole + b"\n")
    assert read_file(path).rows.equals(read_file(PROMETHEUS).rows)


# -- Windows' performance monitor --------------------------------------------------------------------------------------

ENGLISH = {
    r"Processor(0)\% User Time": 20.0,
    r"Processor(1)\% User Time": 40.0,
    r"Processor(_Total)\% User Time": 30.0,
    r"Processor(_Total)\Interrupts/sec": 500.0,
    r"System\Context Switches/sec": 900.0,
    r"System\Threads": 1200.0,
    r"Memory\Page Faults/sec": 70.0,
    r"PhysicalDisk(_Total)\Disk Read Bytes/sec": 4096.0,
    r"PhysicalDisk(0 C:)\Disk Read Bytes/sec": 4096.0,
    r"Network Interface(Intel[R] Ethernet)\Bytes Received/sec": 100.0,
    r"Network Interface(Wi-Fi)\Bytes Received/sec": 10.0,
    r"TCPv4\Connections Established": 6.0,
    r"TCPv6\Connections Established": 2.0,
    r"TCPv4\Connections Active": 5000.0,
    r"LogicalDisk(C:)\% Free Space": 55.0,
}
GERMAN = {
    r"Prozessor(0)\Benutzerzeit (%)": 20.0,
    r"Prozessor(1)\Benutzerzeit (%)": 40.0,
    r"Prozessor(_Total)\Benutzerzeit (%)": 30.0,
    r"Prozessor(_Total)\Interrupts/s": 500.0,
    r"System\Kontextwechsel/s": 900.0,
    r"System\Threads": 1200.0,
    r"Arbeitsspeicher\Seitenfehler/s": 70.0,
    r"Physikalischer Datenträger(_Total)\Bytes gelesen/s": 4096.0,
    r"Physikalischer Datenträger(0 C:)\Bytes gelesen/s": 4096.0,
    r"Netzwerkschnittstelle(Intel[R] Ethernet)\Empfangene Bytes/s": 100.0,
    r"Netzwerkschnittstelle(WLAN)\Empfangene Bytes/s": 10.0,
    r"TCPv4\Hergestellte Verbindungen": 6.0,
    r"TCPv6\Hergestellte Verbindungen": 2.0,
    r"TCPv4\Aktive Verbindungen": 5000.0,
    r"Logischer Datenträger(C:)\Freier Speicherplatz (%)": 55.0,
}
MEANT = {
    "cpu_user": 0.6,
    "interrupts": 500.0,
    "context_switches": 900.0,
    "page_faults": 70.0,
    "disk_read_bytes": 4096.0,
    "net_rx_bytes": 110.0,
    "threads": 1200.0,
    "tcp_established": 8.0,
    "tcp_active_opens": 0.0,  # since the start of the machine 5,000, and none of them now
}


def relogged(path, counters, rows=60, encoding="utf-8", minutes=-60):
    """A file as relog writes it; the first row lacks what needs two samples."""
    head = [f"(PDH-CSV 4.0) (W. Europe Standard Time)({minutes})", *(rf"\\DESK\{name}" for name in counters)]
    lines = [",".join(f'"{cell}"' for cell in head)]
    for row in range(rows):
        stamp = f"11/23/2026 12:{row // 60:02d}:{row % 60:02d}.{row % 7:03d}"
        cells = [" " if row == 0 and "/s" in name else f"{value:.12g}" for name, value in counters.items()]
        lines.append(",".join(f'"{cell}"' for cell in (stamp, *cells)))
    path.write_text("\r\n".join(lines) + "\r\n", encoding=encoding, newline="")
    return path


@pytest.mark.parametrize(("counters", "encoding"), [(ENGLISH, "utf-8"), (GERMAN, "cp1252"), (GERMAN, "utf-16")])
def test_counters_of_windows_are_our_channels_in_both_languages(tmp_path, counters, encoding):
    found = read_perfmon([relogged(tmp_path / "a.csv", counters, encoding=encoding)])
    rows = found.rows
    assert {name: rows[name][1] for name in found.channels} == pytest.approx(MEANT)
    assert rows.height == 59
    assert rows["t"][0].isoformat() == "2026-11-23T11:00:01.001000+00:00"
    assert rows["host"].unique().to_list() == ["DESK"]
    assert found.notes == ("1 counters of a.csv mean none of our channels: left out.",)


@pytest.mark.parametrize("between", [",", ";"])
def test_counters_with_decimal_commas_are_read(tmp_path, between):
    path = relogged(tmp_path / "a.csv", GERMAN)
    expected = read_perfmon([path]).rows
    rows = [[cell.replace(".", ",") for cell in line] for line in csv.reader(path.read_text().splitlines()[1:])]
    head = next(csv.reader(path.read_text().splitlines()))
    stamps = [line[0].replace(",", ".") for line in rows]
    rows = [head, *([stamp, *line[1:]] for stamp, line in zip(stamps, rows, strict=True))]
    path.write_text("\r\n".join(between.join(f'"{cell}"' for cell in line) for line in rows), newline="")
    assert read_perfmon([path]).rows.equals(expected)


def test_a_processor_that_two_objects_count_counts_once(tmp_path):
    twice = {name.replace("Processor(", "Processor Information(0,"): value for name, value in ENGLISH.items()}
    found = read_perfmon([relogged(tmp_path / "a.csv", ENGLISH | twice)]).rows
    assert found["cpu_user"][1] == pytest.approx(MEANT["cpu_user"])
    assert found["interrupts"][1] == MEANT["interrupts"]  # the total of all groups, not of one more


def test_processors_that_are_not_counted_each_are_left_out_and_said(tmp_path):
    counters = {name: value for name, value in ENGLISH.items() if "(0)" not in name and "(1)" not in name}
    found = read_perfmon([relogged(tmp_path / "a.csv", counters)])
    assert "cpu_user" not in found.channels
    assert any("cpu_user of DESK was left out: it needs a column for each processor" in note for note in found.notes)


def test_files_of_the_performance_monitor_become_a_data_set_or_are_refused(run, tmp_path):
    path = relogged(tmp_path / "a.csv", ENGLISH, rows=600 // 10)
    code, found = run("--perfmon", str(path), *SHORT)
    assert code == 0, found
    assert found["understood"]["sample_hz"] == pytest.approx(1.0, abs=0.01)
    text = path.read_text()
    for body, sentence in (
        ("t,x\n1,2\n", "is not what relog writes as CSV"),
        (text.splitlines()[0], "holds no samples"),
        (text.replace('"900"', '"9oo"', 1), "holds what relog does not write"),
        (text.replace('"900",', ""), "lines of"),
    ):
        path.write_text(body)
        assert sentence in refused(run, "--perfmon", str(path))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["a.csv", "--sysstat", "b"], "give files, or one of --pcp, --prometheus, --sysstat, --perfmon"),
        (["--sysstat", "b", "--pcp", "c"], "give files, or one of"),
        (["--sysstat", "b", "--label", "x"], "--label has no effect on --sysstat"),
        (["--sysstat", "b", "--benign", "x"], "--benign has no effect on --sysstat without --labels-from"),
        (["--sysstat", "b", "--every-s", "3"], "--every-s has no effect on --sysstat"),
        (["--perfmon", "b", "--query", "a=b"], "--query has no effect on --perfmon"),
        (["--prometheus", "http://a", "--since", "9", "--query", "t"], "must be NAME=PROMQL"),
        (["--prometheus", "http://a", "--since", "soon"], "must be a time such as"),
        (["--prometheus", "http://a", "--since", "9", "--until", "8"], "--since must lie before --until"),
    ],
)
def test_options_of_other_sources_are_refused(run, options, sentence):
    assert sentence in refused(run, *options)


# -- the registration --------------------------------------------------------------------------------------------------


def test_each_module_that_reads_a_recorder_is_registered():
    package = "training.data.ingest.recorders"
    names = [module.name for module in pkgutil.iter_modules(recorders.__path__)]
    readers = [name for name in names if hasattr(importlib.import_module(f"{package}.{name}"), f"read_{name}")]
    assert sorted(recorder.name for recorder in RECORDERS) == sorted(readers)


@pytest.mark.parametrize("recorder", RECORDERS, ids=lambda recorder: recorder.name)
def test_a_recorder_is_declared_as_a_whole(run, tmp_path, recorder):
    usage = refused(run)
    assert recorder.flag in usage
    assert f"{recorder.flag} " in DOCS.read_text(encoding="utf-8")
    assert f"--label has no effect on {recorder.flag}" in refused(run, recorder.flag, "a", "--label", "x")
    values = {"since": "9", "until": "9", "query": "a=b", "match": "a", "every_s": "60"}
    for option in {*OF_SERVERS} - {*recorder.options("a")}:
        flag = f"--{option.replace('_', '-')}"
        assert f"{flag} has no effect on {recorder.flag}" in refused(run, recorder.flag, "a", flag, values[option])
    assert run(recorder.flag, str(tmp_path / "nowhere"))[0] == 65


@pytest.mark.parametrize("recorder", RECORDERS, ids=lambda recorder: recorder.name)
def test_a_recorders_examples_are_read_in_our_units(monkeypatch, recorder):
    examples = json.loads((HERE / "examples.json").read_text(encoding="utf-8"))[recorder.name]
    label, printed = "Performance metrics from host pi", HERE / "pmrep.csv"
    monkeypatch.setattr(pcp, "_find", str)
    monkeypatch.setattr(pcp, "_run", lambda command, _: printed.read_text() if command[0] == "pmrep" else label)
    asked = RangeQuery(since=0.0, until=0.0, queries={})
    for example in examples:
        found = recorder.read([str(HERE / example["file"])], asked, lambda _: None)
        assert {name: np.nanmean(values) for name, values in columns(found).items()} == pytest.approx(example["means"])

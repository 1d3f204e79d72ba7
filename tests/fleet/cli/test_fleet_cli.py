"""``cis490-jobs``: what it prints, what it exits with, and that nothing from afar can reach the terminal."""

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
import typer
import zstandard
from builders import SHOWN
from hypothesis import given
from hypothesis import strategies as st
from places import ROOT
from rich.text import Text
from wire_builders import filled_reply, whole

from training.fleet.cli import complete as cli_complete
from training.fleet.cli import models as cli_bundle
from training.fleet.cli import program
from training.fleet.cli import render as cli_views
from training.fleet.cli import status as cli_status
from training.fleet.cli.context import CannotError, CommandContext, meter
from training.fleet.cli.models import BundleRefused, allowed_names, unpack
from training.fleet.client.client import FleetClient
from training.fleet.client.transport import Response, TransportError
from training.fleet.wire import bundles
from training.fleet.wire.views import HealthReply, JobDetail, JobsReply, JobView
from training.fleet.wire.words import called, duration, typed
from training.fleet.worker.bundle import pack
from training.printable import counted, json_text, one_line, printable, printable_lines

NOW = 1_700_000_000.0
IDS = [hashlib.sha256(bytes([n])).hexdigest() for n in range(9)]
SPEC = {
    "model": "gbt",
    "mode": "oracle",
    "split_recipe": "host",
    "train_hosts": ["lab-a"],
    "seed": 7,
    "hyper": {"max_depth": 4},
    "require_cuda": True,
    "min_vram_gib": 4.0,
    "allowed_hosts": ["pi"],
}


def view(name, status, place=0, **more):
    """A JobView as the receiver gives it."""
    known = {"job_id": IDS[place], "name": name, "model": "gbt", "mode": "oracle", "status": status, "attempt": 1}
    blank = dict.fromkeys(("host", "error", "ended_by", "artifact_id", "claimed_at", "finished_at", "obstacle"))
    return known | blank | {"created_at": NOW - 7200, "in_manifest": True} | more


RUNNING = view(
    "gbt-oracle",
    "running",
    1,
    host="pi",
    claimed_at=NOW - 90,
    progress={"event": "epoch", "epoch": 12, "epochs": 60, "eta_s": 192.4},
)
FAILED = view(
    "mlp-oracle",
    "failed",
    2,
    error="line one\nValueError: no rows",
    ended_by="trainer: failed 3 of 3 times (max_attempts)",
    finished_at=NOW - 5,
)
STUCK = view("cnn-oracle", "pending", 3, obstacle="pi: no CUDA device")
DONE = view("gbt-realistic", "completed", 4, host="pi", finished_at=NOW, artifact_id="a" * 64)


class FakeReceiver:
    """A transport that answers like a receiver with these jobs; records what was asked with which token."""

    def __init__(self, *views):
        self.views = {v["name"]: v for v in views}
        self.answers = {}
        self.asked = []
        self.bundle = b""
        self.digest = None  # what it says of the bundle, when that is not true
        self.page = 1000
        self.near = 0  # other jobs that a call which changes something nearly hit

    def request(self, method, path, headers, body, timeout_s, sink=None):
        self.asked.append((method, path, headers.get("X-Operator-Token")))
        url = urlsplit(path)
        query = dict(pair.split("=") for pair in url.query.split("&") if pair)
        answer = self.answers.get((method, url.path))
        if answer is None:
            answer = self._route(method, [unquote(p) for p in url.path.split("/")[2:]], query, sink)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, Response):
            return answer
        status = answer.pop("status_code", 200)
        whole = filled_reply(method, path, answer) if status == 200 else answer
        return Response(status, SHOWN, json.dumps(whole).encode())

    def _route(self, method, parts, query, sink):
        match method, parts:
            case "GET", ["jobs"]:
                return self._jobs(query)
            case "GET", ["health"]:
                return {"status": "ok", "detail": None}
            case "GET", ["workers"]:
                return {"workers": [], "now": NOW}
            case "GET", ["job", ref] if found := self._found(ref):
                return {"job": found, "spec": SPEC, "attempts": [], "events": [], "now": NOW}
            case (("GET" | "HEAD"), ["model", _]):
                digest = self.digest or hashlib.sha256(self.bundle).hexdigest()
                if sink is not None:
                    sink(self.bundle)
                return Response(200, {**SHOWN, "x-content-sha256": digest, "content-length": str(len(self.bundle))})
            case "POST", ["job", ref, verb] if ref in self.views:
                moves = {"cancel": "cancelled", "requeue": "pending"}
                status = moves.get(verb, self.views[ref]["status"])
                said = {
                    key: self.views[ref].get(key, False) for key in ("job_id", "name", "in_manifest", "passed_over")
                }
                held = {"held_by": "ada", "held_at": NOW - 90} if verb == "hold" else {}
                return {**said, **held, "status": status, "near": self.near}
        detail = f"no job is called '{parts[1]}'; `cis490-jobs list` shows them all"
        return {"status_code": 404, "type": "unknown_job", "detail": detail}

    def _found(self, ref):
        by_id = {each["job_id"]: each for each in self.views.values()}
        return self.views.get(ref) or by_id.get(ref)

    def _jobs(self, query):
        after = int(query.get("after", 0))
        found = [v for v in self.views.values() if query.get("status") in (None, v["status"])]
        more = after + self.page < len(found)
        counts = {}, {}
        for each in self.views.values():
            some = counts[not each["in_manifest"]]
            some[each["status"]] = some.get(each["status"], 0) + 1
        return {
            "jobs": found[after : after + self.page],
            "counts": counts[0],
            "unplanned": counts[1],
            "now": NOW,
            "next_after": after + self.page if more else None,
        }


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Session:
    """Runs commands against a fake receiver; keeps what they printed."""

    def __init__(self, receiver, **environ):
        self.receiver = receiver
        self.urls = []
        self.slept = []
        self.patience = 3
        self.world = CommandContext(connect=self._connect, environ=environ, sleep=self._sleep, out=io.StringIO())

    def _connect(self, url, token):
        self.urls.append(url)
        return FleetClient(url, operator_token=token, transport=self.receiver, tries=1, sleep=lambda _: None)

    def _sleep(self, seconds):
        self.slept.append(seconds)
        if len(self.slept) > self.patience:
            raise KeyboardInterrupt

    def __call__(self, *argv):
        self.world = replace(self.world, out=io.StringIO(), err=io.StringIO())
        return program.main(argv, context=self.world)

    def says(self, *argv, code=0):
        """Return the output of a command, or its complaint where it ends with another code."""
        assert self(*argv) == code, self.err
        return self.err if code else self.out

    def workers(self, *told):
        """The hosts that the receiver lists from now on."""
        self.receiver.answers["GET", "/v1/workers"] = {"workers": list(told), "now": NOW}

    def get(self, folder, *more, code=0):
        """Fetch the job ``done``; returns what the command prints."""
        return self.says("get", "done", "--out", str(folder), *more, code=code)

    @property
    def out(self):
        return self.world.out.getvalue()

    @property
    def err(self):
        return self.world.err.getvalue()

    def json(self, *argv):
        assert self(*argv, "--json") == 0, self.err
        return json.loads(self.out)


@pytest.fixture
def run():
    return Session(FakeReceiver(RUNNING, FAILED, STUCK, DONE), CIS490_OPERATOR_TOKEN="secret")


@pytest.mark.parametrize("argv", ["status", "list"])
def test_a_long_name_keeps_both_ends_on_a_terminal_and_is_whole_in_a_file(argv):
    name = "sweep-" + "x" * 60 + "[seed=0,lr=0.003]"
    gone, done = view("gone", "pending", 2, in_manifest=False), DONE | {"auroc": {"value": 0.93}}
    run = Session(FakeReceiver(gone, RUNNING | {"name": name}, view("y" * 40, "running", 1), done))
    assert name in run.says(argv)
    shown = Terminal()
    assert program.main([argv], context=replace(run.world, out=shown, environ={"COLUMNS": "80"})) == 0
    assert name not in shown.getvalue()
    assert "y" * 40 in shown.getvalue()
    for figure in ("AUROC 0.930", "20 %") if argv == "status" else ("0.930",):
        assert figure in shown.getvalue(), "names and remarks leave it room"
    assert argv == "list" or run.says(argv).index("gone") > run.out.index("gbt-realistic"), "the plan comes first"
    assert re.search(r"sweep-x+ … x+\[seed=0,lr=0\.003\]", shown.getvalue())


@pytest.mark.parametrize(
    ("done", "status", "listed"),
    [
        ({"auroc": {"value": 0.93, "low": 0.885, "high": 0.978}}, "AUROC 0.930", "[0.885, 0.978]"),
        ({"progress": {"event": "epoch", "metric": 0.8, "metric_name": "accuracy"}}, *["accuracy 0.800"] * 2),
        ({"progress": {"event": "done", "metric": "x"}}, "", ""),
    ],
)
def test_a_completed_job_shows_its_result(done, status, listed):
    run = Session(FakeReceiver(DONE | done, RUNNING | done))
    for command, says in (("status", status), ("list", listed)):
        row, other = (
            next(line for line in run.says(command).splitlines() if line.strip().startswith(name))
            for name in ("gbt-r", "gbt-o")
        )
        assert (says in re.split("  +", row)) or says == ""
        assert says not in other or says == ""


def test_a_narrow_list_leaves_out_the_last_columns_and_names_them(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    shown = Terminal()
    program.main(["list"], context=replace(run.world, out=shown))
    lines = re.sub(r"\x1b\[[\d;]*m", "", shown.getvalue()).splitlines()
    assert max(map(len, lines)) <= 50
    assert "gbt-oracle" in shown.getvalue()
    assert "a wider terminal also shows: MODE, ID" in lines[-1]


@st.composite
def fleets(draw):
    """Return a receiver of made-up jobs and hosts, and the names of both."""
    names = st.integers(1, 60).flatmap(lambda size: st.text("ab[]=,.-_", min_size=size, max_size=size))
    names = st.lists(names.map("x{}".format), min_size=1, max_size=4, unique=True)
    jobs, hosts = draw(names), draw(names)
    host, since = st.sampled_from(hosts), st.floats(1, 1e7).map(NOW.__sub__)
    said = st.lists(st.text("abc:;.", min_size=1, max_size=20), max_size=12).map(" ".join)

    def made(given=(), **members):
        return dict(given) | {key: draw(each) for key, each in members.items()}

    def figure():
        return made({"low": 0.1, "high": 0.123}, value=st.floats(0, 1))

    progress = st.sampled_from([{"epoch": 9, "epochs": 60, "eta_s": 80.0}, {"event": "epoch"}, {}])
    states = st.sampled_from(["running", "pending", "completed", "failed"])
    about = {"host": host, "error": said, "obstacle": said, "claimed_at": since, "in_manifest": st.booleans()}
    views = [made(view(each, draw(states), auroc=figure()), progress=progress, **about) for each in jobs]
    receiver = FakeReceiver(*views)
    verdicts = [made({"host": each}, reason=said, wait_s=st.floats(0, 1e7)) for each in hosts]
    ends = st.sampled_from(["completed", "trainer_failed", None])
    about = {"host": host, "error": said, "granted_at": since, "end_reason": ends}
    tries = [made({"attempt": n, "artifact_id": "a" * 64, "ended_at": NOW, "granted": SPEC}, **about) for n in range(3)]
    events = [made({"transition": "retry", "to_status": "pending", "at": NOW}, host=host, detail=said)]
    gpu = {"name": "GeForce RTX 4090 Laptop", "vram_total_gib": 8.0, "vram_free_gib": 6.5}
    can = {"cpu_cores": 64, "ram_available_gib": 20.0, "ram_total_gib": 320.0, "cuda_available": True}
    can |= {"cuda_devices": [gpu], "data_sets": {"bytes": 9, "bytes_max": 90, "sets": [{"dataset_id": "d" * 64}] * 3}}
    workers = [
        made({"hostname": each, "capability": can, "jobs": jobs}, last_seen=since, obstacle=said) for each in hosts
    ]
    levels = st.sampled_from(["good", "caution", "poor", ""])
    models = [
        {"name": each, "mode": "realistic", "standing": "tied"}
        | {"result": made({"auroc": figure(), "caught": figure()}, level=levels, because=said)}
        for each in jobs
    ]
    trained = [made({"name": each, "state": "completed"}, host=host, at=since) for each in jobs]
    receiver.answers = {
        ("GET", "/v1/job/j/explain"): {"name": "j", "summary": "no host " * 20, "hosts": verdicts},
        ("GET", "/v1/job/j"): {"job": views[0], "spec": SPEC, "attempts": tries, "events": events, "now": NOW},
        ("GET", "/v1/workers"): {"workers": workers, "now": NOW},
        ("GET", "/v1/models"): {"models": models},
        ("GET", "/v1/manifest/plan"): {"jobs": trained, "states": {"completed": len(jobs)}, "now": NOW},
    }
    return receiver, jobs, hosts


SCREENS = (["status"], ["list", "--all"], ["show", "j"], ["explain", "j"], ["workers"], ["models"], ["plan"])


@given(fleets(), st.sampled_from(SCREENS))
def test_screens_fit_80_columns_and_break_no_word(fleet, argv):
    """A terminal shows the words of output that is cut nowhere; only long names lose their middle."""
    receiver, jobs, hosts = fleet
    run, shown = Session(receiver), Terminal()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        assert program.main(argv, context=replace(run.world, out=shown)) == 0
    lines = Text.from_ansi(shown.getvalue()).plain.splitlines()
    assert [line for line in lines if len(line.rstrip()) > 80] == []
    words = {word for line in lines if not line.startswith(("─", "a wider terminal")) for word in line.split()}
    cut = {word for name in (*jobs, *hosts) for word in one_line(name, 40).split()}
    assert words - cut <= {*run.says(*argv).split()}
    rows = [line for line in lines if line.startswith(tuple(f"{one_line(name, 40)} " for name in jobs))]
    assert argv[0] not in ("list", "models", "plan") or len(rows) == len(jobs)


# --- status ------------------------------------------------------------------------------------------


def test_status_shows_state_host_progress_and_eta(run):
    assert run("status") == 0
    lines = run.out.splitlines()
    assert lines[0] == "4 jobs: 1 running, 1 pending, 1 failed, 1 completed"
    (row,) = [line for line in lines if line.startswith("gbt-oracle")]
    assert re.split("  +", row.rstrip()) == [
        "gbt-oracle",
        "running",
        "pi",
        "20 %, 3 min left",
        "1 min 30 s",
        "12 of 60 (20 %)",
    ]


def test_status_names_each_failure_and_each_job_that_cannot_run(run):
    run("status")
    assert (
        "Failed\n  mlp-oracle: line one | ValueError: no rows\n    trainer: failed 3 of 3 times (max_attempts)\n"
    ) in run.out
    assert "Cannot run anywhere\n  cnn-oracle: pi: no CUDA device\n" in run.out


def test_status_has_a_stable_shape_for_machines(run):
    shape = run.json("status")
    assert set(shape) == {
        "counts", "jobs", "failed", "cancelled_in_plan", "held", "cannot_run", "passed_over", "notes", "unlike",
        "plan_notes", "quarantined", "resting", "refused", "missing_datasets", "never_asked", "complete", "now",
        "unplanned",
    }  # fmt: skip
    keys = ("name", "job_id", "error", "ended_by", "in_manifest")
    assert shape["failed"] == [{key: FAILED[key] for key in keys}]
    assert shape["cannot_run"] == [{"name": "cnn-oracle", "job_id": IDS[3], "obstacle": "pi: no CUDA device"}]
    assert shape["complete"] is True
    assert len(shape["jobs"]) == 4


def test_status_of_a_long_queue_shows_what_matters():
    pending = [view(f"p{n}", "pending", obstacle="too small") for n in range(60)]
    receiver = FakeReceiver(*pending, RUNNING, FAILED)
    receiver.page = 50
    run = Session(receiver)
    assert "gbt-oracle" in run.says("status")
    assert "mlp-oracle: line one" in run.out
    assert "and 10 more pending" in run.out
    assert "  50 jobs: too small\n    p0, p1, p2, p3 and 46 more\n" in run.out
    assert run.out.count("too small") == 1, "what many have in common is said once"
    assert "cis490-jobs list" in run.out
    assert len(run.json("list")["jobs"]) == 62


def test_status_of_an_empty_fleet():
    assert Session(FakeReceiver()).says("status") == "no jobs yet\n"


def test_a_silent_hosts_job_shows_its_silence_in_place_of_the_time_left(run):
    run.receiver.views["gbt-oracle"] = RUNNING | {"heartbeat_at": NOW - 720}
    assert "20 %, not seen for 12 min  1 min 30 s  12 of 60 (20 %)" in run.says("status")
    assert "12 of 60 (20 %), not seen for 12 min" in run.says("show", "gbt-oracle")
    for silence, shown in ((61, "not seen for 1 min 1 s"), (60, "3 min left"), (-5, "3 min left")):
        run.receiver.views["gbt-oracle"] = RUNNING | {"heartbeat_at": NOW - silence}
        assert re.search(rf" 20 %, {shown} +1 min 30 s", run.says("status"))
    run.receiver.views["gbt-oracle"] = RUNNING | {"heartbeat_at": NOW - 720, "status": "completed"}
    assert "not seen" not in run.says("status")


def test_status_notes_what_is_worth_knowing_of_a_job(run):
    said = "waits for w1, not seen for 31 d 0 h"
    run.receiver.views["cnn-oracle"] = STUCK | {"obstacle": None, "note": said}
    assert f"Worth knowing\n  cnn-oracle {said}\n" in run.says("status")
    noted = [{"name": "cnn-oracle", "job_id": IDS[3], "note": said}]
    assert run.json("status")["notes"] == noted
    assert said in run.says("show", "cnn-oracle")


def test_a_command_is_registered_once():
    """Every module that adds commands is in the program's list; an unknown command is an error."""
    folder = Path(program.__file__).parent
    written = {path.stem for path in folder.glob("*.py") if "\n@as_command(" in path.read_text(encoding="utf-8")}
    assert {module.__name__.rpartition(".")[2] for module in program.MODULES} == written
    assert len(program.MODULES) == len(written)
    err = io.StringIO()
    assert program.main(["frobnicate"], context=CommandContext(out=io.StringIO(), err=err, environ={})) == 2
    assert "No such command 'frobnicate'" in err.getvalue()


@pytest.mark.parametrize("error", [AttributeError, KeyError, TypeError, ValueError])
def test_a_mistake_of_ours_is_not_called_the_receivers(run, error, monkeypatch):
    monkeypatch.setattr(cli_views, "render_list", Mock(side_effect=error("ours")))
    with pytest.raises(error, match="ours"):
        run("list")


def test_commands_to_type_reach_the_same_receiver():
    """The address is added to each command that calls a receiver, and to no other."""
    context = CommandContext(given=["--receiver-url", "http://r"], callers=program.callers())
    for name in program.command().commands:
        told = context.typed(f"see `cis490-jobs {name}`")
        calls = name not in ("doctor", "backup", "restore", "rebuild")
        assert told == f"see `cis490-jobs {name}{' --receiver-url http://r' if calls else ''}`"


def test_watching_draws_again_until_it_is_interrupted(run):
    assert run("status", "--watch") == 130
    assert len(run.slept) == 4
    assert run.out.count("4 jobs: 1 running, 1 pending, 1 failed, 1 completed") == 1, "a picture a change"
    assert run("watch", "--json") == 130
    assert [json.loads(line)["counts"]["failed"] for line in run.out.splitlines()] == [1]


def test_watching_on_a_terminal_redraws_in_place(run):
    screen = Terminal()
    run.slept.clear()
    assert program.main(["status", "--watch"], context=replace(run.world, out=screen)) == 130
    assert screen.getvalue().count("4 jobs: ") >= 4
    assert "\x1b[" in screen.getvalue()


# --- the other commands --------------------------------------------------------------------------------


def test_list_prints_every_job_page_by_page(run):
    run.receiver.page = 3
    assert [v["name"] for v in run.json("list")["jobs"]] == [v["name"] for v in (RUNNING, FAILED, STUCK, DONE)]
    assert [v["name"] for v in run.json("list", "--status", "failed")["jobs"]] == ["mlp-oracle"]
    assert len(run.says("list").splitlines()) == 2 + 4
    assert IDS[1][:12] in run.out


def test_jobs_that_left_the_plan_and_are_over_are_counted_instead_of_shown(run):
    for number, status in enumerate(("completed", "cancelled", "failed", "pending"), 4):
        name = f"old-{status}"
        run.receiver.views[name] = view(name, status, number, in_manifest=False)
    for command in ("list", "status"):
        assert "2 jobs that left the plan are not shown: `cis490-jobs list --all`\n" in run.says(command)
        assert ("old-completed" in run.out, "old-cancelled" in run.out) == (False, False)
        assert "old-failed" in run.out, "it can be requeued, or cancelled"
        assert "old-pending" in run.out, "it will be trained"
    assert "old-completed" in run.says("list", "--all")
    assert "not shown" not in run.out
    run.receiver.views["old"] = view("old", "pending", 8, in_manifest=False, passed_over=True, obstacle="not in it")
    lines = run.says("status").splitlines()
    assert lines[0].endswith("; not in the plan: 2 pending, 1 failed")
    assert lines[lines.index("Passed over") + 1] == f"  old ({IDS[8][:6]}): not in it"
    assert "no host gets it: put it back into the plan" in run.says("unhold", "old")
    del run.receiver.views["old"]
    assert len(run.json("list")["jobs"]) == 8


def test_show_tells_a_job_attempt_by_attempt(run):
    detail = {
        "job": FAILED,
        "spec": SPEC,
        "attempts": [
            {
                "attempt": 1,
                "host": "pi",
                "granted_at": NOW - 100,
                "ended_at": NOW - 40,
                "end_reason": "trainer_failed",
                "error": "boom",
                "booked": {"cores": 2, "ram_gib": 1.25, "vram_gib": 3.0, "gpu": 0},
            }
        ],
        "events": [{"at": NOW, "transition": "exhaust", "to_status": "failed", "host": "pi", "detail": None}],
        "now": NOW,
    }
    run.receiver.answers["GET", "/v1/job/mlp-oracle"] = detail
    assert run.json("show", "mlp-oracle")["attempts"][0].items() >= detail["attempts"][0].items()
    run("show", "mlp-oracle")
    for piece in ("max_depth = 4", "by host, trained on lab-a, seed 7", "a GPU, 4 GiB of VRAM, only on pi", "exhaust"):
        assert piece in run.out
    for piece in ("trainer_failed", "1 min ", "boom", "2 cores"):
        assert piece in run.out
    run.receiver.answers["GET", "/v1/job/mlp-oracle"] = {**detail, "job": DONE | {"auroc": {"value": 0.93}}}
    assert re.search("result +AUROC 0.930", run.says("show", "mlp-oracle"))


def test_explain_shows_every_hosts_word(run):
    answer = {
        "job_id": IDS[3],
        "name": "cnn-oracle",
        "status": "pending",
        "summary": "no known host can run it",
        "hosts": [
            {"host": "pi", "fits": False, "reason": "no CUDA", "wait_s": None},
            {"host": "desk", "fits": True, "reason": "prefers CUDA", "wait_s": 290.0},
            {"host": "laptop", "fits": False, "reason": "no CUDA", "wait_s": None},
        ],
    }
    run.receiver.answers["GET", "/v1/job/cnn-oracle/explain"] = answer
    assert run.json("explain", "cnn-oracle") == answer
    assert "cnn-oracle: no known host can run it" in run.says("explain", "cnn-oracle")
    assert "desk: prefers CUDA" in run.out
    assert "  2 hosts: no CUDA\n    pi, laptop\n" in run.out
    assert "5 min" in run.out


def test_workers_show_what_they_have_and_what_is_wrong(run):
    gpu = {"name": "RTX", "vram_total_gib": 8.0, "vram_free_gib": 6.5}
    run.receiver.answers["GET", "/v1/workers"] = {
        "workers": [
            {
                "hostname": "desk",
                "capability": {
                    "cpu_cores": 8,
                    "ram_available_gib": 20.0,
                    "ram_total_gib": 32.0,
                    "cuda_available": True,
                    "cuda_devices": [gpu],
                },
                "last_seen": NOW - 3,
                "alive": True,
                "jobs": ["gbt-oracle"],
                "conflict": None,
                "obstacle": "other trainer flags",
            },
            {"hostname": "pi", "capability": {}, "last_seen": NOW - 9000, "alive": False, "unlike": "0.1 of commit a"},
        ],
        "now": NOW,
        "build": "0.2 of commit b",
    }
    run("workers")
    for piece in ("3 s ago", "20.0/32.0 GiB", "RTX 6.5/8.0 GiB", "gbt-oracle", "other trainer flags"):
        assert piece in run.out
    assert "2 h 30 min ago" in run.out
    assert "Not the receiver's program (0.2 of commit b): pi 0.1 of commit a\n" in run.out
    assert run("upgrade", "--check") == 1
    assert [line.split() for line in run.out.splitlines()[2:]] == [
        ["the", "receiver", "0.2", "of", "commit", "b"],
        ["pi", "0.1", "of", "commit", "a"],
    ]
    assert run("upgrade") == 2
    assert "nothing updates itself" in run.err
    run.workers()
    assert "every host runs the receiver's program" in run.says("upgrade", "--check")
    assert "start one with" in run.says("workers")


def test_cancel_and_requeue_send_the_token_and_say_what_became_of_each(run):
    assert run("cancel", "gbt-oracle", "mlp-oracle") == 0
    assert run.out == (f"gbt-oracle ({IDS[1][:8]}…) is cancelled\nmlp-oracle ({IDS[2][:8]}…) is cancelled\n")
    assert run.receiver.asked[-1] == ("POST", "/v1/job/mlp-oracle/cancel", "secret")
    moved = {"job_id": IDS[2], "status": "pending", "name": "mlp-oracle"}
    more = {"near": 0, "in_manifest": True, "passed_over": False, "held_by": None, "held_at": None}
    assert run.json("requeue", "mlp-oracle") == {"jobs": [moved | more]}


def test_what_was_changed_is_named_with_what_it_nearly_hit(run):
    run.receiver.near = 11
    run("cancel", "gbt-oracle")
    assert run.out.endswith("is cancelled; 11 other jobs' names or ids begin with gbt-oracle too\n")
    run.receiver.near = 1
    assert run.says("cancel", "gbt-oracle").endswith("; 1 other job's name or id begins with gbt-oracle too\n")


def test_hold_and_unhold_say_what_became_of_each(run):
    assert run.says("hold", "gbt-oracle").endswith("is running, held by ada\n")
    assert run.json("hold", "gbt-oracle")["jobs"][0]["held_by"] == "ada"
    assert run.says("unhold", "gbt-oracle").endswith("is running\n")
    posted = [path for method, path, _ in run.receiver.asked if method == "POST"]
    assert [path.rpartition("/")[2] for path in posted] == ["hold", "hold", "unhold"]


def test_what_is_held_is_seen_by_whom_and_since_when(run):
    mark = {"held_by": "ada", "held_at": NOW - 7200}
    kept = view("mlp-oracle", "pending", 3, **mark)
    run.receiver.views = {v["name"]: v for v in (kept, RUNNING | mark, DONE | mark)}
    assert "pending (held)" in run.says("list")
    assert "running (held)" in run.out
    assert "completed (held)" not in run.out
    assert "Held until `cis490-jobs unhold`" in run.says("status")
    assert "mlp-oracle: by ada, 2 h 00 min ago" in run.out
    assert [each["name"] for each in run.json("status")["held"]] == ["mlp-oracle"]
    assert "by ada, 2 h 00 min ago" in run.says("show", "mlp-oracle")


def test_a_job_off_the_plan_that_is_requeued_is_said_to_be_off_it(run):
    run.receiver.views["gbt-oracle"] = view("gbt-oracle", "completed", 1, in_manifest=False)
    assert "the plan does not name it, but it will be trained" in run.says("requeue", "gbt-oracle")
    assert "the plan" not in run.says("cancel", "gbt-oracle")


def test_cancel_finds_the_jobs_that_the_plan_no_longer_names(run):
    run.receiver.views = {
        IDS[4]: view("gbt", "pending", 4, in_manifest=False),
        IDS[5]: view("gbt", "pending", 5, in_manifest=True),
        IDS[6]: view("mlp", "completed", 6, in_manifest=False),
        IDS[7]: view("cnn", "failed", 7, in_manifest=False),
    }
    assert f"gbt ({IDS[4][:8]}…) is cancelled\n" in run.says("cancel", "--removed"), "by its name"
    assert f"cnn ({IDS[7][:8]}…) is cancelled\n" in run.out
    del run.receiver.views[IDS[7]]
    cancelled = [path for method, path, _ in run.receiver.asked if method == "POST"]
    expected = [f"/v1/job/{IDS[number]}/cancel?removed=true" for number in (4, 7)]
    assert sorted(cancelled) == sorted(expected), "what is completed stays as it is"
    assert "name a job" in run.says("cancel", code=2)
    del run.receiver.views[IDS[4]]
    assert run("cancel", "--removed") == 0
    assert "nothing to cancel" in run.err


def test_open_opens_a_page_where_there_is_a_display_and_says_who_may_look(run):
    opened = []
    run.world = replace(run.world, browse=lambda address: not opened.append(address))
    assert run("open") == 0
    assert opened == []
    assert run.out.splitlines()[0] == "http://127.0.0.1:8445/"
    assert "log in there with the operator's token" in run.out
    assert "no display was found here" in run.out
    run.world = replace(run.world, environ={**run.world.environ, "DISPLAY": ":0"})
    shown = run.json("open", RUNNING["name"])
    assert shown == {"url": f"http://127.0.0.1:8445/jobs/{RUNNING['job_id']}", "opened": True}
    assert opened == [shown["url"]]
    assert "imported into it" in run.says("--receiver-url", "https://pi.lan:8445", "open")


@pytest.mark.parametrize("words", [("requeue", ""), ("cancel", "one", " "), ("show", "")])
def test_an_empty_name_is_told_what_to_name(run, words):
    assert "name a job: its name, its id, or a unique prefix of the id" in run.says(*words, code=2)
    assert run.receiver.asked == []


def test_release_lets_hosts_in_and_says_why_they_were_out(run):
    answer = {"host": "desk", "reason": "3 different jobs in a row died"}
    run.receiver.answers["POST", "/v1/workers/desk/release"] = answer
    run.receiver.answers["POST", "/v1/workers/pi/release"] = {
        "status_code": 409,
        "type": "wrong_state",
        "detail": "host pi gets work",
    }
    assert run("release", "pi", "desk") == 1
    assert run.out == ("desk gets work again; it had been taken out because 3 different jobs in a row died\n")
    assert run.err == "cis490-jobs: host pi gets work\n"
    assert run.receiver.asked[-1] == ("POST", "/v1/workers/desk/release", "secret")
    assert run.json("release", "desk") == {"hosts": [dict(answer)]}


def test_hosts_are_paused_drained_and_resumed_and_each_line_says_what_follows(run):
    def answer(order, **more):
        told = {"host": "desk", "order": order, "by": "ada", "since": NOW, "was": None, "jobs": ["gru", "mlp"]}
        return told | {"note": None} | more

    receiver = run.receiver
    receiver.answers["POST", "/v1/workers/desk/pause"] = answer("pause")
    receiver.answers["POST", "/v1/workers/desk/drain"] = answer("drain", jobs=list("abcde"))
    receiver.answers["POST", "/v1/workers/desk/resume"] = answer(None)
    until = "desk: it gets no jobs until `cis490-jobs resume desk`; what it trains"
    assert run("pause", "desk") == 0
    assert run.out == f"{until} (gru, mlp) stops where it is, and is handed back if the pause lasts\n"
    assert run.says("drain", "desk") == f"{until} (a, b, c and 2 more) runs to its end\n"
    receiver.answers["POST", "/v1/workers/desk/drain"] = answer("hand_back")
    assert run.says("drain", "--now", "desk") == f"{until} (gru, mlp) stops and is handed back\n"
    assert run.says("resume", "desk") == "desk gets work again\n"
    receiver.answers["POST", "/v1/workers/desk/resume"] = answer(None, note="quarantined: it died")
    assert run.says("resume", "desk") == "desk still gets no jobs: it is quarantined: it died\n"
    assert run.json("pause", "desk") == {"hosts": [answer("pause")]}
    told = "paused by ada; `cis490-jobs resume desk` ends that"
    receiver.answers["GET", "/v1/health"] = {"status": "ok", "detail": None, "resting": {"desk": told}}
    assert f"Hosts at rest\n  desk: {told}" in run.says("status")
    run.workers({"hostname": "desk", "alive": True, "resting": told})
    assert "resume desk" in " ".join(run.says("workers").split())


@pytest.mark.parametrize(
    ("health", "title"),
    [
        ({"quarantined": {"desk": "3 jobs died; `cis490-jobs release desk`"}}, "Hosts that get no jobs"),
        ({"refused": {"desk": "it asks as desk and gets no work"}}, "Workers that are refused"),
        ({"never_asked": {"W-1": "did you mean w1?"}}, "Hosts of the plan that never asked for work"),
        ({"missing_datasets": {"night": "push it"}}, "Data sets that are not here"),
        ({"plan_notes": ["train_hosts of job one names lab-1"]}, ""),
        ({"status": "degraded", "detail": "the disk is low"}, ""),
    ],
)
def test_status_says_what_the_receivers_health_tells(run, health, title):
    run.receiver.answers["GET", "/v1/health"] = {"status": "ok", "detail": None} | health
    assert run("status") == 0
    ((key, told),) = ((key, told) for key, told in health.items() if key != "status")
    lines = [f"  {name}: {why}" for name, why in told.items()] if title else [told] if key == "detail" else told
    assert "\n".join([title, *lines] if title else lines) in run.out
    if key != "detail":
        assert run.json("status")[key] == told


@pytest.mark.parametrize("key", ["quarantined", "resting"])
def test_status_says_once_why_a_host_gets_no_jobs(run, key):
    run.receiver.answers["GET", "/v1/health"] = {"status": "ok", key: {"desk": "3 jobs died; look there"}}
    run.receiver.views["cnn-oracle"] = STUCK | {"obstacle": "desk: 3 jobs died; look there; pi: no GPU"}
    assert run.says("status").count("3 jobs died") == 1
    assert "  cnn-oracle: desk: gets no jobs; pi: no GPU\n" in run.out


def test_workers_name_a_host_that_gets_no_jobs(run):
    worker = {"hostname": "desk", "alive": True, "conflict": "a clone", "quarantine": "`cis490-jobs release desk`"}
    run.workers(worker)
    assert "release desk" in " ".join(run.says("workers").split())


def test_workers_say_which_data_sets_they_hold(run):
    sets = [{"dataset_id": letter * 64, "bytes": 5, "of": 9, "unfinished": 0} for letter in "abcd"]
    told = {"bytes": 3 * 1024**3, "bytes_max": 20 * 1024**3, "sets": sets}
    workers = [{"hostname": "desk", "capability": {"data_sets": told}}, {"hostname": "pi", "capability": {}}]
    run.workers(*workers)
    assert "desk: keeps data sets, " in run.says("workers")
    assert "3.0 GiB of 20.0 GiB: aaaaaaaaaaaa, bbbbbbbbbbbb, cccccccccccc and 1 more" in " ".join(run.out.split())
    workers[0]["capability"]["data_sets"] = {"bytes": "odd", "sets": 5}
    assert "data sets" not in run.says("workers")


def test_suggested_commands_ask_the_receiver_that_was_named(run):
    """Typed as they stand they must not reach another one; in errors, lines, tables and on the screen."""
    run.receiver.views["old"] = view("old", "completed", 4, in_manifest=False)
    worker = {"hostname": "desk", "alive": True, "quarantine": "look, then `cis490-jobs release desk`"}
    run.workers(worker)
    run.receiver.views["cnn-oracle"] = STUCK | {"held_by": "ann", "held_at": NOW}
    for argv in (["show", "nope"], ["list"], ["workers"], ["status"], ["status", "--watch"]):
        for flags in ([], ["--receiver-url", "http://pi:8445"]):
            run(*argv, *flags)
            found = re.findall("`(cis490-jobs [^`]*)`", " ".join((run.out + run.err).split()))
            assert found, argv
            named = [each.endswith("--receiver-url http://pi:8445") for each in found]
            assert set(named) == {bool(flags)}, argv


def test_one_refused_job_does_not_keep_the_others(run):
    assert run("cancel", "nope", "gbt-oracle") == 1
    assert run.out == f"gbt-oracle ({IDS[1][:8]}…) is cancelled\n"
    assert run.err == "cis490-jobs: no job is called 'nope'; `cis490-jobs list` shows them all\n"


def test_reload_prints_the_counts_or_every_mistake(run):
    counts = {"inserted": 2, "updated": 1, "unchanged": 11, "removed": 1}
    run.receiver.answers["POST", "/v1/manifest/reload"] = counts
    assert run("reload") == 0
    assert run.out == (
        "2 new, 1 edited, 1 no longer named, 11 unchanged; removed jobs stay until they are cancelled "
        "(`cis490-jobs cancel --removed`)\n"
    )
    run.receiver.answers["POST", "/v1/manifest/reload"] = {
        **counts,
        "removed": 0,
        "notes": ["host W-1: did you mean w1?"],
    }
    assert run.says("reload").splitlines()[1:] == ["note: host W-1: did you mean w1?"]
    edit = {"kind": "job", "name": "a\x1b", "keys": ["max_run_s"], "holds": "at once"}
    stands = {"kind": "stands", "name": "b", "holds": "it stays cancelled", "since": 1000.0}
    renamed = {"kind": "rename", "name": "new", "was": "old", "holds": "at once"}
    details = {"file": "p.toml", "saved_at": 988.0, "now": 1060.0, "cancelled": 1, "renamed": 1}
    details["edits"] = [renamed, stands, edit]
    run.receiver.answers["POST", "/v1/manifest/reload"] = counts | details | {"removed": 0}
    assert run.says("reload").splitlines() == [
        "p.toml, saved 1 min 12 s ago: 2 new, 1 edited, 1 renamed, 11 unchanged",
        "1 job of the plan is cancelled: requeue it",
        "  old is called new now",
        "  b: it stays cancelled, 1 min ago",
        "  a\\x1b, max_run_s: at once",
    ]
    mistake = {"file": "p.toml", "line": 3, "key": "jobs[0].prio", "message": "bad", "suggestion": "mend"}
    refusal = {"type": "bad_manifest", "detail": "no", "mistakes": [mistake, {"message": "\x1b[2J"}]}
    run.receiver.answers["POST", "/v1/manifest/reload"] = Response(422, SHOWN, json.dumps(refusal).encode())
    assert run.says("reload", code=1).splitlines()[1:] == ["p.toml:3: jobs[0].prio: bad; mend", "\\x1b[2J"]
    assert run("reload", "--json") == 1
    assert json.loads(run.out)["mistakes"][0] == mistake


class GrowingLog:
    """``/log`` in pages of two lines; alive until it was asked for more than there is."""

    def __init__(self, receiver, lines, *, grows=0):
        self.lines, self.grows, self.receiver = lines, grows, receiver
        self.complete, self.gap = True, None
        self.original = receiver.request
        receiver.request = self.request

    def request(self, method, path, *rest):
        if "/log" not in path:
            return self.original(method, path, *rest)
        after = int(parse_qs(urlsplit(path).query)["after"][0])
        page = self.lines[after : after + 2]
        live = self.grows > 0
        if not page and live:
            self.grows -= 1
            self.lines.append(f"later {self.grows}")
        body = {"job_id": IDS[1], "attempt": 2, "lines": page, "next": after + len(page), "live": live}
        body |= {"complete": self.complete and not live, "gap": self.gap if page else None}
        return Response(200, SHOWN, json.dumps(filled_reply(method, path, body)).encode())


def test_logs_print_all_lines_made_safe(run):
    GrowingLog(run.receiver, ["one", "\x1b]0;title\x07two", "a\tb", "50%|\r51%", "[red]five"])
    assert run("logs", "gbt-oracle") == 0
    assert run.out.splitlines() == ["one", "\\x1b]0;title\\x07two", "a       b", "50%|\\r51%", "[red]five"]
    assert run.json("logs", "gbt-oracle")["lines"][2] == "a\tb"


def test_logs_follow_while_the_attempt_lives(run):
    GrowingLog(run.receiver, ["one"], grows=2)
    assert run.says("logs", "-f", "gbt-oracle").splitlines() == ["one", "later 1", "later 0"]
    assert len(run.slept) == 2


@pytest.mark.parametrize(
    ("reason", "code", "said"),
    [("completed", 0, ""), ("trainer_failed", 3, "attempt 2 ended: trainer failed"), ("cancelled", 4, "cancelled")],
)
def test_following_exits_as_the_attempt_ended(run, reason, code, said):
    GrowingLog(run.receiver, ["one"], grows=1)
    run.receiver.answers["GET", f"/v1/job/{IDS[1]}"] = {
        "job": RUNNING,
        "attempts": [{"attempt": 2, "end_reason": reason}],
        "events": [],
        "now": NOW,
    }
    assert run("logs", "-f", "gbt-oracle") == code
    assert run.out.splitlines() == ["one", "later 0"]
    assert said in run.err
    assert run("logs", "gbt-oracle") == 0, "without --follow it only reads"


def test_following_waits_for_the_last_lines_and_says_when_they_do_not_come(run):
    GrowingLog(run.receiver, ["one"]).complete = False
    run.receiver.answers["GET", f"/v1/job/{IDS[1]}"] = {
        "job": DONE,
        "attempts": [{"attempt": 2, "end_reason": "completed"}],
        "events": [],
        "now": NOW,
    }
    assert run("logs", "gbt-oracle") == 0
    assert "its last lines have not arrived" in run.err, "a part is not shown as the whole"
    assert run.json("logs", "gbt-oracle")["complete"] is False
    run.patience = 99
    assert run("logs", "-f", "gbt-oracle") == 0
    assert len(run.slept) == 5
    assert "its last lines have not arrived" in run.err


def test_lines_that_are_not_kept_are_said_beside_the_output(run):
    log = GrowingLog(run.receiver, ["one", "two"])
    log.gap = "lines 1–7 were not kept: 64 MiB an attempt"
    assert run.says("logs", "gbt-oracle").splitlines() == ["one", "two"]
    assert log.gap in run.err
    assert run.json("logs", "gbt-oracle")["gaps"] == [log.gap]


def test_logs_say_progress_in_words_unless_asked_for_it_raw(run, monkeypatch):
    line = '{"event": "epoch", "epoch": 43, "epochs": 60, "loss": 0.41912345, "eta_s": 14.0}'
    GrowingLog(run.receiver, [line, "plain"])
    assert run.says("logs", "gbt-oracle") == "epoch 43 of 60, loss 0.419, 14 s left\nplain\n"
    assert run.says("logs", "gbt-oracle", "--raw") == f"{line}\nplain\n"
    assert run.json("logs", "gbt-oracle")["lines"] == [line, "plain"]
    for flags, shown in (((), "epoch 43 of 60, loss\n0.419, 14 s left\nplain\n"), (("--raw",), f"{line}\nplain\n")):
        screen = Terminal()
        world = replace(run.world, out=screen)
        monkeypatch.setenv("COLUMNS", "25")
        assert program.main(["logs", "gbt-oracle", *flags], context=world) == 0
        assert screen.getvalue() == shown, "a terminal wraps words, not what is to be copied"


def test_an_empty_log_is_said_to_be_empty(run):
    GrowingLog(run.receiver, [])
    assert run("logs", "gbt-oracle") == 0
    assert "attempt 2 of job gbt-oracle has printed nothing yet; `cis490-jobs logs gbt-oracle --attempt 1`" in run.err


# --- get -----------------------------------------------------------------------------------------------


def packed(folder):
    """A real bundle, packed as a worker packs it."""
    folder.mkdir(parents=True)
    sidecar = folder / "gbt_oracle.xgb.json"
    sidecar.write_text('{"trees": []}')
    named = {
        "file": sidecar.name,
        "bytes": sidecar.stat().st_size,
        "sha256": hashlib.sha256(sidecar.read_bytes()).hexdigest(),
    }
    (folder / "gbt_oracle.ckpt.json").write_text(json.dumps({"sidecar": named}))
    (folder / "gbt_oracle_train.json").write_text("{}")
    bundle = folder / "b.tar.zst"
    pack(folder, folder, bundle, model="gbt", mode="oracle")
    return bundle.read_bytes()


@pytest.fixture
def finished(tmp_path):
    bundle = packed(tmp_path / "trained")
    artifact = hashlib.sha256(bundle).hexdigest()
    receiver = FakeReceiver(view("done", "completed", 4, artifact_id=artifact), STUCK)
    receiver.bundle = bundle
    return Session(receiver)


def test_get_fetches_verifies_and_unpacks(finished, tmp_path):
    for _ in range(2):  # again is no error
        shape = finished.json("get", "done", "--out", str(tmp_path / "model"))
    names = ["gbt_oracle.ckpt.json", "gbt_oracle.xgb.json", "gbt_oracle_train.json"]
    assert sorted(p.name for p in (tmp_path / "model").iterdir()) == names
    assert [f["name"] for f in shape["files"]] == names
    for entry in shape["files"]:
        content = (tmp_path / "model" / entry["name"]).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (entry["bytes"], entry["sha256"])


def test_get_chooses_a_folder_of_its_own(finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert finished("get", "done") == 0
    folder = tmp_path / f"gbt_oracle-{IDS[4][:12]}"
    assert (folder / "gbt_oracle.xgb.json").exists()
    assert f"verified: artifact {hashlib.sha256(finished.receiver.bundle).hexdigest()}" in finished.out


def test_a_folders_name_is_not_read_as_markup(finished, tmp_path):
    assert "[red]x" in finished.get(tmp_path / "[red]x")


def test_get_keeps_nothing_that_is_not_what_was_promised(finished, tmp_path):
    finished.receiver.bundle += b"x"
    assert "got another model meanwhile" in finished.get(tmp_path / "model", code=1)
    assert list((tmp_path / "model").iterdir()) == []


def test_get_of_a_damaged_copy_is_refused_and_says_what_helps(finished, tmp_path):
    finished.receiver.digest = "0" * 64
    assert "arrived damaged" in finished.get(tmp_path / "model", code=1)
    assert "requeue the job" in finished.err
    assert list((tmp_path / "model").iterdir()) == []


def test_get_of_an_unfinished_job_says_so(finished, tmp_path):
    assert finished("get", "cnn-oracle", "--out", str(tmp_path / "model")) == 1
    assert finished.err == "cis490-jobs: job cnn-oracle is pending and has no model yet\n"
    assert not (tmp_path / "model").exists()


def test_get_of_an_attempt_fetches_what_it_left_before_a_requeue(finished, tmp_path):
    done = finished.receiver.views["done"]
    old, new = done["artifact_id"], "b" * 64
    kept = [
        {"attempt": n, "artifact_id": a, "end_reason": "completed", "granted": SPEC} for n, a in ((1, old), (3, new))
    ]
    requeued = done | {"status": "pending", "artifact_id": None}
    finished.receiver.answers[("GET", "/v1/job/done")] = {
        "job": requeued, "spec": SPEC, "attempts": kept, "events": [], "now": NOW
    }  # fmt: skip
    folder = tmp_path / "old"
    assert "has no model yet; --attempt fetches that of 1 or 3" in finished.get(folder, code=1)
    assert "attempt 2 of job done left no model; --attempt fetches" in finished.says(
        "get", "done", "--attempt", "2", "--out", str(folder), code=1
    )
    assert finished("get", "done", "--attempt", "1", "--out", str(folder)) == 0
    assert (folder / "gbt_oracle.xgb.json").exists()
    assert finished.receiver.asked[-1][1].endswith("?attempt=1")
    assert finished("get", "--all", "--attempt", "1") == 2
    assert old[:12] in finished.says("show", "done")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "models"


def test_get_never_replaces_a_file_that_differs_but_for_force(finished, folder):
    folder.mkdir()
    edited = folder / "gbt_oracle_train.json"
    edited.write_text("mine")
    assert f"{edited} is there already, and is another file" in finished.get(folder, code=1)
    assert "--force" in finished.err
    assert {path.name: path.read_text() for path in folder.iterdir()} == {edited.name: "mine"}
    finished.get(folder, "--force")
    assert edited.read_text() == "{}"


def test_get_puts_no_half_of_another_model_beside_its_own(finished, folder):
    folder.mkdir()
    half = folder / "gbt_oracle.pt"
    half.write_text("of another")
    assert f"{half} belongs to another model" in finished.get(folder, code=1)
    finished.get(folder, "--force")
    assert not half.exists()


def test_models_whose_files_say_whose_they_are_share_a_folder(finished, folder):
    folder.mkdir()
    (folder / "mlp_oracle.pt").write_text("another model")
    finished.get(folder)
    assert (folder / "mlp_oracle.pt").read_text() == "another model"


def test_a_model_whose_files_do_not_say_whose_they_are_gets_a_folder_of_its_own(tmp_path):
    spec = {"model": "own", "mode": "oracle", "trainer": {"outputs": ["model.bin"]}}
    bundle = tmp_path / "b"
    bundle.write_bytes(zstandard.compress(member("model.bin") + b"\0" * 1024))
    receiver = FakeReceiver()
    receiver.bundle = bundle.read_bytes()
    done = view("own", "completed", artifact_id=hashlib.sha256(receiver.bundle).hexdigest())
    receiver.answers["GET", "/v1/job/own"] = {"job": done, "spec": spec}
    run, folder = Session(receiver), tmp_path / "models"
    for _ in range(2):
        assert run("get", "own", "--out", str(folder)) == 0, "the same again is no error"
    (folder / "model.json").write_text("of another job")
    assert "holds other files (model.json)" in run.says("get", "own", "--out", str(folder), code=1)
    (folder / "model.bin").unlink()
    assert run("get", "own", "--out", str(folder)) == 1
    assert not (folder / "model.bin").exists()
    assert run("get", "own", "--out", str(folder), "--force") == 0


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_a_link_in_a_files_place_is_another_file(finished, tmp_path, folder):
    finished.get(folder)
    model = folder / "gbt_oracle.xgb.json"
    model.rename(tmp_path / "elsewhere")
    model.symlink_to(tmp_path / "elsewhere")
    assert "is another file" in finished.get(folder, code=1)


def test_get_where_it_may_not_write_is_one_sentence(finished, tmp_path):
    (tmp_path / "file").write_text("")
    finished.get(tmp_path / "file" / "x", code=1)
    assert finished.err.count("\n") == 1


# --- waiting, and all at once ----------------------------------------------------------------------------


def test_wait_returns_when_each_job_is_over_with_the_worst_end_as_its_code(run):
    views = run.receiver.views

    def later(seconds):
        run.slept.append(seconds)
        views["gbt-oracle"] = RUNNING | {"status": ("running", "completed")[len(run.slept) > 1]}
        assert len(run.slept) < 4

    run.world = replace(run.world, sleep=later)
    assert run("wait", "gbt-oracle", "gbt-realistic") == 0
    assert run.out == "gbt-realistic is completed\ngbt-oracle is completed\n"
    assert run("wait", "gbt-oracle", "mlp-oracle") == 3, "one has failed"
    views["mlp-oracle"] = FAILED | {"status": "cancelled"}
    assert run("wait", "gbt-oracle", "mlp-oracle") == 4
    assert run("wait", "nope") == 1
    assert run("wait") == run("wait", "gbt-oracle", "--all") == 2


def test_wait_for_all_is_for_the_jobs_of_the_plan_and_says_what_cannot_run(run):
    run.receiver.views["stranger"] = view("stranger", "pending", 7, in_manifest=False)

    def later(_):
        run.receiver.views["gbt-oracle"] = RUNNING | {"status": "completed"}
        run.receiver.views["cnn-oracle"] = STUCK | {"status": "completed"}
        run.receiver.views["kept"] = view("kept", "completed", 8)

    run.receiver.views["kept"] = view("kept", "pending", 8, held_by="ada", held_at=NOW)
    run.world = replace(run.world, sleep=later)
    assert "cnn-oracle cannot run anywhere: pi: no CUDA device" in run.says("wait", "--all", "--json", code=3)
    assert run.err.count("kept is held by ada: unhold it") == 1
    over = json.loads(run.out)["jobs"]
    assert [job["name"] for job in over] == ["mlp-oracle", "gbt-realistic", "gbt-oracle", "cnn-oracle", "kept"]
    assert set(over[0]) == {"job_id", "name", "status", "error", "ended_by"}


def test_wait_outlasts_a_receiver_that_does_not_answer(run):
    answers = run.receiver.answers

    def later(_):
        run.slept.append(0.0)
        if len(run.slept) < 3:
            answers["GET", f"/v1/job/{IDS[1]}"] = TransportError("connection refused")
        else:
            answers["GET", f"/v1/job/{IDS[1]}"] = {"job": RUNNING | {"status": "completed"}}

    run.world = replace(run.world, sleep=later)
    assert run("wait", "gbt-oracle") == 0
    assert run.err.count("waiting for it") == 1


def test_requeue_of_all_that_failed_leaves_the_others(run):
    run.receiver.views = {IDS[2]: FAILED, IDS[5]: view("off", "failed", 5, in_manifest=False), IDS[4]: DONE}
    assert run.says("requeue", "--failed") == f"mlp-oracle ({IDS[2][:8]}…) is pending\n"
    run.receiver.views = {IDS[4]: DONE}
    assert run("requeue", "--failed") == 0
    assert "nothing to requeue" in run.err
    assert run("requeue") == 2


def test_get_of_all_brings_each_completed_model_into_a_folder_of_its_own(finished, tmp_path):
    done = finished.receiver.views["done"]
    finished.receiver.views = {
        done["job_id"]: done,
        IDS[5]: view("lost", "completed", 5, artifact_id="f" * 64),
        IDS[6]: view("off", "completed", 6, artifact_id="f" * 64, in_manifest=False),
        IDS[3]: STUCK,
    }
    assert finished("get", "--all", "--out", str(tmp_path / "models")) == 1
    assert finished.err == "cis490-jobs: lost: job lost got another model meanwhile; try again\n"
    folder = tmp_path / "models" / f"gbt_oracle-{IDS[4][:12]}"
    assert f"done:\n{folder / 'gbt_oracle.ckpt.json'}" in finished.out
    assert (folder / "gbt_oracle.xgb.json").exists()
    del finished.receiver.views[IDS[5]]
    models = finished.json("get", "--all", "--out", str(tmp_path / "models"))["models"]
    assert [model["name"] for model in models] == ["done"]
    finished.receiver.views = {}
    assert finished("get", "--all") == 0
    assert "no job of the plan is completed yet" in finished.err
    assert finished("get") == finished("get", "done", "--all") == 2


def test_get_on_a_full_disk_names_the_folder(finished, tmp_path, monkeypatch):
    monkeypatch.setattr(cli_bundle, "unpack", Mock(side_effect=OSError(28, "No space left on device")))
    finished.get(tmp_path / "models", code=1)
    assert finished.err == (
        f"cis490-jobs: {tmp_path / 'models'}: No space left on device; make room there, or name another folder\n"
    )


def test_bare_and_version(run, capsys):
    for argv in ([], ["--receiver-url", "http://pi:1"], ["--json"]):
        assert "Usage: cis490-jobs [OPTIONS] COMMAND" in run.says(*argv)
    assert "Usage: cis490-jobs dataset [OPTIONS] COMMAND" in run.says("--json", "dataset")
    assert run.receiver.asked == []
    assert run("--version") == 0
    assert re.fullmatch(r"cis490-jobs \d+\.\d+\.\d+, commit \w+, .*torch.*\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("show gbt", ["gbt-oracle", "gbt-realistic"]),
        ("cancel mlp-oracle c", ["cnn-oracle"]),
        ("release d", ["desk"]),
        ("show nobody", []),
    ],
)
def test_the_shell_completes_names_of_jobs_and_hosts(run, typed, offered, monkeypatch, capsys):
    hosts = [{"hostname": "desk"}, {"hostname": "pi"}]
    run.workers(*hosts)
    words = f"cis490-jobs {typed}"
    monkeypatch.setenv("_CIS490_JOBS_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    for answers in (True, False):
        if not answers:
            run.receiver.request = None
        with contextlib.suppress(SystemExit):
            run()
        assert capsys.readouterr().out.split() == (offered if answers else [])


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["show", "gbt["], [r"gbt\[seed=0,lr=0.1\]", r"gbt\[seed=1\]"]),
        (["show", r"gbt\[se"], [r"gbt\[seed=0,lr=0.1\]", r"gbt\[seed=1\]"]),
        (["cancel", r"gbt\[seed", "="], [r"0,lr=0.1\]", r"1\]"]),
        (["cancel", r"gbt\[seed", "=", "0"], [r"0,lr=0.1\]"]),
        (["cancel", r"gbt\[seed", "=", "0,lr", "=", "0"], [r"0.1\]"]),
    ],
)
def test_bash_completes_names_of_a_matrix_which_it_breaks_at_each_equals_sign(run, typed, offered, monkeypatch, capsys):
    for name in ("gbt[seed=0,lr=0.1]", "gbt[seed=1]"):
        run.receiver.views[name] = view(name, "pending", 4)
    monkeypatch.setenv("_CIS490_JOBS_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "\n".join(["cis490-jobs", *typed]))
    monkeypatch.setenv("COMP_CWORD", str(len(typed)))
    run.world = replace(run.world, environ=os.environ)
    with contextlib.suppress(SystemExit):
        run()
    assert capsys.readouterr().out.split() == offered


def test_a_name_that_a_shell_would_run_is_not_offered(run, monkeypatch, capsys):
    """One shell evaluates what it is offered, the others paste it into the line."""
    fine = ["größe-1", "a.b_c:d/e@f+g,h", "1", "gbt[seed=0,lr=0.1]"]
    bad = [r"x\$(touch owned)", r"x\`touch owned`", 'a"b', "a'b", "-all", "=ls", "a;b", "a[$(b)]", "a[b]c", "a[b", "a*"]
    for name in (*fine, *bad, "two words", "~root", "a\nb"):
        run.receiver.views[name] = view(name, "pending", 4)
    monkeypatch.setenv("_CIS490_JOBS_COMPLETE", "complete_zsh")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "cis490-jobs show ")
    with contextlib.suppress(SystemExit):
        run()
    offered = re.findall(r'"([^"]*)"', capsys.readouterr().out.replace(r"\\:", ":"))
    usual = ["cnn-oracle", "gbt-oracle", "gbt-realistic", "mlp-oracle"]
    assert sorted(offered) == sorted([*usual, *fine])


def test_the_shell_waits_two_seconds_for_a_receiver_that_says_nothing(monkeypatch):
    asked = []

    def dial(url, token, **how):
        asked.append(how)
        raise CannotError("nobody there")

    monkeypatch.setattr(cli_complete, "connect", dial)
    context = typer.Context(program.command(), obj=CommandContext(connect=dial))
    assert cli_complete.hosts(context, "") == []
    assert asked == [{"patience_s": 2.0}]


def test_progress_without_a_terminal_is_a_line_now_and_then():
    now, err = [0.0], io.StringIO()
    world = CommandContext(err=err, monotonic=lambda: now[0])
    with meter(world, "sending") as progress:
        for second in range(26):
            now[0] = float(second)
            progress(second * 1024**2, 100 * 1024**2)
    assert err.getvalue().splitlines() == [
        "cis490-jobs: sending: 10 of 100 MiB (10 %)",
        "cis490-jobs: sending: 20 of 100 MiB (20 %)",
    ]
    with meter(world, "sending") as progress:
        now[0] += 60
        progress(2**20, 0)
    assert err.getvalue().splitlines()[2:] == ["cis490-jobs: sending: 1 MiB"]


# --- hostile bundles -------------------------------------------------------------------------------------

ALLOWED = allowed_names({"model": "gbt", "mode": "oracle"})
GOOD = "gbt_oracle.pt"


def member(name, data=b"x"):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    return info.tobuf(tarfile.USTAR_FORMAT) + data + b"\0" * (-len(data) % 512)


def checkpoint(text):
    return member("gbt_oracle.ckpt.json", text) + b"\0" * 1024


def lying(size):
    """A header that announces more than follows."""
    info = tarfile.TarInfo(GOOD)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT)


HOSTILE = {  # those with hostile names and kinds stand in test_fleet_threats.py
    "file as folder": member("gbt_oracle.pt/", b""),
    "larger than the bundle may be": lying(2**40),
    "ends early": lying(600) + b"x" * 100,
    "no end": member(GOOD),
    "bad checksum": b"y" + member(GOOD)[1:] + b"\0" * 1024,
    "rubbish": b"rubbish" * 200,
    "empty archive": b"\0" * 1024,
    "nothing": b"",
    "checkpoint without its sidecar": checkpoint(b'{"sidecar": {"file": "gbt_oracle.pt", "bytes": 1, "sha256": "0"}}'),
    "sidecar outside": checkpoint(b'{"sidecar": {"file": "../../x", "bytes": 1, "sha256": "0"}}'),
    "checkpoint that is no object": checkpoint(b"[]"),
    "deep checkpoint": checkpoint(b"[" * 100_000),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_bundle_leaves_nothing_behind(tmp_path, name):
    bundle = tmp_path / "b.tar.zst"
    tail = b"" if name in ("ends early", "no end", "nothing") else b"\0" * 1024
    bundle.write_bytes(zstandard.compress(HOSTILE[name] + tail))
    with pytest.raises(BundleRefused) as caught:
        unpack(bundle, tmp_path / "out", ALLOWED)
    assert str(caught.value).isprintable()
    assert list((tmp_path / "out").iterdir()) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b.tar.zst", "out"]


def test_what_compresses_well_is_fetched(tmp_path):
    bundle = tmp_path / "b.tar.zst"
    bundle.write_bytes(zstandard.compress(member(GOOD, b"\0" * 300 * 2**20) + b"\0" * 1024))
    assert bundle.stat().st_size * 200 < 300 * 2**20
    assert [file.size for file in unpack(bundle, tmp_path / "out", ALLOWED)] == [300 * 2**20]


def test_a_bomb_is_stopped_by_its_announced_size(tmp_path, monkeypatch):
    monkeypatch.setattr(bundles, "UNPACKED_BYTES_MAX", 10_000)
    bundle = tmp_path / "b.tar.zst"
    bundle.write_bytes(zstandard.compress(member(GOOD, b"\0" * 5_000_000) + b"\0" * 1024))
    with pytest.raises(BundleRefused, match="at most 0 GiB are taken"):
        unpack(bundle, tmp_path / "out", ALLOWED)


def test_what_has_no_room_here_is_stopped_before_it_is_written(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=cli_bundle.ROOM_BYTES + 4_999_999)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    bundle = tmp_path / "b.tar.zst"
    bundle.write_bytes(zstandard.compress(member(GOOD, b"\0" * 5_000_000) + b"\0" * 1024))
    with pytest.raises(BundleRefused, match="no room for it"):
        unpack(bundle, tmp_path / "out", ALLOWED)
    assert list((tmp_path / "out").iterdir()) == []


@given(data=st.binary(max_size=2000))
def test_no_bytes_are_a_traceback(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("bundle", numbered=True)
    (folder / "b").write_bytes(zstandard.compress(data))
    with pytest.raises(BundleRefused):
        unpack(folder / "b", folder / "out", ALLOWED)


def test_the_names_of_a_trainer_of_ones_own_are_the_ones_it_declared():
    spec = {"model": "m", "mode": "oracle", "trainer": {"outputs": ["{model}_{mode}.pt", "../x", ".h"]}}
    assert allowed_names(spec) == {"m_oracle.pt"}
    assert allowed_names({"model": "../m", "mode": "oracle"}) == frozenset()


# --- what comes over the wire never reaches the terminal as it is ------------------------------------------

HOSTILE_TEXT = [
    "\x1b[2J\x1b[H",  # clears the screen
    "\x1b]0;title\x07",
    "\x1b]52;c;ZXZpbA==\x07",  # writes the clipboard
    "\x1b]8;;http://evil\x1b\\click\x1b]8;;\x1b\\",
    "\x9b31m",  # C1 CSI
    "\x9d0;x\x9c",
    "\x07\x08\x0b\x0c\x0e\x7f",
    "done\rfailed",
    "\u202eevil\u202c",
    "\u2066x\u2069",
    "a\u200bb\u200d\u2060\ufeff",
    "\u00ad",
    "\u115f\u3164\u2800",
    "x\ufe0f\U000e0101",
    "\u2028line\u2029paragraph",
    "[bold red]markup[/] [link=http://evil]x[/link] :smile:",
]


def dangerous(text):
    unseen = "\u115f\u3164\u2800\ufe0f\U000e0101"
    return [c for c in text if c != "\n" and (c in unseen or not c.isprintable())]


@pytest.mark.parametrize("text", HOSTILE_TEXT, ids=ascii)
def test_hostile_text_is_neutral_wherever_it_is_shown(text):
    job = view(text, "failed", 1, error=text, host=text, progress={"event": text})
    receiver = FakeReceiver(job, view(text + "2", "pending", 2, obstacle=text, model=text, mode=text))
    run = Session(receiver)
    receiver.answers["GET", "/v1/workers"] = {
        "workers": [
            {
                "hostname": text,
                "capability": {"cuda_available": True, "cuda_devices": [{"name": text}]},
                "jobs": [text],
                "conflict": text,
            }
        ],
        "now": NOW,
    }
    receiver.answers["GET", "/v1/job/x"] = {
        "job": job,
        "spec": SPEC | {"hyper": {text: text}},
        "now": NOW,
        "attempts": [{"host": text, "error": text, "end_reason": text}],
        "events": [{"transition": text, "detail": text}],
    }
    receiver.answers["GET", "/v1/job/x/explain"] = {
        "name": text,
        "summary": text,
        "hosts": [{"host": text, "reason": text}],
    }
    for argv in (["status"], ["list"], ["workers"], ["show", "x"], ["explain", "x"]):
        assert run(*argv) == 0
        assert dangerous(run.out) == []
        assert run(*argv, "--json") == 0
        assert run.out.isascii()
        assert dangerous(run.out) == []
    for kind in ("unknown_job", text):
        receiver.answers["GET", "/v1/job/x"] = {"status_code": 404, "type": kind, "detail": text}
        assert dangerous(run.says("show", "x", code=1)) == []


def test_one_of_several_things_loses_the_s_of_its_noun():
    assert [counted(number, "data sets") for number in (1, 2)] == ["1 data set", "2 data sets"]
    assert [counted(number, "files of output") for number in (1, 2)] == ["1 file of output", "2 files of output"]


@given(st.text())
def test_printable_text_is_printable_and_harmless_text_is_left_alone(text):
    for made in (printable(text), one_line(text, 50), *printable_lines(text)):
        assert made.isprintable()
    assert len(one_line(text, 50)) <= 50
    assert json.loads(json_text({"t": text})) == {"t": text}
    if text.isascii() and text.isprintable():
        assert printable(text) == text


def test_markup_is_shown_and_not_obeyed(run):
    run.receiver.views["mlp-oracle"] = FAILED | {"error": "[bold]loud[/bold] :smile:"}
    assert "[bold]loud[/bold] :smile:" in run.says("status")


@given(
    st.dictionaries(
        st.sampled_from(["epoch", "epochs", "eta_s", "event", "bytes"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.text(), max_size=2),
    )
)
def test_no_progress_of_odd_types_is_a_traceback(odd):
    """A trainer writes its own progress: the one member of a job that no message declares."""
    job = whole(JobView, **view("x", "running", progress=odd))
    console, health = CommandContext(out=io.StringIO()).console(), whole(HealthReply)
    console.print(cli_status.render_status(cli_status.status_data([job], whole(JobsReply), health, whole=True), health))
    console.print(cli_views.render_job(whole(JobDetail) | {"job": job, "now": NOW}))


# --- usage, exit codes, environment --------------------------------------------------------------------------


def test_an_unreachable_receiver_is_exit_code_75(run):
    run.receiver.answers["GET", "/v1/jobs"] = TransportError("connection refused")
    assert run.says("status", code=75).count("\n") == 1
    assert "cannot reach the receiver at http://127.0.0.1:8445: connection refused" in run.err
    run.receiver.answers["GET", "/v1/jobs"] = Response(503, SHOWN, b'{"detail": "shutting down"}')
    assert run("status") == 75


@pytest.mark.parametrize(
    ("argv", "begins"),
    [
        (["nope"], "No such command 'nope'"),
        (["show"], ""),
        (["status", "--nope"], "No such option: --nope"),
        (["list", "--status", "x"], "Invalid value for '--status': 'x' is not one of 'pending', "),
        (["logs", "x", "--attempt", "0"], "Invalid value for '--attempt'"),
        (["enroll", "my pc"], "Invalid value for 'NAME': 'my pc' is no name: 1 to 64 letters"),
        (["tokens", "add", "caf\udce9"], "Invalid value for 'NAME': 'caf\\udce9' is no name"),
        (["status", "--receiver-url", "nonsense"], ""),
        (["status", "--receiver-url", "http://"], ""),
    ],
)
def test_wrong_usage_is_exit_code_2_and_one_sentence(argv, begins):
    world = CommandContext(out=io.StringIO(), err=io.StringIO(), environ={})
    assert program.main(argv, context=world) == 2
    said = world.err.getvalue()
    assert said.startswith(f"cis490-jobs: {begins}")
    assert said.count("\n") == 1


def test_bytes_that_are_no_text_name_no_job(run):
    refusal = {"type": "unknown_job", "detail": "no job is called '?'"}
    run.receiver.answers["GET", "/v1/job/%3F"] = Response(404, SHOWN, json.dumps(refusal).encode())
    assert "no job is called '?'" in run.says("show", "\udcff", code=1)


def test_the_receivers_address_comes_from_flag_variable_or_default(run):
    run("status")
    run.world = replace(run.world, environ={"CIS490_RECEIVER_URL": "http://pi:1"})
    run("status")
    run("--receiver-url", "http://a:2", "status")
    run("--receiver-url", "http://a:2", "status", "--receiver-url", "http://b:3")
    assert run.urls == ["http://127.0.0.1:8445", "http://pi:1", "http://a:2", "http://b:3"]


@pytest.mark.parametrize(
    ("call", "argv"),
    [
        (("POST", "/v1/manifest/reload"), ["reload"]),
        (("GET", "/v1/workers"), ["workers"]),
        (("POST", "/v1/workers/desk/release"), ["release", "desk"]),
        (("GET", "/v1/job/x"), ["show", "x"]),
        (("GET", "/v1/job/x/explain"), ["explain", "x"]),
    ],
)
def test_another_services_ok_is_never_shown_as_the_receivers(run, call, argv):
    run.receiver.answers[call] = Response(200, SHOWN, b'{"status": "ok", "name": "printer"}')
    assert "is it another version or program?" in run.says(*argv, code=75)
    assert not run.out
    run.receiver.answers[call] = Response(200, {"content-type": "text/html", "server": "nginx"}, b"<html>")
    assert "200 from nginx: a page (text/html)" in run.says(*argv, code=75)


def test_json_may_stand_before_the_command(run):
    assert json.loads(run.says("--json", "list"))["jobs"]


def test_a_token_that_no_header_can_carry_is_refused_here(run):
    run.world = replace(run.world, environ={"CIS490_OPERATOR_TOKEN": "a\nb"})
    assert "holds characters that no token has" in run.says("cancel", "gbt-oracle", code=2)


def test_the_entry_by_path_works_from_anywhere(tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "cis490_jobs.py"), "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "cis490-jobs [OPTIONS] COMMAND" in done.stdout
    assert all(f"\n{heading}:\n" in done.stdout for heading in program.HELP)


@pytest.mark.parametrize("command", [[], *([name] for name in program.command().commands)])
def test_no_help_cuts_a_sentence_or_shows_a_type_of_python(command, capsys):
    assert program.main([*command, "--help"]) == 0
    assert re.findall(r"[\w,;]\.\.|<[\w ]+>|list\[", capsys.readouterr().out.replace("[ARGS]...", "")) == []


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (60, "1 min"),
        (119, "1 min 59 s"),
        (149, "2 min"),
        (3569, "59 min"),
        (3599, "1 h 00 min"),
        (3661, "1 h 01 min"),
        (90000, "1 d 1 h"),
        (-5, "0 s"),
        (None, ""),
        ("x", ""),
        (float("nan"), ""),
        (True, ""),
        (10**400, ""),
    ],
)
def test_durations_in_words(seconds, words):
    assert duration(seconds) == words


def test_a_command_names_a_job_so_that_no_other_is_meant():
    gone = {"name": "gbt", "job_id": "a1" * 32, "in_manifest": False}
    assert typed({**gone, "in_manifest": True}) == "gbt"
    assert typed(gone) == "a1a1a1a1a1a1", "the plan's gbt may be another job"
    assert (called(gone, 60), called({"name": "gbt"}, 60)) == ("gbt (not in the plan)", "gbt")
    assert typed({**gone, "name": "\x1b[2J", "in_manifest": True}) == "a1" * 32


@given(st.integers(0, 10_000_000))
def test_a_duration_in_words_is_never_off_by_more_than_a_fifth(seconds):
    units = {"d": 86400, "h": 3600, "min": 60, "s": 1}
    words = duration(seconds).split()
    said = sum(int(count) * units[unit] for count, unit in zip(words[::2], words[1::2], strict=True))
    assert abs(said - seconds) <= seconds / 5
    assert len(words) <= 4

"""``cis490-jobs`` believes no answer without the id of a database, and all answers of one command from one database."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from builders import SHOWN
from test_fleet_cli import DONE, FAILED, FakeReceiver, Session
from test_fleet_manifest import TableDescriber

from training.fleet.cli import program
from training.fleet.client.transport import Response
from training.fleet.manifest import load
from training.fleet.wire.constants import HEADER_DATABASE

MARK = "printer-7"  # in every stranger's body: it must reach nobody
HTML = {"content-type": "text/html", "server": "nginx/1.24.0"}
JSON = {"content-type": "application/json"}
PROBLEM = {"content-type": "application/problem+json"}
STRANGERS = {
    "page": (Response(200, HTML, f"<html>{MARK}</html>".encode()), "200 from nginx/1.24.0: a page"),
    "empty object": (Response(200, JSON, b"{}"), "another service on that port"),
    "empty queue": (
        Response(200, JSON, json.dumps({"jobs": [], "counts": {}, "next_after": None, "by": MARK}).encode()),
        "another service on that port",
    ),
    "redirect": (Response(302, {"location": "http://login.example/?q=1"}), "a redirection to login.example"),
    "401": (Response(401, HTML, MARK.encode()), "it wants a login"),
    "403": (Response(403, HTML, MARK.encode()), "blocks requests"),
    "unknown job": (
        Response(404, PROBLEM, json.dumps({"type": "unknown_job", "detail": MARK}).encode()),
        "another service on that port",
    ),
    "conflict": (Response(409, PROBLEM, b'{"type": "about:blank"}'), "another service on that port"),
    "broken": (Response(500, HTML, MARK.encode()), "500 from nginx/1.24.0: another service on that port"),
    "no such id": (Response(200, {HEADER_DATABASE.lower(): "7"}, b"{}"), "another service on that port"),
}
LOCAL = {"doctor", "backup", "restore", "rebuild"}  # commands on the receiver's own files
TALKING = [
    "status",
    "status --watch",
    "list",
    "list --status failed",
    "show x",
    "explain x",
    "workers",
    "cancel x",
    "cancel --removed",
    "requeue x",
    "requeue --failed",
    "hold x",
    "unhold x",
    "wait x",
    "judge 1 false",
    "wait --all",
    "reload",
    "act hold --status pending --yes",
    "logs x",
    "logs x --follow",
    "get x",
    "get --all",
    "audit",
    "curve x",
    "enroll pc",
    "revoke pc",
    "certificates",
    "release pc",
    "plan",
    "upgrade --check",
    "plan --why x",
    "plan plan.toml",
    "apply --yes",
    "apply plan.toml --yes",
    "tokens add ada",
    "tokens list",
    "tokens revoke ada",
    "notify",
    "notify test",
    "dataset push data",
    "dataset list",
    "dataset remove x",
]


class Answers:
    """A transport that gives everybody one answer."""

    def __init__(self, answer):
        self.answer = answer

    def request(self, *_, **_more):
        return self.answer


def others(command, before=""):
    """All further commands but the local ones, each with what it needs."""
    for name, each in getattr(command, "commands", {}).items():
        typed = before + name
        if hasattr(each, "commands"):
            yield from others(each, f"{typed} ")
        elif typed not in LOCAL and not any(f"{argv} ".startswith(f"{typed} ") for argv in TALKING):
            needed = [each.name for each in each.params if each.required and each.param_type_name == "argument"]
            yield " ".join([typed, *("x" for _ in needed)])


@pytest.fixture
def desk(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(load, "default_describer", TableDescriber)
    Path("plan.toml").write_text('[[jobs]]\nname = "x"\nmodel = "gbt"\nmode = "oracle"\n')
    Path("data").mkdir()
    Path("data", "a.bin").write_bytes(b"a")
    return tmp_path


@pytest.mark.parametrize("argv", [*TALKING, *others(program.command())])
def test_an_answer_without_the_id_of_a_database_is_no_answer(argv, desk):
    keeps = argv.startswith(("get", "plan", "apply", "dataset"))
    before = sorted(desk.rglob("*"))
    for name, (answer, words) in STRANGERS.items():
        run = Session(Answers(answer), CIS490_OPERATOR_TOKEN="secret")
        assert run(*argv.split()) == 75, (argv, name)
        assert run.out == ""
        assert run.err.count("\n") == 1, run.err
        assert "not the receiver answered at http://127.0.0.1:8445 but " in run.err
        assert words in run.err, (argv, name)
        assert MARK not in run.err
    assert not keeps or sorted(desk.rglob("*")) == before, "nothing is fetched, replaced, kept"


class Changing:
    """A receiver whose place is taken by another one's after some requests."""

    def __init__(self, receiver, after):
        self.receiver, self.left = receiver, after

    def request(self, *given, **more):
        answer = self.receiver.request(*given, **more)
        self.left -= 1
        if self.left >= 0:
            return answer
        return replace(answer, headers={**answer.headers, HEADER_DATABASE.lower(): "e" * 32})


@pytest.mark.parametrize(
    ("argv", "sent"),
    [
        ("status", 0),
        ("list", 0),
        ("cancel --removed", 0),
        ("cancel mlp-oracle gbt-realistic gone", 2),
        ("requeue --failed", 0),
        ("get --all", 0),
    ],
)
def test_one_command_believes_one_database(argv, sent, desk):
    gone = FAILED | {"in_manifest": False, "name": "gone", "job_id": "f" * 64}
    receiver = FakeReceiver(FAILED, DONE, gone)
    receiver.page = 1
    run = Session(Changing(receiver, 1), CIS490_OPERATOR_TOKEN="secret")
    assert run(*argv.split()) == 75
    assert f"the database {'e' * 32} answered, and {SHOWN[HEADER_DATABASE.lower()]} a moment ago" in run.err
    assert run.err.count("\n") == 1
    assert sum(method == "POST" for method, _, _ in receiver.asked) == sent, "and no more after that"


def test_it_may_be_another_ones_at_the_next_command(desk):
    run = Session(FakeReceiver(DONE))
    assert run("list") == 0
    run = Session(Changing(FakeReceiver(DONE), 0))
    assert run("list") == 0, "nothing is remembered between commands"


def test_a_wait_outlives_a_portal(desk):
    """It goes on when the receiver answers again; what the portal said is told once."""
    receiver = FakeReceiver(FAILED)
    receiver.answers["GET", "/v1/job/mlp-oracle"] = {"job": FAILED | {"status": "running"}}
    script = [STRANGERS["redirect"][0], STRANGERS["page"][0]]
    run = Session(receiver)
    asked = receiver.request

    def request(*given, **more):
        return script.pop(0) if run.slept and script else asked(*given, **more)

    receiver.request = request
    assert run("wait", "mlp-oracle") == 3
    assert run.err.count("a redirection to login.example") == 1
    assert not script

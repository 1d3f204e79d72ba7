"""The plan endpoints over a socket: who may ask, and what a hostile body gets."""

import json
import threading
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from builders import a_job
from receiver_running import Wire, in_background, running
from test_fleet_manifest import TableDescriber

from training.fleet.client.client import Refused, Unavailable
from training.fleet.receiver.http import context as http_context
from training.fleet.receiver.http import plans
from training.fleet.service.audit import AuditLog
from training.fleet.service.plan import Reloader
from training.fleet.service.preview import Previews
from training.fleet.wire.constants import Refusal
from training.fleet.wire.plans import PLAN_BODY_MAX

JOB = {"name": "a", "model": "gbt", "mode": "oracle"}
PATH = "/v1/manifest/plan"


@contextmanager
def planning(folder):
    with running(folder) as receiver:
        file = folder / "manifest.toml"
        file.write_text("jobs = []")
        audit = AuditLog(receiver.queue.db, receiver.hub.clock)
        reloader = Reloader(file, receiver.service, receiver.writer, TableDescriber(), audit)
        receiver.hub.previews = Previews(reloader, receiver.reader)
        yield receiver


@pytest.fixture(scope="module")
def receiver(tmp_path_factory):
    with planning(tmp_path_factory.mktemp("plans")) as receiver:
        yield receiver


def test_both_calls_answer_without_a_token(receiver):
    client = receiver.client(token=None)
    own, given = client.plan(), client.plan({"jobs": [JOB]})
    assert (own["reload"]["removed"], own["states"]) == (1, {})
    assert (given["reload"]["inserted"], given["states"]) == (1, {"new": 1})
    assert Path(own["file"]).name == "manifest.toml"
    assert len(own["mark"]) == 64


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"jobs": 3}, "$.jobs"),
        ({"jobs": ["a"]}, "$.jobs[0]"),
        ({"hosts": {"pi": 1}}, "$.hosts[...]"),
        ({"notify": {"phone": {"url_file": "/etc/shadow"}}}, "$.notify[...]"),
        ({"jobs": [], "run": "rm"}, "unknown field `run`"),
    ],
)
def test_a_body_of_another_form_is_refused_with_its_path(receiver, body, path):
    with Wire(receiver) as wire:
        status, _, answer = wire.request("POST", PATH, json.dumps(body).encode()).answer()
    assert status == 400
    assert path in json.loads(answer)["detail"]


@pytest.mark.parametrize(
    ("body", "key"),
    [
        ({"jobs": [JOB | {"priority": "high"}]}, "jobs[0].priority"),
        ({"jobs": [JOB, JOB | {"name": ""}]}, "jobs[1].name"),
        ({"jobs": [JOB | {"name": None}]}, "jobs[0].name"),
        ({"jobs": [JOB | {"job_id": "a" * 64}]}, "jobs[0].job_id"),
        ({"jobs": [JOB | {"hyper": {"lr": [1]}}]}, "jobs[0].hyper.lr"),
        ({"jobs": [JOB | {"matrix": {"seed": [1, 2]}}]}, "jobs[0].matrix"),
        ({"jobs": [JOB | {"rotate": "hosts"}]}, "jobs[0].rotate"),
        ({"hosts": {"a/b": {}}}, 'hosts."a/b"'),
        ({"hosts": {"pi": {"cuda": "no"}}}, "hosts.pi.cuda"),
        ({"trainers": {"own": {"command": "rm -rf"}}}, "trainers.own.command"),
        ({"retention": {"keep": {}}}, "retention.keep"),
    ],
)
def test_a_hostile_plan_is_refused_as_a_bad_manifest_is(receiver, body, key):
    with pytest.raises(Refused) as caught:
        receiver.client().plan(body)
    assert key in [each["key"] for each in caught.value.extra["mistakes"]]


def test_a_body_beyond_the_limit_is_refused(receiver):
    with Wire(receiver) as wire:
        assert wire.request("POST", PATH, b" " * (PLAN_BODY_MAX + 1)).problem() == (413, "too_large")


def test_a_bad_plan_names_every_mistake(receiver):
    with pytest.raises(Refused) as caught:
        receiver.client().plan({"jobs": [JOB | {"mode": "orcale"}, JOB | {"model": "gtb"}]})
    assert [each["key"] for each in caught.value.extra["mistakes"]] == ["jobs[0].mode", "jobs[1].model", "jobs[1].name"]


def test_a_proven_host_is_refused(receiver):
    principal = SimpleNamespace(operator=None, host_id="pi")
    request = SimpleNamespace(state=SimpleNamespace(principal=principal))
    with pytest.raises(Refusal, match="sees its own jobs alone") as caught:
        plans.check_reader(request)
    assert caught.value.problem_type == "not_yours"


def test_a_reload_waits_for_no_preview_and_the_preview_is_made_again(tmp_path, monkeypatch):
    begun, let, made, own = threading.Event(), threading.Event(), [], Previews.own

    def slow(previews):
        found = own(previews)
        made.append(found.reload.removed)
        if not begun.is_set():
            begun.set()
            assert let.wait(30)
        return found

    monkeypatch.setattr(Previews, "own", slow)
    monkeypatch.setattr(http_context, "PREVIEWS_MAX", 1)
    with planning(tmp_path) as receiver, in_background(receiver.client(token=None).plan) as answers:
        assert begun.wait(30)
        reader = receiver.client(token=receiver.client().call("add_token", name="ada", role="reader")["token"])
        with pytest.raises(Unavailable, match="other plans are being judged"):
            reader.plan()
        assert b"reload" in receiver.client().get_page("/act?what=reload"), "an operator waits for no reader"
        receiver.client().plan()
        receiver.add(a_job("another"))
        let.set()
    assert (made, answers[0]["reload"]["removed"]) == ([1, 1, 1, 2], 2)


def test_a_preview_that_reloads_keep_spoiling_is_refused(tmp_path, monkeypatch):
    own = Previews.own

    def spoilt(previews):
        receiver.hub._reloads += 1
        return own(previews)

    monkeypatch.setattr(Previews, "own", spoilt)
    with planning(tmp_path) as receiver, Wire(receiver) as wire:
        assert wire.request("GET", PATH).problem() == (429, "slow_down")


def test_few_plans_wait_to_be_judged(receiver, monkeypatch):
    monkeypatch.setattr(http_context, "PREVIEWS_MAX", 0)
    with Wire(receiver) as wire:
        assert wire.request("GET", PATH).problem() == (429, "slow_down")

"""``cis490-jobs plan`` and ``apply`` against a receiver: what they show and exit with, and what they leave on disk."""

import io
import json
from dataclasses import replace
from unittest.mock import Mock

import pytest
from receiver_running import Receiver
from rich.console import Console
from test_fleet_cli import Terminal
from test_fleet_manifest import TableDescriber
from wire_builders import whole

from training.fleet.cli import program
from training.fleet.cli.context import CommandContext
from training.fleet.cli.planned import render_plan
from training.fleet.client.client import FleetClient, Unreachable
from training.fleet.manifest import load
from training.fleet.service.audit import AuditLog
from training.fleet.service.plan import Reloader
from training.fleet.service.preview import Previews
from training.fleet.wire.plans import PlanReply

TOKEN = "open-sesame"
OLD = '[[jobs]]\nname = "a"\nmodel = "gbt"\nmode = "oracle"\nseed = 1\n'
NEW = OLD + 'priority = 3\n[[jobs]]\nname = "b"\nmodel = "gbt"\nmode = "oracle"\nmatrix.seed = [7, 8]\n'


class Desk:
    """An operator beside a receiver: runs commands, with or without a terminal, here or on another machine."""

    def __init__(self, receiver, folder):
        self.receiver, self.manifest = receiver, folder / "manifest.toml"
        self.manifest.write_text(OLD)
        audit = AuditLog(receiver.queue.db, receiver.hub.clock)
        reloader = Reloader(self.manifest, receiver.service, receiver.writer, TableDescriber(), audit)
        reloader("the start")
        receiver.hub.read_manifest = reloader
        receiver.hub.previews = Previews(reloader, receiver.reader)
        self.file = folder / "new.toml"
        self.file.write_text(NEW)
        self.before = folder / "manifest.toml.before"
        self.world = CommandContext(connect=self.connect, environ={"CIS490_OPERATOR_TOKEN": TOKEN})

    def connect(self, _url, token):
        return self.receiver.client(token=token)

    def __call__(self, *argv, typed=None):
        into, err = (io.StringIO(), io.StringIO()) if typed is None else (Terminal(typed), Terminal())
        self.world = replace(self.world, out=io.StringIO(), err=err, into=into)
        return program.main(argv, context=self.world)

    @property
    def out(self):
        return self.world.out.getvalue()

    @property
    def err(self):
        return self.world.err.getvalue()

    def names(self):
        return sorted(each["name"] for each in self.receiver.client(token=TOKEN).all_jobs() if each["in_manifest"])


@pytest.fixture
def desk(tmp_path, monkeypatch):
    monkeypatch.setattr(load, "default_describer", TableDescriber)
    with Receiver(tmp_path, [], operator_token=TOKEN) as receiver:
        yield Desk(receiver, tmp_path)


def test_plan_shows_what_a_file_would_change_and_changes_nothing(desk):
    assert desk("plan", str(desk.file)) == 3
    for line in ("2 new, 1 edited", "  b[seed=7]", "  a, priority: at once", "no worker has asked for work yet"):
        assert line in desk.out
    assert (desk.names(), desk.manifest.read_text()) == (["a"], OLD)
    assert desk("plan") == 0
    assert "a reload would change nothing" in desk.out
    assert desk("plan", str(desk.file), "--json") == 3
    assert json.loads(desk.out)["reload"]["inserted"] == 2


def test_a_new_channel_alone_is_shown_and_applied(desk):
    desk.file.write_text(OLD + '[notify.phone]\nkind = "command"\ncommand = ["true"]\n')
    assert desk("plan", str(desk.file)) == 3
    assert "[notify.phone]: new" in desk.out
    assert desk("apply", str(desk.file), "--yes") == 0
    assert "1 edited in [notify]" in desk.out
    assert [each.name for each in desk.receiver.service.plan.channels] == ["phone"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (NEW + "prio = 1\n", ":12: jobs[1].prio: a job has no key `prio`"),
        (NEW + 'dataset = "lab"\n', ': job "b[seed=8]".dataset: there is no data set `lab`'),
    ],
)
def test_an_invalid_file_is_told_with_all_reasons_and_changes_nothing(desk, text, words):
    desk.file.write_text(text)
    for command in (["plan"], ["apply", "--yes"]):
        assert desk(*command, str(desk.file)) == 2
        assert words in desk.err
    assert desk("plan", str(desk.file), "--json") == 2
    assert json.loads(desk.out)["mistakes"]
    assert (desk.names(), desk.manifest.read_text(), desk.before.exists()) == (["a"], OLD, False)


def test_a_job_that_stays_cancelled_is_no_edit(desk):
    desk.receiver.client(token=TOKEN).cancel("a")
    assert desk("plan") == 0
    assert "Edited" not in desk.out
    assert "  a: cancelled (operator: cancelled)" in desk.out


def test_the_receivers_own_manifest_is_judged_there(desk):
    desk.manifest.write_text("[[job]]\n")
    assert desk("plan") == 2
    assert f"{desk.manifest}:1: job: a manifest has no key `job`" in desk.err


def test_apply_asks_puts_the_file_in_place_and_keeps_the_one_before(desk):
    desk.manifest.chmod(0o640)
    assert desk("apply", str(desk.file), typed="n\n") == 1
    assert (desk.names(), desk.manifest.read_text(), desk.before.exists()) == (["a"], OLD, False)
    assert desk("apply", str(desk.file), typed="y\n") == 0
    assert desk.names() == ["a", "b[seed=7]", "b[seed=8]"]
    for once in ("  b[seed=7]", "  b[seed=8]", "  a, priority: at once"):
        assert desk.out.count(f"{once}\n") == 1
    assert (desk.manifest.read_text(), desk.before.read_text()) == (NEW, OLD)
    assert desk.manifest.stat().st_mode & 0o777 == 0o640
    assert desk("apply", str(desk.file), "--yes") == 0
    assert "nothing to do" in desk.out


def test_apply_without_a_file_reloads_the_manifest_as_it_lies_there(desk):
    desk.manifest.write_text(NEW)
    assert desk("apply", "--yes", "--json") == 0
    said = json.loads(desk.out)
    assert (said["plan"]["reload"]["inserted"], said["reload"]["inserted"], said["kept"]) == (2, 2, None)
    desk.manifest.write_text(OLD)
    assert desk("apply", str(desk.manifest), "--yes") == 0
    assert (desk.names(), desk.before.exists()) == (["a"], False), "the one of before is not overwritten with itself"


def test_apply_without_a_terminal_says_what_to_add(desk):
    assert desk("apply", str(desk.file)) == 2
    assert "add --yes" in desk.err
    assert desk.manifest.read_text() == OLD


def test_apply_on_another_machine_says_where_the_file_belongs(desk, monkeypatch):
    monkeypatch.setattr("training.fleet.cli.plan.mark_of", lambda path: "f" * 64)  # another file of that name
    assert desk("apply", str(desk.file), "--yes") == 1
    assert f"the receiver reads {desk.manifest} on " in desk.err
    assert f"put {desk.file} there" in desk.err
    assert (desk.names(), desk.before.exists()) == (["a"], False)


def test_who_may_not_reload_replaces_no_file(desk):
    desk.world = replace(desk.world, environ={})
    assert desk("apply", str(desk.file), "--yes") == 1
    assert "operator token" in desk.err
    assert (desk.manifest.read_text(), desk.before.exists()) == (OLD, False)


@pytest.mark.parametrize("which", ["file", "manifest"])
def test_what_changes_while_one_is_asked_is_not_applied(desk, which):
    changed = getattr(desk, which)

    class Slow(Terminal):
        def readline(self, *_):
            changed.write_text(OLD + "priority = 9\n")
            return "y\n"

    desk.world = replace(desk.world, out=io.StringIO(), err=Terminal(), into=Slow())
    assert program.main(["apply", str(desk.file)], context=desk.world) == 1
    assert f"{changed} was changed meanwhile" in " ".join(desk.err.split())
    assert (desk.names(), desk.before.exists()) == (["a"], False)


def test_a_refused_reload_puts_the_manifest_back_and_a_lost_one_says_what_stands(desk, monkeypatch):
    refusing = desk.receiver.hub.read_manifest

    desk.receiver.hub.read_manifest = None
    assert desk("apply", str(desk.file), "--yes") == 1
    assert desk.manifest.read_text() == OLD
    desk.receiver.hub.read_manifest = refusing
    monkeypatch.setattr(FleetClient, "reload", Mock(side_effect=Unreachable("no answer")))
    assert desk("apply", str(desk.file), "--yes") == 75
    assert "is in place, and read at the next reload" in desk.err
    assert desk.manifest.read_text() == NEW


def test_why_names_the_fields_of_an_id_and_those_in_which_two_differ(desk):
    assert desk("plan", "--why", "a") == 0
    assert ["seed", "1"] in [line.split() for line in desk.out.splitlines()]
    assert desk("plan", "--why", "a", "b[seed=7]", "--in", str(desk.file), "--json") == 0
    said = json.loads(desk.out)
    assert (said["differ"], said["beside"]) == (["seed"], ["priority"])
    assert said["jobs"][1]["fields"]["seed"] == 7
    ids = {each["name"]: each["job_id"] for each in desk.receiver.client(token=TOKEN).all_jobs()}
    assert said["jobs"][0]["job_id"] == ids["a"], "as the receiver will name it"
    assert desk("plan", "--why", "a", "a", "--in", str(desk.file)) == 0
    assert "are the same job" in desk.out
    for wrong in (["--why"], ["--why", "a", "b", "c"], ["a.toml", "b.toml"], ["--in", str(desk.file)]):
        assert desk("plan", *wrong) == 2
    assert desk("plan", "--why", "nobody") == 1


def test_a_model_that_retention_took_is_not_shown_as_one_that_is_there():
    done = {"state": "completed", "artifact_id": "a" * 64, "host": "pi", "at": 0.0}
    jobs = [done | {"name": "kept"}, done | {"name": "gone", "removed": {"at": 86400.0, "why": "too old"}}]
    out = io.StringIO()
    Console(file=out, width=200).print(render_plan(whole(PlanReply, jobs=jobs, states={"completed": 2}, now=9.0)))
    there, _, went = out.getvalue().partition("Trained, model not kept")
    assert "Already trained (1)" in there
    assert "gone" not in there
    assert went.endswith("requeued (1)\n  gone: removed on 1970-01-02: too old\n")


def test_memory_is_proposed_beside_what_is_asked_now():
    told = {"jobs": ["a", "b", "c", "d"], "count": 7, "asked_gib": 0.0, "held_gib": 2.0, "propose_gib": 2.4}
    out = io.StringIO()
    other = told | {"jobs": ["e"], "count": 1, "held_gib": 3.0}
    answer = whole(PlanReply, memory=[told, other, told | {"jobs": ["f"], "count": 1, "asked_gib": 9.0}])
    Console(file=out, width=200).print(render_plan(answer))
    assert "(2)\n  a, b, c and 5 more: min_ram_gib = 2.4 instead of none; used up to 3.0 GiB" in out.getvalue()
    assert "f: min_ram_gib = 2.4 instead of 9; " in out.getvalue()


def test_hosts_that_could_take_the_same_are_named_once():
    few = {"takes": 1, "jobs": ["a"], "obstacles": {"no CUDA": 2}}
    every = {"takes": 2, "jobs": ["a", "b"], "obstacles": {"too large": 1}}
    hosts = [{"host": name, **each} for name, each in (("pi", few), ("desk", every), ("tower", every), ("nas", few))]
    hosts[1]["note"] = "not seen for 2 h"
    out = io.StringIO()
    answer = whole(PlanReply, waiting=3, hosts=hosts, nowhere={"c": "too large"})
    Console(file=out, width=200).print(render_plan(answer))
    said = "  pi, nas: 1 of 3: a\n    not 2: no CUDA\n  desk (not seen for 2 h), tower: 2 of 3, all that can run\n\n"
    assert said in out.getvalue()

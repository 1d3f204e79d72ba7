"""Previews of a plan: what a reload would change, of the receiver's own manifest and of one that was read elsewhere."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from builders import a_capability, a_completion, a_worker_claim
from fakes import Counting, FakeClock, FakeShelf
from hypothesis import given
from hypothesis import strategies as st
from test_fleet_manifest import TableDescriber

from training.fleet.cli.plan import sent_plan
from training.fleet.database.writer import Writer
from training.fleet.manifest.load import parse_manifest
from training.fleet.queue.jobs import JobQueue
from training.fleet.service.audit import AuditLog
from training.fleet.service.memory import proposed_gib
from training.fleet.service.plan import Reloader
from training.fleet.service.preview import Previews
from training.fleet.service.service import Service
from training.fleet.store.datasets import DatasetStore
from training.fleet.wire.constants import Refusal
from training.fleet.wire.plans import PlanRequest

A = "a" * 64
OWN = '[trainers.own]\ncommand = ["train"]\noutputs = ["x"]\n'


def a_job(name, more="", *, model="gbt"):
    return f'[[jobs]]\nname = "{name}"\nmodel = "{model}"\nmode = "oracle"\n{more}\n'


HOOK = '[notify.{name}]\nkind = "command"\ncommand = ["{command}"]\n'
FIRST = (
    OWN
    + HOOK.format(name="old", command="a")
    + HOOK.format(name="kept", command="a")
    + "[hosts.pi]\npriority = 1\n"
    + "".join(a_job(f"j{n}", f"seed = {n}") for n in range(4))
)
SECOND = (
    OWN.replace('"x"', '"x", "y"')
    + HOOK.format(name="kept", command="b")
    + HOOK.format(name="young", command="a")
    + '[retention]\nkeep = "best 3 per model and mode"\n'
    + "[hosts.pi]\npriority = 2\n"
    + a_job("j0", "seed = 0\npriority = 7")
    + a_job("renamed", "seed = 1")
    + a_job("cuda", "require_cuda = true\nmatrix.seed = [7, 8]")
    + a_job("mine", "hyper.depth = 3", model="own")
)


class Stage:
    """A receiver's service over a manifest's file, and its previews."""

    def __init__(self, folder):
        self.file = folder / "manifest.toml"
        self.clock, self.shelf = FakeClock(), FakeShelf()
        self.queue = JobQueue(":memory:", clock=self.clock, new_claim_id=Counting())
        self.service = Service(self.queue, self.shelf)
        self.writer = Writer(self.queue.db)
        self.asked = []
        audit = AuditLog(self.queue.db, self.clock)
        datasets = DatasetStore(folder / "datasets")
        self.reloader = Reloader(self.file, self.service, self.writer, self.describe, audit, datasets)
        self.previews = Previews(self.reloader, self.queue.db)

    def describe(self, command):
        self.asked.append(tuple(command))
        return TableDescriber()(command)

    def take(self, text):
        self.file.write_text(text)
        return self.reloader("ada")

    def given(self, text):
        """Judge a file as ``cis490-jobs plan FILE`` does, over the wire."""
        plan = parse_manifest(text, path=Path("plan.toml"), describer=TableDescriber())
        body = msgspec.json.encode(sent_plan(plan, Path("plan.toml")))
        return self.previews.given(msgspec.json.decode(body, type=PlanRequest))

    def own(self, text):
        self.file.write_text(text)
        return self.previews.own()

    def audited(self):
        return len(self.queue._conn.execute("SELECT seq FROM audit").fetchall())

    def claim(self, host="pi"):
        reply = self.writer.submit(lambda: self.service.claim(a_worker_claim(host))).result()
        return reply.claim_id, reply.job_id

    def deliver(self, claim_id, job_id, record=None):
        permission = self.service.upload_permission(job_id, claim_id, None)
        self.shelf.put(A, model=permission.model, mode=permission.mode)
        self.service.upload_done(permission, A, 10)
        self.service.complete(job_id, a_completion(claim_id, A, record=record))


@pytest.fixture
def stage(tmp_path):
    made = Stage(tmp_path)
    yield made
    made.writer.close()
    made.queue.close()


def told(reply):
    """All that a reload says of the plan; which file it read and when is no part of that."""
    said = msgspec.to_builtins(reply)
    return {key: value for key, value in said.items() if key not in ("file", "saved_at", "now")}


@pytest.mark.parametrize("judge", [Stage.given, Stage.own])
def test_a_preview_says_what_the_reload_then_says_and_writes_nothing(stage, judge):
    stage.take(FIRST)
    written = stage.queue._conn.total_changes
    said = judge(stage, SECOND)
    assert stage.queue._conn.total_changes == written
    assert said.changed
    counts = said.reload
    assert (counts.inserted, counts.updated, counts.removed, counts.renamed) == (3, 2, 2, 1)
    assert (counts.hosts, counts.trainers, counts.retention, counts.notify) == (1, 1, 1, 3)
    assert told(said.reload) == told(stage.take(SECOND))
    again = judge(stage, SECOND)
    assert (again.changed, again.reload.unchanged) == (False, 5)


@pytest.mark.parametrize("judge", [Stage.given, Stage.own])
@pytest.mark.parametrize(
    ("above", "below"),
    [
        ("", HOOK.format(name="one", command="a")),
        ("", "[retention]\nkeep_logs_days = 3\n"),
        ("", "[retention]\nkeep_states_days = 3\n"),
        ('scheduling = "first-come"\n', ""),
    ],
)
def test_an_edit_of_one_key_alone_is_a_change_and_stands_in_the_audit(stage, judge, above, below):
    stage.take(FIRST)
    before = stage.audited()
    assert judge(stage, above + FIRST + below).changed
    stage.take(above + FIRST + below)
    assert stage.audited() == before + 1
    assert judge(stage, FIRST).changed


@pytest.fixture
def first_plan(stage):
    stage.take(FIRST)


def test_channels_of_which_a_caller_tells_nothing_count_as_they_are(stage, first_plan):
    plan = parse_manifest(FIRST, path=Path("plan.toml"), describer=TableDescriber())
    sent = sent_plan(plan, Path("plan.toml"))
    del sent["notify"]
    assert not stage.previews.given(msgspec.convert(sent, PlanRequest)).changed


def test_where_a_channel_has_its_secret_is_not_sent():
    text = '[notify.phone]\nkind = "ntfy"\nurl_file = "/etc/cis490/topic"\n'
    plan = parse_manifest("jobs = []\n" + text, path=Path("plan.toml"), describer=TableDescriber())
    assert "topic" not in str(sent_plan(plan, Path("plan.toml")))


def test_every_job_says_what_became_of_it(stage, first_plan):
    claim_id, done = stage.claim()
    stage.deliver(claim_id, done)
    _, runs = stage.claim()
    stage.service.cancel("j2")
    said = {each.name: each for each in stage.given(FIRST + a_job("new", "seed = 9")).jobs}
    assert [said[name].state for name in ("j0", "j1", "j2", "j3", "new")] == [
        "completed",
        "claimed",
        "cancelled",
        "pending",
        "new",
    ]
    trained, live = said["j0"], said["j1"]
    assert (trained.job_id, trained.artifact_id, trained.host, trained.at) == (done, A, "pi", stage.clock.now())
    assert (live.job_id, live.host, live.at, live.artifact_id) == (runs, "pi", stage.clock.now(), None)
    assert stage.given(FIRST).reload.cancelled == 1
    went = {"what": "bundle", "subject": f"gbt_oracle/{A}", "number": 0, "size": 10, "why": "older", "newest": None}
    stage.writer.submit(lambda: stage.queue.db.run("add_removal", at=7.0, done_at=8.0, **went)).result()
    removed = {each.name: each.removed for each in stage.given(FIRST).jobs}
    assert (removed["j0"].at, removed["j0"].why) == (7.0, "older")
    assert removed["j1"] is None
    edited = stage.given(FIRST.replace('"j3"', '"three"').replace("seed = 0\n", "seed = 0\nmin_cores = 2\n")).jobs
    assert [(each.keys, each.was) for each in edited if each.outcome == "updated"] == [
        (["min_cores"], None),
        ([], "j3"),
    ]


def test_each_host_says_what_it_could_take_under_the_new_plan(stage, first_plan):
    stage.claim("pi")
    stage.clock.advance(10_000)
    desktop = a_worker_claim("desktop", capability=a_capability(cuda=True))
    stage.writer.submit(lambda: stage.service.claim(desktop)).result()
    said = stage.given(SECOND + '[hosts.desktop]\ndeny_jobs = ["own"]\n')
    assert said.waiting == 3
    takes = {each.host: each for each in said.hosts}
    assert (takes["desktop"].jobs, takes["desktop"].note) == (["cuda[seed=7]", "cuda[seed=8]"], None)
    assert takes["desktop"].obstacles == {"the model is in the host's deny_jobs": 1}
    assert (takes["pi"].jobs, takes["pi"].note) == (["mine"], "not seen for 2 h 47 min")
    nobody = stage.given(SECOND.replace("require_cuda = true", "min_cores = 99")).nowhere
    assert list(nobody) == ["cuda[seed=7]", "cuda[seed=8]"]
    assert nobody["cuda[seed=7]"] == "needs 99 cores, and no host has more than 4"


def test_each_host_takes_a_job_that_waits_or_has_an_obstacle(stage, monkeypatch):
    monkeypatch.setattr("training.fleet.service.preview.SHOWN_MAX", 3)
    stage.take(FIRST)
    stage.claim()
    cuda, large = ("require_cuda = true\nmatrix.seed = [7, 8]", "min_ram_gib = 900\nmatrix.seed = [11, 12, 13]")
    said = stage.own(FIRST + a_job("cuda", cuda) + a_job("large", large))
    (pi,) = said.hosts
    assert (pi.takes, sum(pi.obstacles.values()), said.waiting) == (3, 5, 8)
    assert list(said.nowhere) == ["cuda[seed=7]", "cuda[seed=8]", "large[seed=11]"], "of so many no more are named"


def test_no_host_takes_what_is_held_nor_one_that_is_quarantined_anything(stage, first_plan):
    held = next(each.job_id for each in stage.given(FIRST).jobs if each.name == "j0")
    stage.queue.hold(held, by="ada")
    sick = a_worker_claim("desktop", capability=a_capability(healthy=False, unhealthy_because="no disk"))
    stage.writer.submit(lambda: stage.service.claim(sick)).result()
    stage.claim("pi")
    said = stage.given(FIRST)
    assert said.waiting == 2, "of four: one is held, one runs"
    takes = {each.host: each for each in said.hosts}
    assert takes["pi"].takes == 2
    assert takes["desktop"].takes == 0
    assert all(why.startswith("quarantined: ") for why in takes["desktop"].obstacles)


def test_no_command_that_came_over_the_network_is_run(stage):
    stage.take("jobs = []")
    stage.asked.clear()
    plan = '[trainers.own]\ncommand = ["rm"]\ndescribe = ["evil"]\n' + a_job("a", model="own")
    body = {
        "jobs": [{"name": "a", "model": "own", "mode": "oracle", "hyper": {"any": 1}}],
        "trainers": {"own": {"command": ["rm"], "describe": ["evil"]}},
    }
    assert stage.previews.given(msgspec.convert(body, PlanRequest)).reload.inserted == 1
    assert ("evil",) not in stage.asked
    with pytest.raises(Refusal, match="evil"):
        stage.own(plan)
    assert ("evil",) in stage.asked, "the receiver's own manifest is the operator's word"


@pytest.mark.parametrize(
    ("job", "key", "words"),
    [
        ({"dataset": "nobodys"}, "jobs[0].dataset", "there is no data set `nobodys`"),
        ({"hyper": {"leaves": 3}}, "jobs[0].hyper.leaves", "gbt has no hyperparameter"),
        ({"model": "gtb"}, "jobs[0].model", "there is no model `gtb`"),
        ({"split_recipe": "host"}, "jobs[0].split_recipe", "needs train_hosts"),
        ({"name": "a\x1b[2J"}, "jobs[0].name", "printable"),
    ],
)
def test_a_given_plan_is_checked_anew_with_every_reason(stage, job, key, words):
    stage.take("jobs = []")
    body = {"jobs": [{"name": "a", "model": "gbt", "mode": "oracle", **job}], "file": "mine.toml"}
    with pytest.raises(Refusal) as caught:
        stage.previews.given(msgspec.convert(body, PlanRequest))
    assert caught.value.problem_type == "bad_manifest"
    (mistake,) = caught.value.extra["mistakes"]
    assert (mistake["file"], mistake["key"]) == ("mine.toml", key)
    assert words in mistake["message"]


def test_a_plan_without_a_list_of_jobs_is_noted_as_a_reload_notes_it(stage, first_plan):
    text = "[hosts.pi]\npriority = 1\n"
    assert any("the plan has no jobs" in note for note in stage.given(text).reload.notes)
    assert told(stage.given(text).reload) == told(stage.take(text))


def test_jobs_that_ask_for_other_memory_than_such_trainers_held_are_told(stage):
    stage.take(a_job("j0", "seed = 0"))
    claim_id, job_id = stage.claim()
    stage.deliver(claim_id, job_id, {"train_s": 9.0, "max_rss_kib": 2 * 1024**2})
    plan = "".join(a_job(f"j{n}", f"seed = {n}") for n in range(12)) + a_job("other", model="mlp")
    plan += a_job("enough", "seed = 20\nmin_ram_gib = 2.5") + a_job("much", "seed = 21\nmin_ram_gib = 9")
    for judge in (stage.own, stage.given):
        common, much = judge(plan).memory
        assert (common.count, len(common.jobs), common.asked_gib, common.held_gib) == (12, 10, 0.0, 2.0)
        assert common.propose_gib == pytest.approx(2.4)
        assert (much.jobs, much.asked_gib) == (["much"], 9.0)


@given(st.floats(0, 1e3), st.floats(0.01, 1e3))
def test_what_is_proposed_is_enough_and_is_not_proposed_again(asked, held):
    proposed = proposed_gib(asked, held)
    if proposed is None:
        assert asked >= held or asked > held * 1.2 - 0.36, "jobs ask for enough, or nearly"
    else:
        assert held <= proposed < held * 1.2 + 0.2
        assert proposed_gib(proposed, held) is None

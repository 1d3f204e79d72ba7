"""Edits of the plan: what a reload takes over, what an attempt was granted, and what is said of both."""

from __future__ import annotations

import io
from contextlib import closing

import pytest
from builders import a_job
from msgspec import to_builtins
from rich.console import Console
from service_running import A, Receiver
from wire_builders import whole

from training.contract import spec_hash
from training.fleet.cli.models import allowed_names, granted
from training.fleet.cli.render import render_job
from training.fleet.cli.status import render_status, status_data
from training.fleet.manifest.types import HostSpec
from training.fleet.scheduling.edits import (
    LISTED_MAX,
    Edit,
    EditKind,
    changed,
    channel_edits,
    first,
    host_edits,
    sentence,
)
from training.fleet.scheduling.job import NOT_IN_PLAN
from training.fleet.service.catalogue import provenance_of
from training.fleet.service.service import Service
from training.fleet.wire.constants import Refusal
from training.fleet.wire.views import HealthReply, JobsReply

OWN = {"name": "own", "command": ["train"], "describe": []}


@pytest.fixture
def receiver():
    with closing(Receiver()) as made:
        yield made


# ── what was granted ────────────────────────────────────────────────────────────────────────


def test_the_record_of_an_attempt_is_what_it_was_granted_whatever_the_plan_says_since(receiver):
    receiver.plan(a_job("one", n_resamples=100, trainer={**OWN, "outputs": ["model.bin", "model.json"]}))
    claim_id = receiver.granted()
    edited = {**OWN, "outputs": ["model.json", "extra.bin"]}
    receiver.plan(a_job("one", n_resamples=5000, denied_hosts=["pi"], trainer=edited) | {"name": "other"})
    said = provenance_of(receiver.job(), receiver.attempt(), now=receiver.clock.now())
    assert (said["spec"]["n_resamples"], said["spec"]["denied_hosts"]) == (100, [])
    assert said["name"] == "one"
    receiver.deliver(claim_id, spec_hash=spec_hash(said["spec"]))
    detail = receiver.views.job("id-one")
    assert detail.spec["n_resamples"] == 5000, "what the plan says"
    assert detail.attempts[0].granted == said["spec"], "what was granted"


def test_get_takes_the_files_that_were_promised_when_the_job_was_granted():
    was = a_job("one", trainer={**OWN, "outputs": ["model.bin"]})
    now = a_job("one", trainer={**OWN, "outputs": ["other.bin"]})
    completed = {"attempt": 2, "end_reason": "completed", "artifact_id": A, "granted": was}
    lost = {"attempt": 1, "end_reason": "host_lost", "artifact_id": None, "granted": now}
    detail = {"job": {"artifact_id": A}, "spec": now, "attempts": [lost, completed]}
    assert allowed_names(granted(detail, A)) == {"model.bin"}
    detail["attempts"] = [lost]
    assert allowed_names(granted(detail, A)) == {"other.bin"}


def test_a_repeated_claim_is_answered_with_what_was_granted():
    with closing(Receiver()) as receiver:
        receiver.plan(a_job("one", n_resamples=100))
        first = receiver.ask("pi", request_id="again")
        receiver.plan(a_job("one", n_resamples=9000) | {"name": "renamed"})
        again = receiver.ask("pi", request_id="again")
    assert again.repeated
    assert (again.name, again.spec) == (first.name, first.spec)


def test_show_says_where_an_attempt_was_granted_something_else(receiver):
    receiver.plan(a_job("one", n_resamples=100, max_run_s=5.0))
    receiver.granted()
    receiver.plan(a_job("one", n_resamples=100, max_run_s=60.0, denied_hosts=["pi"]))
    said = shown(render_job(to_builtins(receiver.views.job("id-one"))))
    assert "denied_hosts = [], max_run_s = 5.0" in said


# ── a reload takes the plan over whole ──────────────────────────────────────────────────────


def test_names_that_were_swapped_are_swapped_whatever_became_of_the_jobs(receiver):
    receiver.plan(a_job("small", seed=1), a_job("large", seed=2))
    receiver.deliver(receiver.granted(), name="small")
    reply = receiver.plan(a_job("small", seed=1) | {"name": "large"}, a_job("large", seed=2) | {"name": "small"})
    assert (reply.updated, reply.renamed) == (2, 2)
    assert receiver.service.resolve("small") == "id-large"
    assert receiver.service.resolve("large") == "id-small"


def test_a_finished_jobs_name_may_be_given_to_another(receiver):
    receiver.plan(a_job("small", seed=1))
    receiver.deliver(receiver.granted(), name="small")
    receiver.plan(a_job("small", seed=1) | {"name": "small-old"}, a_job("new") | {"name": "small"})
    assert receiver.service.resolve("small") == "id-new"
    assert receiver.service.resolve("small-old") == "id-small"


@pytest.mark.parametrize("end", ["failed", "completed", "cancelled"])
def test_a_requeue_trains_with_what_the_plan_says_now(receiver, end):
    receiver.plan(a_job("one", max_run_s=2.0))
    claim_id = receiver.granted()
    if end == "failed":
        receiver.fail(claim_id, exit_code=65)
    elif end == "cancelled":
        receiver.service.cancel("one")
    else:
        receiver.deliver(claim_id)
    reply = receiver.plan(a_job("one", max_run_s=60.0, denied_hosts=["pi"]))
    (edit,) = [each for each in reply.edits if each.kind == "job"]
    assert (edit.keys, edit.job_id) == (["denied_hosts", "max_run_s"], "id-one")
    assert edit.holds == f"when it is requeued; it is {end} with what it was granted"
    receiver.service.requeue("one")
    assert receiver.ask("pi").job_id is None, "denied now"
    assert receiver.ask("desktop").spec["max_run_s"] == 60.0


def test_what_runs_goes_on_as_granted_and_the_reload_says_so(receiver):
    receiver.plan(a_job("one", max_run_s=6.0), hosts={"pi": {"priority": 1}})
    receiver.granted()
    hosts = {"pi": {"priority": 1, "deny_jobs": ["gbt"]}}
    reply = receiver.plan(a_job("one", max_run_s=60.0), hosts=hosts)
    assert (reply.updated, reply.hosts) == (1, 1)
    said = [sentence(to_builtins(edit)) for edit in reply.edits]
    assert said == [
        "[hosts.pi] deny_jobs: from its next claim; one continues there",
        "one, max_run_s: from the next attempt; attempt 1 on pi continues with the job it was granted",
    ]
    assert receiver.plan(a_job("one", max_run_s=60.0), hosts=hosts).edits == []


def test_edits_of_trainers_are_told(receiver):
    def plan(**own):
        return receiver.plan(a_job("one", trainer=OWN | own), trainers={"own": OWN | own})

    plan(outputs=["a.bin"])
    said = [sentence(to_builtins(edit)) for edit in plan(outputs=["b.bin"]).edits]
    assert said == ["[trainers.own] outputs: from the next attempt of each job", "one, trainer.outputs: at once"]


def test_edits_of_channels_are_told():
    found = channel_edits({"same": "1", "gone": "2", "other": "3"}, {"same": "1", "other": "4", "new": "5"})
    assert [sentence(to_builtins(edit)) for edit in found] == [
        "[notify.gone]: gone, and what it has not sent is forgotten",
        "[notify.new]: new, and reports what happens from then on",
        "[notify.other]: from its next message",
    ]


@pytest.fixture
def one_job(receiver):
    receiver.plan(a_job("one"))


def test_a_table_that_says_what_holds_without_it_is_no_edit(receiver, one_job):
    plain = HostSpec(name="pi").to_dict()
    assert receiver.plan(a_job("one"), hosts={"pi": plain}).hosts == 0
    said = receiver.plan(a_job("one"), hosts={"pi": plain | {"deny_jobs": ["gbt"]}}).edits
    assert [edit.keys for edit in said] == [["deny_jobs"]]


def test_the_first_plan_after_a_start_is_no_edit_of_hosts(receiver):
    plan = {"hosts": {"pi": {"priority": 1}}, "trainers": {"own": OWN}}
    assert receiver.plan(a_job("one"), **plan).edits == []
    receiver.service = Service(receiver.queue, receiver.dataset_store)
    assert receiver.plan(a_job("one"), **plan).edits == []


def test_an_empty_list_says_as_much_as_none():
    assert changed({"allow_jobs": [], "cuda": None, "description": ""}, {}) == ()
    assert changed({}, {"cuda": False, "priority": 0}) == ("cuda", "priority")
    assert changed({"trainer": {"a": 1}}, {"trainer": {"a": 2}}) == ("trainer.a",)


def test_of_many_edits_the_first_are_those_that_need_somebody():
    edits = [Edit(EditKind.JOB, f"{n}", "at once") for n in range(300)]
    edits += [Edit(EditKind.STANDS, "stands", "requeue it"), Edit(EditKind.RENAME, "renamed", "at once")]
    assert [edit.name for edit in first(edits)][:3] == ["renamed", "stands", "0"]
    assert len(first(edits)) == LISTED_MAX


# ── undo undoes ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("taken", [False, True])
def test_a_job_that_was_cancelled_because_it_had_left_waits_again(receiver, one_job, *, taken):
    if taken:
        receiver.granted()
    receiver.plan(a_job("two"))
    receiver.service.cancel("id-one", by="operator ada", as_removed=True)
    assert receiver.job().ended_by == "operator ada: cancelled, because the plan no longer named it"
    reply = receiver.plan(a_job("one"))
    assert (reply.revived, reply.cancelled) == (1, 0)
    assert [sentence(to_builtins(edit)) for edit in reply.edits] == [
        "one is in the plan again: it waits again",
        "two left the plan: no host gets it until it is back",
    ]
    assert receiver.job().status == "pending"
    assert receiver.ask("desktop").job_id == "id-one"


def test_a_job_that_somebody_cancelled_stays_so_and_every_reload_says_it(receiver):
    receiver.plan(a_job("one"), a_job("two"))
    receiver.service.cancel("one", by="operator ada")
    for jobs in (["two"], ["one", "two"], ["one", "two"]):
        reply = receiver.plan(*map(a_job, jobs))
    assert receiver.job().status == "cancelled"
    assert (reply.cancelled, reply.revived) == (1, 0)
    (edit,) = reply.edits
    assert (edit.kind, edit.since) == ("stands", receiver.clock.now())
    assert "it stays cancelled (operator ada: cancelled): requeue it" in edit.holds


def test_what_comes_back_cancelled_is_told_once(receiver):
    receiver.plan(a_job("one"), a_job("two"))
    receiver.service.cancel("one", by="operator ada")
    receiver.plan(a_job("two"))
    (edit,) = receiver.plan(a_job("one"), a_job("two")).edits
    assert (edit.kind, edit.name) == ("revived", "one")


def test_needs_that_were_edited_hold_for_the_next_grant(receiver, one_job):
    """Jobs are searched by classes of equal needs, and an edit moves a job to another class."""
    receiver.plan(a_job("one", denied_hosts=["pi"]))
    assert receiver.ask("pi").claim_id is None
    receiver.plan(a_job("one", min_cores=1))
    assert receiver.granted("pi")


def test_a_job_goes_on_at_a_host_whose_table_is_written_in_another_case():
    for table, asks in (("Desk", "desk"), ("desk", "Desk")):
        (edit,) = host_edits({}, {table: {"priority": 5}}, {asks: ["one"]})
        assert edit.holds == "from its next claim; one continues there"


def test_what_comes_back_failed_is_told(receiver, one_job):
    receiver.fail(receiver.granted(), exit_code=65)
    receiver.plan(a_job("two"))
    edit, left = receiver.plan(a_job("one")).edits
    assert (edit.kind, left.kind) == ("revived", "left")
    assert edit.holds.startswith("it stays failed (trainer: exit code 65")


def test_what_leaves_the_plan_is_named_with_what_becomes_of_it(receiver):
    """A seed that was mistyped makes other jobs: the counts alone do not say of which."""
    receiver.plan(*map(a_job, ["runs", "done", "failed", "waits"]))
    receiver.granted(), receiver.deliver(receiver.granted("mac"), name="done")
    for host in ("desk", "mac"):
        receiver.fail(receiver.granted(host), "failed", exit_code=65)
    anew = a_job("runs", job_id="id-anew", seed=8, mode="oracle", priority=3)
    left = [sentence(to_builtins(edit)) for edit in receiver.plan(anew).edits]
    assert sorted(left) == [
        "done left the plan: its model stays",
        "failed left the plan: it stays failed",
        "runs left the plan: attempt 1 on pi continues; another job is called so now, which differs in mode, seed",
        "waits left the plan: no host gets it until it is back",
    ]
    assert receiver.plan(anew).edits == [], "told once"


def test_a_job_that_left_is_passed_over_before_it_is_back_or_requeued(receiver):
    receiver.plan(a_job("one", priority=99), a_job("two"))
    runs = receiver.granted()
    receiver.plan()
    assert receiver.ask("mac").reason == "every pending job is not in the plan"
    assert receiver.beat(runs).action == "continue"
    receiver.fail(runs, "one", reason="worker shutdown")
    page = receiver.views.jobs()
    assert (page.counts["pending"], page.unplanned["pending"]) == (0, 2)
    assert {(job.passed_over, job.obstacle) for job in page.jobs} == {(True, NOT_IN_PLAN)}
    explained = receiver.views.explain("id-two")
    assert explained.summary == f"it is {NOT_IN_PLAN}"
    assert {each.reason for each in explained.hosts} == {"it fits, and waits only because the job is not in the plan"}
    assert [(group.reason, group.count) for group in receiver.views.waiting()] == [(NOT_IN_PLAN, 2)]
    assert [*receiver.queue.ahead.kinds.waiting(receiver.clock.now())] == []
    receiver.service.hold("id-one")
    assert receiver.ask("mac").reason == "every pending job is held by the operator or not in the plan"
    receiver.service.unhold("id-one")
    assert not receiver.service.requeue("id-two").passed_over
    assert receiver.ask("mac").job_id == "id-two"
    receiver.plan(a_job("one"))
    assert receiver.ask("desk").job_id == "id-one"


def test_what_is_in_the_plan_is_not_cancelled_because_it_had_left(receiver, one_job):
    """It came back between the question and the order."""
    with pytest.raises(Refusal, match="is in the plan; cancel it by its name"):
        receiver.service.cancel("id-one", as_removed=True)
    assert receiver.job().status == "pending"


def test_status_says_what_the_plan_names_and_nobody_trains():
    cancelled = {"status": "cancelled", "ended_by": "operator ada: cancelled", "finished_at": 40.0}
    views = [{**cancelled, "name": "small", "in_manifest": True}, {**cancelled, "name": "left", "in_manifest": False}]
    page, health = whole(JobsReply, jobs=views, counts={"cancelled": 2}, now=100.0), whole(HealthReply)
    data = status_data(page["jobs"], page, health, whole=True)
    assert [each["name"] for each in data["cancelled_in_plan"]] == ["small"]
    said = shown(render_status(data, health))
    assert "1 job of the plan is cancelled: requeue it" in said
    assert "small: operator ada: cancelled, 1 min ago" in said


def shown(renderable):
    console = Console(width=400, file=io.StringIO())
    console.print(renderable)
    return console.file.getvalue()

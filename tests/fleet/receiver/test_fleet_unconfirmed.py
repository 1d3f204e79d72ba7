"""Finished work under a claim that the database did not grant: it is stored and shown, and an operator decides."""

import html
import io
import re
from functools import partial

import pytest
from builders import a_job
from fakes import FakeClock
from receiver_running import TOKEN, Receiver, job_id
from recovery_builders import claim, state_in
from test_fleet_acts import fields_of, words_of
from test_fleet_login import logged_in, look, send

from training.clock import SystemClock
from training.contract import spec_hash
from training.fleet.cli import program
from training.fleet.cli.context import CommandContext
from training.fleet.client.client import Refused, Superseded, Unavailable
from training.fleet.recovery.backup import Backup, Restore
from training.fleet.recovery.doctor import examine
from training.fleet.service.notify.notices import NoticeOutbox, Notices
from training.fleet.service.unconfirmed import CLAIMS_MAX
from training.fleet.wire.constants import ProblemType

PLAN = [a_job("one", priority=9), a_job("two", model="mlp"), a_job("three", priority=1)]


@pytest.fixture
def receiver(tmp_path):
    with Receiver(tmp_path, PLAN) as found:
        for host in ("pi", "desk"):
            client = found.client(host)
            client.fail(claim(client).job_id, error="e", reason="worker_shutdown")
        yield found


def bring(receiver, host, claim_id, name, body=b"finished", **said):
    """Upload and report as a worker does that holds this claim."""
    path = receiver.folder / f"{host}-{claim_id}"
    path.write_bytes(body * 100)
    client, job = receiver.client(host), next(each for each in PLAN if each["name"] == name)
    artifact = client.upload_artifact(job_id(job), path, claim_id=claim_id)
    said = {"spec_hash": spec_hash(job), "database_id": receiver.hub.database_id} | said
    return client.complete(job_id(job), claim_id=claim_id, artifact_id=artifact, **said)


def jobs(receiver, *words):
    out = io.StringIO()
    world = CommandContext(connect=lambda *_: receiver.client(token=TOKEN), out=out, err=out, environ={})
    return program.main(words, context=world), " ".join(out.getvalue().split())


def told(receiver):
    outbox = NoticeOutbox(receiver.queue.db, SystemClock())
    receiver.writer.submit(Notices(receiver.queue.db, SystemClock(), outbox, lambda: True).look).result()
    rows = receiver.queue.db.all("notices", after=0, most=99)
    return [row["sentence"] for row in rows if row["kind"] == "unconfirmed" and row["over_at"] is None]


def test_it_changes_no_job_until_an_operator_accepts_it(receiver):
    answer = bring(receiver, "pi", "invented", "one", report='{"verdict": "so"}', record={"seconds": 3.0})
    assert (answer.status, answer.attempt) == ("unconfirmed", 0)
    assert bring(receiver, "pi", "invented", "one").status == "unconfirmed", "its worker asks again"
    assert bring(receiver, "pi", "other", "two").status == "unconfirmed"
    assert {receiver.status(name) for name in ("one", "two")} == {"pending"}
    (sentence,) = told(receiver)
    assert "pi brought 2 results under claims that this database did not grant: `cis490-jobs accept pi`" in sentence
    receiver.client("pi").claim({}, resting="used")
    assert "pi brought results under claims that were never granted here: one, two" in jobs(receiver, "workers")[1]
    later = FakeClock(now=SystemClock().now() + 3600.0)
    assert "unnamed" not in {each.check for each in examine(state_in(receiver.folder), later).findings}
    assert jobs(receiver, "accept", "desk") == (1, "cis490-jobs: no work of host desk waits to be confirmed")
    assert receiver.service.host_of(receiver.service.host_registry.known["pi"]).untried
    assert jobs(receiver, "accept", "pi") == (0, "accept pi: one, two")
    assert not receiver.service.host_of(receiver.service.host_registry.known["pi"]).untried, "two were verified"
    assert (receiver.status("one"), told(receiver)) == ("completed", [])
    detail = receiver.client().job("one")
    assert [(each["host"], each["end_reason"]) for each in detail["attempts"]][-1] == ("pi", "completed")
    assert detail["result"]["verdict"] == "so"
    receipt = bring(receiver, "pi", "invented", "one")
    assert (receipt.status, receipt.attempt) == ("completed", detail["job"]["attempt"]), "the worker hears of it"
    acts = [(each["act"], each["subject"]) for each in receiver.client().call("audit")["entries"]]
    assert ("accept", "pi") in acts


@pytest.mark.parametrize("by_page", [False, True])
def test_what_is_refused_is_deleted_and_its_worker_told(receiver, by_page):
    bring(receiver, "pi", "invented", "one")
    bring(receiver, "pi", "as-well", "two")
    bundles = list(receiver.store.artifacts())
    if by_page:
        session = logged_in(receiver, TOKEN)
        links = re.findall(r'href="(/act\?what=\w+&(?:amp;)?host=pi)"', look(receiver, "/", Cookie=session)[1])
        address = next(each for each in map(html.unescape, links) if "refuse" in each)
        page = look(receiver, address, Cookie=session)[1]
        assert "Refuse 2 results of pi." in words_of(page)
        bring(receiver, "pi", "unseen", "three")
        status, _, page = send(receiver, "/act", body=fields_of(page), Cookie=session)
        assert (status, "has changed meanwhile" in page, len(bundles)) == (409, True, 2)
        assert "Refuse 3 results of pi." in words_of(page)
        assert "was refused" in send(receiver, "/act?all=true", body=fields_of(page), Cookie=session)[2]
    else:
        assert jobs(receiver, "refuse", "pi") == (0, "refuse pi: one, two")
    assert (len(bundles), list(receiver.store.artifacts())) == (2, []), "equal bytes of two models, too"
    repeated = {"claim_id": "invented", "artifact_id": bundles[0].artifact_id}
    with pytest.raises(Superseded, match="an operator refused this work"):
        receiver.client("pi").complete(job_id(PLAN[0]), **repeated)
    assert receiver.status("one") == "pending"


def test_what_cannot_complete_its_job_waits_on_until_the_job_has_ended(receiver):
    for name, claim_id in (("one", "a"), ("two", "b"), ("three", "c")):
        bring(receiver, "pi", claim_id, name)
    desk = receiver.client("desk")
    granted = claim(desk)
    desk.cancel("one")
    code, said = jobs(receiver, "accept", "pi")
    assert (code, said.count("not completed:"), "job two is claimed" in said) == (1, 1, True)
    assert [receiver.status(name) for name in ("one", "two", "three")] == ["cancelled", "claimed", "completed"]
    desk.complete(granted.job_id, artifact_id=desk.upload_artifact(granted.job_id, receiver.folder / "pi-b"))
    receiver.writer.submit(lambda: receiver.service.forget_useless(0.0)).result()
    assert told(receiver) == []
    assert receiver.store.find(receiver.client().job("two")["job"]["artifact_id"], model="mlp", mode="realistic")
    with pytest.raises(Refused) as caught:
        bring(receiver, "pi", "b", "two")
    assert caught.value.problem_type == ProblemType.RESULT_CONFLICT


def test_one_claim_is_of_one_job_one_host_and_one_bundle(receiver):
    bring(receiver, "pi", "invented", "one")
    for host, name, body in (("pi", "two", b"finished"), ("desk", "one", b"finished"), ("pi", "one", b"other")):
        with pytest.raises(Refused) as caught:
            bring(receiver, host, "invented", name, body)
        assert caught.value.problem_type in (ProblemType.LEASE_SUPERSEDED, ProblemType.RESULT_CONFLICT)
    with pytest.raises(Refused, match="not what job one asks for"):
        bring(receiver, "pi", "invented-2", "one", spec_hash="0" * 64)
    assert len(list(receiver.store.artifacts())) == 1, "no refused bundle stays"


def test_a_host_brings_no_more_than_its_share(receiver):
    receiver.disk.free = 8 * 1024**3
    for number in range(CLAIMS_MAX):
        bring(receiver, "pi", f"c{number}", "one")
    with pytest.raises(Unavailable, match="disk_full"):
        bring(receiver, "pi", "one-more", "one")
    ask = partial(receiver.service.upload_permission, job_id(PLAN[0]), "large", "desk")
    assert receiver.writer.submit(lambda: ask(size=2 * 1024**3)).result().attempt == 0
    error = receiver.writer.submit(lambda: ask(size=2 * 1024**3 + 1)).exception()
    assert error.problem_type is ProblemType.DISK_FULL


def test_after_a_restore_one_yes_takes_what_all_hosts_finished_before(tmp_path):
    folder, state = tmp_path / "backups", state_in(tmp_path / "state")
    state.db.parent.mkdir()
    with Receiver(state.db.parent, PLAN) as receiver:
        for host in ("pi", "desk"):
            receiver.client(host).claim({}, request_id="early")
    Backup(folder).make(state, SystemClock())
    Restore(folder, state, SystemClock()).run(force=True)
    with Receiver(state.db.parent, PLAN) as receiver:
        receiver.client().requeue("one")
        receiver.client().requeue("two")
        bring(receiver, "pi", "granted-since", "one")
        bring(receiver, "desk", "granted-as-well", "two")
        bring(receiver, "desk", "elsewhere", "three", database_id="f" * 32)
        assert "1 of them, it says, from before the restore of 20" in told(receiver)[0]
        assert jobs(receiver, "accept", "pi", "--all") == (0, "accept pi: two, one")
        assert [receiver.status(name) for name in ("one", "two", "three")] == ["completed", "completed", "pending"]
        entries = receiver.client().call("audit")["entries"]
        of_hosts = {each["subject"]: each["after"] for each in entries if each["act"] == "accept"}
        assert of_hosts == {"pi": '{"jobs": ["one"]}', "desk": '{"jobs": ["two"]}'}

"""The receiver over real sockets: every request, every refusal, and bodies that break off, dawdle or lie."""

import asyncio
import hashlib
import json
import re
import socket
import threading
from dataclasses import replace

import msgspec
import pytest
from builders import a_capability, a_job
from fakes import FakeClock
from places import ROOT
from receiver_running import TOKEN, Wire, in_background, job_id, running

from training.clock import SystemClock
from training.fleet.client.client import Cancelled, Grant, Refused, Superseded, Unavailable, file_sha256
from training.fleet.receiver.http.connection import HEADER_BYTES_MAX, GuardedProtocol
from training.fleet.receiver.security.authentication import FailureLimit
from training.fleet.receiver.security.registry import Registry
from training.fleet.scheduling.policy import Scheduling
from training.fleet.wire import attempts, forecasts, incident_messages, messages, views
from training.fleet.wire.constants import ProblemType, Refusal
from training.fleet.wire.identity import Role
from training.fleet.wire.routes import ROUTES, Access

BODY = bytes(range(256)) * 12_000  # three blocks and a bit
SHA = hashlib.sha256(BODY).hexdigest()
JOB = job_id(a_job("gbt-realistic"))


@pytest.fixture
def receiver(tmp_path):
    with running(tmp_path) as receiver:
        yield receiver


@pytest.fixture(scope="module")
def idle(tmp_path_factory):
    """One receiver for all tests that change nothing."""
    with running(tmp_path_factory.mktemp("idle")) as receiver:
        yield receiver


@pytest.fixture
def bundle(tmp_path):
    path = tmp_path / "bundle.tar.zst"
    path.write_bytes(BODY)
    return path


def claimed(client):
    grant = client.claim(a_capability())
    assert grant is not None
    return grant


def put(wire, claim_id, body=BODY, **headers):
    if claim_id is not None:
        headers["X_Claim_Id"] = claim_id
    return wire.request("PUT", f"/v1/model/{JOB}", body, **headers)


# -- the life of a job ------------------------------------------------------------------------------------------


@pytest.fixture
def client(receiver):
    return receiver.client()


@pytest.fixture
def grant(client):
    return claimed(client)


def test_from_claim_to_verified_bundle(receiver, client, grant, bundle, tmp_path):
    assert (grant.name, grant.attempt, grant.lease_s) == ("gbt-realistic", 1, 600.0)
    assert grant.spec["hyper"] == {}
    assert receiver.status("gbt-realistic") == "claimed"
    assert client.heartbeat(grant.job_id, progress={"epoch": 1}, lines=["a", "b"]).log_next == 2
    assert receiver.status("gbt-realistic") == "running"
    assert client.upload_artifact(grant.job_id, bundle) == SHA
    receipt = client.complete(grant.job_id, artifact_id=SHA, record={"seconds": 3})
    assert (receipt.status, receipt.artifact_id, receipt.attempt) == ("completed", SHA, 1)

    (row,) = receiver.index()
    assert (row["artifact_id"], row["job_id"], row["model"], row["size"]) == (SHA, JOB, "gbt", len(BODY))
    stored = tmp_path / "models" / row["path"]
    assert stored.read_bytes() == BODY
    provenance = json.loads((stored.parent / "provenance" / f"{JOB}-1.json").read_text())
    assert provenance["host"] == "pi"
    assert provenance["record"] == {"seconds": 3}
    assert provenance["spec"]["model"] == "gbt"
    assert client.get_model("gbt-realistic", tmp_path / "fetched").artifact_id == SHA
    assert file_sha256(tmp_path / "fetched") == SHA
    assert client.log("gbt-realistic")["lines"] == ["a", "b"]
    client.requeue("gbt-realistic")
    with pytest.raises(Refused, match="no artifact yet; attempts with one: 1"):
        client.get_model("gbt-realistic", tmp_path / "again")
    with pytest.raises(Refused, match="attempt 2 of job gbt-realistic left none"):
        client.get_model("gbt-realistic", tmp_path / "again", attempt=2)
    assert client.get_model("gbt-realistic", tmp_path / "old", attempt=1).artifact_id == SHA
    receiver.judged = False
    stored.unlink()
    with pytest.raises(Refused, match="missing from the store; requeue the job"):
        client.get_model("gbt-realistic", tmp_path / "again", attempt=1)


def test_the_old_form_names_its_host_alone(receiver, bundle):
    claimed(receiver.client("pi"))
    old, stranger = receiver.client("pi"), receiver.client("desktop")
    old.heartbeat(JOB)
    for call in (
        lambda: stranger.heartbeat(JOB),
        lambda: stranger.upload_artifact(JOB, bundle),
        lambda: stranger.fail(JOB, error="mine"),
    ):
        with pytest.raises(Superseded):
            call()
    assert old.complete(JOB, artifact_id=old.upload_artifact(JOB, bundle)).status == "completed"


def test_a_failure_shows_its_error(client, grant):
    assert client.fail(grant.job_id, error="no column `label`", exit_code=65).status == "failed"
    (job,) = client.all_jobs()
    assert "no column `label`" in job["error"]


def test_repeated_answers_are_the_same(receiver, client, bundle):
    how = {"request_id": "r1", "instance_id": "i", "session_id": "s"}
    grant, again = client.ask(a_capability(), **how), client.ask(a_capability(), **how)
    assert (again.claim_id, again.repeated) == (grant.claim_id, True)
    claim = grant.claim_id
    for _ in range(2):
        assert client.upload_artifact(JOB, bundle, claim_id=claim) == SHA
        assert client.complete(JOB, artifact_id=SHA, claim_id=claim).artifact_id == SHA
    assert len(receiver.index()) == 1
    with pytest.raises(Refused) as caught:
        client.complete(JOB, artifact_id="f" * 64, claim_id=claim)
    assert caught.value.problem_type == "result_conflict"


def test_equal_bundles_of_two_attempts_are_stored_once(tmp_path, bundle):
    with running(tmp_path, "one", "two") as receiver:
        client = receiver.client()
        for _ in range(2):
            grant = claimed(client)
            client.upload_artifact(grant.job_id, bundle)
            client.complete(grant.job_id, artifact_id=SHA)
        (row,) = receiver.index()
        folder = (tmp_path / "models" / row["path"]).parent / "provenance"
        assert len(list(folder.iterdir())) == 2


def test_many_at_once_get_different_jobs(tmp_path):
    names = [f"job-{n}" for n in range(24)]
    with running(tmp_path, *names) as receiver:
        got = []

        def work(host):
            client = receiver.client(host)
            while grant := client.claim(a_capability()):
                got.append(grant.name)

        threads = [threading.Thread(target=work, args=(f"host-{n}",)) for n in range(12)]  # two jobs each
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(got) == sorted(names)


# -- what completes a job ---------------------------------------------------------------------------------------


def test_only_what_is_stored_and_sound_completes(receiver, client, bundle, tmp_path):
    claimed(client)
    with pytest.raises(Refused) as caught:
        client.complete(JOB, artifact_id=SHA)
    assert caught.value.problem_type == "no_artifact"
    client.upload_artifact(JOB, bundle)
    with pytest.raises(Refused) as caught:
        client.complete(JOB, artifact_id=SHA, spec_hash="0" * 64)
    assert caught.value.problem_type == "spec_mismatch"

    (stored,) = (tmp_path / "models" / "gbt_realistic").glob("*/bundle.tar.zst")
    assert not (stored.parent / "provenance").exists()
    stored.write_bytes(b"rotten" + BODY[6:])
    with pytest.raises(Refused) as caught:
        client.complete(JOB, artifact_id=SHA)
    assert caught.value.problem_type == "no_artifact"
    assert receiver.status("gbt-realistic") == "running"
    assert client.upload_artifact(JOB, bundle) == SHA  # puts the rotten bytes aside
    assert stored.read_bytes() == BODY
    assert client.complete(JOB, artifact_id=SHA).status == "completed"


# -- uploads ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("why", ["cancelled", "requeued and taken by another", "revoked"])
def test_what_nobody_may_finish_uploading_gives_its_room_back(receiver, client, tmp_path, why):
    def revoked_before_the_start():
        name = {"role": Role.HOST, "name": "pi"}
        times = {"issued_at": 0.0, "expires_at": 10.0**12}
        receiver.queue.db.run("add_certificate", fingerprint="f" * 64, **name, **times)
        receiver.queue.db.run("revoke_certificates", **name, now=1.0)

    grant = claimed(client)
    half = BODY[: len(BODY) // 2]
    with Wire(receiver) as wire:
        put(wire, grant.claim_id, half, X_Content_SHA256=SHA, Content_Length=len(BODY))
        wire.socket.shutdown(socket.SHUT_WR)
        wire.problem()
    wait_for_offset(receiver, grant, len(half))
    tick(receiver)
    incoming = tmp_path / "models" / "incoming"
    assert len(list(incoming.iterdir())) == 1, "a live attempt keeps what it has brought"
    if why == "cancelled":
        client.cancel(JOB)
    elif why == "revoked":
        client.fail(JOB, reason="upload_failed", error="no room")
        tick(receiver)
        receiver.writer.submit(revoked_before_the_start).result()
        receiver.hub.authenticator.registry = receiver.writer.submit(
            lambda: Registry(receiver.queue.db, SystemClock())
        ).result()
    else:
        client.requeue(JOB)
        claimed(receiver.client("other"))
    tick(receiver)
    assert list(incoming.iterdir()) == []


def tick(receiver):
    """Do what the receiver does every few seconds."""
    asyncio.run_coroutine_threadsafe(receiver.hub.tick(), receiver.server._loop).result(30)


def test_an_upload_that_was_cut_goes_on(receiver, client, grant, bundle, tmp_path):
    half = BODY[: len(BODY) // 2]
    with Wire(receiver) as wire:
        put(wire, grant.claim_id, half, X_Content_SHA256=SHA, Content_Length=len(BODY))
        wire.socket.shutdown(socket.SHUT_WR)
        assert wire.problem() == (400, "bad_request")
    seen = []
    offset = wait_for_offset(receiver, grant, len(half))
    assert client.upload_artifact(JOB, bundle, progress=lambda done, _: seen.append(done)) == SHA
    assert (offset, min(seen) > offset) == (len(half), True)
    assert list((tmp_path / "models" / "incoming").iterdir()) == []


def wait_for_offset(receiver, grant, wanted):
    """Ask HEAD until the broken connection has been noticed and its last bytes are written."""
    for _ in range(2000):
        with Wire(receiver) as wire:
            wire.request("HEAD", f"/v1/model/{JOB}", X_Claim_Id=grant.claim_id, X_Content_SHA256=SHA)
            offset = int(wire.answer()[1]["upload-offset"])
        if offset >= wanted:
            return offset
    raise AssertionError(f"only {offset} of {wanted} bytes were kept")


def test_a_stale_claim_is_refused_before_the_body(receiver, client, bundle):
    first = claimed(client)
    client.requeue("gbt-realistic")
    with pytest.raises(Superseded):
        client.upload_artifact(JOB, bundle, claim_id=first.claim_id)
    with Wire(receiver) as wire:  # the answer comes although the body never does
        put(wire, first.claim_id, b"", Content_Length=len(BODY))
        assert wire.problem() == (409, "lease_superseded")
    claimed(client)
    client.cancel("gbt-realistic")
    with pytest.raises(Cancelled):
        client.upload_artifact(JOB, bundle)


def test_a_claim_that_dies_during_the_upload_stores_nothing(receiver, client, grant, tmp_path):
    with Wire(receiver) as wire:
        put(wire, grant.claim_id, BODY[:-1], X_Content_SHA256=SHA, Content_Length=len(BODY))
        # The first block is on disk, so the claim was found alive; now it dies.
        wait_for_offset(receiver, grant, 1024 * 1024)
        client.requeue("gbt-realistic")
        wire.send(BODY[-1:])
        assert wire.problem() == (409, "lease_superseded")
    assert list((tmp_path / "models").glob("gbt_realistic/*/bundle.tar.zst")) == []
    assert list((tmp_path / "models" / "incoming").iterdir()) == []


def test_wrong_bytes_are_refused(receiver):
    grant = claimed(receiver.client())
    with Wire(receiver) as wire:
        put(wire, grant.claim_id, BODY[::-1], X_Content_SHA256=SHA)
        assert wire.problem() == (422, "wrong_digest")
    assert wait_for_offset(receiver, grant, 0) == 0


def test_an_upload_without_a_digest_is_named_by_its_bytes(receiver):
    grant = claimed(receiver.client())
    with Wire(receiver) as wire:
        put(wire, grant.claim_id)
        status, _, body = wire.answer()
    assert status == 200
    assert json.loads(body) == {"artifact_id": SHA, "job_id": JOB, "size": len(BODY), "status": "stored"}


def test_an_upload_in_chunks(receiver):
    grant = claimed(receiver.client())
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    with Wire(receiver) as wire:
        headers = {"Transfer_Encoding": "chunked", "Content_Length": None, "X_Content_SHA256": SHA}
        put(wire, grant.claim_id, chunks, **headers)
        assert wire.answer()[0] == 200


def test_an_offset_beyond_what_is_stored(receiver):
    grant = claimed(receiver.client())
    with Wire(receiver) as wire:
        put(wire, grant.claim_id, b"tail", Upload_Offset=99, X_Content_SHA256=SHA)
        status, headers, body = wire.answer()
    assert (status, json.loads(body)["type"]) == (409, "offset_mismatch")
    assert headers["upload-offset"] == "0"


@pytest.mark.parametrize(
    ("headers", "refusal"),
    [
        ({"Upload_Offset": "-1"}, (400, "bad_request")),
        ({"Upload_Offset": "1e3"}, (400, "bad_request")),
        ({"X_Content_SHA256": "../../etc"}, (400, "bad_request")),
        ({"X_Claim_Id": "../../etc/passwd"}, (409, "lease_superseded")),
        ({"X_Claim_Id": ""}, (409, "lease_superseded")),
    ],
)
def test_headers_that_lie(receiver, headers, refusal):
    grant = claimed(receiver.client())
    with Wire(receiver) as wire:
        put(wire, None, b"x", **{"X_Claim_Id": grant.claim_id, **headers})
        assert wire.problem() == refusal


def test_too_large_a_bundle(tmp_path):
    with running(tmp_path, artifact_bytes_max=1_500_000) as receiver:
        grant = claimed(receiver.client())
        with Wire(receiver) as wire:
            put(wire, grant.claim_id, b"", Content_Length=1_500_001)
            assert wire.problem() == (413, "too_large")
        with Wire(receiver) as wire:  # nobody said how long it is
            chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
            put(wire, grant.claim_id, chunks, Transfer_Encoding="chunked", Content_Length=None)
            assert wire.problem() == (413, "too_large")


@pytest.mark.parametrize("lacking", ["space", "inodes"])
def test_a_full_disk_refuses_before_the_body_and_ends_no_lease(receiver, client, bundle, lacking, monkeypatch):
    if lacking == "inodes":
        monkeypatch.setattr("training.files.lacks_inodes", lambda _: True)
    grant = claimed(client)
    receiver.disk.free = 1000
    with Wire(receiver) as wire:
        put(wire, grant.claim_id, b"", Content_Length=len(BODY))
        status, headers, _ = wire.answer()
    assert (status, headers["x-problem"], headers["retry-after"]) == (507, "disk_full", "30")
    with pytest.raises(Unavailable) as caught:
        client.upload_artifact(JOB, bundle)
    assert caught.value.retry_after_s == 30
    health = client.health()
    assert health["granting"] is False
    nothing = receiver.client("desktop").ask(a_capability())
    assert not isinstance(nothing, Grant)
    assert "disk" in str(nothing.reason)
    assert all(lacking in str(said) for said in (caught.value, health["detail"], nothing.reason))
    receiver.disk.free = 10**12
    assert client.heartbeat(JOB).action == "continue"
    assert client.upload_artifact(JOB, bundle) == SHA


def test_a_slow_body_is_cut_off_and_kept(tmp_path, bundle):
    with running(tmp_path, upload_window_s=0.02) as receiver:
        client = receiver.client()
        grant = claimed(client)
        with Wire(receiver) as wire:
            put(wire, grant.claim_id, BODY[:5000], X_Content_SHA256=SHA, Content_Length=len(BODY))
            assert wire.problem() == (408, "request_timeout")
        assert wait_for_offset(receiver, grant, 5000) == 5000
        assert client.upload_artifact(JOB, bundle) == SHA


# -- fetching ---------------------------------------------------------------------------------------------------


@pytest.fixture
def with_model(receiver, bundle):
    client = receiver.client()
    claimed(client)
    client.upload_artifact(JOB, bundle)
    client.complete(JOB, artifact_id=SHA)
    return receiver


@pytest.mark.parametrize(
    ("asked", "status", "part"),
    [
        (None, 200, BODY),
        ("bytes=0-9", 206, BODY[:10]),
        ("bytes=3072000-", 200, BODY),  # beyond the end
        ("bytes=3071990-", 206, BODY[-10:]),
        ("bytes=5-4", 200, BODY),
        ("bytes=0-1,3-4,6-7", 200, BODY),  # many small ranges cost more than the whole
        ("bytes=-5", 200, BODY),
        ("lines=1-2", 200, BODY),
    ],
)
def test_ranges(with_model, asked, status, part):
    with Wire(with_model) as wire:
        wire.request("GET", "/v1/model/gbt-realistic", Range=asked)
        got, headers, body = wire.answer()
    assert (got, body) == (status, part)
    assert headers["x-content-sha256"] == SHA
    assert headers["content-disposition"].startswith("attachment;")
    assert headers["x-content-type-options"] == "nosniff"
    if status == 206:
        assert headers["content-range"].endswith(f"/{len(BODY)}")


def test_a_job_without_a_model(idle):
    with Wire(idle) as wire:
        assert wire.request("GET", "/v1/model/gbt-realistic").problem() == (404, "no_artifact")
        assert wire.request("GET", "/v1/model/nobody").problem() == (404, "unknown_job")


# -- waiting ----------------------------------------------------------------------------------------------------


def test_a_waiting_claim_gets_the_job_that_comes(receiver, client):
    claimed(receiver.client("desktop"))
    with in_background(lambda: client.ask(a_capability(), wait_s=30)) as result:
        assert receiver.room.waiting.acquire(timeout=30)
        receiver.add(a_job("mlp-oracle"))
    assert result[0].name == "mlp-oracle"


def test_a_waiting_claim_is_told_why_when_the_time_is_over(receiver):
    claimed(receiver.client("desktop"))
    answer = receiver.client().ask(a_capability(), wait_s=0.05)
    assert not isinstance(answer, Grant)
    assert msgspec.structs.replace(answer, terms=None) == attempts.ClaimReply(reason="no job is pending", slots=2)
    assert receiver.room.waiting.acquire(timeout=0)


def test_the_newest_of_a_hosts_waiting_claims_waits_alone(receiver):
    """Or each would tell another capability on every turn, and make a new schedule, after which both ask again."""
    claimed(receiver.client("desktop"))
    before, after = receiver.client(), receiver.client()
    with in_background(lambda: before.ask(a_capability(), wait_s=30)) as outdated:
        assert receiver.room.waiting.acquire(timeout=30)
        with in_background(lambda: after.ask(a_capability(cpu_cores=3), wait_s=30)) as result:
            assert receiver.room.waiting.acquire(timeout=30)
            receiver.add(a_job("mlp-oracle"))
    assert result[0].name == "mlp-oracle"
    assert outdated[0].job_id is None
    assert outdated[0].reason == "a newer request of host pi waits for work"
    assert outdated[0].retry_after_s == 10.0


def test_a_waiting_claim_does_not_hold_a_stop_up(receiver, client):
    claimed(receiver.client("desktop"))
    with in_background(lambda: client.ask(a_capability(), wait_s=30)) as result:
        assert receiver.room.waiting.acquire(timeout=30)
        receiver.stop()
    assert not isinstance(result[0], Grant)


def test_nobody_who_has_hung_up_is_given_a_job(receiver):
    claimed(receiver.client("desktop"))
    with Wire(receiver) as wire:
        request = {"host_id": "pi", "capability": a_capability(), "wait_s": 30}
        wire.request("POST", "/v1/job/claim", json.dumps(request).encode())
        assert receiver.room.waiting.acquire(timeout=30)
    assert receiver.room.left.acquire(timeout=30)
    receiver.add(a_job("mlp-oracle"))
    assert receiver.status("mlp-oracle") == "pending"


# -- onlookers --------------------------------------------------------------------------------------------------


def test_lists_and_details(tmp_path):
    with running(tmp_path, "one", "two", "three") as receiver:
        client = receiver.client(token=None)
        grant = claimed(client)
        client.heartbeat(grant.job_id, progress={"epoch": 2})
        first = client.jobs(limit=2)
        assert [job["name"] for job in first["jobs"]] == ["one", "two"]
        assert first["counts"]["pending"] == 2
        assert [job["name"] for job in client.all_jobs()] == ["one", "two", "three"]
        assert [job["name"] for job in client.all_jobs(status="running")] == ["one"]
        detail = client.job("one")
        assert [event["transition"] for event in detail["events"]] == ["insert", "claim", "heartbeat"]
        assert detail["job"]["progress"] == {"epoch": 2}
        assert client.job(grant.job_id[:12])["job"]["name"] == "one"
        assert client.explain("two")["hosts"][0]["host"] == "pi"
        assert client.workers()["workers"][0]["jobs"] == ["one"]
        health = client.health()
        assert (health["status"], health["counts"]["running"]) == ("ok", 1)
        with Wire(receiver) as wire:
            assert wire.request("GET", "/v1/jobs/one").answer()[0] == 200
            assert wire.request("GET", "/v1/jobs?status=odd").problem() == (400, "bad_request")
            assert wire.request("GET", "/v1/jobs?limit=many").problem() == (400, "bad_request")


# -- the operator -----------------------------------------------------------------------------------------------

OPERATOR = [f"/v1/job/{JOB}/cancel", f"/v1/job/{JOB}/requeue", "/v1/manifest/reload"]


@pytest.mark.parametrize("path", OPERATOR)
def test_operators_calls_need_the_token(idle, path):
    idle.hub.authenticator.limit = FailureLimit(FakeClock())  # a new minute
    with Wire(idle) as wire:
        assert wire.request("POST", path).problem() == (403, "operator_token")
        for wrong in ("sesam", TOKEN + "x", "öffne", "\xff\xfe"):
            wire.request("POST", path, X_Operator_Token=wrong)
            assert wire.problem() == (403, "operator_token")
    assert idle.status("gbt-realistic") == "pending"


@pytest.mark.parametrize("token", [None, ""])
def test_without_a_configured_token_they_say_how_to_set_one(tmp_path, token):
    with running(tmp_path, operator_token=token) as receiver, Wire(receiver) as wire:
        wire.request("POST", OPERATOR[0], X_Operator_Token="")
        status, _, body = wire.answer()
        assert status == 403
        assert "CIS490_OPERATOR_TOKEN" in json.loads(body)["detail"]


def test_cancel_requeue_reload(client, grant):
    assert client.cancel("gbt-realistic").status == "cancelled"
    assert client.heartbeat(grant.job_id).action == "stop"
    with pytest.raises(Refused) as caught:
        client.cancel("gbt-realistic")
    assert caught.value.problem_type == "wrong_state"
    assert client.requeue(JOB[:10]).status == "pending"
    counts = {"inserted": 0, "updated": 0, "unchanged": 1, "removed": 0}
    answer = client.reload()
    assert {key: answer[key] for key in counts} == counts
    assert answer["edits"] == []


# -- bad input --------------------------------------------------------------------------------------------------

CLAIM, BEAT = "/v1/job/claim", f"/v1/job/{JOB}/heartbeat"


@pytest.mark.parametrize(
    ("method", "path", "body", "refusal"),
    [
        ("POST", CLAIM, b"", (400, "bad_request")),
        ("POST", CLAIM, b"{", (400, "bad_request")),
        ("POST", CLAIM, b"[]", (400, "bad_request")),
        ("POST", CLAIM, b"null", (400, "bad_request")),
        ("POST", CLAIM, b"\xff\xfe\x00", (400, "bad_request")),
        ("POST", CLAIM, b'{"host_id": 7, "capability": {}}', (400, "bad_request")),
        ("POST", CLAIM, b'{"host_id": "a b", "capability": {}}', (400, "bad_request")),
        ("POST", CLAIM, b'{"host_id": "../x", "capability": {}}', (400, "bad_request")),
        ("POST", CLAIM, b'{"host_id": "pi", "capability": []}', (400, "bad_request")),
        ("POST", CLAIM, b'{"host_id": "pi", "capability": ' + b"[" * 30_000, (400, "bad_request")),
        ("POST", CLAIM, b'{"host_id": "\xc3\x28", "capability": {}}', (400, "bad_request")),
        ("POST", CLAIM, b" " * 70_000, (413, "too_large")),
        ("POST", BEAT, b"{}", (409, "lease_superseded")),
        ("POST", BEAT, b'{"seq": "1"}', (400, "bad_request")),
        ("POST", BEAT, b'{"seq": 1.5}', (400, "bad_request")),
        ("POST", BEAT, b'{"seq": 1.0}', (409, "lease_superseded")),  # an integer, as JSON has it
        ("POST", f"/v1/job/{JOB}/complete", b"{}", (400, "bad_request")),
        ("POST", f"/v1/job/{JOB}/fail", b'{"reason": "bored"}', (400, "bad_request")),
        ("POST", "/v1/job/nobody/heartbeat", b"{}", (404, "unknown_job")),
        ("GET", "/v1/job/nobody", b"", (404, "unknown_job")),
        ("GET", "/v1/job/%2e%2e%2f/log", b"", (404, "unknown_job")),
        ("GET", "/nowhere", b"", (404, "not_found")),
        ("GET", "/v1/jobs/", b"", (404, "not_found")),
        ("DELETE", "/v1/jobs", b"", (405, "method_not_allowed")),
        ("GET", CLAIM, b"", (404, "unknown_job")),
        ("PATCH", f"/v1/model/{JOB}", b"", (405, "method_not_allowed")),
    ],
)
def test_bad_requests(idle, method, path, body, refusal):
    with Wire(idle) as wire:
        assert wire.request(method, path, body).problem() == refusal
        # The connection, and the idle behind it, go on.
        assert wire.request("GET", "/v1/health").answer()[0] == 200


def test_a_wrong_type_is_named_by_its_path(idle):
    with Wire(idle) as wire:
        wire.request("POST", CLAIM, b'{"host_id": "pi", "capability": {}, "slot": "one"}')
        _, _, body = wire.answer()
    assert "$.slot" in json.loads(body)["detail"]


def test_unknown_fields_are_ignored(receiver):
    with Wire(receiver) as wire:
        body = {"host_id": "pi", "capability": {"a": [1]}, "from_the_future": {"x": 1}}
        assert wire.request("POST", CLAIM, json.dumps(body).encode()).answer()[0] == 200


def test_a_bug_is_one_sentence_and_a_line_in_the_log(receiver, monkeypatch, caplog):
    monkeypatch.setattr(receiver.service, "claim", lambda _: 1 / 0)
    with Wire(receiver) as wire:
        wire.request("POST", CLAIM, b'{"host_id": "pi", "capability": {}}')
        assert wire.problem() == (500, "internal")
        assert wire.request("GET", "/v1/health").answer()[0] == 200
    assert "ZeroDivisionError" in caplog.text


# -- connections ------------------------------------------------------------------------------------------------


def test_a_slow_json_body_is_cut_off(tmp_path):
    with running(tmp_path, body_s=0.02) as receiver, Wire(receiver) as wire:
        wire.request("POST", CLAIM, b"{", Content_Length=100)
        assert wire.problem() == (408, "request_timeout")


@pytest.mark.parametrize(
    "half", ["GET /v1/health HTTP/1.1\r\nHo", "GET /v1/hea", "G"], ids=["header", "line", "letter"]
)
def test_half_a_header_is_cut_off(tmp_path, half, monkeypatch):
    monkeypatch.setattr(GuardedProtocol, "header_s", 0.02)
    with running(tmp_path) as receiver, Wire(receiver) as wire:
        assert wire.send(half).problem() == (408, "request_timeout")
        with pytest.raises(EOFError):
            wire.answer()


def test_half_a_second_header_is_cut_off(tmp_path, monkeypatch):
    monkeypatch.setattr(GuardedProtocol, "header_s", 0.05)
    with running(tmp_path) as receiver, Wire(receiver) as wire:
        assert wire.request("GET", "/v1/health").answer()[0] == 200
        assert wire.send("GET /v1/hea").problem() == (408, "request_timeout")


def test_a_silent_connection_is_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(GuardedProtocol, "header_s", 0.02)
    with running(tmp_path) as receiver, Wire(receiver) as wire, pytest.raises(EOFError):
        wire.answer()


def test_a_body_that_nobody_wants_does_not_go_on_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(GuardedProtocol, "unread_body_s", 0.02)
    with running(tmp_path) as receiver, Wire(receiver) as wire:
        put(wire, "stale", b"some", Content_Length=10**9)
        assert wire.problem() == (409, "lease_superseded")
        with pytest.raises((EOFError, ConnectionResetError)):
            wire.answer()


@pytest.mark.parametrize("what", ["one large", "many small"])
def test_headers_have_a_limit(idle, what):
    lines = "X: " + "y" * HEADER_BYTES_MAX if what == "one large" else "Xy: z\r\n" * HEADER_BYTES_MAX
    with Wire(idle) as wire:
        assert wire.send(f"GET / HTTP/1.1\r\n{lines}\r\n\r\n").problem() == (413, "too_large")


def test_nonsense_is_refused(idle):
    with Wire(idle) as wire:
        assert wire.send("\0\1\2 what?\r\n\r\n").problem() == (400, "bad_request")
    assert idle.client().health()["status"] == "ok"


@pytest.mark.parametrize(
    "half", ["POST /v1/job/claim HTTP/1.1\r\nHost", "POST /v1/job/claim HTTP/1.1\r\nContent-Length: 9\r\n\r\n{"]
)
def test_half_a_request_that_ends_is_told_so(idle, half):
    with Wire(idle) as wire:
        wire.send(half).socket.shutdown(socket.SHUT_WR)
        assert wire.problem() == (400, "bad_request")


def test_slow_clients_beside_a_good_one(receiver, client):
    wires = [Wire(receiver).send("POST /v1/job/claim HTTP/1.1\r\nX-Half:") for _ in range(200)]
    assert client.heartbeat(claimed(client).job_id).action == "continue"
    for wire in wires:
        wire.socket.close()


# -- the page ---------------------------------------------------------------------------------------------------


def test_no_route_that_changes_anything_serves_anyone():
    assert {row.name for row in ROUTES if row.access is Access.OPERATOR} >= {"cancel", "requeue"}
    assert {r.name for r in ROUTES if r.access is Access.ANYONE and r.method not in ("GET", "HEAD")} == set()


def test_every_refusal_is_a_problem_document():
    from training.fleet.receiver.http.problems import body_of, headers_of

    for problem_type in ProblemType:
        refusal = Refusal(problem_type, "one sentence", more=1)
        found = msgspec.json.decode(body_of(refusal))
        assert (found["type"], found["status"], found["more"]) == (problem_type, problem_type.status, 1)
        assert headers_of(refusal)["X-Problem"] == problem_type


PAGE = ROOT / "docs" / "protocol.md"
MODULES = (attempts, views, messages, forecasts, incident_messages)
BLOCKS = re.findall(r"```jsonc\n// (\w+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_page_shows_every_message_of_a_worker():
    messages = {name for name in vars(attempts) if name.endswith(("Request", "Reply"))}
    assert messages <= {name for name, _ in BLOCKS}


@pytest.mark.parametrize(("name", "text"), BLOCKS, ids=[name for name, _ in BLOCKS])
def test_the_pages_examples_are_whole(name, text):
    """Each decodes into its struct, and names every member of it and of those within."""
    plain = re.sub(r"\s//[^\n]*", "", text)
    module = next(each for each in MODULES if hasattr(each, name))
    message = msgspec.json.decode(plain, type=getattr(module, name))
    assert json.loads(msgspec.json.encode(message)) == json.loads(plain)


@pytest.mark.parametrize("wait_s", [0, 30])
def test_a_claim_gets_its_job_when_the_schedule_is_made(receiver, wait_s):
    """It is made beside the calls; nothing else happens that would wake the claim."""
    receiver.read = replace(receiver.read, scheduling=Scheduling.SOONEST)
    receiver.add(a_job("mlp-oracle"), a_job("gbt-oracle", model="gbt"))
    claimed(receiver.client("desktop"))
    assert receiver.client().ask(a_capability(), wait_s=wait_s).name is not None

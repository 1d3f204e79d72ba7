"""The client: its retry table, its memory, uploads that go on, and the transport against a server that misbehaves."""

import errno
import http.client
import io
import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from unittest.mock import Mock

import pytest
from builders import SHOWN
from hypothesis import given
from hypothesis import strategies as st
from wire_builders import filled

from training.fleet.capability.describe import DESCRIBE_TIMEOUT_S
from training.fleet.client import answers as client_answers
from training.fleet.client.client import (
    Cancelled,
    Damaged,
    FleetClient,
    Refused,
    Stranger,
    Superseded,
    Unavailable,
    Unreachable,
    file_sha256,
)
from training.fleet.client.transport import HttpTransport, Response, TransportError, _Deadline
from training.fleet.wire import attempts, constants, messages, views
from training.fleet.worker.outbox import fitting
from training.fleet.worker.state.exit_code import error_text, parse_progress, parse_timing

URL = "http://receiver:8445"
WELL = filled(views.HealthReply, status="ok")
GRANT = {
    "job_id": "j" * 64,
    "name": "gbt oracle",
    "spec": {"model": "gbt"},
    "claim_id": "c" * 32,
    "attempt": 1,
    "lease_s": 600.0,
    "a_newer_field": 1,
}


def ok(body, **headers):
    return Response(200, {**SHOWN, **headers}, json.dumps(body).encode())


def problem(problem_type, **headers):
    body = {"type": problem_type.value, "title": "T", "status": problem_type.status, "detail": f"about {problem_type}"}
    return Response(problem_type.status, {**SHOWN, **headers}, json.dumps(body).encode())


class Script:
    """A transport that answers from a list: a response, or an exception to raise. Records what was sent."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.sent = []

    def request(self, method, path, headers, body, timeout_s, sink=None):
        if hasattr(body, "read"):
            body = b"".join(iter(lambda: body.read(700), b""))
        self.sent.append((method, path, dict(headers), body))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if sink is not None and answer.status == 200:
            sink(answer.body)
        return answer

    def body(self, which):
        return json.loads(self.sent[which][3])


def client_of(script, **how):
    slept = []
    return FleetClient(URL, "pi", transport=script, chance=lambda: 0.5, sleep=slept.append, **how), slept


def test_the_longest_message_of_a_worker_is_not_too_long():
    """Also where every character takes four bytes, and numbers are written with a blank between them."""
    wide = "\N{GRINNING FACE}"
    lines = fitting(("x" * constants.LOG_LINE_CHARS_MAX,) * constants.LOG_LINES_MAX)
    said = parse_progress(json.dumps({"event": "e", "note": wide * 2000}, ensure_ascii=False))
    noted = parse_timing(b"[" + b",".join([b"1"] * 5460) + b"]")
    assert said
    assert noted
    for odd in (b"[" + b",".join([b"1"] * 8000) + b"]", b"{", b"\xff", b""):
        assert parse_timing(odd) == {}
    log = attempts.LogLines(lines=list(lines))
    more = {"claim_id": "c" * 128, "seq": 2**53, "progress": said, "log": log}
    script = Script(ok({}), ok({}), ok({}))
    client, _ = client_of(script)
    for send in (
        lambda: client.heartbeat("j" * 64, **more),
        lambda: client.complete("j" * 64, artifact_id="a" * 64, record=noted, **more),
        lambda: client.fail("j" * 64, error=error_text(wide * 5000, []), **more),
    ):
        with pytest.raises(Unreachable, match="missing required field"):
            send()
    sizes = [len(body) for *_, body in script.sent]
    assert max(sizes) <= constants.JSON_BODY_MAX, sizes


# -- the retry table --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "problem_type", "meaning"),
    [
        (408, "request_timeout", Unavailable),
        (425, "", Unavailable),
        (429, "", Unavailable),
        (500, "internal", Unavailable),
        (502, "", Unavailable),
        (503, "shutting_down", Unavailable),
        (507, "disk_full", Unavailable),
        (409, "lease_superseded", Superseded),
        (409, "", Superseded),
        (410, "job_cancelled", Cancelled),
        (410, "", Cancelled),
        (409, "host_id_conflict", Refused),
        (409, "result_conflict", Refused),
        (409, "protocol_mismatch", Refused),
        (409, "slot_busy", Refused),
        (400, "bad_request", Refused),
        (403, "operator_token", Refused),
        (404, "unknown_job", Refused),
        (413, "too_large", Refused),
        (422, "wrong_digest", Refused),
        (302, "", Refused),
    ],
)
def test_retry_table(status, problem_type, meaning):
    assert client_answers.verdict(status, problem_type) is meaning


@pytest.mark.parametrize("problem_type", constants.ProblemType)
def test_every_slug_of_the_wire_has_its_error(problem_type):
    client, _ = client_of(Script(problem(problem_type)), tries=1)
    with pytest.raises(client_answers.Answered) as caught:
        client.health()
    assert (caught.value.problem_type, caught.value.status) == (problem_type.value, problem_type.status)
    assert caught.value.detail == f"about {problem_type}"


@given(failures=st.integers(1, 10_000), chance=st.floats(0, 1, exclude_max=True))
def test_backoff_stays_within_its_bounds(failures, chance):
    assert 0 <= client_answers.backoff_s(failures, chance) < 60
    assert client_answers.backoff_s(failures, chance, least_s=7) >= 7
    assert client_answers.backoff_s(failures, 0.0) == 0


def test_backoff_doubles_up_to_its_cap():
    assert [client_answers.backoff_s(n, 1.0) for n in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]


def test_it_tries_again_while_that_can_help():
    script = Script(TransportError("cut"), problem(constants.ProblemType.INTERNAL), ok(WELL))
    client, slept = client_of(script)
    assert client.health()["status"] == "ok"
    assert slept == [0.5, 1.0]


def test_retry_after_is_honoured():
    later = problem(constants.ProblemType.UNAVAILABLE, **{"retry-after": "30"})
    client, slept = client_of(Script(later, ok(WELL)))
    client.health()
    assert slept == [30.5]


def test_a_person_is_told_of_a_full_disk_at_once_and_a_worker_waits_for_room():
    full = problem(constants.ProblemType.DISK_FULL, **{"retry-after": "30"})
    client, slept = client_of(Script(full, full, ok(WELL)))
    with pytest.raises(Unavailable):
        client.health()
    assert not slept
    client._caller.tries = None
    client.health()
    assert slept == [30.5]


def test_it_gives_up_after_its_tries():
    client, slept = client_of(Script(*[TransportError("connection refused")] * 2), tries=2)
    with pytest.raises(Unreachable, match=r"cannot reach the receiver at .*: connection refused"):
        client.health()
    assert len(slept) == 1


def test_for_ever_means_for_ever():
    client, slept = client_of(Script(*[TransportError("no answer in time")] * 50, ok(WELL)), tries=None)
    client.health()
    assert len(slept) == 50


@pytest.mark.parametrize(
    ("problem_type", "kind"),
    [
        (constants.ProblemType.LEASE_SUPERSEDED, Superseded),
        (constants.ProblemType.JOB_CANCELLED, Cancelled),
        (constants.ProblemType.UNKNOWN_JOB, Refused),
    ],
)
def test_a_refusal_is_final(problem_type, kind):
    client, slept = client_of(Script(problem(problem_type)))
    with pytest.raises(kind):
        client.heartbeat("job")
    assert slept == []


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b"\xff", b"[" * 100_000, b'{"action": 1'])
def test_what_is_not_json_counts_as_nobody_there(body):
    client, _ = client_of(Script(Response(200, SHOWN, body)), tries=1)
    with pytest.raises(Unreachable):
        client.heartbeat("job")


@pytest.mark.parametrize("body", [b"", b"<html>busy</html>", b"[1, 2]", b"\xff\xfe"])
def test_a_proxys_error_page_is_understood(body):
    client, _ = client_of(Script(Response(502, {}, body)), tries=1)
    with pytest.raises(Stranger, match=r"502 from .* does not reach the receiver behind it"):
        client.health()


# -- the simple form --------------------------------------------------------------------------------------------


def test_claims_heartbeats_and_lines_are_remembered():
    beat = {"action": "continue", "lease_s": 600.0, "log_next": 2}
    receipt = {"job_id": GRANT["job_id"], "status": "completed", "artifact_id": "a", "attempt": 1}
    script = Script(ok(GRANT), ok(beat), ok(beat), ok(receipt))
    client, _ = client_of(script)
    grant = client.claim({"cpu_cores": 4})
    assert (grant.job_id, grant["name"]) == (GRANT["job_id"], "gbt oracle")
    client.heartbeat(grant.job_id, lines=["one", "two"])
    client.heartbeat(grant.job_id, lines=["three"], progress={"epoch": 1})
    client.complete(grant.job_id, artifact_id="a")
    claim, first, second, complete = (script.body(n) for n in range(4))
    assert claim["host_id"] == "pi"
    assert claim["capability"] == {"cpu_cores": 4}
    assert first["claim_id"] == second["claim_id"] == complete["claim_id"] == "c" * 32
    assert (first["seq"], second["seq"]) == (1, 2)
    assert first["log"] == {"first": 0, "total": None, "lines": ["one", "two"]}
    assert second["log"] == {"first": 2, "total": None, "lines": ["three"]}
    assert script.sent[1][1] == f"/v1/job/{'j' * 64}/heartbeat"


def test_the_bodies_sent_are_those_of_the_wire():
    import msgspec

    beat = {"action": "continue", "lease_s": 1.0}
    moved = {"job_id": "j", "status": "pending"}
    receipt = {"job_id": "j", "status": "completed", "artifact_id": "a", "attempt": 1}
    script = Script(ok(GRANT), ok(beat), ok(moved), ok(receipt))
    client, _ = client_of(script)
    client.claim({}, wait_s=1.5, request_id="r", instance_id="i", session_id="s", slot=2)
    log = attempts.LogLines(first=3, lines=["x"])
    client.heartbeat("j", seq=4, progress={"a": 1}, log=log)
    client.fail("j", error="e", exit_code=70, record={"s": 1}, log=log)
    client.complete("j", artifact_id="a", spec_hash="h", record={}, log=log)
    kinds = [attempts.ClaimRequest, attempts.HeartbeatRequest, attempts.FailRequest, attempts.CompleteRequest]
    for kind, (_, _, _, body) in zip(kinds, script.sent, strict=True):
        message = msgspec.json.decode(body, type=kind)
        assert set(json.loads(body)) <= {field.name for field in msgspec.structs.fields(kind)}
        assert message.host_id == "pi"


def test_a_repeated_claim_carries_the_same_request():
    script = Script(TransportError("cut"), ok(GRANT))
    client, _ = client_of(script)
    client.claim({})
    assert script.body(0)["request_id"] == script.body(1)["request_id"] != ""


def test_no_work_says_why():
    nothing = {"job_id": None, "reason": "no job is pending", "retry_after_s": 12.5}
    client, _ = client_of(Script(ok(nothing), ok(nothing)))
    assert client.ask({}) == attempts.ClaimReply(reason="no job is pending", retry_after_s=12.5)
    assert client.claim({}) is None


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"claim_id": None}, r"Expected `str`, got `null` - at `\$\.claim_id`"),
        ({"spec": None}, r"Expected `object`, got `null` - at `\$\.spec`"),
        ({"attempt": "1"}, r"Expected `int \| null`, got `str` - at `\$\.attempt`"),
        ({"job_id": "../../etc"}, r"Expected `str` matching regex '.*' - at `\$\.job_id`"),
        ({"claim_id": "c\n"}, r"Expected `str` matching regex '.*' - at `\$\.claim_id`"),
        ({"lease_s": -1.0}, r"Expected `float` >= 0\.0 - at `\$\.lease_s`"),
        ({"state": {"state_id": "../../etc"}}, r"Expected `str` matching regex '.*' - at `\$\.state\.state_id`"),
        ({"booked": {"cores": 0}}, r"Expected `int` >= 1 - at `\$\.booked\.cores`"),
        ({"slots": 1.5}, r"Expected `int \| null`, got `float` - at `\$\.slots`"),
    ],
)
def test_a_malformed_answer_is_one_sentence_and_counts_as_nobody_there(wrong, words):
    client, _ = client_of(Script(ok(GRANT | wrong)), tries=1)
    with pytest.raises(Unreachable, match=rf"^the receiver's answer has another form .*\({words}\); is it another"):
        client.claim({})


def test_words_of_a_newer_receiver_leave_the_rest_of_its_answer_whole():
    """An older worker ignores an order that it does not know: the receiver gives it no job meanwhile."""
    client, _ = client_of(Script(ok(GRANT), ok({"action": "dance", "lease_s": 60.0, "terms": {"order": "rest"}})))
    client.claim({})
    beat = client.heartbeat(GRANT["job_id"])
    assert (beat.action, beat.lease_s) == (constants.Action.CONTINUE, 60.0)


def test_answers_have_both_forms():
    client, _ = client_of(Script(ok(GRANT)))
    grant = client.claim({})
    assert grant["job_id"] == grant.job_id == GRANT["job_id"]
    assert grant.to_dict() | GRANT == grant.to_dict() | {"a_newer_field": 1}
    with pytest.raises(KeyError, match="a_newer_field"):
        grant["a_newer_field"]


def test_every_call_of_a_program_has_its_route():
    """A call that is misspelled, or given too little or too much, is a bug of ours."""
    client, _ = client_of(Script())
    for wrong in (
        lambda: client.call("jbos"),
        lambda: client.job(),
        lambda: client.speeds("too much"),
        lambda: client.call("invite", title="x"),
        lambda: client.log("j", befor=1),
    ):
        with pytest.raises((KeyError, TypeError, ValueError)):
            wrong()


def test_the_token_goes_with_operators_calls_whatever_its_letters():
    script = Script(ok(filled(attempts.MovedReply, status="cancelled")))
    FleetClient(URL, operator_token=" Schlüssel\n", transport=script).cancel("a name/with a slash")
    _, path, headers, _ = script.sent[0]
    assert path == "/v1/job/a%20name%2Fwith%20a%20slash/cancel"
    assert headers["X-Operator-Token"].encode("latin-1") == "Schlüssel".encode()
    with pytest.raises(ValueError, match="set it again"):
        FleetClient(URL, operator_token="two\nlines", transport=script)


def test_all_jobs_follows_the_pages():
    pages = [filled(views.JobsReply, jobs=[{"name": name}], next_after=n) for name, n in (("a", 7), ("b", None))]
    script = Script(*map(ok, pages))
    client, _ = client_of(script)
    assert [job["name"] for job in client.all_jobs(status="failed")] == ["a", "b"]
    assert "after=7" in script.sent[1][1]
    assert "status=failed" in script.sent[1][1]


def test_workers_follows_the_pages():
    found = (("a", "a b"), ("c", None))
    pages = [filled(views.WorkersReply, workers=[{"hostname": name}], next_after=n) for name, n in found]
    script = Script(*map(ok, pages))
    client, _ = client_of(script)
    answer = client.workers()
    assert [each["hostname"] for each in answer["workers"]] == ["a", "c"]
    assert answer["next_after"] is None
    assert script.sent[1][1] == "/v1/workers?after=a+b"


# -- uploads ----------------------------------------------------------------------------------------------------


@pytest.fixture
def bundle(tmp_path):
    path = tmp_path / "bundle.tar.zst"
    path.write_bytes(bytes(range(250)) * 10)
    return path


def at(offset):
    return Response(200, {**SHOWN, "upload-offset": str(offset)})


STORED = ok({"artifact_id": "stored", "job_id": "j", "size": 2500})


def test_an_upload_goes_on_from_what_is_there(bundle):
    seen = []
    script = Script(at(1000), STORED)
    client, _ = client_of(script)
    got = client.upload_artifact("j", bundle, claim_id="c", progress=lambda done, size: seen.append((done, size)))
    assert got == "stored"
    method, path, headers, body = script.sent[1]
    assert (method, path) == ("PUT", "/v1/model/j")
    assert body == bundle.read_bytes()[1000:]
    assert headers["Upload-Offset"] == "1000"
    assert headers["Content-Length"] == "1500"
    assert headers["X-Claim-Id"] == "c"
    assert headers["X-Host-Id"] == "pi"
    assert headers["X-Content-SHA256"] == file_sha256(bundle)
    assert seen[-1] == (2500, 2500)


def test_an_upload_whose_answer_was_lost_sends_nothing_twice(bundle):
    script = Script(at(0), TransportError("cut"), at(2500), STORED)
    client, _ = client_of(script)
    assert client.upload_artifact("j", bundle) == "stored"
    assert [len(sent[3] or b"") for sent in script.sent] == [0, 2500, 0, 0]


def test_getting_further_renews_the_patience(bundle):
    steps = []
    for offset in range(0, 1000, 100):
        steps += [at(offset), TransportError("cut")]
    client, _ = client_of(Script(*steps, at(1000), STORED), tries=2)
    assert client.upload_artifact("j", bundle) == "stored"
    client, _ = client_of(Script(*[at(5), TransportError("cut")] * 3), tries=2)
    with pytest.raises(Unreachable):
        client.upload_artifact("j", bundle)


def test_an_offset_that_moved_is_asked_for_again(bundle):
    script = Script(at(900), problem(constants.ProblemType.OFFSET_MISMATCH), at(700), STORED)
    client, _ = client_of(script)
    assert client.upload_artifact("j", bundle) == "stored"
    assert script.sent[3][2]["Upload-Offset"] == "700"


def test_bytes_that_arrive_wrong_are_sent_anew_but_not_for_ever(bundle):
    wrong = problem(constants.ProblemType.WRONG_DIGEST)
    client, _ = client_of(Script(at(10), wrong, at(0), STORED))
    assert client.upload_artifact("j", bundle) == "stored"
    client, _ = client_of(Script(*[at(0), wrong] * 3), tries=None)
    with pytest.raises(Refused):
        client.upload_artifact("j", bundle, tries=None)


def test_what_the_receiver_has_beyond_the_file_is_not_of_the_file(bundle):
    script = Script(at(9999), STORED)
    client, _ = client_of(script)
    client.upload_artifact("j", bundle)
    assert script.sent[1][2]["Upload-Offset"] == "0"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Response(409, {**SHOWN, "x-problem": "lease_superseded"}), Superseded),
        (Response(410, {**SHOWN, "x-problem": "job_cancelled"}), Cancelled),
        (Response(410, {**SHOWN, "x-problem": "gone"}), Cancelled),
    ],
)
def test_a_dead_claim_costs_no_byte_and_is_named(bundle, answer, kind):
    script = Script(answer)
    client, _ = client_of(script)
    with pytest.raises(kind) as refused:
        client.upload_artifact("j", bundle)
    assert refused.value.problem_type == ("lease_superseded" if kind is Superseded else "job_cancelled")
    assert [sent[0] for sent in script.sent] == ["HEAD"]


# -- fetching ---------------------------------------------------------------------------------------------------


def test_a_fetched_bundle_appears_only_when_verified(bundle, tmp_path):
    body, target = bundle.read_bytes(), tmp_path / "got"
    head = Response(200, {**SHOWN, "content-length": str(len(body))})
    good = Response(200, {**SHOWN, "x-content-sha256": file_sha256(bundle)}, body)
    bad = Response(200, {**SHOWN, "x-content-sha256": file_sha256(bundle)}, body[:-1])
    client, _ = client_of(Script(head, bad), tries=1)
    with pytest.raises(Damaged, match="damaged"):
        client.get_model("gbt", target)
    assert sorted(tmp_path.iterdir()) == [bundle]
    client, _ = client_of(Script(head, bad, head, good))
    fetched = client.get_model("gbt", target)
    assert target.read_bytes() == body
    assert (fetched.size, fetched.artifact_id) == (len(body), file_sha256(bundle))


# -- the transport ----------------------------------------------------------------------------------------------


@contextmanager
def server(*conversations):
    """A server whose connections are held by these functions, in turn."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(20)
    failures = []

    def run():
        try:
            for conversation in conversations:
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(20)
                    conversation(connection)
        except BaseException as error:  # noqa: BLE001 - told to the test below
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        thread.join(30)
        listener.close()
    assert not failures, failures


def read_request(connection):
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            while len(body) < int(line.split(b":")[1]):
                body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


def answering(*bodies, close=False):
    def talk(connection):
        for body in bodies:
            read_request(connection)
            ending = b"Connection: close\r\n" if close else b""
            head = b"HTTP/1.1 200 OK\r\nX-Name: v\r\n%sContent-Length: %d\r\n\r\n"
            connection.sendall(head % (ending, len(body)) + body)

    return talk


def test_connections_are_kept_alive():
    with server(answering(b"one", b"two")) as url:
        transport = HttpTransport(url)
        answers = [transport.request("GET", "/", {}, None, 10) for _ in range(2)]
        assert [answer.body for answer in answers] == [b"one", b"two"]
        assert answers[0].headers["x-name"] == "v"
        transport.close()


@pytest.mark.parametrize(("method", "body"), [("GET", None), ("POST", b"{}")])
def test_a_connection_that_was_closed_while_idle_is_replaced(monkeypatch, method, body):
    if body:  # it was looked at a moment too early
        monkeypatch.setattr("training.fleet.client.transport._readable", lambda _: False)
    with server(answering(b"one"), answering(b"two", close=True)) as url:
        transport = HttpTransport(url)
        assert transport.request("GET", "/", {}, None, 10).body == b"one"
        # The server has closed its side once it accepts anew; the client must notice by itself.
        assert transport.request(method, "/", {}, body, 10).body == b"two"
        transport.close()


def test_a_body_is_streamed_and_an_answer_too():
    got = []
    requests = []

    def talk(connection):
        requests.append(read_request(connection))
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2000000\r\nConnection: close\r\n\r\n")
        connection.sendall(b"z" * 2_000_000)

    with server(talk) as url:
        transport = HttpTransport(url + "/prefix/")
        headers = {"Content-Length": "300000"}
        body = io.BytesIO(b"y" * 300_000)
        answer = transport.request("PUT", "/v1/x", headers, body, 10, sink=got.append)
    assert requests[0].startswith(b"PUT /prefix/v1/x HTTP/1.1")
    assert requests[0].endswith(b"y" * 300_000)
    assert (answer.body, sum(map(len, got))) == (b"", 2_000_000)


class FullDisk(io.BytesIO):
    def write(self, _):
        raise OSError(errno.ENOSPC, "No space left on device")


class DamagedDisk(io.BytesIO):
    def read(self, _=-1):
        raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize(
    ("body", "sink", "number"), [(None, FullDisk().write, errno.ENOSPC), (DamagedDisk(), None, errno.EIO)]
)
def test_a_file_that_fails_on_its_way_is_not_the_networks_failure(body, sink, number):
    def talk(connection):
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc")

    with server(talk) as url, pytest.raises(OSError) as failed:
        HttpTransport(url).request("PUT", "/", {"Content-Length": "3"}, body, 10, sink)
    assert failed.value.errno == number


def test_a_refusal_in_the_middle_of_the_body_is_heard():
    def talk(connection):
        connection.recv(100_000)
        connection.sendall(b"HTTP/1.1 507 Full\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        while connection.recv(1 << 20):
            pass

    with server(talk) as url:
        headers = {"Content-Length": "3000000"}
        answer = HttpTransport(url).request("PUT", "/", headers, io.BytesIO(b"y" * 3_000_000), 10)
    assert answer.status == 507


@pytest.mark.parametrize(
    "talk",
    [
        lambda connection: read_request(connection) and None,
        lambda connection: (read_request(connection), connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Le")),
        lambda connection: (
            read_request(connection),
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort"),
        ),
        lambda connection: (read_request(connection), connection.sendall(b"\0\1\2 nonsense\r\n\r\n")),
    ],
    ids=["hangs_up", "half_a_header", "half_a_body", "nonsense"],
)
def test_a_broken_answer_is_a_transport_error(talk):
    with server(talk) as url, pytest.raises(TransportError):
        HttpTransport(url).request("GET", "/", {}, None, 10)


def test_a_hangup_alone_is_no_sign_of_tls():
    """A receiver without a free descriptor hangs up as well."""
    hang_up = lambda connection: connection.recv(4096) and None  # noqa: E731
    with server(hang_up, hang_up, answering(b"one", close=True), hang_up) as url:
        transport = HttpTransport(url)
        with pytest.raises(TransportError, match=r"^the connection was cut$"):
            transport.request("GET", "/", {}, None, 10)  # its second connection is the look for TLS
        assert transport.request("GET", "/", {}, None, 10).body == b"one"
        with pytest.raises(TransportError, match=r"^the connection was cut$"):
            transport.request("GET", "/", {}, None, 10)


def test_silence_ends_after_the_time_out():
    done = threading.Event()
    with server(lambda connection: done.wait(20) and None) as url:
        with pytest.raises(TransportError, match="no answer in time"):
            HttpTransport(url).request("GET", "/", {}, None, 0.01)
        done.set()


@pytest.mark.parametrize(
    "said", [b"", b"HTTP/1.1 200 OK\r\nContent-Le", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"]
)
def test_an_answer_that_drips_ends_after_the_time_for_all_of_it(said):
    def talk(connection):
        read_request(connection)
        connection.sendall(said)
        assert connection.recv(1) == b"", "until the other side has had enough"

    with server(talk) as url:
        transport = HttpTransport(url, answer_s=0.05)
        patient = http.client.HTTPConnection(transport._at.host, transport._at.port, timeout=30)
        transport._new = lambda _: patient
        with pytest.raises(TransportError, match="no whole answer within"):
            transport.request("GET", "/", {}, None, 0.05)


def test_a_file_on_its_way_has_all_the_time_it_takes(monkeypatch):
    given = []
    monkeypatch.setattr(
        "training.fleet.client.transport._Deadline", lambda seconds: given.append(seconds) or _Deadline(None)
    )
    with server(answering(b"1", b"2", b"3", b"4")) as url:
        transport = HttpTransport(url, answer_s=45.0)
        transport.request("GET", "/", {}, None, 10)
        transport.request("POST", "/", {}, b"{}", 120)
        transport.request("GET", "/", {}, None, 10, sink=lambda _: None)
        transport.request("PUT", "/", {"Content-Length": "1"}, io.BytesIO(b"x"), 10)
        transport.close()
    assert given == [45.0, 120, None, None]


def test_a_listener_that_dies_in_the_handshake_is_a_transport_error(monkeypatch):
    """Found by `kill -9` of a receiver: the reset came before there was a connection to read from."""

    monkeypatch.setattr(socket, "create_connection", Mock(side_effect=ConnectionResetError))
    with pytest.raises(TransportError):
        HttpTransport("http://127.0.0.1:1").request("GET", "/", {}, None, 5.0)


def test_nobody_there():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = free.getsockname()[1]
    client = FleetClient(f"http://127.0.0.1:{address}", "pi", tries=1)
    with pytest.raises(Unreachable, match="connection refused"):
        client.health()


@pytest.mark.parametrize(
    "url",
    [
        *("receiver:8445", "ftp://receiver", "http://", "http://x:port", "", "http://x?y=1"),
        *("https://[::1", "https://[pi.lan:8445]:1", "https://pi.lan:84450"),
    ],
)
def test_an_address_that_is_none_is_one_sentence(url):
    with pytest.raises(ValueError, match="it looks like"):
        FleetClient(url, "pi")


def test_importing_the_client_needs_the_standard_library_only():
    code = (
        "import sys; import training.fleet.client; "
        "print(sorted(m for m in ('msgspec', 'starlette', 'numpy', 'torch') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True, env=os.environ)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("url", ["http://10.100.0.1:8445", "http://pi.lan:8445", "http://[fe80::1]:1"])
def test_an_operators_token_does_not_travel_unencrypted(url):
    with pytest.raises(ValueError, match="use the receiver's https address"):
        FleetClient(url, operator_token="sesame")
    FleetClient(url).close()


@pytest.mark.parametrize("url", ["https://pi.lan:8445", "http://localhost:1", "http://127.0.0.9:1", "http://[::1]:1"])
def test_an_operators_token_travels_where_nobody_reads_it(url):
    FleetClient(url, operator_token="sesame").close()


def test_a_reload_waits_for_trainers_that_are_asked_for_their_flags():
    """One that hangs is ended after a minute; the receiver says so, and is there all the while."""
    patience = []

    class Slow(Script):
        def request(self, *args, **how):
            patience.append(args[4])
            return super().request(*args, **how)

    client, _ = client_of(Slow(ok(filled(messages.ReloadReply))), timeout_s=15.0)
    client.reload()
    assert patience[0] > 2 * DESCRIBE_TIMEOUT_S

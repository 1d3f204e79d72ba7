"""Answers that are not the receiver's are never believed, and messages name who seems to have answered."""

import json
import threading
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from builders import a_job
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from receiver_running import Receiver
from recovery_builders import claim
from test_fleet_client import GRANT, WELL, Script, client_of, ok, problem
from test_fleet_worker_state import JOB, Worker
from wire_builders import a_grant

from training.fleet.client.client import FleetClient, Refused, Stranger, Unreachable, file_sha256
from training.fleet.client.strangers import stranger
from training.fleet.client.transport import Response
from training.fleet.scheduling.job import EndReason
from training.fleet.wire.attempts import CompleteRequest, LogLines, OutputRequest
from training.fleet.wire.constants import HEADER_DATABASE, ProblemType
from training.fleet.worker.options import parser
from training.fleet.worker.outbox import Outbox
from training.fleet.worker.requests import Asker, Calls
from training.fleet.worker.state import events as t
from training.fleet.worker.state.exit_code import Failure
from training.fleet.worker.state_folder import StateFolder

OURS, OTHER = "a" * 32, "b" * 32
ID = HEADER_DATABASE.lower()
PORTAL = {"content-type": "text/html", "location": "https://login.hotel.example/?for=you"}
KINDS = [200, 302, 400, 401, 403, 404, 409, 410, 413, 429, 502, 503]
STRANGERS = [Response(status, PORTAL, b"<html>hello</html>") for status in KINDS]
# The worst that a stranger may say: what the receiver would.
NAMELESS = [replace(problem(problem_type), headers={}) for problem_type in ProblemType]
WORST = NAMELESS + [
    problem(problem_type, **{ID: OTHER}) for problem_type in (ProblemType.LEASE_SUPERSEDED, ProblemType.UNKNOWN_JOB)
]

CALLS = {
    "heartbeat": lambda client, _: client.about(OURS).heartbeat("j", claim_id="c"),
    "complete": lambda client, _: client.about(OURS).complete("j", artifact_id="a", claim_id="c"),
    "fail": lambda client, _: client.about(OURS).fail("j", error="e", claim_id="c"),
    "output": lambda client, _: client.about(OURS).output("j", claim_id="c"),
    "upload": lambda client, bundle: client.about(OURS).upload_artifact("j", bundle, claim_id="c"),
    "listing": lambda client, _: client.about(OURS).datasets.listing("d" * 64),
    "piece": lambda client, _: client.about(OURS).datasets.piece("d" * 64, "e" * 64),
}


@pytest.fixture
def bundle(tmp_path):
    path = tmp_path / "b.tar.zst"
    path.write_bytes(b"bytes")
    return path


@pytest.mark.half
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("answer", [*STRANGERS, *WORST], ids=lambda one: str(one.status))
def test_nobody_elses_answer_is_an_answer(name, answer, bundle):
    client, _ = client_of(Script(answer), tries=1)
    with pytest.raises(Stranger) as caught:
        CALLS[name](client, bundle)
    assert isinstance(caught.value, Unreachable), "so it is tried again, like a dead network"


@pytest.mark.parametrize("answer", STRANGERS, ids=lambda one: str(one.status))
def test_nor_in_the_middle_of_an_upload(answer, bundle):
    client, _ = client_of(Script(Response(200, {"upload-offset": "0", ID: OURS}), answer), tries=1)
    with pytest.raises(Stranger):
        CALLS["upload"](client, bundle)


@pytest.mark.parametrize(
    "problem_type", [ProblemType.LEASE_SUPERSEDED, ProblemType.JOB_CANCELLED, ProblemType.TOO_LARGE]
)
def test_the_database_that_granted_is_believed(problem_type):
    client, _ = client_of(Script(problem(problem_type, **{ID: OURS})), tries=1)
    with pytest.raises(Refused) as caught:
        CALLS["heartbeat"](client, Path())
    assert caught.value.problem_type == problem_type


def test_a_client_remembers_who_granted(bundle):
    answers = ok({**GRANT, "database_id": OTHER}, **{ID: OURS}), problem(ProblemType.JOB_CANCELLED)
    client, _ = client_of(Script(*answers), tries=1)
    grant = client.claim({})
    assert grant.database_id == OURS, "a body names none"
    with pytest.raises(Stranger):
        client.heartbeat(grant.job_id)


def test_a_client_remembers_who_granted_an_older_claim():
    answers = ok(GRANT, **{ID: OURS}), problem(ProblemType.LEASE_SUPERSEDED, **{ID: OTHER})
    client, _ = client_of(Script(*answers), tries=1, one_database=False)
    grant = client.claim({})
    with pytest.raises(Stranger):
        client.heartbeat(grant.job_id, claim_id="older")


# -- answers without an id, or another one ----------------------------------------------------------------------


def test_one_that_got_an_id_meanwhile_is_believed_too():
    assert stranger(problem(ProblemType.LEASE_SUPERSEDED, **{ID: OTHER}), None) is None


@pytest.mark.parametrize("answer", [*STRANGERS, *NAMELESS], ids=lambda one: str(one.status))
def test_where_no_database_is_known_an_answer_needs_an_id_all_the_same(answer):
    client, _ = client_of(Script(answer), tries=1)
    with pytest.raises(Stranger):
        client.heartbeat("j", claim_id="c")


@pytest.mark.parametrize("shown", ["", "7", "A" * 32, "a" * 31, "a" * 33, "a" * 31 + "\n"])
def test_what_is_no_id_is_none(shown):
    assert stranger(ok({}, **{ID: shown}), None) is not None


def test_the_first_database_to_answer_a_client_is_the_only_one():
    answers = [ok(WELL, **{ID: shown}) for shown in (OURS, OTHER, OURS)]
    client, _ = client_of(Script(*answers), tries=1)
    client.health()
    with pytest.raises(Stranger, match=f"the database {OTHER} answered, and {OURS} a moment ago"):
        client.datasets.datasets()
    client.health()
    client, _ = client_of(Script(*answers), tries=1, one_database=False)
    for _ in answers:
        client.health()


# -- the words --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Response(413, {"server": "nginx/1.24"}), "413 from nginx/1.24: .*client_max_body_size"),
        (Response(413, {"server": "Caddy"}), "413 from Caddy: .*max_size of its request_body"),
        (Response(413), "413 from another program than the receiver: .*raise it there"),
        (Response(302, PORTAL), "redirection to login.hotel.example, as of a captive portal"),
        (Response(302, {"location": "http://[x"}), "redirection, as of a captive portal"),
        (Response(502, {"server": "nginx"}), "502 from nginx: .*start the receiver"),
        (Response(503, {"via": "1.1 proxy"}), "503 from 1.1 proxy: .*start the receiver"),
        (Response(401), "wants a login"),
        (Response(418), "another service on that port"),
        (Response(200, PORTAL), r"a page \(text/html\), so a captive portal, or another service"),
        (Response(200, {}, b"{}"), "another service on that port"),
        (problem(ProblemType.UNKNOWN_JOB, **{ID: OTHER}), f"{OTHER} answered and {OURS} granted this"),
        (problem(ProblemType.UNKNOWN_JOB, **{ID: OTHER}), f"--accept-database {OTHER}"),
    ],
)
def test_the_sentence_says_who_answered_and_what_helps(answer, words):
    client, _ = client_of(Script(answer), tries=1)
    with pytest.raises(Stranger, match=words):
        CALLS["heartbeat"](client, Path())


def test_a_portals_query_is_nobodys_business():
    assert "for=you" not in str(stranger(Response(302, PORTAL), OURS))


text = st.text(max_size=60)
answers = st.builds(
    Response,
    st.integers(100, 599),
    st.dictionaries(st.sampled_from(["server", "via", "location", "content-type"]), text),
    st.one_of(st.binary(max_size=40), st.builds(lambda one: json.dumps(one).encode(), text)),
)


@given(answers)
def test_whatever_comes_without_an_id_is_told_in_one_printable_sentence(answer):
    said = stranger(answer, OURS)
    assert said.isprintable()
    assert len(said) < 400


# -- what a worker does about it ----------------------------------------------------------------------------------


def said(worker):
    return [action.text for action in worker.actions if isinstance(action, t.Say)]


def not_ours(worker, detail):
    worker.take(t.NotAnswered(call=worker.call, detail=detail, stranger=True))
    return said(worker)


def test_finished_work_waits_for_its_database_and_nobody_is_asked_for_other_work():
    worker = Worker()
    granted = structs.replace(JOB, database_id=OURS)
    delivery = t.Delivery(assignment=granted, path="/b", sha256="ab", size=3)
    worker.take(t.Begin(t.Saved(delivery=delivery)))
    (told,) = not_ours(worker, "413 from nginx")
    assert f"gbt is kept for the database {OURS}: 413 from nginx" in told
    for _ in range(20):
        while worker.state.call is None:
            worker.wake()
            assert not worker.wants(t.SendClaim)
            assert not worker.wants(t.Discard)
        assert not_ours(worker, "413 from nginx") == [], "once is enough"
    worker.wake()
    while worker.state.call is None:
        worker.wake()
    (told,) = not_ours(worker, "502 from nginx")
    assert "502" in told, "somebody else is news"
    assert worker.state.saved.delivery == delivery


@pytest.mark.parametrize("kind", ["held", "delivery", "report"])
def test_told_to_accept_another_database_it_brings_everything_there(kind):
    granted = structs.replace(JOB, database_id=OURS)
    failure = Failure(EndReason.TRAINER_FAILED, "it broke")
    saved = {
        "held": t.Saved(held=granted),
        "delivery": t.Saved(delivery=t.Delivery(assignment=granted, path="/b", sha256="ab", size=3)),
        "report": t.Saved(report=t.FailureReport(assignment=granted, failure=failure)),
    }[kind]
    lines = t.Backlog(a_grant("job", "c2", database_id=OURS), 4)
    worker = Worker(accept_database=OTHER)
    worker.take(t.Begin(saved, t.Remains(printed=3), (lines,)))
    assert {one.assignment.database_id for one in worker.state.backlog} == {OTHER}
    if kind != "held":
        assert worker.state.work.assignment.database_id == OTHER
        assert worker.state.saved.assignment == worker.state.work.assignment, "after a crash, too"
    plain = Worker()
    plain.take(t.Begin(saved, t.Remains(printed=3), (lines,)))
    assert {one.assignment.database_id for one in plain.state.backlog} == {OURS}


def test_what_a_worker_was_granted_is_noted_with_its_database(tmp_path):
    granted = structs.replace(JOB, database_id=OURS)
    folder = StateFolder(tmp_path / "state")
    folder.save(t.Saved(held=granted))
    assert folder.load().held == granted
    Outbox(tmp_path / "outbox").append(granted, tmp_path / "log", ["a line"])
    (found,) = Outbox(tmp_path / "outbox").recover()
    assert found.assignment.database_id == OURS
    folder.close()


@pytest.mark.parametrize("flag", ["", "x", "a" * 31, "A" * 32])
def test_what_cannot_be_a_databases_id_is_refused(flag, capsys):
    with pytest.raises(SystemExit):
        parser().parse_args(["--accept-database", flag])
    assert "no database's id" in capsys.readouterr().err


# -- over HTTP, with a receiver behind the stranger -----------------------------------------------------------------


class Impostor(BaseHTTPRequestHandler):
    """Answers everything with one status and a page."""

    protocol_version = "HTTP/1.1"
    status = 200

    def answer(self):
        page = b"" if self.command == "HEAD" else b"<html>hello</html>"
        self.send_response(self.status)
        self.send_header("Content-Type", "text/html")
        self.send_header("Location", "http://login.example/")
        self.send_header("Content-Length", str(len(page)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(page)
        self.close_connection = True

    do_GET = do_HEAD = do_POST = do_PUT = answer  # noqa: N815 - the library's names

    def log_message(self, *_): ...


@contextmanager
def impostor(status):
    handler = type("Handler", (Impostor,), {"status": status})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def calls_to(url, events):
    client = FleetClient(url, "pi", tries=1, timeout_s=20)
    asker = Asker("i", "0000000001-s", dict, dict)
    return Calls(client, client, asker, lambda _claim, first: (first, ("a line",)), events.append)


def test_while_a_stranger_answers_finished_work_waits_and_nothing_is_trained_again(tmp_path, bundle):
    folder = tmp_path / "receiver"
    folder.mkdir()
    with Receiver(folder, [a_job("one")]) as receiver:
        grant = claim(receiver.client("pi"))
        job = a_grant(
            job_id=grant.job_id, claim_id=grant.claim_id, name="one", spec=grant.spec, database_id=grant.database_id
        )
        delivery = t.Delivery(assignment=job, path=str(bundle), sha256=file_sha256(bundle), size=5)
        worker = Worker(heartbeat_s=1e9)
        worker.take(t.Begin(t.Saved(delivery=delivery)))
        for status in KINDS:
            with impostor(status) as url:
                calls = calls_to(url, [])
                for request in (
                    t.SendHeartbeat(call=1, assignment=job),
                    t.Upload(call=2, delivery=delivery),
                    t.SendComplete(call=3, delivery=delivery, message=CompleteRequest(artifact_id="a")),
                    t.SendOutput(call=4, assignment=job, message=OutputRequest(log=LogLines(total=1))),
                ):
                    event = calls.carry_out(request)
                    assert isinstance(event, t.NotAnswered), (status, request, event)
                    assert event.stranger
                calls.client.close()
                worker.take(t.NotAnswered(call=worker.call, detail=event.detail, stranger=True))
                assert not worker.wants(t.Discard)
                while worker.state.call is None:
                    worker.wake()
        calls = calls_to(receiver.url, [])
        for wanted, ended in ((t.Upload, t.Uploaded), (t.SendComplete, t.Completed)):
            request = worker.wanted(wanted)
            event = calls.carry_out(structs.replace(request, call=worker.call))
            assert isinstance(event, ended), event
            worker.take(event)
        calls.client.close()
        row = receiver.client().job("one")
        assert row["job"]["status"] == "completed"
        assert len(row["attempts"]) == 1, "trained once"


@pytest.mark.parametrize(("delivering", "is_stranger", "tells"), [(0, 1, True), (1, 0, True), (1, 1, False)])
def test_a_heartbeat_does_not_say_what_the_delivery_beside_it_says(delivering, is_stranger, tells):
    worker = Worker().uploading() if delivering else Worker().running()
    while not worker.wants(t.SendHeartbeat):
        worker.wake()
    call = worker.wanted(t.SendHeartbeat).call
    worker.take(t.NotAnswered(call=call, detail="413 from nginx", stranger=bool(is_stranger)))
    assert bool(said(worker)) == tells

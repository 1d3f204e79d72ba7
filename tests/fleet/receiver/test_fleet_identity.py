"""Identities: names in certificates, a proxy's word, one-time codes, tokens, and how often one may guess."""

import hashlib

import pytest
from fakes import FakeClock
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from training.fleet.queue.jobs import JobQueue
from training.fleet.receiver.security.access import acting_host, check
from training.fleet.receiver.security.authentication import FAILURES_MAX, Authenticator, FailureLimit
from training.fleet.receiver.security.registry import CODE_LIFE_S, DAY_S, Certified, Registry
from training.fleet.wire.constants import ProblemType, Refusal
from training.fleet.wire.identity import (
    LOCAL,
    Entrance,
    Method,
    Peer,
    Principal,
    Role,
    owner,
    parse_fingerprint,
    peer_of,
    proxied,
    urn,
)
from training.fleet.wire.routes import Access

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)
FINGERPRINT = "ab" * 32


def refused(problem_type, call):
    with pytest.raises(Refusal) as refusal:
        call()
    assert refusal.value.problem_type is problem_type
    return refusal.value.detail


# -- names ------------------------------------------------------------------------------------------------------


@given(st.sampled_from(Role), NAMES)
def test_a_certificates_uri_names_its_owner(role, name):
    assert owner((urn(role, name),)) == (role, name)


@given(st.sampled_from(Role), NAMES, st.text())
def test_a_second_uri_makes_it_nobodys(role, name, other):
    assert owner((urn(role, name), other)) is None
    assert owner((other, urn(role, name))) is None


@given(st.text())
def test_no_other_text_names_anybody(text):
    found = owner((text,))
    assert found is None or urn(*found) == text


def test_a_certificate_without_names_is_nobodys():
    assert owner(()) is None
    assert peer_of(None, None) == Peer(Entrance.TLS)
    assert peer_of({}, None) == Peer(Entrance.TLS)  # not verified: as if there were none
    shown = peer_of({"subjectAltName": (("DNS", "pi"), ("URI", "urn:x"))}, b"der")
    assert shown == Peer(Entrance.TLS, hashlib.sha256(b"der").hexdigest(), ("urn:x",))


@pytest.mark.parametrize(
    "values",
    [
        [],  # the proxy sets no header
        [FINGERPRINT, FINGERPRINT],  # one of them may be the client's own
        ["{http.request.tls.client.fingerprint}"],  # a placeholder that was not replaced
        ["CN=pi"],
        [FINGERPRINT[:-1]],
        [f"{FINGERPRINT}, {FINGERPRINT}"],
    ],
)
def test_what_no_proxy_of_ours_sends_is_refused(values):
    assert proxied(values) is None


def test_what_our_proxy_sends():
    assert proxied([""]) == Peer(Entrance.PROXY)  # no certificate
    assert proxied([hashlib.sha256(b"").hexdigest()]) == Peer(Entrance.PROXY)  # nor here
    assert proxied([FINGERPRINT.upper()]) == Peer(Entrance.PROXY, FINGERPRINT)


@given(st.binary(min_size=32, max_size=32))
def test_fingerprints_are_read_as_they_are_written(digest):
    colons = ":".join(f"{byte:02X}" for byte in digest)
    for text in (digest.hex(), f"sha256:{digest.hex()}", colons):
        assert parse_fingerprint(text) == digest.hex()


@pytest.mark.parametrize("text", ["", "sha256:", "sha1:" + "a" * 40, "g" * 64, FINGERPRINT + "0"])
def test_anything_else_is_no_fingerprint(text):
    with pytest.raises(ValueError, match="sha256:"):
        parse_fingerprint(text)


# -- the table --------------------------------------------------------------------------------------------------

HOST = Principal(Method.CERTIFICATE, host_id="pi")
OPERATOR = Principal(Method.CERTIFICATE, operator="ada")
TOKEN = Principal(Method.TOKEN, operator="ada")


@pytest.mark.parametrize(
    ("access", "admitted"),
    [
        (Access.WORKER, [HOST, LOCAL]),
        (Access.OPERATOR, [OPERATOR, TOKEN]),
        (Access.READER, [HOST, OPERATOR, TOKEN, LOCAL]),
        (Access.ANYONE, [HOST, OPERATOR, TOKEN, LOCAL]),
        (Access.JOINING, [HOST, OPERATOR, TOKEN, LOCAL, None]),
    ],
)
def test_whom_the_table_admits(access, admitted):
    for principal in (HOST, OPERATOR, TOKEN, LOCAL, None):
        if principal in admitted:
            check(access, principal)
        else:
            with pytest.raises(Refusal):
                check(access, principal)


@given(NAMES, st.none() | NAMES)
def test_a_proven_host_acts_for_itself_alone(name, said):
    proven = Principal(Method.CERTIFICATE, host_id=name)
    if said in (None, name):
        assert acting_host(proven, said) == name
    else:
        refused(ProblemType.HOST_MISMATCH, lambda: acting_host(proven, said))
    assert acting_host(LOCAL, said) == said
    assert acting_host(OPERATOR, said) == said


# -- guessing ---------------------------------------------------------------------------------------------------


def test_five_failures_a_minute_and_address():
    clock = FakeClock()
    limit = FailureLimit(clock)
    for _ in range(FAILURES_MAX):
        limit.check("10.0.0.1")
        limit.failed("10.0.0.1")
    refused(ProblemType.TOO_MANY_FAILURES, lambda: limit.check("10.0.0.1"))
    limit.check("10.0.0.2")
    clock.advance(59)
    refused(ProblemType.TOO_MANY_FAILURES, lambda: limit.check("10.0.0.1"))
    clock.advance(2)
    limit.check("10.0.0.1")


def test_the_list_of_failures_stays_short():
    limit = FailureLimit(FakeClock())
    for number in range(20_000):
        limit.failed(str(number))
    assert len(limit._failures) <= 10_000


# -- the registry -----------------------------------------------------------------------------------------------


@pytest.fixture
def queue(tmp_path):
    queue = JobQueue(tmp_path / "jobs.db")
    yield queue
    queue.close()


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def registry(queue, clock):
    return Registry(queue.db, clock)


def entered(registry, clock, name="pi", mark="1"):
    digest = registry.check_code(Role.HOST, name, registry.invite(Role.HOST, name).code, b"csr")
    made = Certified(mark * 64, Role.HOST, name, clock.now(), clock.now() + 30 * DAY_S)
    registry.apply([*registry.admit(made, digest, b"csr"), made])
    return made


@pytest.fixture
def code(registry):
    return registry.invite(Role.HOST, "pi").code


def test_a_code_is_good_once_for_its_name_and_for_15_minutes(registry, code, clock):
    for role, name, guess in ((Role.HOST, "pi", code[:-1]), (Role.HOST, "desktop", code), (Role.OPERATOR, "pi", code)):
        refused(ProblemType.JOIN_REFUSED, lambda r=role, n=name, g=guess: registry.check_code(r, n, g, b""))
    clock.advance(CODE_LIFE_S - 1)
    digest = registry.check_code(Role.HOST, "pi", code, b"csr")
    made = Certified("1" * 64, Role.HOST, "pi", clock.now(), clock.now() + 1)
    registry.apply([*registry.admit(made, digest, b"csr"), made])
    assert registry.check_code(Role.HOST, "pi", code, b"csr") == digest  # its answer was lost
    said = refused(ProblemType.JOIN_REFUSED, lambda: registry.check_code(Role.HOST, "pi", code, b"another"))
    assert "used already" in said
    clock.advance(2)
    said = refused(ProblemType.JOIN_REFUSED, lambda: registry.check_code(Role.HOST, "pi", code, b"csr"))
    assert "too old" in said


def test_a_new_code_voids_the_one_before(registry, clock):
    first, second = (registry.invite(Role.HOST, "pi").code for _ in range(2))
    assert registry.invite(Role.HOST, "other").expires_at == clock.now() + CODE_LIFE_S
    refused(ProblemType.JOIN_REFUSED, lambda: registry.check_code(Role.HOST, "pi", first, b""))
    registry.check_code(Role.HOST, "pi", second, b"")


def test_two_who_use_a_code_at_the_same_moment(registry, code, clock):
    digest = registry.check_code(Role.HOST, "pi", code, b"one")
    registry.check_code(Role.HOST, "pi", code, b"two")
    made = Certified("1" * 64, Role.HOST, "pi", clock.now(), clock.now() + 1)
    registry.admit(made, digest, b"one")
    refused(ProblemType.JOIN_REFUSED, lambda: registry.admit(made, digest, b"two"))


def test_nothing_secret_is_stored(registry, code, queue):
    token, _ = registry.add_token("ada", 1)
    dump = "\n".join(queue._conn.iterdump())
    assert "invitations" in dump
    assert code not in dump
    assert token not in dump


def test_a_revocation_outlives_a_renewal_at_the_same_moment(registry, clock):
    """The order in which they are written and take effect does not matter."""
    entered(registry, clock)
    renewed = Certified("2" * 64, Role.HOST, "pi", clock.now(), clock.now() + 30 * DAY_S)
    registry.admit(renewed, None, b"csr")
    registry.apply(registry.revoke(Role.HOST, "pi"))
    registry.apply([renewed])
    assert registry.is_revoked("1" * 64)
    assert registry.is_revoked("2" * 64)
    late = Certified("3" * 64, Role.HOST, "pi", clock.now(), clock.now() + 30 * DAY_S)
    refused(ProblemType.CERTIFICATE_REVOKED, lambda: registry.admit(late, None, b"csr"))
    refused(ProblemType.UNKNOWN_NAME, lambda: registry.revoke(Role.HOST, "pi"))


def test_a_revocation_voids_used_codes_too(registry, code, clock):
    """A code serves the same request again, whose answer may have been lost: not to whom was put out."""
    digest = registry.check_code(Role.HOST, "pi", code, b"csr")
    registry.admit(Certified("1" * 64, Role.HOST, "pi", clock.now(), clock.now() + DAY_S), digest, b"csr")
    assert registry.check_code(Role.HOST, "pi", code, b"csr") == digest
    registry.revoke(Role.HOST, "pi")
    refused(ProblemType.JOIN_REFUSED, lambda: registry.check_code(Role.HOST, "pi", code, b"csr"))


def test_who_joins_anew_revokes_what_had_the_name_for_good(registry, clock, queue):
    def join(number, name):
        digest = registry.check_code(Role.HOST, name, registry.invite(Role.HOST, name).code, b"csr")
        made = Certified(number * 64, Role.HOST, name, clock.now(), clock.now() + DAY_S)
        registry.apply([*registry.admit(made, digest, b"csr"), made])

    join("1", "pi")
    join("2", "desktop")
    join("3", "pi")
    for each in (registry, Registry(queue.db, clock)):
        assert [each.is_revoked(number * 64) for number in "123"] == [True, False, False]


def test_who_puts_an_operator_out_voids_what_he_may_have_made_for_later(registry, code):
    made = registry.invite(Role.OPERATOR, "ada").code
    registry.check_code(Role.HOST, "pi", code, b"csr")
    registry.revoke(Role.OPERATOR, "ada")
    refused(ProblemType.JOIN_REFUSED, lambda: registry.check_code(Role.HOST, "pi", code, b"csr"))
    refused(ProblemType.JOIN_REFUSED, lambda: registry.check_code(Role.OPERATOR, "ada", made, b"csr"))


def test_what_was_taken_back_is_known_from_the_moment_it_is_written(registry, clock):
    made = entered(registry, clock)
    secret, token = registry.add_token("ada", 30)
    registry.apply([token])
    digests = (made.fingerprint, token.secret_sha256.hex(), "0" * 64)
    assert not any(map(registry.is_revoked_on_record, digests))
    gone = [*registry.revoke(made.role, made.name), *registry.revoke_token("ada")]
    assert list(map(registry.is_revoked_on_record, digests)) == [True, True, False]
    assert not any(map(registry.is_revoked, digests))
    registry.apply(gone)
    assert list(map(registry.is_revoked, digests)) == [True, True, False]
    assert registry.token(secret.encode()) is None


def test_a_revocation_voids_open_codes(registry, code):
    assert registry.revoke(Role.HOST, "pi") == []
    refused(ProblemType.JOIN_REFUSED, lambda: registry.check_code(Role.HOST, "pi", code, b""))


def _name(registry, secret):
    token = registry.token(secret.encode())
    return None if token is None else token.name


def test_what_is_written_is_read_again(registry, queue, clock):
    made = entered(registry, clock)
    token, _ = registry.add_token("ada", 30)
    again = Registry(queue.db, clock)
    assert again.certificate(made.fingerprint) == made
    assert _name(again, token) == "ada"


def test_a_name_may_have_two_tokens_and_the_older_goes_first(registry, clock):
    def add():
        secret, token = registry.add_token("ada", 30)
        registry.apply([token])
        clock.advance(1)
        return secret

    first, second = add(), add()
    assert {_name(registry, first), _name(registry, second)} == {"ada"}
    refused(ProblemType.WRONG_STATE, add)
    gone = registry.revoke_token("ada")
    registry.apply(gone)
    assert len(gone) == 1
    assert _name(registry, first) is None
    assert _name(registry, second) == "ada"
    add()
    clock.advance(30 * DAY_S)
    assert _name(registry, second) is None
    refused(ProblemType.UNKNOWN_NAME, lambda: registry.revoke_token("ada"))


@given(st.binary())
def test_no_bytes_are_a_token_by_chance(secret):
    class Empty:
        def all(self, statement, **_):
            if statement == "certificates":
                return []
            row = {"token_sha256": "00" * 32, "name": "ada"}
            return [row | {"created_at": 0.0, "expires_at": 9e18, "revoked_at": None, "role": None}]

    assert Registry(Empty(), FakeClock()).token(secret) is None


def test_callers_without_a_name_are_limited_by_their_address(queue):
    authenticator = Authenticator(Registry(queue.db, FakeClock()), FakeClock(), secure=True)
    for host in ("192.0.2.1", "192.0.2.2", "192.0.2.1"):
        scope = {"type": "http", "headers": [], "client": (host, 1), "state": {}}
        authenticator.admit(Request(scope), Access.JOINING)
    assert list(authenticator.quota._buckets) == ["192.0.2.2", "192.0.2.1"]

"""Authentication: find the caller of a request, by connection and token, again for every request."""

import hashlib
import hmac
import ipaddress
import math
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from starlette.requests import Request

from training.certain import certain
from training.clock import Clock
from training.fleet.receiver.security import access
from training.fleet.receiver.security.registry import Registry, Token
from training.fleet.receiver.security.sessions import Sessions, cookie, cookie_name
from training.fleet.wire.constants import HEADER_OPERATOR_TOKEN, ProblemType, Refusal
from training.fleet.wire.identity import LOCAL, Entrance, Method, Peer, Principal, Role, enrolling, owner, proxied, urn
from training.fleet.wire.routes import Access

HEADER_FINGERPRINT = "X-Client-Fingerprint"  # set by the proxy; on other connections it means nothing
FAILURES_MAX = 5
FAILURES_S = 60.0
UNGUESSABLE_CHARS = 24  # a right token of this length is accepted even from an address with too many failures
_KEPT_MAX = 10_000  # addresses and callers
RATE_PER_S = 200.0  # hundreds of times a worker's need, a twentieth of a receiver's capacity
BURST = 1000.0
_READING = frozenset({"GET", "HEAD"})


class FailureLimit:
    """The limit on wrong secrets from one IP address per minute."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def check(self, address: str) -> None:
        """Raise Refusal while the address has sent ``FAILURES_MAX`` wrong secrets within a minute. Meanwhile a join's
        code and a token shorter than ``UNGUESSABLE_CHARS`` are refused even if right, so that guessing is useless."""
        times = self._failures.get(address)
        while times and times[0] <= self._clock.monotonic() - FAILURES_S:
            times.popleft()
        if times and len(times) >= FAILURES_MAX:
            raise Refusal(
                ProblemType.TOO_MANY_FAILURES,
                f"{FAILURES_MAX} wrong tokens or codes came from {address} within a minute; wait one",
            )

    def failed(self, address: str) -> None:
        self._failures.setdefault(address, deque()).append(self._clock.monotonic())
        self._failures.move_to_end(address)
        if len(self._failures) > _KEPT_MAX:
            self._failures.popitem(last=False)


@dataclass
class Quota:
    """The limit on requests: a token bucket for each caller. A request takes a token from the bucket, and tokens return
    with time."""

    clock: Clock
    rate_per_s: float = RATE_PER_S
    burst: float = BURST
    _buckets: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)  # tokens, and when

    def take(self, caller: str) -> None:
        """Count a request of ``caller``. Raises Refusal, with the seconds until the next token, if the caller's bucket
        is empty."""
        now = self.clock.monotonic()
        tokens, then = self._buckets.get(caller, (self.burst, now))
        tokens = min(self.burst, tokens + (now - then) * self.rate_per_s)
        enough = tokens >= 1.0
        self._buckets[caller] = (tokens - 1.0 if enough else tokens, now)
        self._buckets.move_to_end(caller)
        if len(self._buckets) > _KEPT_MAX:
            self._buckets.popitem(last=False)
        if not enough:
            raise Refusal(
                ProblemType.SLOW_DOWN,
                f"{caller} sends more than {self.rate_per_s:g} requests a second; wait a little",
                retry_after_s=(1.0 - tokens) / self.rate_per_s,
            )


def _again(command: str = "`cis490-jobs enroll`") -> str:
    """Return the remedy, in words, for a caller whose certificate is not accepted."""
    return f"{command} on the receiver prints the line that gets a new one"


def _revoked(role: Role, name: str) -> Refusal:
    words = f"{name}'s certificate was revoked; {_again(enrolling(role, name))}"
    return Refusal(ProblemType.CERTIFICATE_REVOKED, words)


def _token_in(request: Request) -> str | None:
    """Return the token in the request's X-Operator-Token header, or its bearer token, which programs such as Prometheus
    can send; None without one."""
    own = request.headers.get(HEADER_OPERATOR_TOKEN)
    if own is not None:
        return own
    scheme, _, rest = request.headers.get("Authorization", "").strip().partition(" ")
    return rest if scheme.lower() == "bearer" else None


def _shown(method: Method, token: Token, found: Principal | None) -> Principal:
    """Return the principal of a caller who presented ``token``. ``found`` is the caller as known by certificate, beside
    which a reader's token adds nothing."""
    host, shown = (None, ()) if found is None else (found.host_id, found.shown)
    shown = (*shown, token.secret_sha256.hex())
    if token.role is Role.OPERATOR:
        return Principal(method, host_id=host, operator=token.name, shown=shown)
    if found is not None and not found.anybody:  # with a certificate, a reader's adds nothing
        return found
    return Principal.of(method, Role.READER, token.name, shown)


def _caller(principal: Principal | None) -> str | None:
    found = None if principal is None else principal.owner
    return None if found is None else " ".join(found)


@dataclass
class Authenticator:
    """The authentication of callers. With ``secure`` all callers, except those that join, must prove their identity;
    otherwise the receiver is on loopback, and only operators must."""

    registry: Registry
    clock: Clock
    operator_token: str | None = None
    secure: bool = False

    def __post_init__(self) -> None:
        self.limit, self.quota = FailureLimit(self.clock), Quota(self.clock)
        self.sessions = Sessions(self.clock)

    def admit(self, request: Request, kind: Access) -> None:
        """Admit the request, with its principal in ``request.state``, or raise Refusal."""
        principal = None if kind is Access.JOINING else self.principal(request, kind)
        access.check(kind, principal)
        # On loopback without TLS callers are anonymous: a limit for one would be a limit for all.
        if self.secure:
            self.quota.take(_caller(principal) or self.address(request))
        request.state.principal = principal

    def recheck_revocation(self, request: Request, *, on_record: bool = False) -> None:
        """Raise Refusal if the caller was revoked after authentication, because reading the body may have taken long.

        ``on_record``: look in the database, within the writer's transaction.
        """
        principal: Principal | None = request.state.principal
        look = self.registry.is_revoked_on_record if on_record else self.registry.is_revoked
        if principal is None or not any(map(look, principal.shown)):
            return
        if principal.method in (Method.TOKEN, Method.SESSION):
            raise Refusal(ProblemType.OPERATOR_TOKEN, "the token was revoked meanwhile")
        raise _revoked(*certain(principal.owner, "only who proved a name has shown anything"))

    def principal(self, request: Request, kind: Access) -> Principal | None:
        """Return the authenticated caller: ``LOCAL`` on loopback without a proof, None on other connections without
        one. For ``Access.OWNER`` only a certificate is a proof; without one the result is None, also on loopback.

        An invalid certificate is refused. A token is looked at, and refused if invalid, only if the caller is unknown
        without it, or the endpoint serves operators.
        """
        peer = self._peer(request)
        found = LOCAL if peer.channel is Entrance.LOCAL else self._certified(peer)
        if kind is Access.OWNER and (found is None or found.anybody):
            return None
        if found is not None and found.operator is not None:
            return found
        token = _token_in(request)
        if token is None and (in_session := self._in_session(request, found)) is not None:
            return in_session
        if kind is Access.OPERATOR or (found is None and token is not None):
            return self._by_token(request, found)
        return found

    def is_operator(self, request: Request) -> bool:
        """Return True if an admitted caller is an operator, or shows an operator's token where reading needs none."""
        principal: Principal | None = request.state.principal
        given = (_token_in(request) or "").strip().encode("latin-1")
        if given and (principal is None or principal.operator is None):
            token = self._token(request, given)
            return token is not None and token.role is Role.OPERATOR
        return principal is not None and principal.operator is not None

    def _peer(self, request: Request) -> Peer:
        peer: Peer | None = getattr(request.state, "peer", None)
        if peer is not None and peer.channel is Entrance.PROXY:
            peer = proxied(request.headers.getlist(HEADER_FINGERPRINT))
            if peer is None:
                raise Refusal(
                    ProblemType.PROXY_IDENTITY,
                    f"the proxy sends no sound {HEADER_FINGERPRINT}; set it up as in etc/Caddyfile",
                )
            return peer
        if not self.secure:
            return Peer(Entrance.LOCAL)
        # A request without TLS shows no certificate.
        return peer if peer is not None and peer.channel is Entrance.TLS else Peer(Entrance.TLS)

    def _certified(self, peer: Peer) -> Principal | None:
        """Return the owner of a connection's certificate; None without one. Raises Refusal if the certificate does not
        name its owner, is unknown to the receiver, was revoked, or has expired."""
        if peer.fingerprint is None:
            return None
        known = self.registry.certificate(peer.fingerprint)
        if peer.channel is Entrance.TLS:
            shown = owner(peer.uris)
            if shown is None or (known and urn(known.role, known.name) != urn(*shown)):
                raise Refusal(
                    ProblemType.CERTIFICATE_IDENTITY,
                    f"the certificate does not name one host or operator by one URI; {_again()}",
                )
        if known is None:
            raise Refusal(ProblemType.CERTIFICATE_UNKNOWN, f"the receiver does not know this certificate; {_again()}")
        if known.revoked_at is not None:
            raise _revoked(known.role, known.name)
        if self.clock.now() >= known.expires_at:
            again = _again(enrolling(known.role, known.name))
            raise Refusal(ProblemType.CERTIFICATE_EXPIRED, f"{known.name}'s certificate has expired; {again}")
        return Principal.of(Method.CERTIFICATE, known.role, known.name, (known.fingerprint,))

    def _by_token(self, request: Request, found: Principal | None) -> Principal | None:
        """Return the operator or reader whose token the request shows, or without a token ``found``. Raises Refusal for
        a wrong token, and if the receiver has neither tokens nor certificates."""
        if not self._own_token() and not self.registry.tokens() and not self.registry.certificates():
            raise Refusal(
                ProblemType.OPERATOR_TOKEN,
                "no operator token is configured; set CIS490_OPERATOR_TOKEN in the receiver's "
                "environment and restart it",
            )
        # Bytes, because comparing text with a character beyond ASCII raises.
        given = (_token_in(request) or "").strip().encode("latin-1")
        if not given:
            return found
        named = self._token(request, given)
        if named is None:
            raise Refusal(
                ProblemType.OPERATOR_TOKEN,
                "the operator token is missing or wrong; set CIS490_OPERATOR_TOKEN to the receiver's",
            )
        return _shown(Method.TOKEN, named, found)

    def _own_token(self) -> list[Token]:
        """Return a list with the token from the receiver's environment, which never expires; empty if none is set."""
        own = (self.operator_token or "").strip().encode()
        return [Token(hashlib.sha256(own).digest(), "operator", 0.0, math.inf)] if own else []

    def _tokens(self) -> list[Token]:
        """Return all tokens that are valid now."""
        now = self.clock.now()
        return self._own_token() + [each for each in self.registry.tokens() if each.valid(now)]

    def _token(self, request: Request, given: bytes) -> Token | None:
        """Return the valid token with this secret; None if there is none. Wrong secrets are counted. After
        ``FAILURES_MAX`` wrong secrets within a minute, the address is refused, except with a right secret of at least
        ``UNGUESSABLE_CHARS`` bytes."""
        address = self.address(request)
        if len(given) < UNGUESSABLE_CHARS:
            self.limit.check(address)
        digest = hashlib.sha256(given).digest()
        own = [each for each in self._own_token() if hmac.compare_digest(digest, each.secret_sha256)]
        found = own[0] if own else self.registry.token(given)
        if found is None:
            self.limit.check(address)
            self.limit.failed(address)
        return found

    # -- browsers -----------------------------------------------------------------------------------------------

    def log_in(self, request: Request, secret: str) -> str:
        """Begin a session for a caller who presents the token ``secret``; return the header value that sets its cookie.
        Raises Refusal for a wrong token."""
        token = self._token(request, secret.strip().encode())
        if token is None:
            raise Refusal(
                ProblemType.OPERATOR_TOKEN,
                "this is no token of the receiver, or expired or revoked: `cis490-jobs tokens add NAME` makes one",
            )
        return cookie(self.sessions.begin(token), tls=self._by_tls(request))

    def log_out(self, request: Request) -> str:
        """End the session of this browser, if it has one; return the header value that removes its cookie."""
        tls = self._by_tls(request)
        self.sessions.end(request.cookies.get(cookie_name(tls=tls), ""), self._tokens())
        return cookie("", tls=tls)

    def _in_session(self, request: Request, found: Principal | None) -> Principal | None:
        """Return the caller by a login's cookie, which counts for reading and for the forms of pages; None without a
        valid one.

        A form's request must carry ``Origin`` or ``Sec-Fetch-Site: same-origin``, as browsers send; the origin was
        checked before.
        """
        if "Cookie" not in request.headers:
            return None
        value = request.cookies.get(cookie_name(tls=self._by_tls(request)), "")
        if request.method not in _READING:
            headers = request.headers
            said = "Origin" in headers or headers.get("Sec-Fetch-Site", "").lower() == "same-origin"
            if not said or request.url.path.startswith("/v1/"):
                return None
        token = self.sessions.token(value, self._tokens())
        return None if token is None else _shown(Method.SESSION, token, found)

    def _by_tls(self, request: Request) -> bool:
        return self._peer(request).channel is not Entrance.LOCAL

    def address(self, request: Request) -> str:
        """Return the key under which failures are counted: an IP address, for IPv6 its network."""
        peer: Peer | None = getattr(request.state, "peer", None)
        text = request.client.host if request.client else "this machine"
        if peer is not None and peer.channel is Entrance.PROXY:
            text = request.headers.get("X-Forwarded-For", text).rpartition(",")[2].strip()
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return text[:64]
        if address.version == 6 and not address.is_loopback:
            return str(ipaddress.ip_network((address, 64), strict=False))
        return str(address)

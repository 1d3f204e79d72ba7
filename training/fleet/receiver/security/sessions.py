"""Browser sessions: a login exchanges a token for a cookie that is valid for some hours.

The cookie is never the token: without TLS a browser sends the cookies of this machine to every port of it. Only
logged-out sessions are kept in memory, at least until they would have ended. The key that signs sessions exists only in
this process.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field

from training.clock import Clock
from training.fleet.receiver.security.registry import Token

SESSION_S = 12 * 3600.0
_COOKIE = "cis490"
_LOGGED_OUT_MAX = 10_000


def cookie_name(*, tls: bool) -> str:
    """Return the name of the session cookie. With TLS its prefix ``__Host-`` makes browsers accept the cookie only over
    TLS, from this host, and for all its paths."""
    return f"__Host-{_COOKIE}" if tls else _COOKIE


def cookie(value: str, *, tls: bool) -> str:
    """Return the header value that sets the session cookie until the browser is closed, or, for an empty value, removes
    the cookie."""
    parts = [f"{cookie_name(tls=tls)}={value}", "Path=/", "HttpOnly", "SameSite=Strict"]
    return "; ".join([*parts, *(["Secure"] if tls else []), *([] if value else ["Max-Age=0"])])


@dataclass
class Sessions:
    """The signer and checker of session cookies."""

    clock: Clock
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    _logged_out: dict[str, float] = field(default_factory=dict)  # until when each would have lasted

    def begin(self, token: Token) -> str:
        """Return the cookie's value for the caller who presented this token."""
        name = f"{self.clock.monotonic() + SESSION_S:.0f}.{secrets.token_hex(8)}"
        return f"{name}.{self._signature(name, token)}"

    def token(self, value: str, tokens: Iterable[Token]) -> Token | None:
        """Return the token that opened the session with this cookie value; None if the session is over, or none of
        ``tokens`` opened it."""
        name, _, signature = value.rpartition(".")
        given, found = signature.encode("utf-8", "replace"), None
        for token in tokens:
            if hmac.compare_digest(self._signature(name, token).encode(), given):
                found = token
        return found if found is not None and self._lasts(name) else None

    def end(self, value: str, tokens: Iterable[Token]) -> None:
        """Log out the session with this cookie value: the cookie is not accepted any more. A cookie that none of the
        tokens signed is ignored."""
        if self.token(value, tokens) is None:
            return  # anybody may send anything: it is not remembered
        now, name = self.clock.monotonic(), value.rpartition(".")[0]
        if len(self._logged_out) >= _LOGGED_OUT_MAX:
            self._logged_out = {each: until for each, until in self._logged_out.items() if until > now}
        self._logged_out[name] = now + SESSION_S

    def _lasts(self, name: str) -> bool:
        """Return True if a signed value is neither too old nor logged out."""
        return name not in self._logged_out and self.clock.monotonic() < float(name.partition(".")[0])

    def _signature(self, name: str, token: Token) -> str:
        return hmac.new(self._key, token.secret_sha256 + name.encode("utf-8", "replace"), hashlib.sha256).hexdigest()

"""The registry of credentials: certificates, one-time codes and tokens, in the database and in memory.

Changes run on the writer's thread, inside its transaction. Memory follows once they are durable: the caller passes the
certificates and tokens that a change returned to :meth:`apply`. Reads are answered from memory, for every request, so
that a revocation holds from the next request on. Secrets are never stored, only the SHA-256 of codes and tokens.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from typing import Any, NamedTuple

from training.clock import Clock
from training.fleet.database.writer import Database, Row
from training.fleet.wire.constants import ProblemType, Refusal
from training.fleet.wire.identity import Role, enrolling

CODE_LIFE_S = 15 * 60.0
DAY_S = 86_400.0
A_DAY_MAX = 5  # certificates of one name; a renewal whose answer is lost is repeated


class Certified(NamedTuple):
    """A certificate that the receiver issued. Times are epoch seconds of its clock."""

    fingerprint: str
    role: Role
    name: str
    issued_at: float
    expires_at: float
    revoked_at: float | None = None


class Token(NamedTuple):
    """An operator's or a reader's token; of its secret only the SHA-256 is stored."""

    secret_sha256: bytes
    name: str
    created_at: float
    expires_at: float
    revoked_at: float | None = None
    role: Role = Role.OPERATOR

    def valid(self, now: float) -> bool:
        return self.revoked_at is None and now < self.expires_at


class Invitation(NamedTuple):
    """A one-time code for a join, with its end in epoch seconds; only the answer to its making shows it."""

    code: str
    expires_at: float


class Registry:
    """All certificates, codes and tokens. It must be constructed on the thread that owns ``database``."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._db = database
        self._clock = clock
        self._certificates = {row["fingerprint"]: _certified(row) for row in database.all("certificates")}
        self._tokens = {row["token_sha256"]: _token(row) for row in database.all("tokens")}

    # -- reads, from any thread ---------------------------------------------------------------------------------

    def certificate(self, fingerprint: str) -> Certified | None:
        return self._certificates.get(fingerprint)

    def certificates(self) -> list[Certified]:
        """List all certificates, also revoked and expired ones, sorted by role, name and time of issue."""
        return sorted(self._certificates.values(), key=lambda each: (each.role, each.name, each.issued_at))

    def put_out(self) -> set[str]:
        """Return the names of the hosts that were revoked and have no valid certificate now."""
        now, hosts = self._clock.now(), list(self._certificates.values())
        hosts = [each for each in hosts if each.role is Role.HOST]
        good = {each.name for each in hosts if each.revoked_at is None and now < each.expires_at}
        return {each.name for each in hosts if each.revoked_at is not None} - good

    def tokens(self) -> list[Token]:
        return sorted(self._tokens.values(), key=lambda each: each.created_at)

    def is_revoked(self, digest: str) -> bool:
        """Return True when the certificate or token with this SHA-256 was revoked."""
        known = self._certificates.get(digest) or self._tokens.get(digest)
        return known is not None and known.revoked_at is not None

    def token(self, secret: bytes) -> Token | None:
        """Return the valid token with this secret; None if there is none. Every token is compared, so that timing
        reveals nothing."""
        given, now = hashlib.sha256(secret).digest(), self._clock.now()
        found = None
        for token in list(self._tokens.values()):
            if hmac.compare_digest(given, token.secret_sha256) and token.valid(now):
                found = token
        return found

    def apply(self, changed: Iterable[Certified | Token]) -> None:
        """Update memory with certificates and tokens that were written, once the write is durable. A revocation that
        was applied before stays."""
        for each in changed:
            known: dict[str, Any] = self._certificates if isinstance(each, Certified) else self._tokens
            key = each.fingerprint if isinstance(each, Certified) else each.secret_sha256.hex()
            if key not in known or known[key].revoked_at is None:
                known[key] = each

    # -- within the writer's transaction ------------------------------------------------------------------------

    def is_revoked_on_record(self, digest: str) -> bool:
        """Return True if the database says that this certificate or token was revoked; memory has a revocation only
        after its commit."""
        return self._db.one("revoked_by_digest", digest=digest) is not None

    # -- one-time codes -----------------------------------------------------------------------------------------

    def invite(self, role: Role, name: str) -> Invitation:
        """Make a new one-time code for this role and name; earlier unused codes for it become void."""
        code = secrets.token_hex(20)  # never begins with a dash, which would look like a flag
        now = self._clock.now()
        self._db.run("void_invitations", role=role, name=name)
        self._db.run(
            "add_invitation",
            code_sha256=_digest(_bound(role, name, code)),
            role=role,
            name=name,
            now=now,
            expires_at=now + CODE_LIFE_S,
        )
        return Invitation(code, now + CODE_LIFE_S)

    def check_code(self, role: Role, name: str, code: str, request: bytes) -> str:
        """Return the digest for :meth:`admit` if the code belongs to this name and is usable, or raise Refusal.

        A code is valid for one certificate request; the same request may be repeated, because its answer may have been
        lost.
        """
        digest = _digest(_bound(role, name, code))
        row = self._db.one("invitation", code_sha256=digest)
        if row is None:
            what = f"wrong, or not for {name}"
        elif row["used_by"] not in (None, _digest(request)):
            what = "used already"
        elif self._clock.now() >= row["expires_at"]:
            what = "too old: it was good for 15 minutes"
        else:
            if row["used_by"] is not None:
                self.check_pace(role, name)
            return digest
        raise Refusal(
            ProblemType.JOIN_REFUSED, f"the code is {what}; {enrolling(role, name)} on the receiver prints a new one"
        )

    # -- certificates -------------------------------------------------------------------------------------------

    def admit(self, certified: Certified, code_sha256: str | None, request: bytes) -> list[Certified]:
        """Add a certificate, and mark its one-time code as used (None: a renewal); return the certificates that this
        revokes.

        Joining again revokes the earlier certificates. A renewal revokes none, because its answer may be lost; nor does
        a repeated request. Raises Refusal if the name was revoked or renews too often, or the code is no longer valid.
        """
        now = self._clock.now()
        gone: list[Certified] = []
        if code_sha256 is None:
            # Checked here, too: a revocation may have been written since authentication.
            standing = self._standing(certified.role, certified.name, now)
            if not standing:
                raise Refusal(ProblemType.CERTIFICATE_REVOKED, f"{certified.name} was revoked meanwhile")
            _check_pace(standing, now)
        else:
            invitation = self._db.one("invitation", code_sha256=code_sha256)
            if invitation is not None and invitation["used_by"] is None:
                standing = self._standing(certified.role, certified.name, now)
                gone = [each._replace(revoked_at=now) for each in standing]
            used = self._db.run("use_invitation", code_sha256=code_sha256, used_by=_digest(request), now=now)
            if not used:
                raise Refusal(ProblemType.JOIN_REFUSED, "the code is no longer valid; ask for a new one")
        if gone:
            self._db.run("revoke_certificates", role=certified.role, name=certified.name, now=now)
        self._db.run("add_certificate", **certified._asdict())
        return gone

    def check_pace(self, role: Role, name: str) -> None:
        """Raise Refusal if this name has ``A_DAY_MAX`` valid certificates that were issued within a day; called before
        signing, and again by :meth:`admit` for a renewal."""
        now = self._clock.now()
        _check_pace(self._standing(role, name, now), now)

    def _standing(self, role: Role, name: str, now: float) -> list[Certified]:
        rows = self._db.all("certificates_of", role=role, name=name)
        return [each for each in map(_certified, rows) if each.revoked_at is None and now < each.expires_at]

    def revoke(self, role: Role, name: str) -> list[Certified]:
        """Revoke every valid certificate of this name and delete its codes, for an operator also all open codes of
        other names; return the revoked certificates. Raises Refusal if the name has neither a valid certificate nor a
        code."""
        now = self._clock.now()
        codes = self._db.run("forget_invitations", role=role, name=name)
        if role is Role.OPERATOR:  # an operator may have made some for later, under any name
            self._db.run("void_all_invitations")
        gone = [each._replace(revoked_at=now) for each in self._standing(role, name, now)]
        if not gone and not codes:
            raise Refusal(
                ProblemType.UNKNOWN_NAME,
                f"no {role} {name[:80]!r} has a valid certificate or code; `cis490-jobs certificates` shows who has",
            )
        self._db.run("revoke_certificates", role=role, name=name, now=now)
        return gone

    # -- tokens -------------------------------------------------------------------------------------------------

    def add_token(self, name: str, days: float, role: Role = Role.OPERATOR) -> tuple[str, Token]:
        """Make an operator's or a reader's token for ``name``; return its secret, which is not stored, and the token.

        A name may have two valid tokens, so that one can replace the other. Raises Refusal if the name has two already,
        or one of the other role.
        """
        now = self._clock.now()
        valid = [each for each in self._tokens.values() if each.name == name and each.valid(now)]
        if any(each.role is not role for each in valid):
            raise Refusal(
                ProblemType.WRONG_STATE,
                f"{name} has a valid token as {valid[0].role} already; take another name, or revoke that with "
                f"`cis490-jobs tokens revoke {name}`",
            )
        if len(valid) >= 2:
            raise Refusal(
                ProblemType.WRONG_STATE,
                f"{name} has two valid tokens already; `cis490-jobs tokens revoke {name}` revokes the older one",
            )
        secret = f"cis490_{secrets.token_urlsafe(32)}"
        digest = hashlib.sha256(secret.encode()).digest()
        token = Token(digest, name, now, now + days * DAY_S, role=role)
        self._db.run(
            "add_token",
            token_sha256=digest.hex(),
            name=name,
            now=now,
            expires_at=token.expires_at,
            role=None if role is Role.OPERATOR else role,
        )
        return secret, token

    def revoke_token(self, name: str, *, every: bool = False) -> list[Token]:
        """Revoke the oldest valid token of this name, or with ``every`` all of them; return the revoked ones. Raises
        Refusal if there is none."""
        now = self._clock.now()
        valid = [each for each in self.tokens() if each.name == name and each.valid(now)]
        if not valid:
            raise Refusal(
                ProblemType.UNKNOWN_NAME,
                f"no valid token is called {name[:80]!r}; `cis490-jobs tokens list` shows them",
            )
        gone = [each._replace(revoked_at=now) for each in (valid if every else valid[:1])]
        for each in gone:
            self._db.run("revoke_token", token_sha256=each.secret_sha256.hex(), now=now)
        return gone


def _check_pace(standing: list[Certified], now: float) -> None:
    """Raise Refusal for too many certificates within a day. An early renewal is allowed: a host renews early after a
    corrected clock or a lost answer."""
    recent = sorted(each.issued_at for each in standing if now - each.issued_at < DAY_S)
    if len(recent) >= A_DAY_MAX:
        raise Refusal(
            ProblemType.SLOW_DOWN,
            f"{standing[0].name} got {A_DAY_MAX} certificates within a day; use the last one, or ask tomorrow",
            retry_after_s=recent[-A_DAY_MAX] + DAY_S - now,
        )


def _bound(role: Role, name: str, code: str) -> bytes:
    return f"{role}\0{name}\0{code}".encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _certified(row: Row) -> Certified:
    return Certified(
        row["fingerprint"], Role(row["role"]), row["name"], row["issued_at"], row["expires_at"], row["revoked_at"]
    )


def _token(row: Row) -> Token:
    return Token(
        bytes.fromhex(row["token_sha256"]),
        row["name"],
        row["created_at"],
        row["expires_at"],
        row["revoked_at"],
        Role(row["role"] or Role.OPERATOR),
    )

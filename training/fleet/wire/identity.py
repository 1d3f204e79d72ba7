"""The caller's identity: the proof in a connection, and the role and name that it proves.

A certificate names its owner only by one URI: ``urn:cis490:host:NAME``, ``…:operator:NAME``, ``…:reader:NAME`` or
``…:watcher:NAME``. Common names and other alternative names are ignored, and a certificate with two URIs is invalid.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import field
from enum import StrEnum
from typing import NamedTuple

from training.fleet.wire.constants import HOST_ID_PATTERN
from training.frozen import frozen
from training.strict_json import Json

URN = "urn:cis490:"
FINGERPRINT_PREFIX = "sha256:"
_OF_NOTHING = hashlib.sha256(b"").hexdigest()
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


class Role(StrEnum):
    """The role that a certificate or a token gives its owner."""

    HOST = "host"
    OPERATOR = "operator"
    READER = "reader"  # sees what an operator sees of jobs and hosts, and changes nothing
    WATCHER = "watcher"  # a host that is watched: it tells of its own incidents, and does nothing else


class Entrance(StrEnum):
    """The way in which a request reached the receiver."""

    LOCAL = "local"  # plain, over this machine's loopback
    TLS = "tls"
    PROXY = "proxy"  # from a proxy that ends TLS, over its private socket


class Method(StrEnum):
    """The kind of proof of the caller's identity."""

    NONE = "none"  # every process of this machine
    CERTIFICATE = "certificate"
    TOKEN = "token"  # noqa: S105 - a kind of proof, not one
    SESSION = "session"  # the cookie of a browser in which a token was shown


class Peer(NamedTuple):
    """The other end of a connection: how it reached the receiver, and the fingerprint of its certificate. ``uris`` are
    the alternative names of its certificate that are URIs."""

    channel: Entrance
    fingerprint: str | None = None  # SHA-256 of its certificate, hexadecimal
    uris: tuple[str, ...] = ()


@frozen
class Principal:
    """An authenticated caller: the kind of proof, and the names that it proves.

    ``host_id`` is set only when proven. For a caller without any proof, which only loopback without TLS admits, all
    names are None, and the host id in the request's body counts.
    """

    method: Method
    host_id: str | None = None
    operator: str | None = None
    reader: str | None = None
    watcher: str | None = None
    # Digests of the certificate and the token that were shown, by which either can be revoked.
    shown: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, method: Method, role: Role, name: str, shown: tuple[str, ...]) -> Principal:
        """Make the principal of a caller who proved ``role`` and ``name`` by a certificate, or by a token without a
        certificate."""
        return cls(method, shown=shown, **{"host_id" if role is Role.HOST else str(role): name})

    @property
    def anybody(self) -> bool:
        return self.method is Method.NONE

    @property
    def owner(self) -> tuple[Role, str] | None:
        """Return the caller's proven role and name; of a caller who is operator and host, the operator's. None for an
        anonymous caller."""
        proven = {Role.OPERATOR: self.operator, Role.HOST: self.host_id, Role.READER: self.reader}
        for role, name in (proven | {Role.WATCHER: self.watcher}).items():
            if name is not None:
                return role, name
        return None


LOCAL = Principal(Method.NONE)


def enrolling(role: Role, name: str) -> str:
    """Return the command, in backticks, by which the receiver's operator enrolls this host, operator, reader or watched
    host."""
    option = "" if role is Role.HOST else f"--{role} "
    return f"`cis490-jobs enroll {option}{name}`"


def urn(role: Role, name: str) -> str:
    return f"{URN}{role}:{name}"


def owner(uris: tuple[str, ...]) -> tuple[Role, str] | None:
    """Return the role and name in a certificate's URIs; None unless there is exactly one URI, and it has the form of
    :func:`urn`."""
    if len(uris) != 1 or not uris[0].startswith(URN):
        return None
    role, _, name = uris[0].removeprefix(URN).partition(":")
    if role not in set(Role) or not re.fullmatch(HOST_ID_PATTERN, name):
        return None
    return Role(role), name


def peer_of(certificate: Json | None, der: bytes | None) -> Peer:
    """Make the peer of a TLS connection from its certificate, parsed and as DER bytes; without a certificate, the peer
    has no fingerprint."""
    if not der or certificate is None:
        return Peer(Entrance.TLS)
    names = certificate.get("subjectAltName", ())
    uris = tuple(value for kind, value in names if kind == "URI")
    return Peer(Entrance.TLS, hashlib.sha256(der).hexdigest(), uris)


def proxied(values: list[str]) -> Peer | None:
    """Make the peer behind a proxy from all values of the proxy's fingerprint header; None if our proxy cannot have
    sent these.

    Without a certificate the proxy sends an empty value, or the hash of nothing (Caddy 2.11). A value that is no
    fingerprint, such as an unreplaced placeholder (``{http…}``), and a header sent twice give None, not a peer without
    a certificate.
    """
    if len(values) != 1:
        return None
    value = values[0].strip().lower()
    if value in ("", _OF_NOTHING):
        return Peer(Entrance.PROXY)
    return Peer(Entrance.PROXY, value) if _FINGERPRINT.fullmatch(value) else None


def parse_fingerprint(text: str) -> str:
    """Return the 64 hexadecimal digits, in lower case, of a pasted fingerprint; its prefix ``sha256:`` and colons are
    optional. Raises ValueError for any other text."""
    digits = text.strip().lower().removeprefix(FINGERPRINT_PREFIX).replace(":", "")
    if not _FINGERPRINT.fullmatch(digits):
        raise ValueError(f"{text[:80]!r} is not a fingerprint; it looks like sha256: and 64 hexadecimal digits")
    return digits

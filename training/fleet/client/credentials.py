"""A client's TLS files: a folder with key, certificate and authority, and the connections made with them.

``ca.pem`` is the receiver's authority, ``client.pem`` this machine's key with its certificate (one file, so that both
change at once) and ``identity.json`` says what that is. A folder with ``ca.pem`` alone, as on the receiver's host,
makes connections that verify the receiver but present no certificate.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from training.files import write_private
from training.fleet.client.client import FleetClient
from training.fleet.wire.identity import Role

_CLOCK_BACK_S = 3600.0  # smaller corrections of the clock mean nothing


def watcher_folder(name: str) -> Path:
    """Return the folder for the certificate of a watched host, where its watch keeps its state, too."""
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "cis490-watch" / "tls" / name


class CredentialsError(Exception):
    """The folder cannot be used. The text is one sentence."""


class Identity(msgspec.Struct, frozen=True):
    """The owner and dates of the folder's certificate; ``valid_s`` counts from ``received_at``, by this machine's wall
    clock."""

    role: Role
    name: str
    receiver_url: str
    received_at: float
    valid_s: float

    def due(self, now: float) -> bool:
        """Return True if two thirds of the certificate's life are over, or the clock was set back to before its
        beginning."""
        return not -_CLOCK_BACK_S < now - self.received_at < self.valid_s * 2 / 3


class Credentials:
    """The folder with a client's credentials. Contexts use a renewed certificate after :meth:`reload`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._contexts: list[ssl.SSLContext] = []

    @property
    def present(self) -> bool:
        with contextlib.suppress(OSError):
            return (self.folder / "ca.pem").exists()
        return False

    def identity(self) -> Identity | None:
        """Read the identity; None when there is only the authority's certificate."""
        try:
            return msgspec.json.decode((self.folder / "identity.json").read_bytes(), type=Identity)
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            raise CredentialsError(f"{self.folder / 'identity.json'} is damaged; enroll this machine again") from None

    def context(self) -> ssl.SSLContext:
        """Make a context that trusts the receiver's own authority only; TLS 1.3. Raises CredentialsError."""
        try:
            context = trusting(cafile=self.folder / "ca.pem")
            self._load_own(context)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise CredentialsError(
                f"the certificates in {self.folder} cannot be used ({why}); enroll this machine again"
            ) from None
        self._contexts.append(context)
        return context

    def reload(self) -> None:
        """Use the folder's present files for new connections. Raises OSError."""
        for context in self._contexts:
            self._load_own(context)

    def _load_own(self, context: ssl.SSLContext) -> None:
        if (self.folder / "client.pem").exists():
            context.load_cert_chain(self.folder / "client.pem")

    def authority(self) -> str:
        """Read the receiver's authority (PEM). Raises OSError."""
        return (self.folder / "ca.pem").read_text("ascii", "replace")

    def store(
        self, answer: Mapping[str, Any], key: bytes, receiver_url: str, now: float, authority: str | None = None
    ) -> None:
        """Store the result of a join or a renewal. Only a join brings an authority, already verified; a renewal keeps
        the old one."""
        identity = Identity(Role(answer["role"]), answer["name"], receiver_url, now, answer["valid_s"])
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if authority is not None:
            write_private(self.folder / "ca.pem", authority.encode())
        write_private(self.folder / "client.pem", key + answer["certificate"].encode())
        write_private(self.folder / "identity.json", msgspec.json.encode(identity))


def trusting(**authority: Any) -> ssl.SSLContext:
    """Make a context that trusts this authority alone (``cafile``, ``cadata``) and shows no certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(**authority)
    return context


def new_request(name: str) -> tuple[bytes, str]:
    """Make a private key (PEM) and the request for its certificate (PEM). The key never leaves this machine."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    except ImportError:
        raise CredentialsError(
            "certificates need the package cryptography; install cis490-training-fleet[worker]"
        ) from None
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject)
    pem = request.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private, pem.decode()


def renew_if_due(credentials: Credentials, client: FleetClient, now: float) -> bool:
    """Renew with a new key when two thirds of the certificate's life are over; returns True then.

    ``now`` is this machine's wall clock. New connections present the new certificate, so ``client`` and other clients
    must close their idle ones. Raises ClientError, CredentialsError, OSError; the old one is good until its end.
    """
    known = credentials.identity()
    if known is None or not known.due(now):
        return False
    key, request = new_request(known.name)
    credentials.store(client.call("renew", csr=request), key, known.receiver_url, now)
    credentials.reload()
    return True

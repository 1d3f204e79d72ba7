"""A client's TLS files: a folder with key, certificate and authority, and the connections made with them.

``ca.pem`` is the receiver's authority. ``client.pem`` has this machine's key and its certificate, in one file so that
both change at once. ``identity.json`` has the certificate's owner and dates. A folder with ``ca.pem`` alone, as on the
receiver's host, makes connections that verify the receiver but present no certificate.
"""

import contextlib
import os
import ssl
from pathlib import Path
from typing import Any

import msgspec

from training.checkout import to_install
from training.files import write_private
from training.fleet.client.client import FleetClient
from training.fleet.wire.identity import Role
from training.strict_json import Json

_CLOCK_BACK_S = 3600.0  # smaller corrections of the clock mean nothing


def watcher_folder(name: str) -> Path:
    """Return the default folder for the certificate of the watched host ``name``."""
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "cis490-watch" / "tls" / name


class CredentialsError(Exception):
    """Credentials cannot be read or made, or are not those that the call needs. The text is one sentence."""


class Identity(msgspec.Struct, frozen=True):
    """The owner and the dates of the certificate in a folder; ``valid_s`` counts from ``received_at``, by this
    machine's wall clock."""

    role: Role
    name: str
    receiver_url: str
    received_at: float
    valid_s: float

    def due(self, now: float) -> bool:
        """Return True if the certificate should be renewed: two thirds of its life are over, or the clock was set back
        to an hour or more before ``received_at``."""
        return not -_CLOCK_BACK_S < now - self.received_at < self.valid_s * 2 / 3


class Credentials:
    """The folder with a client's credentials. :meth:`reload` makes the contexts use a renewed certificate."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._contexts: list[ssl.SSLContext] = []

    @property
    def present(self) -> bool:
        with contextlib.suppress(OSError):
            return (self.folder / "ca.pem").exists()
        return False

    def identity(self) -> Identity | None:
        """Read ``identity.json``; None when the folder has no such file. Raises CredentialsError if the file is damaged
        or cannot be read."""
        try:
            return msgspec.json.decode((self.folder / "identity.json").read_bytes(), type=Identity)
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            raise CredentialsError(
                f"{self.folder / 'identity.json'} cannot be read or is damaged; enroll this machine again"
            ) from None

    def context(self) -> ssl.SSLContext:
        """Make a TLS 1.3 context that trusts the receiver's own authority only, and shows this machine's certificate if
        there is one. Raises CredentialsError."""
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
        """Load the folder's present certificate and key into every context made here, for new connections. Raises
        OSError."""
        for context in self._contexts:
            self._load_own(context)

    def _load_own(self, context: ssl.SSLContext) -> None:
        if (self.folder / "client.pem").exists():
            context.load_cert_chain(self.folder / "client.pem")

    def authority(self) -> str:
        """Read the certificate of the receiver's authority (PEM). Raises OSError."""
        return (self.folder / "ca.pem").read_text("ascii", "replace")

    def store(self, answer: Json, key: bytes, receiver_url: str, now: float, authority: str | None = None) -> None:
        """Write key, certificate and identity after a join or a renewal. A join also writes ``authority``, which the
        caller has verified; a renewal passes None."""
        identity = Identity(Role(answer["role"]), answer["name"], receiver_url, now, answer["valid_s"])
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if authority is not None:
            write_private(self.folder / "ca.pem", authority.encode())
        write_private(self.folder / "client.pem", key + answer["certificate"].encode())
        write_private(self.folder / "identity.json", msgspec.json.encode(identity))


def trusting(**authority: Any) -> ssl.SSLContext:
    """Make a TLS 1.3 context that trusts only this authority (``cafile`` or ``cadata``) and shows no certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(**authority)
    return context


def new_request(name: str) -> tuple[bytes, str]:
    """Make a private key (PEM) and the request for its certificate (PEM). The key never leaves this machine. Raises
    CredentialsError if the package cryptography is not installed."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    except ImportError:
        raise CredentialsError(f"certificates need the package cryptography: {to_install('worker')}") from None
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject)
    pem = request.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private, pem.decode()


def renew_if_due(credentials: Credentials, client: FleetClient, now: float) -> bool:
    """Renew the certificate, with a new key, if :meth:`Identity.due` says so; return True if it was renewed.

    ``now`` is this machine's wall clock. Only new connections present the new certificate, so the caller must then
    close the idle connections of ``client`` and other clients. Raises ClientError, CredentialsError, OSError; the old
    certificate is valid until its end.
    """
    known = credentials.identity()
    if known is None or not known.due(now):
        return False
    key, request = new_request(known.name)
    credentials.store(client.call("renew", csr=request), key, known.receiver_url, now)
    credentials.reload()
    return True

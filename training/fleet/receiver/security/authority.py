"""The receiver's own certificate authority: it signs the receiver's certificate and those of its clients.

One folder holds everything: ``ca.key`` and ``ca.pem``, the authority; ``server.key``, ``server.pem`` and
``server.json``, the receiver's own certificate and its content. Keys are readable by their owner only; behind a proxy
the owner's group, which includes the proxy, may read ``server.key``. The authority's key never leaves the folder.
``cryptography`` is loaded only for signing.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import os
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from training.clock import Clock
from training.files import write_private
from training.fleet.wire.identity import FINGERPRINT_PREFIX, Role, urn

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

DAY_S = 86_400.0
AUTHORITY_DAYS = 3650
SERVER_DAYS = 365
CLIENT_DAYS = 30
_EARLIER_S = 3600.0  # certificates begin an hour ago: clocks differ
_CSR_BYTES_MAX = 16 * 1024


class AuthorityError(Exception):
    """The authority cannot be used, or a request cannot be signed. The text is one sentence."""


class Issued(NamedTuple):
    """A certificate just signed; times are epoch seconds."""

    pem: str
    fingerprint: str
    issued_at: float
    expires_at: float


class _Server(msgspec.Struct):
    """The content of the receiver's own certificate, and the authority that signed it."""

    names: list[str]
    issued_at: float
    expires_at: float
    ca: str


class Authority:
    """An authority in its folder. :meth:`open` loads or creates it."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder = folder
        self._clock = clock
        try:
            self.certificate = (folder / "ca.pem").read_text(encoding="ascii")
            der = ssl.PEM_cert_to_DER_cert(self.certificate)
        except OSError as error:
            raise AuthorityError(
                f"cannot read the authority's certificate {folder / 'ca.pem'}: {error.strerror}"
            ) from None
        except ValueError:
            raise AuthorityError(
                f"{folder / 'ca.pem'} is damaged; restore it from a backup, or move {folder} away "
                "and enroll every host again"
            ) from None
        self.fingerprint = FINGERPRINT_PREFIX + hashlib.sha256(der).hexdigest()

    @classmethod
    def open(cls, folder: Path, clock: Clock) -> Authority:
        """Open the authority in a folder; create one when there is none. Raises AuthorityError."""
        if not (folder / "ca.pem").exists():
            if (folder / "ca.key").exists():
                raise AuthorityError(
                    f"{folder} holds the authority's key without its certificate ca.pem; restore it from a backup"
                )
            _make_authority(folder, clock.now())
        return cls(folder, clock)

    def server_is_current(self, names: Sequence[str]) -> bool:
        """Return True when this authority signed the receiver's certificate, it has exactly these names, and less than
        two thirds of its life are over."""
        known = self._server()
        if known is None or (sorted(known.names), known.ca) != (sorted(names), self.fingerprint):
            return False
        begun = known.issued_at
        return begun <= self._clock.now() < begun + (known.expires_at - begun) * 2 / 3

    def server_expires_at(self) -> float | None:
        """Return when the receiver's own certificate ends, in epoch seconds; None where that cannot be read."""
        known = self._server()
        return None if known is None else known.expires_at

    def _server(self) -> _Server | None:
        with contextlib.suppress(OSError, ValueError):
            return msgspec.json.decode((self.folder / "server.json").read_bytes(), type=_Server)
        return None

    def renew_server(self, names: Sequence[str]) -> None:
        """Make a new key and certificate for the receiver itself, and write them; the chain in ``server.pem`` includes
        the authority's certificate."""
        from cryptography import x509
        from cryptography.x509.oid import ExtendedKeyUsageOID

        key = _new_key()
        alternatives = x509.SubjectAlternativeName([_name(each) for each in names])
        issued = self._sign(key.public_key(), names[0], alternatives, ExtendedKeyUsageOID.SERVER_AUTH, SERVER_DAYS)
        # First, so that a crash between the two files below is found at the next start.
        (self.folder / "server.json").unlink(missing_ok=True)
        write_private(self.folder / "server.key", _key_pem(key))
        write_private(self.folder / "server.pem", (issued.pem + self.certificate).encode())
        said = _Server(list(names), issued.issued_at, issued.expires_at, self.fingerprint)
        write_private(self.folder / "server.json", msgspec.json.encode(said))

    def issue(self, request_pem: str, role: Role, name: str) -> Issued:
        """Sign a client's certificate for ``role`` and ``name``. Of the request only the key is used. Raises
        AuthorityError."""
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID

        try:
            if len(request_pem) > _CSR_BYTES_MAX:
                raise ValueError("too long")
            request = x509.load_pem_x509_csr(request_pem.encode())
            key = request.public_key()
            sound = request.is_signature_valid
        except Exception:  # noqa: BLE001 - any error of the library about foreign bytes
            raise AuthorityError("$.csr: not a certificate request in PEM of at most 16 KiB") from None
        if not sound:
            raise AuthorityError("$.csr: the certificate request is not signed by its own key")
        if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.key_size < 256:
            raise AuthorityError("$.csr: the key must be on the curve P-256 or a larger one")
        uri = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(urn(role, name))])
        return self._sign(key, name, uri, ExtendedKeyUsageOID.CLIENT_AUTH, CLIENT_DAYS)

    def _sign(
        self,
        key: EllipticCurvePublicKey,
        common_name: str,
        alternatives: x509.SubjectAlternativeName,
        use: x509.ObjectIdentifier,
        days: int,
    ) -> Issued:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.serialization import Encoding

        own_key, own = self._key(), x509.load_pem_x509_certificate(self.certificate.encode())
        now = self._clock.now()
        # Never beyond the authority's own end, or chains would break while certificates look valid.
        ends = min(now + days * DAY_S, own.not_valid_after_utc.timestamp())
        if ends <= now:
            raise AuthorityError(
                f"the authority in {self.folder} has expired; move that folder away and enroll every host again"
            )
        certificate = (
            _builder(common_name, own.subject, now, ends)
            .public_key(key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(alternatives, critical=False)
            .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
            .add_extension(_key_usage(signs=False), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(own_key.public_key()), critical=False)
            .sign(own_key, hashes.SHA256())
        )
        digest = hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest()
        pem = certificate.public_bytes(Encoding.PEM).decode()
        return Issued(pem, digest, now, ends)

    def _key(self) -> EllipticCurvePrivateKey:
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        path = self.folder / "ca.key"
        try:
            if os.name == "posix" and path.stat().st_mode & 0o077:
                raise AuthorityError(f"others may read the authority's key {path}; run chmod 600 on it")
            key = load_pem_private_key(path.read_bytes(), None)
        except OSError as error:
            raise AuthorityError(f"cannot read the authority's key {path}: {error.strerror}") from None
        except (ValueError, TypeError):
            raise AuthorityError(f"{path} is damaged; restore it from a backup") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise AuthorityError(f"{path} is not the key that was made here; restore it")
        return key


def _make_authority(folder: Path, now: float) -> None:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.serialization import Encoding
    except ImportError:
        raise AuthorityError(
            "certificates need the package cryptography; install cis490-training-fleet[receiver]"
        ) from None
    key = _new_key()
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "cis490 training fleet")])
    certificate = (
        _builder(None, name, now, now + AUTHORITY_DAYS * DAY_S)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(folder / "ca.key", _key_pem(key))
        write_private(folder / "ca.pem", certificate.public_bytes(Encoding.PEM))  # last: it says "ready"
    except OSError as error:
        raise AuthorityError(
            f"cannot make an authority in {folder}: {error.strerror}; choose another folder with --tls-dir"
        ) from None


def _builder(common_name: str | None, issuer: x509.Name, now: float, ends: float) -> x509.CertificateBuilder:
    from cryptography import x509

    subject = issuer
    if common_name is not None:
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name[:64])])
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.fromtimestamp(now - _EARLIER_S, UTC))
        .not_valid_after(datetime.fromtimestamp(ends, UTC))
    )


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _key_pem(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

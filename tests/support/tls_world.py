"""A receiver that really speaks TLS, an authority to make good and bad certificates with, and clients for both."""

from __future__ import annotations

import datetime as dt
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from fakes import FakeClock
from receiver_running import Receiver

from training.clock import SystemClock
from training.files import write_private
from training.fleet.client.client import FleetClient
from training.fleet.client.credentials import Credentials, new_request
from training.fleet.receiver.security.registry import Certified
from training.fleet.receiver.security.tls import Security
from training.fleet.wire.identity import Role, urn

DAY = dt.timedelta(days=1)
CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH


class RealTime(FakeClock):
    """A clock that begins at the machine's own time, because OpenSSL goes by that."""

    def __init__(self):
        super().__init__(now=SystemClock().now())


@dataclass
class Signer:
    """An authority of the test's own: signs whatever it is told to, good or bad."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def new(cls, name="elsewhere"):
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = dt.datetime.fromtimestamp(SystemClock().now(), dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + 300 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        )
        return cls(key, builder.sign(key, hashes.SHA256()))

    @classmethod
    def of(cls, folder):
        """The receiver's own authority: what a thief of its key could do."""
        key = cls.key_of((folder / "ca.key").read_bytes())
        return cls(key, x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes()))

    @staticmethod
    def key_of(pem):
        key = load_pem_private_key(pem, None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return key

    def pem(self):
        """Its own certificate."""
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def sign(self, *names, use=CLIENT, begins=-DAY, ends=DAY, common_name="somebody", self_signed=False, ca=False):
        """Key and certificate in PEM, and the certificate's fingerprint."""
        now = dt.datetime.fromtimestamp(SystemClock().now(), dt.UTC)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject if self_signed else self.certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + begins)
            .not_valid_after(now + ends)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if use is not None:
            builder = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(key if self_signed else self.key, hashes.SHA256())
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        pem = private + certificate.public_bytes(Encoding.PEM)
        return pem, certificate.fingerprint(hashes.SHA256()).hex()


def uri(text):
    return x509.UniformResourceIdentifier(text)


def host(name):
    return uri(urn(Role.HOST, name))


@dataclass
class SecureReceiver(Receiver):
    """The receiver of receiver_running.py, over TLS."""

    tries = 1  # of a client's call

    folder: Path
    jobs: list[dict[str, Any]]
    clock: RealTime = field(default_factory=RealTime)

    def __post_init__(self):
        self.tls = self.folder / "tls"
        self.security = Security(self.tls, ["localhost", "fleet.example"], self.clock)
        Receiver.__init__(
            self, self.folder, self.jobs, security=self.security, clock=self.clock, public_url="https://localhost:1"
        )
        self.url = self.url.replace("http://127.0.0.1", "https://localhost")

    def context(self, pem=None):
        """Trusts the receiver; shows the certificate in ``pem`` (with its key), if any."""
        folder = self.folder / f"shown-{len(list(self.folder.glob('shown-*')))}"
        folder.mkdir()
        write_private(folder / "ca.pem", (self.tls / "ca.pem").read_bytes())
        if pem is not None:
            write_private(folder / "client.pem", pem)
        return Credentials(folder).context()

    def showing(self, pem, token=None, name="pi"):
        client = FleetClient(
            self.url, name, operator_token=token, tls=self.context(pem), tries=self.tries, timeout_s=20.0
        )
        self.clients.append(client)
        return client

    def admitted(self, name, role=Role.HOST):
        """Key and certificate of one whom the receiver let in, and its fingerprint."""
        key, request = new_request(name)
        issued = self.security.authority.issue(request, role, name)
        self.enter(issued.fingerprint, name, role, issued.issued_at, issued.expires_at)
        return key + issued.pem.encode(), issued.fingerprint

    def enter(self, fingerprint, name, role=Role.HOST, begins=0.0, ends=9e9):
        """Put a certificate into the receiver's list, as if it had been issued there."""
        registry, certified = (self.hub.authenticator.registry, Certified(fingerprint, role, name, begins, ends))

        def write():
            self.queue.db.run(
                "add_certificate", fingerprint=fingerprint, role=role, name=name, issued_at=begins, expires_at=ends
            )
            return lambda: registry._certificates.setdefault(fingerprint, certified)

        self.writer.submit(write).result()()


@contextmanager
def secure(folder, *jobs):
    with SecureReceiver(folder, list(jobs)) as receiver:
        yield receiver

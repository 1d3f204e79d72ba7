"""Get this machine its certificate: ``python -m training.fleet.join`` with what ``cis490-jobs enroll`` printed.

The key is made on this machine and never leaves it. The receiver's authority is fetched over an unverified connection,
and is believed only if it has the fingerprint from the printed line; the code is sent only after that, encrypted for
the receiver that this authority certifies. Exit codes: 0 joined (now or before), 1 refused or not stored, 2 wrong
usage, 75 receiver not reached or not ready.
"""

import argparse
import hashlib
import hmac
import os
import platform
import re
import ssl
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from training.checkout import HOME
from training.clock import Clock, SystemClock
from training.command_line import parser_of
from training.fleet.client.address import Address
from training.fleet.client.client import ClientError, FleetClient, Refused, Unavailable, Unreachable
from training.fleet.client.credentials import Credentials, CredentialsError, new_request, trusting, watcher_folder
from training.fleet.wire.constants import DONE, HOST_ID_PATTERN, REFUSED, UNREACHABLE, USAGE
from training.fleet.wire.identity import Role, parse_fingerprint
from training.frozen import frozen
from training.printable import one_line
from training.streams import complain, replace_unprintable

PROGRAM = "training.fleet.join"

Connect = Callable[[str, ssl.SSLContext], FleetClient]


class JoinError(Exception):
    """The receiver's answer cannot be trusted, so this machine does not join. The text is one sentence."""


@frozen
class CertificateRequest:
    """The checked arguments of the command line that `cis490-jobs enroll` printed."""

    url: str
    role: Role
    name: str
    code: str
    fingerprint: str  # 64 hexadecimal digits
    folder: Path


def connect(url: str, tls: ssl.SSLContext) -> FleetClient:
    return FleetClient(url, tls=tls, tries=3, timeout_s=15.0)


def join(wanted: CertificateRequest, clock: Clock, connect: Connect = connect) -> str:
    """Join the fleet, unless the receiver accepts the certificate that is in the folder; return a sentence that says
    what was done. Raises JoinError, CredentialsError, ClientError, OSError."""
    credentials = Credentials(wanted.folder)
    if _joined(wanted, credentials, connect):
        return f"{wanted.name} has joined {wanted.url} before; nothing was changed"
    authority = _authority(wanted, connect)
    key, request = new_request(wanted.name)
    body = {"name": wanted.name, "role": wanted.role, "code": wanted.code, "csr": request}
    with closing(connect(wanted.url, trusting(cadata=authority))) as receiver:
        answer = receiver.call("join", **body)
    if _certificate(answer.get("ca")) != authority:
        raise JoinError("the receiver answered with another authority than it showed; do not trust it")
    credentials.store(answer, key, wanted.url, clock.now(), authority)
    _try(wanted, credentials, connect)
    days = round(float(answer["valid_s"]) / 86_400)
    return (
        f"{wanted.name} has joined {wanted.url}; its certificate is in {wanted.folder}, "
        f"good for {days} days and renewed automatically"
    )


def _joined(wanted: CertificateRequest, credentials: Credentials, connect: Connect) -> bool:
    """Tell whether the folder holds a certificate for this receiver, role and name that the receiver accepts; False
    also if the receiver cannot be reached. Raises Unavailable if the receiver is not ready."""
    try:
        known = credentials.identity() if credentials.present else None
        if known is None or (known.role, known.name, known.receiver_url) != (wanted.role, wanted.name, wanted.url):
            return False
        if not _is_meant(_certificate(credentials.authority()), wanted):
            return False
        _try(wanted, credentials, connect)
    except (JoinError, CredentialsError, Refused, Unreachable, OSError):
        return False
    return True


def _try(wanted: CertificateRequest, credentials: Credentials, connect: Connect) -> None:
    """Test the stored certificate with one call. Raises ClientError if the receiver does not accept it or does not
    answer."""
    with closing(connect(wanted.url, credentials.context())) as receiver:
        receiver.health()


def _authority(wanted: CertificateRequest, connect: Connect) -> str:
    """Fetch the receiver's authority and return its certificate (PEM). Raises JoinError unless the authority has the
    printed fingerprint."""
    nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    nobody.check_hostname = False
    nobody.verify_mode = ssl.CERT_NONE  # the answer is believed for its fingerprint alone
    with closing(connect(wanted.url, nobody)) as receiver:
        authority = _certificate(receiver.call("authority").get("ca"))
    if not _is_meant(authority, wanted):
        raise JoinError(
            f"the program at {wanted.url} is not the receiver that printed the line: its authority has another "
            "fingerprint, and no code was sent; check the address, or print a new line"
        )
    return authority


def _certificate(pem: object) -> str:
    """Return the certificate in ``pem``, encoded again by us. Raises JoinError unless ``pem`` holds exactly one
    certificate and nothing else.

    A text may hold a second certificate after one with the right fingerprint: the fingerprint is computed from the
    first, but both would be trusted. The trusted text is therefore made from exactly the bytes whose fingerprint was
    checked.
    """
    try:
        plain = ssl.DER_cert_to_PEM_cert(ssl.PEM_cert_to_DER_cert(str(pem)))
    except ValueError:
        plain = ""
    if not plain or plain.split() != str(pem).split():
        raise JoinError("the receiver's answer holds no certificate, or more than one; is it another version?")
    return plain


def _is_meant(authority: str, wanted: CertificateRequest) -> bool:
    digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(authority)).hexdigest()
    return hmac.compare_digest(digest, wanted.fingerprint)


def default_folder(role: Role, name: str) -> Path:
    """Return the folder in which the program for this role looks for its certificate; no program looks for a
    reader's."""
    if role is Role.OPERATOR:
        return Path.home() / ".config" / "cis490" / "tls"
    if role is Role.READER:
        return Path.home() / ".config" / "cis490" / "reader" / name
    if role is Role.WATCHER:
        return watcher_folder(name)
    return HOME / "artifacts" / ".worker" / name / "tls"


def _request(args: argparse.Namespace) -> CertificateRequest:
    """Check the arguments and return them as a request. Raises ValueError with one sentence."""
    name = args.host_id or os.environ.get("FLEET_HOST_ID") or platform.node()
    if not re.fullmatch(HOST_ID_PATTERN, name):
        raise ValueError(
            f"{name!r} cannot be a name: 1 to 64 letters, digits and ._-, a letter or digit first; "
            "choose one with --host-id"
        )
    if not Address.of(args.receiver_url).secure:
        raise ValueError(f"{args.receiver_url!r} is not an https address; paste the whole line that enroll printed")
    given = {Role.OPERATOR: args.operator, Role.READER: args.reader, Role.WATCHER: args.watcher}
    role = next((role for role, is_given in given.items() if is_given), Role.HOST)
    return CertificateRequest(
        args.receiver_url,
        role,
        name,
        args.code.strip(),
        parse_fingerprint(args.fingerprint),
        (args.tls_dir or default_folder(role, name)).absolute(),
    )


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(
        PROGRAM,
        description="Get this machine's certificate, with the line that `cis490-jobs enroll` printed.",
    )
    parser.add_argument(
        "--receiver-url", required=True, metavar="URL", help="https address of the receiver, as printed"
    )
    parser.add_argument("--host-id", metavar="NAME", help="name the code is for (default: $FLEET_HOST_ID, node name)")
    roles = parser.add_mutually_exclusive_group()
    roles.add_argument("--operator", action="store_true", help="join as an operator, not as a host")
    roles.add_argument("--reader", action="store_true", help="join as a reader, such as Prometheus")
    roles.add_argument("--watcher", action="store_true", help="join as a watched host, which reports its incidents")
    parser.add_argument("--code", required=True, help="one-time code, as printed; valid for 15 minutes")
    parser.add_argument("--fingerprint", required=True, help="fingerprint of the receiver's CA, as printed: sha256:…")
    parser.add_argument(
        "--tls-dir", type=Path, metavar="DIR", help="folder for the certificate; default: where its program looks"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    replace_unprintable()
    args = _parser().parse_args(argv)
    try:
        wanted = _request(args)
    except ValueError as error:
        return _say(error, USAGE)
    try:
        print(join(wanted, SystemClock()))
    except (Unreachable, Unavailable) as error:
        return _say(error, UNREACHABLE)
    except (JoinError, CredentialsError, ClientError) as error:
        return _say(error, REFUSED)
    except OSError as error:
        return _say(f"cannot keep the certificate in {wanted.folder}: {error.strerror}", REFUSED)
    return DONE


def _say(error: object, code: int) -> int:
    """Print an error in one line, made safe because its words may come from an unverified server."""
    complain(f"join: {one_line(error, 1000)}")
    return code


if __name__ == "__main__":
    sys.exit(main())

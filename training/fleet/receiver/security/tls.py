"""The receiver's side of TLS: its context, its names, and the renewal of its certificate while it runs."""

import ipaddress
import logging
import re
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path

from training.clock import Clock
from training.fleet.receiver.security.authority import Authority, AuthorityError
from training.logs import HOURLY

logger = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")  # DNS or IPv4; IPv6
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


class Security:
    """A receiver's authority, and the TLS context with which the receiver serves. The constructor raises AuthorityError
    and OSError."""

    def __init__(self, folder: Path, names: Sequence[str], clock: Clock, *, for_proxy: bool = False) -> None:
        """``names``: the names and addresses by which clients reach the receiver, the most public one first."""
        self.authority = Authority.open(folder, clock)
        self.names = tuple(dict.fromkeys([*names, *LOOPBACK_NAMES]))
        self._for_proxy = for_proxy
        if not self.authority.server_is_current(self.names):
            self.authority.renew_server(self.names)
        self._share()
        self.context = server_context(folder)

    def tick(self) -> None:
        """Renew the receiver's own certificate when due; new connections then use it."""
        if self.authority.server_is_current(self.names):
            return
        try:
            self.authority.renew_server(self.names)
            self._share()
            _load_own(self.context, self.authority.folder)
        except (AuthorityError, OSError) as error:
            logger.error("the receiver's own certificate could not be renewed: %s", error, extra=HOURLY)

    def _share(self) -> None:
        """Let a proxy in the receiver's group read certificate and key, never the authority's key."""
        if self._for_proxy:
            self.authority.folder.chmod(0o750)
            for name in ("ca.pem", "server.pem", "server.key"):
                (self.authority.folder / name).chmod(0o640)


# The client speaks no TLS, so no alert can reach it.
_NOT_TLS = frozenset({"HTTP_REQUEST", "WRONG_VERSION_NUMBER", "HTTPS_PROXY_REQUEST"})


class ExplainedHandshake(ssl.SSLObject):
    """A TLS handshake whose failure is logged, and sent to the client as an alert before the connection closes.

    The event loop closes a connection at the first error, before the alert with the reason is sent. So the error is
    delayed as if more had to be read, which makes the loop send the alert first. After the alert the client
    disconnects, or the deadline for handshakes passes.
    """

    _LOOKS_MAX = 8  # bytes that arrive meanwhile stay in memory
    _refused: ssl.SSLError | None = None
    _looks = 0

    def do_handshake(self) -> None:
        if self._refused is None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError, ssl.SSLEOFError):
                raise
            except ssl.SSLError as error:
                why = getattr(error, "verify_message", None) or error.reason
                logger.info("a connection was refused in the TLS handshake: %s", why, extra=HOURLY)
                if error.reason in _NOT_TLS:
                    raise
                self._refused = error
            else:
                return
        self._looks += 1
        if self._looks > self._LOOKS_MAX:
            raise self._refused
        raise ssl.SSLWantReadError


def server_context(folder: Path) -> ssl.SSLContext:
    """Make a TLS 1.3 context; raises AuthorityError if the folder's certificates cannot be used. A client need not show
    a certificate (it may join, or send a token), but an invalid one is refused."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # no resumption: every connection shows its certificate
    context.verify_mode = ssl.CERT_OPTIONAL
    context.sslobject_class = ExplainedHandshake
    try:
        context.load_verify_locations(folder / "ca.pem")
        _load_own(context, folder)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise AuthorityError(
            f"the certificates in {folder} cannot be used ({why}); restore them from a backup, "
            "or remove server.json: the next start makes a new one"
        ) from None
    return context


def _load_own(context: ssl.SSLContext, folder: Path) -> None:
    context.load_cert_chain(folder / "server.pem", folder / "server.key")


def own_names(host: str, public: Sequence[str]) -> list[str]:
    """Return the receiver's names for its clients: those in ``public``, then its address ``host``, or if it listens on
    all addresses the machine's name. Raises ValueError for a text in ``public`` that is neither name nor address."""
    for name in public:
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} is neither a name nor an address; write --public-name pi.lan, without https:// and port"
            )
    names = list(public)
    try:
        specific = not ipaddress.ip_address(host).is_unspecified
    except ValueError:
        specific = True
    if specific:
        names.append(host)
    else:
        names.append(socket.gethostname())
    return names

"""The check of origins: refuse requests that a foreign page makes a browser send.

Browsers send the page's origin (``Origin``, ``Sec-Fetch-Site``) and the receiver's name (``Host``); programs send only
the last. A page whose domain points at this machine since it was loaded (DNS rebinding) is caught by that name: it must
be the receiver's own. An IP address cannot be rebound, and passes.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping, Sequence
from urllib.parse import urlsplit

from training.fleet.receiver.security.tls import LOOPBACK_NAMES
from training.fleet.wire.messages import ProblemType, Refusal

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITES = frozenset({"same-origin", "none"})  # none: typed into the browser


def check_host(hosts: Sequence[str]) -> None:
    """Raise Refusal unless there is one Host header: with two, a proxy may have read the other one."""
    if len(hosts) != 1 or not hosts[0].strip():
        raise Refusal(
            ProblemType.BAD_REQUEST,
            f"a request has one Host header that names the receiver, not {len(hosts) or 'none'}"
            if len(hosts) != 1
            else "the Host header is empty; it names the receiver",
        )


def check(method: str, headers: Mapping[str, str], names: Collection[str]) -> None:
    """Raise Refusal for a request of a foreign page. ``names``: this receiver's, beside those of loopback."""
    own = {*LOOPBACK_NAMES, *(name.lower() for name in names)}
    host = headers.get("Host")
    if host and not _is_ours(host, own):
        raise Refusal(
            ProblemType.MISDIRECTED,
            f"this receiver is not called {host[:80]!r}; if it should be, start it with --public-name",
        )
    if method in SAFE_METHODS:
        return
    origin = headers.get("Origin")
    same = origin is None or _is_own_page(origin, host, own)
    if not same or headers.get("Sec-Fetch-Site", "none").lower() not in _OWN_SITES:
        raise Refusal(ProblemType.ORIGIN_REFUSED, "a web page of another origin may not call this receiver")


def _is_ours(host: str, own: Collection[str]) -> bool:
    name = _name(f"//{host}")
    if name is None:
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.rstrip(".") in own
    return True


def _is_own_page(origin: str, host: str | None, own: Collection[str]) -> bool:
    """Return True for an origin with an own name and the request's own host; IP addresses must be listed, too."""
    name = _name(origin)
    return name in own and urlsplit(origin).netloc == host


def _name(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None

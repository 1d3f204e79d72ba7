"""Refuse requests that a foreign web page makes a browser send.

Browsers send the page's origin (``Origin``, ``Sec-Fetch-Site``) and the receiver's name (``Host``); other programs send
only ``Host``. DNS rebinding makes a page's domain point at this machine after the page was loaded. A rebound domain
shows in ``Host``, which must be one of the receiver's names or an IP address. An IP address as ``Host`` is allowed,
because rebinding needs a name.
"""

import ipaddress
import re
from collections.abc import Collection, Iterable
from functools import lru_cache

from starlette.datastructures import Headers

from training.fleet.receiver.security.tls import LOOPBACK_NAMES
from training.fleet.wire.constants import ProblemType, Refusal

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITES = frozenset({"same-origin", "none"})  # none: typed into the browser
# Exactly as browsers write it: whatever else is read in two ways, by us and by a proxy.
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?")


def own_names(names: Iterable[str]) -> frozenset[str]:
    """Return the names of this receiver, in lower case: ``names`` and those of loopback."""
    return frozenset({*LOOPBACK_NAMES, *(name.lower() for name in names if name)})


def check(method: str, headers: Headers, own: frozenset[str]) -> None:
    """Raise Refusal unless a request has exactly one Host header (of two, a proxy may read the other), with an IP
    address or one of this receiver's names. A request that may change something is also refused if it comes from a
    foreign web page.

    ``own``: the receiver's :func:`own_names`.
    """
    hosts = headers.getlist("Host")
    if len(hosts) != 1 or not hosts[0].strip():
        raise Refusal(
            ProblemType.BAD_REQUEST,
            f"a request has one Host header that names the receiver, not {len(hosts) or 'none'}"
            if len(hosts) != 1
            else "the Host header is empty; it names the receiver",
        )
    host = hosts[0]
    if not _is_ours(host, own):
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


@lru_cache(maxsize=64)  # callers say the same few over and over
def _is_ours(host: str, own: frozenset[str]) -> bool:
    name = _name(host)
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.rstrip(".") in own
    return True


def _is_own_page(origin: str, host: str, own: Collection[str]) -> bool:
    """Return True if an origin equals the request's Host, and its name is one of the receiver's; an IP address must be
    among these, too."""
    return origin in (f"http://{host}", f"https://{host}") and _name(host) in own


def _name(host: str) -> str:
    """Return the name in a Host header, in lower case; empty for one that no browser sends."""
    found = _HOST.fullmatch(host)
    return "" if found is None else (found[1] or found[2]).lower()

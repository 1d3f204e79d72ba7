"""The proxy on the way to a receiver, as the environment names it."""

import base64
import ipaddress
import os
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from training.fleet.client.address import Address

_PRIVATE = (".local", ".lan", ".home", ".internal", ".home.arpa", ".localhost")


class Proxy(NamedTuple):
    """A proxy that opens tunnels (CONNECT), and the headers that it wants."""

    host: str
    port: int
    headers: Mapping[str, str]


def proxy_for(at: Address) -> Proxy | None:
    """Return the proxy of ``HTTPS_PROXY`` for an encrypted receiver; None for loopback, private addresses and names,
    and what ``NO_PROXY`` names. Raises ValueError, with one sentence, for a proxy of another kind."""
    text = os.environ.get("https_proxy") or os.environ.get("HTTPS_PROXY")
    if not text or not at.secure or _is_private(at.host):
        return None
    from urllib import request  # only here: it costs a worker memory

    if request.proxy_bypass_environment(  # type: ignore[attr-defined]
        at.host if at.port is None else f"{at.host}:{at.port}"
    ):
        return None
    try:
        url = urlsplit(text if "://" in text else f"http://{text}")
        if url.scheme != "http" or not url.hostname:
            raise ValueError
        name = f"{unquote(url.username or '')}:{unquote(url.password or '')}"
        proof = {"Proxy-Authorization": f"Basic {base64.b64encode(name.encode()).decode()}"} if url.username else {}
        return Proxy(url.hostname, url.port or 80, proof)
    except ValueError:  # its text may hold a password
        raise ValueError("HTTPS_PROXY is not a proxy's address; it looks like http://proxy.example:3128") from None


def _is_private(host: str) -> bool:
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:
        name = host.rstrip(".").lower()
        return "." not in name or name.endswith(_PRIVATE)

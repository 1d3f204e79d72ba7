"""The receiver's address: parse it, and tell whether requests to it are encrypted or stay on this machine."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple
from urllib.parse import urlsplit


class Address(NamedTuple):
    """The parts of a receiver's address, ``http[s]://host[:port][/prefix]``."""

    secure: bool
    host: str
    port: int | None
    prefix: str

    @classmethod
    def of(cls, text: str) -> Address:
        """Parse the address of a receiver; raises ValueError, with one sentence, for any other text."""
        try:
            url = urlsplit(text)
            if "@" in url.netloc:
                raise ValueError
            if url.scheme in ("http", "https") and url.hostname and not url.query:
                return cls(url.scheme == "https", url.hostname, url.port, url.path.rstrip("/"))
        except ValueError:  # a bracket or a port that is none
            pass
        if "@" in text:  # the log does not show the secret
            raise ValueError(
                "a receiver's address has no user and no password in it; it looks like http://10.100.0.1:8445"
            )
        raise ValueError(f"{text!r} is not a receiver's address; it looks like http://10.100.0.1:8445")

    @property
    def private(self) -> bool:
        """Return True when requests to the address are encrypted or do not leave this machine."""
        if self.secure or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

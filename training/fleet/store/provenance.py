"""Provenance files: JSON with its own digest, so that one flipped bit shows. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from training.contract import digest

SEAL = "sha256"  # of the other members as canonical JSON


class BrokenSeal(ValueError):  # noqa: N818 - named for the event
    """The file has changed since it was written."""


def sealed(body: Mapping[str, Any]) -> bytes:
    """Encode ``body`` as a provenance file."""
    plain = msgspec.json.decode(msgspec.json.encode(body))  # as a reader sees it
    return msgspec.json.encode({**plain, SEAL: digest(plain)}) + b"\n"


def unsealed(data: bytes) -> dict[str, Any]:
    """Check the digest in a file and return its content; BrokenSeal if the bytes are damaged."""
    try:
        body = msgspec.json.decode(data, type=dict[str, Any])
        if body.pop(SEAL, None) != digest(body):
            raise BrokenSeal("the digest does not match")
    except (msgspec.DecodeError, UnicodeError, RecursionError, ValueError) as error:
        raise BrokenSeal(str(error)) from None
    return body

"""Provenance files and notes of removals: JSON with its own digest, so that damage of one bit is detected. Pure."""

import msgspec

from training.contract import digest
from training.strict_json import Json, JsonObject

SEAL = "sha256"  # of the other members as canonical JSON


class BrokenSeal(ValueError):  # noqa: N818 - named for the event
    """A provenance file or note is damaged: its digest does not match, or it is no JSON object."""


def sealed(body: Json) -> bytes:
    """Return ``body`` encoded as the content of a provenance file or note, with its digest."""
    plain = msgspec.json.decode(msgspec.json.encode(body))  # as a reader sees it
    return msgspec.json.encode({**plain, SEAL: digest(plain)}) + b"\n"


def unsealed(data: bytes) -> JsonObject:
    """Return a file's content, without its digest, after checking the digest. Raises BrokenSeal if the bytes are
    damaged."""
    try:
        body = msgspec.json.decode(data, type=JsonObject)
        if body.pop(SEAL, None) != digest(body):
            raise BrokenSeal("the digest does not match")
    except (msgspec.DecodeError, UnicodeError, RecursionError, ValueError) as error:
        raise BrokenSeal(str(error)) from None
    return body

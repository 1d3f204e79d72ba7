"""The chain of the audit: the digest of each row covers the row and the digest of the row before it. The code that
writes rows and all code that checks them use this module."""

import hashlib
from collections.abc import Iterable

import msgspec

from training import strict_json
from training.fleet.wire.messages import AuditEntry
from training.strict_json import Json

NOBODY = "0" * 64  # the digest before the first row


def first_broken(entries: Iterable[AuditEntry], previous: str = NOBODY) -> int | None:
    """Return the number of the first row whose digest does not fit this row and the one before; None if the chain is
    unbroken.

    ``previous`` is the digest of the row before the first one given.
    """
    for entry in entries:
        row = msgspec.structs.asdict(entry)
        del row["digest"]
        try:
            follows = entry.digest == digest(previous, row)
        except ValueError:  # a number that is none: not written here
            follows = False
        if not follows:
            return entry.seq
        previous = entry.digest
    return None


def digest(previous: str, row: Json) -> str:
    """Return the SHA-256, in hexadecimal, of the canonical JSON array ``[previous, row]``: the previous row's digest
    and this row."""
    text = strict_json.canonical([previous, dict(row)], ascii_only=True)
    return hashlib.sha256(text.encode()).hexdigest()

"""JSON as every reader takes it (I-JSON, RFC 7493): written by us, and demanded of files that others may have touched.

Python's own parser takes more than others do: halves of characters (``"\\ud800"``), which no file name, address or
message can carry, and numbers that are none (``NaN``, ``1e999``). What comes in that way would be refused much later,
by whomever it is sent to.
"""

from __future__ import annotations

import json
from typing import Any


def loads(text: str | bytes) -> Any:
    """The document that ``text`` is. Raises ValueError when it is none, or none that can be written again."""
    try:
        document = json.loads(text)
        json.dumps(document, ensure_ascii=False, allow_nan=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return document


_CANONICAL = {  # made once: a plan of thousands of jobs is encoded at every reload
    ascii_only: json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=ascii_only, allow_nan=False)
    for ascii_only in (False, True)
}


def canonical(value: Any, *, ascii_only: bool = False) -> str:
    """Return ``value`` with sorted keys and no spaces, so that equal values have equal text: digests are of it.

    ``ascii_only`` escapes other characters, as the digests of data sets and of the audit always did.
    Raises ValueError for a number that is none.
    """
    return _CANONICAL[ascii_only].encode(value)


def dumps(document: Any) -> bytes:
    """``document`` on one line; half a character in it (of a file name that is no text) becomes a question mark.

    Raises ValueError for a number that is none.
    """
    return json.dumps(document, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")

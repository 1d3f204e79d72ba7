r"""JSON that every reader accepts (I-JSON, RFC 7493): written by us, and required of files that others may have
changed.

Python's parser accepts more than others: halves of characters (``"\ud800"``), which no file name, address or message
can contain, and ``NaN`` or ``1e999``, which stricter parsers refuse.
"""

import json
from collections.abc import Mapping
from typing import Any

Json = Mapping[str, Any]  # an object, as it is read …
JsonObject = dict[str, Any]  # … and as it is made


def loads(text: str | bytes) -> Any:
    """Parse ``text``. Raises ValueError when ``text`` is not JSON, or its value could not be written again as strict
    JSON. Of a repeated key the last value counts."""
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
    """Return ``value`` as JSON with sorted keys and no spaces, from which digests are made: the order of a dict's keys
    does not change the text.

    ``ascii_only`` escapes all characters outside ASCII, as the digests of data sets and of the audit need. Raises
    ValueError for NaN and infinity.
    """
    return _CANONICAL[ascii_only].encode(value)


def dumps(document: Any) -> bytes:
    """Return ``document`` as JSON on one line; half a character in it (from an undecodable file name) becomes a
    question mark.

    Raises ValueError for NaN and infinity.
    """
    return json.dumps(document, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")

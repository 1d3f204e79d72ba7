"""PURE: decide whether an answer comes from the receiver, and if not, which program sent it.

In the receiver's place a captive portal may answer, a proxy (with its own limits, or without a back end), or another
service on its port. Another receiver may answer, too, such as one started by mistake with a wrong ``--db``. TLS does
not help, because a proxy may answer behind it. An answer counts only if its header has the right database id. For a
call about a grant, the right database is the one that granted it. For other calls, the right database is the one that
answered this client first, or with ``one_database=False`` any. An answer that does not count is treated like no answer.
"""

import re
from urllib.parse import urlsplit

from training.fleet.client.transport import Response
from training.fleet.wire.constants import DATABASE_ID_PATTERN, HEADER_DATABASE
from training.printable import printable

_BODY_LIMITS = {
    "nginx": "raise client_max_body_size there",
    "caddy": "raise max_size of its request_body there",
    "apache": "raise LimitRequestBody there",
}
_WORDS = {
    400: "another service, or a proxy that was spoken to in the wrong way: check the address, http:// or https://",
    401: "it wants a login, which the receiver never does: have the proxy let /v1/ pass",
    403: "a proxy or a firewall that blocks requests: make it pass /v1/",
    404: "another service on that port, or a proxy that leads elsewhere: check the address",
    407: "a proxy that wants a login: reach the receiver without it",
    429: "a proxy that limits requests: raise that limit",
    502: "a proxy that does not reach the receiver behind it: start the receiver, or correct its address in the proxy",
    503: "a proxy that has no receiver behind it now: start the receiver",
    504: "a proxy that got no answer from the receiver behind it: raise its time-out, or look at the receiver",
}


def shown_by(answer: Response) -> str | None:
    """Return the database id in an answer's header; None if there is none, or one of another form."""
    shown = answer.headers.get(HEADER_DATABASE.lower(), "")
    return shown if re.fullmatch(DATABASE_ID_PATTERN, shown) else None


def stranger(answer: Response, granted_by: str | None, before: str | None = None) -> str | None:
    """Name the program that answered in the receiver's place; None if the answer comes from the receiver.

    ``granted_by`` is the database that granted what the request is about; ``before`` is the database that answered the
    same client first. If ``granted_by`` and ``before`` are None, an answer with any database id counts.
    """
    shown, wanted = shown_by(answer), granted_by or before
    if shown is not None and wanted in (None, shown):
        return None
    if shown is None:
        return _who(answer)
    if granted_by is None:
        return (
            f"the database {shown} answered, and {before} a moment ago: the receiver's --db was changed meanwhile, or "
            "several receivers answer at that address"
        )
    return (
        f"the database {shown} answered and {granted_by} granted this: check the receiver's --db; "
        f"if that one has replaced it permanently, restart the worker with --accept-database {shown}"
    )


def _who(answer: Response) -> str:
    """Describe the program that answered, with the remedy: ``413 from nginx: …``."""
    by = printable(answer.headers.get("server") or answer.headers.get("via") or "")[:40].strip()
    return f"{answer.status} from {by or 'another program than the receiver'}: {_why(answer, by)}"


def _why(answer: Response, by: str) -> str:
    if 300 <= answer.status < 400:
        to = _origin(answer.headers.get("location", ""))
        return f"a redirection{to}, as of a captive portal: log in there, or reach the receiver by another way"
    if answer.status == 413:
        known = (words for name, words in _BODY_LIMITS.items() if name in by.lower())
        return f"a proxy's limit on bodies: {next(known, 'raise it there')}"
    if 200 <= answer.status < 300:
        kind = printable(answer.headers.get("content-type", ""))[:40]
        return f"a page ({kind}), so a captive portal, or another service on that port: check the address"
    return _WORDS.get(answer.status, "another service on that port, or a proxy: check the address")


def _origin(location: str) -> str:
    """Return " to HOST" with the host of a URL, without path and query, which may carry secrets; empty if there is
    none."""
    try:
        url = urlsplit(location)
    except ValueError:
        return ""
    named = url.hostname if url.scheme in ("http", "https") else None
    return f" to {printable(named)[:80]}" if named else ""

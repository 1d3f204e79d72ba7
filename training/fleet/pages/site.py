"""Make files of the receiver's pages, with relative links: of the pages that links reach from the menu."""

import hashlib
import html
import re
from collections import deque
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from posixpath import relpath
from urllib.parse import parse_qs, unquote, urlsplit

from training.fleet.wire.routes import PAGES

JOBS_MAX = 2000
_LINK = re.compile(r' (href|src)="(/[^"]*)"')
_STATIC = re.compile(r"/static/[A-Za-z0-9_-][A-Za-z0-9._-]*")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_JOBS = "jobs/"  # the folder of their pages


@dataclass(frozen=True)
class StaticSite:
    """The content of a static site: files by their path in the site's folder, and the numbers of jobs with and without
    a page."""

    files: dict[str, bytes] = field(default_factory=dict)
    jobs: int = 0
    left_out: int = 0


def site(ask: Callable[[str], bytes | None], step: Callable[[int, int], object]) -> StaticSite:
    """Make the static site of all pages that links reach from the menu; at most ``JOBS_MAX`` jobs get a page.

    ``ask`` returns the bytes of an address, None if it no longer exists. ``step`` is called with the numbers of files
    fetched and known.
    """
    todo = deque(row.path for row in PAGES.values() if row.shown is not None and row.shown.menu)
    seen, found = set(todo), dict[str, bytes]()
    jobs = left_out = 0
    while todo:
        address = todo.popleft()
        path = place(address) or ""
        if path.startswith(_JOBS) and jobs >= JOBS_MAX:
            left_out += 1
            continue
        body = ask(address if address.startswith("/static/") else f"{address}{'&' if '?' in address else '?'}static=1")
        if body is None:
            continue
        jobs += path.startswith(_JOBS)
        found[path] = body
        links = {html.unescape(link) for _, link in _LINK.findall(body.decode())} if path.endswith(".html") else ()
        new = sorted({link.partition("#")[0] for link in links} - seen)
        seen.update(new)
        todo += (link for link in new if place(link) is not None)
        step(len(found), len(found) + len(todo))
    return StaticSite({path: _relinked(body, path, found) for path, body in found.items()}, jobs, left_out)


def place(address: str) -> str | None:
    """Return the path that an address has in the site; None for an address that no site holds."""
    parts = urlsplit(address)
    if parts.path.startswith("/static/"):
        return parts.path[1:] if _STATIC.fullmatch(parts.path) else None
    asked = parse_qs(parts.query)
    for row in PAGES.values():
        if row.shown is None or not set(asked) <= set(row.shown.links):
            continue
        if "{" in row.path and parts.path.startswith(stem := row.path.partition("{")[0]):
            name = _UNSAFE.sub("-", unquote(parts.path.removeprefix(stem)))[:60].strip("-.")
            return f"{stem[1:]}{name or 'page'}-{_digest(parts.path)}.html"
        if parts.path == row.path and (asked or row.shown.menu):
            return f"{row.path[1:] or 'index'}{f'-{_digest(parts.query)}' if asked else ''}.html"
    return None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _relinked(body: bytes, path: str, files: Container[str]) -> bytes:
    """Make each link of a page lead to a file of the site. A link to a page outside of the site keeps its text, but
    loses its address."""
    if not path.endswith(".html"):
        return body

    def link(found: re.Match[str]) -> str:
        address, _, fragment = html.unescape(found[2]).partition("#")
        target = place(address)
        if target is None or target not in files:
            return ""
        shown = relpath(target, path.rpartition("/")[0] or ".") + (f"#{fragment}" if fragment else "")
        return f' {found[1]}="{html.escape(shown)}"'

    return _LINK.sub(link, body.decode()).encode()

"""The pages as files: each page that links lead to, from the first one on, with relative links and no script. PURE."""

from __future__ import annotations

import hashlib
import html
import re
from collections.abc import Iterator
from posixpath import relpath
from urllib.parse import parse_qs, unquote, urlsplit

from training.fleet.pages import compare, events, fleet, job, jobs, models, static
from training.fleet.pages.copied import Copied
from training.fleet.pages.rendering import Frame
from training.fleet.wire.messages import Refusal

_LINK = re.compile(r' (href|src)="(/[^"]*)"')
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_FOLLOWED = {"/jobs": {"status", "after"}, "/events": {"before"}, "/models": {"test", "after"}, "/compare": {"jobs"}}
STYLE = ("pages.css", "icon.svg")


def files(copied: Copied, version: str) -> Iterator[tuple[str, bytes]]:
    """Render every page that is reached by links; each with its path, relative to the site's folder."""
    frame, seen = Frame(copied.now, version=version, static=True), set[str]()
    for name in STYLE:
        found = static.static_file(static.static_path(name).rpartition("/")[2])
        assert found is not None
        seen.add(f"static/{name}")
        yield f"static/{name}", found.body
    todo = ["/", "/jobs", "/models", "/events"]
    while todo:
        address = todo.pop()
        path = place(copied, address)
        if path is None or path in seen:
            continue
        seen.add(path)
        page = _page(copied, address, frame)
        links = {html.unescape(link) for _, link in _LINK.findall(page)}
        todo += sorted(link for link in links if place(copied, link) not in (None, *seen))
        yield path, _relative(copied, page, path).encode()


def place(copied: Copied, address: str) -> str | None:
    """Return the file of an address; None for what a site does not hold."""
    parts = urlsplit(address)
    if parts.path.startswith("/static/"):
        stem, _, ending = parts.path.removeprefix("/static/").partition(".")
        name = f"{stem}.{ending.rpartition('.')[2]}"
        return f"static/{name}" if name in STYLE else None
    if parts.path == "/":
        return "index.html"
    if parts.path.startswith("/jobs/"):
        job_id = copied.named(unquote(parts.path.removeprefix("/jobs/")))
        if job_id is None or parts.query:
            return None
        slug = _UNSAFE.sub("-", copied.jobs[job_id].detail.job.name)[:60].strip("-.")
        return f"jobs/{slug or 'job'}-{_UNSAFE.sub('-', job_id)[:12]}.html"
    asked = parse_qs(parts.query)
    if parts.path not in _FOLLOWED or set(asked) - _FOLLOWED[parts.path]:
        return None
    if not asked:
        return None if parts.path == "/compare" else f"{parts.path[1:]}.html"
    return f"{parts.path[1:]}-{hashlib.sha256(parts.query.encode()).hexdigest()[:10]}.html"


def _page(copied: Copied, address: str, frame: Frame) -> str:
    parts = urlsplit(address)
    asked = {key: values[0] for key, values in parse_qs(parts.query).items()}
    try:
        if parts.path == "/":
            return fleet.page(copied, copied.health, frame)
        if parts.path == "/jobs":
            return jobs.page(copied, jobs.Query.of(asked), frame)
        if parts.path == "/models":
            return models.page(copied, frame, test=asked.get("test"), after=asked.get("after", ""))
        if parts.path == "/events":
            before = asked.get("before", "")
            return events.page(copied, events.Query(before=int(before) if before.isdigit() else None), frame)
        if parts.path == "/compare":
            named = [copied.named(ref) for ref in asked["jobs"].split(",")]
            return compare.page(copied, [job_id for job_id in named if job_id is not None], frame)
        job_id = copied.named(unquote(parts.path.removeprefix("/jobs/")))
        assert job_id is not None
        return job.page(copied, job_id, frame)
    except Refusal as refusal:
        from training.fleet.pages import refusal as refusals

        return refusals.page(refusal, frame)


def _relative(copied: Copied, page: str, path: str) -> str:
    """Make each link lead to a file; one that leads to none of the site stays as a word."""

    def link(found: re.Match[str]) -> str:
        address = html.unescape(found[2])
        target, fragment = place(copied, address), urlsplit(address).fragment
        if target is None:
            return ""
        shown = relpath(target, path.rpartition("/")[0] or ".") + (f"#{fragment}" if fragment else "")
        return f' {found[1]}="{html.escape(shown)}"'

    return _LINK.sub(link, page)

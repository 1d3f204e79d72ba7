"""Render values as HTML; every page uses this module.

Every text passes :mod:`training.printable` and is escaped in every template: remote text can neither become markup nor
affect the text around it. Jinja2 is loaded with the first page, to save memory in a receiver whose pages are not
opened.
"""

import re
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from training.fleet.pages.static import static_path
from training.fleet.scheduling.job import JobStatus
from training.fleet.wire import results, words
from training.fleet.wire.routes import PAGES
from training.printable import counted, one_line, printable
from training.strict_json import Json


class Frame(NamedTuple):
    """The values that the frame around every page shows. ``now`` in epoch seconds of the receiver's clock."""

    now: float
    viewer: str = ""  # the name of who looks, where one was proven
    version: str = ""
    address: str = ""  # of the page, where it can be followed
    may_act: bool = False  # an operator looks
    in_session: bool = False  # after a login, which can be ended
    followed: bool = False  # it asks again every few seconds
    static: bool = False  # a file of a site: without a receiver, forms and scripts

    @property
    def place(self) -> str:
        """Return the first segment of the page's address, which is the address of its menu entry if it has one; empty
        for a page without an address."""
        return "/" + self.address.partition("?")[0].split("/")[1] if self.address else ""


def render(template: str, frame: Frame, **values: Any) -> str:
    """Render a template of this package with values that may come from other machines."""
    page = _environment().get_template(template).render(frame=frame, **values)
    return page.replace(" %", "\u00a0%")  # no line ends between a number and its per cent sign


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.globals |= {
        "static": static_path,
        "job_path": job_path,
        "host_link": host_link,
        "typed": words.typed,
        "time": time_element,
        "clock": clock_element,
        "when": when,
        "moment": moment,
        "state": state_element,
        "words": words,
        "results": results,
        "counted": counted,
        "MENU": [(row.path, row.shown.menu) for row in PAGES.values() if row.shown is not None and row.shown.menu],
        "GLYPHS": words.GLYPHS,
        "STATUSES": [*JobStatus],
    }
    environment.filters |= {"one_line": one_line, "coded": coded, "part": path_part, "breaking": breaking}
    return environment


def _shown(value: object) -> object:
    """Make a template's value printable before it is escaped. None becomes empty; Markup, which only our code makes,
    stays."""
    if value is None:
        return ""
    return value if isinstance(value, Markup) else _together(printable(value))


def _together(text: str) -> str:
    """Bind each per cent sign to its number, so that no line breaks between them."""
    return re.sub("(?<=[0-9]) %", "\N{NO-BREAK SPACE}%", text)


def page_address(path: str, **fields: object) -> str:
    """Return a page's address with its fields; empty fields are left out."""
    given = urlencode({key: value for key, value in fields.items() if value}, doseq=True)
    return f"{path}?{given}" if given else path


def path_part(text: object) -> str:
    """Quote a text as one segment of a path."""
    return quote(str(text), safe="")


def job_path(job: Json) -> str:
    """Return the address of a job's page: by its name while the job is in the plan, else by its id, because another job
    may have the name then.

    The id is also used for a name of dots alone, which would mean a folder, and for a row without ``in_manifest``.
    """
    name = str(job.get("name") or "")
    by_name = job.get("in_manifest") and name.strip(".") != ""
    return f"/jobs/{path_part(name if by_name else job.get('job_id'))}"


def host_path(name: object) -> str:
    """Return the address of a host's page."""
    return f"/hosts/{path_part(name)}"


def host_link(name: object) -> Markup:
    """Return a link to a host's page; empty without a name."""
    return Markup('<a href="{}">{}</a>').format(host_path(name), one_line(name, 64)) if name else Markup("")


def coded(text: object, chars_max: int = 600) -> Markup:
    """Return a text as one line of HTML, with each part between two backticks set as code."""
    parts = re.split("`([^`]+)`", _together(one_line(text, chars_max)))
    return Markup("").join(Markup("<code>{}</code>").format(each) if n % 2 else each for n, each in enumerate(parts))


def breaking(name: str) -> Markup:
    """Return a name that may break after `[`, a comma or `_`, before it breaks in a word or a number."""
    return Markup("<wbr>").join(re.split(r"(?<=[\[,_])", name))


def local(at: float) -> datetime:
    """Convert epoch seconds to a time in the receiver's time zone, which mostly is the operator's."""
    return datetime.fromtimestamp(at, UTC).astimezone()


def time_element(at: object, now: float) -> Markup:
    """Return a ``<time>`` element that shows a time relative to ``now`` ("3 min ago"), exact on hover; empty if ``at``
    is no number."""
    known = words.number(at)
    if known is None:
        return Markup("")
    said = words.ago(known, now) if known <= now else f"in {words.duration(known - now)}"
    there = local(known)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        there.isoformat(timespec="seconds"), there.strftime("%a %d %b %Y, %H:%M:%S %Z"), said
    )


def moment(at: float) -> str:
    """Format a time with its date, in the receiver's time zone."""
    return f"{local(at):%d %b %Y, %H:%M %Z}"


def clock_element(at: float) -> Markup:
    """Return a ``<time>`` element that shows a time in hours, minutes and time zone."""
    there = local(at)
    return Markup('<time datetime="{}">{}</time>').format(there.isoformat(timespec="seconds"), f"{there:%H:%M %Z}")


def when(at: float, now: float) -> str:
    """Format a time in the receiver's time zone: in hours and minutes if it is on the day of ``now``, else with its
    date."""
    there = local(at)
    return f"{there:%H:%M}" if there.date() == local(now).date() else f"{there:%a %d %b %H:%M}"


def state_element(job: Json) -> Markup:
    """Return a ``<span>`` element that shows a job's state by glyph, word and colour, with its remarks (held, not in
    the plan)."""
    status = str(job.get("status"))
    look = "held" if job.get("held_by") and status == "pending" else status
    marks = words.marks(job)
    word = printable(status) + (f" ({', '.join(marks)})" if marks else "")
    known = look if look in words.GLYPHS else "pending"
    return Markup('<span class="state {}"><span aria-hidden="true">{}</span> {}</span>').format(
        known, words.GLYPHS[known], escape(word)
    )

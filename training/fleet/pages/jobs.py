"""The page that lists and filters jobs. The page's address has the filters, the order, and the job after which the page
begins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from training.fleet.pages.page_request import PageRequest
from training.fleet.pages.rendering import Frame, page_address, render
from training.fleet.scheduling.job import JobStatus
from training.fleet.service.job_views import HELD, Counted, JobFilter, ListPlace
from training.printable import counted, one_line

ROWS_MAX = 50
ORDERS = {"newest": "last change", "name": "name", "priority": "priority", "arrival": "arrival"}


class JobsQuery(NamedTuple):
    """The content of the page's address: filters, order, and the job in the list after which the page begins."""

    wanted: JobFilter = JobFilter()
    sort: str = "newest"
    after: ListPlace = ListPlace()

    @classmethod
    def of(cls, asked: Mapping[str, str]) -> JobsQuery:
        """Read an address's query; an invalid order or place in the list counts as absent."""
        sort = asked.get("sort", "newest")
        return cls(JobFilter.of(asked), sort if sort in ORDERS else "newest", place(asked.get("after", "")))

    def address(self, **changed: str) -> str:
        """Return the page's address with some parts changed; without ``after`` it leads to the first page."""
        said = {**self.wanted.given(), "sort": self.sort, **changed}
        return page_address("/jobs", **said | ({"sort": ""} if said["sort"] == "newest" else {}))


def place(text: str) -> ListPlace:
    """Read a place in the list from an address: the job's number, its sort key as a number, and as a text. An invalid
    place counts as the list's beginning."""
    seq, _, rest = text.partition(",")
    number, _, word = rest.partition(",")
    try:
        known = ListPlace(int(seq[:15]), float(number[:30]), word)
    except ValueError:
        return ListPlace()
    return known if known.seq > 0 and abs(known.number) < 1e15 else ListPlace()


def page(asked: PageRequest, frame: Frame) -> str:
    """Render one page of at most fifty jobs, with the number of all jobs that match the filters."""
    views, query = asked.views, JobsQuery.of(asked.query)
    shown, following = views.found(query.wanted, query.sort, query.after, ROWS_MAX)
    kinds = views.counted(query.wanted.q)
    held = views.held(query.wanted)
    total = held if query.wanted.status == HELD else matching(kinds, query.wanted)
    goes_on = None
    if following is not None:
        goes_on = query.address(after=f"{following.seq},{following.number!r},{following.word}")
    return render(
        "jobs.html",
        frame,
        query=query,
        jobs=[each.to_dict() for each in shown],
        sentence=sentence(total, len(shown), query),
        states=_options(kinds, query.wanted, "status", [*JobStatus]),
        models=_options(kinds, query.wanted, "model"),
        modes=_options(kinds, query.wanted, "mode"),
        hosts=_options(kinds, query.wanted, "host"),
        held=held,
        total=total,
        orders=ORDERS,
        following=goes_on,
        narrowed=query.wanted != JobFilter(),
    )


def matching(kinds: Sequence[Counted], wanted: JobFilter) -> int:
    """Count the jobs in ``kinds`` that match the filters for status, model, mode and host."""
    return sum(each.n for each in kinds if _passes(each, wanted))


def _passes(kind: Counted, wanted: JobFilter, but: str = "") -> bool:
    return all(
        name == but or not getattr(wanted, name) or getattr(kind, name) == getattr(wanted, name)
        for name in ("status", "model", "mode", "host")
    )


def _options(
    kinds: Sequence[Counted], wanted: JobFilter, name: str, order: Sequence[str] = ()
) -> list[tuple[str, int]]:
    """List the values that a filter can take under the other filters, with the number of jobs of each."""
    found = Counter[str]()
    for each in kinds:
        value = getattr(each, name)
        if value and _passes(each, wanted, name):
            found[value] += each.n
    chosen = getattr(wanted, name)
    if chosen and chosen != HELD:
        found.setdefault(chosen, 0)
    key: Callable[[str], Any] = (lambda value: order.index(value) if value in order else len(order)) if order else str
    return [(value, found[value]) for value in sorted(found, key=key)]


def sentence(total: int | None, shown: int, query: JobsQuery) -> str:
    """Say in one line how many jobs match which filters."""
    wanted = query.wanted
    said = [wanted.status, wanted.mode, wanted.model]
    what = " ".join(one_line(each, 40) for each in said if each)
    where = f" on {one_line(wanted.host, 40)}" if wanted.host else ""
    named = f" with “{one_line(wanted.q, 40)}” in the name" if wanted.q else ""
    if not shown and query.after == ListPlace():
        return f"No {what + ' ' if what else ''}jobs{where}{named}."
    number = counted(total if total is not None else shown, "jobs")
    return f"{number.replace(' ', f' {what} ', 1) if what else number}{where}{named}."

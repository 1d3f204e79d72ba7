"""The page that lists and filters jobs. The page's address has the filters, the order, and the job after which the page
begins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from training.fleet.pages.page_request import PageRequest
from training.fleet.pages.rendering import Frame, page_address, render
from training.fleet.scheduling.job import JobStatus
from training.fleet.service.job_views import HELD, Counted, JobFilter, ListPlace
from training.fleet.wire import words
from training.fleet.wire.views import JobView
from training.printable import counted, one_line

ROWS_MAX = 50
SETTINGS_MAX = 4  # columns
SORTED_MAX = 500  # jobs of an order that the database does not have
ORDERS = {"newest": "last change", "name": "name", "priority": "priority", "arrival": "arrival"}  # of the database
COLUMNS: Mapping[str, Callable[[JobView], Any]] = {
    "newest": lambda job: -(job.finished_at or job.claimed_at or job.created_at),
    "name": lambda job: job.name,
    "state": lambda job: words.STATUSES.index(job.status),
    "model": lambda job: f"{job.model}, {job.mode}",
    "host": lambda job: job.host,
    "auroc": lambda job: None if job.auroc is None or job.auroc.value is None else -job.auroc.value,
}
SETTING = "set."  # begins the order by a setting


class JobsQuery(NamedTuple):
    """The content of the page's address: filters, order, and the job in the list after which the page begins. An order
    with a dash before it is the other way round."""

    wanted: JobFilter = JobFilter(present="1")
    sort: str = "newest"
    after: ListPlace = ListPlace()

    @classmethod
    def of(cls, asked: Mapping[str, str]) -> JobsQuery:
        """Read an address's query; an invalid order or place in the list counts as absent. Cancelled jobs and completed
        ones that left the plan are shown with ``all``, or where the status is "cancelled"."""
        sort = asked.get("sort", "")[:100]
        column = sort.removeprefix("-")
        known = sort in ORDERS or column in COLUMNS or column.startswith(SETTING)
        wanted = JobFilter.of(asked)
        every = asked.get("all") or wanted.status == "cancelled"
        wanted = replace(wanted, present="" if every else "1")
        return cls(wanted, sort if known else "newest", place(asked.get("after", "")))

    def address(self, **changed: str) -> str:
        """Return the page's address with some parts changed; without ``after`` it leads to the first page."""
        said = (
            self.wanted.given()
            | {"all": "" if self.wanted.present else "1", "sort": self.sort, "present": ""}
            | changed
        )
        return page_address("/jobs", **said | ({"sort": ""} if said["sort"] == "newest" else {}))

    def head(self, key: str) -> str:
        """Return the address that orders by this column: the other way round, if the page is ordered by it."""
        return self.address(sort=f"-{key}" if self.sort == key else key)


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
    listed = query.sort in ORDERS
    shown, following = views.found(
        query.wanted, *((query.sort, query.after, ROWS_MAX) if listed else ("newest", ListPlace(), SORTED_MAX))
    )
    partly = following is not None and not listed
    if not listed:
        begin, end = query.after.seq, query.after.seq + ROWS_MAX
        following = ListPlace(end) if end < len(shown) else None
        shown = in_order(shown, query.sort)[begin:end]
    kinds = views.counted(query.wanted.q)
    settings = differing([job.settings for job in shown])
    columns = [key for key, values in settings.items() if len(values - {""}) > 1][:SETTINGS_MAX]
    held = views.held(query.wanted)
    found = [each for each in kinds if _passes(each, query.wanted)]
    total = held if query.wanted.status == HELD else sum(each.n for each in found)
    goes_on = None
    if following is not None:
        goes_on = query.address(after=f"{following.seq},{following.number!r},{following.word}")
    return render(
        "jobs.html",
        frame,
        query=query,
        jobs=[each.to_dict() for each in shown],
        settings=columns,
        others=[key for key in settings if key not in columns],
        scored=any(job.auroc is not None for job in shown),
        tests=len({job.test for job in shown if job.auroc is not None}),
        sentence=sentence(total, len(shown), query, sum(each.n for each in found if not each.in_manifest)),
        states=_options(kinds, query.wanted, "status", [*JobStatus]),
        models=_options(kinds, query.wanted, "model"),
        modes=_options(kinds, query.wanted, "mode"),
        hosts=_options(kinds, query.wanted, "host"),
        held=held,
        total=total,
        orders=_orders(query.sort, [*settings]),
        partly=SORTED_MAX if partly else 0,
        hidden=sum(
            each.n for each in kinds if _passes(each, query.wanted, "present") and not _passes(each, query.wanted)
        ),
        following=goes_on,
        narrowed=query.wanted not in (JobFilter(), JobFilter(present="1")),
    )


def in_order(jobs: Sequence[JobView], sort: str) -> list[JobView]:
    """Sort jobs by a column or a setting, those without a value last; equal ones keep their order."""
    key, back = sort.removeprefix("-"), sort.startswith("-")

    def value(job: JobView) -> Any:
        return COLUMNS[key](job) if key in COLUMNS else job.settings.get(key.removeprefix(SETTING))

    def place(job: JobView) -> tuple[bool, float, str]:
        found = value(job)
        number = words.number(found)
        return (number is None, number or 0.0, "" if number is not None else str(found))

    known = [job for job in jobs if value(job) is not None]
    return sorted(known, key=place, reverse=back) + [job for job in jobs if value(job) is None]


def differing(settings: Sequence[Mapping[str, Any]]) -> dict[str, set[str]]:
    """Return the settings that are not equal in all jobs with their values, those that most jobs have first; the value
    is empty for jobs without the setting."""
    counts = Counter(key for each in settings for key in each)
    values = {key: {str(each.get(key, "")) for each in settings} for key, _ in counts.most_common()}
    return {key: found for key, found in values.items() if len(found) > 1}


def _orders(chosen: str, settings: Sequence[str]) -> dict[str, str]:
    """Return the orders to choose from, each with its title; the chosen one is among them."""
    others = {key: "AUROC" if key == "auroc" else key for key in COLUMNS if key not in ORDERS}
    found = ORDERS | others | {SETTING + key: key for key in settings}
    back = chosen.removeprefix("-")
    return found if chosen in found else found | {chosen: f"{found.get(back, back.removeprefix(SETTING))}, reversed"}


def _passes(kind: Counted, wanted: JobFilter, but: str = "") -> bool:
    """Tell whether jobs of this kind match the filters for status, model, mode, host and presence, without ``but``."""
    gone = kind.status == "cancelled" or (kind.status == "completed" and not kind.in_manifest)
    if gone and wanted.present and but != "present":
        return False
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


def sentence(total: int | None, shown: int, query: JobsQuery, unplanned: int = 0) -> str:
    """Say in one line how many jobs match which filters; the ``unplanned`` ones among them, which are not in the plan,
    are counted apart."""
    wanted = query.wanted
    said = [wanted.status, wanted.mode, wanted.model]
    what = " ".join(one_line(each, 40) for each in said if each)
    where = f" on {one_line(wanted.host, 40)}" if wanted.host else ""
    named = f" with “{one_line(wanted.q, 40)}” in the name" if wanted.q else ""
    if not shown and query.after == ListPlace():
        return f"No {what + ' ' if what else ''}jobs{where}{named}."
    number = counted((total if total is not None else shown) - unplanned, "jobs")
    others = f"; not in the plan: {unplanned}" if unplanned else ""
    return f"{number.replace(' ', f' {what} ', 1) if what else number}{where}{named}{others}."

"""The page of events: a list of what happened to jobs, newest first."""

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple

from training.fleet.pages.page_request import PageRequest
from training.fleet.pages.rendering import Frame, local, page_address, render
from training.fleet.service.guards import refuse_host
from training.fleet.service.job_views import Event
from training.fleet.wire import words

ROWS_MAX = 50


class EventsQuery(NamedTuple):
    """The content of the page's address: its filters, and the number of the event before which the list begins. An
    empty query means all events, from the newest."""

    job: str = ""  # an id
    host: str = ""
    kind: str = ""  # a transition
    before: int | None = None

    def address(self, **changed: Any) -> str:
        """Return the page's address with some parts changed; without ``before`` it begins at the newest event."""
        said = {**self._asdict(), "before": None, **changed}
        return page_address("/events", **said)


def page(asked: PageRequest, frame: Frame) -> str:
    """Render one page of at most fifty events that match the address, newest first. A training host's request is
    refused."""
    refuse_host(asked.host, "all events")
    views, before = asked.views, asked.number("before") or None
    job, host, kind = (asked.query.get(name, "") for name in ("job", "host", "kind"))
    query = EventsQuery(job, host, kind, before)
    found = views.events(
        before=query.before, job_id=query.job, host=query.host, transition=query.kind, limit=ROWS_MAX + 1
    )
    shown = found[:ROWS_MAX]
    return render(
        "events.html",
        frame,
        query=query,
        days=[*days(shown)],
        sentence=sentence(shown, query, frame.now),
        older=query.address(before=shown[-1].seq) if len(found) > len(shown) else None,
        hosts=[known.hostname for known in views.workers().workers],
        kinds=words.EVENTS,
        job_name=shown[0].name if query.job and shown else query.job,
    )


def days(events: list[Event]) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Group events by their day in the receiver's time zone; yield each day with its events, each with its time of day
    as ``clock``."""
    for day, group in groupby(events, key=lambda event: _day(event.at)):
        yield day, [{**event._asdict(), "clock": f"{local(event.at):%H:%M:%S}"} for event in group]


def _day(at: float) -> str:
    there = local(at)
    return f"{there:%A}, {there.day} {there:%B %Y}"


def sentence(events: list[Event], query: EventsQuery, now: float) -> str:
    """Say in one line what the newest event shown was, and when; on a later page, only when."""
    if not events:
        return "Nothing has happened yet." if query == EventsQuery() else "No event matches."
    last = events[0]
    if query.before is not None:
        return f"What happened before {words.ago(last.at, now)}."
    return f"Last, {words.ago(last.at, now)}: {last.name} {words.happened(last._asdict())}."

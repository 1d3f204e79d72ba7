"""The page of incidents: the alarms and changes that watched hosts reported."""

from collections.abc import Sequence

from training.fleet.pages.page_request import PageRequest
from training.fleet.pages.rendering import Frame, local, page_address, render
from training.fleet.service.guards import incidents_for
from training.fleet.wire import words
from training.printable import counted, one_line
from training.strict_json import Json

SPANS_SHOWN = 3
HOST_CHARS = 128
ENDS = {
    "confirmed": "confirmed on the host as its ordinary work",
    "reference": "over: the host has a new reference",
    "later": "over: another change was reported",
}


def page(asked: PageRequest, frame: Frame) -> str:
    """Render a page of the incidents of one host, or of all hosts, newest first. A training host gets only its own."""
    host, before = incidents_for(asked.host, asked.query.get("host", "")[:HOST_CHARS]), asked.number("before")
    told = asked.views.incidents.incidents(host=host, before=before).to_dict()
    older = told["next_before"]
    return render(
        "incidents.html",
        frame,
        sentence=sentence(told, host, before),
        watches=told["watches"],
        hosts=_hosts(told["incidents"]),
        host=host,
        older=None if older is None else page_address("/incidents", host=host, before=older),
        ends=ENDS,
        lasted=lasted,
        spans=spans,
    )


def sentence(told: Json, host: str, before: int) -> str:
    """Say in one line how many incidents are open, how many hosts have changed, and how many watches are silent. On a
    later page, say only whose incidents are shown."""
    whose = f" on {one_line(host, 64)}" if host else ""
    if before:
        return f"Earlier incidents{whose}."
    watches = told["watches"]
    still = [each for each in watches if each["silent"]]
    silence = f" {len(still)} {'watch' if len(still) == 1 else 'watches'} fell silent." if still else ""
    changed = told["changed"]
    if changed:
        who = one_line(host, 64) if host else counted(changed, "hosts")
        silence = f" {who} {'has' if changed == 1 else 'have'} changed.{silence}"
    if told["open"]:
        number = told["open"]
        return f"{counted(number, 'incidents')}{whose} {'is' if number == 1 else 'are'} open and not judged.{silence}"
    if not watches and not told["incidents"]:
        return f"{one_line(host, 64) if host else 'No host'} is{' not' if host else ''} watched yet."
    if not told["incidents"]:
        return f"Nothing was reported{whose} so far.{silence}"
    return f"No open incident{whose} waits to be judged.{silence}"


def _hosts(incidents: Sequence[Json]) -> list[tuple[str, list[Json], list[Json]]]:
    """Group a page's incidents by host, in the order given; return each host with its alarms and its changes."""
    found: dict[str, tuple[list[Json], list[Json]]] = {}
    for each in incidents:
        found.setdefault(each["host"], ([], []))[each["kind"] == "change"].append(each)
    return [(host, *both) for host, both in found.items()]


def lasted(one: Json) -> str:
    """Say when an incident began, when its last alarm was, and how long lies between."""
    begin, end = local(one["began_at"]), local(one["last_alarm_at"])
    until = f"{end:%H:%M:%S}" if end.date() == begin.date() else f"{end:%a %d %b %H:%M:%S}"
    length = words.duration(max(0.0, one["last_alarm_at"] - one["began_at"]))
    return f"{begin:%a %d %b %H:%M:%S} to {until} ({length})"


def spans(one: Json) -> str:
    """Format the first three spans of time that carried an incident's alarms, and count the others."""
    found = [f"{local(start):%H:%M:%S} to {local(end):%H:%M:%S}" for start, end in one["seconds"][:SPANS_SHOWN]]
    more = len(one["seconds"]) - len(found)
    return ", ".join(found) + (f" and {more} more" if more > 0 else "")

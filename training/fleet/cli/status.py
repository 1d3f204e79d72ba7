"""``cis490-jobs status``: collect and render the state of the whole fleet on one screen. Pure."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from training.fleet.cli.render import cancelled_line, cell, not_shown, state, table
from training.fleet.wire.words import STATUSES, Json, ago, called, eta, held, left, progress
from training.printable import counted, one_line, some

_PENDING_SHOWN = 40
_NAMED_SHOWN = 40
_NAME_SHOWN = 60  # characters
_NAMES_IN_GROUP = 4
HOSTS_AND_DATA = {  # of the receiver's health
    "quarantined": "Hosts that get no jobs",
    "resting": "Hosts at rest",
    "refused": "Workers that are refused",
    "missing_datasets": "Data sets that are not here",
    "never_asked": "Hosts of the plan that never asked for work",
}


def status_data(jobs: Sequence[Json], page: Json, health: Json, *, whole: bool) -> Json:
    """Return the data of ``status``, which ``--json`` prints and `render_status` shows. ``whole`` says whether ``jobs``
    holds all jobs of the queue."""
    pending = [view for view in jobs if view["status"] == "pending"]
    cancelled = [view for view in jobs if view["status"] == "cancelled" and view["in_manifest"]]
    return {
        "counts": page["counts"],
        "unplanned": page["unplanned"],
        "jobs": jobs,
        "failed": [_entry(view, "error", "ended_by", "in_manifest") for view in jobs if view["status"] == "failed"],
        "cancelled_in_plan": [_entry(view, "ended_by", "finished_at") for view in cancelled],
        "held": [_entry(view, "held_by", "held_at") for view in pending if view["held_by"]],
        "cannot_run": [_entry(view, "obstacle") for view in pending if view["obstacle"] and not view["passed_over"]],
        "passed_over": [_entry(view, "obstacle") for view in pending if view["passed_over"]],
        "notes": [_entry(view, "note") for view in jobs if view["note"]],
        "complete": whole,  # false: the queue is long, and only a part of it is listed here
        "now": page["now"],
        "unlike": page["unlike"],
        "plan_notes": health["plan_notes"],
    } | {key: health[key] for key in HOSTS_AND_DATA}


def _entry(view: Json, *keys: str) -> dict[str, Any]:
    return {key: view[key] for key in ("name", "job_id", *keys)}


def render_status(data: Json, health: Json) -> RenderableType:
    parts: list[RenderableType] = [_counts(data["counts"], data["unplanned"])]
    if health["detail"]:
        parts.append(cell(health["detail"], "bold yellow"))
    parts += [Text(), _status_table(data)] if data["jobs"] else []
    for key, title in HOSTS_AND_DATA.items():
        named = [{"name": name, "reason": reason} for name, reason in sorted(data[key].items())]
        parts += _named(title, named, "reason", "bold yellow")
    if not data["complete"]:
        parts.append(Text("The queue is long: see all of it with `cis490-jobs list`.", "dim"))
    parts += _named("Failed", data["failed"], "error", "bold red")
    parts += _cancelled(data["cancelled_in_plan"], data["now"])
    told = [{"name": each["name"], "held": held(each, data["now"])} for each in data["held"]]
    parts += _named("Held until `cis490-jobs unhold`", _grouped(told, "held"), "held", "bold yellow")
    parts += _named("Cannot run anywhere", _grouped(data["cannot_run"], "obstacle"), "obstacle", "bold yellow")
    parts += _named("Passed over", _grouped(data["passed_over"], "obstacle"), "obstacle", "bold yellow")
    parts += [cell(each, "bold yellow", chars_max=1000) for each in [*data["unlike"], *data["plan_notes"]]]
    parts += _named("Worth knowing", _grouped(data["notes"], "note"), "note", "bold yellow")
    return Group(*parts)


def _cancelled(entries: Sequence[Json], now: object) -> list[RenderableType]:
    """Render the cancelled jobs that the plan names, under a warning; nothing if there are none."""
    if not entries:
        return []
    told = [{"name": each["name"], "why": f"{each['ended_by']}, {ago(each['finished_at'], now)}"} for each in entries]
    line = cancelled_line(len(entries))
    return _named(line[0].upper() + line[1:], told, "why", "bold yellow")


def _grouped(entries: Sequence[Json], key: str) -> list[Json]:
    """Return one entry for each value of ``key``; the entry names a few of the jobs with that value."""
    groups: dict[str, list[str]] = {}
    for entry in entries:
        name = one_line(entry["name"], _NAME_SHOWN)
        groups.setdefault(str(entry.get(key)), []).append(name)
    return [{"name": some(names, _NAMES_IN_GROUP), key: said} for said, names in groups.items()]


def _counts(counts: Json, unplanned: Json) -> Text:
    said = ", ".join(f"{counts[s]} {s}" for s in STATUSES if counts.get(s))
    others = ", ".join(
        f"{unplanned[s]} {s}" for s in STATUSES if unplanned.get(s) and s not in ("completed", "cancelled")
    )
    line = f"{counted(sum(counts.values()), 'jobs')}: {said}" if said else "no jobs yet"
    return Text(line + (f"; not in the plan: {others}" if others else ""), style="bold")


def _status_table(data: Json) -> RenderableType:
    rows = []
    order = {status: place for place, status in enumerate(STATUSES)}
    current = [view for view in data["jobs"] if not left(view)]
    jobs = sorted(current, key=lambda v: order.get(str(v.get("status")), len(order)))
    pending = 0
    for view in jobs:
        waits = view["status"] == "pending"
        pending += waits
        if waits and pending > _PENDING_SHOWN:
            continue
        since = (not waits and (view["finished_at"] or view["claimed_at"])) or view["created_at"]
        times = eta(view, data["now"]), ago(since, data["now"])
        rows.append((view["name"], state(view), view["host"], progress(view), *times))
    made = table("JOB", "STATE", "HOST", "PROGRESS", "ETA", "SINCE", rows=rows, right=("ETA",))
    lines = []
    if pending > _PENDING_SHOWN:
        lines.append(f"… and {pending - _PENDING_SHOWN} more pending")
    if hidden := len(data["jobs"]) - len(current):
        lines.append(not_shown(hidden))
    return Group(made, *(Text(line, "dim") for line in lines))


def _named(title: str, entries: Sequence[Json], key: str, style: str) -> list[RenderableType]:
    if not entries:
        return []
    lines: list[RenderableType] = [Text(), Text(title, style)]
    for entry in entries[:_NAMED_SHOWN]:
        reason = one_line(entry.get(key) or "no reason was given", 400)
        lines.append(Text(f"  {called(entry, _NAMES_IN_GROUP * 64)}: {reason}"))
        if entry.get("ended_by"):
            lines.append(Text(f"    {one_line(entry['ended_by'], 400)}", "dim"))
    if len(entries) > _NAMED_SHOWN:
        lines.append(Text(f"  … and {len(entries) - _NAMED_SHOWN} more", "dim"))
    return lines

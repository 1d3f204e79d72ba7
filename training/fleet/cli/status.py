"""``cis490-jobs status``: collect and render the state of the whole fleet on one screen. Pure."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from training.fleet.cli.render import cancelled_line, cell, not_shown, reasons, state, table
from training.fleet.scheduling.job import LIVE
from training.fleet.wire.results import of_job
from training.fleet.wire.words import (
    STATUSES,
    Json,
    ago,
    called,
    held,
    left,
    progress,
    remaining,
    share_done,
    under_way,
)
from training.printable import counted, one_line

_PENDING_SHOWN = 40
_NAME_SHOWN = 60  # characters
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
        parts += _section(title, sorted(data[key].items()), "hosts")
    if not data["complete"]:
        parts.append(Text("The queue is long: see all of it with `cis490-jobs list`.", "dim"))
    failed = [(called(each, _NAME_SHOWN), _why_failed(each)) for each in data["failed"]]
    parts += _section("Failed", failed, style="bold red")
    if over := data["cancelled_in_plan"]:
        line = cancelled_line(len(over))
        told = [(each["name"], f"{each['ended_by']}, {ago(each['finished_at'], data['now'])}") for each in over]
        parts += _section(line[0].upper() + line[1:], told)
    told = [(each["name"], held(each, data["now"])) for each in data["held"]]
    parts += _section("Held until `cis490-jobs unhold`", told)
    cannot = [(each["name"], each["obstacle"]) for each in data["cannot_run"]]
    for why in (*data["quarantined"].values(), *data["resting"].values()):  # which stands above
        cannot = [(name, obstacle.replace(why, "gets no jobs")) for name, obstacle in cannot]
    parts += _section("Cannot run anywhere", cannot)
    told = [(f"{each['name']} ({each['job_id'][:6]})", each["obstacle"]) for each in data["passed_over"]]
    parts += _section("Passed over", told)
    parts += [cell(each, "bold yellow", chars_max=1000) for each in [*data["unlike"], *data["plan_notes"]]]
    parts += _section("Worth knowing", [(each["name"], each["note"]) for each in data["notes"]])
    return Group(*parts)


def _why_failed(entry: Json) -> str:
    """Return a failed job's error, and on a line of its own what ended the job."""
    error = one_line(entry["error"] or "no reason was given", 400)
    return f"{error}\n{one_line(entry['ended_by'], 400)}" if entry["ended_by"] else error


def _section(
    title: str, told: Sequence[tuple[object, str]], things: str = "jobs", style: str = "bold yellow"
) -> list[RenderableType]:
    return [Text(), Text(title, style), *reasons(told, things)] if told else []


def _counts(counts: Json, unplanned: Json) -> Text:
    said = ", ".join(f"{counts[s]} {s}" for s in STATUSES if counts.get(s))
    others = ", ".join(
        f"{unplanned[s]} {s}" for s in STATUSES if unplanned.get(s) and s not in ("completed", "cancelled")
    )
    line = f"{counted(sum(counts.values()), 'jobs')}: {said}" if said else "no jobs yet"
    return Text(line + (f"; not in the plan: {others}" if others else ""), style="bold")


def _far(view: Json, now: object) -> str:
    """Describe in short a job that is under way; its stage stands in another column."""
    share, left = share_done(view), remaining(view, now).removeprefix("about ")
    if view["status"] not in LIVE or share is None:
        return under_way(view, now)
    return ", ".join(filter(None, ("paused" if view["paused"] else "", f"{100 * share:.0f} %", left)))


def _status_table(data: Json) -> RenderableType:
    rows = []
    order = {status: place for place, status in enumerate(STATUSES)}
    current = [view for view in data["jobs"] if not left(view)]
    jobs = sorted(current, key=lambda v: (not v["in_manifest"], order.get(str(v.get("status")), len(order))))
    pending = 0
    for view in jobs:
        waits = view["status"] == "pending"
        pending += waits
        if waits and pending > _PENDING_SHOWN:
            continue
        since = (not waits and (view["finished_at"] or view["claimed_at"])) or view["created_at"]
        done = of_job(view).partition(" [")[0] or _far(view, data["now"])
        since = ago(since, data["now"]).removesuffix(" ago")
        rows.append((view["name"], state(view), view["host"], done, since, progress(view)))
    heads = ("JOB", "STATE", "HOST", "PROGRESS", "FOR", "STAGE")
    made = table(*heads, rows=rows, first=("JOB", "STATE", "PROGRESS"))
    lines = []
    if pending > _PENDING_SHOWN:
        lines.append(f"… and {pending - _PENDING_SHOWN} more pending")
    if hidden := len(data["jobs"]) - len(current):
        lines.append(not_shown(hidden))
    return Group(made, *(Text(line, "dim") for line in lines))

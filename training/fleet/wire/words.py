"""Describe the receiver's answers in words, the same on pages and on the command line. Pure: values in, text out.

Values are remote: of any type, and not yet printable; the code that shows a text makes it printable.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from training.fleet.wire.constants import HEARTBEAT_S
from training.printable import counted, left_to, one_line, printable
from training.printable import duration as long_time
from training.printable import size as bytes_in_words

Json = Mapping[str, Any]

ID_SHOWN = 12  # digits of an id or digest
_ETA_MOST_S = 365 * 86_400.0  # a trainer that announces years does not know
# The look of each state, on pages and in terminals; its word stands beside the glyph, so that nobody needs the colour.
GLYPHS: Mapping[str, str] = {
    "running": "◐",
    "claimed": "◔",
    "pending": "○",
    "failed": "✕",
    "completed": "●",
    "cancelled": "⊘",
    "held": "‖",
}
STYLES: Mapping[str, str] = {
    "running": "cyan",
    "claimed": "cyan",
    "completed": "green",
    "failed": "bold red",
    "cancelled": "dim",
}
STATUSES = tuple(state for state in GLYPHS if state != "held")


_CALENDAR_ENDS = 253_402_300_800.0  # the year 10000


def number(value: object) -> float | None:
    """Read a finite number from the wire; other values count as none."""
    good = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if good and abs(value) < 1e15 and math.isfinite(value) else None  # type: ignore[arg-type]


def duration(seconds: object) -> str:
    """Show a length of time; empty if not known."""
    known = number(seconds)
    return "" if known is None else long_time(known)


def moment(at: object, form: str = "%Y-%m-%d %H:%M UTC", unknown: str = "an unknown time") -> str:
    """Show a time in epoch seconds; ``unknown`` for one outside of the calendar."""
    known = number(at)
    if known is None or not 0 <= known < _CALENDAR_ENDS:
        return unknown
    return datetime.fromtimestamp(known, UTC).strftime(form)


def day(at: object) -> str:
    """Show the date of a time in epoch seconds."""
    return moment(at, "%Y-%m-%d", "an unknown day")


def typed(job: Json) -> str:
    """Return the argument that names a job on a command line: its name in quotes.

    It is the id if the name cannot be typed, or now means another job of the plan.
    """
    name = str(job.get("name") or "")
    if _left(job):
        return str(job.get("job_id"))[:ID_SHOWN]
    plain = name.strip() != "" and not name.startswith("-") and printable(name) == name
    return shlex.quote(name) if plain else str(job.get("job_id"))


def called(job: Json, chars_max: int) -> str:
    """Return how a job is called in a sentence; a job that left the plan is marked if the plan has another one of its
    name."""
    return one_line(job.get("name"), chars_max) + (" (not in the plan)" if _left(job) else "")


def _left(job: Json) -> bool:
    """True if the plan no longer names a job; a row shows it by 0; a missing value means nothing."""
    return job.get("in_manifest") in (False, 0)


def declined(told: Json, now: float, clock: Callable[[float, float], str]) -> str:
    """Say why a host leaves a job to another host; ``clock`` writes a time relative to ``now``."""
    done, here = (clock(told[key], now) for key in ("ends_at", "here_until"))
    return left_to(told["by"], told["name"], done=done, here=here)


def removed_sentence(job: Json, at: object, why: object) -> str:
    """Say when and why a model was deleted."""
    again = f"`cis490-jobs requeue {typed(job)}` trains it again"
    return f"the model of job {job.get('name')} was removed on {day(at)}: {why}; {again}"


def removed_lines(detail: Json) -> list[str]:
    """List what [retention] deleted of a job."""
    things = {"bundle": "the model", "log": "the output", "curve": "the curve"}
    return [
        f"{things.get(each['what'], 'something')} of attempt {each['attempt']} on {day(each['at'])}: {each['why']}"
        for each in detail["removed"]
    ]


def carried(why: Sequence[Json]) -> str:
    """Name the channels that carried an incident, with their shares."""
    named = [(one_line(each.get("channel"), 60), number(each.get("share"))) for each in why]
    return ", ".join(name if share is None else f"{name} {share:.0%}".replace("%", " %") for name, share in named)


def changed(one: Json) -> str:
    """Say how a host has changed: ``has changed since 13:40:02 UTC: forks 0.21 → 3.4 and 2 more``."""
    since = number(one.get("began_at"))
    when = "" if not since else f" since {moment(since, '%Y-%m-%d %H:%M:%S UTC')}"
    what = "is unlike its reference" if one.get("at_once") else f"has changed{when}"
    named = moved(one)
    return f"{what}: {named}" if named else what


def moved(one: Json) -> str:
    """Name the channels of a change, with their values before and after."""
    named = [
        f"{'spread of ' if each.get('measure') == 'spread' else ''}{one_line(each.get('channel'), 60)} "
        f"{number(each.get('before')) or 0.0:.3g} → {number(each.get('after')) or 0.0:.3g}"
        for each in one.get("channels") or []
    ]
    more = one.get("more_channels")
    return "; ".join(named) + (f" and {more} more" if named and more else "")


def ago(then: object, now: object) -> str:
    known, present = number(then), number(now)
    return "" if known is None or present is None else f"{duration(present - known)} ago"


def size(count: object) -> str:
    """Format bytes from the wire; other values count as none."""
    return bytes_in_words(number(count) or 0.0)


def progress(view: Json) -> str:
    """Show the trainer's progress: epochs done of epochs planned, or its last line."""
    done = _progress(view)
    return f"paused{f' at {done}' if done else ''}" if view.get("paused") else done


def _progress(view: Json) -> str:
    said = view.get("progress")
    if not isinstance(said, Mapping) or view.get("status") not in ("running", "claimed"):
        return ""
    done, planned = number(said.get("epoch")), number(said.get("epochs"))
    if done is not None and planned is not None and 0 <= done <= planned and planned > 0:
        return f"{done:.0f}/{planned:.0f} ({done / planned:.0%})"
    here, whole = number(said.get("bytes")), number(said.get("bytes_total"))
    if said.get("event") == "fetch" and here is not None and whole:
        return f"fetching its data ({min(here / whole, 1):.0%} of {size(whole)})"
    return one_line(said.get("event") or "", 40)


def share_done(view: Json) -> float | None:
    """Return the share of a running job's work that is done, 0 to 1; None if its trainer does not report it."""
    said = view.get("progress")
    if not isinstance(said, Mapping):
        return None
    fetching = said.get("event") == "fetch"
    keys = ("bytes", "bytes_total") if fetching else ("epoch", "epochs")
    done, planned = number(said.get(keys[0])), number(said.get(keys[1]))
    return None if done is None or not planned or not 0 <= done <= planned else done / planned


def silence(view: Json, now: object) -> str:
    """Show how long the host of a running job has been silent, if longer than two heartbeats."""
    heard, present = number(view.get("heartbeat_at")), number(now)
    live = view.get("status") in ("running", "claimed")
    if not live or heard is None or present is None or present - heard <= 2 * HEARTBEAT_S:
        return ""
    return f"not seen for {duration(present - heard)}"


def eta(view: Json, now: object) -> str:
    """Show the time left by the trainer's estimate, or that it is unknown because the host is silent."""
    if unheard := silence(view, now):
        return unheard
    return duration(left_s(view)) if view.get("status") == "running" and not view.get("paused") else ""


def under_way(view: Json, now: object) -> str:
    """Show a running job's progress and remaining time."""
    left = eta(view, now)
    return ", ".join(filter(None, (progress(view), f"about {left} left" if left and not silence(view, now) else left)))


def facts(detail: Json, needs: str) -> Iterator[tuple[str, str]]:
    """List facts about a job other than its state."""
    job, spec = detail["job"], detail["spec"]
    said = (
        ("model", f"{job['model']}, {job['mode']}"),
        ("priority", str(job["priority"])),
        ("split", split(spec)),
        ("data set", str(spec.get("dataset") or "")[:ID_SHOWN]),
        ("hyperparameters", ", ".join(f"{key} = {value}" for key, value in (spec.get("hyper") or {}).items())),
        ("needs", needs),
        ("trained on", trained(job)),
        ("held", held(job, detail["now"])),
        ("note", job["note"] or ""),
        ("ended by", job["ended_by"] or ""),
        ("removed", "; ".join(removed_lines(detail))),
        ("id", job["job_id"]),
    )
    return ((label, text) for label, text in said if text)


def left_s(view: Json) -> float | None:
    """Return the remaining seconds by the trainer's estimate; None if it reports none, or an invalid one."""
    said = None if view.get("paused") else view.get("progress")
    left = number(said.get("eta_s")) if isinstance(said, Mapping) else None
    return left if left is not None and 0 <= left <= _ETA_MOST_S else None


def marks(view: Json) -> list[str]:
    """List remarks about a job besides its status."""
    over = view.get("status") in ("completed", "cancelled")
    said = ["held"] if view.get("held_by") and not over else []
    return said + ([] if view.get("in_manifest", True) else ["not in the plan"])


def held(view: Json, now: object) -> str:
    """Show who put a job on hold, and when; empty if it is not held."""
    if not view.get("held_by"):
        return ""
    since = ago(view.get("held_at"), now)
    return f"by {view['held_by']}" + (f", {since}" if since else "")


def left(view: Json) -> bool:
    """Return True if a job has ended and is no longer in the plan."""
    return not view.get("in_manifest", True) and view.get("status") in ("completed", "cancelled")


def trained(view: Json) -> str:
    """Show what a completed model was trained on, as its worker reported."""
    if view.get("status") != "completed":
        return ""
    said = view["trained"] or {}
    words = [
        f"{what} {str(said[key])[:ID_SHOWN]}" if said.get(key) else f"{what} not known"
        for key, what in (("data", "data"), ("code", "code"), ("commit", "commit"))
    ]
    return ", ".join(words)


def split(spec: Json) -> str:
    hosts = ", ".join(map(str, spec.get("train_hosts") or []))
    tested = ", ".join(map(str, spec.get("test_hosts") or []))
    said = f"by {spec.get('split_recipe')}" + (f", trained on {hosts}" if hosts else "")
    said += f", tested on {tested} alone" if tested else ""
    return f"{said}, seed {spec.get('seed')}"


def booked(part: Json | None) -> str:
    """Describe the part of its host that an attempt may use; its trainer uses as many threads as it has cores."""
    if part is None:
        return ""
    said = [counted(part["cores"], "cores"), f"{part['ram_gib']:.1f} GiB" if part["ram_gib"] else ""]
    said.append("" if part["gpu"] is None else f"GPU {part['gpu']} with {part['vram_gib']:.1f} GiB")
    return ", ".join(filter(None, said))


def unlike(granted: Json, spec: Json) -> str:
    """Show how an attempt's grant differs from the present plan."""
    keys = sorted(key for key in granted.keys() | spec.keys() if granted.get(key) != spec.get(key))
    return ", ".join(f"{key} = {_plainly(granted.get(key))}" for key in keys)


def _plainly(value: object) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{key} = {_plainly(each)}" for key, each in value.items())
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return "not set" if value is None else str(value)


# The words for what happened to a job, by the transition of its event row.
EVENTS: Mapping[str, str] = {
    "insert": "was added by the plan",
    "claim": "was given to",
    "heartbeat": "began training on",
    "complete": "was trained by",
    "adopt": "was trained by",
    "deliver": "was delivered by hand from",
    "readopt": "resumed on",
    "retry": "failed and is tried again, on",
    "hand_back": "was handed back by",
    "sweep": "was lost with",
    "exhaust": "failed permanently, on",
    "pardon": "waits again",
    "cancel": "was cancelled",
    "take_out": "was cancelled",
    "requeue": "was queued again",
    "hold": "was held",
    "unhold": "was unheld",
    "wake": "has a host woken",
}


def plainly_said(detail: object) -> str:
    """Show an event's detail; a code such as "trainer_failed" is written as words."""
    said = str(detail or "")
    return said.replace("_", " ") if said.isidentifier() else said


def happened(event: Json) -> str:
    """Say what happened to a job, without its name: "was trained by office-print"."""
    said, host = EVENTS.get(str(event.get("transition")), str(event.get("transition"))), event.get("host")
    whole = said.endswith((" to", " on", " by", " from", " with"))
    if host and whole:
        return f"{said} {host}"
    return said.rpartition(" ")[0].rstrip(",") if whole else said

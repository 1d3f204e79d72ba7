"""Describe the receiver's answers in words, the same on pages and on the command line. No function here changes its
arguments, reads a clock or does I/O.

Texts from other machines may hold control characters; the code that shows a text makes it printable. A member of free
form, such as ``progress``, may be of any type.
"""

import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from training.fleet.wire.constants import HEARTBEAT_S
from training.fleet.wire.progress import parse_progress
from training.printable import counted, left_to, one_line, printable, some
from training.printable import duration as long_time
from training.printable import size as bytes_in_words
from training.strict_json import Json as Json

ID_SHOWN = 12  # digits of an id or digest
_ETA_MOST_S = 365 * 86_400.0  # a trainer that announces years does not know
# The look of each state, on pages and in terminals; its word stands beside the glyph, so that nobody needs the colour.
GLYPHS = {
    "running": "◐",
    "claimed": "◔",
    "pending": "○",
    "failed": "✕",
    "completed": "●",
    "cancelled": "⊘",
    "held": "‖",
}
STYLES = {
    "running": "cyan",
    "claimed": "cyan",
    "completed": "green",
    "failed": "bold red",
    "cancelled": "dim",
}
STATUSES = tuple(state for state in GLYPHS if state != "held")


_CALENDAR_ENDS = 253_402_300_800.0  # the year 10000


def number(value: object) -> float | None:
    """Return a value from the wire as a float; None unless it is a number between -1e15 and 1e15; a boolean gives None,
    too."""
    good = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if good and abs(value) < 1e15 and math.isfinite(value) else None  # type: ignore[arg-type]


def duration(seconds: object) -> str:
    """Format a number of seconds as text, such as "2 h 10 min"; return an empty text where :func:`number` gives
    None."""
    known = number(seconds)
    return "" if known is None else long_time(known)


def moment(at: object, form: str = "%Y-%m-%d %H:%M UTC", unknown: str = "an unknown time") -> str:
    """Format a time in epoch seconds, in UTC; return ``unknown`` if it is no number or lies outside of 1970 to 9999."""
    known = number(at)
    if known is None or not 0 <= known < _CALENDAR_ENDS:
        return unknown
    return datetime.fromtimestamp(known, UTC).strftime(form)


def day(at: object) -> str:
    """Format the date (UTC) of a time in epoch seconds; without a valid time return "an unknown day"."""
    return moment(at, "%Y-%m-%d", "an unknown day")


def typed(job: Json) -> str:
    """Return the argument that names a job on a command line: its name, quoted for the shell, or its id.

    A job that has left the plan is named by the first 12 digits of its id. A job whose name is blank, begins with a
    dash or is not printable is named by its whole id.
    """
    name = str(job.get("name") or "")
    if _left(job):
        return str(job.get("job_id"))[:ID_SHOWN]
    plain = name.strip() != "" and not name.startswith("-") and printable(name) == name
    return shlex.quote(name) if plain else str(job.get("job_id"))


def called(job: Json, chars_max: int) -> str:
    """Return how a sentence calls a job: its name, cut to ``chars_max``, with "(not in the plan)" if it left the
    plan."""
    return one_line(job.get("name"), chars_max) + (" (not in the plan)" if _left(job) else "")


def _left(job: Json) -> bool:
    """Return True if the job's ``in_manifest`` is false (0 in a database row): the plan no longer names it. Without
    that member return False."""
    return job.get("in_manifest") in (False, 0)


def declined(told: Json, now: float, clock: Callable[[float, float], str]) -> str:
    """Write why a host leaves a job to another one that will finish it sooner. ``clock`` formats a time for a reader at
    ``now``."""
    done, here = (clock(told[key], now) for key in ("ends_at", "here_until"))
    return left_to(told["by"], told["name"], done=done, here=here)


def unconfirmed(worker: Json) -> str:
    """Say which finished work of a host waits for an operator's decision, and how to decide."""
    host = worker["hostname"]
    said = f"{host} brought results under claims that were never granted here: {some(worker['unconfirmed'])}"
    return f"{said} (`cis490-jobs accept {host}` completes these jobs, `cis490-jobs refuse {host}` does not)"


def removed_sentence(job: Json, at: object, why: object) -> str:
    """Write when and why [retention] deleted a job's model, and the command that trains it again."""
    again = f"`cis490-jobs requeue {typed(job)}` trains it again"
    return f"the model of job {job.get('name')} was removed on {day(at)}: {why}; {again}"


def removed_lines(detail: Json) -> list[str]:
    """List what [retention] deleted of a job's attempts: a line for each thing, with its day and reason."""
    things = {"bundle": "the model", "log": "the output", "curve": "the curve"}
    return [
        f"{things.get(each['what'], 'something')} of attempt {each['attempt']} on {day(each['at'])}: {each['why']}"
        for each in detail["removed"]
    ]


def carried(why: Sequence[Json]) -> str:
    """Name the channels that caused an incident's alarms, each with its share of the rise in the score if that is
    known."""
    named = [(one_line(each.get("channel"), 60), number(each.get("share"))) for each in why]
    return ", ".join(name if share is None else f"{name} {100 * share:.0f} %" for name, share in named)


def changed(one: Json) -> str:
    """Describe how a host has changed: ``has changed since 2026-01-31 13:40:02 UTC: forks 0.21 → 3.4 and 2 more``."""
    since = number(one.get("began_at"))
    when = "" if not since else f" since {moment(since, '%Y-%m-%d %H:%M:%S UTC')}"
    what = "is unlike its reference" if one.get("at_once") else f"has changed{when}"
    named = moved(one)
    return f"{what}: {named}" if named else what


def moved(one: Json) -> str:
    """Name the channels of a change, each with its value before and after."""
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
    """Format a number of bytes, such as "4.0 KiB"; a value that is no number counts as 0."""
    return bytes_in_words(number(count) or 0.0)


def progress(view: Json) -> str:
    """Describe how far a running job's trainer is: its stage or the epochs done of those planned, with the share of
    the whole that is done; or the share of data fetched, or its last event.

    For a paused trainer the text begins with "paused". The text is empty unless the job is paused, or is claimed or
    running and has progress.
    """
    done = _progress(view)
    return f"paused{f' at {done}' if done else ''}" if view.get("paused") else done


def _progress(view: Json) -> str:
    said = view.get("progress")
    if not isinstance(said, Mapping) or view.get("status") not in ("running", "claimed"):
        return ""
    done, planned = number(said.get("epoch")), number(said.get("epochs"))
    if done is not None and planned is not None and 0 <= done <= planned and planned > 0:
        where = one_line(str(said.get("stage") or "").partition(", ")[0], 40) or f"{done:.0f} of {planned:.0f}"
        return f"{where} ({100 * done / planned:.0f} %)"
    here, whole = number(said.get("bytes")), number(said.get("bytes_total"))
    if said.get("event") == "fetch" and here is not None and whole:
        return f"fetching its data ({100 * min(here / whole, 1):.0f} % of {size(whole)})"
    return one_line(said.get("event") or "", 40)


def readable(line: str) -> str:
    """Write a line of a trainer's output for people: "epoch 43 of 60, loss 0.419, 14 s left" for a progress line; any
    other line stays as it is."""
    said = parse_progress(line)
    if said is None:
        return line
    event, stage, left, name = (said.pop(key, None) for key in ("event", "stage", "eta_s", "metric_name"))
    told = [str(stage)] if stage else []
    if stage or event == "epoch":
        epoch, epochs, _ = (said.pop(key, None) for key in ("epoch", "epochs", "seconds"))
        epoch, epochs = said.pop("stage_epoch", epoch), said.pop("stage_epochs", epochs)
        told += [f"epoch {_shown(epoch)}" + (f" of {_shown(epochs)}" if epochs else "")] if event == "epoch" else []
    elif said:
        event = f"{event}:"
    told += [
        f"{name or key if key == 'metric' else key} {_shown(each)}" for key, each in said.items() if each is not None
    ]
    told += [f"{duration(left)} left"] if duration(left) else []
    return ", ".join(told) if stage or event == "epoch" else " ".join((str(event), ", ".join(told))).strip()


def _shown(value: object) -> str:
    """Format a value of a progress line; a fraction has three digits."""
    return f"{value:#.3g}" if isinstance(value, float) and abs(value) < 1000 else str(value)


def share_done(view: Json) -> float | None:
    """Return the share of a job's epochs that are trained, 0 to 1; None if its progress does not say it.

    While the job's data are fetched, return the share of their bytes that have arrived.
    """
    said = view.get("progress")
    if not isinstance(said, Mapping):
        return None
    fetching = said.get("event") == "fetch"
    keys = ("bytes", "bytes_total") if fetching else ("epoch", "epochs")
    done, planned = number(said.get(keys[0])), number(said.get(keys[1]))
    return None if done is None or not planned or not 0 <= done <= planned else done / planned


def folded(entries: Iterable[tuple[object, str]], things: str = "jobs") -> Iterator[tuple[str, list[str]]]:
    """Yield each reason in (name, reason) pairs once, as a sentence with the names that have it. Jobs are counted where
    they are several: "8 jobs need a GPU, and no host has one"."""
    groups: dict[str, list[str]] = {}
    for name, why in entries:
        groups.setdefault(why, []).append(str(name))
    for why, names in groups.items():
        one = len(names) == 1
        yield wanting(names[0] if one else counted(len(names), things), one, why), names


def wanting(who: str, one: bool, why: str) -> str:
    """Write a sentence of a reason and of who has it: ``one`` thing, or several."""
    verb, _, what = why.partition(" ")
    return f"{who} {verb if one else verb[:-1]} {what}" if verb in ("needs", "waits") else f"{who}: {why}"


def silence(view: Json, now: object) -> str:
    """Say for how long the host of a claimed or running job has sent no heartbeat. The text is empty unless such a
    job's last heartbeat is known to be over a minute old (twice the default interval)."""
    heard, present = number(view.get("heartbeat_at")), number(now)
    live = view.get("status") in ("running", "claimed")
    if not live or heard is None or present is None or present - heard <= 2 * HEARTBEAT_S:
        return ""
    return f"not seen for {duration(present - heard)}"


def eta(view: Json, now: object) -> str:
    """Format the trainer's estimate of the time left, or say that the host is silent. Unless the host is silent, the
    text is empty if the job is not running, is paused, or has no estimate."""
    if unheard := silence(view, now):
        return unheard
    return duration(left_s(view)) if view.get("status") == "running" and not view.get("paused") else ""


def under_way(view: Json, now: object) -> str:
    """Describe a running job: its progress, then about how much time is left, or for how long its host has been
    silent."""
    return ", ".join(filter(None, (progress(view), remaining(view, now))))


def remaining(view: Json, now: object) -> str:
    """Say about how much time a running job needs, or that its host is silent; empty where `eta` is."""
    left = eta(view, now)
    return f"about {left} left" if left and not silence(view, now) else left


def facts(detail: Json, needs: str) -> Iterator[tuple[str, str]]:
    """Yield (label, text) pairs about a job, from its model to its id, without pairs whose text is empty. ``needs`` is
    the text of the job's constraints."""
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
    """Return the remaining seconds by the trainer's estimate; None if the trainer is paused, reports none, or reports a
    negative number or over a year."""
    said = None if view.get("paused") else view.get("progress")
    left = number(said.get("eta_s")) if isinstance(said, Mapping) else None
    return left if left is not None and 0 <= left <= _ETA_MOST_S else None


def marks(view: Json) -> list[str]:
    """Return a job's remarks: "held" (not of a completed or cancelled job) and "not in the plan", each if it
    applies."""
    over = view.get("status") in ("completed", "cancelled")
    said = ["held"] if view.get("held_by") and not over else []
    return said + ([] if view.get("in_manifest", True) else ["not in the plan"])


def held(view: Json, now: object) -> str:
    """Say who put a job on hold and how long ago: "by NAME, 3 min ago"; empty if the job is not held."""
    if not view.get("held_by"):
        return ""
    since = ago(view.get("held_at"), now)
    return f"by {view['held_by']}" + (f", {since}" if since else "")


def left(view: Json) -> bool:
    """Return True if a job is completed or cancelled and is no longer in the plan."""
    return not view.get("in_manifest", True) and view.get("status") in ("completed", "cancelled")


def trained(view: Json) -> str:
    """Name what a completed job was trained on, as its worker reported: digests of data and code, and the commit. The
    text is empty if the job is not completed."""
    if view.get("status") != "completed":
        return ""
    said = view["trained"] or {}
    words = [
        f"{what} {str(said[key])[:ID_SHOWN]}" if said.get(key) else f"{what} not known"
        for key, what in (("data", "data"), ("code", "code"), ("commit", "commit"))
    ]
    return ", ".join(words)


def name_of_test(spec: Json, names: Json) -> str:
    """Name a test by its data set and split; ``names`` maps ids of data sets to names in the plan."""
    dataset = str(spec.get("dataset") or "")
    of, _, seed = split(spec).rpartition(", seed ")
    if spec.get("split_recipe") == "sample":  # else no seed draws the test
        of += f", split_seed {spec['split_seed']}" if spec.get("split_seed") is not None else f", seed {seed}"
    return f"{names.get(dataset) or dataset[:ID_SHOWN] or 'local data'}, {of}"


def split(spec: Json) -> str:
    hosts = ", ".join(map(str, spec.get("train_hosts") or []))
    tested = ", ".join(map(str, spec.get("test_hosts") or []))
    said = f"by {spec.get('split_recipe')}" + (f", trained on {hosts}" if hosts else "")
    said += f", tested on {tested} alone" if tested else ""
    drawn = spec.get("split_seed")
    return f"{said}, seed {spec.get('seed')}" + ("" if drawn is None else f", drawn by split_seed {drawn}")


def booked(part: Json | None) -> str:
    """Describe the cores, memory and GPU that are booked for an attempt on its host; empty without a booking."""
    if part is None:
        return ""
    said = [counted(part["cores"], "cores"), f"{part['ram_gib']:.1f} GiB" if part["ram_gib"] else ""]
    said.append("" if part["gpu"] is None else f"GPU {part['gpu']} with {part['vram_gib']:.1f} GiB")
    return ", ".join(filter(None, said))


def unlike(granted: Json, spec: Json) -> str:
    """List the fields in which an attempt's granted job dict differs from the job's present one, with the granted
    values."""
    keys = sorted(key for key in granted.keys() | spec.keys() if granted.get(key) != spec.get(key))
    return ", ".join(f"{key} = {_plainly(granted.get(key))}" for key in keys)


def _plainly(value: object) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{key} = {_plainly(each)}" for key, each in value.items())
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return "not set" if value is None else str(value)


# The words for what happened to a job, by the transition of its event row.
EVENTS = {
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
    """Describe an event of a job without the job's name: "was trained by office-print". The host is named only where
    the words for the event end in a preposition."""
    said, host = EVENTS.get(str(event.get("transition")), str(event.get("transition"))), event.get("host")
    whole = said.endswith((" to", " on", " by", " from", " with"))
    if host and whole:
        return f"{said} {host}"
    return said.rpartition(" ")[0].rstrip(",") if whole else said

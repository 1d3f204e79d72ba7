"""Render the answer to "what would this manifest change?" as lines for people. Pure."""

from collections.abc import Iterable, Sequence
from pathlib import PurePath

from rich.console import Group, RenderableType
from rich.text import Text

from training.fleet.cli.render import cancelled_line, edited, item, reasons, short_id, table
from training.fleet.scheduling.edits import LISTED_MAX, counts
from training.fleet.wire.words import Json, ago, day, size
from training.printable import counted, printable, some

NAMES_MAX = 40  # of one kind, in the list
OBSTACLES_MAX = 3


def render_plan(answer: Json, file: PurePath | None = None) -> RenderableType:
    """Render the answer: one sentence, then new, edited and existing jobs, then which host could take which jobs."""
    jobs, reload, now = answer["jobs"], answer["reload"], answer["now"]
    of_whom = printable(str(file) if file is not None else answer["file"] or "the manifest")
    parts: list[RenderableType] = [Text(f"{of_whom}: {_summary(answer)}", "bold")]
    new = [each["name"] for each in jobs if each["state"] == "new"]
    parts += _section("New", reload["inserted"], (item(name) for name in new))
    rotations = answer["rotations"]
    parts += _section("Rotations", len(rotations), (item(_rotation(each)) for each in rotations))
    edits = [edit for edit in reload["edits"] if edit["kind"] not in ("left", "stands")]
    parts += _section("Edited", len(edits), (item(edited(edit, now)) for edit in edits), LISTED_MAX)
    left = [edit for edit in reload["edits"] if edit["kind"] == "left"]
    left.sort(key=lambda edit: str(edit["name"]))
    parts += _reasons("No longer named", reload["removed"], [(edit["name"], edit["holds"]) for edit in left])
    running = [each for each in jobs if each["state"] in ("claimed", "running")]
    lines = (f"{each['name']} on {each['host']}, since {ago(each['at'], now)}" for each in running)
    parts += _section("Running, and continues", len(running), map(item, lines))
    states = answer["states"]
    completed = [each for each in jobs if each["state"] == "completed"]
    gone = [each for each in completed if each["removed"]]
    trained = [each for each in completed if not each["removed"]]
    if trained:
        count = states["completed"] - len(gone)
        parts += [Text(), Text(f"Already trained ({count})", "bold"), _trained(trained, now)]
        parts += _more(count - min(len(trained), NAMES_MAX))
    lines = (f"{each['name']}: removed on {day(each['removed']['at'])}: {each['removed']['why']}" for each in gone)
    parts += _section("Trained, model not kept; not trained again until requeued", len(gone), map(item, lines))
    over = [each for each in jobs if each["state"] in ("failed", "cancelled")]
    lines = (f"{each['name']}: {each['state']}{f' ({by})' if (by := each['ended_by']) else ''}" for each in over)
    parts += _section("Ended without a model; not trained again until requeued", len(over), map(item, lines))
    parts += _hosts(answer)
    advice = _folded(answer["memory"])
    parts += _section("Memory to ask for", len(advice), (item(_memory(each)) for each in advice))
    if reload["cancelled"]:
        parts += [Text(), Text(cancelled_line(reload["cancelled"]), "yellow")]
    parts += [item(f"note: {note}", indent=0) for note in reload["notes"]]
    return Group(*parts)


def _summary(answer: Json) -> str:
    states, reload = answer["states"], answer["reload"]
    jobs = counted(sum(states.values()), "jobs")
    if not answer["changed"]:
        return f"{jobs}; a reload would change nothing"
    return f"{jobs}; a reload would change this: {counts({**reload, 'unchanged': 0})}"


def _section(title: str, count: int, lines: Iterable[RenderableType], most: int = NAMES_MAX) -> list[RenderableType]:
    shown = [line for line, _ in zip(lines, range(most), strict=False)]
    if not count:
        return []
    return [Text(), Text(f"{title} ({count})", "bold"), *shown, *_more(count - len(shown))]


def _reasons(title: str, count: int, told: Sequence[tuple[str, str]]) -> list[RenderableType]:
    """Render the (name, reason) pairs of some of ``count`` jobs."""
    return [Text(), Text(f"{title} ({count})", "bold"), *reasons(told), *_more(count - len(told))] if count else []


def _more(count: int) -> list[RenderableType]:
    return [Text(f"  … and {count} more")] if count > 0 else []


def _rotation(each: Json) -> str:
    """Return the line that says which jobs a rotation makes: how many, the tested hosts and the seeds."""
    tested, seeds = each["tested"], [str(seed) for seed in each["seeds"]]
    whole = f"seed{'' if len(seeds) == 1 else 's'} {some(seeds, 8)}"
    jobs = counted(each["jobs"], "jobs")
    how = "each tested alone by models that the others trained"
    return f"{each['name']}: {jobs}: {some(tested, 8)}, {how}, {whole}"


def _trained(jobs: Sequence[Json], now: object) -> RenderableType:
    shown = jobs[:NAMES_MAX]
    rows = ((each["name"], each["host"], ago(each["at"], now), short_id(each["artifact_id"])) for each in shown)
    return table("JOB", "HOST", "TRAINED", "ARTIFACT", rows=rows)


def _hosts(answer: Json) -> list[RenderableType]:
    """Render which of the waiting jobs each host could take, and which jobs no host could take."""
    waiting = answer["waiting"]
    if not waiting:
        return []
    parts: list[RenderableType] = []
    if answer["hosts"]:
        title = Text(f"What each host could take of the {counted(waiting, 'jobs')} that would wait", "bold")
        parts += [Text(), title]
    alike: dict[tuple[str, tuple[tuple[str, int], ...]], list[str]] = {}
    for host in answer["hosts"]:
        every = host["takes"] == waiting - len(answer["nowhere"]) and answer["nowhere"].keys().isdisjoint(host["jobs"])
        jobs = f": {some(host['jobs'], len(host['jobs']), host['takes'])}" if host["jobs"] else ""
        worst = () if every else tuple(sorted(host["obstacles"].items(), key=lambda each: (-each[1], each[0])))
        takes = f"{host['takes']} of {waiting}{', all that can run' if every and host['jobs'] else jobs}"
        name = f"{host['host']} ({host['note']})" if host["note"] else host["host"]
        alike.setdefault((takes, worst), []).append(name)
    for (takes, worst), names in alike.items():
        parts.append(item(f"{some(names, NAMES_MAX)}: {takes}"))
        parts += [item(f"not {count}: {why}", "dim", indent=4) for why, count in worst[:OBSTACLES_MAX]]
        parts += [item(f"{len(worst) - OBSTACLES_MAX} more reasons", "dim", indent=4)] if worst[OBSTACLES_MAX:] else []
    parts += _reasons("Cannot run anywhere", len(answer["nowhere"]), [*answer["nowhere"].items()])
    return parts


def _folded(advice: Sequence[Json]) -> list[Json]:
    """Join the advice that proposes the same to jobs that ask for the same; the most used counts."""
    joined: dict[tuple[float, float], Json] = {}
    for each in advice:
        key = each["propose_gib"], each["asked_gib"]
        of = joined.get(key, {"jobs": [], "count": 0, "held_gib": 0.0})
        held = max(of["held_gib"], each["held_gib"])
        added = {"jobs": of["jobs"] + each["jobs"], "count": of["count"] + each["count"], "held_gib": held}
        joined[key] = {**each, **added}
    return [*joined.values()]


def _memory(advice: Json) -> str:
    """Return the line that proposes how much memory jobs should ask for, and says what they ask for now."""
    now, held = f"{advice['asked_gib']:g}" if advice["asked_gib"] else "none", size(advice["held_gib"] * 2**30)
    of, ask = some(advice["jobs"], 3, advice["count"]), advice["propose_gib"]
    return f"{of}: min_ram_gib = {ask:g} instead of {now}; used up to {held}"

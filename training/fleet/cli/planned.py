"""The answer to "what would this manifest change?", as lines for people. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePath

from rich.console import Group, RenderableType
from rich.text import Text

from training.fleet.cli.render import cancelled_line, cell, short_id, table
from training.fleet.scheduling.edits import LISTED_MAX, counts, sentence
from training.fleet.wire.words import Json, ago, day, number, size
from training.printable import counted, one_line, printable

NAMES_MAX = 40  # of one kind, in the list
OBSTACLES_MAX = 3


def render_plan(answer: Json, file: PurePath | None = None) -> RenderableType:
    """Draw the answer: one sentence, what is new and edited, what is there already, which host could take what."""
    jobs, reload, now = answer.get("jobs") or [], answer["reload"], answer.get("now")
    of_whom = printable(str(file) if file is not None else answer.get("file") or "the manifest")
    parts: list[RenderableType] = [Text(f"{of_whom}: {_summary(answer)}", "bold")]
    new = [each["name"] for each in jobs if each.get("state") == "new"]
    parts += _section("New", int(reload.get("inserted") or 0), (_line(name) for name in new))
    rotations = answer.get("rotations") or []
    parts += _section("Rotations", len(rotations), (_line(_rotation(each)) for each in rotations))
    edits = [edit for edit in reload.get("edits") or [] if edit.get("kind") not in ("left", "stands")]
    parts += _section("Edited", len(edits), (_line(sentence(edit) + _since(edit, now)) for edit in edits), LISTED_MAX)
    left = [edit for edit in reload.get("edits") or [] if edit.get("kind") == "left"]
    left.sort(key=lambda edit: str(edit.get("name")))
    parts += _section(
        "No longer named", int(reload.get("removed") or 0), (_line(f"{edit['name']}: {edit['holds']}") for edit in left)
    )
    running = [each for each in jobs if each.get("state") in ("claimed", "running")]
    parts += _section("Running, and continues", len(running), (_line(_where(each, now)) for each in running))
    states = answer.get("states") or {}
    completed = [each for each in jobs if each.get("state") == "completed"]
    gone = [each for each in completed if each.get("removed")]
    trained = [each for each in completed if not each.get("removed")]
    if trained:
        count = int(states.get("completed") or len(completed)) - len(gone)
        parts += [Text(), Text(f"Already trained ({count})", "bold"), _trained(trained, now)]
        parts += _more(count - min(len(trained), NAMES_MAX))
    lines = (f"{each['name']}: removed on {day(each['removed']['at'])}: {each['removed']['why']}" for each in gone)
    parts += _section("Trained, model not kept; not trained again until requeued", len(gone), map(_line, lines))
    over = [each for each in jobs if each.get("state") in ("failed", "cancelled")]
    lines = (f"{each['name']}: {each['state']}{_because(each)}" for each in over)
    parts += _section("Ended without a model; not trained again until requeued", len(over), map(_line, lines))
    parts += _hosts(answer)
    advice = answer.get("memory") or []
    parts += _section("Memory to ask for", len(advice), (_line(_memory(each)) for each in advice))
    if reload.get("cancelled"):
        parts += [Text(), Text(cancelled_line(reload["cancelled"]), "yellow")]
    parts += [Text(f"note: {one_line(note, 600)}") for note in reload.get("notes") or []]
    return Group(*parts)


def _summary(answer: Json) -> str:
    states, reload = answer.get("states") or {}, answer["reload"]
    jobs = counted(sum(int(number(n) or 0) for n in states.values()), "jobs")
    if not answer.get("changed"):
        return f"{jobs}; a reload would change nothing"
    return f"{jobs}; a reload would change this: {counts({**reload, 'unchanged': 0})}"


def _section(title: str, count: int, lines: Iterable[Text], most: int = NAMES_MAX) -> list[RenderableType]:
    shown = [line for line, _ in zip(lines, range(most), strict=False)]
    if not count:
        return []
    return [Text(), Text(f"{title} ({count})", "bold"), *shown, *_more(count - len(shown))]


def _more(count: int) -> list[RenderableType]:
    return [Text(f"  … and {count} more")] if count > 0 else []


def _line(words: object) -> Text:
    return Text(f"  {one_line(words, 600)}")


def _rotation(each: Json) -> str:
    """Say what a rotation unfolds to."""
    tested, seeds = ([str(one) for one in each.get(key) or ()] for key in ("tested", "seeds"))
    whole = f"seed{'' if len(seeds) == 1 else 's'} {_some(seeds, 8)}"
    jobs = counted(int(number(each.get("jobs")) or 0), "jobs")
    how = "each tested alone by models that the others trained"
    return f"{each['name']}: {jobs}: {_some(tested, 8)}, {how}, {whole}"


def _since(edit: Json, now: object) -> str:
    return f", {ago(edit['since'], now)}" if edit.get("since") else ""


def _where(each: Json, now: object) -> str:
    return f"{each['name']} on {each.get('host')}, since {ago(each.get('at'), now)}"


def _because(each: Json) -> str:
    return f" ({each['ended_by']})" if each.get("ended_by") else ""


def _trained(jobs: Sequence[Json], now: object) -> RenderableType:
    made = table("JOB", "ARTIFACT", "HOST", "TRAINED")
    for each in jobs[:NAMES_MAX]:
        made.add_row(
            cell(each["name"], chars_max=140),
            short_id(each.get("artifact_id")),
            cell(each.get("host")),
            cell(ago(each.get("at"), now)),
        )
    return made


def _hosts(answer: Json) -> list[RenderableType]:
    """List what each host could take of the waiting jobs, and which jobs no host could."""
    waiting = int(number(answer.get("waiting")) or 0)
    if not waiting:
        return []
    parts: list[RenderableType] = []
    if answer.get("hosts"):
        made = table("HOST", "COULD TAKE", "JOBS", "WHY NOT THE OTHERS", right=("COULD TAKE",))
        for host in answer["hosts"]:
            names = [one_line(name, 140) for name in host.get("jobs") or []]
            rest = int(number(host.get("takes")) or 0) - len(names)
            words = ", ".join(names) + (f" and {rest} more" if rest > 0 else "")
            note = f" ({host['note']})" if host.get("note") else ""
            made.add_row(
                cell(f"{host['host']}{note}"),
                cell(f"{host.get('takes')} of {waiting}"),
                cell(words, chars_max=600),
                cell(_obstacles(host.get("obstacles") or {}), chars_max=600),
            )
        parts += [
            Text(),
            Text(f"What each host could take of the {counted(waiting, 'jobs')} that would wait", "bold"),
            made,
        ]
    nowhere: dict[str, list[str]] = {}
    for name, why in (answer.get("nowhere") or {}).items():
        nowhere.setdefault(str(why), []).append(str(name))
    if nowhere:
        count = sum(map(len, nowhere.values()))
        parts += [Text(), Text(f"Cannot run anywhere ({count})", "bold")]
        parts += [_line(f"{_some(names)}: {why}") for why, names in list(nowhere.items())[:NAMES_MAX]]
        parts += _more(sum(map(len, list(nowhere.values())[NAMES_MAX:])))
    return parts


def _memory(advice: Json) -> str:
    """Propose what jobs should ask for, beside what they ask for now."""
    asked, held, propose = (number(advice.get(key)) or 0.0 for key in ("asked_gib", "held_gib", "propose_gib"))
    names = [str(name) for name in advice.get("jobs") or []]
    more = int(number(advice.get("count")) or 0) - len(names[:3])
    of = ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")
    now = f"it is {asked:g}" if asked else "nothing is asked"
    return f"{of}: min_ram_gib = {propose:g}; {now}, such a trainer held up to {size(held * 2**30)}"


def _obstacles(found: Json) -> str:
    worst = sorted(found.items(), key=lambda each: (-each[1], each[0]))
    more = [f"{len(worst) - OBSTACLES_MAX} more reasons"] if len(worst) > OBSTACLES_MAX else []
    return "; ".join([*(f"{count}: {why}" for why, count in worst[:OBSTACLES_MAX]), *more])


def _some(names: Sequence[str], most: int = 3) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{rest}"

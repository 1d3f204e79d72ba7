"""The fleet on one screen of any size: what runs and for how long, what waits, what needs somebody. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.text import Text

from training.fleet.wire.words import Json, called, duration, eta, number, progress, share_done, silence
from training.printable import counted, one_line

NAME_MAX = 28
HOST_MAX = 18
BAR_MAX = 20
FAILED_SHOWN = 5
_TURN = "for their turn"
WARNING, QUIET = "bold yellow", "dim"


def screen(data: Json, width: int, height: int, *, plain: bool, footer: str = "") -> list[Text]:
    """Lay the fleet out in at most ``height`` lines of ``width`` columns; ``plain``: with ASCII signs alone."""
    head = [Text(sentence(data), "bold"), *(Text(line, WARNING) for line in notices(data))]
    hosts, waits, failed = [*_hosts(data, width, plain=plain)], [*_waiting(data)], [*_failed(data)]
    room = max(0, height - (1 if footer else 0))
    head = head[: max(1, room // 3)]
    rest = room - len(head)
    blocks = [block for block in (hosts, failed, waits) if block]
    shown = [*head]
    for place, block in enumerate(blocks):
        share = max(0, rest // (len(blocks) - place) - 1)
        part = _cut(block, share)
        if part:
            shown += [Text(), *part]
            rest -= len(part) + 1
    if footer:
        shown += [Text() for _ in range(room - len(shown))]
        shown.append(Text(footer, QUIET))
    for line in shown:
        line.truncate(max(1, width), overflow="ellipsis" if not plain else "crop")
    return shown


def sentence(data: Json) -> str:
    """Say in one line how far the plan is."""
    counts = {key: int(number(n) or 0) for key, n in data["counts"].items()}
    whole = sum(counts.values()) - counts.get("cancelled", 0)
    if not whole:
        return "There are no jobs yet."
    done = counts.get("completed", 0)
    training = counts.get("running", 0) + counts.get("claimed", 0)
    parts = [
        f"{training} training" if training else "",
        f"{counts['pending']} waiting" if counts.get("pending") else "",
        f"{counts['failed']} failed" if counts.get("failed") else "",
    ]
    told = ", ".join(filter(None, parts))
    return f"{done} of {counted(whole, 'jobs')} trained" + (f"; {told}." if told else ".")


def notices(data: Json) -> Iterator[str]:
    """List what needs somebody."""
    if data.get("detail"):
        yield one_line(data["detail"], 300)
    for key in ("quarantined", "resting", "refused", "missing_datasets"):
        told = data.get(key) or {}
        for name in sorted(told):
            yield f"{one_line(name, HOST_MAX)}: {one_line(told[name], 300)}"


def _hosts(data: Json, width: int, *, plain: bool) -> Iterator[Text]:
    """Tell what each host does: a line for each job that it trains."""
    live: dict[str, list[Json]] = {}
    for view in data["live"]:
        live.setdefault(str(view.get("host")), []).append(view)
    names = max([len(one_line(view.get("name"), NAME_MAX)) for view in data["live"]], default=0)
    hosts = {str(each.get("hostname")): each for each in data["workers"]}
    wide = max((len(one_line(name, HOST_MAX)) for name in {*hosts, *live}), default=0)
    if not hosts and not live:
        yield Text("No worker has asked for work yet. Start one: `cis490-trainer-worker`", QUIET)
        return
    free = max(0, min(BAR_MAX, width - wide - names - 36))
    yield Text("hosts", QUIET)
    for name in sorted({*hosts, *live}, key=lambda name: (name not in live, name)):
        label = one_line(name, HOST_MAX).ljust(wide)
        for view in live.get(name, []):
            yield _job(label, view, data.get("now"), names, free, plain=plain)
            label = " " * wide
        if name not in live:
            alive = hosts[name].get("alive")
            out, rests = (name in (data.get(key) or {}) for key in ("quarantined", "resting"))
            seen, now = number(hosts[name].get("last_seen")), number(data.get("now"))
            away = f"not seen for {duration(now - seen)}" if seen is not None and now is not None else "not seen"
            does = "gets no jobs" if out else away if not alive else "at rest" if rests else "idle"
            yield Text(f"{label}  {does}", QUIET if does == "idle" else WARNING)


def _job(label: str, view: Json, now: object, names: int, free: int, *, plain: bool) -> Text:
    share, silent = share_done(view), silence(view, now)
    bar = "" if share is None or free < 5 else _bar(share, free, plain=plain)
    left = silent or eta(view, now)
    line = Text(f"{label}  {one_line(view.get('name'), NAME_MAX).ljust(names)}  ")
    line.append(f"{bar.ljust(free)}  " if free >= 5 else "", "cyan")
    line.append(f"{progress(view) or str(view.get('status')):<14}")
    line.append(f"  {left}" + (" left" if left and not silent else ""), WARNING if silent else "")
    return line


def _bar(share: float, cells: int, *, plain: bool) -> str:
    done = round(share * cells)
    return ("#" if plain else "█") * done + ("-" if plain else "░") * (cells - done)


def _waiting(data: Json) -> Iterator[Text]:
    """Group the jobs that wait by what they wait for."""
    groups: dict[str, list[str]] = {}
    for view in data["pending"]:
        held = f"held by {view['held_by']} until `cis490-jobs unhold`" if view.get("held_by") else ""
        why = held or view.get("obstacle") or view.get("note") or _TURN
        groups.setdefault(one_line(why, 300), []).append(one_line(view.get("name"), NAME_MAX))
    if not groups:
        return
    yield Text("waiting", QUIET)
    for why, names in sorted(groups.items(), key=lambda item: -len(item[1])):
        few = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        yield Text(f"{few}: {why}")
    more = int(number(data["counts"].get("pending")) or 0) - len(data["pending"])
    if more > 0:
        yield Text(f"… and {more:,} more", QUIET)


def _failed(data: Json) -> Iterator[Text]:
    failed: Sequence[Json] = sorted(data["failed"], key=lambda view: -(number(view.get("finished_at")) or 0))
    if not failed:
        return
    yield Text("failed", QUIET)
    for view in failed[:FAILED_SHOWN]:
        why = one_line(view.get("error") or view.get("ended_by") or "no reason was given", 300)
        yield Text(f"{called(view, NAME_MAX)}: {why}", "red")
    more = int(number(data["counts"].get("failed")) or 0) - min(len(failed), FAILED_SHOWN)
    if more > 0:
        yield Text(f"… and {more:,} more: `cis490-jobs status`", QUIET)


def _cut(lines: Sequence[Text], most: int) -> list[Text]:
    """Take as many lines as fit; the last says how many do not."""
    if len(lines) <= most:
        return list(lines)
    if most < 2:
        return list(lines[:most])
    return [*lines[: most - 1], Text(f"… and {len(lines) - most + 1} more lines", QUIET)]


def watched(pages: Mapping[str, Iterable[Json]], counts: Json, workers: Json, health: Json, now: object) -> Json:
    """Collect the data of ``watch``, for people and for ``--json``."""
    told = {key: health.get(key) or {} for key in ("quarantined", "resting", "refused", "missing_datasets")}
    return {
        "counts": dict(counts),
        **{key: list(views) for key, views in pages.items()},
        "workers": list(workers["workers"]),
        "detail": health.get("detail"),
        **told,
        "now": now,
    }

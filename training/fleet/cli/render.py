"""Render the receiver's answers as lines and tables for people. Pure: values in, renderables out.

Every text that came over the wire goes through :func:`cell` or :mod:`training.printable` first.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, zip_longest

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from training.fleet.scheduling.edits import LISTED_MAX, counts, sentence
from training.fleet.scheduling.job import constraints_in_words
from training.fleet.wire.results import of_job
from training.fleet.wire.words import (
    STYLES,
    Json,
    ago,
    booked,
    duration,
    facts,
    folded,
    left,
    marks,
    number,
    unconfirmed,
    under_way,
    unlike,
)
from training.printable import counted, one_line, printable, size, some

_ID_SHOWN = 12
_SETS_SHOWN = 3  # data sets of a host, those used last
_ID_IN_LINE = 8
_REASONS_SHOWN, _NAMES_WITH_REASON, _NAME_MAX, _NAMES_MAX = 40, 4, 60, 64
NAME_SHOWN = 40  # characters of a name in a terminal's table
_NAMES = frozenset({"JOB", "MODEL", "HOST", "ROTATION"})  # columns that hold names
_WRAPPED, _WRAPPED_MAX = 16, 24  # characters to which a terminal's column may narrow, the latter for its longest word
_NO_END = 10_000  # the width of output that is no terminal


def cell(value: object, style: str = "", *, chars_max: int = 200) -> Text:
    """Return remote text as a table's cell: in one line, cut to ``chars_max`` characters, without control characters or
    markup."""
    return Text("" if value is None else one_line(value, chars_max), style=style)


def item(words: object, style: str = "", *, indent: int = 2) -> RenderableType:
    """Return remote text as one entry of a list; its further lines on a terminal are indented, too."""
    return Padding(cell(words, style, chars_max=2000), (0, 0, 0, indent), expand=False)


def reasons(told: Iterable[tuple[object, str]], things: str = "jobs") -> list[RenderableType]:
    """List the reasons of (name, reason) pairs: each reason once, and under it a few of the names that have it."""
    said = [*folded(((one_line(name, _NAME_MAX), why) for name, why in told), things)]
    lines: list[RenderableType] = []
    for why, names in said[:_REASONS_SHOWN]:
        first, *more = why.split("\n")
        lengths = accumulate(len(name) + 2 for name in names[:_NAMES_WITH_REASON])
        more += [some(names, max(1, sum(length < _NAMES_MAX for length in lengths)))] if names[1:] else []
        lines += [item(first), *(item(each, "dim", indent=4) for each in more)]
    rest = len(said) - _REASONS_SHOWN
    return lines + ([Text(f"  … and {rest} more", "dim")] if rest > 0 else [])


def shortened(name: str, console: Console) -> str:
    """Return a name as this console's tables show it. A terminal shows both ends of a name of over 40 characters;
    other output has every name whole."""
    return one_line(name, NAME_SHOWN) if console.file.isatty() else name


def short_id(value: object) -> Text:
    return cell(str(value or "")[:_ID_SHOWN], "dim")


def state(view: Json) -> Text:
    status = str(view["status"])
    said = marks(view)
    return cell(status + (f" ({', '.join(said)})" if said else ""), STYLES.get(status, ""))


def in_columns(result: str) -> tuple[str, str]:
    """Split a result into the columns AUROC and [95 %]."""
    value, between, rest = result.removeprefix("AUROC ").partition(" [")
    return value, between.strip() + rest


def not_shown(count: int) -> str:
    """Return the sentence that ``count`` jobs that left the plan are not shown."""
    verb = "is" if count == 1 else "are"
    return f"{counted(count, 'jobs')} that left the plan {verb} not shown: `cis490-jobs list --all`"


def render_list(views: Iterable[Json], *, every: bool = True) -> RenderableType:
    everything = list(views)
    shown = everything if every else [view for view in everything if not left(view)]
    heads = ("JOB", "STATE", "AUROC", "[95 %]", "HOST", "PRIORITY", "MODEL", "MODE", "ID")
    keys = ("host", "priority", "model", "mode")
    rows = (
        (view["name"], state(view), *in_columns(of_job(view)), *(view[key] for key in keys), short_id(view["job_id"]))
        for view in shown
    )
    made = table(*heads, rows=rows, right=("PRIORITY",), first=("JOB", "STATE", "AUROC", "HOST"))
    hidden = len(everything) - len(shown)
    return Group(made, Text(not_shown(hidden), "dim")) if hidden else made


class Lines:
    """A table in which names, heads and short cells stay whole. Rich's own table takes over a millisecond a row.

    In a terminal, empty columns are left out, and columns of over 16 characters may wrap at words; words of up to 24
    stay whole. Columns in ``first`` get room before the others, and those without room are named below.
    """

    def __init__(
        self, columns: Sequence[str], rows: Iterable[Iterable[object]], right: Collection[str], first: Collection[str]
    ) -> None:
        self._columns, self._right = columns, [column in right for column in columns]
        self._by_rank = sorted(range(len(columns)), key=lambda n: (columns[n] not in first, n))
        self._rows = [[_told(value) for value in row] for row in rows]

    def change(self, edit: Callable[[str], str]) -> None:
        """Replace the text of each cell by what ``edit`` returns for it."""
        self._rows = [[(edit(text), style) for text, style in row] for row in self._rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        names = [column in _NAMES for column in self._columns]
        rows = [[(column, "bold") for column in self._columns]]
        rows += (
            [(shortened(t, console) if n else t, s) for n, (t, s) in zip(names, row, strict=True)] for row in self._rows
        )
        whole = [max(cell_len(row[n][0]) for row in rows) for n in range(len(names))]
        widths = [w if names[n] else min(w, _narrowest(row[n][0] for row in rows)) for n, w in enumerate(whole)]
        room, ranks, kept = _NO_END, self._by_rank, list[int]()
        if console.file.isatty():
            room, ranks = options.max_width, [n for n in ranks if not n or any(row[n][0] for row in rows[1:])]
        for n in ranks:
            wide = widths[n] + (2 if kept else 0)
            if not kept or wide <= room:
                room -= wide
                kept.append(n)
        kept.sort()
        narrow = sorted((n for n in kept if widths[n] < whole[n]), key=lambda n: whole[n])
        for others, n in enumerate(narrow):
            more = min(whole[n] - widths[n], max(room, 0) // (len(narrow) - others))
            widths[n], room = widths[n] + more, room - more
        for row in rows:
            cells = [_wrapped(*row[n], widths[n], console) for n in kept]
            for line in zip_longest(*cells, fillvalue=("", "")):
                for n, (text, style) in zip(kept, line, strict=True):
                    blank = " " * (widths[n] - cell_len(text))
                    padded = blank + text if self._right[n] else text + blank
                    yield Segment(padded + ("" if n == kept[-1] else "  "), console.get_style(style or "none"))
                yield Segment.line()
            if row is rows[0]:
                yield Segment(("-" if options.ascii_only else "─") * (sum(widths[n] + 2 for n in kept) - 2) + "\n")
        if without := [self._columns[n] for n in sorted(ranks) if n not in kept]:
            yield Segment(f"a wider terminal also shows: {', '.join(without)}\n", console.get_style("dim"))


def _told(value: object) -> tuple[str, str]:
    """Return a value as a cell's text and style."""
    if isinstance(value, Text):
        return value.plain, str(value.style)
    return "" if value is None else one_line(value, 600), ""


def _narrowest(cells: Iterable[str]) -> int:
    return min(_WRAPPED_MAX, max([_WRAPPED, *(cell_len(word) for each in cells for word in each.split())]))


def _wrapped(text: str, style: str, width: int, console: Console) -> list[tuple[str, str]]:
    if cell_len(text) <= width:
        return [(text, style)]
    return [(line.plain.rstrip(), style) for line in Text(text).wrap(console, width)]


def table(
    *columns: str, rows: Iterable[Iterable[object]], right: Collection[str] = (), first: Collection[str] = ()
) -> Lines:
    """Make a table of these rows; a value that is no Text is made safe to show."""
    return Lines(columns, rows, right, first)


def render_job(detail: Json) -> RenderableType:
    """Render a job: its state, its requirements, each attempt, and its last 15 events."""
    view, spec, now = detail["job"], detail["spec"], detail["now"]
    made = Table.grid("", Column(overflow="fold"), padding=(0, 1))
    about: list[tuple[str, object]] = [
        ("job", view["name"]),
        ("state", state(view)),
        ("host", view["host"]),
        ("progress", under_way(view, now)),
        ("result", of_job(view)),
        ("artifact", view["artifact_id"]),
        ("error", view["error"]),
        ("obstacle", view["obstacle"]),
        *facts(detail, constraints_in_words(spec)),
    ]
    for label, value in about:
        if value not in (None, ""):
            made.add_row(Text(label, "bold"), value if isinstance(value, Text) else cell(value, chars_max=2000))
    parts: list[RenderableType] = [made]
    if detail["attempts"]:
        heads = ("ATTEMPT", "HOST", "ENDED", "LASTED", "BEGAN", "ARTIFACT", "BOOKED")
        parts += [Text(), table(*heads, rows=(_attempt(each, now) for each in detail["attempts"]))]
        for each in detail["attempts"]:
            unlike_plan = unlike(each["granted"], spec)
            said = each["error"] or "", f"granted with {unlike_plan}" if unlike_plan else ""
            parts += [item(f"attempt {each['attempt']}: {words}", indent=0) for words in said if words]
    if detail["events"]:
        keys = ("transition", "to_status", "host", "detail")
        rows = ((ago(each["at"], now), *(each[key] for key in keys)) for each in detail["events"][-15:])
        parts += [Text(), table("WHEN", "EVENT", "STATE", "HOST", "DETAIL", rows=rows)]
    return Group(*parts)


def _attempt(entry: Json, now: object) -> Sequence[object]:
    began, ended = entry["granted_at"], entry["ended_at"]
    lasted = "" if ended is None else duration(ended - began)
    more = ago(began, now), short_id(entry["artifact_id"]), booked(entry["booked"])
    return entry["attempt"], entry["host"], entry["end_reason"] or "still running", lasted, *more


def render_explain(answer: Json) -> RenderableType:
    yes, no = Text("yes", "green"), Text("no", "red")
    hosts = answer["hosts"]
    rows = [(each["host"], yes if each["fits"] else no, duration(each["wait_s"])) for each in hosts]
    why = reasons(((each["host"], each["reason"]) for each in hosts if each["reason"]), "hosts")
    title = Text(f"{one_line(answer['name'], 60)}: {one_line(answer['summary'], 600)}", "bold")
    return Group(title, Text(), table("HOST", "FITS", "WAITS", rows=rows), *why) if rows else title


def render_workers(answer: Json) -> RenderableType:
    now, workers = answer["now"], answer["workers"]
    if not workers:
        return Text("no worker has asked for work yet; start one with cis490-trainer-worker")
    rows = []
    notes: list[RenderableType] = []
    for worker in workers:
        can, alive, name = worker["capability"], worker["alive"], worker["hostname"]
        seen = cell(ago(worker["last_seen"], now), "green" if alive else "red")
        free = _free(can.get("ram_available_gib"), can.get("ram_total_gib"))
        rows.append((cell(name, "" if alive else "dim"), seen, can.get("cpu_cores"), free, _gpu(can)))
        trains = cell(f"trains {some(worker['jobs'], 8)}") if worker["jobs"] else Text()
        notes += [Text(f"{one_line(name)}: ") + note for note in (trains, _note(worker), _data(worker)) if note]
    made = table("HOST", "SEEN", "CORES", "RAM FREE", "GPU", rows=rows, right=("CORES",))
    other = [f"{printable(each['hostname'])} {one_line(each['unlike'], 60)}" for each in workers if each["unlike"]]
    if other:
        build = f"Not the receiver's program ({one_line(answer['build'], 60)}): {some(other)}"
        notes.append(cell(build, "yellow", chars_max=400))
    return Group(made, *([Text()] if notes else []), *notes)


def _note(worker: Json) -> Text:
    """Return the most important warning about a host, styled for the table; empty if there is none."""
    if worker["quarantine"]:
        return cell(worker["quarantine"], "bold red", chars_max=500)
    waits = unconfirmed(worker) if worker["unconfirmed"] else None
    note = worker["conflict"] or waits or worker["resting"] or worker["obstacle"]
    if note is None and worker["set_aside"]:
        kept = ", ".join(map(str, worker["set_aside"]))
        note = f"finished work was refused and is kept there: {kept} "
        note += "(there, with the flags of its service: cis490-trainer-worker --deliver JOB)"
    if note is None and worker["doubt"]:
        return cell(worker["doubt"], "dim", chars_max=500)
    return cell(note, "yellow", chars_max=300)


def _free(free: object, total: object) -> str:
    have, all_of_it = number(free), number(total)
    return "" if have is None else f"{have:.1f}/{all_of_it or 0:.1f} GiB"


def _gpu(capability: Json) -> str:
    if not capability.get("cuda_available"):
        return "none"
    devices = capability.get("cuda_devices") or []
    return "; ".join(
        f"{device.get('name')} {_free(device.get('vram_free_gib'), device.get('vram_total_gib'))}"
        for device in devices
        if isinstance(device, Mapping)
    )


def _data(worker: Json) -> Text:
    """Say how much data sets take on a host, how much they may take, and the ids of the first three; empty if there are
    none or the host reports none."""
    told = worker["capability"].get("data_sets")
    here, most = (number(told.get(key)) if isinstance(told, Mapping) else None for key in ("bytes", "bytes_max"))
    if not here or most is None:
        return Text()
    names = [str(each.get("dataset_id"))[:12] for each in told.get("sets") or [] if isinstance(each, Mapping)]
    return cell(f"keeps data sets, {size(here)} of {size(most)}: {some(names, _SETS_SHOWN)}", "dim")


def moved_line(ref: str, answer: Json) -> str:
    """Return the line that says which state an act left the job in, and how many other jobs' names or ids begin with
    ``ref``."""
    who, near = printable(answer["name"] or ref), answer["near"]
    line = f"{who} ({printable(answer['job_id'])[:_ID_IN_LINE]}…) is {printable(answer['status'])}"
    if answer["held_by"]:
        line += f", held by {printable(answer['held_by'])}"
    elif answer["passed_over"] and answer["status"] == "pending":
        line += "; no host gets it: put it back into the plan, or requeue it"
    elif not answer["in_manifest"] and answer["status"] == "pending":
        line += "; the plan does not name it, but it will be trained unless it is cancelled"
    if near:
        others = "1 other job's name or id begins" if near == 1 else f"{near} other jobs' names or ids begin"
        line += f"; {others} with {printable(ref)} too"
    return line


def edited(edit: Json, now: object) -> str:
    """Describe an edit of the plan in words; for a job that stays completed, add how long ago it ended."""
    return sentence(edit) + (f", {ago(edit['since'], now)}" if edit["since"] else "")


def render_reload(answer: Json, shown: Json | None = None) -> str:
    """Return as text what a reload changed: the counts in one line, then each listed edit, then notes. Edits and notes
    that the plan has ``shown`` are left out."""
    known = shown or {"edits": (), "notes": ()}
    now, edits = answer["now"], [edit for edit in answer["edits"] if edit not in known["edits"]]
    saved = ago(answer["saved_at"], now)
    file = f"{answer['file']}, saved {saved or 'at an unknown time'}: " if answer["file"] else ""
    line = counts(answer)
    if answer["removed"]:
        line += "; removed jobs stay until they are cancelled (`cis490-jobs cancel --removed`)"
    lines = [file + line]
    if answer["cancelled"] and not shown:
        lines.append(cancelled_line(answer["cancelled"]))
    lines += [f"  {edited(edit, now)}" for edit in edits]
    if len(edits) >= LISTED_MAX:
        lines.append(f"  … these are the first {LISTED_MAX}")
    lines += [f"note: {one_line(note, 600)}" for note in answer["notes"] if note not in known["notes"]]
    return "\n".join(printable(each) for each in lines)


def cancelled_line(count: int) -> str:
    """Return the warning that ``count`` jobs of the plan are cancelled."""
    verb, pronoun = ("is", "it") if count == 1 else ("are", "them")
    return f"{counted(count, 'jobs')} of the plan {verb} cancelled: requeue {pronoun}"

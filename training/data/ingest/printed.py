"""Make tables of what administrators' programs print or log: vmstat, sar and iostat (sysstat), dstat and dool,
collectl, Windows' performance monitor, InfluxDB's annotated CSV, HWiNFO and Open Hardware Monitor.

Each form is found by its first lines. A converter takes the lines and yields the rows of a table, the names of the
columns first; times become dates of ISO 8601, and a column for each device is called after the device. All functions
are pure.
"""

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

Row = Sequence[str]
LOOKED_AT = 40  # lines that show the form
TIME = "timestamp"
CLOCK = re.compile(r"\d{1,2}:\d{2}:\d{2}")
SYSSTAT = re.compile(r"(?:Linux|FreeBSD|SunOS) \S+ \(([^)]*)\)\s+(\S+)")


class Form(NamedTuple):
    """One form of printed table: its name for people, how its first lines look, and its converter."""

    name: str
    looks: Callable[[Sequence[str]], bool]
    rows: Callable[[Iterable[str]], Iterator[Row]]


def form_of(lines: Sequence[str]) -> Form | None:
    """Return the form of a text by its first lines; None if it is none of these."""
    return next((form for form in FORMS if form.looks(lines)), None)


# -- sysstat and vmstat ------------------------------------------------------------------------------------------------


def _is_vmstat(lines: Sequence[str]) -> bool:
    return any({"swpd", "si", "so", "bi", "bo", "us", "sy", "id"} <= {*line.split()} for line in lines)


def _vmstat(lines: Iterable[str]) -> Iterator[Row]:
    names: list[str] = []
    for line in lines:
        words = line.split()
        if {"swpd", "us", "id"} <= {*words}:  # printed again after each screen
            if not names:
                named = words.index("st") + 1 if "st" in words else words.index("wa") + 1
                names = ["idle" if word == "id" else word for word in words[:named]]
                timed = len(words) > named
                yield [*([TIME] if timed else []), *names]
        elif names and words and words[0].isdigit():
            values, at = words[: len(names)], words[len(names) :]
            yield [*([" ".join(at[:2])] if timed else []), *values]


def is_sysstat(lines: Sequence[str]) -> bool:
    """Return True if the first lines are what sar, iostat or pidstat print."""
    return any(SYSSTAT.match(line) for line in lines[:3])


class _Wide:
    """Rows that are collected by time: a value for each name, in the order in which both came."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, str]] = {}
        self._names: dict[str, None] = {}

    def add(self, at: str, name: str, value: str, *, summed: bool = False) -> None:
        """Take a value in; one that is ``summed`` is added to a value of the same time and name."""
        self._names[name] = None
        row = self._rows.setdefault(at, {})
        row[name] = f"{float(row[name]) + float(value):.6g}" if summed and name in row else value

    def rows(self, first: str = TIME) -> Iterator[Row]:
        yield [first, *self._names]
        for at, values in self._rows.items():
            yield [at, *(values.get(name, "") for name in self._names)]


def _sysstat(lines: Iterable[str]) -> Iterator[Row]:
    """Yield the rows of what sar, iostat or pidstat print; a time and device have a column for each figure."""
    found, date, last, at, names = _Wide(), "", "", "", list[str]()
    for line in lines:
        head = SYSSTAT.match(line)
        words = line.split()
        if head:
            date, names = _with_century(head[2]), []
        elif not words or words[0] == "Average:":
            names = [] if not words else names
        elif _is_moment(words):  # of iostat -t, alone on its line
            at = " ".join([_with_century(words[0]), *words[1:]])
        elif CLOCK.fullmatch(words[0]):
            half = 1 + (words[1] in ("AM", "PM"))
            rest = words[half:]
            if not any(map(_is_number, rest)):
                names = rest
            elif names:
                clock = " ".join(words[:half])
                date, last = _next_day(date, last, clock), clock
                _take(found, f"{date} {clock}", names, rest)
        elif words[0].rstrip(":") in ("Device", "avg-cpu"):
            names = words
        elif names and at:
            device = [] if names[0] == "avg-cpu:" else words[:1]
            _take(found, at, ["", *names[1:]] if device else names[1:], words)
    yield from found.rows()


def _with_century(date: str) -> str:
    """Return a date such as ``11/28/26``, the month first, as ISO writes it; others as they are."""
    short = re.fullmatch(r"(\d\d)/(\d\d)/(\d\d)", date)
    return f"20{short[3]}-{short[1]}-{short[2]}" if short else date


def _is_moment(words: Sequence[str]) -> bool:
    return 2 <= len(words) <= 3 and bool(re.search(r"\d[-/.]\d", words[0])) and bool(CLOCK.fullmatch(words[1]))


def _is_number(word: str) -> bool:
    return bool(re.fullmatch(r"[+-]?\d+([.,]\d+)?", word))


def _next_day(date: str, last: str, clock: str) -> str:
    """Return the date, or the day after it if the clock passed midnight; a date whose day and month are unclear is only
    moved where it is written from the year on."""
    if not last or clock[:2] >= last[:2] or not re.fullmatch(r"\d{4}-\d\d-\d\d", date) or "M" in clock:
        return date
    return (_moment(date, "%Y-%m-%d") + timedelta(days=1)).strftime("%Y-%m-%d")


def _moment(text: str, form: str) -> datetime:
    """Return a time without a zone as if it were in UTC. Raises ValueError."""
    return datetime.strptime(text, form).replace(tzinfo=UTC)


def _take(found: _Wide, at: str, names: Sequence[str], values: Sequence[str]) -> None:
    """Add one printed line: a leading column of a device, interface or processor, or the command of a process, makes
    part of each name."""
    device = values[0] if names[0] in ("CPU", "DEV", "IFACE", "TTY", "FAN", "") or not _is_number(values[0]) else ""
    of_process = names[-1] == "Command"
    if of_process:
        device, names = values[-1], [name for name in names if name not in ("UID", "PID", "CPU", "Command")]
        values = values[2:-2]
    elif device:
        names, values = names[1:], values[1:]
    for name, value in zip(names, values, strict=False):
        found.add(at, f"{device} {name}".strip(), value.replace(",", "."), summed=of_process)


# -- dstat and collectl ------------------------------------------------------------------------------------------------


def _is_dstat(lines: Sequence[str]) -> bool:
    return any(re.match(r'"?(pcp-)?(dstat|dool) ', line, re.IGNORECASE) for line in lines[:2])


def _dstat(lines: Iterable[str]) -> Iterator[Row]:
    year, groups, names = "", list[str](), list[str]()
    for row in csv.reader(lines):
        if not row or not any(row):
            continue
        if "Date:" in row:
            year = next((word for cell in row[row.index("Date:") :] for word in re.findall(r"\b\d{4}\b", cell)), "")
        elif "time" in row or "epoch" in row:
            if not names:
                names = [_grouped(groups, place, name) for place, name in enumerate(row)]
                yield names
        elif not names:
            groups = row
        elif len(row) == len(names):
            yield [_dated(cell, year) if name == "time" else cell for name, cell in zip(names, row, strict=True)]


def _grouped(groups: Sequence[str], place: int, name: str) -> str:
    if name in ("time", "epoch"):
        return name
    group = next((one for one in reversed(groups[: place + 1]) if one), "")
    return f"{group} {name}".strip()


def _dated(cell: str, year: str) -> str:
    """Return a time such as ``02-03 09:00:00`` (day first) or ``Mar-02 09:00:00`` with the year before it."""
    for form in ("%d-%m %H:%M:%S", "%b-%d %H:%M:%S"):
        try:
            return f"{_moment(f'{year} {cell}', f'%Y {form}'):%Y-%m-%d %H:%M:%S}" if year else cell
        except ValueError:
            continue
    return cell


def _is_collectl(lines: Sequence[str]) -> bool:
    return any(line.startswith("#Date Time ") for line in lines)


def _collectl(lines: Iterable[str]) -> Iterator[Row]:
    names: list[str] = []
    for line in lines:
        words = line.split()
        if line.startswith("#Date Time ") and not names:
            names = [TIME, *words[2:]]
            yield names
        elif names and len(words) == len(names) + 1 and words[0].isdigit():
            day = words[0]
            yield [f"{day[:4]}-{day[4:6]}-{day[6:]} {words[1]}", *words[2:]]


# -- Windows -----------------------------------------------------------------------------------------------------------


def _is_perfmon(lines: Sequence[str]) -> bool:
    return any(line.lstrip('"').startswith("(PDH-CSV") for line in lines[:3])


def _perfmon(lines: Iterable[str]) -> Iterator[Row]:
    """Yield the rows of a log in the form of relog and typeperf, whose dates have the month first. With a bias, times
    are of that zone; the footer is left out."""
    names: Row = ()
    bias = 0
    for row in csv.reader(line for line in lines if line.strip()):
        if not names:
            zone = re.search(r"\((-?\d+)\)$", row[0])
            bias = int(zone[1]) if zone else 0
            hosts = {name.split("\\")[2] for name in row[1:] if name.startswith("\\\\")}
            short = len(hosts) == 1
            names = [TIME, *("\\".join(name.split("\\")[3:]) if short else name for name in row[1:])]
            yield names
        elif len(row) == len(names):
            try:
                at = _moment(row[0], "%m/%d/%Y %H:%M:%S.%f").replace(tzinfo=None)
            except ValueError:
                continue  # what the program says at its end
            offset = "" if not bias else f"{'-' if bias > 0 else '+'}{abs(bias) // 60:02d}:{abs(bias) % 60:02d}"
            yield [at.isoformat(" ", "milliseconds") + offset, *(cell.strip() for cell in row[1:])]


def _is_hwinfo(lines: Sequence[str]) -> bool:
    first = lines[0].lstrip('\ufeff"') if lines else ""
    return first.startswith("Date") and len(re.findall(r"\[[^\]]{1,12}\]", first)) >= 3


def _hwinfo(lines: Iterable[str]) -> Iterator[Row]:
    names: list[str] = []
    for row in csv.reader(lines):
        if not names:
            names = _apart([cell.lstrip("\ufeff") for cell in row])
            first, yes_no = row, {place for place, cell in enumerate(row) if "[Yes/No]" in cell}
            yield names
        elif row[:2] == first[:2]:
            return  # the names again, and the sensors' names behind them
        else:
            yield [{"Yes": "1", "No": "0"}.get(cell, "") if place in yes_no else cell for place, cell in enumerate(row)]


def _is_hardware_monitor(lines: Sequence[str]) -> bool:
    return len(lines) > 1 and lines[0].startswith(",/") and lines[1].lstrip('"').startswith("Time")


def _hardware_monitor(lines: Iterable[str]) -> Iterator[Row]:
    rows = csv.reader(lines)
    ids, names = next(rows), next(rows)
    named = [f"{name} {'/'.join(one.split('/')[-2:])}" for one, name in zip(ids[1:], names[1:], strict=True)]
    yield [names[0], *_apart(named)]
    yield from rows


def _apart(names: Sequence[str]) -> list[str]:
    """Return the names; those that occurred before get a number."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 or not name else f"{name} ({seen[name]})")
    return found


# -- InfluxDB ----------------------------------------------------------------------------------------------------------


def _is_influx(lines: Sequence[str]) -> bool:
    named = next((line for line in lines if line.strip() and not line.startswith("#")), "")
    return {"_time", "_value"} <= {*named.strip().split(",")}


def _influx(lines: Iterable[str]) -> Iterator[Row]:
    """Yield a row for each point: its time, its series (the measurement, field and tags) as ``metric``, its host and
    its value."""
    names: list[str] = []
    yield ["time", "metric", "host", "value"]
    for row in csv.reader(line for line in lines if line.strip() and not line.startswith("#")):
        if "_value" in row:  # each table of the answer has its own
            names = row
            continue
        cells = dict(zip(names, row, strict=False))
        own = {"", "result", "table", "_start", "_stop", "_time", "_value", "host", "_measurement", "_field"}
        tags = [f"{name}={cell}" for name, cell in cells.items() if name not in own and cell]
        series = [cells.get("_measurement", ""), cells.get("_field", ""), *tags]
        yield [
            cells["_time"],
            " ".join(part for part in series if part),
            cells.get("host") or "unknown",
            cells["_value"],
        ]


FORMS = (
    Form("vmstat", _is_vmstat, _vmstat),
    Form("sysstat", is_sysstat, _sysstat),
    Form("dstat", _is_dstat, _dstat),
    Form("collectl", _is_collectl, _collectl),
    Form("performance monitor", _is_perfmon, _perfmon),
    Form("HWiNFO", _is_hwinfo, _hwinfo),
    Form("Open Hardware Monitor", _is_hardware_monitor, _hardware_monitor),
    Form("InfluxDB", _is_influx, _influx),
)

"""Make tables of what administrators' programs print or log: vmstat, sar and iostat (sysstat), dstat and dool,
collectl, Windows' performance monitor, InfluxDB's annotated CSV, Zabbix' history, HWiNFO and Open Hardware Monitor.

Each form is found by its first lines. A converter takes the lines and yields the rows of a table, the names of the
columns first; times become dates of ISO 8601, and a column for each device is called after the device. All functions
are pure.
"""

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from training.certain import certain
from training.data.errors import DataError

Row = Sequence[str]
LOOKED_AT = 40  # lines that show the form
TIME = "timestamp"
CLOCK = re.compile(r"\d{1,2}:\d{2}:\d{2}")
DAY = re.compile(r"\d{4}-\d\d-\d\d")
ZABBIX = re.compile(r'\ufeff?"?itemid"?(.)"?clock"?\1"?value"?\1"?ns"?\s*$')
COLLECTL = re.compile(r"#Date(.)Time\1")
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4}")
SYSSTAT = re.compile(r"(?:Linux|FreeBSD|SunOS) \S+ \(([^)]*)\)\s+(\S+)")
DEVICES = ("CPU", "DEV", "IFACE", "TTY", "FAN", "TEMP", "IN", "BUS", "INTR")
OF_PROCESSES = ("UID", "USER", "PID", "TGID", "TID", "CPU")  # what tells them apart
LEVELS = ("VSZ", "RSS", "%MEM", "StkSize", "StkRef", "threads", "fd-nr")  # that a process has while it rests


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
    """Yield a row for each line but the first, which has averages since the system's start."""
    head: list[str] = []
    names: list[str] = []
    for line in lines:
        words = line.split()
        if {"swpd", "us", "id"} <= {*words}:  # printed again after each screen
            head = ["idle" if word == "id" else word for word in words]
        elif head and words and words[0].isdigit():
            is_timed = bool(DAY.fullmatch(words[-2:][0]))
            if len(words) == len(names) + 2 * is_timed:
                yield [*([" ".join(words[-2:])] if is_timed else []), *words[: len(names)]]
            elif not names:
                names = head[: len(words) - 2 * is_timed]  # without the time's zone
                yield [*([TIME] if is_timed else []), *names]


def is_sysstat(lines: Sequence[str]) -> bool:
    """Return True if the first lines are what sar, iostat or pidstat print."""
    return any(SYSSTAT.match(line) for line in lines[:3])


class _Wide:
    """Rows that are collected by time: a value for each name, in the order in which both came."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, str]] = {}
        self._absent: dict[str, str] = {}  # the cell of a row without a value, by name
        self._heads: dict[str, Sequence[str]] = {}

    def add(
        self, at: str, name: str, value: str, head: Sequence[str], *, absent: str = "", summed: bool = False
    ) -> None:
        """Take in a value printed below ``head``; one that is ``summed`` is added to a value of the same time and name.

        The name gets a number if a value of another head has it at the same time. A word in place of a number counts as
        no value.
        """
        if not _is_number(value):
            return
        value = value.replace(",", ".")
        row = self._rows.setdefault(at, {})
        if name in row and self._heads[name] != head:
            name += " (2)"
        self._heads.setdefault(name, head)
        self._absent.setdefault(name, absent)
        row[name] = f"{float(row[name]) + float(value):.12g}" if summed and name in row else value

    def rows(self, *, is_timed: bool = True) -> Iterator[Row]:
        yield [*([TIME] if is_timed else []), *self._absent]
        for at, values in self._rows.items():
            yield [*([at] if is_timed else []), *(values.get(name, absent) for name, absent in self._absent.items())]


def _sysstat(lines: Iterable[str]) -> Iterator[Row]:
    """Yield the rows of what sar or pidstat print; a time and device have a column for each figure."""
    found, date, names = _Wide(), "", list[str]()
    last: dict[tuple[str, ...], str] = {}  # the last time below each head: sar -f prints one head after the other
    for line in lines:
        head = SYSSTAT.match(line)
        words = line.lstrip("#").split()
        if head:
            date, names, last = head[2], [], {}
        elif not words or "RESTART" in words:
            names = []
        elif words[0] == "Time":  # of pidstat -h
            names = words[1:]
        elif CLOCK.fullmatch(words[0]) and len(words) > 1:
            clock = words[: 1 + (words[1] in ("AM", "PM"))]
            rest = words[len(clock) :]
            if not any(map(_is_number, rest)):
                names = rest
            elif names:
                before = last.get(tuple(names), "")
                at = f"{before[:10] or _iso_date(date, clock)} {_clock_of(clock)}"
                at = _next_day(at) if at[11:13] < before[11:13] else at
                last[tuple(names)] = at
                _take(found, at, names, rest)
    yield from found.rows()


def _is_iostat(lines: Sequence[str]) -> bool:
    return is_sysstat(lines) and any(re.match(r"avg-cpu:|Device:?\s", line) for line in lines)


def _iostat(lines: Iterable[str]) -> Iterator[Row]:
    """Yield a row for each report but the first, which has averages since the system's start."""
    found, at, names, report, first = _Wide(), "", list[str](), 0, 1
    for line in lines:
        words = line.split()
        if SYSSTAT.match(line):
            names, first = [], report + 1
        elif words and _is_moment(words):  # of -t, alone on its line
            at = words[0] if len(words) == 1 else f"{_iso_date(words[0], words[1:])} {_clock_of(words[1:])}"
        elif words and words[0].rstrip(":") in ("Device", "avg-cpu"):
            report += words[0] == "avg-cpu:" or names[:1] != ["avg-cpu:"]
            names = words
        elif words and names and report > first:
            device = "" if names[0] == "avg-cpu:" else words[0]
            for name, value in zip(names[1:], words[bool(device) :], strict=False):
                found.add(at or str(report), f"{device} {name}".strip(), value, names)
    yield from found.rows(is_timed=bool(at))


def _is_moment(words: Sequence[str]) -> bool:
    if len(words) == 1:
        return bool(MOMENT.fullmatch(words[0]))
    return len(words) <= 3 and bool(re.search(r"\d[-/.]\d", words[0])) and bool(CLOCK.fullmatch(words[1]))


def _iso_date(date: str, clock: Sequence[str]) -> str:
    """Return a date as ISO writes it; one that may have the day or the month first as it is.

    Slashes stand behind the month first in a year of two digits, and beside a clock of twelve hours; points and hyphens
    behind the day.
    """
    parts = re.fullmatch(r"(\d\d?)([-/.])(\d\d?)\2((?:20)?\d\d)", date)
    if not parts:
        return date
    first, sign, second, year = int(parts[1]), parts[2], int(parts[3]), parts[4]
    is_day_first = first > 12 or sign != "/"
    if not is_day_first and second <= 12 and len(year) == 4 and len(clock) == 1:
        return date
    day, month = (first, second) if is_day_first else (second, first)
    return f"20{year[-2:]}-{month:02}-{day:02}"


def _clock_of(words: Sequence[str]) -> str:
    """Return the time of day by a clock of 24 hours; ``words`` may have AM or PM behind it."""
    if len(words) == 1:
        return words[0]
    hour, _, rest = words[0].partition(":")
    return f"{int(hour) % 12 + 12 * (words[1] == 'PM'):02}:{rest}"


def _is_number(word: str) -> bool:
    return bool(re.fullmatch(r"[+-]?\d+([.,]\d+)?", word))


def _next_day(at: str) -> str:
    """Return the time a day later. Raises DataError for a date that is not written as ISO does."""
    try:
        return str(_moment(at, "%Y-%m-%d %H:%M:%S").replace(tzinfo=None) + timedelta(days=1))
    except ValueError:
        raise DataError(
            f"The recording passes midnight, and its date {at[:10]} may have the day or the month first: write it as "
            "in 2026-11-28 into the first line."
        ) from None


def _moment(text: str, form: str) -> datetime:
    """Return a time without a zone as if it were in UTC. Raises ValueError."""
    return datetime.strptime(text, form).replace(tzinfo=UTC)


def _take(found: _Wide, at: str, names: Sequence[str], values: Sequence[str]) -> None:
    """Add one printed line: a device, interface or processor, or the command of a process, makes part of each name.

    The figures of all processes of one command are added up. One that is not printed did nothing.
    """
    head, most = names, len(names) - 1
    of_process = names[-1] == "Command"
    device = ""
    if of_process or names[-1] == "FILESYSTEM":
        device, names = " ".join(values[most:]), names[:most]
        device = re.split(r"\s+(?=[-/])", device)[0] if of_process else device  # without arguments
        device = "kworker" if device.startswith("kworker/") else device
    elif names[0] in DEVICES or not _is_number(values[0]):
        device, names, values = values[0], names[1:], values[1:]
    for name, value in zip(names, values, strict=False):
        if not (of_process and name in OF_PROCESSES):
            absent = "0" if of_process and name not in LEVELS else ""
            found.add(at, f"{device} {name}".strip(), value, head, absent=absent, summed=of_process)


# -- dstat and collectl ------------------------------------------------------------------------------------------------


def _is_dstat(lines: Sequence[str]) -> bool:
    return any(re.match(r'"?(pcp-)?(dstat|dool) ', line, re.IGNORECASE) for line in lines[:2])


def _dstat(lines: Iterable[str]) -> Iterator[Row]:
    """Yield a row for each line but the first behind each head, which has averages since the system's start."""
    names: list[str] = []
    year, last, groups = 0, "", list[str]()
    for row in csv.reader(lines):
        if not any(row):
            continue
        if row[0].endswith("CSV output"):  # of each run that was appended
            groups = []
        elif row[0].endswith(":"):
            years = re.findall(r"\b\d{4}\b", " ".join(row[row.index("Date:") :])) if "Date:" in row else []
            year = int(years[0]) if years else year
        elif not groups or row == groups:
            groups, head, first = row, list[str](), True
        elif not head:
            head = [_grouped(groups, place, name) for place, name in enumerate(row)]
            is_time = [name == ("epoch" if "epoch" in head else "time") for name in head]
            kept = [place for place, name in enumerate(head) if name not in ("epoch", "time")]
            if names and head != names:
                raise DataError(
                    f"It holds runs with other columns ({', '.join(head[:3])}, …): divide it at their heads."
                )
            if not names:
                yield [*([TIME] if any(is_time) else []), *(head[place] for place in kept)]
            names = head
        elif len(row) == len(names) and first:
            first = False
        elif len(row) == len(names):
            at = [cell for cell, one in zip(row, is_time, strict=True) if one]
            if at and "epoch" not in names:
                at = [_dated(at[0], year)]
                if at[0] < last and at[0][5:7] == "01":
                    year += 1
                    at = [_dated(row[names.index("time")], year)]
                last = at[0]
            yield [*at, *(row[place] for place in kept)]


def _grouped(groups: Sequence[str], place: int, name: str) -> str:
    if name in ("time", "epoch"):
        return name
    group = next((one for one in reversed(groups[: place + 1]) if one), "")
    return f"{group} {name}".strip()


def _dated(cell: str, year: int) -> str:
    """Return a time such as ``02-03 09:00:00`` (day first) or ``Mar-02 09:00:00`` with the year before it."""
    for form in ("%d-%m %H:%M:%S", "%b-%d %H:%M:%S"):
        try:
            return f"{_moment(f'{year} {cell}', f'%Y {form}'):%Y-%m-%d %H:%M:%S}" if year else cell
        except ValueError:
            continue
    return cell


def _is_collectl(lines: Sequence[str]) -> bool:
    return any(COLLECTL.match(line) for line in lines)


def _collectl(lines: Iterable[str]) -> Iterator[Row]:
    names: list[str] = []
    sign = ""
    for line in lines:
        head = COLLECTL.match(line)
        words = line.strip().split(sign or None)
        if head and not names:
            sign = head[1].strip()  # a blank stands for several
            names = [TIME, *line.strip().split(sign or None)[2:]]
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
        elif row[:1] == first[:1] and row != first:
            raise DataError("It holds logs with other columns: divide it where the names of the columns stand again.")
        elif row and row[0][:1].isdigit():  # neither the names again, nor the sensors' names behind them
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


# -- Zabbix ------------------------------------------------------------------------------------------------------------


def _is_zabbix(lines: Sequence[str]) -> bool:
    return bool(lines and ZABBIX.match(lines[0]))


def _zabbix(lines: Iterable[str]) -> Iterator[Row]:
    """Yield the rows of Zabbix' history without ``ns``, the nanoseconds behind the seconds of the clock."""
    rows = iter(lines)
    names = next(rows)
    sign = certain(ZABBIX.match(names), "it is of this form")[1]
    yield ["itemid", "clock", "value"]
    yield from (row[:3] for row in csv.reader(rows, delimiter=sign) if row)


FORMS = (
    Form("vmstat", _is_vmstat, _vmstat),
    Form("iostat", _is_iostat, _iostat),
    Form("sysstat", is_sysstat, _sysstat),
    Form("dstat", _is_dstat, _dstat),
    Form("collectl", _is_collectl, _collectl),
    Form("performance monitor", _is_perfmon, _perfmon),
    Form("HWiNFO", _is_hwinfo, _hwinfo),
    Form("Open Hardware Monitor", _is_hardware_monitor, _hardware_monitor),
    Form("InfluxDB", _is_influx, _influx),
    Form("Zabbix", _is_zabbix, _zabbix),
)

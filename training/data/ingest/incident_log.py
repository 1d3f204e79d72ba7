"""Label samples by another file than their table's: a log of incidents (from, to, what), or a label for each row.

A sample during an incident of its host gets the incident's label; if the log has no hosts, each incident counts on
every host. A sample in two incidents with different labels gets no label. A sample in no incident gets no label,
because a log has only what people noticed, unless --rest names a class for samples in no incident. Samples without a
label are left out, counted and reported.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
import polars as pl

from training.data.classes import listed
from training.data.coded import Coded
from training.data.doubts.spelling import tidy
from training.data.errors import DataError
from training.data.ingest import times
from training.data.ingest.cells import PARQUET
from training.data.ingest.dialect import encoding_of
from training.data.ingest.opened import opened
from training.data.ingest.roles import NAMES, Role, bounds_of, is_row_number, plain, roles_of, unit_in, words_of
from training.data.ingest.several import ENDINGS
from training.data.ingest.tables import Stored, read_plain
from training.data.scratch import WorkingMemory
from training.data.values import AnyArray, Floats, Names
from training.printable import some

# The names of its columns, plain: the first is what messages call it.
COLUMNS = words_of(
    """
    start from begin begins started startedat starttime beginn von
    end to until stop ended endedat endtime ende bis
    label class category phase what type incident y was klasse
    """
)
HOST = NAMES[Role.HOST]
SHOWN = 3  # incidents named in one sentence
UNNAMED = "anomaly"  # the class of incidents that no column names
DIVIDED = re.compile(r"[,;|\t ]")


class Said(NamedTuple):
    """The content of the file of --labels-from: the ``rows`` of a table, or intervals of a JSON object."""

    rows: pl.DataFrame
    is_pairs: bool = False  # of a first and last moment, both in the interval

    @property
    def is_log(self) -> bool:
        """True for incidents, False for a label of each row."""
        names = self.rows.columns
        return bool(bounds_of(names)) or any(plain(name) in (*COLUMNS["start"], *COLUMNS["end"]) for name in names)


def read_said(path: Path, hosts: Mapping[str, str | None], room: WorkingMemory) -> Said:
    """Return the content of a file of labels: a table, one label a line, or a JSON object with intervals by file name.

    ``hosts`` has the names by which the object may call the table's files, and the host of each. Raises DataError.
    """
    with suppress(ValueError):
        found = json.loads(path.read_bytes()) if path.suffix.lower() == ".json" else None
        if isinstance(found, dict):
            return Said(_pairs(path, found, hosts), is_pairs=True)
    with opened(path, room) as table:
        if table.suffix.lower() == PARQUET:
            return Said(read_plain(table))
        lines = [line.strip() for line in table.read_text(encoding_of(table)).splitlines()]
        cells = [line for line in lines if line]
        return Said(read_plain(table, _is_used) if all(map(DIVIDED.search, cells)) else pl.DataFrame({"": cells}))


def _is_used(name: str) -> bool:
    """Return True if a column of a file of labels may be read; the others stay as they are written."""
    return any(plain(name) in words for words in (*COLUMNS.values(), *NAMES.values()))


def _pairs(path: Path, found: Mapping[str, object], hosts: Mapping[str, str | None]) -> pl.DataFrame:
    """Return the incidents in the entries that are called after the table's files, with the files' hosts if they have
    some; a single moment begins and ends its incident."""
    rows = []
    for name, entries in found.items():
        stem = ENDINGS.sub("", PurePosixPath(name).name)
        for entry in entries if stem in hosts and isinstance(entries, list) else ():
            pair = entry if isinstance(entry, list) else [entry, entry]
            if len(pair) != 2 or not all(isinstance(moment, str | int | float) for moment in pair):
                raise DataError(f"The entry {name!r} of {path} must hold pairs of a start and an end.")
            rows.append((*pair, hosts[stem]))
    if not rows:
        raise DataError(
            f"{path} has no incidents of {listed(list(hosts))}: it names {listed(list(found))}; an entry is called "
            "after the file that it labels."
        )
    table = pl.DataFrame(rows, schema=["start", "end", "host"], orient="row", strict=False)
    return table if any(hosts.values()) else table.drop("host")


def labels_of_rows(path: Path, said: Said, height: int) -> Coded:
    """Return the labels in ``said``, which has one for each of the ``height`` rows of a table. Raises DataError."""
    rows, name = said.rows, said.rows.columns[0]
    if rows.width > 1:
        roles = roles_of(rows.columns, {}, str(path))
        rest = [one for one in rows.columns if one not in roles.names and not is_row_number(one)]
        name = roles.columns.get(Role.LABEL, rest[0] if len(rest) == 1 else "")
        if name not in rows.columns:
            raise DataError(
                f"{path} has no column 'start' and no 'label': bring incidents (start, end, label and, if there are "
                "several hosts, host), or one label for each row of the table."
            )
    cells = rows[name].cast(pl.String)
    above = ""
    is_name = cells.len() == height + 1 or plain(cells[0]) in NAMES[Role.LABEL]
    if not name and is_name and cells[0] not in cells[1:] and cells[:1].cast(pl.Float64, strict=False).null_count():
        above, cells = f" below the name {cells[0]!r} in its first line", cells[1:]
    if cells.len() != height:
        raise DataError(
            f"{path} has {cells.len():,} labels{above}, and the table {height:,} rows: bring one a row, or a log of "
            "incidents with the columns start, end and label."
        )
    values: AnyArray
    if cells.str.to_lowercase().is_in(["true", "false"]).all():
        values = (cells.str.to_lowercase() == "true").to_numpy()
    else:
        numbers = cells.cast(pl.Float64, strict=False)
        values = (cells.fill_null("nan") if numbers.null_count() > cells.null_count() else numbers).to_numpy()
    names, codes = np.unique(values if values.dtype != object else values.astype(str), return_inverse=True)
    return Coded(names, codes.astype(np.int32))


class IncidentLog(NamedTuple):
    """The incidents of a log: times in seconds, ``end`` exclusive; ``host`` is None if the log has no column of
    hosts."""

    path: Path
    start: Floats
    end: Floats
    label: Names
    host: Names | None
    role: str  # what the times were read as
    others: Mapping[str, frozenset[str]] = {}  # what the other columns hold, by name

    def check_zone(self, role: str, where: str) -> None:
        """Raise DataError if only one of the log and the table, whose times were read as ``role``, has dates without a
        time zone; ``where`` names the table in the error.

        Seconds count from 1970 in UTC, and dates without a zone are more likely local time.
        """
        if (times.NO_ZONE in role) == (times.NO_ZONE in self.role):
            return
        one, other, of = (self.path, where, role) if times.NO_ZONE in self.role else (where, self.path, self.role)
        have = "those of {} do" if "dates" in of else "{} has numbers"
        raise DataError(
            f"The dates of {one} name no time zone and {have.format(other)}: write dates in UTC, with Z at their end."
        )


def read_incidents(path: Path, said: Said, clock: times.SaidTimes) -> IncidentLog:
    """Return the incidents in the file ``path``, which holds ``said``; ``clock`` has the user's flags about times.
    Raises DataError."""
    rows = said.rows
    host = next((name for name in rows.columns if plain(name) in HOST), None)
    if rows.width == 2 + (host is not None):
        rows = rows.with_columns(pl.lit(UNNAMED).alias("label"))
    names = {what: _column(rows.columns, words, what, path) for what, words in COLUMNS.items()}
    if rows.height == 0:
        raise DataError(f"{path} holds no incidents.")
    for name in names.values():
        empty = rows[name].is_null().arg_true()
        if empty.len():
            raise DataError(f"Row {int(empty[0]) + 1} of {path} has no {name!r}: fill that cell.")
    (start, role), (end, end_role) = (
        times.from_column(rows[name], clock._replace(named=unit_in(name, is_time=True)), str(path))
        for name in (names["start"], names["end"])
    )
    if role != end_role:
        raise DataError(
            f"{path} has {role} as {names['start']!r} and {end_role} as {names['end']!r}: write both alike."
        )
    end = np.nextafter(end, np.inf) if said.is_pairs else end
    backward = np.flatnonzero(end <= start)
    if backward.size:
        raise DataError(f"Row {int(backward[0]) + 1} of {path} ends before it begins, or at once: fix it.")
    label = tidy(rows[names["label"]].cast(pl.String).to_numpy().astype(str), "label")
    if host is not None and (empty := rows[host].cast(pl.String).fill_null("").str.strip_chars() == "").any():
        raise DataError(
            f"Row {int(empty.arg_true()[0]) + 1} of {path} has no {host!r}: write the incident once for each host that "
            "it concerns, or take the column out if each concerns all."
        )
    hosts = None if host is None else tidy(rows[host].cast(pl.String).to_numpy().astype(str), "host")
    others = {
        name: frozenset(rows[name].drop_nulls().cast(pl.String))
        for name in rows.columns
        if name not in (*names.values(), host)
    }
    return IncidentLog(path=path, start=start, end=end, label=label, host=hosts, role=role, others=others)


def _column(names: Sequence[str], words: Sequence[str], what: str, path: Path) -> str:
    found = [name for name in names if plain(name) in words]
    if len(found) != 1:
        said = (
            f"has no column {what!r}" if not found else f"has several columns that may be the {what} ({listed(found)})"
        )
        raise DataError(
            f"{path} {said}: name the columns of incidents start, end, label and, if there are several hosts, host."
        )
    return found[0]


class Labelled(NamedTuple):
    """The label of each sample (``""`` for none), lines of text on the samples without a label, and notes."""

    label: Coded = Coded.of([])
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def label_samples(t: Floats, host: Coded, incidents: IncidentLog, *, rest: str | None) -> Labelled:
    """Return the label of each sample, taken at ``t`` seconds on ``host``; ``rest`` is the label of samples in no
    incident.

    Raises DataError if no sample lies in an incident, or hosts of the log would be ignored (:func:`_check_hosts`).
    """
    hosts = host.present.tolist()
    _check_hosts(hosts, incidents)
    labels = np.unique(incidents.label)
    named = (np.searchsorted(labels, incidents.label) + 1).tolist()
    is_met = np.zeros(incidents.start.size, bool)
    of = np.zeros(t.size, np.int32)
    for number in range(incidents.start.size):
        mine = (t >= incidents.start[number]) & (t < incidents.end[number])
        if incidents.host is not None:
            mine &= bool(incidents.host[number] in hosts)
            mine &= host.codes == np.searchsorted(host.names, incidents.host[number])
        of[mine] = np.where((of[mine] == 0) | (of[mine] == named[number]), named[number], -1)
        is_met[number] = mine.any()
    torn, between = int((of == -1).sum()), int((of == 0).sum())
    names = [rest or "", *labels.tolist(), ""]  # the last of samples in incidents of unlike labels
    codes = of % np.int32(len(names))
    outside = np.flatnonzero(~is_met).tolist()
    if len(outside) == incidents.start.size:
        raise DataError(_nowhere(t, hosts, incidents))
    label = Coded(np.array(names), codes).renamed(names)
    left_out = []
    if torn:
        left_out.append(f"{torn:,} of {t.size:,} samples: in incidents of unlike labels that overlap")
    if between and rest is None:
        left_out.append(f"{between:,} of {t.size:,} samples: in no incident (--rest NAME gives them a class)")
    notes = [_outside(outside, hosts, incidents)] if outside else []
    if incidents.host is None and len(hosts) > 1:
        notes.append(f"{incidents.path.name} names no host: each incident counts on every host.")
    return Labelled(label=label, left_out=tuple(left_out), notes=tuple(notes))


def _check_hosts(hosts: Sequence[str], incidents: IncidentLog) -> None:
    """Raise DataError if the log's hosts would be ignored, because their column has another name, their spelling
    differs, or a cell lists several."""
    for name, values in incidents.others.items() if incidents.host is None and len(hosts) > 1 else ():
        if not values.isdisjoint(hosts):
            raise DataError(
                f"The column {name!r} of {incidents.path} names hosts of the table: call it 'host', or leave it out if "
                "each incident concerns every host."
            )
    alike = {_plain_host(known): known for known in hosts}
    for host in [] if incidents.host is None else np.unique(incidents.host).tolist():
        known = alike.get(_plain_host(host), host)
        if host not in hosts and known != host:
            raise DataError(f"{incidents.path} names the host {host!r}, and the table {known!r}: spell them alike.")
        if (
            host not in hosts
            and len(parts := _hosts_in(host)) > 1
            and any(_plain_host(part) in alike for part in parts)
        ):
            raise DataError(
                f"{incidents.path} names several hosts in one cell, {host!r}: write a row for each of them."
            )


def _plain_host(host: str) -> str:
    """Return a host's name in lower case, without a port as in Prometheus's instances."""
    return re.sub(r":\d+$", "", host.strip().casefold())


def _hosts_in(cell: str) -> list[str]:
    """Return the names in a cell that lists several: ``web1,web2``, ``['web1', 'web2']`` or ``web1 and web2``."""
    return [part for part in re.split(r"[\s,;|+&/\[\](){}'\"]+", cell) if part not in ("", "and")]


def _outside(outside: Sequence[int], hosts: Sequence[str], incidents: IncidentLog) -> str:
    theirs = "" if incidents.host is None else " of their hosts"
    rows = some([str(number + 1) for number in outside], SHOWN)
    of = Counter(incidents.label[outside].tolist())
    classes = ", ".join(f"{name} {count:,}" for name, count in sorted(of.items()))
    count = f"{len(outside):,} of {incidents.start.size:,} incidents lie in no recording{theirs}"
    unknown = [] if incidents.host is None else sorted({*incidents.host[outside].tolist()} - {*hosts})
    named = f"; the table has no host {listed(unknown)}" if unknown else ""
    return f"{count}: rows {rows} ({classes}){named}."


def _nowhere(t: Floats, hosts: Sequence[str], incidents: IncidentLog) -> str:
    if incidents.host is not None and not np.isin(incidents.host, hosts).any():
        named, known = listed(np.unique(incidents.host).tolist()), listed(hosts)
        return (
            f"No incident of {incidents.path} is of a host of the table: it names {named}, and the hosts are {known}."
        )
    ends = (incidents.start.min(), incidents.end.max(), t.min(), t.max())
    first, last, begin, end = (times.shown(float(moment)) for moment in ends)
    return (
        f"No incident of {incidents.path} lies in a recording: they are from {first} to {last}, the samples from "
        f"{begin} to {end}: another clock, or another time zone?"
    )


def with_labels(table: Stored, labelled: Labelled, source: str) -> Stored:
    """Return the table with only its labelled rows, and with their labels; ``source`` says where the labels come
    from."""
    keep = (labelled.label.names != "")[labelled.label.codes]
    roles = table.roles._replace(columns={**table.roles.columns, Role.LABEL: source})
    table = table._replace(roles=roles, columns=(*table.columns, str(Role.LABEL)))
    return table.only(keep, labelled.label.take(keep))

"""Label samples by a log of incidents (from, to, what), for a table that has no labels.

A sample during an incident of its host gets the incident's label; if the log has no hosts, each incident counts on
every host. A sample in two incidents with different labels gets no label. A sample in no incident gets no label,
because a log has only what people noticed, unless --rest names a class for samples in no incident. Samples without a
label are left out, counted and reported.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from training.data.classes import listed
from training.data.coded import Coded
from training.data.doubts.spelling import tidy
from training.data.errors import DataError
from training.data.ingest import times
from training.data.ingest.roles import NAMES, Role, plain, unit_in, words_of
from training.data.ingest.tables import Stored, read_plain
from training.data.values import Floats, Names
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


def read_incidents(path: Path, clock: times.SaidTimes) -> IncidentLog:
    """Return the incidents in the file ``path``; ``clock`` has the user's flags about times. Raises DataError."""
    rows = read_plain(path)
    names = {what: _column(rows.columns, words, what, path) for what, words in COLUMNS.items()}
    host = next((name for name in rows.columns if plain(name) in HOST), None)
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

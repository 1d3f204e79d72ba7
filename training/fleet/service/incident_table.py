"""Incidents that watched hosts report: kept once each, notified once, judged by people. Their changes beside them.

The host's own id names an incident, so that a report may be repeated, and come late. The record of one only grows: a
report that was under way for long opens nothing again and takes nothing back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from training.clock import Clock
from training.fleet.database.writer import Database, Row
from training.fleet.manifest.channels import NoticeKind
from training.fleet.service import host_changes
from training.fleet.service.audit import Act, AuditLog
from training.fleet.service.guards import HOUR_S, check_pace
from training.fleet.service.notify.outbox import NoticeOutbox
from training.fleet.wire.incident_messages import (
    PAGE,
    PAGE_MAX,
    SPANS_MAX,
    ChangeView,
    IncidentsReply,
    IncidentView,
    WatchedIncident,
    WatchReply,
    WatchRequest,
    WatchView,
    WhyView,
)
from training.fleet.wire.messages import ProblemType, Refusal
from training.fleet.wire.words import carried
from training.printable import counted, one_line

NEW_AN_HOUR_MAX = 60  # of a host: honest rules raise fewer
KEPT_OF_HOST = 1000
KEPT_S = 365 * 86400.0  # since an incident was heard of last
WATCHES_OF_HOST = 20
WATCHES_MAX = 2000
WATCH_KEPT_S = 90 * 86400.0
SILENT_TIMES, SILENT_S = 2.0, 60.0  # what a watch meant, and this: then it is silent


class _Why(msgspec.Struct, frozen=True):
    why: list[WhyView] = []
    seconds: list[tuple[float, float]] = []


def silent(watch: Mapping[str, Any] | Row, now: float) -> bool:
    """True if a watch was silent for longer than its interval, with room for a lost report."""
    return bool(now - watch["heard_at"] > SILENT_TIMES * watch["every_s"] + SILENT_S)


class IncidentTable:
    """The table's only writer. Used on the thread that owns the database."""

    def __init__(self, db: Database, clock: Clock, audit: AuditLog) -> None:
        self._db, self._clock, self._audit = db, clock, audit
        self._outbox = NoticeOutbox(db, clock)
        self._changes = host_changes.HostChanges(db, clock, self._outbox, audit)

    def report(self, told: WatchRequest) -> WatchReply:
        """Note that a watch was seen, and the change or the incident that it reports. Raises Refusal for a flood."""
        self._heard(told)
        changed = WatchReply() if told.change is None else self._changes.report(told, told.change)
        one = told.incident
        if one is None:
            return changed
        row = self._db.one("incident_of_host", host=told.host_id, id=one.id)
        if row is not None:
            self._moved(row, one)
            return WatchReply(number=row["seq"], known=True)
        self._check_pace(told.host_id)
        return WatchReply(number=self._added(told, one))

    def judge(self, number: int, verdict: str, who: str) -> IncidentView:
        """Keep what a person found of an incident; ``open`` takes it back."""
        row = self._db.one("incident", seq=number)
        if row is None:
            raise Refusal(
                ProblemType.UNKNOWN_NAME, f"no incident has the number {number}; `cis490-jobs incidents` lists them"
            )
        kept = None if verdict == "open" else verdict
        if kept != row["verdict"]:
            now, by = (None, None) if kept is None else (self._clock.now(), who)
            self._db.run("judge_incident", seq=number, verdict=kept, who=by, now=now)
            subject = f"incident {number} of {row['host']}"
            before, after = {"verdict": row["verdict"]}, {"verdict": kept}
            self._audit.write(who, Act.JUDGE, subject, before=before, after=after)
        row = self._db.one("incident", seq=number)
        assert row is not None
        return view_of(row)

    def close_change(self, number: int, who: str, *, reopen: bool = False) -> ChangeView:
        """Close a change of a host, or open it again; see `HostChanges.close`."""
        return self._changes.close(number, who, reopen=reopen)

    def forget_old(self) -> None:
        """Delete records without a report for long."""
        now = self._clock.now()
        self._db.run("forget_incidents", before=now - KEPT_S)
        self._changes.forget(now - KEPT_S)
        self._db.run("forget_watches", before=now - WATCH_KEPT_S)

    def _heard(self, told: WatchRequest) -> None:
        now, host, checkpoint = self._clock.now(), told.host_id, told.checkpoint
        before = self._db.one("watch", host=host, checkpoint=checkpoint)
        if before is None:
            known = self._db.one("count_watches")
            if known is not None and known["n"] >= WATCHES_MAX:
                raise Refusal(
                    ProblemType.SLOW_DOWN,
                    f"{WATCHES_MAX} watches are known here, the most that are kept; those that are silent for 90 days "
                    f"are forgotten",
                    retry_after_s=HOUR_S,
                )
        broken = before is not None and silent(before, now)
        self._db.run(
            "keep_watch",
            host=host,
            checkpoint=checkpoint,
            model=told.model,
            every_s=told.every_s,
            now=now,
            broken=int(broken),
        )
        if before is None:
            self._db.run("thin_watches", host=host, most=WATCHES_OF_HOST)

    def _check_pace(self, host: str) -> None:
        """Refuse a new incident of a host that reported many within the hour: each calls a person."""
        row = self._db.one("incident_before", host=host, back=NEW_AN_HOUR_MAX - 1)
        check_pace(None if row is None else row["told_at"], self._clock.now(), host, NEW_AN_HOUR_MAX, "incidents")

    def _added(self, told: WatchRequest, one: WatchedIncident) -> int:
        row = self._db.one(
            "add_incident",
            host=told.host_id,
            id=one.id,
            checkpoint=told.checkpoint,
            model=told.model,
            rule=one.rule,
            began_at=one.began_at,
            raised_at=one.raised_at,
            last_alarm_at=one.last_alarm_at,
            over=int(one.event == "over"),
            alarms=one.alarms,
            peak=one.peak,
            threshold=one.threshold,
            why=_text(_Why(one.why, one.seconds)),
            now=self._clock.now(),
        )
        assert row is not None
        number = int(row["seq"])
        old = self._db.one("incident_before", host=told.host_id, back=KEPT_OF_HOST)
        if old is not None:
            self._db.run("thin_incidents", host=told.host_id, seq=old["seq"])
        self._outbox.add(NoticeKind.INCIDENT, told.host_id, sentence(number, told, one))
        return number

    def _moved(self, row: Row, one: WatchedIncident) -> None:
        known = msgspec.json.decode(row["why"], type=_Why)
        later = one.last_alarm_at >= row["last_alarm_at"]
        spans = sorted({*known.seconds, *one.seconds})[:SPANS_MAX]
        self._db.run(
            "move_incident",
            seq=row["seq"],
            last_alarm_at=max(row["last_alarm_at"], one.last_alarm_at),
            over=int(row["over"] or one.event == "over"),
            alarms=max(row["alarms"], one.alarms),
            peak=max(row["peak"], one.peak),
            why=_text(_Why(one.why if one.why and later else known.why, spans)),
            now=self._clock.now(),
        )


class IncidentViews:
    """Queries about watched hosts, on the last committed state."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._db, self._clock = database, clock

    def incidents(self, *, host: str = "", before: int = 0, limit: int = PAGE) -> IncidentsReply:
        """Return a page of the incidents of a host, or of all, and the watches."""
        most, now = max(1, min(limit, PAGE_MAX)), self._clock.now()
        page = {"before": before or 2**62, "most": most + 1}
        found = self._db.all("incidents_of_host", host=host, **page) if host else self._db.all("incidents", **page)
        return IncidentsReply(
            incidents=[view_of(row) for row in found[:most]],
            watches=self.watches(host),
            open=sum(row["n"] for row in self._db.all("incidents_open") if host in ("", row["host"])),
            changes=[] if before else host_changes.newest(self._db, host, most),
            changed=sum(host in ("", name) for name in self.changed()),
            next_before=found[most - 1]["seq"] if len(found) > most else None,
            now=now,
        )

    def watches(self, host: str = "") -> list[WatchView]:
        """Return the watches of a host, or of all; for each host the one that was seen last first."""
        now, same = self._clock.now(), ("host", "model", "checkpoint", "since", "heard_at", "every_s")
        return [
            WatchView(**{key: row[key] for key in same}, silent=silent(row, now))
            for row in self._db.all("watches", host=host)
        ]

    def changed(self) -> dict[str, ChangeView]:
        """Return for each host that has changed the newest change that is neither confirmed nor closed."""
        return {each.host: each for each in host_changes.standing(self._db, self._clock.now())}

    def open(self) -> dict[str, tuple[int, float]]:
        """Return for each host the number of open incidents without a verdict, and the start of the first."""
        return {row["host"]: (row["n"], row["raised_at"]) for row in self._db.all("incidents_open")}


def view_of(row: Row) -> IncidentView:
    """Make a row the wire's view."""
    known = msgspec.json.decode(row["why"], type=_Why)
    same = [name for name in IncidentView.__struct_fields__ if name not in ("number", "over", "why", "seconds")]
    return IncidentView(
        number=row["seq"],
        over=bool(row["over"]),
        why=known.why,
        seconds=known.seconds,
        **{name: row[name] for name in same},
    )


def sentence(number: int, told: WatchRequest, one: WatchedIncident) -> str:
    """Notify a person of a new incident."""
    rule = one_line(one.rule, 120) or "above the threshold"
    why = carried(msgspec.to_builtins(one.why))
    state = f", over after {counted(one.alarms, 'alarms')}" if one.event == "over" else ""
    return (
        f"incident {number} on {told.host_id}{state}: {rule} ({one_line(told.model, 60)})"
        f"{f', carried by {why}' if why else ''}; `cis490-jobs incidents --host {told.host_id}`"
    )


def _text(why: _Why) -> str:
    return msgspec.json.encode(why).decode()

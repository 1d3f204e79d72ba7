"""Incidents and changes that watched hosts report: each is stored once, people are notified of each at most once, and
people judge them.

An incident is identified by its host, its kind and the id that the host gave it, so a report may be repeated or late. A
late report does not reopen an incident, and lowers none of its figures. A change stays open until a person confirms it
on its host, the host gets a new reference, or its watch reports another change. An operator may also close a change
here, because a watch that lost its state cannot confirm it.
"""

from dataclasses import dataclass

import msgspec

from training.clock import Clock
from training.fleet.database.writer import Database, Row
from training.fleet.manifest.channels import NoticeKind
from training.fleet.service.audit import Act, AuditLog
from training.fleet.service.guards import HOUR_S, check_pace
from training.fleet.service.notify.notices import NoticeOutbox
from training.fleet.wire.constants import ProblemType, Refusal
from training.fleet.wire.incident_messages import (
    PAGE,
    PAGE_MAX,
    SPANS_MAX,
    IncidentFacts,
    IncidentsReply,
    IncidentView,
    WatchedIncident,
    WatchReply,
    WatchRequest,
    WatchView,
)
from training.fleet.wire.words import Json, carried, changed
from training.printable import counted, one_line

NEW_AN_HOUR_MAX = 60  # of a host: honest rules raise fewer
KEPT_OF_HOST = 1000
KEPT_S = 365 * 86400.0  # since an incident was heard of last
WATCHES_OF_HOST = 20
WATCHES_MAX = 2000
WATCH_KEPT_S = 90 * 86400.0
SILENT_TIMES, SILENT_S = 2.0, 60.0  # what a watch meant, and this: then it is silent
STANDS_S = 86400.0  # a change, without a word of its watch: then no person can confirm it there
ENDS = {"over": "over", "confirmed": "confirmed", "referenced": "reference"}
VERDICTS = {"alarms": ("confirmed", "false"), "change": ("closed",)}


def silent(watch: Json | Row, now: float) -> bool:
    """Return True if a watch has not reported for more than twice its interval and a minute; so one report may be
    lost."""
    return bool(now - watch["heard_at"] > SILENT_TIMES * watch["every_s"] + SILENT_S)


class IncidentTable:
    """The only writer of the tables of incidents and watches. Use it on the writer's thread."""

    def __init__(self, db: Database, clock: Clock, audit: AuditLog) -> None:
        self._db, self._clock, self._audit = db, clock, audit
        self._outbox = NoticeOutbox(db, clock)

    def report(self, told: WatchRequest) -> WatchReply:
        """Record that a watch reported, and store the incident in its report, if any. Raise Refusal if a host reports
        too many new incidents, or if a new watch reports while ``WATCHES_MAX`` are known."""
        self._heard(told)
        one = told.incident
        if one is None:
            return WatchReply()
        row = self._db.one("incident_of_host", host=told.host_id, kind=one.kind, id=one.id)
        if row is not None:
            self._moved(row, one)
            return WatchReply(number=row["seq"], known=True)
        newest = self._db.one("incident_before", host=told.host_id, back=NEW_AN_HOUR_MAX - 1)
        check_pace(None if newest is None else newest["told_at"], self._clock.now(), told.host_id, NEW_AN_HOUR_MAX)
        return WatchReply(number=self._added(told, one))

    def judge(self, number: int, verdict: str, who: str) -> IncidentView:
        """Store a person's verdict on an incident (``open`` removes it), record a change of the verdict in the audit,
        and return the incident. Raise Refusal if no incident has this number, or the verdict does not suit its kind."""
        row = self._row(number)
        kept = None if verdict == "open" else verdict
        if kept is not None and kept not in VERDICTS[row["kind"]]:
            may = " or ".join(VERDICTS[row["kind"]])
            raise Refusal(ProblemType.WRONG_STATE, f"incident {number} is of {row['kind']}: judge it {may}, or open")
        if kept != row["verdict"]:
            now, by = (None, None) if kept is None else (self._clock.now(), who)
            self._db.run("judge_incident", seq=number, verdict=kept, who=by, now=now)
            subject = f"incident {number} of {row['host']}"
            before, after = {"verdict": row["verdict"]}, {"verdict": kept}
            self._audit.write(who, Act.JUDGE, subject, before=before, after=after)
        return view_of(self._row(number))

    def _row(self, number: int) -> Row:
        row = self._db.one("incident", seq=number)
        if row is None:
            raise Refusal(
                ProblemType.UNKNOWN_NAME, f"no incident has the number {number}; `cis490-jobs incidents` lists them"
            )
        return row

    def forget_old(self) -> None:
        """Delete incidents that were not reported for a year, and watches that were silent for 90 days."""
        now = self._clock.now()
        self._db.run("forget_incidents", before=now - KEPT_S)
        self._db.run("forget_watches", before=now - WATCH_KEPT_S)

    def _heard(self, told: WatchRequest) -> None:
        now, key = self._clock.now(), {"host": told.host_id, "checkpoint": told.checkpoint}
        before = self._db.one("watch", **key)
        if before is None and self._db.number("count_watches") >= WATCHES_MAX:
            raise Refusal(
                ProblemType.SLOW_DOWN,
                f"{WATCHES_MAX} watches are known here, the most kept; one that is silent for 90 days is forgotten",
                retry_after_s=HOUR_S,
            )
        broken = int(before is not None and silent(before, now))
        self._db.run("keep_watch", **key, model=told.model, every_s=told.every_s, now=now, broken=broken)
        if before is None:
            self._db.run("thin_watches", host=told.host_id, most=WATCHES_OF_HOST)

    def _added(self, told: WatchRequest, one: WatchedIncident) -> int:
        now, host, ended = self._clock.now(), told.host_id, ENDS.get(one.event)
        if one.kind == "change":
            self._db.run("replace_changes", host=host, checkpoint=told.checkpoint, now=now)
        row = self._db.one(
            "add_incident",
            host=host,
            id=one.id,
            kind=one.kind,
            checkpoint=told.checkpoint,
            model=told.model,
            raised_at=one.raised_at,
            facts=_text(IncidentFacts.of(one)),
            now=now,
            ended=ended,
            ended_at=None if ended is None else now,
        )
        assert row is not None
        number = int(row["seq"])
        old = self._db.one("incident_before", host=host, back=KEPT_OF_HOST)
        if old is not None:
            self._db.run("thin_incidents", host=host, seq=old["seq"])
        if one.kind == "alarms":
            self._outbox.add(NoticeKind.INCIDENT, host, sentence(number, told, one))
        elif ended is None:  # a change of which only the end came is no news
            self._outbox.add(NoticeKind.CHANGE, host, sentence_of_change(told, one))
        return number

    def _moved(self, row: Row, one: WatchedIncident) -> None:
        known, now, ended, ended_at = _facts(row), self._clock.now(), row["ended"], row["ended_at"]
        later = one.last_alarm_at >= known.last_alarm_at
        facts = msgspec.structs.replace(
            known,
            last_alarm_at=max(known.last_alarm_at, one.last_alarm_at),
            alarms=max(known.alarms, one.alarms),
            peak=max(known.peak, one.peak),
            why=one.why if one.why and later else known.why,
            seconds=sorted({*known.seconds, *one.seconds})[:SPANS_MAX],
        )
        if one.event in ENDS and ended in (None, "later"):
            ended, ended_at = ENDS[one.event], now
        self._db.run("move_incident", seq=row["seq"], facts=_text(facts), now=now, ended=ended, ended_at=ended_at)


@dataclass
class IncidentViews:
    """Queries about incidents and watches, on the last committed state."""

    _db: Database
    _clock: Clock

    def incidents(self, *, host: str = "", before: int = 0, limit: int = PAGE) -> IncidentsReply:
        """Return a page of the incidents of a host, or of all hosts if ``host`` is empty, with the watches. Only
        incidents with numbers below ``before`` are returned; 0 means from the newest on."""
        most, now = max(1, min(limit, PAGE_MAX)), self._clock.now()
        page = {"before": before or 2**62, "most": most + 1}
        found = self._db.all("incidents_of_host", host=host, **page) if host else self._db.all("incidents", **page)
        return IncidentsReply(
            incidents=[view_of(row) for row in found[:most]],
            watches=self.watches(host),
            open=sum(n for name, (n, _) in self.open().items() if host in ("", name)),
            changed=sum(host in ("", name) for name in self.changed()),
            next_before=found[most - 1]["seq"] if len(found) > most else None,
            now=now,
        )

    def watches(self, host: str = "") -> list[WatchView]:
        """Return the watches of a host, or of all hosts if ``host`` is empty; of each host the watch that reported last
        comes first."""
        now = self._clock.now()
        return [WatchView.of(row, silent=silent(row, now)) for row in self._db.all("watches", host=host)]

    def changed(self) -> dict[str, IncidentView]:
        """Map each host to its newest open change, if a watch with that change reported within a day."""
        rows = self._db.all("changes_standing", heard_since=self._clock.now() - STANDS_S)
        return {row["host"]: view_of(row) for row in rows}

    def open(self) -> dict[str, tuple[int, float]]:
        """Map each host to the number of its open incidents of alarms without a verdict, and the time when the first of
        these incidents was raised."""
        return {row["host"]: (row["n"], row["raised_at"]) for row in self._db.all("incidents_open")}


def view_of(row: Row) -> IncidentView:
    """Convert an incident's row to the API's view."""
    return IncidentView.of(row, number=row["seq"], **msgspec.structs.asdict(_facts(row)))


def sentence(number: int, told: WatchRequest, one: WatchedIncident) -> str:
    """Return the text of the notice about a new incident of alarms."""
    rule = one_line(one.rule, 120) or "above the threshold"
    why = carried(msgspec.to_builtins(one.why))
    state = f", over after {counted(one.alarms, 'alarms')}" if one.event == "over" else ""
    return (
        f"incident {number} on {told.host_id}{state}: {rule} ({one_line(told.model, 60)})"
        f"{f', carried by {why}' if why else ''}; `cis490-jobs incidents --host {told.host_id}`"
    )


def sentence_of_change(told: WatchRequest, one: WatchedIncident) -> str:
    """Return the text of the notice about a new change."""
    return (
        f"{told.host_id} {changed(msgspec.to_builtins(one))} ({one_line(told.model, 60)}). An attack that stays looks "
        "like this, and so does new work: look at the host, then confirm it there with watch --confirm-change"
    )


def _facts(row: Row) -> IncidentFacts:
    return msgspec.json.decode(row["facts"], type=IncidentFacts)


def _text(facts: IncidentFacts) -> str:
    return msgspec.json.encode(facts).decode()

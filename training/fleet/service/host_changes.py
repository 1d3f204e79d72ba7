"""Changes of watched hosts: kept once each, notified once, until a person confirms them there.

A change never touches an incident. Like one it is named by the host's own id, so that a report may be repeated and come
late: what is over stays so. An operator may close one here, because it cannot be confirmed where its watch lost its
state; the host's later reports on it then change nothing, and another change is notified as usual.
"""

from __future__ import annotations

import msgspec

from training.clock import Clock
from training.fleet.database.writer import Database, Row
from training.fleet.manifest.channels import NoticeKind
from training.fleet.service.audit import Act, AuditLog
from training.fleet.service.guards import check_pace
from training.fleet.service.notify.outbox import NoticeOutbox
from training.fleet.wire.incident_messages import ChangeView, MovedView, WatchedChange, WatchReply, WatchRequest
from training.fleet.wire.messages import ProblemType, Refusal
from training.fleet.wire.words import changed
from training.printable import one_line

NEW_AN_HOUR_MAX = 10  # of a host: the rule looks at half an hour first, then ever more rarely
KEPT_OF_HOST = 100
STANDS_S = 86400.0  # without a word of its watch: nobody is there any more who could confirm it
ENDS = {"changed": None, "confirmed": "confirmed", "referenced": "reference"}


class HostChanges:
    """The table's only writer. Used on the thread that owns the database."""

    def __init__(self, db: Database, clock: Clock, outbox: NoticeOutbox, audit: AuditLog) -> None:
        self._db, self._clock, self._outbox, self._audit = db, clock, outbox, audit

    def report(self, told: WatchRequest, one: WatchedChange) -> WatchReply:
        """Note a change, or its end. Raises Refusal for a flood."""
        row = self._db.one("change_of_host", host=told.host_id, id=one.id)
        if row is None:
            self._check_pace(told.host_id)
            return WatchReply(number=self._added(told, one))
        now, ended, ended_at = self._clock.now(), row["ended"], row["ended_at"]
        said = ENDS[one.event]
        if said is not None and ended in (None, "later"):
            ended, ended_at = said, now
        self._db.run("move_change", seq=row["seq"], now=now, ended=ended, ended_at=ended_at)
        return WatchReply(number=row["seq"], known=True)

    def close(self, number: int, who: str, *, reopen: bool = False) -> ChangeView:
        """Close a change that stands, or open again what an operator closed. Raises Refusal for an unknown number."""
        row = self._row(number)
        if (row["closed_by"] is not None) == reopen and (reopen or row["ended"] is None):
            by, now = (None, None) if reopen else (who, self._clock.now())
            self._db.run("close_change", seq=number, who=by, now=now)
            before, after = {"closed": reopen}, {"closed": not reopen}
            self._audit.write(who, Act.CLOSE_CHANGE, f"change {number} of {row['host']}", before=before, after=after)
        return view_of(self._row(number))

    def _row(self, number: int) -> Row:
        row = self._db.one("change", seq=number)
        if row is None:
            raise Refusal(
                ProblemType.UNKNOWN_NAME, f"no change has the number {number}; `cis490-jobs incidents` lists them"
            )
        return row

    def forget(self, before: float) -> None:
        """Delete changes without a report since."""
        self._db.run("forget_changes", before=before)

    def _check_pace(self, host: str) -> None:
        row = self._db.one("change_before", host=host, back=NEW_AN_HOUR_MAX - 1)
        check_pace(None if row is None else row["told_at"], self._clock.now(), host, NEW_AN_HOUR_MAX, "changes")

    def _added(self, told: WatchRequest, one: WatchedChange) -> int:
        now, ended = self._clock.now(), ENDS[one.event]
        self._db.run("replace_changes", host=told.host_id, checkpoint=told.checkpoint, now=now)
        row = self._db.one(
            "add_change",
            host=told.host_id,
            id=one.id,
            checkpoint=told.checkpoint,
            model=told.model,
            since=one.since,
            noticed_at=one.told_at,
            at_once=int(one.at_once),
            channels=msgspec.json.encode(one.channels).decode(),
            more_channels=one.more_channels,
            now=now,
            ended=ended,
            ended_at=None if ended is None else now,
        )
        assert row is not None
        old = self._db.one("change_before", host=told.host_id, back=KEPT_OF_HOST)
        if old is not None:
            self._db.run("thin_changes", host=told.host_id, seq=old["seq"])
        if ended is None:  # one of which only the end came is no news
            self._outbox.add(NoticeKind.CHANGE, told.host_id, sentence(told, one))
        return int(row["seq"])


def standing(db: Database, now: float) -> list[ChangeView]:
    """List the changes that are neither confirmed nor closed, of watches that were seen within a day."""
    return [view_of(row) for row in db.all("changes_standing", heard_since=now - STANDS_S)]


def newest(db: Database, host: str, most: int) -> list[ChangeView]:
    """List the newest changes of a host, or of all."""
    rows = db.all("changes_of_host", host=host, most=most) if host else db.all("changes", most=most)
    return [view_of(row) for row in rows]


def view_of(row: Row) -> ChangeView:
    """Make a row the wire's view."""
    made = ("number", "at_once", "channels")
    return ChangeView(
        number=row["seq"],
        at_once=bool(row["at_once"]),
        channels=msgspec.json.decode(row["channels"], type=list[MovedView]),
        **{name: row[name] for name in ChangeView.__struct_fields__ if name not in made},
    )


def sentence(told: WatchRequest, one: WatchedChange) -> str:
    """Notify a person of a new change."""
    return (
        f"{told.host_id} {changed(msgspec.to_builtins(one))} ({one_line(told.model, 60)}). An attack that stays looks "
        "like this, and so does new work: look at the host, then confirm it there with watch --confirm-change"
    )

"""Make notices: of failed jobs, finished plans, quarantines, a full disk, expiring certificates.

Everything but the disk is read from rows, beginning at a stored position, in the transaction that writes the notices.
So whenever the receiver stops, no notice is made twice or left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from training.clock import Clock
from training.fleet.database.writer import Database
from training.fleet.manifest.channels import NoticeKind
from training.fleet.service.notify.outbox import NoticeOutbox
from training.printable import counted, duration, one_line

PAGE = 500  # rows of a kind looked at in one transaction; the next look goes on
CERTIFICATE_S = 7 * 86400.0  # a certificate that nobody renewed so long before its end is news
CERTIFICATE_PAST_S = 30 * 86400.0  # one that ended so long ago is not missed any more
KEPT_S = 90 * 86400.0  # notices that every channel has sent
_RENEWED = {"host": "a running worker renews its own", "watcher": "a running watch renews its own"}
_OPEN = ("pending", "claimed", "running")


class Notices:
    """Looks for news and makes notices. Only the thread that owns the database may use it."""

    def __init__(self, db: Database, clock: Clock, outbox: NoticeOutbox, has_room: Callable[[], bool]) -> None:
        """``has_room`` tells whether the receiver's disk has room for another bundle."""
        self._db = db
        self._clock = clock
        self._outbox = outbox
        self._has_room = has_room

    def look(self) -> None:
        """Write a notice for everything new since the last call."""
        row = self._db.one("notice_cursor")
        seen = (0, 0) if row is None else (row["events"], row["quarantines"])
        events, ended = self._ends(seen[0])
        quarantines = self._quarantines(seen[1])
        if (events, quarantines) != seen:
            self._db.run("move_notice_cursor", events=events, quarantines=quarantines)
        if ended is not None:
            self._plan_done(ended)
        self._disk()
        self._certificates()

    def forget_old(self) -> int:
        """Delete the notices that every channel sent long ago; return their number."""
        return self._db.run("forget_notices", before=self._clock.now() - KEPT_S)

    def _ends(self, after: int) -> tuple[int, int | None]:
        """Make notices of failed jobs; return the last end that was read, and the last one of a job in the plan.

        Events that end no job do not move the stored position, so that a receiver without news writes nothing.
        """
        rows, last = self._db.all("job_ends_since", after=after, most=PAGE), None
        for row in rows:
            if row["in_manifest"] and row["to_status"] != "cancelled":
                last = row["seq"]
            if row["to_status"] == "failed":
                self._outbox.add(NoticeKind.FAILURE, row["name"], _failure(row), event=row["seq"], job_id=row["job_id"])
        return (rows[-1]["seq"] if rows else after), last

    def _plan_done(self, event: int) -> None:
        """Make a notice that the plan is done, if this end was its last."""
        counts = {row["status"]: row["n"] for row in self._db.all("plan_counts")}
        if any(counts.get(status) for status in _OPEN):
            return
        said = [f"{counts[status]} {status}" for status in ("completed", "failed", "cancelled") if counts.get(status)]
        jobs = counted(sum(counts.values()), "jobs")
        self._outbox.add(NoticeKind.PLAN_DONE, "the plan", f"the plan is done: {jobs}, {', '.join(said)}", event=event)

    def _quarantines(self, after: int) -> int:
        for row in self._db.all("quarantined_since", after=after, most=PAGE):
            after, host = row["seq"], row["host"]
            sentence = f"host {host} gets no more jobs: {row['reason']}; `cis490-jobs release {host}` when it is fixed"
            if row["ended_at"] is not None:
                sentence = f"host {host} got no jobs for {duration(row['ended_at'] - row['since'])}: {row['reason']}"
            self._outbox.add(NoticeKind.QUARANTINE, host, sentence)
        return after

    def _disk(self) -> None:
        here, told = "the receiver's disk", self._outbox.lasting(NoticeKind.DISK)
        if self._has_room():
            if told:
                self._outbox.over(NoticeKind.DISK, here)
        elif not told:
            sentence = f"{here} is nearly full, and no jobs are handed out: free some space, `cis490-jobs doctor` helps"
            self._outbox.add(NoticeKind.DISK, here, sentence, lasting=True)

    def _certificates(self) -> None:
        now = self._clock.now()
        rows = self._db.all("expiring_certificates", before=now + CERTIFICATE_S, after=now - CERTIFICATE_PAST_S)
        told, found = self._outbox.lasting(NoticeKind.CERTIFICATE), set()
        for row in rows:
            owner = f"{row['role']} {row['name']}"
            found.add(owner)
            if owner not in told:
                left_s = row["expires_at"] - now
                when = f"expires in {duration(left_s)}" if left_s > 0 else f"expired {duration(-left_s)} ago"
                remedy = _RENEWED.get(row["role"], "enroll them again")
                sentence = f"the certificate of {owner} {when}: {remedy}"
                self._outbox.add(NoticeKind.CERTIFICATE, owner, sentence, lasting=True)
        for owner in told - found:
            self._outbox.over(NoticeKind.CERTIFICATE, owner)


def _failure(row: Any) -> str:
    where = "" if row["host"] is None else f" on {row['host']}"
    attempts = "" if not row["attempt"] else f" after {counted(row['attempt'], 'attempts')}"
    return f"job {row['name']} failed{where}{attempts}: {one_line(row['error'] or row['detail'] or 'no reason', 300)}"

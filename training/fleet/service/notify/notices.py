"""Notices of what happened: failed jobs, finished plans, quarantines, a full disk, expiring certificates, incidents,
changed hosts, unconfirmed work.

The notices are rows, and so is the position of each channel among them. Writes run on the writer's thread;
:meth:`NoticeOutbox.waiting` only reads, and runs on the reader's thread with its own connection. All news of
:class:`Notices` but that of the disk is read from rows in the transaction that writes the notices. No notice that is
made from rows is made twice or left out, whenever the receiver stops.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from training.clock import Clock
from training.fleet.database.writer import Database, Row, id_of
from training.fleet.manifest.channels import NoticeKind, NotifyChannel
from training.fleet.service.notify.rules import (
    NOTICES_MAX,
    SENTENCE_CHARS_MAX,
    Message,
    Notice,
    due_at,
    folded,
    message,
    retry_after_s,
)
from training.fleet.wire.messages import ChannelView
from training.printable import counted, duration, one_line

PAGE = 500  # rows of a kind looked at in one transaction; the next look goes on
CERTIFICATE_S = 7 * 86400.0  # a certificate that nobody renewed so long before its end is news
CERTIFICATE_PAST_S = 30 * 86400.0  # one that ended so long ago is not missed any more
KEPT_S = 90 * 86400.0  # notices that every channel has sent
_RENEWED = {"host": "a running worker renews its own", "watcher": "a running watch renews its own"}
_OPEN = ("pending", "claimed", "running")
# A channel that has been given no place yet: it begins with what comes from now on.
_NEW = {"sent": 2**62, "sent_at": None, "tries": 0, "next_at": None, "error": None}


@dataclass
class NoticeOutbox:
    """Stores notices, and each channel's position among them."""

    _db: Database
    _clock: Clock

    def add(
        self,
        kind: NoticeKind,
        subject: str,
        sentence: str,
        *,
        event: int | None = None,
        job_id: str | None = None,
        lasting: bool = False,
    ) -> None:
        """Store a notice. A ``lasting`` notice is listed by :meth:`lasting` until :meth:`over`, so that callers do not
        repeat it."""
        self._db.run(
            "add_notice",
            at=self._clock.now(),
            kind=kind,
            subject=subject,
            sentence=one_line(sentence, SENTENCE_CHARS_MAX),
            event=event,
            job_id=job_id,
            lasting=int(lasting),
        )

    def lasting(self, kind: NoticeKind) -> set[str]:
        """Return the subjects of the lasting notices of this kind that are not over."""
        return {row["subject"] for row in self._db.all("lasting_notices", kind=kind)}

    def over(self, kind: NoticeKind, subject: str) -> None:
        """End a lasting notice: the next notice of its kind and subject is new again."""
        self._db.run("end_notice", kind=kind, subject=subject, now=self._clock.now())

    def place(self, channels: Iterable[NotifyChannel]) -> None:
        """Set up the plan's channels: a new channel begins with future notices, a removed one is deleted."""
        names = {channel.name for channel in channels}
        known = {row["name"] for row in self._db.all("notify_channels")}
        for name in sorted(known - names):
            self._db.run("forget_notify_channel", name=name)
        for name in sorted(names - known):
            self._db.run("add_notify_channel", name=name)

    def next(self, channel: NotifyChannel) -> Message | None:
        """Return the message that this channel should send now, and fix which notices the message contains; None if no
        message is due."""
        now, row = self._clock.now(), self._db.one("notify_channel", name=channel.name)
        if row is None or (row["next_at"] is not None and row["next_at"] > now):
            return None
        notices = self._after(row, channel)
        if row["fixed"] is not None:
            notices = [each for each in notices if each.seq <= row["fixed"]]
            if not notices:  # the plan's `on` was changed meanwhile
                self._db.run("notify_sent", name=channel.name, seq=row["fixed"], now=row["sent_at"])
                return None
            return message(notices, id_of(self._db))
        if not notices:
            self._db.run("skip_notices", name=channel.name)  # of kinds that it does not carry
            return None
        if due_at(notices[0].at, row["sent_at"]) > now:
            return None
        notices = list(folded(notices, channel.kind))
        self._db.run("fix_notify_message", name=channel.name, seq=notices[-1].seq)
        return message(notices, id_of(self._db))

    def sent(self, channel: NotifyChannel) -> None:
        """Record that the fixed message was delivered."""
        row = self._db.one("notify_channel", name=channel.name)
        if row is not None and row["fixed"] is not None:
            self._db.run("notify_sent", name=channel.name, seq=row["fixed"], now=self._clock.now())

    def failed(self, channel: NotifyChannel, error: str) -> None:
        """Record that the fixed message was not delivered, and when to try again."""
        row = self._db.one("notify_channel", name=channel.name)
        if row is not None:
            tries = row["tries"] + 1
            next_at = self._clock.now() + retry_after_s(tries)
            self._db.run("notify_failed", name=channel.name, tries=tries, next_at=next_at, error=error)

    def waiting(self, channels: Iterable[NotifyChannel]) -> list[ChannelView]:
        """Return the state of each channel of the plan."""
        rows = {row["name"]: row for row in self._db.all("notify_channels")}
        found = []
        for channel in channels:
            row = rows.get(channel.name, _NEW)
            counts = self._db.all("count_notices", after=row["sent"])
            waiting = sum(each["n"] for each in counts if each["kind"] in channel.on)
            found.append(ChannelView.of(row, channel=channel.name, kind=channel.kind, waiting=waiting))
        return found

    def _after(self, row: Row, channel: NotifyChannel) -> list[Notice]:
        """Return the first waiting notices of a channel, skipping page by page those that it does not carry."""
        found: list[Notice] = []
        after = row["sent"]
        while len(found) < NOTICES_MAX:
            page = self._db.all("notices", after=after, most=NOTICES_MAX)
            found += [_notice(each) for each in page if each["kind"] in channel.on]
            if len(page) < NOTICES_MAX:
                break
            after = page[-1]["seq"]
        return found[:NOTICES_MAX]


def _notice(row: Row) -> Notice:
    return Notice(
        row["seq"], row["at"], NoticeKind(row["kind"]), row["subject"], row["sentence"], row["event"], row["job_id"]
    )


class Notices:
    """Looks for news and makes notices. Only the writer's thread may use it."""

    def __init__(self, db: Database, clock: Clock, outbox: NoticeOutbox, has_room: Callable[[], bool]) -> None:
        """``has_room`` tells whether the receiver's disk has room for another bundle."""
        self._db, self._clock, self._outbox, self._has_room = db, clock, outbox, has_room

    def look(self) -> None:
        """Write notices of new failures, a finished plan, quarantines, a full disk, expiring certificates and
        unconfirmed work. At most ``PAGE`` ends of jobs and ``PAGE`` quarantines are read; the next call continues
        behind them."""
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
        self._unconfirmed()

    def forget_old(self) -> int:
        """Delete notices older than ``KEPT_S`` that every channel has sent, except lasting ones that are not over;
        return their number."""
        return self._db.run("forget_notices", before=self._clock.now() - KEPT_S)

    def _ends(self, after: int) -> tuple[int, int | None]:
        """Make notices of failed jobs; return the numbers of the last end that was read (``after`` if none was), and of
        the last end of a job in the plan other than a cancellation (None if there is none).

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
        """Make a notice that the plan is done, unless a job of the plan still runs, or waits without being held."""
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

    def _lasting(self, kind: NoticeKind, found: Mapping[str, str]) -> None:
        """Make a lasting notice for each subject in ``found`` that has none; end the notices of subjects no longer in
        ``found``."""
        told = self._outbox.lasting(kind)
        for subject in [each for each in found if each not in told]:
            self._outbox.add(kind, subject, found[subject], lasting=True)
        for subject in told - found.keys():
            self._outbox.over(kind, subject)

    def _disk(self) -> None:
        here = "the receiver's disk"
        sentence = f"{here} is nearly full, and no jobs are handed out: `cis490-jobs doctor` says what to remove"
        self._lasting(NoticeKind.DISK, {} if self._has_room() else {here: sentence})

    def _certificates(self) -> None:
        now, found = self._clock.now(), {}
        rows = self._db.all("expiring_certificates", before=now + CERTIFICATE_S, after=now - CERTIFICATE_PAST_S)
        for row in rows:
            owner, left_s = f"{row['role']} {row['name']}", row["expires_at"] - now
            when = f"expires in {duration(left_s)}" if left_s > 0 else f"expired {duration(-left_s)} ago"
            remedy = _RENEWED.get(row["role"], "enroll them again")
            found[owner] = f"the certificate of {owner} {when}: {remedy}"
        self._lasting(NoticeKind.CERTIFICATE, found)

    def _unconfirmed(self) -> None:
        """Make a notice of each host whose work waits for a decision, and another when the number of its results
        changes."""
        found = {}
        for row in self._db.all("unconfirmed_hosts"):
            host, n, before = row["host"], row["n"], row["n_before"]
            since = f"; {before} of them, it says, from before the restore of {row['restored']} UTC" if before else ""
            found[f"{host} ({n})"] = (
                f"host {host} brought {counted(n, 'results')} under claims that this database did not grant{since}: "
                f"`cis490-jobs accept {host}` completes their jobs, `cis490-jobs refuse {host}` sets them aside there"
            )
        self._lasting(NoticeKind.UNCONFIRMED, found)


def _failure(row: Any) -> str:
    where = "" if row["host"] is None else f" on {row['host']}"
    attempts = "" if not row["attempt"] else f" after {counted(row['attempt'], 'attempts')}"
    return f"job {row['name']} failed{where}{attempts}: {one_line(row['error'] or row['detail'] or 'no reason', 300)}"

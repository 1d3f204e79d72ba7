"""The durable outbox of notices: notices as rows, and how far each channel has sent them. Used on the thread that owns
the database."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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
from training.printable import one_line


@dataclass(frozen=True, slots=True)
class ChannelState:
    """A channel's state: how many notices wait, and the result of the last try. Times in epoch seconds."""

    channel: str
    kind: str
    waiting: int
    sent_at: float | None = None  # the last message that arrived
    tries: int = 0  # of the message under way
    next_at: float | None = None
    error: str | None = None


class NoticeOutbox:
    """Stores notices, and each channel's position among them."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

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
        """Store a notice. A ``lasting`` notice is not repeated until :meth:`over`."""
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
        """Return the message that this channel should send now; from now on its notices are fixed."""
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

    def waiting(self, channels: Iterable[NotifyChannel]) -> list[ChannelState]:
        """Return the state of each channel of the plan."""
        rows = {row["name"]: row for row in self._db.all("notify_channels")}
        found = []
        for channel in channels:
            row = rows.get(channel.name)
            waiting = 0 if row is None else self._count(row["sent"], channel)
            told = (
                (None, 0, None, None) if row is None else (row[key] for key in ("sent_at", "tries", "next_at", "error"))
            )
            found.append(ChannelState(channel.name, channel.kind, waiting, *told))
        return found

    def _count(self, after: int, channel: NotifyChannel) -> int:
        counts = self._db.all("count_notices", after=after)
        return sum(row["n"] for row in counts if row["kind"] in channel.on)

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

"""The rules of notifications: what one message contains, when it is sent, and when it is tried again. Pure.

A channel sends the notices in their order. A notice goes out at once if the channel has sent nothing for ``FOLD_S``;
notices that come sooner are combined into one message. The notices of a message are fixed before it is first sent;
later notices wait for the next message. A message that is sent again after a crash or a lost answer has the same key
and content, unless the plan has changed which kinds of notices the channel sends.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from training.fleet.manifest.channels import ChannelKind, NoticeKind

FOLD_S = 60.0  # between two messages of a channel
RETRY_FIRST_S, RETRY_MOST_S = 10.0, 900.0
NOTICES_MAX = 200  # in a message
SENTENCE_CHARS_MAX = 500
# A message's text: ntfy takes 4,096 bytes, and a character of ours may be four.
CHARS_MAX = {ChannelKind.NTFY: 1000, ChannelKind.WEBHOOK: 20_000, ChannelKind.EMAIL: 100_000,
             ChannelKind.COMMAND: 100_000}  # fmt: skip
_WORDS = {
    NoticeKind.FAILURE: "failed jobs",
    NoticeKind.PLAN_DONE: "finished plans",
    NoticeKind.QUARANTINE: "quarantined hosts",
    NoticeKind.DISK: "full disks",
    NoticeKind.CERTIFICATE: "expiring certificates",
    NoticeKind.INCIDENT: "incidents",
    NoticeKind.CHANGE: "changed hosts",
    NoticeKind.UNCONFIRMED: "hosts with unconfirmed work",
}


_SENT = ("at", "kind", "subject", "sentence", "event", "job_id")


class Notice(NamedTuple):
    """One thing that happened and that a person may want to know of. ``seq`` orders them; ``event`` is the event row's
    number, if any."""

    seq: int
    at: float  # epoch seconds
    kind: NoticeKind
    subject: str  # a job's name, a host, a certificate's owner
    sentence: str
    event: int | None = None
    job_id: str | None = None

    def key(self, database_id: str) -> str:
        """Return the key by which a recipient recognises a repetition."""
        number = f"notice-{self.seq}" if self.event is None else f"event-{self.event}"
        return f"cis490-{database_id[:12]}-{number}"


class Message(NamedTuple):
    """The content of one message. ``key`` is that of its last notice."""

    key: str
    title: str
    text: str
    notices: tuple[Notice, ...]
    database_id: str

    def to_dict(self) -> dict[str, Any]:
        """Return the message as a dict for a webhook or a command; times are epoch seconds."""
        notices = [
            {"key": each.key(self.database_id), **{name: getattr(each, name) for name in _SENT}}
            for each in self.notices
        ]
        return {"key": self.key, "title": self.title, "text": self.text, "notices": notices}


def folded(notices: Sequence[Notice], kind: ChannelKind) -> Sequence[Notice]:
    """Return the first of the waiting notices, as many as one message of this kind of channel can hold, and at least
    one."""
    chars, taken = 0, 0
    for each in notices[:NOTICES_MAX]:
        chars += len(each.sentence) + 2
        if taken and chars > CHARS_MAX[kind]:
            break
        taken += 1
    return notices[:taken]


def message(notices: Sequence[Notice], database_id: str) -> Message:
    """Return the message about these notices, of which there must be at least one."""
    last = notices[-1]
    if len(notices) == 1:
        title, text = f"CIS490: {_WORDS[last.kind][:-1]}: {last.subject}", last.sentence
    else:
        kinds = Counter(each.kind for each in notices)
        said = ", ".join(f"{n} {_WORDS[kind] if n > 1 else _WORDS[kind][:-1]}" for kind, n in kinds.items())
        title, text = f"CIS490: {said}", "\n".join(f"- {each.sentence}" for each in notices)
    return Message(last.key(database_id), title, text, tuple(notices), database_id)


def retry_after_s(tries: int) -> float:
    """Return the pause after the ``tries``-th failed try (from 1): 10 s doubling to 15 minutes, without end."""
    return float(min(RETRY_MOST_S, RETRY_FIRST_S * 2.0 ** min(tries - 1, 20)))


def due_at(oldest: float, sent_at: float | None) -> float:
    """Return when waiting notices are sent, of which the oldest came at ``oldest``: at once, or ``FOLD_S`` after the
    last message."""
    return oldest if sent_at is None else max(oldest, sent_at + FOLD_S)

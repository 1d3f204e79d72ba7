"""A channel of the manifest's ``[notify.*]``: its kind, the notices that it carries, and where its secrets are. Pure.

A secret (a webhook's address, a token, a password) is never written in the manifest: the channel names the file or the
environment variable that holds the secret.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import asdict
from enum import StrEnum

from training.frozen import frozen, frozen_kw
from training.strict_json import canonical


class ChannelKind(StrEnum):
    """The ways to notify a person."""

    WEBHOOK = "webhook"
    NTFY = "ntfy"
    EMAIL = "email"
    COMMAND = "command"


class NoticeKind(StrEnum):
    """The kinds of events about which people are notified."""

    FAILURE = "failure"  # a job failed for good
    PLAN_DONE = "plan_done"  # no job of the plan waits or runs any more
    QUARANTINE = "quarantine"  # a host gets no more jobs until it is well or released
    DISK = "disk"  # the receiver's disk is so full that it hands out no jobs
    CERTIFICATE = "certificate"  # one expires within days, and nobody has renewed it
    INCIDENT = "incident"  # a watched host behaves as a model has learned to distrust
    CHANGE = "change"  # a watched host is not as its reference any more, until somebody confirms that
    UNCONFIRMED = "unconfirmed"  # a host brought work under unknown claims, until somebody decides on it


class Security(StrEnum):
    """The encryption of a connection to a mail server."""

    STARTTLS = "starttls"
    TLS = "tls"
    NONE = "none"


@frozen
class Secret:
    """The place of a secret: a file with one line, or an environment variable of the receiver. Exactly one of ``file``
    and ``env`` is set."""

    file: str | None = None
    env: str | None = None

    def __str__(self) -> str:
        return f"the file {self.file}" if self.file is not None else f"the variable ${self.env}"


@frozen_kw
class NotifyChannel:
    """A checked ``[notify.NAME]``; which fields count depends on ``kind``."""

    name: str
    kind: ChannelKind
    on: tuple[NoticeKind, ...] = tuple(NoticeKind)
    url: Secret | None = None  # webhook: its address; ntfy: the topic's
    token: Secret | None = None  # ntfy: an access token
    host: str = ""  # email: the mail server …
    port: int = 587
    security: Security = Security.STARTTLS
    user: str = ""  # … and the account on it; empty: no login
    password: Secret | None = None
    sender: str = ""
    to: tuple[str, ...] = ()
    command: tuple[str, ...] = ()  # command: its arguments

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """The places of the secrets that this channel uses."""
        return tuple(each for each in (self.url, self.token, self.password) if each is not None)


def digests(channels: Iterable[NotifyChannel]) -> dict[str, str]:
    """Map each channel's name to a digest of its table: enough to see an edit, without revealing where secrets are
    kept."""
    return {each.name: hashlib.sha256(canonical(asdict(each)).encode()).hexdigest() for each in channels}

"""The audit: one row for each act on the fleet, written in the act's own transaction, chained by digests.

Jobs have a history of their own (``events``); this one is about people and about who was let in. Each row's digest
covers the row before it, so that a row that was changed, taken out or put in later shows: audit_chain.py
says where. Rows cut off at the end do not show by themselves; whoever noted the last digest down sees that too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from training.clock import Clock
from training.fleet.database.writer import Database, Row
from training.fleet.wire.audit_chain import NOBODY, digest
from training.fleet.wire.identity import Principal
from training.fleet.wire.messages import AuditEntry

PAGE_MAX = 1000


class Act(StrEnum):
    """The acts that are recorded."""

    CANCEL = "cancel"
    REQUEUE = "requeue"
    HOLD = "hold"
    UNHOLD = "unhold"
    RELOAD = "reload"
    RELEASE = "release"
    INVITE = "invite"
    JOIN = "join"
    RENEW = "renew"
    REVOKE = "revoke"
    TOKEN_ADD = "token_add"  # noqa: S105 - the act's name
    TOKEN_REVOKE = "token_revoke"  # noqa: S105
    DATASET_PUSH = "dataset_push"
    DATASET_REMOVE = "dataset_remove"


class AuditLog:
    """The table's only writer. Call :meth:`write` on the writer's thread, beside the act itself."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._db, self._clock = database, clock

    def write(
        self,
        who: str,
        act: Act,
        subject: str,
        *,
        before: Mapping[str, Any] | None = None,
        after: Mapping[str, Any] | None = None,
    ) -> None:
        """``before`` and ``after`` are small and hold no secret: what the act changed, as people would say it."""
        head = self._db.one("audit_head")
        seq, previous = (1, NOBODY) if head is None else (head["seq"] + 1, head["digest"])
        row = {
            "seq": seq,
            "at": self._clock.now(),
            "who": who,
            "act": str(act),
            "subject": subject,
            "before": _text(before),
            "after": _text(after),
        }
        self._db.run("add_audit", **row, digest=digest(previous, row))


def who(principal: Principal | None, address: str) -> str:
    """The caller as the audit names it; an address where nobody has proven to be somebody."""
    if principal is not None and principal.operator is not None:
        return f"operator {principal.operator}"
    if principal is not None and principal.host_id is not None:
        return f"host {principal.host_id}"
    return f"address {address}"


def page(reader: Database, after: int, limit: int) -> list[AuditEntry]:
    """Rows behind ``after``, oldest first, at most ``limit`` of them and never more than 1,000."""
    rows = reader.all("audit_page", after=after, limit=min(limit, PAGE_MAX))
    return [entry_of(row) for row in rows]


def entry_of(row: Row) -> AuditEntry:
    """A row of ``audit`` as it travels: ``before`` and ``after`` stay the very text that the digest covers."""
    return AuditEntry(**dict(row))


def _text(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else json.dumps(dict(value), sort_keys=True, ensure_ascii=False)

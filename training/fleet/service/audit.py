"""The audit: a table with a row for each act, chained by digests. An act on rows shares a transaction with its audit
row; an act on files comes before it.

Jobs have a history of their own (``events``); the audit is about people and their access. Each row's digest covers the
row before it, so that a changed, removed or inserted row shows; audit_chain.py finds it. Rows cut off at the end show
by the count of rows that were written (database/seals.py).
"""

import json
from dataclasses import dataclass
from enum import StrEnum

from training.clock import Clock
from training.fleet.database.writer import Database
from training.fleet.wire.audit_chain import NOBODY, digest
from training.fleet.wire.identity import Principal
from training.fleet.wire.messages import AuditEntry
from training.strict_json import Json

PAGE_MAX = 1000


class Act(StrEnum):
    """The acts that the audit records."""

    CANCEL = "cancel"
    REQUEUE = "requeue"
    HOLD = "hold"
    UNHOLD = "unhold"
    RELOAD = "reload"
    RELEASE = "release"
    PAUSE = "pause"
    DRAIN = "drain"
    RESUME = "resume"
    INVITE = "invite"
    JOIN = "join"
    RENEW = "renew"
    REVOKE = "revoke"
    TOKEN_ADD = "token_add"  # noqa: S105 - the act's name
    TOKEN_REVOKE = "token_revoke"  # noqa: S105
    DATASET_PUSH = "dataset_push"
    DATASET_REMOVE = "dataset_remove"
    GC = "gc"
    JUDGE = "judge"
    ACCEPT = "accept"  # unconfirmed work of a host …
    REFUSE = "refuse"  # … or not


@dataclass
class AuditLog:
    """The only writer of the audit's table. Call :meth:`write` on the writer's thread, in the act's transaction."""

    _db: Database
    _clock: Clock

    def write(
        self,
        who: str,
        act: Act,
        subject: str,
        *,
        before: Json | None = None,
        after: Json | None = None,
    ) -> int:
        """Add an audit row and return its number. ``before`` and ``after`` describe the change to people, and must hold
        no secret."""
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
        return int(seq)


def who(principal: Principal | None, address: str) -> str:
    """Return the name of the caller for the audit: role and proven name, as "operator anna"; for an anonymous caller
    "address" and the IP address."""
    found = None if principal is None else principal.owner
    return f"address {address}" if found is None else " ".join(found)


def page(reader: Database, after: int, limit: int) -> list[AuditEntry]:
    """Return the audit rows with numbers above ``after``, oldest first: at most ``limit`` of them, and never more than
    1,000."""
    rows = reader.all("audit_page", after=after, limit=min(limit, PAGE_MAX))
    return [AuditEntry(**dict(row)) for row in rows]


def _text(value: Json | None) -> str | None:
    return None if value is None else json.dumps(dict(value), sort_keys=True, ensure_ascii=False)

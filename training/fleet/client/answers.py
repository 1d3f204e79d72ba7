"""The receiver's answers: errors, the table of calls to repeat, and typed results.

What a call raises::

    ClientError
    ├── Unreachable        no answer came; the request may have had its effect      ┐ trying again can help, and is
    │   ├── Stranger       another program answered, or a receiver with another database
    │   └── Damaged        what came is not what was promised                       │
    ├── Unavailable        the receiver said "not now" (busy, starting, disk full)  ┘ safe: every request is repeatable
    └── Refused            the receiver said no, and will say so again
        ├── Superseded     the claim is no longer the live one: stop the trainer, drop the work
        └── Cancelled      the operator cancelled the job: stop the trainer, drop the work
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from enum import StrEnum
from typing import Any, TypeVar

from training.fleet.client.transport import Response
from training.fleet.wire.constants import HEADER_PROBLEM, ProblemType

T = TypeVar("T")


class ClientError(Exception):
    """A call did not do what was asked; the message is one sentence for people."""


class Unreachable(ClientError):  # noqa: N818 - named like the refusals
    """No answer, or an incomplete one."""


class Stranger(Unreachable):
    """Another program answered, or a receiver with another database."""


class Damaged(Unreachable):
    """The received bytes do not have their SHA-256: damaged on the way or on the receiver's disk."""


class Answered(ClientError):  # noqa: N818
    """The receiver answered with an error."""

    def __init__(self, status: int, problem_type: str, detail: str, extra: Mapping[str, Any]) -> None:
        super().__init__(detail)
        self.status = status
        self.problem_type = problem_type  # stable; see docs/protocol.md
        self.detail = detail
        self.extra = extra  # further members of the problem document
        self.retry_after_s: float | None = extra.get("retry_after_s")


class Unavailable(Answered):
    """The receiver cannot answer now; ``retry_after_s`` is its own advice."""


class Refused(Answered):
    """The receiver refused; repeating the request would not help."""


class Superseded(Refused):
    """The claim is not the live one any more: stop the trainer and drop the work."""


class Cancelled(Refused):
    """The operator cancelled the job: stop the trainer and drop the work."""


class Verdict(StrEnum):
    """The meaning of an answer for the caller."""

    OK = "ok"
    RETRY = "retry"
    FINAL = "final"
    SUPERSEDED = "superseded"
    CANCELLED = "cancelled"


_RETRIED_4XX = frozenset({408, 425, 429})
_ERRORS: Mapping[Verdict, type[Answered]] = {
    Verdict.RETRY: Unavailable,
    Verdict.FINAL: Refused,
    Verdict.SUPERSEDED: Superseded,
    Verdict.CANCELLED: Cancelled,
}
# A receiver of another version may say it by the status, under another name.
_SLUGS = {Verdict.SUPERSEDED: ProblemType.LEASE_SUPERSEDED, Verdict.CANCELLED: ProblemType.JOB_CANCELLED}


def verdict(status: int, problem_type: str) -> Verdict:
    """Look the answer up in the retry table. ``problem_type`` is empty when the answer had none."""
    if 200 <= status < 300:
        return Verdict.OK
    if status >= 500 or status in _RETRIED_4XX:
        return Verdict.RETRY
    if status == 410 or problem_type == ProblemType.JOB_CANCELLED:
        return Verdict.CANCELLED
    if status == 409 and problem_type in (ProblemType.LEASE_SUPERSEDED, ""):
        return Verdict.SUPERSEDED
    return Verdict.FINAL


def backoff_s(failures: int, chance: float, *, base_s: float = 1.0, cap_s: float = 60.0, least_s: float = 0.0) -> float:
    """Return the seconds to wait after so many failures: full jitter (``chance`` in [0, 1)), at least ``least_s``."""
    ceiling = min(cap_s, base_s * 2.0 ** min(failures - 1, 32))
    return least_s + chance * ceiling


class _Record:
    """A struct whose ``answer["job_id"]`` means ``answer.job_id``, for callers that expect JSON."""

    def __getitem__(self, key: str) -> Any:
        try:
            return getattr(self, key)
        except AttributeError:
            raise KeyError(key) from None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload, no-any-return]


@dataclass(frozen=True)
class Grant(_Record):
    """A job to train. The lease counts from the sending of the request that brought it."""

    job_id: str
    name: str
    spec: dict[str, Any]
    claim_id: str
    attempt: int
    lease_s: float
    repeated: bool = False  # the answer to a repeated request
    database_id: str | None = None  # the database that granted it; None from an older receiver
    env: dict[str, str] | None = None  # the plan's variables for trainers on this host
    echo: str | None = None  # to be brought back with the next claim of this session
    slots: int | None = None  # how many jobs this host may train at once; None: as said before, or one
    state: dict[str, Any] | None = None  # the saved state to go on from (``StateView``)
    state_every_s: float | None = None  # between two that are brought of a long job; None: an older receiver takes none
    terms: dict[str, Any] | None = (
        None  # what its owner and operators ask (`HostTerms`); None: as said before, or nothing
    )
    booked: dict[str, Any] | None = None  # what it may use of the host; None: an older receiver books nothing


@dataclass(frozen=True)
class NoWork(_Record):
    """The answer without a job: the reason, and when known the time after which to ask again."""

    reason: str
    retry_after_s: float | None = None
    echo: str | None = None
    slots: int | None = None  # as in a grant
    terms: dict[str, Any] | None = None  # as in a grant


@dataclass(frozen=True)
class Heartbeat(_Record):
    """The lease was renewed for ``lease_s`` from the sending on; ``action`` is ``continue``, ``stop`` or ``drain``."""

    action: str
    lease_s: float
    log_next: int = 0  # number of the first output line that the receiver does not have
    echo: str | None = None  # as in a grant
    slots: int | None = None  # as in a grant
    terms: dict[str, Any] | None = None  # as in a grant
    hand_back: str | None = None  # why the trainer is to stop and its job to be handed back; None: it goes on
    next_data: dict[str, Any] | None = None  # the data set to fetch ahead; None: as said before, or none


@dataclass(frozen=True)
class OutputKept(_Record):
    """``log_next`` is the number of the first output line that the receiver does not have."""

    log_next: int


@dataclass(frozen=True)
class Receipt(_Record):
    """The job is completed by this artifact; the worker may delete its copy."""

    job_id: str
    status: str
    artifact_id: str
    attempt: int


@dataclass(frozen=True)
class Moved(_Record):
    """The job's status after a call that moved it. Older receivers send only id and status."""

    job_id: str
    status: str
    name: str = ""
    near: int = 0  # other jobs whose name or id begins with the given prefix
    in_manifest: bool = True
    held_by: str | None = None  # the operator who holds it; None: not held
    held_at: float | None = None


@dataclass(frozen=True)
class Fetched(_Record):
    """A bundle that was fetched and verified."""

    artifact_id: str
    path: str
    size: int  # bytes


def typed(kind: type[T], answer: Mapping[str, Any]) -> T:
    """Read an answer's known members; unknown ones, of a newer receiver, are ignored."""
    wanted = fields(kind)  # type: ignore[arg-type]
    needed = [each.name for each in wanted if each.default is MISSING and each.default_factory is MISSING]
    holding(answer, *needed)
    return kind(**{each.name: answer[each.name] for each in wanted if each.name in answer})


def holding(answer: Mapping[str, Any], *needed: str) -> None:
    """Raise Unreachable where a member of the answer is missing: any service may answer 200 and ``{}``."""
    if missing := [name for name in needed if name not in answer]:
        raise Unreachable(
            f"the receiver's answer lacks something ({', '.join(missing)}); is it another version, or another program?"
        )


def json_object(answer: Response) -> dict[str, Any]:
    try:
        value = json.loads(answer.body)
    except (ValueError, RecursionError) as error:
        raise Unreachable(f"the receiver's answer is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise Unreachable("the receiver's answer is not a JSON object")
    return value


def problem(answer: Response) -> Answered:
    """Turn a problem document, or an answer without one, into an error."""
    try:
        found = json.loads(answer.body) if answer.body else {}
    except (ValueError, RecursionError):
        found = {}
    if not isinstance(found, dict):
        found = {}
    problem_type = str(found.pop("type", "") or answer.headers.get(HEADER_PROBLEM.lower(), ""))
    detail = str(found.pop("detail", "") or f"the receiver answered {answer.status} {problem_type}".strip())
    extra = {key: value for key, value in found.items() if key not in ("title", "status")}
    try:
        extra["retry_after_s"] = max(0.0, min(300.0, float(answer.headers["retry-after"])))
    except (KeyError, ValueError):
        extra.pop("retry_after_s", None)
    meant = verdict(answer.status, problem_type)
    return _ERRORS[meant](answer.status, _SLUGS.get(meant, problem_type), detail, extra)

"""The receiver's answers: errors, the table of answers after which a call is repeated, and the decoding of messages.

What a call raises::

    ClientError
    ├── Unreachable        no answer came; the request may have had its effect      ┐ trying again can help, and is
    │   ├── Stranger       another program answered, or a receiver with another database
    │   └── Damaged        the bytes differ from the announced ones                       │
    ├── Unavailable        the receiver said "not now" (busy, starting, disk full)  ┘ safe: every request is repeatable
    └── Refused the receiver said no, and would say no again
        ├── Superseded     the claim is no longer the live one: stop the trainer, drop the work
        └── Cancelled      the operator cancelled the job: stop the trainer, drop the work
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from training.fleet.client.transport import Response
from training.fleet.wire.constants import HEADER_PROBLEM, ProblemType

T = TypeVar("T")


class ClientError(Exception):
    """A call failed; the message is one sentence for people."""


class Unreachable(ClientError):  # noqa: N818 - named like the refusals
    """No answer came from the receiver, or one that is incomplete or of an unexpected form."""


class Stranger(Unreachable):
    """Another program answered, or a receiver with another database."""


class Damaged(Unreachable):
    """Received bytes cannot be used: their SHA-256 is not the announced one, or a listing breaks a rule."""


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
    """The receiver cannot answer now; ``retry_after_s`` is the time after which it advises to repeat the call, if it
    said one."""


class Refused(Answered):
    """The receiver refused; repeating the request would not help."""


class Superseded(Refused):
    """The claim is not the live one any more: stop the trainer and drop the work."""


class Cancelled(Refused):
    """The operator cancelled the job: stop the trainer and drop the work."""


_RETRIED_4XX = frozenset({408, 425, 429})
# A receiver of another version may say it by the status, under another name.
_SLUGS: Mapping[type[Answered], str] = {Superseded: ProblemType.LEASE_SUPERSEDED, Cancelled: ProblemType.JOB_CANCELLED}


def verdict(status: int, problem_type: str) -> type[Answered]:
    """Return the kind of error that an answer's status and problem type (empty if it had none) mean:
    :class:`Unavailable` if repeating can help."""
    if status >= 500 or status in _RETRIED_4XX:
        return Unavailable
    if status == 410 or problem_type == ProblemType.JOB_CANCELLED:
        return Cancelled
    if status == 409 and problem_type in (ProblemType.LEASE_SUPERSEDED, ""):
        return Superseded
    return Refused


def backoff_s(failures: int, chance: float, *, least_s: float = 0.0) -> float:
    """Return the seconds to wait before the next try: ``least_s``, plus ``chance`` (in [0, 1)) times 1, 2, 4 …, at most
    60, as ``failures`` grow."""
    return least_s + chance * min(60.0, 2.0 ** min(failures - 1, 32))


class Fetched(NamedTuple):
    """A bundle that was fetched and verified."""

    artifact_id: str
    path: str
    size: int  # bytes


def decoded(answer: Response, kind: type[T]) -> T:
    """Decode an answer's body as a message of type ``kind``; unknown members, from a newer receiver, are ignored.

    Raises Unreachable if the answer is no such message: any other service may answer 200 and ``{}``.
    """
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise Unreachable(
            f"the receiver's answer has another form than expected ({error}); is it another version or program?"
        ) from error


def problem(answer: Response) -> Answered:
    """Return the error for an answer that is no success, from its problem document or, without one, from its status and
    headers."""
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
    return meant(answer.status, _SLUGS.get(meant, problem_type), detail, extra)

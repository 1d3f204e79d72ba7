"""Constants of the wire: limits, header names, problem types, actions. The module imports only the standard library, so
a program that needs only the constants need not load messages.py."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

VERSION = 1  # of the protocol between workers and receiver

# Limits. A body, a header or a text beyond its limit is refused before it is used.
JSON_BODY_MAX = 64 * 1024
ARTIFACT_BYTES_MAX = 16 * 1024**3
ERROR_CHARS_MAX = 4096
REPORT_BYTES_MAX = 1024 * 1024  # of a report beside a bundle; a larger one stays in the bundle alone
# A body with one: each of its bytes may be escaped.
RESULT_BODY_MAX = JSON_BODY_MAX + 2 * REPORT_BYTES_MAX
LOG_LINES_MAX = 200  # lines in one message
LOG_LINE_CHARS_MAX = 500
LOG_BYTES_MAX = 64 * 1024**2  # of an attempt's output that are kept: of more its beginning and its end, half each
UNCONFIRMED = "unconfirmed"  # the status of stored work on which an operator decides; answered with 202
SLOTS_MAX = 1024  # jobs that one host trains at once
WAIT_S_MAX = 30.0

HEARTBEAT_S = 30.0  # between two heartbeats of an attempt, by default

# Between two heartbeats of a host that trains.
LOOK_AGAIN_S = 60.0  # less than the receiver keeps a silent connection, which it cuts when it puts the host out
LOOK_AGAIN_PROXIED_S = 3.0  # nobody cuts a proxy's

ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"  # claim, request, session and instance ids
SET_ASIDE_TOLD = 20  # set-aside bundles that one claim names
DATABASE_ID_PATTERN = r"^[0-9a-f]{32}$"
DATASET_NAME_PATTERN = r"^[a-z0-9][a-z0-9_.-]{0,63}$"
HOST_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
# Nothing in it means anything to a shell or in a settings file.
PLAIN_URL_PATTERN = r"^https?://[A-Za-z0-9.:/_\[\]-]+$"

# Headers of the calls whose body is not JSON.
HEADER_CLAIM_ID = "X-Claim-Id"
HEADER_HOST_ID = "X-Host-Id"
HEADER_BY_HAND = "X-By-Hand"  # "1": what is uploaded had been set aside, and is for `deliver`
HEADER_SHA256 = "X-Content-SHA256"
HEADER_OFFSET = "Upload-Offset"
HEADER_PROBLEM = "X-Problem"  # the problem type again, for answers without a body
HEADER_DATABASE = "X-Database-Id"  # in every answer: the id of the receiver's database
HEADER_OPERATOR_TOKEN = "X-Operator-Token"  # noqa: S105 - the header's name


ActStatus = Literal["pending", "claimed", "running", "completed", "failed", "cancelled", "held"]


class JobAct(StrEnum):
    """The acts that can be applied to many jobs at once."""

    CANCEL = "cancel"
    REQUEUE = "requeue"
    HOLD = "hold"
    UNHOLD = "unhold"

    @property
    def done(self) -> str:
        """Return the past participle of the act, for sentences about its result."""
        return {"cancel": "cancelled", "requeue": "requeued", "hold": "held", "unhold": "unheld"}[self]


class ProblemType(StrEnum):
    """The kind of a refusal (``type`` of the problem document), and its HTTP status."""

    status: int

    def __new__(cls, problem_type: str, status: int) -> ProblemType:
        member = str.__new__(cls, problem_type)
        member._value_ = problem_type
        member.status = status
        return member

    BAD_REQUEST = "bad_request", 400  # malformed JSON, wrong types, truncated body
    OPERATOR_TOKEN = "operator_token", 403  # missing or wrong token, or none configured
    ORIGIN_REFUSED = "origin_refused", 403  # a web page of another site
    NO_CERTIFICATE = "no_certificate", 403  # the endpoint needs a certificate
    CERTIFICATE_IDENTITY = "certificate_identity", 403  # the certificate does not name exactly one host or operator
    CERTIFICATE_UNKNOWN = "certificate_unknown", 403  # the certificate is not in the receiver's list
    CERTIFICATE_REVOKED = "certificate_revoked", 403
    CERTIFICATE_EXPIRED = "certificate_expired", 403
    PROXY_IDENTITY = "proxy_identity", 403  # the proxy's header is not what our proxy sends
    HOST_MISMATCH = "host_mismatch", 403  # the certificate is another host's
    WRONG_ROLE = "wrong_role", 403  # an operator where a host is needed
    NOT_YOURS = "not_yours", 403  # a job that this host never worked on
    JOIN_REFUSED = "join_refused", 403  # the one-time code is wrong, used or expired
    UNKNOWN_JOB = "unknown_job", 404
    NO_ARTIFACT = "no_artifact", 404
    UNKNOWN_DATASET = "unknown_dataset", 404  # or no such chunk of it
    UNKNOWN_STATE = "unknown_state", 404  # the job has no saved state here, or a newer one
    UNKNOWN_NAME = "unknown_name", 404  # no certificate or token has this name
    NOT_FOUND = "not_found", 404
    METHOD_NOT_ALLOWED = "method_not_allowed", 405
    REQUEST_TIMEOUT = "request_timeout", 408  # the client was too slow; repeat
    LEASE_SUPERSEDED = "lease_superseded", 409  # the claim is not the live attempt: drop the work
    RESULT_CONFLICT = "result_conflict", 409  # completed already, with another artifact
    HOST_ID_CONFLICT = "host_id_conflict", 409  # another installation with this host id may live
    PROTOCOL_MISMATCH = "protocol_mismatch", 409  # the worker and the receiver are of unlike versions
    SLOT_BUSY = "slot_busy", 409  # this slot of the host holds a live claim
    OFFSET_MISMATCH = ("offset_mismatch", 409)  # ask HEAD for the stored offset, then go on from there
    WRONG_STATE = "wrong_state", 409  # an operator's call that the job's status does not allow
    INCOMPLETE_DATASET = "incomplete_dataset", 409  # chunks are missing or damaged: push again
    NO_AUTHORITY = "no_authority", 409  # the receiver was started without TLS
    JOB_CANCELLED = "job_cancelled", 410  # stop the trainer, drop the result
    TOO_LARGE = "too_large", 413
    MISDIRECTED = "misdirected", 421  # the request names another machine
    WRONG_DIGEST = "wrong_digest", 422  # the bytes received do not have the SHA-256 announced
    SPEC_MISMATCH = "spec_mismatch", 422  # the bundle was not trained with what the job asks for
    BAD_MANIFEST = "bad_manifest", 422
    TOO_MANY_FAILURES = "too_many_failures", 429  # too many wrong tokens or codes from one IP address
    SLOW_DOWN = "slow_down", 429  # the caller sends more requests than it may
    INTERNAL = "internal", 500
    SHUTTING_DOWN = "shutting_down", 503
    UNAVAILABLE = "unavailable", 503  # the disk or the database failed; repeat
    DISK_FULL = "disk_full", 507


class Refusal(Exception):  # noqa: N818 - a refusal is an answer, not a fault of the program
    """An exception that the receiver answers as a problem document in place of a reply. ``detail`` is the text for the
    caller: the cause and, where there is one, the remedy."""

    def __init__(self, problem_type: ProblemType, detail: str, **extra: Any) -> None:
        super().__init__(detail)
        self.problem_type = problem_type
        self.detail = detail
        self.extra = extra  # further members of the problem document


# The exit codes of the fleet's commands.
DONE, REFUSED, USAGE, UNREACHABLE = 0, 1, 2, 75
TOKEN_VARIABLE = "CIS490_OPERATOR_TOKEN"  # noqa: S105 - the variable's name


class Action(StrEnum):
    """The order that the answer to a heartbeat gives the worker."""

    CONTINUE = "continue"
    STOP = "stop"  # cancelled: stop the trainer, deliver no result
    DRAIN = "drain"  # finish this job, then claim no more; reserved, no receiver sends it yet

    @classmethod
    def _missing_(cls, value: object) -> Action:  # noqa: ARG003 - of a newer receiver, whose other words still count
        return cls.CONTINUE

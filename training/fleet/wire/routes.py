"""The route table: every address of the protocol once, with whom it serves, its messages and its refusals.

Starlette's routes, the access policy and the OpenAPI document follow from it. A new route is a row here and, in one of
the endpoint modules of the HTTP layer, the function named like its operation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from training.fleet.wire import messages as wire
from training.fleet.wire.messages import Slug


class Access(StrEnum):
    """The callers that an endpoint serves."""

    WORKER = "worker"  # hosts, each under its own name
    OPERATOR = "operator"
    READER = "reader"  # operators; hosts for jobs they have worked on
    ANYONE = "anyone"  # whoever the transport admits
    OWNER = "owner"  # whoever shows a certificate, for this certificate
    JOINING = "joining"  # whoever reaches the address: there is no certificate yet


@dataclass(frozen=True, slots=True)
class Route:
    """One address and method. ``reply`` None is bytes; ``upload`` takes bytes."""

    method: str
    path: str
    access: Access
    name: str  # of the operation, and of its function
    summary: str
    request: type[Any] | None = None
    reply: type[Any] | None = None
    slugs: tuple[Slug, ...] = ()  # refusals of its own; :func:`refusals` adds the general ones
    parameters: tuple[str, ...] = ()  # in the query and the headers, described in the document
    upload: bool = False
    media: str = "application/zstd"  # of bytes that are answered; empty for none
    links: tuple[str, ...] = ()  # operations that take the claim which this one grants


_JOB = "/v1/job/{job_id}"
_SET = "/v1/dataset/{dataset_id}"

_PAGE = ("after", "limit")
_UPLOAD = (wire.HEADER_CLAIM_ID, wire.HEADER_HOST_ID, wire.HEADER_SHA256, wire.HEADER_BY_HAND)

_CLAIMED = (Slug.UNKNOWN_JOB, Slug.LEASE_SUPERSEDED)
_MOVED = (Slug.UNKNOWN_JOB, Slug.WRONG_STATE)
_NAMED = (Slug.UNKNOWN_NAME,)
_FETCHED = (Slug.UNKNOWN_DATASET, Slug.INCOMPLETE_DATASET, Slug.NOT_YOURS)
_LOOKED = (Slug.UNKNOWN_JOB, Slug.NOT_YOURS)

ROUTES: tuple[Route, ...] = (
    Route(
        "POST", "/v1/job/claim", Access.WORKER, "claim",
        "ask for a job", wire.ClaimRequest, wire.ClaimReply, (Slug.HOST_ID_CONFLICT, Slug.SLOT_BUSY,
        Slug.LEASE_SUPERSEDED, Slug.JOB_CANCELLED), links=("heartbeat", "upload", "complete", "fail")),
    Route(
        "POST", f"{_JOB}/heartbeat", Access.WORKER, "heartbeat",
        "I am at it", wire.HeartbeatRequest, wire.HeartbeatReply, (*_CLAIMED, Slug.JOB_CANCELLED)),
    Route(
        "POST", f"{_JOB}/complete", Access.WORKER, "complete",
        "that bundle is the job's result", wire.CompleteRequest, wire.CompleteReply, (*_CLAIMED,
        Slug.JOB_CANCELLED, Slug.RESULT_CONFLICT, Slug.SPEC_MISMATCH, Slug.NO_ARTIFACT)),
    Route(
        "POST", f"{_JOB}/deliver", Access.WORKER, "deliver",
        "work that was set aside, by hand, for a job that waits", wire.DeliverRequest, wire.CompleteReply,
        (*_CLAIMED, Slug.JOB_CANCELLED, Slug.WRONG_STATE, Slug.SPEC_MISMATCH, Slug.NO_ARTIFACT)),
    Route(
        "POST", f"{_JOB}/fail", Access.WORKER, "fail",
        "it ended without a result, or is handed back", wire.FailRequest, wire.StatusReply, (*_CLAIMED,
        Slug.JOB_CANCELLED)),
    Route(
        "POST", f"{_JOB}/log", Access.WORKER, "output",
        "what the trainer printed, also when its attempt is over", wire.OutputRequest, wire.OutputReply,
        (*_CLAIMED, Slug.JOB_CANCELLED)),
    Route(
        "PUT", "/v1/model/{job_id}", Access.WORKER, "upload",
        "bring a bundle, or the rest of one", reply=wire.UploadReply, slugs=(*_CLAIMED, Slug.WRONG_STATE,
        Slug.JOB_CANCELLED, Slug.RESULT_CONFLICT, Slug.OFFSET_MISMATCH, Slug.WRONG_DIGEST, Slug.NO_ARTIFACT),
        parameters=(*_UPLOAD, wire.HEADER_OFFSET), upload=True),
    Route(
        "HEAD", "/v1/model/{job_id}", Access.READER, "probe",
        "may I upload, and from which byte on? (without a claim: is there a model?)", slugs=(*_CLAIMED,
        *_LOOKED, Slug.WRONG_STATE, Slug.JOB_CANCELLED, Slug.RESULT_CONFLICT, Slug.NO_ARTIFACT,
        Slug.HOST_MISMATCH), parameters=(*_UPLOAD, "Range")),
    Route(
        "GET", "/v1/model/{job_id}", Access.READER, "model",
        "the bundle of a completed job", slugs=(*_LOOKED, Slug.NO_ARTIFACT), parameters=("Range", "attempt")),
    Route(
        "GET", "/v1/jobs", Access.ANYONE, "jobs",
        "all jobs, page by page", reply=wire.JobsReply, parameters=("status", *_PAGE)),
    Route(
        "GET", "/v1/jobs/{job_id}", Access.READER, "job_by_name",
        "the same as /v1/job/{job_id}", reply=wire.JobDetail, slugs=_LOOKED),
    Route(
        "GET", _JOB, Access.READER, "job",
        "one job with its attempts and events", reply=wire.JobDetail, slugs=_LOOKED),
    Route(
        "GET", f"{_JOB}/log", Access.READER, "log",
        "output of an attempt", reply=wire.LogReply, slugs=_LOOKED, parameters=("after", "attempt")),
    Route(
        "GET", f"{_JOB}/explain", Access.READER, "explain",
        "why it does not run, host by host", reply=wire.ExplainReply, slugs=_LOOKED),
    Route(
        "GET", "/v1/workers", Access.ANYONE, "workers",
        "the hosts that asked, page by page", reply=wire.WorkersReply, parameters=("after:host", "limit")),
    Route(
        "GET", "/v1/health", Access.ANYONE, "health",
        "is the receiver well?", reply=wire.HealthReply),
    Route(
        "POST", f"{_JOB}/cancel", Access.OPERATOR, "cancel",
        "never again, until requeued", reply=wire.MovedReply, slugs=_MOVED, parameters=("removed",)),
    Route(
        "POST", f"{_JOB}/requeue", Access.OPERATOR, "requeue",
        "train it (again)", reply=wire.MovedReply, slugs=_MOVED),
    Route(
        "POST", f"{_JOB}/hold", Access.OPERATOR, "hold",
        "granted to nobody until unheld; what runs goes on", reply=wire.MovedReply, slugs=_MOVED),
    Route(
        "POST", f"{_JOB}/unhold", Access.OPERATOR, "unhold",
        "may be granted again", reply=wire.MovedReply, slugs=_MOVED),
    Route(
        "POST", "/v1/workers/{host_id}/release", Access.OPERATOR, "release",
        "give a host work again that was taken out", reply=wire.ReleaseReply,
        slugs=(Slug.UNKNOWN_NAME, Slug.WRONG_STATE)),
    Route(
        "POST", "/v1/manifest/reload", Access.OPERATOR, "reload",
        "read the plan again", reply=wire.ReloadReply, slugs=(Slug.BAD_MANIFEST,)),
    Route(
        "GET", "/v1/authority", Access.JOINING, "authority",
        "the receiver's authority, to be checked by its fingerprint", reply=wire.AuthorityReply,
        slugs=(Slug.NO_AUTHORITY,)),
    Route(
        "POST", "/v1/join", Access.JOINING, "join",
        "a certificate for a one-time code", wire.JoinRequest, wire.CertificateReply, (Slug.NO_AUTHORITY,
        Slug.JOIN_REFUSED, Slug.TOO_MANY_FAILURES)),
    Route(
        "POST", "/v1/renew", Access.OWNER, "renew",
        "a further certificate for the one shown", wire.RenewRequest, wire.CertificateReply,
        (Slug.NO_AUTHORITY,)),
    Route(
        "POST", "/v1/invitations", Access.OPERATOR, "invite",
        "let a host or an operator in: a one-time code", wire.InviteRequest, wire.InviteReply,
        (Slug.NO_AUTHORITY,)),
    Route(
        "POST", "/v1/revoke", Access.OPERATOR, "revoke",
        "put one out", wire.RevokeRequest, wire.RevokeReply, _NAMED),
    Route(
        "GET", "/v1/certificates", Access.OPERATOR, "certificates",
        "who was let in", reply=wire.CertificatesReply),
    Route(
        "GET", "/v1/tokens", Access.OPERATOR, "tokens",
        "names and ends of operators' tokens", reply=wire.TokensReply),
    Route(
        "POST", "/v1/tokens", Access.OPERATOR, "add_token",
        "a further token", wire.TokenRequest, wire.TokenReply, (Slug.WRONG_STATE,)),
    Route(
        "POST", "/v1/tokens/revoke", Access.OPERATOR, "revoke_token",
        "take one back", wire.TokenRevokeRequest, wire.TokenRevokeReply, _NAMED),
    Route(
        "GET", "/v1/audit", Access.OPERATOR, "audit",
        "who did what", reply=wire.AuditReply, parameters=_PAGE),
    Route(
        "GET", "/v1/datasets", Access.ANYONE, "datasets",
        "all data sets", reply=wire.DatasetsReply),
    Route(
        "PUT", _SET, Access.OPERATOR, "announce_dataset",
        "bring a listing; which of its pieces have to come?", reply=wire.DatasetDraftReply,
        slugs=(Slug.WRONG_DIGEST,), upload=True),
    Route(
        "GET", _SET, Access.READER, "dataset",
        "a data set's listing", slugs=_FETCHED, media="application/json"),
    Route(
        "PUT", f"{_SET}/piece/{{sha256}}", Access.OPERATOR, "bring_piece",
        "bring a piece", slugs=(*_FETCHED, Slug.WRONG_DIGEST), upload=True, media=""),
    Route(
        "PUT", f"{_SET}/pieces", Access.OPERATOR, "bring_pieces",
        "bring many small pieces in one body", slugs=(*_FETCHED, Slug.WRONG_DIGEST), upload=True, media=""),
    Route(
        "PUT", f"{_SET}/patch/{{sha256}}", Access.OPERATOR, "patch_piece",
        "bring a piece as a patch of another data set's file", slugs=(*_FETCHED, Slug.WRONG_DIGEST),
        upload=True, media=""),
    Route(
        "GET", f"{_SET}/chunks", Access.OPERATOR, "chunks",
        "the chunks of a file, by which patches of it are made", reply=wire.DatasetChunksReply,
        parameters=("path",), slugs=_FETCHED),
    Route(
        "GET", f"{_SET}/piece/{{sha256}}", Access.READER, "piece",
        "a piece's bytes", slugs=_FETCHED, media="application/octet-stream"),
    Route(
        "POST", f"{_SET}/publish", Access.OPERATOR, "publish_dataset",
        "let it be fetched, under this name too", wire.DatasetPublishRequest, wire.DatasetPublishReply,
        _FETCHED),
    Route(
        "POST", f"{_SET}/remove", Access.OPERATOR, "remove_dataset",
        "forget it", reply=wire.DatasetRemoveReply, slugs=(*_FETCHED, Slug.WRONG_STATE)),
    Route(
        "POST", f"{_SET}/unname", Access.OPERATOR, "unname_dataset",
        "free one of its names", wire.DatasetUnnameRequest, wire.DatasetView, (*_FETCHED, Slug.WRONG_STATE)),
    Route(
        "GET", "/v1/openapi.json", Access.ANYONE, "openapi",
        "this document", reply=dict),
)  # fmt: skip

# -- which refusals any address of a kind may answer with ---------------------------------------------------------

_EVERYWHERE = (
    Slug.BAD_REQUEST,
    Slug.REQUEST_TIMEOUT,
    Slug.TOO_LARGE,
    Slug.MISDIRECTED,
    Slug.SLOW_DOWN,
    Slug.INTERNAL,
    Slug.SHUTTING_DOWN,
    Slug.UNAVAILABLE,
)
_SHOWN = (
    Slug.NO_CERTIFICATE,
    Slug.CERTIFICATE_IDENTITY,
    Slug.CERTIFICATE_UNKNOWN,
    Slug.CERTIFICATE_REVOKED,
    Slug.CERTIFICATE_EXPIRED,
    Slug.PROXY_IDENTITY,
)
_TOKEN = (Slug.OPERATOR_TOKEN, Slug.TOO_MANY_FAILURES)
_BY_ACCESS: Mapping[Access, tuple[Slug, ...]] = {
    Access.WORKER: (*_SHOWN, *_TOKEN, Slug.WRONG_ROLE, Slug.HOST_MISMATCH),
    Access.OPERATOR: (*_SHOWN, *_TOKEN),
    Access.READER: (*_SHOWN, *_TOKEN),
    Access.ANYONE: (*_SHOWN, *_TOKEN),
    Access.OWNER: (*_SHOWN, *_TOKEN),
    Access.JOINING: (),
}
_SAFE = frozenset({"GET", "HEAD"})


def refusals(route: Route) -> tuple[Slug, ...]:
    """Name every kind of refusal that this address may answer with."""
    found = [*route.slugs, *_EVERYWHERE, *_BY_ACCESS[route.access]]
    if route.method not in _SAFE:
        found += [Slug.ORIGIN_REFUSED, Slug.DISK_FULL]
    if "{" in route.path:
        found.append(Slug.NOT_FOUND)  # a name with a slash in it is another address
    return tuple(slug for slug in Slug if slug in found)

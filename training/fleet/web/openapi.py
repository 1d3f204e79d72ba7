"""The wire as an OpenAPI 3.1 document, made of the structs in protocol.py, the routes, and the table below.

Served at ``GET /v1/openapi.json`` and kept in ``docs/openapi.json``; ``python -m training.fleet.web.openapi
docs/openapi.json`` writes it anew. An address without a row in ``OPERATIONS`` is a failing test, and so is an answer
with a status or a kind of refusal that its row does not name.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec

from training.fleet import protocol as wire
from training.fleet.job import JobStatus, digest
from training.fleet.protocol import Slug
from training.fleet.trust.access import POLICY, Access
from training.streams import replace_unprintable

PATH = "/v1/openapi.json"
_JOB = "/v1/job/{job_id}"
_SET = "/v1/dataset/{dataset_id}"
_PIECE = f"{_SET}/piece/{{sha256}}"
_SHA256 = r"^ *[0-9A-Fa-f]{64} *$"
_SAFE = frozenset({"GET", "HEAD"})

Json = dict[str, Any]

# -- parameters -------------------------------------------------------------------------------------------------


def _parameter(where: str, name: str, schema: Json, description: str) -> Json:
    found = {"name": name, "in": where, "description": description, "schema": schema}
    return found | ({"required": True} if where == "path" else {})


_NUMBER = {"type": "integer", "minimum": 0, "maximum": 10**15 - 1}
_AFTER = _parameter("query", "after", _NUMBER, "where the page begins; 0 is the first")
_LIMIT = _parameter("query", "limit", _NUMBER, "how many at most")
_AFTER_HOST = _parameter(
    "query", "after", {"type": "string"}, "the name behind which the page begins"
)
_PAGE = (_AFTER, _LIMIT)
_UPLOAD = (
    _parameter("header", wire.HEADER_CLAIM_ID, {"type": "string"}, "the claim, from its grant"),
    _parameter("header", wire.HEADER_HOST_ID, {"type": "string"}, "for callers without a claim id"),
    _parameter(
        "header", wire.HEADER_SHA256, {"type": "string", "pattern": _SHA256}, "of the whole bundle"
    ),
)
_BY_HAND = _parameter(
    "header", wire.HEADER_BY_HAND, {"type": "string", "enum": ["1"]}, "of work that was set aside"
)
_BYTES = {"type": "integer", "minimum": 0, "maximum": wire.ARTIFACT_BYTES_MAX}
_OFFSET = _parameter("header", wire.HEADER_OFFSET, _BYTES, "of the first byte of this body")
_RANGE = _parameter("header", "Range", {"type": "string"}, "one plain range; others get the whole")
_TEXT = {"type": "string", "minLength": 1}
_DIGEST = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_IN_PATH = (
    ("job_id", _TEXT, "its id; for onlookers and operators also its name or a unique prefix"),
    ("host_id", _TEXT, "the host's id"),
    ("dataset_id", _DIGEST, "the SHA-256 of its listing"),
    ("sha256", _DIGEST, "of the piece"),
)
_STATUS = _parameter(
    "query", "status", {"enum": [*JobStatus], "type": "string"}, "only jobs of this status"
)
_FILE = _parameter("query", "path", {"type": "string"}, "of the file, in the data set's listing")
_REMOVED = _parameter(
    "query",
    "removed",
    {"type": "string"},
    "true: only because the plan no longer names the job; it waits again when a plan names it again",
)
_ATTEMPT = _parameter("query", "attempt", _NUMBER, "0 is the last one")

# -- the table --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Operation:
    """One address and method. ``reply`` None is a bundle's bytes; ``upload`` takes such bytes."""

    name: str
    summary: str
    request: type[Any] | None = None
    reply: type[Any] | None = None
    slugs: tuple[Slug, ...] = ()
    parameters: tuple[Json, ...] = ()
    upload: bool = False
    media: str = "application/zstd"  # of bytes that are answered; empty for none
    links: tuple[str, ...] = ()  # operations that take the claim which this one grants


_CLAIMED = (Slug.UNKNOWN_JOB, Slug.LEASE_SUPERSEDED)
_MOVED = (Slug.UNKNOWN_JOB, Slug.WRONG_STATE)
_NAMED = (Slug.UNKNOWN_NAME,)
_FETCHED = (Slug.UNKNOWN_DATASET, Slug.INCOMPLETE_DATASET, Slug.NOT_YOURS)
_LOOKED = (Slug.UNKNOWN_JOB, Slug.NOT_YOURS)

OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("POST", "/v1/job/claim"): Operation(
        "claim",
        "ask for a job",
        wire.ClaimRequest,
        wire.ClaimReply,
        (Slug.HOST_ID_CONFLICT, Slug.SLOT_BUSY, Slug.LEASE_SUPERSEDED, Slug.JOB_CANCELLED),
        links=("heartbeat", "upload", "complete", "fail"),
    ),
    ("POST", f"{_JOB}/heartbeat"): Operation(
        "heartbeat",
        "I am at it",
        wire.HeartbeatRequest,
        wire.HeartbeatReply,
        (*_CLAIMED, Slug.JOB_CANCELLED),
    ),
    ("POST", f"{_JOB}/complete"): Operation(
        "complete",
        "that bundle is the job's result",
        wire.CompleteRequest,
        wire.CompleteReply,
        (
            *_CLAIMED,
            Slug.JOB_CANCELLED,
            Slug.RESULT_CONFLICT,
            Slug.SPEC_MISMATCH,
            Slug.NO_ARTIFACT,
        ),
    ),
    ("POST", f"{_JOB}/deliver"): Operation(
        "deliver",
        "work that was set aside, by hand, for a job that waits",
        wire.DeliverRequest,
        wire.CompleteReply,
        (
            *_CLAIMED,
            Slug.JOB_CANCELLED,
            Slug.WRONG_STATE,
            Slug.SPEC_MISMATCH,
            Slug.NO_ARTIFACT,
        ),
    ),
    ("POST", f"{_JOB}/fail"): Operation(
        "fail",
        "it ended without a result, or is handed back",
        wire.FailRequest,
        wire.StatusReply,
        (*_CLAIMED, Slug.JOB_CANCELLED),
    ),
    ("POST", f"{_JOB}/log"): Operation(
        "output",
        "what the trainer printed, also when its attempt is over",
        wire.OutputRequest,
        wire.OutputReply,
        (*_CLAIMED, Slug.JOB_CANCELLED),
    ),
    ("PUT", "/v1/model/{job_id}"): Operation(
        "upload",
        "bring a bundle, or the rest of one",
        reply=wire.UploadReply,
        slugs=(
            *_CLAIMED,
            Slug.WRONG_STATE,
            Slug.JOB_CANCELLED,
            Slug.RESULT_CONFLICT,
            Slug.OFFSET_MISMATCH,
            Slug.WRONG_DIGEST,
            Slug.NO_ARTIFACT,
        ),
        parameters=(*_UPLOAD, _OFFSET),
        upload=True,
    ),
    ("HEAD", "/v1/model/{job_id}"): Operation(
        "probe",
        "may I upload, and from which byte on? (without a claim: is there a model?)",
        slugs=(
            *_CLAIMED,
            *_LOOKED,
            Slug.WRONG_STATE,
            Slug.JOB_CANCELLED,
            Slug.RESULT_CONFLICT,
            Slug.NO_ARTIFACT,
            Slug.HOST_MISMATCH,
        ),
        parameters=(*_UPLOAD, _RANGE),
    ),
    ("GET", "/v1/model/{job_id}"): Operation(
        "model",
        "the bundle of a completed job",
        slugs=(*_LOOKED, Slug.NO_ARTIFACT),
        parameters=(_RANGE, _ATTEMPT),
    ),
    ("GET", "/v1/jobs"): Operation(
        "jobs", "all jobs, page by page", reply=wire.JobsReply, parameters=(_STATUS, *_PAGE)
    ),
    ("GET", "/v1/jobs/{job_id}"): Operation(
        "job_by_name", "the same as /v1/job/{job_id}", reply=wire.JobDetail, slugs=_LOOKED
    ),
    ("GET", _JOB): Operation(
        "job", "one job with its attempts and events", reply=wire.JobDetail, slugs=_LOOKED
    ),
    ("GET", f"{_JOB}/log"): Operation(
        "log",
        "output of an attempt",
        reply=wire.LogReply,
        slugs=_LOOKED,
        parameters=(_AFTER, _ATTEMPT),
    ),
    ("GET", f"{_JOB}/explain"): Operation(
        "explain", "why it does not run, host by host", reply=wire.ExplainReply, slugs=_LOOKED
    ),
    ("GET", "/v1/workers"): Operation(
        "workers",
        "the hosts that asked, page by page",
        reply=wire.WorkersReply,
        parameters=(_AFTER_HOST, _LIMIT),
    ),
    ("GET", "/v1/health"): Operation("health", "is the receiver well?", reply=wire.HealthReply),
    ("POST", f"{_JOB}/cancel"): Operation(
        "cancel", "never again, until requeued", reply=wire.MovedReply, slugs=_MOVED, parameters=(_REMOVED,)
    ),
    ("POST", f"{_JOB}/requeue"): Operation(
        "requeue", "train it (again)", reply=wire.MovedReply, slugs=_MOVED
    ),
    ("POST", f"{_JOB}/hold"): Operation(
        "hold", "granted to nobody until unheld; what runs goes on", reply=wire.MovedReply, slugs=_MOVED
    ),
    ("POST", f"{_JOB}/unhold"): Operation(
        "unhold", "may be granted again", reply=wire.MovedReply, slugs=_MOVED
    ),
    ("POST", "/v1/workers/{host_id}/release"): Operation(
        "release",
        "give a host work again that was taken out",
        reply=wire.ReleaseReply,
        slugs=(Slug.UNKNOWN_NAME, Slug.WRONG_STATE),
    ),
    ("POST", "/v1/manifest/reload"): Operation(
        "reload", "read the plan again", reply=wire.ReloadReply, slugs=(Slug.BAD_MANIFEST,)
    ),
    ("GET", "/v1/authority"): Operation(
        "authority", "the receiver's authority, to be checked by its fingerprint",
        reply=wire.AuthorityReply, slugs=(Slug.NO_AUTHORITY,),
    ),
    ("POST", "/v1/join"): Operation(
        "join",
        "a certificate for a one-time code",
        wire.JoinRequest,
        wire.CertificateReply,
        (Slug.NO_AUTHORITY, Slug.JOIN_REFUSED, Slug.TOO_MANY_FAILURES),
    ),
    ("POST", "/v1/renew"): Operation(
        "renew", "a further certificate for the one shown", wire.RenewRequest,
        wire.CertificateReply, (Slug.NO_AUTHORITY,),
    ),
    ("POST", "/v1/invitations"): Operation(
        "invite", "let a host or an operator in: a one-time code", wire.InviteRequest,
        wire.InviteReply, (Slug.NO_AUTHORITY,),
    ),
    ("POST", "/v1/revoke"): Operation(
        "revoke", "put one out", wire.RevokeRequest, wire.RevokeReply, _NAMED
    ),
    ("GET", "/v1/certificates"): Operation(
        "certificates", "who was let in", reply=wire.CertificatesReply
    ),
    ("GET", "/v1/tokens"): Operation(
        "tokens", "names and ends of operators' tokens", reply=wire.TokensReply
    ),
    ("POST", "/v1/tokens"): Operation(
        "add_token", "a further token", wire.TokenRequest, wire.TokenReply, (Slug.WRONG_STATE,)
    ),
    ("POST", "/v1/tokens/revoke"): Operation(
        "revoke_token", "take one back", wire.TokenRevokeRequest, wire.TokenRevokeReply, _NAMED
    ),
    ("GET", "/v1/audit"): Operation(
        "audit", "who did what", reply=wire.AuditReply, parameters=_PAGE
    ),
    ("GET", "/v1/datasets"): Operation("datasets", "all data sets", reply=wire.DatasetsReply),
    ("PUT", _SET): Operation(
        "announce_dataset", "bring a listing; which of its pieces have to come?",
        reply=wire.DatasetDraftReply, slugs=(Slug.WRONG_DIGEST,), upload=True,
    ),
    ("GET", _SET): Operation(
        "dataset", "a data set's listing", slugs=_FETCHED, media="application/json"
    ),
    ("PUT", _PIECE): Operation(
        "bring_piece", "bring a piece", slugs=(*_FETCHED, Slug.WRONG_DIGEST), upload=True, media=""
    ),
    ("PUT", f"{_SET}/pieces"): Operation(
        "bring_pieces", "bring many small pieces in one body", slugs=(*_FETCHED, Slug.WRONG_DIGEST),
        upload=True, media="",
    ),
    ("PUT", f"{_SET}/patch/{{sha256}}"): Operation(
        "patch_piece", "bring a piece as a patch of another data set's file",
        slugs=(*_FETCHED, Slug.WRONG_DIGEST), upload=True, media="",
    ),
    ("GET", f"{_SET}/chunks"): Operation(
        "chunks", "the chunks of a file, by which patches of it are made",
        reply=wire.DatasetChunksReply, parameters=(_FILE,), slugs=_FETCHED,
    ),
    ("GET", _PIECE): Operation(
        "piece", "a piece's bytes", slugs=_FETCHED, media="application/octet-stream"
    ),
    ("POST", f"{_SET}/publish"): Operation(
        "publish_dataset", "let it be fetched, under this name too", wire.DatasetPublishRequest,
        wire.DatasetPublishReply, _FETCHED,
    ),
    ("POST", f"{_SET}/remove"): Operation(
        "remove_dataset", "forget it", reply=wire.DatasetRemoveReply,
        slugs=(*_FETCHED, Slug.WRONG_STATE),
    ),
    ("POST", f"{_SET}/unname"): Operation(
        "unname_dataset", "free one of its names", wire.DatasetUnnameRequest, wire.DatasetView,
        (*_FETCHED, Slug.WRONG_STATE),
    ),
    ("GET", PATH): Operation("openapi", "this document", reply=dict),
}  # fmt: skip

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


def slugs_of(method: str, path: str) -> tuple[Slug, ...]:
    """Every kind of refusal that this address may answer with."""
    found = [*OPERATIONS[method, path].slugs, *_EVERYWHERE, *_BY_ACCESS[POLICY[method, path]]]
    if method not in _SAFE:
        found += [Slug.ORIGIN_REFUSED, Slug.DISK_FULL]
    if "{" in path:
        found.append(Slug.NOT_FOUND)  # a name with a slash in it is another address
    return tuple(slug for slug in Slug if slug in found)


# -- the document -----------------------------------------------------------------------------------------------


def document() -> Json:
    """The whole document, in an order that does not depend on the day."""
    kinds = {wire.Problem}
    for operation in OPERATIONS.values():
        kinds |= {kind for kind in (operation.request, operation.reply) if kind not in (None, dict)}
    ordered = sorted(kinds, key=lambda kind: kind.__name__)
    _, components = msgspec.json.schema_components(
        ordered, ref_template="#/components/schemas/{name}"
    )
    paths: dict[str, Json] = {}
    refusals: dict[str, Json] = {}
    for (method, path), operation in OPERATIONS.items():
        paths.setdefault(path, {})[method.lower()] = _operation(method, path, operation, refusals)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "CIS490 training fleet",
            "version": str(wire.VERSION),
            "description": "How workers and operators speak with the receiver. docs/protocol.md is this page in words.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": dict(sorted(refusals.items())),
            "securitySchemes": {
                "certificate": {"type": "mutualTLS"},
                "token": {"type": "apiKey", "in": "header", "name": wire.HEADER_OPERATOR_TOKEN},
            },
        },
    }


def _operation(method: str, path: str, operation: Operation, refusals: dict[str, Json]) -> Json:
    found: Json = {"operationId": operation.name, "summary": operation.summary}
    kind = POLICY[method, path]
    if kind is Access.OPERATOR:
        found["security"] = [{"token": []}, {"certificate": []}]
    elif kind is not Access.JOINING:
        found["security"] = [{}, {"certificate": []}]  # on loopback without TLS nothing is shown
    named = [_parameter("path", *each) for each in _IN_PATH if f"{{{each[0]}}}" in path]
    if named or operation.parameters:
        found["parameters"] = [*named, *operation.parameters]
    if operation.request is not None:
        content = {"application/json": {"schema": _schema(operation.request)}}
        needed = any(each.required for each in msgspec.structs.fields(operation.request))
        found["requestBody"] = {"required": needed, "content": content}  # an empty body is {}
    elif operation.upload:
        octets = {"type": "string", "contentMediaType": "application/zstd"}
        found["requestBody"] = {"content": {"application/octet-stream": {"schema": octets}}}
    found["responses"] = _responses(method, path, operation, refusals)
    return found


def _responses(method: str, path: str, operation: Operation, refusals: dict[str, Json]) -> Json:
    """By status. Refusals that several addresses share are written once, into ``refusals``."""
    found: Json = {"200": _success(method, operation)}
    if operation.name in ("model", "probe"):
        found["206"] = _success(method, operation) | {"description": "the range asked for"}
    slugs = slugs_of(method, path)
    for status in sorted({slug.status for slug in slugs}):
        named = [slug.value for slug in slugs if slug.status == status]
        name = f"refusal-{status}-{digest([method == 'HEAD', named])[:6]}"
        refusals[name] = _refusal(method, status, named)
        found[str(status)] = {"$ref": f"#/components/responses/{name}"}
    return found


def _success(method: str, operation: Operation) -> Json:
    found: Json = {"description": operation.summary, "headers": dict(_DATABASE)}
    if operation.reply is not None:
        found["content"] = {"application/json": {"schema": _schema(operation.reply)}}
    elif method != "HEAD" and operation.media:
        found["content"] = {operation.media: {}}
    if operation.links:
        found["links"] = {name: _link(name) for name in operation.links}
    return found


# Of every answer, whoever makes it; without it, or with another one, it is no answer.
_DATABASE: Json = {
    wire.HEADER_DATABASE: {
        "required": True,
        "description": "the database that answers",
        "schema": {"type": "string", "pattern": wire.DATABASE_ID_PATTERN},
    }
}


def _link(operation: str) -> Json:
    """Link an answer to a claim with the next request of the job's life."""
    claim, body = "$response.body#/claim_id", "$request.body#/host_id"
    parameters = {"path.job_id": "$response.body#/job_id"}
    if operation == "upload":
        parameters |= {f"header.{wire.HEADER_CLAIM_ID}": claim}
        return {"operationId": operation, "parameters": parameters}
    given = {"claim_id": claim, "host_id": body}
    return {"operationId": operation, "parameters": parameters, "requestBody": given}


def _refusal(method: str, status: int, slugs: list[str]) -> Json:
    text = {"type": "string"}
    headers = _DATABASE | {
        wire.HEADER_PROBLEM: {"required": True, "schema": text | {"enum": slugs}}
    }
    if status in (408, 429, 503, 507):
        needed = status != 429  # after wrong tokens, no asking again helps before a person does
        headers["Retry-After"] = {"required": needed, "schema": text | {"pattern": "^[0-9]+$"}}
    phrase = HTTPStatus(status).phrase
    found: Json = {"description": f"{phrase}: {', '.join(slugs)}", "headers": headers}
    if method != "HEAD":
        which = {"properties": {"type": {"enum": slugs}, "status": {"const": status}}}
        schema = {"allOf": [_schema(wire.Problem), which]}
        found["content"] = {"application/problem+json": {"schema": schema}}
    return found


def _schema(kind: type[Any]) -> Json:
    if kind is dict:
        return {"type": "object"}
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def text() -> str:
    """The document as it is kept: indented, so that a change reads well."""
    return msgspec.json.format(msgspec.json.encode(document()), indent=1).decode() + "\n"


def main(argv: list[str] | None = None) -> int:
    """``python -m training.fleet.web.openapi [FILE]``: write the document there, or show it."""
    replace_unprintable()
    arguments = sys.argv[1:] if argv is None else argv
    if arguments:
        Path(arguments[0]).write_text(text(), encoding="utf-8")
    else:
        print(text(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())

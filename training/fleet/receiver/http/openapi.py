"""Describe the HTTP API as an OpenAPI 3.1 document, made from the messages' structs and the route table.

The receiver serves the document at ``GET /v1/openapi.json``; ``python -m training.fleet.receiver.http.openapi
docs/openapi.json`` writes it into the docs. A test fails if an answer has a status or a kind of refusal that the table
does not name.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from training.contract import digest
from training.fleet.manifest.types import HostSpec, JobSpec, TrainerSpec
from training.fleet.scheduling.job import JobStatus
from training.fleet.service.job_views import HELD
from training.fleet.wire import constants
from training.fleet.wire import messages as wire
from training.fleet.wire.routes import ROUTES, Access, Route, refusals
from training.streams import replace_unprintable
from training.strict_json import JsonObject

PATH = "/v1/openapi.json"


# -- parameters -------------------------------------------------------------------------------------------------

_STRING = {"type": "string"}
_TEXT = _STRING | {"minLength": 1}
_DIGEST = _STRING | {"pattern": "^[0-9a-f]{64}$"}
_SHA256 = _STRING | {"pattern": "^ *[0-9A-Fa-f]{64} *$"}
_NUMBER = {"type": "integer", "minimum": 0, "maximum": 10**15 - 1}
_BYTES = {"type": "integer", "minimum": 0, "maximum": constants.ARTIFACT_BYTES_MAX}
_STATUS = {"enum": [*JobStatus, HELD, ""], "type": "string"}
_NOW = "true: what it trains is stopped politely and handed back, rather than run to its end"
_GONE = "true: cancel it because the plan no longer names it; it is pending again when a plan names it again"
_IN_PATH = (
    ("job_id", _TEXT, "the job's id; readers and operators may give its name or a unique prefix"),
    ("host_id", _TEXT, "the host's id"),
    ("number", _NUMBER, "the receiver's number of the incident"),
    ("dataset_id", _DIGEST, "the SHA-256 of its listing"),
    ("state_id", _DIGEST, "the SHA-256 of the saved state's listing"),
    ("sha256", _DIGEST, "the SHA-256 of the piece"),
)
# By the name in the route table, a header's with a capital; a colon tells two meanings of one name apart.
_PARAMETERS: Mapping[str, tuple[JsonObject, str]] = {
    "after": (_NUMBER, "the number after which the page begins"),
    "after:model": (_STRING, "`next_after` of the page before"),
    "test": (
        _STRING,
        "the test on which they were judged, as `tests` names it; default that of the plan's models",
    ),
    "after:host": (_STRING, "the name after which the page begins"),
    "limit": (_NUMBER, "the largest number of entries"),
    "status": (_STATUS, "only jobs of this status, or those that wait and are held"),
    "model": (_STRING, "only jobs of this model"),
    "mode": (_STRING, "only jobs of this mode"),
    "host": (_STRING, "only jobs that this host has, or trained last"),
    "host:watched": (_STRING, "only incidents of this host"),
    "before": (_NUMBER, "the number before which the page begins; 0: the newest"),
    "q": (_STRING, "only jobs with this text in their name"),
    "path": (_STRING, "the path of the file in the data set's listing"),
    "removed": (_STRING, _GONE),
    "now": (_STRING, _NOW),
    "all": (_STRING, "true: also the work of all hosts from before a restore"),
    "attempt": (_NUMBER, "the number of the attempt; 0 is the last one"),
    "points": (_NUMBER, "the largest number of epochs; 500 by default, at most 20,000"),
    constants.HEADER_CLAIM_ID: (_STRING, "the claim's id, from its grant"),
    constants.HEADER_HOST_ID: (_STRING, "the host's id, for callers without a claim id"),
    constants.HEADER_SHA256: (_SHA256, "the SHA-256 of the whole bundle"),
    constants.HEADER_BY_HAND: (_STRING, "1: the bundle was kept on its host and is for `deliver`"),
    constants.HEADER_OFFSET: (_BYTES, "the offset of this body's first byte in the bundle"),
    "Range": (_STRING, "one plain range; any other value is ignored"),
}


def _parameters(route: Route) -> list[JsonObject]:
    """Describe the parameters of an endpoint, those in its path first."""
    found: list[JsonObject] = []
    for name, schema, description in _IN_PATH:
        if f"{{{name}}}" in route.path:
            found.append({"name": name, "in": "path", "description": description, "schema": schema, "required": True})
    for key in route.parameters:
        schema, description = _PARAMETERS[key]
        name = key.partition(":")[0]
        where = "header" if name[0].isupper() else "query"
        found.append({"name": name, "in": where, "description": description, "schema": schema})
    return found


# -- the document -----------------------------------------------------------------------------------------------


def document() -> JsonObject:
    """Build the OpenAPI document as a JSON object, in a fixed order."""
    kinds: set[type] = {wire.Problem, JobSpec, HostSpec, TrainerSpec}
    routes = [route for route in ROUTES if not route.page]
    for route in routes:
        kinds |= {kind for kind in (route.request, route.reply) if kind not in (None, dict)}
    ordered = sorted(kinds, key=lambda kind: kind.__name__)
    _, components = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    paths: dict[str, JsonObject] = {}
    shared: dict[str, JsonObject] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, shared)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "CIS490 training fleet",
            "version": str(constants.VERSION),
            "description": "The receiver's HTTP API, for workers and operators. docs/protocol.md explains it in words.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": dict(sorted(shared.items())),
            "securitySchemes": {
                "certificate": {"type": "mutualTLS"},
                "token": {"type": "apiKey", "in": "header", "name": constants.HEADER_OPERATOR_TOKEN},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
        },
    }


def _operation(route: Route, shared: dict[str, JsonObject]) -> JsonObject:
    found: JsonObject = {"operationId": route.name, "summary": route.summary}
    if route.access is Access.OPERATOR:
        found["security"] = [{"token": []}, {"bearer": []}, {"certificate": []}]
    elif route.access is not Access.JOINING:
        found["security"] = [{}, {"certificate": []}, {"bearer": []}]  # on loopback without TLS no certificate is shown
    if parameters := _parameters(route):
        found["parameters"] = parameters
    if route.request is not None:
        content = {"application/json": {"schema": _schema(route.request)}}
        needed = any(each.required for each in msgspec.structs.fields(route.request))
        found["requestBody"] = {"required": needed, "content": content}  # an empty body is {}
    elif route.upload:
        octets = {"type": "string", "contentMediaType": "application/zstd"}
        found["requestBody"] = {"content": {"application/octet-stream": {"schema": octets}}}
    found["responses"] = _responses(route, shared)
    return found


def _responses(route: Route, shared: dict[str, JsonObject]) -> JsonObject:
    """Describe the responses by status. Refusals that endpoints share are written once, into ``shared``."""
    found: JsonObject = {"200": _success(route)}
    if route.name in ("model", "probe"):
        found["206"] = _success(route) | {"description": "The requested range"}
    if route.name in ("upload", "complete", "deliver"):
        found["202"] = _success(route) | {"description": "Stored; an operator decides, as the claim is not known"}
    problem_types = refusals(route)
    for status in sorted({problem_type.status for problem_type in problem_types}):
        named = [problem_type.value for problem_type in problem_types if problem_type.status == status]
        name = f"refusal-{status}-{digest([route.method == 'HEAD', named])[:6]}"
        shared[name] = _refusal(route.method, status, named)
        found[str(status)] = {"$ref": f"#/components/responses/{name}"}
    return found


def _success(route: Route) -> JsonObject:
    found: JsonObject = {"description": route.summary, "headers": dict(_DATABASE)}
    if route.reply is not None:
        found["content"] = {"application/json": {"schema": _schema(route.reply)}}
    elif route.method != "HEAD" and route.media:
        found["content"] = {route.media: {}}
    if route.links:
        found["links"] = {name: _link(name) for name in route.links}
    return found


# Every answer has it; a client takes no answer without it, or with another database's.
_DATABASE: JsonObject = {
    constants.HEADER_DATABASE: {
        "required": True,
        "description": "the id of the receiver's database",
        "schema": {"type": "string", "pattern": constants.DATABASE_ID_PATTERN},
    }
}


def _link(operation: str) -> JsonObject:
    """Describe how a later request of an attempt takes the job, claim and host from the claim's request and answer."""
    claim, body = "$response.body#/claim_id", "$request.body#/host_id"
    parameters = {"path.job_id": "$response.body#/job_id"}
    if operation == "upload":
        parameters |= {f"header.{constants.HEADER_CLAIM_ID}": claim}
        return {"operationId": operation, "parameters": parameters}
    given = {"claim_id": claim, "host_id": body}
    return {"operationId": operation, "parameters": parameters, "requestBody": given}


def _refusal(method: str, status: int, names: list[str]) -> JsonObject:
    text = {"type": "string"}
    headers = _DATABASE | {constants.HEADER_PROBLEM: {"required": True, "schema": text | {"enum": names}}}
    if status in (408, 429, 503, 507):
        needed = status != 429  # after wrong tokens no repetition helps until a person acts
        headers["Retry-After"] = {"required": needed, "schema": text | {"pattern": "^[0-9]+$"}}
    found: JsonObject = {"description": ", ".join(names), "headers": headers}
    if method != "HEAD":
        which = {"properties": {"type": {"enum": names}, "status": {"const": status}}}
        schema = {"allOf": [_schema(wire.Problem), which]}
        found["content"] = {"application/problem+json": {"schema": schema}}
    return found


def _schema(kind: type[Any]) -> JsonObject:
    if kind is dict:
        return {"type": "object"}
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def text() -> str:
    """Return the document as indented JSON, in which differences are easy to read."""
    # Before Python 3.13, docstrings keep their indentation.
    return msgspec.json.format(msgspec.json.encode(document()), indent=1).decode().replace(r"\n    ", r"\n") + "\n"


def main(argv: list[str] | None = None) -> int:
    """``python -m training.fleet.receiver.http.openapi [FILE]``: write the document there, or show it."""
    replace_unprintable()
    parser = argparse.ArgumentParser(
        "python -m training.fleet.receiver.http.openapi", description="Write the document."
    )
    parser.add_argument("file", nargs="?", type=Path, help="the file to write; default: standard output")
    file: Path | None = parser.parse_args(argv).file
    if file is None:
        print(text(), end="")
    else:
        file.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

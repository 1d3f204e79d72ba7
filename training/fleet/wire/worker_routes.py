"""Most endpoints that a worker calls; :mod:`training.fleet.wire.routes` has the endpoints of all callers.

The other endpoints are in another module, so that a worker, which must stay small, need not load their messages.
"""

from enum import StrEnum
from typing import Any, NamedTuple

from training.fleet.wire import attempts
from training.fleet.wire.constants import (
    HEADER_BY_HAND,
    HEADER_CLAIM_ID,
    HEADER_HOST_ID,
    HEADER_OFFSET,
    HEADER_SHA256,
    ProblemType,
)
from training.fleet.wire.states import StateDraftReply, StateKeepRequest, StateView

HTML = "text/html"


class Access(StrEnum):
    """The callers that an endpoint serves."""

    WORKER = "worker"  # hosts, each under its own name
    OPERATOR = "operator"
    READER = "reader"  # operators and readers; hosts for jobs they have worked on
    FETCHER = "fetcher"  # operators; hosts for data sets that the plan lets them train on
    ANYONE = "anyone"  # every host, operator and reader; on loopback without TLS everybody
    REPORTER = "reporter"  # hosts and watched hosts, each under its own name
    MEMBER = "member"  # as ANYONE, and watched hosts
    OWNER = "owner"  # the holder of a certificate, for this certificate
    JOINING = "joining"  # everybody: there is no certificate yet


class DashboardPage(NamedTuple):
    """The route table's entry on a page of the dashboard: its title in the menu, and the query keys of addresses that a
    static site keeps. ``outlook``: the page shows the receiver's health and a forecast.

    The function ``page`` in a module of ``training/fleet/pages/`` renders the page of the operation ``NAME_page``. The
    browser asks every few seconds whether the shown page has changed.
    """

    menu: str = ""  # its title in the menu; empty: links lead to it
    links: tuple[str, ...] = ()  # the keys of those addresses that the static site holds, too
    outlook: bool = False  # it shows the receiver's health and a forecast


class Route(NamedTuple):
    """One endpoint: a row of the route table. ``reply`` is None where the answer is no message; ``upload`` is True
    where the body is bytes."""

    method: str
    path: str
    access: Access
    name: str  # of the operation, and of its function
    summary: str
    request: type[Any] | None = None
    reply: type[Any] | None = None
    problem_types: tuple[ProblemType, ...] = ()  # refusals of its own; :func:`refusals` adds the general ones
    parameters: tuple[str, ...] = ()  # in the query and the headers, described in the document
    upload: bool = False
    media: str = "application/zstd"  # of an answer in bytes; empty: the answer has no body
    links: tuple[str, ...] = ()  # operations that take the claim which this one grants
    shown: DashboardPage | None = None

    @property
    def page(self) -> bool:
        """Return True for an endpoint whose answer browsers show. Endpoints for which ``page`` is False are for
        programs, and docs/openapi.json describes them."""
        return self.media == HTML or self.path.startswith("/static/")


JOB = "/v1/job/{job_id}"
SET = "/v1/dataset/{dataset_id}"
STATE = f"{JOB}/state/{{state_id}}"
UPLOAD = (HEADER_CLAIM_ID, HEADER_HOST_ID, HEADER_SHA256, HEADER_BY_HAND)
HOLDER = (HEADER_CLAIM_ID, HEADER_HOST_ID)

WORKER_ROUTES = (
    Route("POST", "/v1/job/claim", Access.WORKER, "claim",
        "Claim a job", attempts.ClaimRequest, attempts.ClaimReply,
        (ProblemType.HOST_ID_CONFLICT, ProblemType.PROTOCOL_MISMATCH, ProblemType.SLOT_BUSY),
        links=("heartbeat", "upload", "complete", "fail")),
    Route("POST", f"{JOB}/heartbeat", Access.WORKER, "heartbeat",
        "Renew the lease and report progress", attempts.HeartbeatRequest, attempts.HeartbeatReply),
    Route("POST", f"{JOB}/complete", Access.WORKER, "complete",
        "Complete a job with the uploaded bundle", attempts.CompleteRequest, attempts.CompleteReply,
        (ProblemType.RESULT_CONFLICT, ProblemType.SPEC_MISMATCH, ProblemType.NO_ARTIFACT)),
    Route("POST", f"{JOB}/deliver", Access.WORKER, "deliver",
        "Complete a waiting job with a bundle that its host kept", attempts.DeliverRequest, attempts.CompleteReply,
        (ProblemType.WRONG_STATE, ProblemType.SPEC_MISMATCH, ProblemType.NO_ARTIFACT)),
    Route("POST", f"{JOB}/fail", Access.WORKER, "fail",
        "Report that an attempt ended without a result, or hand the job back", attempts.FailRequest,
        attempts.StatusReply),
    Route("POST", f"{JOB}/log", Access.WORKER, "output",
        "Append lines of the trainer's output, also after the attempt", attempts.OutputRequest, attempts.OutputReply),
    Route("PUT", STATE, Access.WORKER, "announce_state",
        "Announce what a trainer saved; the answer names the missing pieces", reply=StateDraftReply, parameters=HOLDER,
        upload=True),
    Route("PUT", f"{STATE}/piece/{{sha256}}", Access.WORKER, "bring_state_piece",
        "Upload a piece of a saved state", parameters=HOLDER, upload=True, media=""),
    Route("PUT", f"{STATE}/pieces", Access.WORKER, "bring_state_pieces",
        "Upload many small pieces of a saved state in one body", parameters=HOLDER, upload=True, media=""),
    Route("POST", f"{STATE}/keep", Access.WORKER, "keep_state",
        "Keep a saved state as the job's newest, for its next attempt to resume from", StateKeepRequest, StateView,
        parameters=HOLDER),
    Route("GET", STATE, Access.WORKER, "state",
        "Get the listing of the job's newest saved state", parameters=HOLDER, media="application/json"),
    Route("GET", f"{STATE}/piece/{{sha256}}", Access.WORKER, "state_piece",
        "Download a piece of the job's newest saved state", parameters=HOLDER, media="application/octet-stream"),
    Route("PUT", "/v1/model/{job_id}", Access.WORKER, "upload",
        "Upload a bundle, or the rest of one", reply=attempts.UploadReply,
        problem_types=(ProblemType.WRONG_STATE, ProblemType.RESULT_CONFLICT, ProblemType.OFFSET_MISMATCH,
        ProblemType.NO_ARTIFACT), parameters=(*UPLOAD, HEADER_OFFSET), upload=True),
    Route("GET", SET, Access.FETCHER, "dataset", "Get a data set's listing", media="application/json"),
)  # fmt: skip

WORKERS = {route.name: route for route in WORKER_ROUTES}

"""The route table: every endpoint once, with its callers, its messages and its refusals.

Starlette's routes, the access policy and the OpenAPI document (except for the pages) are made from this table. A new
route is a row here and, in one of the endpoint modules of the HTTP layer, the function named like its operation.
"""

from training.fleet.wire import attempts, views
from training.fleet.wire import messages as wire
from training.fleet.wire.constants import ProblemType
from training.fleet.wire.forecasts import ForecastReply, ForecastRequest
from training.fleet.wire.incident_messages import IncidentsReply, IncidentView, JudgeRequest, WatchReply, WatchRequest
from training.fleet.wire.plans import PlanReply, PlanRequest
from training.fleet.wire.worker_routes import HTML, JOB, SET, UPLOAD, WORKER_ROUTES, Access, DashboardPage, Route

__all__ = ["HTML", "NAMED", "ROUTES", "Access", "DashboardPage", "Route", "refusals"]

_PAGE = ("after", "limit")
_STATE = (ProblemType.WRONG_STATE,)
_PLAIN = (ProblemType.NO_AUTHORITY,)
_PLAN = (ProblemType.BAD_MANIFEST,)
_NONE = (ProblemType.NO_ARTIFACT,)
_NAMED = (ProblemType.UNKNOWN_NAME,)

ROUTES: tuple[Route, ...] = (
    *WORKER_ROUTES,
    Route("HEAD", "/v1/model/{job_id}", Access.READER, "probe",
        "Get the offset of an upload; without a claim, check that a bundle exists",
        problem_types=(ProblemType.LEASE_SUPERSEDED, ProblemType.WRONG_STATE, ProblemType.JOB_CANCELLED,
        ProblemType.RESULT_CONFLICT, ProblemType.NO_ARTIFACT, ProblemType.HOST_MISMATCH),
        parameters=(*UPLOAD, "Range")),
    Route("GET", "/v1/model/{job_id}", Access.READER, "model",
        "Download the bundle of a completed job", problem_types=_NONE, parameters=("Range", "attempt")),
    Route("GET", "/v1/jobs", Access.ANYONE, "jobs",
        "List the jobs, page by page", reply=views.JobsReply,
        parameters=("status", "model", "mode", "host", "q", *_PAGE)),
    Route("GET", "/v1/jobs/{job_id}", Access.READER, "job_by_name",
        "Get a job; the same as /v1/job/{job_id}", reply=views.JobDetail),
    Route("GET", JOB, Access.READER, "job", "Get a job with its attempts and events", reply=views.JobDetail),
    Route("GET", f"{JOB}/log", Access.READER, "log",
        "Read the output of an attempt", reply=views.LogReply, parameters=("after", "attempt")),
    Route("GET", f"{JOB}/log/text", Access.READER, "log_text",
        "Read the whole output of an attempt as text", parameters=("attempt",), media="text/plain"),
    Route("GET", f"{JOB}/curve", Access.READER, "curve",
        "Get a job's curve: loss and metric by epoch, and what its trainer used", reply=views.CurveReply,
        parameters=("attempt", "points")),
    Route("GET", f"{JOB}/report", Access.READER, "report",
        "Download the report of a completed job, as its trainer wrote it", problem_types=_NONE, parameters=("attempt",),
        media="application/json"),
    Route("GET", "/v1/models", Access.READER, "models",
        "List the models that were judged on one test, the best first", reply=views.ModelsReply,
        parameters=("test", "after:model", "limit")),
    Route("GET", f"{JOB}/explain", Access.READER, "explain",
        "Explain why a job does not run, host by host", reply=views.ExplainReply),
    Route("GET", "/v1/workers", Access.ANYONE, "workers",
        "List the hosts, page by page", reply=views.WorkersReply, parameters=("after:host", "limit")),
    Route("GET", "/v1/speeds", Access.ANYONE, "speeds",
        "List how long jobs take on each host, as learned", reply=wire.SpeedsReply),
    Route("GET", "/v1/forecast", Access.READER, "forecast",
        "Forecast which host trains which job when, and when all jobs are done", reply=ForecastReply),
    Route("POST", "/v1/forecast", Access.READER, "forecast_of",
        "Forecast for other hosts, or for a given plan; no command in it is run", ForecastRequest, ForecastReply,
        (ProblemType.BAD_MANIFEST, ProblemType.UNKNOWN_NAME)),
    Route("POST", "/v1/watch", Access.REPORTER, "watch",
        "Report that this host is watched, or an incident", WatchRequest, WatchReply),
    Route("GET", "/v1/incidents", Access.READER, "incidents",
        "List the incidents of watched hosts, their changes among them, the newest first", reply=IncidentsReply,
        parameters=("host:watched", "before", "limit")),
    Route("POST", "/v1/incidents/{number}/judge", Access.OPERATOR, "judge",
        "Record a person's verdict on an incident, or close a change", JudgeRequest, IncidentView, _STATE),
    Route("GET", "/v1/health", Access.MEMBER, "health", "Check the receiver's health", reply=views.HealthReply),
    Route("POST", f"{JOB}/cancel", Access.OPERATOR, "cancel",
        "Cancel a job until it is requeued", reply=attempts.MovedReply, problem_types=_STATE, parameters=("removed",)),
    Route("POST", f"{JOB}/requeue", Access.OPERATOR, "requeue",
        "Queue a job again", reply=attempts.MovedReply, problem_types=_STATE),
    Route("POST", f"{JOB}/hold", Access.OPERATOR, "hold",
        "Hold a job: no host gets it until it is unheld; a running attempt continues", reply=attempts.MovedReply,
        problem_types=_STATE),
    Route("POST", f"{JOB}/unhold", Access.OPERATOR, "unhold",
        "End the hold on a job", reply=attempts.MovedReply, problem_types=_STATE),
    Route("POST", "/v1/act", Access.OPERATOR, "act_on_jobs",
        "Preview an act on all jobs that match a filter; do it when the request names their number", wire.ActRequest,
        wire.ActReply, _STATE),
    Route("POST", "/v1/workers/{host_id}/release", Access.OPERATOR, "release",
        "Release a host from quarantine", reply=wire.ReleaseReply, problem_types=_STATE),
    Route("POST", "/v1/workers/{host_id}/pause", Access.OPERATOR, "pause",
        "Pause a host: its trainers are suspended, and it gets no jobs", reply=wire.HostOrderReply),
    Route("POST", "/v1/workers/{host_id}/drain", Access.OPERATOR, "drain",
        "Drain a host: it gets no jobs; what it trains runs to its end, or is handed back", reply=wire.HostOrderReply,
        parameters=("now",)),
    Route("POST", "/v1/workers/{host_id}/resume", Access.OPERATOR, "resume",
        "Resume a host that is paused or drained", reply=wire.HostOrderReply, problem_types=_STATE),
    Route("POST", "/v1/workers/{host_id}/accept", Access.OPERATOR, "accept",
        "Complete jobs by a host's unconfirmed work", reply=wire.DecisionReply, problem_types=_STATE,
        parameters=("all",)),
    Route("POST", "/v1/workers/{host_id}/refuse", Access.OPERATOR, "refuse",
        "Refuse a host's unconfirmed work; its worker sets it aside", reply=wire.DecisionReply, problem_types=_STATE,
        parameters=("all",)),
    Route("POST", "/v1/manifest/reload", Access.OPERATOR, "reload",
        "Reload the manifest", reply=wire.ReloadReply, problem_types=_PLAN),
    Route("GET", "/v1/manifest/plan", Access.READER, "plan",
        "Preview what a reload of the manifest would change", reply=PlanReply, problem_types=_PLAN),
    Route("POST", "/v1/manifest/plan", Access.READER, "plan_of",
        "Preview what a reload of a given plan would change; no command in it is run", PlanRequest, PlanReply, _PLAN),
    Route("GET", "/v1/authority", Access.JOINING, "authority",
        "Get the receiver's certificate authority, to be checked by its fingerprint", reply=wire.AuthorityReply,
        problem_types=_PLAIN),
    Route("GET", "/v1/wheel", Access.JOINING, "wheel",
        "Get the program's wheel, to be checked by the SHA-256 of an invitation", problem_types=_PLAIN,
        media="application/zip"),
    Route("POST", "/v1/join", Access.JOINING, "join",
        "Get a certificate for a one-time code", wire.JoinRequest, wire.CertificateReply,
        (ProblemType.NO_AUTHORITY, ProblemType.JOIN_REFUSED, ProblemType.TOO_MANY_FAILURES)),
    Route("POST", "/v1/renew", Access.OWNER, "renew",
        "Renew the certificate of this connection", wire.RenewRequest, wire.CertificateReply, _PLAIN),
    Route("POST", "/v1/invitations", Access.OPERATOR, "invite",
        "Make a one-time code for a name in a role", wire.InviteRequest, wire.InviteReply, _PLAIN),
    Route("POST", "/v1/revoke", Access.OPERATOR, "revoke",
        "Revoke the certificates and codes of a name in a role", wire.RevokeRequest, wire.RevokeReply,
        _NAMED),
    Route("GET", "/v1/certificates", Access.OPERATOR, "certificates",
        "List the certificates", reply=wire.CertificatesReply),
    Route("GET", "/v1/tokens", Access.OPERATOR, "tokens",
        "List the tokens, without their secrets", reply=wire.TokensReply),
    Route("POST", "/v1/tokens", Access.OPERATOR, "add_token",
        "Make an operator's or a reader's token", wire.TokenRequest, wire.TokenReply, _STATE),
    Route("POST", "/v1/tokens/revoke", Access.OPERATOR, "revoke_token",
        "Revoke one token of a name, or all", wire.TokenRevokeRequest, wire.TokenRevokeReply, _NAMED),
    Route("GET", "/v1/audit", Access.OPERATOR, "audit",
        "Read the audit: who did what", reply=wire.AuditReply, parameters=_PAGE),
    Route("GET", "/v1/gc", Access.READER, "gc",
        "List what the plan's retention would delete now, and why", reply=views.GcReply),
    Route("POST", "/v1/gc", Access.OPERATOR, "gc_now",
        "Delete what retention no longer keeps; repeat while `more` is true", reply=views.GcReply),
    Route("GET", "/v1/notify", Access.OPERATOR, "notify",
        "List the channels for notices, and how far each has got", reply=wire.NotifyReply),
    Route("POST", "/v1/notify/test", Access.OPERATOR, "notify_test",
        "Send a test message on one channel, or on all", wire.NotifyTestRequest, wire.NotifyTestReply, _NAMED),
    Route("GET", "/v1/datasets", Access.ANYONE, "datasets", "List the data sets", reply=wire.DatasetsReply),
    Route("PUT", SET, Access.OPERATOR, "announce_dataset",
        "Announce a data set; the answer names missing pieces", reply=wire.DatasetDraftReply, upload=True),
    Route("PUT", f"{SET}/piece/{{sha256}}", Access.OPERATOR, "bring_piece", "Upload a piece", upload=True, media=""),
    Route("PUT", f"{SET}/pieces", Access.OPERATOR, "bring_pieces",
        "Upload many small pieces in one body", upload=True, media=""),
    Route("GET", f"{SET}/piece/{{sha256}}", Access.FETCHER, "piece",
        "Download a piece", media="application/octet-stream"),
    Route("POST", f"{SET}/publish", Access.OPERATOR, "publish_dataset",
        "Publish a data set, under a name if one is given", wire.DatasetPublishRequest, wire.DatasetPublishReply),
    Route("POST", f"{SET}/remove", Access.OPERATOR, "remove_dataset",
        "Remove a data set", reply=wire.DatasetRemoveReply, problem_types=_STATE),
    Route("POST", f"{SET}/unname", Access.OPERATOR, "unname_dataset",
        "Free one of a data set's names", wire.DatasetUnnameRequest, wire.DatasetView, _STATE),
    Route("GET", "/metrics", Access.ANYONE, "metrics", "Get the figures for Prometheus", media="text/plain"),
    Route("GET", "/v1/openapi.json", Access.ANYONE, "openapi", "Get the OpenAPI document", reply=dict),
    Route("GET", "/", Access.ANYONE, "fleet_page",
        "Show the fleet", media=HTML, shown=DashboardPage("Fleet", outlook=True)),
    Route("GET", "/jobs", Access.ANYONE, "jobs_page",
        "Show the jobs that match filters", media=HTML, shown=DashboardPage("Jobs", ("status", "after", "all"))),
    Route("GET", "/jobs/{job_id}", Access.READER, "job_page",
        "Show a job", parameters=("attempt",), media=HTML, shown=DashboardPage()),
    Route("GET", "/hosts/{host_id}", Access.READER, "host_page",
        "Show a host", problem_types=_NAMED, media=HTML, shown=DashboardPage(outlook=True)),
    Route("GET", "/compare", Access.READER, "compare_page",
        "Show jobs side by side", problem_types=(ProblemType.UNKNOWN_JOB,), media=HTML,
        shown=DashboardPage(links=("jobs",))),
    Route("GET", "/models", Access.READER, "models_page",
        "Show the models that were judged on one test, the best first", media=HTML,
        shown=DashboardPage("Models", ("test", "after"))),
    Route("GET", "/incidents", Access.READER, "incidents_page",
        "Show the incidents of watched hosts", media=HTML, shown=DashboardPage("Incidents", ("host", "before"))),
    Route("GET", "/events", Access.READER, "events_page",
        "Show what happened, newest first", media=HTML, shown=DashboardPage("Events", ("before",))),
    Route("POST", "/incidents", Access.OPERATOR, "judge_on_page",
        "Record a person's verdict on an incident, or close a change", problem_types=(*_NAMED, *_STATE), media=HTML),
    Route("GET", "/act", Access.OPERATOR, "act_page",
        "Show which jobs an act would move, and what is lost, before it is done", media=HTML),
    Route("POST", "/act", Access.OPERATOR, "act",
        "Do what the form says, unless the jobs have changed since the question", media=HTML),
    Route("GET", "/login", Access.JOINING, "login_page", "Show the form for a token", media=HTML),
    Route("POST", "/login", Access.JOINING, "login", "Turn a token into a session of this browser", media=HTML),
    Route("POST", "/logout", Access.JOINING, "logout", "End the session of this browser", media=HTML),
    Route("GET", "/static/{file}", Access.JOINING, "static_file",
        "Get a style sheet, script or picture of the pages", media=""),
)  # fmt: skip
PAGES = {row.name.removesuffix("_page"): row for row in ROUTES if row.shown is not None}  # by module

NAMED = {route.name: route for route in ROUTES}

# -- refusals by kind of endpoint -----------------------------------------------------------------------------------

_EVERYWHERE = (
    ProblemType.BAD_REQUEST, ProblemType.REQUEST_TIMEOUT, ProblemType.TOO_LARGE, ProblemType.MISDIRECTED,
    ProblemType.SLOW_DOWN, ProblemType.INTERNAL, ProblemType.SHUTTING_DOWN, ProblemType.UNAVAILABLE,
)  # fmt: skip
_SIGNED = (
    ProblemType.NO_CERTIFICATE, ProblemType.CERTIFICATE_IDENTITY, ProblemType.CERTIFICATE_UNKNOWN,
    ProblemType.CERTIFICATE_REVOKED, ProblemType.CERTIFICATE_EXPIRED, ProblemType.PROXY_IDENTITY,
    ProblemType.OPERATOR_TOKEN, ProblemType.TOO_MANY_FAILURES,
)  # fmt: skip
_HOSTS = (*_SIGNED, ProblemType.WRONG_ROLE, ProblemType.HOST_MISMATCH)
_FETCHED = (ProblemType.UNKNOWN_DATASET, ProblemType.INCOMPLETE_DATASET, ProblemType.NOT_YOURS)
_BY_ACCESS = {
    Access.ANYONE: (*_SIGNED, ProblemType.WRONG_ROLE),
    Access.FETCHER: (*_SIGNED, ProblemType.WRONG_ROLE, *_FETCHED),
    **dict.fromkeys((Access.OPERATOR, Access.MEMBER, Access.OWNER), _SIGNED),
    Access.REPORTER: _HOSTS,
    Access.WORKER: (*_HOSTS, ProblemType.LEASE_SUPERSEDED, ProblemType.JOB_CANCELLED),
    Access.READER: (*_SIGNED, ProblemType.WRONG_ROLE, ProblemType.NOT_YOURS),
    Access.JOINING: (),
}
# By a part of the path.
_BY_PATH = {
    "{job_id}": (ProblemType.UNKNOWN_JOB,),
    "{host_id}": _NAMED,
    "{number}": _NAMED,
    f"{SET}/": _FETCHED,
    "{state_id}": (ProblemType.UNKNOWN_STATE, ProblemType.UNKNOWN_DATASET, ProblemType.INCOMPLETE_DATASET),
    "{": (ProblemType.NOT_FOUND,),  # a name with a slash in it is another path
}
_SAFE = frozenset({"GET", "HEAD"})


def refusals(route: Route) -> tuple[ProblemType, ...]:
    """Return the problem types with which this endpoint may refuse a request."""
    found = [*route.problem_types, *_EVERYWHERE, *_BY_ACCESS[route.access]]
    found += [each for part, problem_types in _BY_PATH.items() if part in route.path for each in problem_types]
    if route.method not in _SAFE:
        found += [ProblemType.ORIGIN_REFUSED, ProblemType.DISK_FULL]
    if route.upload:
        found.append(ProblemType.WRONG_DIGEST)
    return tuple(problem_type for problem_type in ProblemType if problem_type in found)

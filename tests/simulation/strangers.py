"""Strangers at the receiver's address: servers that answer in its place for a while, and their answers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from simulation.network import Request
from training.fleet.client.transport import Response
from training.fleet.wire.constants import HEADER_DATABASE, ProblemType

Stranger = Callable[[Request], Response]
_PAGE = {"content-type": "text/html", "server": "nginx/1.24.0", "location": "https://login.example/"}
_STATUSES = (200, 302, 400, 401, 403, 404, 409, 410, 413, 429, 502, 503)
_OTHER = {HEADER_DATABASE.lower(): "f" * 32}


def drawn(chance: random.Random) -> tuple[str, Stranger]:
    """One of them, with a word for the timeline: one that answers all with a page, or another, empty database."""
    number = chance.randrange(len(_STATUSES) + 3)
    if number >= len(_STATUSES):
        return "another database", another_database
    return f"a page with {_STATUSES[number]}", lambda _: Response(_STATUSES[number], _PAGE, b"<html>")


def another_database(request: Request) -> Response:
    """A receiver that was started with a wrong --db: the plan is not there either."""
    if request.path == "/v1/job/claim":
        return Response(200, _OTHER, json.dumps({"job_id": None, "reason": "no job"}).encode())
    problem_type = ProblemType.UNKNOWN_JOB
    if request.method == "HEAD":
        return Response(problem_type.status, {**_OTHER, "x-problem": problem_type.value})
    body = {"type": problem_type.value, "status": problem_type.status, "detail": "no such job", "title": ""}
    return Response(problem_type.status, _OTHER, json.dumps(body).encode())

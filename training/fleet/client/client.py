"""Typed calls to the receiver, over the standard library's HTTP, with one retry table.

In the simple form the client remembers what is needed: ``claim`` keeps the claim's id, heartbeats number themselves,
and an upload asks the receiver from which byte to resume::

    client = FleetClient("http://10.100.0.1:8445", host_id="office-print")
    grant = client.claim(capability)
    client.heartbeat(grant.job_id)
    artifact_id = client.upload_artifact(grant.job_id, "gbt_oracle-….tar.zst")
    client.complete(grant.job_id, artifact_id=artifact_id)

Tests pass their own transport, randomness and sleep. Several threads may call one client.

An answer is ignored unless its header has the id of the receiver's database. For a call about a claim, only answers of
the database that granted the claim count. The client remembers the granting database of its own claims; for other
claims, ``client.about(database_id)`` names that database. For calls about no claim, only answers of the database that
answered this client first count. With ``one_database=False``, as in a worker, any database may answer calls about no
claim.

Most calls take the members of their request by name. ``claim`` and ``ask`` take the capability as a dict; ``watch``,
``act``, ``plan`` and ``forecast`` take one dict. A worker's call about a job, except an upload, returns a message of
:mod:`training.fleet.wire`: ``answer.job_id`` is ``answer["job_id"]`` too, and ``to_dict()`` returns the message as a
dict. Most operators' calls return a dict, as docs/protocol.md shows it; ``cancel``, ``requeue``, ``hold`` and
``unhold`` return a message.

A call that fails raises a kind of ClientError, such as Unreachable, Unavailable or Refused;
:mod:`training.fleet.client.answers` says when. If a file cannot be read or written, the call raises OSError.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import random
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from training.files import file_sha256
from training.fleet.client.address import Address
from training.fleet.client.answers import (
    Answered,
    Cancelled,
    ClientError,
    Damaged,
    Fetched,
    Refused,
    Stranger,
    Superseded,
    Unavailable,
    Unreachable,
    decoded,
)
from training.fleet.client.bundles import Progress, deliver, fetch, upload
from training.fleet.client.datasets import DatasetCalls, StateCalls
from training.fleet.client.retry import Caller, address, encoded
from training.fleet.client.strangers import shown_by
from training.fleet.client.transport import HttpTransport, Transport
from training.fleet.wire.attempts import (
    ClaimReply,
    ClaimRequest,
    CompleteReply,
    CompleteRequest,
    DeliverRequest,
    FailRequest,
    Grant,
    HeartbeatReply,
    HeartbeatRequest,
    LogLines,
    MovedReply,
    OutputReply,
    OutputRequest,
    StatusReply,
)
from training.fleet.wire.constants import HEADER_CLAIM_ID, HEADER_HOST_ID, HEADER_OPERATOR_TOKEN, HEADER_SHA256
from training.strict_json import Json, JsonObject

__all__ = [
    "Answered",
    "Cancelled",
    "ClientError",
    "Damaged",
    "Fetched",
    "FleetClient",
    "Grant",
    "Refused",
    "Stranger",
    "Superseded",
    "Unavailable",
    "Unreachable",
    "file_sha256",
]
Report = HeartbeatRequest | FailRequest | CompleteRequest | OutputRequest
R = TypeVar("R")


@dataclasses.dataclass
class _Held:
    """A claim that this client made, as the client remembers it."""

    claim_id: str | None = None
    granted_by: str | None = None  # the database
    seq: int = 0  # of its last heartbeat
    log_next: int = 0  # number of its next output line


class _Claims:
    """The claims that this client made, by job. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, _Held] = {}

    def of(self, job_id: str, claim_id: str | None = None) -> _Held:
        """Return what is remembered of the claim ``claim_id``, by default of the last claim on the job. An unknown
        claim is remembered from now on."""
        with self._lock:
            known = self._held.get(job_id)
            if known is None or claim_id not in (None, known.claim_id):
                known = self._held[job_id] = _Held(claim_id, None if known is None else known.granted_by)
            return known

    def granted(self, grant: Grant) -> None:
        with self._lock:
            self._held[grant.job_id] = _Held(grant.claim_id, grant.database_id)

    def over(self, job_id: str) -> None:
        with self._lock:
            self._held.pop(job_id, None)

    def beat(self, held: _Held, lines: Sequence[str], members: Json) -> HeartbeatRequest:
        """Make the next heartbeat of a claim: with the next number, and its output lines numbered from the first line
        that the receiver lacks."""
        with self._lock:
            held.seq += 1
            log = LogLines(first=held.log_next, lines=list(lines)) if lines else None
            return HeartbeatRequest(**{"seq": held.seq, "log": log, **members})


def _call(name: str) -> Callable[..., JsonObject]:
    """Make a method for a call of the route table. The method takes the parts of the path in order, then parameters and
    members by name, and returns a dict."""
    return lambda self, *parts, **given: self.call(name, *parts, **given)


def _move(name: str) -> Callable[..., MovedReply]:
    """Make a method for an operator's call that changes a job's state; the method returns the message."""
    return lambda self, *parts, **given: self._caller.call(name, *parts, **given)


class FleetClient:
    """Calls to one receiver. ``tries`` bounds how often a call is sent (None: no bound); most calls take a ``tries`` of
    their own (None: the client's).

    A worker's call names the claim by ``claim_id``; without it, the id of this client's last ``claim`` on the job is
    used.
    """

    def __init__(
        self,
        base_url: str,
        host_id: str | None = None,
        *,
        operator_token: str | None = None,
        transport: Transport | None = None,
        tls: ssl.SSLContext | None = None,
        tries: int | None = 3,
        timeout_s: float = 30.0,
        answer_s: float | None = None,
        chance: Callable[[], float] = random.random,
        sleep: Callable[[float], object] = time.sleep,
        one_database: bool = True,
    ) -> None:
        self.base_url = base_url
        self.host_id = host_id
        self._close: Callable[[], None] = lambda: None
        if transport is None:
            transport = http = HttpTransport(base_url, tls=tls, answer_s=answer_s)
            self._close = http.close
            if operator_token and not Address.of(base_url).private:
                raise ValueError(
                    f"the operator's token would travel unencrypted to {base_url}; use the receiver's https address, "
                    "or a tunnel to 127.0.0.1"
                )
        self._caller = Caller(
            transport=transport,
            base_url=base_url,
            headers={} if not operator_token else {HEADER_OPERATOR_TOKEN: _token(operator_token)},
            tries=tries,
            timeout_s=timeout_s,
            chance=chance,
            sleep=sleep,
            first={} if one_database else None,
        )
        self._claims = _Claims()

    def close(self) -> None:
        """Close the idle connections; the client stays usable."""
        self._close()

    def about(self, database_id: str | None) -> FleetClient:
        """Return a copy of this client for calls about a grant of the database ``database_id``: answers of other
        databases are ignored."""
        new = copy.copy(self)
        new._caller = dataclasses.replace(self._caller, granted_by=database_id)  # noqa: SLF001 - of the same class
        return new

    # -- workers ------------------------------------------------------------------------------------------------

    def claim(self, capability: Json, **members: Any) -> Grant | None:
        """Ask for a job; return its grant, or None if there is none now. The arguments are those of :meth:`ask`, whose
        answer also has the reason."""
        answer = self.ask(capability, **members)
        return answer if isinstance(answer, Grant) else None

    def ask(self, capability: Json, *, tries: int | None = None, **members: Any) -> ClaimReply:
        """Ask for a job (``ClaimRequest``). The answer is a :class:`Grant` if there is a job, else a ``ClaimReply``
        with the reason.

        ``request_id`` makes the request repeatable: after a lost answer the same id gets the same grant. By default
        each call makes a new ``request_id``.
        """
        members = {"host_id": self.host_id, "request_id": os.urandom(16).hex()} | members
        request = ClaimRequest(capability=dict(capability), **members)
        return self._caller.again(lambda: self._ask_once(request), tries)

    def _ask_once(self, request: ClaimRequest) -> ClaimReply:
        timeout_s = self._caller.timeout_s + request.wait_s
        came = self._caller.send("POST", address("claim"), body=encoded(request), timeout_s=timeout_s)
        reply = decoded(came, ClaimReply)
        if reply.job_id is None:
            return reply
        grant = replace(decoded(came, Grant), database_id=shown_by(came))
        self._claims.granted(grant)
        return grant

    def heartbeat(
        self, job_id: str, message: HeartbeatRequest | None = None, *, lines: Sequence[str] = (), **members: Any
    ) -> HeartbeatReply:
        """Renew the lease; report progress, the use of the host and output (``HeartbeatRequest``, whole or by members).

        A heartbeat that is given by members gets its number automatically; its ``lines`` must begin with the line whose
        number is ``log_next`` of the last answer (the first: 0).
        """
        tries, held = members.pop("tries", None), self._claims.of(job_id, members.get("claim_id"))
        message = message or self._claims.beat(held, lines, members)
        reply = self._report("heartbeat", HeartbeatReply, job_id, message, tries)
        held.log_next = reply.log_next
        return reply

    def fail(
        self, job_id: str, message: FailRequest | None = None, *, tries: int | None = None, **members: Any
    ) -> StatusReply:
        """End the attempt without an artifact, or give the job back (``FailRequest``, whole or by members)."""
        return self._report("fail", StatusReply, job_id, message or FailRequest(**members), tries, over=True)

    def complete(
        self, job_id: str, message: CompleteRequest | None = None, *, tries: int | None = None, **members: Any
    ) -> CompleteReply:
        """Complete the job with an artifact that was uploaded before (``CompleteRequest``); the receiver first hashes
        the artifact again."""
        return self._report("complete", CompleteReply, job_id, message or CompleteRequest(**members), tries, over=True)

    def output(
        self, job_id: str, message: OutputRequest | None = None, *, tries: int | None = None, **members: Any
    ) -> OutputReply:
        """Send output lines of an attempt, also after its end; the answer has the number of the first line that the
        receiver lacks."""
        return self._report("output", OutputReply, job_id, message or OutputRequest(**members), tries)

    def upload_artifact(
        self,
        job_id: str,
        path: str | os.PathLike[str],
        *,
        claim_id: str | None = None,
        sha256: str | None = None,
        progress: Progress | None = None,
        tries: int | None = None,
    ) -> str:
        """Upload a bundle, from the receiver's offset on, and return its artifact id.

        ``progress`` is called with the bytes done and the size. After a try that began further into the file than all
        before, the failures are counted from the beginning again.
        """
        held = self._claims.of(job_id, claim_id)
        named = {HEADER_CLAIM_ID: claim_id or held.claim_id, HEADER_HOST_ID: self.host_id}
        headers = {name: value for name, value in named.items() if value is not None}
        headers[HEADER_SHA256] = sha256 or file_sha256(Path(path))
        return upload(self._about(held), job_id, headers, Path(path), progress, tries)

    def deliver(self, job_id: str, path: str | os.PathLike[str], **members: Any) -> CompleteReply:
        """Complete a waiting job with a bundle that was kept on this host (``DeliverRequest``); the bytes are uploaded
        only if the receiver lacks them."""
        return deliver(self._caller, job_id, DeliverRequest(host_id=self.host_id or "", **members), Path(path))

    def watch(self, told: Json) -> JsonObject:
        """Report that this host is watched, with an incident if ``told`` has one; ``told`` is a ``WatchRequest``
        without the host."""
        return self.call("watch", body={"host_id": self.host_id, **told})

    @property
    def datasets(self) -> DatasetCalls:
        """Return the object for calls about data sets, over this client's connections."""
        return DatasetCalls(self._caller)

    def state(self, job_id: str, claim_id: str) -> StateCalls:
        """Return the object for calls about the saved state of a job on which this host holds a live claim."""
        return StateCalls(self._caller, job_id, claim_id, self.host_id)

    # -- operators and readers ----------------------------------------------------------------------------------
    # A job is named by its name, its id or a unique prefix of that.

    def call(self, name: str, /, *parts: object, **given: Any) -> JsonObject:
        """Make the call ``name`` of the route table; return its reply as a dict. ``parts`` fill its path in order;
        ``given`` has parameters and members."""
        reply = self._caller.call(name, *parts, **given)
        return reply if isinstance(reply, dict) else reply.to_dict()

    jobs, job, explain, log, curve = (_call(name) for name in ("jobs", "job", "explain", "log", "curve"))
    models, speeds, health = (_call(name) for name in ("models", "speeds", "health"))
    incidents, judge = _call("incidents"), _call("judge")
    cancel, requeue, hold, unhold = (_move(name) for name in ("cancel", "requeue", "hold", "unhold"))
    release, pause_host, drain, resume_host = (_call(name) for name in ("release", "pause", "drain", "resume"))
    reload, gc, gc_now = _call("reload"), _call("gc"), _call("gc_now")
    notify, notify_test = _call("notify"), _call("notify_test")

    def all_jobs(self, *, status: str | None = None) -> Iterator[JsonObject]:
        """Iterate over all jobs (``JobView`` as a dict), or those of one ``status``, page by page."""
        after: int | None = 0
        while after is not None:
            page = self.jobs(status=status, after=after, limit=1000)
            yield from page["jobs"]
            after = page["next_after"]

    def workers(self) -> JsonObject:
        """Get all hosts that the receiver knows: one ``WorkersReply``, as a dict, with the hosts of all pages."""
        answer = self.call("workers")
        while after := answer["next_after"]:
            page = self.call("workers", after=after)
            answer = {**page, "workers": answer["workers"] + page["workers"]}
        return answer

    def act(self, what: str, wanted: Mapping[str, str], jobs: int | None = None) -> JsonObject:
        """Preview the act ``what`` on all jobs that match the filter ``wanted``; return the ``ActReply`` as a dict.
        With ``jobs``, which must be the previewed number of jobs, carry the act out."""
        return self.call("act_on_jobs", what=what, jobs=jobs, **wanted)

    def plan(self, given: Json | None = None) -> JsonObject:
        """Return, as a dict, the ``PlanReply``: what a reload of the receiver's manifest would change, or a reload of
        the plan ``given`` (a ``PlanRequest``)."""
        return self.call("plan") if given is None else self.call("plan_of", body=given)

    def forecast(self, question: Json | None = None) -> JsonObject:
        """Ask which host will train which job when; return the ``ForecastReply`` as a dict. ``question``, a
        ``ForecastRequest``, may suppose other hosts or another plan."""
        return self.call("forecast") if question is None else self.call("forecast_of", body=question)

    def get_model(
        self, ref: str, path: str | os.PathLike[str], *, attempt: int | None = None, progress: Progress | None = None
    ) -> Fetched:
        """Fetch a completed job's bundle to ``path``, which appears only when its SHA-256 is verified.

        ``attempt`` selects that attempt's bundle, even if the job was requeued since.
        """
        of = "" if attempt is None else f"?attempt={attempt}"
        return fetch(self._caller, address("model", ref) + of, Path(path), progress)

    def get_page(self, address: str) -> bytes:
        """Return the bytes of one of the dashboard's pages or files; ``address`` is the path of its URL."""
        return self._caller.again(lambda: self._caller.send("GET", address, headers={"Accept": "*/*"}), None).body

    # -- inside -------------------------------------------------------------------------------------------------

    def _about(self, held: _Held) -> Caller:
        return (
            self._caller if self._caller.granted_by else dataclasses.replace(self._caller, granted_by=held.granted_by)
        )

    def _report(
        self, name: str, _reply: type[R], job_id: str, message: Report, tries: int | None, *, over: bool = False
    ) -> R:
        """Send a worker's message about a job under its claim; with ``over``, forget the claim once the receiver has
        accepted the message."""
        held = self._claims.of(job_id, message.claim_id)
        message = replace(message, host_id=self.host_id, claim_id=held.claim_id)
        reply: R = self._about(held).call(name, job_id, body=message, tries=tries)
        if over:
            self._claims.over(job_id)
        return reply


def _token(token: str) -> str:
    """Encode the token for a header: its UTF-8 bytes, each as one character."""
    if not token.strip().isprintable():
        raise ValueError("the operator token has a line break or another unprintable character in it; set it again")
    return token.strip().encode().decode("latin-1")

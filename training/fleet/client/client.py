"""Typed calls to the receiver, over the standard library only, with one retry table.

The simple form remembers what it must: ``claim`` keeps the claim's id, heartbeats number themselves, an upload asks
first how much is there and goes on from it::

    client = FleetClient("http://10.100.0.1:8445", host_id="office-print")
    grant = client.claim(capability)
    client.heartbeat(grant.job_id)
    artifact_id = client.upload_artifact(grant.job_id, "gbt_oracle-….tar.zst")
    client.complete(grant.job_id, artifact_id=artifact_id)

Transport, chance and sleep are injected. Safe to call from several threads.

An answer counts only with the id of its database. About a claim it must be the database that granted it: the client
remembers that of its own claims, and is told of others' with ``client.about(database_id)``. About anything else it
must be the one that answered this client first; a worker's client, which lives for months, may take jobs from another.

What a call raises is drawn at the top of :mod:`training.fleet.client.answers`: Unreachable, Unavailable, Refused,
Superseded, Cancelled, all of them ClientError. A file that cannot be read or written is the OSError it is.
"""

from __future__ import annotations

import copy
import os
import random
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from training import strict_json
from training.files import file_sha256
from training.fleet.client.address import Address
from training.fleet.client.answers import (
    Answered,
    Cancelled,
    ClientError,
    Damaged,
    Fetched,
    Grant,
    Heartbeat,
    Moved,
    NoWork,
    OutputKept,
    Receipt,
    Refused,
    Stranger,
    Superseded,
    Unavailable,
    Unreachable,
    Verdict,
    backoff_s,
    holding,
    json_object,
    typed,
    verdict,
)
from training.fleet.client.bundles import SLOW_S, Progress, Upload, fetch
from training.fleet.client.datasets import DatasetCalls, StateCalls
from training.fleet.client.retry import Caller
from training.fleet.client.strangers import shown_by
from training.fleet.client.transport import HttpTransport, Transport
from training.fleet.wire.constants import (
    HEADER_BY_HAND,
    HEADER_CLAIM_ID,
    HEADER_HOST_ID,
    HEADER_OPERATOR_TOKEN,
    HEADER_SHA256,
    ProblemType,
)
from training.fleet.wire.telemetry import NOTHING, Telemetry

__all__ = [
    "Answered",
    "Cancelled",
    "ClientError",
    "Damaged",
    "Fetched",
    "FleetClient",
    "Grant",
    "Heartbeat",
    "Moved",
    "NoWork",
    "OutputKept",
    "Receipt",
    "Refused",
    "Stranger",
    "Superseded",
    "Unavailable",
    "Unreachable",
    "Verdict",
    "backoff_s",
    "file_sha256",
    "verdict",
]
_ORDERED = ("host", "by", "jobs")  # what the answer to an order for a host holds


class FleetClient:
    """Calls to one receiver. ``tries`` bounds how often a call is sent (None: no bound); a call may override it.

    Worker calls name the claim by ``claim_id``; without it the one of the job's last ``claim`` is used.
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
        token = {} if not operator_token else {HEADER_OPERATOR_TOKEN: _token(operator_token)}
        self._caller = Caller(
            transport,
            base_url=base_url,
            headers=token,
            tries=tries,
            timeout_s=timeout_s,
            chance=chance,
            sleep=sleep,
            one_database=one_database,
        )
        self._lock = threading.Lock()
        self._claims: dict[str, str] = {}  # job → claim
        self._granted_by: dict[str, str | None] = {}  # job → database
        self._seq: dict[str, int] = {}  # claim → number of its last heartbeat
        self._log_next: dict[str, int] = {}  # claim → number of its next output line

    def close(self) -> None:
        """Close the idle connections; the client stays usable."""
        self._close()

    def about(self, database_id: str | None) -> FleetClient:
        """Return this client for calls about a grant of this database: no other's answer counts."""
        new = copy.copy(self)
        new._caller = self._caller.about(database_id)  # noqa: SLF001 - one of the same class
        return new

    # -- workers ------------------------------------------------------------------------------------------------

    def claim(self, capability: Mapping[str, Any], **how: Any) -> Grant | None:
        """Ask for a job: a grant, or None. Takes what :meth:`ask` takes, which also says why there is none."""
        answer = self.ask(capability, **how)
        return answer if isinstance(answer, Grant) else None

    def ask(
        self,
        capability: Mapping[str, Any],
        *,
        wait_s: float = 0.0,
        request_id: str | None = None,
        instance_id: str | None = None,
        session_id: str | None = None,
        slot: int = 0,
        trainer_digests: Mapping[str, str] | None = None,
        crashed_claims: Sequence[str] = (),
        echo: str | None = None,
        set_aside: Sequence[Mapping[str, Any]] = (),
        delivering: Sequence[str] = (),
        resting: str | None = None,
        training: Sequence[Mapping[str, Any]] = (),
        tries: int | None = None,
    ) -> Grant | NoWork:
        """Ask for a job; the receiver may take up to ``wait_s`` (30 at most) to find one.

        ``request_id`` makes the request repeatable: after a lost answer the same id gets the same grant. Without
        one, this call makes one for its own repetitions. ``crashed_claims`` are those of crashed
        sessions, ``delivering`` those of which only the bundle is still to be brought, ``training`` the others in hand
        with what memory their trainers hold (``claim_id``, ``ram_gib``, ``vram_gib``), ``set_aside`` the finished
        bundles on this host; ``echo`` is that of the last answer to this session, empty before the first. ``resting``
        is the condition of the host's owner for which it wants no job now: then there is none.
        """
        body = {
            "host_id": self.host_id,
            "capability": dict(capability),
            "instance_id": instance_id,
            "session_id": session_id,
            "slot": slot,
            "request_id": request_id or os.urandom(16).hex(),
            "wait_s": wait_s,
            "trainer_digests": dict(trainer_digests or {}),
            "crashed_claims": list(crashed_claims),
            "echo": echo,
            "set_aside": list(set_aside),
            "delivering": list(delivering),
            "resting": resting,
            "training": [dict(each) for each in training],
        }
        content, timeout_s = strict_json.dumps(body), self._caller.timeout_s + wait_s
        came = self._caller.again(
            lambda: self._caller.send("POST", "/v1/job/claim", body=content, timeout_s=timeout_s),
            tries,
        )
        answer = json_object(came)
        if answer.get("job_id") is None:
            reason = str(answer.get("reason") or "no job")
            said = (answer.get(name) for name in ("retry_after_s", "echo", "slots", "terms"))
            return NoWork(reason, *said)
        grant = typed(Grant, {**answer, "database_id": shown_by(came)})
        with self._lock:
            self._claims[grant.job_id] = grant.claim_id
            self._granted_by[grant.job_id] = grant.database_id
        return grant

    def heartbeat(
        self,
        job_id: str,
        *,
        claim_id: str | None = None,
        seq: int | None = None,
        progress: Mapping[str, Any] | None = None,
        usage: Mapping[str, Any] | None = None,
        lines: Sequence[str] = (),
        first_line: int | None = None,
        session_id: str | None = None,
        echo: str | None = None,
        resting: str | None = None,
        paused: bool = False,
        paused_s: float = 0.0,
        resumable: bool = False,
        next_data: Mapping[str, Any] | None = None,
        tries: int | None = None,
    ) -> Heartbeat:
        """Renew the lease; report progress, the use of the host (``Usage``) and output.

        ``paused``: the trainer stands still; ``paused_s``: for how long it has in all; ``resting`` as in :meth:`ask`;
        ``resumable``: its job can go on elsewhere, and is handed back when the answer says so.
        ``next_data`` says what data set was named as the next, and if it is fetched ahead (``NextDataHeard``).

        Lines are numbered from ``first_line``, else go on.
        """
        claim = self._claim_of(job_id, claim_id)
        key = claim or job_id
        with self._lock:
            if seq is None:
                seq = self._seq[key] = self._seq.get(key, 0) + 1
            first = self._log_next.get(key, 0) if first_line is None else first_line
        body = {
            **self._who(claim),
            "session_id": session_id,
            "echo": echo,
            "usage": None if usage is None else dict(usage),
            "resting": resting,
            "paused": paused,
            "paused_s": paused_s,
            "resumable": resumable,
            "next_data": None if next_data is None else dict(next_data),
            **Telemetry(seq=seq, progress=progress, first=first, lines=lines).members(),
        }
        caller = self._about(job_id)
        beat = typed(Heartbeat, self._post(_job(job_id, "heartbeat"), body, tries=tries, caller=caller))
        with self._lock:
            self._log_next[key] = beat.log_next
        return beat

    def fail(
        self,
        job_id: str,
        *,
        error: str,
        reason: str = "trainer_failed",
        claim_id: str | None = None,
        exit_code: int | None = None,
        out_of_memory: str | None = None,
        record: Mapping[str, Any] | None = None,
        telemetry: Telemetry = NOTHING,
        tries: int | None = None,
    ) -> Moved:
        """End the attempt without an artifact, or hand the job back (``reason="worker_shutdown"``).

        ``out_of_memory`` is ``ram`` or ``vram``, when that ended it; ``telemetry`` counts as a heartbeat's.
        """
        body = {
            **self._who(self._claim_of(job_id, claim_id)),
            "error": error,
            "reason": reason,
            "exit_code": exit_code,
            "out_of_memory": out_of_memory,
            "record": None if record is None else dict(record),
            **telemetry.members(),
        }
        caller = self._about(job_id)
        moved = typed(Moved, self._post(_job(job_id, "fail"), body, tries=tries, caller=caller))
        self._forget(job_id)
        return moved

    def complete(
        self,
        job_id: str,
        *,
        artifact_id: str,
        claim_id: str | None = None,
        spec_hash: str | None = None,
        record: Mapping[str, Any] | None = None,
        report: str | None = None,
        telemetry: Telemetry = NOTHING,
        tries: int | None = None,
    ) -> Receipt:
        """Complete the job by an artifact uploaded before; the receiver re-hashes it first.

        ``report`` is the trainer's, at most 1 MiB; it is kept beside the bundle.
        """
        body = {
            **self._who(self._claim_of(job_id, claim_id)),
            "artifact_id": artifact_id,
            "spec_hash": spec_hash,
            "record": None if record is None else dict(record),
            "report": report,
            **telemetry.members(),
        }
        caller = self._about(job_id)
        receipt = typed(
            Receipt,
            self._post(_job(job_id, "complete"), body, timeout_s=SLOW_S, tries=tries, caller=caller),
        )
        self._forget(job_id)
        return receipt

    def output(
        self,
        job_id: str,
        *,
        claim_id: str,
        telemetry: Telemetry = NOTHING,
        tries: int | None = None,
    ) -> OutputKept:
        """Send output lines of an attempt, also after its end; without lines, ask for the first missing one."""
        body = {**self._who(claim_id), "log": telemetry.log()}
        caller = self._about(job_id)
        return typed(OutputKept, self._post(_job(job_id, "log"), body, tries=tries, caller=caller))

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
        """Upload a bundle from the receiver's offset on; returns its artifact id.

        ``progress`` is called with the bytes done and the size. Every try that gets further counts as the first.
        """
        file = Path(path)
        sha256 = sha256 or file_sha256(file)
        named = {HEADER_CLAIM_ID: self._claim_of(job_id, claim_id), HEADER_HOST_ID: self.host_id}
        headers = {name: value for name, value in named.items() if value is not None}
        headers[HEADER_SHA256] = sha256
        caller = self._about(job_id)
        upload = Upload(caller, _model(job_id), headers, file, progress)
        while True:
            try:
                return caller.again(upload.once, tries, upload.advanced)
            except Refused as refusal:
                if not upload.may_begin_anew(refusal):
                    raise

    def deliver(
        self,
        job_id: str,
        path: str | os.PathLike[str],
        *,
        claim_id: str,
        spec_hash: str,
        sha256: str,
        record: Mapping[str, Any] | None = None,
        report: str | None = None,
    ) -> Receipt:
        """Deliver a bundle that had been set aside, for a waiting job; its bytes only if the receiver lacks them."""
        body = {
            **self._who(claim_id),
            "artifact_id": sha256,
            "spec_hash": spec_hash,
            "record": None if record is None else dict(record),
            "report": report,
        }

        def ask() -> Receipt:
            return typed(Receipt, self._post(_job(job_id, "deliver"), body, timeout_s=SLOW_S))

        try:
            return ask()
        except Refused as refusal:
            if refusal.problem_type != ProblemType.NO_ARTIFACT:
                raise
        headers = {
            HEADER_CLAIM_ID: claim_id,
            HEADER_HOST_ID: self.host_id or "",
            HEADER_SHA256: sha256,
            HEADER_BY_HAND: "1",
        }
        upload = Upload(self._caller, _model(job_id), headers, Path(path), None)
        self._caller.again(upload.once, None, upload.advanced)
        return ask()

    def watch(self, told: Mapping[str, Any], *, tries: int | None = None) -> dict[str, Any]:
        """Tell that this host is watched, and of an incident or a change (``WatchRequest`` but for the host)."""
        return self._post("/v1/watch", {"host_id": self.host_id, **told}, tries=tries, needed=("number", "known"))

    @property
    def datasets(self) -> DatasetCalls:
        """The calls about data sets, over the same connections."""
        return DatasetCalls(self._caller)

    def state(self, job_id: str, claim_id: str) -> StateCalls:
        """The calls about the saved state of a job that this host holds a live claim on."""
        return StateCalls(self._caller, job_id, claim_id, self.host_id)

    # -- operator and readers ---------------------------------------------------------------------------------
    # These answer with the JSON objects of docs/protocol.md as they are; REF is a job's name, id or unique prefix.

    def jobs(self, *, status: str | None = None, after: int = 0, limit: int = 1000) -> dict[str, Any]:
        """Get a page of jobs (``JobsReply``); ``next_after`` leads to the next."""
        query = {"status": status, "after": after, "limit": limit}
        return self._get("/v1/jobs", query)

    def all_jobs(self, *, status: str | None = None) -> Iterator[dict[str, Any]]:
        """Iterate over all jobs (``JobView``), page by page."""
        after: int | None = 0
        while after is not None:
            page = self.jobs(status=status, after=after)
            yield from page["jobs"]
            after = page["next_after"]

    def job(self, ref: str) -> dict[str, Any]:
        """Get a job with its attempts and events (``JobDetail``)."""
        return self._get(_job(ref), needed=("job",))

    def models(self, *, test: str | None = None, after: str = "", limit: int | None = None) -> dict[str, Any]:
        """Get the models judged on one test, the best first (``ModelsReply``)."""
        return self._get("/v1/models", {"test": test, "after": after or None, "limit": limit}, needed=("models",))

    def notify(self) -> dict[str, Any]:
        """List the channels for notices (``NotifyReply``)."""
        return self._get("/v1/notify")

    def notify_test(self, channel: str | None = None) -> dict[str, Any]:
        """Send a test message on one channel, or on all (``NotifyTestReply``)."""
        return self._post("/v1/notify/test", {"channel": channel}, timeout_s=SLOW_S)

    def gc(self) -> dict[str, Any]:
        """List what the plan's [retention] lets go (``GcReply``)."""
        return self._get("/v1/gc", timeout_s=SLOW_S, needed=("totals", "items"))

    def gc_now(self) -> dict[str, Any]:
        """Let go what the plan lets go, or a part of it (``GcReply``)."""
        return self._post("/v1/gc", {}, timeout_s=SLOW_S, needed=("totals", "items"))

    def explain(self, ref: str) -> dict[str, Any]:
        """Explain, host by host, why the job does or does not run (``ExplainReply``)."""
        return self._get(_job(ref, "explain"), needed=("name", "hosts"))

    def log(self, ref: str, *, attempt: int | None = None, after: int = 0) -> dict[str, Any]:
        """Get output lines of an attempt from line ``after`` on (``LogReply``); ``next`` leads on."""
        return self._get(_job(ref, "log"), {"attempt": attempt, "after": after})

    def curve(self, ref: str, *, attempt: int | None = None, points: int | None = None) -> dict[str, Any]:
        """Get loss and metric by epoch, and the trainer's use of its host (``CurveReply``); at most 500 points unless
        ``points`` says more."""
        return self._get(_job(ref, "curve"), {"attempt": attempt, "points": points})

    def workers(self) -> dict[str, Any]:
        """Get every host that ever asked (``WorkersReply``), of all pages."""
        answer = self._get("/v1/workers", needed=("workers",))
        while after := answer.get("next_after"):
            page = self._get("/v1/workers", {"after": after}, needed=("workers",))
            answer = {**page, "workers": answer["workers"] + page["workers"]}
        return answer

    def speeds(self) -> dict[str, Any]:
        """Get how long jobs take on each host, as learned (``SpeedsReply``)."""
        return self._get("/v1/speeds", needed=("kinds",))

    def incidents(self, *, host: str | None = None, before: int = 0, limit: int = 50) -> dict[str, Any]:
        """Get the incidents of watched hosts, the newest first (``IncidentsReply``)."""
        query = {"host": host, "before": before, "limit": limit}
        return self._get("/v1/incidents", query, needed=("incidents", "watches", "now"))

    def forecast(self, question: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Foretell who trains what when (``ForecastReply``); ``question`` is a ``ForecastRequest``."""
        if question is None:
            return self._get("/v1/forecast", timeout_s=SLOW_S, needed=("jobs", "hosts"))
        return self._post("/v1/forecast", question, timeout_s=SLOW_S, needed=("jobs", "hosts"))

    def health(self) -> dict[str, Any]:
        """Get the receiver's own state (``HealthReply``)."""
        return self._get("/v1/health")

    def cancel(self, ref: str, *, as_removed: bool = False) -> Moved:
        """Cancel a job for good; its trainer stops at its worker's next heartbeat. Needs the token.

        ``as_removed``: only if the plan no longer names it; it is pending again when a plan does. Refused if one does.
        """
        removed = "?removed=true" if as_removed else ""
        return typed(Moved, self._post(_job(ref, "cancel") + removed, None))

    def requeue(self, ref: str) -> Moved:
        """Train a job again, from any state. Needs the token."""
        return typed(Moved, self._post(_job(ref, "requeue"), None))

    def hold(self, ref: str) -> Moved:
        """Keep a job from being granted until :meth:`unhold`; a running attempt goes on. Needs the token."""
        return typed(Moved, self._post(_job(ref, "hold"), None))

    def unhold(self, ref: str) -> Moved:
        """Let a job be granted again. Needs the token."""
        return typed(Moved, self._post(_job(ref, "unhold"), None))

    def act(self, what: str, wanted: Mapping[str, str], jobs: int | None = None) -> dict[str, Any]:
        """Say what an act on all jobs that match a filter would do (``ActReply``); with their number, do it.

        ``wanted`` has status, model, mode, host or q. It is Refused when the number is another by now. Needs the token.
        """
        return self._post("/v1/act", {"what": what, **wanted, "jobs": jobs}, timeout_s=SLOW_S, needed=("jobs", "says"))

    def release(self, host: str) -> dict[str, Any]:
        """Release a host from quarantine (``ReleaseReply``). Needs the token."""
        return self._post(f"/v1/workers/{_segment(host)}/release", None, needed=("host", "reason"))

    def pause_host(self, host: str) -> dict[str, Any]:
        """Stop a host's trainers where they are, and give it no jobs (``HostOrderReply``). Needs the token."""
        return self._post(f"/v1/workers/{_segment(host)}/pause", None, needed=_ORDERED)

    def drain(self, host: str, *, now: bool = False) -> dict[str, Any]:
        """Give a host no jobs (``HostOrderReply``); ``now``: what it trains is handed back. Needs the token."""
        query = "?now=true" if now else ""
        return self._post(f"/v1/workers/{_segment(host)}/drain" + query, None, needed=_ORDERED)

    def resume_host(self, host: str) -> dict[str, Any]:
        """Let a paused or drained host train again (``HostOrderReply``). Needs the token."""
        return self._post(f"/v1/workers/{_segment(host)}/resume", None, needed=_ORDERED)

    def judge(self, number: int, verdict: str) -> dict[str, Any]:
        """Keep what a person found of an incident (``IncidentView``): confirmed, false, open. Needs the token."""
        return self._post(f"/v1/incidents/{number}/judge", {"verdict": verdict}, needed=("number", "verdict"))

    def close_change(self, number: int, *, reopen: bool = False) -> dict[str, Any]:
        """Close a change of a watched host, or open it again (``ChangeView``). Needs the token."""
        return self._post(f"/v1/changes/{number}/close", {"reopen": reopen}, needed=("number", "host", "ended"))

    def reload(self) -> dict[str, Any]:
        """Read the manifest again (``ReloadReply``); a bad one changes nothing. Needs the token.

        The receiver may ask each of the plan's own trainers for a minute.
        """
        return self._post("/v1/manifest/reload", None, timeout_s=SLOW_S, needed=("inserted",))

    def plan(self, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Tell what a reload would change (``PlanReply``): of the receiver's manifest, or of a checked plan.

        ``given`` is a ``PlanRequest``. A bad plan is Refused, with its ``mistakes``; nothing ever changes.
        """
        if given is None:
            return self._get("/v1/manifest/plan", timeout_s=SLOW_S, needed=("changed",))
        return self._post("/v1/manifest/plan", given, timeout_s=SLOW_S, needed=("changed",))

    def get_model(
        self,
        ref: str,
        path: str | os.PathLike[str],
        *,
        attempt: int | None = None,
        progress: Progress | None = None,
    ) -> Fetched:
        """Fetch a completed job's bundle to ``path``, which appears only when its SHA-256 is verified.

        ``attempt``: that attempt's bundle, also when the job was requeued since.
        """
        of = "" if attempt is None else f"?attempt={attempt}"
        return fetch(self._caller, _model(ref) + of, Path(path), progress)

    def get_json(self, path: str) -> dict[str, Any]:
        """Get the raw JSON answer of any endpoint."""
        return self._get(path)

    def get_page(self, address: str) -> bytes:
        """Get one of the dashboard's pages or their files, at its address in a browser."""
        return self._caller.again(lambda: self._caller.send("GET", address, headers={"Accept": "*/*"}), None).body

    def post_json(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Post a body to any endpoint; returns the raw JSON answer."""
        return self._post(path, body)

    # -- inside -------------------------------------------------------------------------------------------------

    def _who(self, claim_id: str | None) -> dict[str, Any]:
        return {"host_id": self.host_id, "claim_id": claim_id}

    def _claim_of(self, job_id: str, claim_id: str | None) -> str | None:
        with self._lock:
            return claim_id or self._claims.get(job_id)

    def _about(self, job_id: str) -> Caller:
        with self._lock:
            return self._caller.about(self._caller.granted_by or self._granted_by.get(job_id))

    def _forget(self, job_id: str) -> None:
        with self._lock:
            claim = self._claims.pop(job_id, job_id)
            self._granted_by.pop(job_id, None)
            self._seq.pop(claim, None)
            self._log_next.pop(claim, None)

    def _get(
        self,
        path: str,
        query: Mapping[str, Any] | None = None,
        *,
        needed: Sequence[str] = (),
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        given = {key: value for key, value in (query or {}).items() if value is not None}
        address = f"{path}?{urlencode(given)}" if given else path
        answer = json_object(self._caller.again(lambda: self._caller.send("GET", address, timeout_s=timeout_s), None))
        holding(answer, *needed)
        return answer

    def _post(
        self,
        path: str,
        body: Mapping[str, Any] | None,
        *,
        timeout_s: float | None = None,
        tries: int | None = None,
        caller: Caller | None = None,
        needed: Sequence[str] = (),
    ) -> dict[str, Any]:
        content, by = b"" if body is None else strict_json.dumps(body), caller or self._caller
        answer = json_object(by.again(lambda: by.send("POST", path, body=content, timeout_s=timeout_s), tries))
        holding(answer, *needed)
        return answer


def _job(ref: str, verb: str = "") -> str:
    return f"/v1/job/{_segment(ref)}" + (f"/{verb}" if verb else "")


def _model(ref: str) -> str:
    return f"/v1/model/{_segment(ref)}"


def _segment(ref: str) -> str:
    """Quote a segment of a path. Bytes of a command line that are no text become question marks.

    Dots alone mean another path to some proxies.
    """
    plain = quote(ref, safe="", errors="replace")
    return plain.replace(".", "%2E") if ref in (".", "..") else plain


def _token(token: str) -> str:
    """Encode the token for a header: its UTF-8 bytes, each as one character."""
    if not token.strip().isprintable():
        raise ValueError("the operator token has a line break or a control character in it; set it again")
    return token.strip().encode().decode("latin-1")

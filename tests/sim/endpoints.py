"""The receiver's endpoints, step by step as its HTTP layer takes them, without HTTP."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sim.network import Connection, Request
from sim.steps import PIECE, Call, Commit, Endpoint, News
from training.fleet import catalogue, protocol
from training.fleet.calls.transport import Response
from training.fleet.catalogue import first_delivery
from training.fleet.job import EndReason, spec_hash
from training.fleet.protocol import Refusal
from training.fleet.service import UploadTicket
from training.fleet.storage.errors import Damaged, OffsetMismatch, StoreError
from training.fleet.store import Artifact
from training.fleet.web.problems import decoded

if TYPE_CHECKING:
    from sim.coordinator import Coordinator

_RETRY_LEAST_S = 0.05
_KINDS: dict[str, type] = {
    "heartbeat": protocol.HeartbeatRequest,
    "complete": protocol.CompleteRequest,
    "deliver": protocol.DeliverRequest,
    "fail": protocol.FailRequest,
    "output": protocol.OutputRequest,
}


class Endpoints:
    """Requests as generators over one run of the receiver's program."""

    def __init__(self, receiver: Coordinator) -> None:
        self._at = receiver

    def steps(self, request: Request, connection: Connection) -> tuple[Call, Endpoint]:
        """The steps of handling a request."""
        _, _, noun, *rest = request.path.partition("?")[0].split("/")
        call = Call("output" if rest[-1] == "log" else rest[-1], request, connection)
        if noun == "model":
            call.name, call.job_id = "ticket", rest[0]
            return call, self._probe(call) if request.method == "HEAD" else self._receive(call)
        if rest == ["claim"]:
            call.message = decoded(request.body, protocol.ClaimRequest)
            return call, self._claim(call)
        if rest == ["reload"]:
            return call, self._simply(call, self._at.reload)
        if noun == "workers":
            return call, self._release(call, rest[0])
        call.job_id = rest[0]
        return call, self._about_job(call)

    def _simply(self, call: Call, work: Callable[[], Any]) -> Endpoint:
        return (yield Commit(call, work))

    def _release(self, call: Call, host: str) -> Endpoint:
        answer = yield Commit(call, lambda: self._at.service.release(host, "operator"))
        self._at.wake()
        return answer

    def _about_job(self, call: Call) -> Endpoint:
        job_id, service = call.job_id, self._at.service
        assert job_id is not None
        assert call.request is not None
        if call.request.path.endswith("/cancel?removed=true"):
            return (yield Commit(call, lambda: service.cancel(job_id, as_removed=True)))
        if call.name in ("cancel", "requeue", "hold", "unhold"):
            operator = getattr(service, call.name)
            return (yield Commit(call, lambda: operator(job_id)))
        call.message = decoded(call.request.body, _KINDS[call.name])
        if call.name == "complete":
            yield from self._before_complete(call)
        if call.name == "deliver":
            return (yield from self._deliver(call))
        method = getattr(service, call.name)
        return (yield Commit(call, lambda: method(job_id, call.message)))

    def _before_complete(self, call: Call) -> Endpoint:
        """The artifact is re-hashed and its provenance laid down before the commit that accepts it."""
        job_id, message, service = call.job_id or "", call.message, self._at.service

        def look() -> tuple[UploadTicket, dict[str, Any]] | None:
            ticket = service.upload_ticket(job_id, message.claim_id, message.host_id)
            job, attempt = self._at.queue.get(job_id), self._at.queue.attempt(ticket.claim_id)
            assert job is not None
            assert attempt is not None
            settled = attempt.end_reason is EndReason.COMPLETED
            mismatch = message.spec_hash not in (None, spec_hash(job.spec))
            if settled or mismatch or not service.upload_stored(ticket, message.artifact_id):
                return None
            return ticket, catalogue.provenance_of(
                job, attempt, message.record, now=self._at.clock.now()
            )

        found = yield Commit(Call("ticket", call.request, None, None, job_id), look)
        if found is not None:
            ticket, record = found
            artifact = self._at.store.verify(
                message.artifact_id, model=ticket.model, mode=ticket.mode
            )
            self._at.store.write_provenance(
                artifact, job_id=job_id, attempt=ticket.attempt, record=record
            )

    def _deliver(self, call: Call) -> Endpoint:
        job_id, message, service = call.job_id or "", call.message, self._at.service
        ticket = Call("ticket", call.request, None, None, job_id)
        found = yield Commit(ticket, lambda: service.deliverable(job_id, message))
        made, size = None, 0
        if found is not None:
            job, made = found
            artifact = self._at.store.verify(message.artifact_id, model=job.model, mode=job.mode)
            size = artifact.size
            record = catalogue.provenance_of(job, made, made.record, now=self._at.clock.now())
            self._at.store.write_provenance(
                artifact, job_id=job_id, attempt=made.attempt, record=record
            )
        answer, taken = yield Commit(call, lambda: service.deliver(job_id, message, made, size))
        row = first_delivery(
            self._at.database, message.artifact_id, job_id=job_id, attempt=answer.attempt
        )
        if taken and row is not None:
            try:
                self._at.store.index.append(row)
            except StoreError:
                self._at.index_stale = True
        return answer

    def _claim(self, call: Call) -> Endpoint:
        """Ask, and ask again at every news, until there is a job, the time is over, or nobody listens."""
        message, news = call.message, self._at.news
        reply = yield Commit(call, lambda: self._at.service.claim(message))
        deadline = self._at.world.now + min(message.wait_s, protocol.WAIT_S_MAX)
        assert call.connection is not None
        process = self._at.processes[call.connection]
        if reply.job_id is not None or reply.ask_again or message.wait_s <= 0:
            return reply
        service = self._at.service
        service.wait_begins(message.host_id)
        try:
            while not (reply.job_id or reply.ask_again) and self._at.world.now < deadline:
                again_s = deadline if reply.retry_after_s is None else reply.retry_after_s
                until = min(deadline, self._at.world.now + max(again_s, _RETRY_LEAST_S))
                yield News(news, until)
                if process.gone:
                    break
                news = self._at.news
                reply = yield Commit(call, lambda: service.claim(message))
        finally:
            service.wait_ends(message.host_id)
        return reply

    # ── uploads ─────────────────────────────────────────────────────────────────────────────

    def _ticket(self, call: Call) -> Endpoint:
        headers = call.request.headers if call.request else {}
        claim, host = headers.get("X-Claim-Id"), headers.get("X-Host-Id")
        by_hand, job_id = headers.get("X-By-Hand") == "1", call.job_id or ""
        ask = self._at.service.upload_ticket
        return (yield Commit(call, lambda: ask(job_id, claim, host, by_hand=by_hand)))

    def _stored(self, call: Call, ticket: UploadTicket) -> Artifact | None:
        sha = call.request.headers["X-Content-SHA256"] if call.request else ""
        return self._at.store.find(sha, model=ticket.model, mode=ticket.mode)

    def _probe(self, call: Call) -> Endpoint:
        ticket = yield from self._ticket(call)
        artifact = self._stored(call, ticket)
        assert call.request is not None
        sha = call.request.headers["X-Content-SHA256"]
        offset = self._at.store.offset(ticket.claim_id, sha) if artifact is None else artifact.size
        return Response(200, {"upload-offset": str(offset)})

    def _receive(self, call: Call) -> Endpoint:
        assert call.request is not None
        headers = call.request.headers
        sha, offset = headers["X-Content-SHA256"], int(headers["Upload-Offset"])
        length = int(headers["Content-Length"])
        ticket = yield from self._ticket(call)
        artifact = self._stored(call, ticket)
        if artifact is not None and artifact.size == offset + length:
            while (yield PIECE) is not None:
                pass
            artifact = self._confirmed(artifact)
        else:
            self._at.store.check_room(length)
            artifact = yield from self._take(call, ticket, sha, offset, length)
        size, artifact_id = artifact.size, artifact.artifact_id
        if (
            yield Commit(
                Call(
                    "by hand" if ticket.by_hand else "upload", call.request, None, None, call.job_id
                ),
                lambda: self._at.service.upload_done(ticket, artifact_id, size),
            )
        ):
            self._index(artifact_id, ticket)
        return protocol.UploadReply(artifact_id=artifact_id, job_id=ticket.job_id, size=size)

    def _index(self, artifact_id: str, ticket: UploadTicket) -> None:
        row = first_delivery(
            self._at.database, artifact_id, job_id=ticket.job_id, attempt=ticket.attempt
        )
        if row is not None:
            try:
                self._at.store.index.append(row)
            except StoreError:
                self._at.index_stale = True

    def _confirmed(self, artifact: Artifact) -> Artifact:
        name, model, mode = artifact.artifact_id, artifact.model, artifact.mode
        try:
            return self._at.store.confirm(name, model=model, mode=mode)
        except Damaged as damage:
            self._at.store.put_aside(artifact)
            raise OffsetMismatch(artifact.size, 0) from damage

    def _take(
        self, call: Call, ticket: UploadTicket, sha: str, offset: int, length: int
    ) -> Endpoint:
        self._at.disk.now = self._at.clock.now()
        part = self._at.store.open_part(ticket.claim_id, sha, offset=offset)
        try:
            while (piece := (yield PIECE)) is not None:
                part.write(piece)
            digest = part.seal(sha256=sha, size=offset + length)
            try:
                yield from self._ticket(call)
            except Refusal:
                part.drop()
                raise
            return self._at.store.publish(part, digest, model=ticket.model, mode=ticket.mode)
        finally:
            part.close()

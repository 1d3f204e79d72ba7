"""The receiver's endpoints without HTTP: decode, and take the steps of deliveries on the simulation's heap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulation.network import Connection, Request
from simulation.steps import PIECE, Call, Commit, Endpoint, News
from training.fleet.client.transport import Response
from training.fleet.receiver.http.problems import decoded
from training.fleet.scheduling.orders import OrderKind
from training.fleet.service.delivery import Announced, Body, Decide, Open, Step, Steps, Whole
from training.fleet.service.states import Calling
from training.fleet.store.incoming import PartFile
from training.fleet.wire import attempts, constants
from training.fleet.wire.states import StateKeepRequest

if TYPE_CHECKING:
    from simulation.coordinator import Coordinator

_RETRY_LEAST_S = 0.05
_KINDS: dict[str, type] = {
    "heartbeat": attempts.HeartbeatRequest,
    "complete": attempts.CompleteRequest,
    "deliver": attempts.DeliverRequest,
    "fail": attempts.FailRequest,
    "output": attempts.OutputRequest,
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
            said = self._announced(request, rest[0])
            if request.method == "HEAD":
                return call, self._probe(call, said)
            return call, self.carry_out(call, self._at.delivery.upload(said))
        if rest == ["claim"]:
            call.message = decoded(request.body, attempts.ClaimRequest)
            return call, self._claim(call)
        if rest == ["reload"]:
            return call, self._at.reload_in_parts(call)
        if noun == "workers":
            return call, self._about_host(call, rest[0])
        call.job_id = rest[0]
        if rest[1] == "state":
            call.name = "state"
            return call, self._about_state(call, *rest[2:])
        return call, self._about_job(call)

    def _about_host(self, call: Call, host: str) -> Endpoint:
        service, now = self._at.service, call.request.path.endswith("?now=true")
        work = {
            "release": lambda: service.release(host, "operator"),
            "pause": lambda: service.order(host, OrderKind.PAUSE, "ada"),
            "drain": lambda: service.order(host, OrderKind.HAND_BACK if now else OrderKind.DRAIN, "ada"),
            "resume": lambda: service.resume_host(host, "ada"),
        }[call.name]
        answer = yield Commit(call, work)
        self._at.wake()
        return answer

    def _about_state(self, call: Call, state_id: str, what: str = "", sha256: str | None = None) -> Endpoint:
        assert call.job_id is not None
        headers, states, get = call.request.headers, self._at.saved_states, call.request.method == "GET"
        calling = Calling(call.job_id, headers.get("X-Claim-Id"), headers.get("X-Host-Id"))
        if what == "keep":
            said = decoded(call.request.body, StateKeepRequest)
            return (yield from self.carry_out(call, states.keep(calling, state_id, said)))
        if sha256 is not None and get:
            return Response(200, {}, (yield from self.carry_out(call, states.piece(calling, state_id, sha256))))
        if get:
            return Response(200, {}, (yield from self.carry_out(call, states.listing(calling, state_id))))
        if what:
            yield from self.carry_out(call, states.bring(calling, state_id, sha256))
            return Response(200, {})
        return (yield from self.carry_out(call, states.announce(calling, state_id)))

    def _about_job(self, call: Call) -> Endpoint:
        job_id, service = call.job_id, self._at.service
        assert job_id is not None
        if call.request.path.endswith("/cancel?removed=true"):
            return (yield Commit(call, lambda: service.cancel(job_id, as_removed=True)))
        if call.name in ("cancel", "requeue", "hold", "unhold"):
            operator = getattr(service, call.name)
            return (yield Commit(call, lambda: operator(job_id)))
        call.message = decoded(call.request.body, _KINDS[call.name])
        if call.name in ("complete", "deliver"):
            steps = getattr(self._at.delivery, call.name)
            return (yield from self.carry_out(call, steps(job_id, call.message)))
        method = getattr(service, call.name)
        return (yield Commit(call, lambda: method(job_id, call.message)))

    def _claim(self, call: Call) -> Endpoint:
        """Ask, and ask again at every news, until there is a job, the time is over, or nobody listens."""
        message, news = call.message, self._at.news
        reply = yield Commit(call, lambda: self._at.service.claim(message))
        deadline = self._at.world.now + min(message.wait_s, constants.WAIT_S_MAX)
        assert call.connection is not None
        process = self._at.processes[call.connection]
        if reply.job_id is not None or reply.ask_again or message.wait_s <= 0:
            return reply
        service = self._at.service
        poll = service.host_registry.wait_begins(message.host_id, message.slot)
        try:
            while not (reply.job_id or reply.ask_again) and self._at.world.now < deadline:
                again_s = deadline if reply.retry_after_s is None else reply.retry_after_s
                until = min(deadline, self._at.world.now + max(again_s, _RETRY_LEAST_S))
                yield News(news, until)
                if process.gone:
                    break
                news = self._at.news
                reply = yield Commit(call, lambda: service.claim_again(message, poll))
        finally:
            service.host_registry.wait_ends(message.host_id)
        return reply

    # ── deliveries ──────────────────────────────────────────────────────────────────────────

    def _announced(self, request: Request, job_id: str) -> Announced:
        headers = request.headers
        return Announced(
            job_id=job_id,
            claim_id=headers.get("X-Claim-Id"),
            host_id=headers.get("X-Host-Id"),
            sha256=headers["X-Content-SHA256"],
            offset=int(headers.get("Upload-Offset", 0)),
            length=int(headers.get("Content-Length", 0)),
            by_hand=headers.get("X-By-Hand") == "1",
        )

    def _probe(self, call: Call, said: Announced) -> Endpoint:
        offset = yield from self.carry_out(call, self._at.delivery.probe(said))
        return Response(200, {"upload-offset": str(offset)})

    def carry_out(self, call: Call, steps: Steps[Any]) -> Endpoint:
        """Take the steps of a delivery; the writer and the network are waited for, disks are not."""
        opened: list[PartFile] = []
        outcome, error = None, None
        try:
            while True:
                try:
                    step = steps.send(outcome) if error is None else steps.throw(error)
                except StopIteration as end:
                    return end.value
                try:
                    outcome, error = (yield from self._take(call, step)), None
                except Exception as raised:  # noqa: BLE001 - the sequence decides what comes of it
                    outcome, error = None, raised
                if isinstance(step, Open) and error is None:
                    opened.append(outcome)
        finally:
            for part in opened:
                part.close()

    def _take(self, call: Call, step: Step | Body | Whole) -> Endpoint:
        if isinstance(step, Whole):
            body = b""
            while (piece := (yield PIECE)) is not None:
                body += piece
            return body
        if isinstance(step, Body):
            while (piece := (yield PIECE)) is not None:
                if step.part is not None:
                    step.part.write(piece)
            return None
        if isinstance(step, Decide):
            other = Call(step.what, call.request, None, None, call.job_id)
            return (yield Commit(call if step.what == call.name else other, step.work))
        self._at.disk.now = self._at.clock.now()
        return step.work()

"""Send the worker's requests to the receiver, each on its own thread; each posts exactly one event.

With a thread for each request, no heartbeat waits for a long claim or a large upload, and no job for another job's
request. Each request is sent once; whether and when it is sent again is the state machine's decision.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import asdict, replace

from training.contract import spec_hash
from training.crashpoint import crashpoint
from training.fleet.client.client import FleetClient, Refused, Stranger, Unavailable
from training.fleet.wire.attempts import CompleteReply, LogLines, SetAsideWork
from training.fleet.wire.constants import UNCONFIRMED
from training.fleet.worker import reports
from training.fleet.worker.state import events as t
from training.frozen import frozen

log = logging.getLogger(__name__)

Request = t.SendClaim | t.SendHeartbeat | t.Upload | t.SendComplete | t.SendFail | t.SendOutput
Post = Callable[[t.Event], None]
Lines = Callable[[str, int], tuple[int, tuple[str, ...]]]  # of a claim from a line on: Outbox.read


class AbortedError(Exception):
    """A request was aborted before it was sent, or an upload while it ran."""


@frozen
class Asker:
    """The facts about the worker that each claim sends, most as functions that return them. The function
    ``housekeeping`` is called after each claim and heartbeat."""

    instance_id: str
    session_id: str
    capability: Callable[[], Mapping[str, Any]]
    trainer_digests: Callable[[], Mapping[str, str]]
    set_aside: Callable[[], Sequence[SetAsideWork]] = tuple
    housekeeping: Callable[[FleetClient], object] = lambda _: None


@dataclass
class Calls:
    """Sends requests with ``client``, but heartbeats and the output of ended attempts with ``beat_client``. Posts one
    event for each request."""

    client: FleetClient
    beat_client: FleetClient
    asker: Asker
    lines: Lines
    post: Post
    _aborted: set[int] = field(default_factory=set)

    def send(self, request: Request) -> None:
        """Send a request on its own thread and return at once; the thread posts the event of the answer or failure."""
        try:
            threading.Thread(target=self._send, args=(request,), name="call", daemon=True).start()
        except RuntimeError as error:  # trainers have started as many processes as this account may have
            self.post(t.NotAnswered(call=request.call, detail=str(error)))

    def _send(self, request: Request) -> None:
        self.post(self.carry_out(request))
        if isinstance(request, t.SendClaim | t.SendHeartbeat):
            try:
                self.asker.housekeeping(self.client)
            except Exception as error:  # noqa: BLE001 - whatever the disk holds, the worker goes on
                log.warning("saved states were not tidied up: %s", error)

    def abort(self, call: int) -> None:
        """Abort the request with this number before it is sent, or an upload while it runs."""
        self._aborted.add(call)

    def carry_out(self, request: Request) -> t.Event:
        """Send a request, wait for its answer, and return the event of the answer or failure."""
        call = request.call
        try:
            if call in self._aborted:
                raise AbortedError
            crashpoint("worker.before", type(request).__name__)
            event = self._exchange(with_lines(request, self.lines))
            crashpoint("worker.after", type(request).__name__)
            return event
        except Refused as error:
            return t.CallRefused(call=call, problem_type=error.problem_type, detail=str(error))
        except Stranger as error:
            return t.NotAnswered(call=call, detail=str(error), stranger=True)
        except Unavailable as error:
            return t.NotAnswered(call=call, detail=str(error), retry_after_s=error.retry_after_s)
        except OSError as error:
            if isinstance(request, t.Upload):
                return t.DeliveryBroken(call=call, detail=f"the bundle cannot be read: {error}")
            return t.NotAnswered(call=call, detail=str(error))
        except Exception as error:  # the worker survives every answer
            log.debug("request %d failed", call, exc_info=True)
            return t.NotAnswered(call=call, detail=str(error) or type(error).__name__)
        finally:
            self._aborted.discard(call)

    def _exchange(self, request: Request) -> t.Event:
        match request:
            case t.SendClaim():
                return self._claim(request)
            case t.Upload():
                return self._upload(request)
        client = self.beat_client if isinstance(request, t.SendHeartbeat | t.SendOutput) else self.client
        client, job_id = client.about(request.assignment.database_id), request.assignment.job_id
        log = request.message.log or LogLines()
        after = log.first + len(log.lines)
        match request:
            case t.SendHeartbeat():
                return t.HeartbeatAnswered(call=request.call, reply=client.heartbeat(job_id, request.message, tries=1))
            case t.SendComplete():
                message = replace(request.message, report=reports.read(request.delivery.path))
                if client.complete(job_id, message, tries=1).status == UNCONFIRMED:
                    return t.Unconfirmed(call=request.call)
                return t.Completed(call=request.call, log_next=after)
            case t.SendFail():
                moved = client.fail(job_id, request.message, tries=1)
                return t.FailTaken(call=request.call, status=moved.status, log_next=after)
            case t.SendOutput() if not log.lines:  # the disk lost them
                return t.OutputTaken(call=request.call, log_next=log.total or 0)
            case t.SendOutput():
                return t.OutputTaken(
                    call=request.call, log_next=client.output(job_id, request.message, tries=1).log_next
                )

    def _claim(self, request: t.SendClaim) -> t.Event:
        members = asdict(request)
        del members["call"]
        answer = self.client.ask(
            self.asker.capability(),
            **members,
            instance_id=self.asker.instance_id,
            session_id=self.asker.session_id,
            trainer_digests=self.asker.trainer_digests(),
            set_aside=list(self.asker.set_aside()),
            tries=1,
        )
        return t.ClaimAnswered(call=request.call, reply=answer)

    def _upload(self, request: t.Upload) -> t.Event:
        def progress(_done: int, _size: int) -> None:
            if request.call in self._aborted:
                raise AbortedError

        delivery = request.delivery
        artifact_id = self.client.about(delivery.assignment.database_id).upload_artifact(
            delivery.assignment.job_id,
            delivery.path,
            claim_id=delivery.assignment.claim_id,
            sha256=delivery.sha256,
            progress=progress,
            tries=1,
        )
        return t.Uploaded(call=request.call, artifact_id=artifact_id)


def deliver(client: FleetClient, work: t.Delivery) -> CompleteReply:
    """Send a refused bundle that is stored here to the receiver again, as its job's result; return the receiver's
    reply."""
    return client.deliver(
        work.assignment.job_id,
        work.path,
        claim_id=work.assignment.claim_id,
        spec_hash=spec_hash(work.assignment.spec),
        artifact_id=work.sha256,
        record=work.record,
        report=reports.read(work.path),
        database_id=work.assignment.database_id,
    )


def with_lines(request: Request, lines: Lines) -> Request:
    """Return the request with lines of output, which the function ``lines`` returns, in its message. Claims, uploads,
    and requests that have lines already stay unchanged."""
    if isinstance(request, t.SendClaim | t.Upload):
        return request
    log = request.message.log or LogLines()
    if log.lines:
        return request
    first, found = lines(request.assignment.claim_id, log.first)
    filled = None if not found and log.total is None else replace(log, first=first, lines=list(found))
    return replace(request, message=replace(request.message, log=filled))

"""The worker's requests, sent on threads of their own; each ends in exactly one event.

Heartbeats have a thread to themselves: they must not wait for a long claim or a large upload. So has the output of
attempts that are over. Of claims and reports each has one while it is on its way, so that no job waits for another's.
Each request is sent once; whether and when it is sent again is the state machine's decision.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Any

from training.contract import spec_hash
from training.crashpoint import crashpoint
from training.fleet.client.client import FleetClient, Grant, Refused, Stranger, Unavailable
from training.fleet.worker import reports
from training.fleet.worker.state import events as t

log = logging.getLogger(__name__)

Request = t.SendClaim | t.SendHeartbeat | t.Upload | t.SendComplete | t.SendFail | t.SendOutput
Post = Callable[[t.Event], None]
Lines = Callable[[str, int], tuple[int, tuple[str, ...]]]  # of a claim from a line on: Outbox.read


class AbortedError(Exception):
    """The upload was aborted."""


@dataclass(frozen=True, slots=True)
class Asker:
    """The worker, as a claim describes it."""

    instance_id: str
    session_id: str
    capability: Callable[[], Mapping[str, Any]]
    trainer_digests: Callable[[], Mapping[str, str]]
    set_aside: Callable[[], Sequence[Mapping[str, Any]]] = tuple
    at_leisure: Callable[[FleetClient], object] = lambda _: None  # while there is no job


@dataclass
class _QueueThread:
    """A thread that runs its queue in order."""

    name: str
    todo: SimpleQueue[Callable[[], None]] = field(default_factory=SimpleQueue)
    waiting: int = 0  # calls that are not done yet

    def __post_init__(self) -> None:
        threading.Thread(target=self._work, name=self.name, daemon=True).start()

    def _work(self) -> None:
        while True:
            self.todo.get()()


class Calls:
    """Sends requests with ``client`` (``beat_client`` for heartbeats) and posts the events of their answers."""

    def __init__(self, client: FleetClient, beat_client: FleetClient, asker: Asker, lines: Lines, post: Post) -> None:
        self._client = client
        self._beat_client = beat_client
        self._asker = asker
        self._lines = lines
        self._post = post
        self._aborted: set[int] = set()
        self._lock = threading.Lock()
        self._lanes: list[_QueueThread] = [_QueueThread("calls")]
        self._beat_lane = _QueueThread("heartbeats")
        self._output_lane: _QueueThread | None = None  # seldom needed

    def send(self, request: Request) -> None:
        """Send a request: returns at once; the event comes later."""
        if isinstance(request, t.SendHeartbeat):
            thread = self._beat_lane
        elif isinstance(request, t.SendOutput):
            thread = self._output_lane = self._output_lane or _QueueThread("output")
        else:
            thread = self._free_lane()
        with self._lock:
            thread.waiting += 1
        thread.todo.put(lambda: self._work(thread, request))

    def _free_lane(self) -> _QueueThread:
        """Return the first thread without work: there are as many as calls were ever on their way at once."""
        for lane in self._lanes:
            if not lane.waiting:
                return lane
        self._lanes.append(_QueueThread("calls"))
        return self._lanes[-1]

    def _work(self, thread: _QueueThread, request: Request) -> None:
        event = self._carry_out(request)
        with self._lock:
            thread.waiting -= 1
        self._post(event)

    def abort(self, call: int) -> None:
        """Abort this call before its start, or in its upload."""
        self._aborted.add(call)

    def _carry_out(self, request: Request) -> t.Event:
        call = request.call
        try:
            if call in self._aborted:
                raise AbortedError
            crashpoint("worker.before", type(request).__name__)
            event = self._exchange(with_lines(request, self._lines))
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
            case t.SendHeartbeat():
                return self._heartbeat(request)
            case t.Upload():
                return self._upload(request)
            case t.SendComplete():
                return self._complete(request)
            case t.SendFail():
                return self._fail(request)
            case t.SendOutput():
                return self._output(request)

    def _claim(self, request: t.SendClaim) -> t.Event:
        answer = self._client.ask(
            self._asker.capability(),
            wait_s=request.wait_s,
            request_id=request.request_id,
            instance_id=self._asker.instance_id,
            session_id=self._asker.session_id,
            trainer_digests=self._asker.trainer_digests(),
            crashed_claims=list(request.crashed),
            echo=request.echo,
            set_aside=list(self._asker.set_aside()),
            slot=request.slot,
            delivering=list(request.delivering),
            resting=request.resting,
            training=list(request.training),
            tries=1,
        )
        if not isinstance(answer, Grant):
            self._asker.at_leisure(self._client)
        return t.ClaimAnswered(call=request.call, reply=answer)

    def _heartbeat(self, request: t.SendHeartbeat) -> t.Event:
        told = request.telemetry
        reply = self._beat_client.about(request.assignment.database_id).heartbeat(
            request.assignment.job_id,
            claim_id=request.assignment.claim_id,
            usage=told.usage,
            **told.members(),
            session_id=self._asker.session_id,
            echo=request.echo,
            resting=request.resting,
            paused=request.paused,
            paused_s=request.paused_s,
            resumable=request.resumable,
            tries=1,
        )
        return t.HeartbeatAnswered(call=request.call, reply=reply)

    def _upload(self, request: t.Upload) -> t.Event:
        def progress(_done: int, _size: int) -> None:
            if request.call in self._aborted:
                raise AbortedError

        delivery = request.delivery
        artifact_id = self._client.about(delivery.assignment.database_id).upload_artifact(
            delivery.assignment.job_id,
            delivery.path,
            claim_id=delivery.assignment.claim_id,
            sha256=delivery.sha256,
            progress=progress,
            tries=1,
        )
        return t.Uploaded(call=request.call, artifact_id=artifact_id)

    def _complete(self, request: t.SendComplete) -> t.Event:
        delivery = request.delivery
        self._client.about(delivery.assignment.database_id).complete(
            delivery.assignment.job_id,
            artifact_id=delivery.sha256,
            claim_id=delivery.assignment.claim_id,
            spec_hash=spec_hash(delivery.assignment.spec),
            record=delivery.record,
            report=reports.read(delivery.path),
            **request.telemetry.members(),
            tries=1,
        )
        return t.Completed(call=request.call, log_next=request.telemetry.after())

    def _fail(self, request: t.SendFail) -> t.Event:
        moved = self._client.about(request.assignment.database_id).fail(
            request.assignment.job_id,
            error=request.failure.error,
            reason=request.failure.reason,
            claim_id=request.assignment.claim_id,
            exit_code=request.failure.exit_code,
            out_of_memory=request.failure.out_of_memory,
            record=request.record,
            **request.telemetry.members(),
            tries=1,
        )
        return t.FailTaken(call=request.call, status=moved.status, log_next=request.telemetry.after())

    def _output(self, request: t.SendOutput) -> t.Event:
        backlog, told = request.backlog, request.telemetry
        if not told.lines:  # the disk lost them
            return t.OutputTaken(call=request.call, log_next=backlog.total)
        taken = self._beat_client.about(backlog.database_id).output(
            backlog.job_id, claim_id=backlog.claim_id, log=told.log(), tries=1
        )
        return t.OutputTaken(call=request.call, log_next=taken.log_next)


def with_lines(request: Request, lines: Lines) -> Request:
    """Add its lines of output to a request."""
    if isinstance(request, t.SendClaim | t.Upload) or request.telemetry.lines is not None:
        return request
    of = request.backlog if isinstance(request, t.SendOutput) else request.assignment
    first, found = lines(of.claim_id, request.telemetry.first)
    return replace(request, telemetry=replace(request.telemetry, first=first, lines=found))

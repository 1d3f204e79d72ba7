"""A worker's requests: the production client and what worker_calls makes of its answers, without threads.

The client's calls are synchronous. Here each is begun, broken off where it would wait for an answer, and made again
from the start with the answers known so far: its code is a function of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from msgspec import structs

from simulation.network import Broken, Outcome, Request, SimTransport
from simulation.unlike import reported
from training.fleet.client.client import ClientError, FleetClient
from training.fleet.client.transport import Response, TransportError
from training.fleet.worker.requests import Asker, Calls, deliver, with_lines
from training.fleet.worker.requests import Request as WorkerRequest
from training.fleet.worker.state import events as t

if TYPE_CHECKING:
    from simulation.host import Host

URL = "http://receiver"


class _NotYet(BaseException):
    """The client waits for the answer to this request."""

    def __init__(self, request: Request, timeout_s: float) -> None:
        self.request = request
        self.timeout_s = timeout_s


class _Replay(SimTransport):
    """A transport that knows the first answers and breaks off at the next request."""

    def __init__(self, sender: str, known: list[Outcome]) -> None:
        self._sender = sender
        self._known = iter(known)

    def ask(self, method: str, path: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> Response:
        for outcome in self._known:
            if isinstance(outcome, Broken):
                raise TransportError(outcome.value)
            return outcome
        raise _NotYet(Request(method, path, body, headers, self._sender), timeout_s)


def _as_told(request: WorkerRequest, seed: int) -> WorkerRequest:
    """Return the request as a worker sends it whose clock tells tales."""
    if not isinstance(request, t.SendComplete):
        return request
    told = reported(seed, request.assignment.claim_id, request.message.record or {})
    return structs.replace(request, message=structs.replace(request.message, record=told))


def _nothing_more(_claim_id: str, first: int) -> tuple[int, tuple[str, ...]]:
    """Read no lines: a request has them when it is sent."""
    return first, ()


def _never(_: float) -> None:
    raise AssertionError("the worker's client does not wait by itself")


class SimCalls:
    """The requests of one run of a worker's program."""

    def __init__(self, host: Host, asker: Asker) -> None:
        self._host, self._asker, self._outbox = host, asker, host.outbox
        self.asleep = False
        self._open: dict[int, Callable[[], None]] = {}  # call → how to hang up

    def send(self, request: WorkerRequest) -> None:
        """Begin the call; its outcome becomes one event."""
        known: list[Outcome] = []
        request = _as_told(with_lines(request, self._outbox.read), self._host.world.seed)

        def go_on() -> None:
            try:
                client = self._client(known)
                event = Calls(client, client, self._asker, _nothing_more, self._host.post).carry_out(request)
            except _NotYet as wait:
                hang_up = self._host.network.send(wait.request, wait.timeout_s, answered)
                self._open[request.call] = hang_up
                return
            self._open.pop(request.call, None)
            if not self._host.has_slots and isinstance(event, t.ClaimAnswered | t.HeartbeatAnswered):
                event = structs.replace(event, reply=structs.replace(event.reply, slots=None))
            self._host.post(event)

        def answered(outcome: Outcome) -> None:
            # While a machine sleeps most of its connections die; what it finds out is that nobody answers.
            if self.asleep and not isinstance(outcome, Broken) and self._host.chance.random() < 0.7:
                outcome = Broken.RESET
            known.append(outcome)
            self._host.when_awake(lambda: go_on() if request.call in self._open else None)

        go_on()

    def deliver(self, delivery: t.Delivery, taken: Callable[[], None]) -> None:
        """Do as ``cis490-trainer-worker --deliver`` does; nobody waits for it."""
        known: list[Outcome] = []

        def go_on() -> None:
            try:
                reply = deliver(self._client(known), delivery)
            except _NotYet as wait:
                self._host.network.send(wait.request, wait.timeout_s, answered)
            except ClientError:
                pass  # it stays where it is
            else:
                assert reply.status == "completed", "this database granted every claim"
                taken()

        def answered(outcome: Outcome) -> None:
            known.append(outcome)
            go_on()

        go_on()

    def abort(self, call: int) -> None:
        hang_up = self._open.pop(call, None)
        if hang_up is not None:
            hang_up()

    def hang_up(self) -> None:
        """The program is over."""
        for call in list(self._open):
            self.abort(call)

    def _client(self, known: list[Outcome]) -> FleetClient:
        return FleetClient(
            URL,
            self._host.name,
            transport=_Replay(self._host.machine, known),
            tries=1,
            timeout_s=self._host.scenario.timeout_s,
            chance=self._host.chance.random,
            sleep=_never,
        )

"""Messages between machines: lost, doubled, slow, late, cut, corrupted, or not delivered at all.

A request has the shape that it has in HTTP. Exactly one outcome reaches the
sender: a response, or the :class:`Broken` way in which its connection ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from simulation.faults import Fault, Weather
from simulation.world import Timer, World
from training.fleet.client.transport import Readable, Response

if TYPE_CHECKING:
    from simulation.coordinator import Coordinator


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    sender: str = ""  # the machine, for the timeline; the receiver does not look at it

    def __str__(self) -> str:
        return f"{self.method} {self.path.removeprefix('/v1/')}"


class Broken(StrEnum):
    """The ways in which a request may end without an answer."""

    REFUSED = "connection refused"
    RESET = "connection reset"
    TIMEOUT = "time-out"


Outcome = Response | Broken


class SimTransport:
    """A client's way to the network: :meth:`ask` gets each request, and says what comes of it."""

    def ask(self, method: str, path: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> Response: ...

    def request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | Readable | None,
        timeout_s: float,
        sink: object = None,
    ) -> Response:
        content = b"" if body is None else body if isinstance(body, bytes) else body.read()
        return self.ask(method, path, content, headers, timeout_s)


Done = Callable[[Outcome], None]


class Connection:
    """The receiver's end of one request: whether anybody is still there, and where the answer goes."""

    def __init__(self, sender: str, answer: Callable[[Response], None], reset: Callable[[], None]) -> None:
        self.sender = sender  # for the timeline
        self.answer = answer
        self.reset = reset  # the receiver died, or hung up
        self.gone: Callable[[], None] | None = None  # called when the client's end is seen to close


class Network:
    """Between the workers' machines and the receiver's."""

    CHUNKS = 4  # pieces of an upload's body

    def __init__(self, world: World, weather: Weather, latency_s: float) -> None:
        self.door: Coordinator
        self._world = world
        self._chance = world.chance("network")
        self._weather = weather
        self._latency_s = latency_s
        self._cut_off: dict[str, float] = {}  # machine → until when it is partitioned
        self._in_its_place: tuple[float, Callable[[Request], Response]] | None = None
        self.calm = False

    def replaced(self, seconds: float, what: str, by: Callable[[Request], Response]) -> None:
        """Somebody else answers the workers for a while."""
        self._in_its_place = self._world.now + seconds, by
        self._world.say("network", f"{what} answers for {seconds:.0f} s")

    def cut_off(self, machine: str, seconds: float) -> None:
        """No message of this machine passes for a while."""
        self._cut_off[machine] = self._world.now + seconds
        self._world.say(machine, f"partitioned for {seconds:.0f} s")

    def heal(self) -> None:
        self._cut_off.clear()
        self._in_its_place = None
        self.calm = True

    def send(self, request: Request, timeout_s: float, done: Done) -> Callable[[], None]:
        """Deliver ``request`` as the weather allows; ``done`` is called once. Returns how to hang up."""
        call = _Call(self, request, done)
        call.timer = self._world.after(timeout_s, lambda: call.finish(Broken.TIMEOUT))
        if self._partitioned(request):
            return call.hang_up
        if self._strikes(self._weather.lost_request):
            self._world.fault(Fault.LOST_REQUEST, request.sender, str(request))
            return call.hang_up
        self._world.after(self._delay(request), lambda: self._arrive(call))
        if self._strikes(self._weather.duplicate):
            self._world.fault(Fault.DUPLICATE, request.sender, str(request))
            again = _Call(self, request, lambda _: None)
            self._world.after(self._delay(request), lambda: self._arrive(again))
        if self._strikes(self._weather.late):
            late = _Call(self, request, lambda _: None)
            delay_s = self._chance.random() * self._weather.late_s

            def arrive_late() -> None:
                self._world.fault(Fault.REORDER, request.sender, f"{request} ({delay_s:.0f} s old)")
                self._arrive(late)

            self._world.after(delay_s, arrive_late)
        return call.hang_up

    # ── inside ──────────────────────────────────────────────────────────────────────────────

    def _strikes(self, probability: float) -> bool:
        return not self.calm and self._chance.random() < probability

    def _partitioned(self, request: Request) -> bool:
        if self._world.now < self._cut_off.get(request.sender, 0.0):
            self._world.fault(Fault.PARTITION, request.sender, str(request))
            return True
        return False

    def _delay(self, request: Request) -> float:
        delay_s = self._latency_s * (0.5 + self._chance.random())
        if self._strikes(self._weather.delay):
            slow_s = self._weather.delay_s * self._chance.random()
            self._world.fault(Fault.DELAY, request.sender, f"{request} by {slow_s:.1f} s")
            delay_s += slow_s
        return delay_s

    def _arrive(self, call: _Call) -> None:
        request = call.request
        if self._partitioned(request):
            return
        if self._in_its_place is not None and request.sender != "operator":
            until, stranger = self._in_its_place
            if self._world.now < until:
                answer = stranger(request)
                self._world.fault(Fault.STRANGER, request.sender, f"{request} → {answer.status}")
                call.answer(answer)
                return
        if not self.door.up:
            call.reply(Broken.REFUSED)
            return
        if self.door.asleep:  # whoever waits long enough is heard when it wakes up
            self.door.when_awake(lambda: None if call.over else self._arrive(call))
            return
        connection = Connection(request.sender, call.answer, lambda: call.reply(Broken.RESET))
        call.connection = connection
        self._world.say("network", f"{request.sender} → {request}")
        self.door.head(request, connection)
        if request.method == "PUT":
            self._body(call, connection)

    def _body(self, call: _Call, connection: Connection) -> None:
        """Bring the body piece by piece, unless the connection is cut or stalls on the way."""
        body = call.request.body
        if body and self._strikes(self._weather.flip):
            at = self._chance.randrange(len(body))
            body = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
            self._world.fault(Fault.FLIPPED_BIT, call.request.sender, str(call.request))
        size = max(1, -(-len(body) // self.CHUNKS))
        pieces = [body[at : at + size] for at in range(0, len(body), size)]
        cut_at = None
        if self._strikes(self._weather.cut):
            cut_at = self._chance.randrange(len(pieces) + 1)
        elapsed = 0.0
        for number, piece in enumerate(pieces):
            elapsed += self._latency_s * self._chance.random()
            if self._strikes(self._weather.stall):
                elapsed += self._weather.delay_s * 4 * self._chance.random()
                self._world.fault(Fault.STALLED_UPLOAD, call.request.sender, str(call.request))
            if number == cut_at:
                self._world.after(elapsed, lambda: self._cut(call, connection))
                return
            self._later(elapsed, lambda piece=piece: self.door.piece(connection, piece))
        if cut_at is not None:
            self._world.after(elapsed, lambda: self._cut(call, connection))
            return
        self._later(elapsed, lambda: self.door.piece(connection, None))

    def _later(self, delay_s: float, thunk: Callable[[], None]) -> None:
        self._world.after(delay_s, lambda: self.door.when_awake(thunk))

    def _cut(self, call: _Call, connection: Connection) -> None:
        self._world.fault(Fault.CUT_UPLOAD, call.request.sender, str(call.request))
        self.door.when_awake(lambda: self.door.cut(connection))
        call.reply(Broken.RESET)

    def back(self, call: _Call, response: Response) -> None:
        """An answer sets out."""
        request = call.request
        if self._partitioned(request):
            return
        if self._strikes(self._weather.lost_answer):
            self._world.fault(Fault.LOST_ANSWER, request.sender, f"{request} → {response.status}")
            return
        delay_s = self._delay(request)
        if "/piece/" in request.path and response.body and self._strikes(self._weather.flip):
            response = replace(response, body=bytes([response.body[0] ^ 1]) + response.body[1:])
            self._world.fault(Fault.FLIPPED_BIT, request.sender, str(request))
        self._world.after(delay_s, lambda: call.reply(response))
        if delay_s > 2.0 and self._strikes(0.1):  # a line often fails after it has become slow
            self.cut_off(request.sender, self._chance.random() * 4 * self._weather.delay_s)

    def close_seen(self, call: _Call) -> None:
        """The client's end closed; the receiver sees it soon, or never."""
        connection = call.connection
        if connection is not None and connection.gone is not None and self._chance.random() < 0.7:
            self._world.after(self._latency_s, connection.gone)


class _Call:
    """One request on its way. Whatever comes first ends it."""

    def __init__(self, network: Network, request: Request, done: Done) -> None:
        self.request = request
        self.over = False
        self.timer: Timer | None = None
        self.connection: Connection | None = None
        self._network = network
        self._done = done

    def answer(self, response: Response) -> None:
        self._network.back(self, response)

    def reply(self, outcome: Outcome) -> None:
        if not self.over:
            self.finish(outcome)

    def finish(self, outcome: Outcome) -> None:
        if self.over:
            return
        self.over = True
        if self.timer is not None:
            self.timer.cancel()
        if outcome is Broken.TIMEOUT:
            self._network.close_seen(self)
        self._done(outcome)

    def hang_up(self) -> None:
        """The sender is gone; nobody hears what comes of it."""
        if not self.over:
            self.over = True
            self.timer.cancel()
            self._network.close_seen(self)

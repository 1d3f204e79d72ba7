"""uvicorn's HTTP protocol with limits that uvicorn lacks.

uvicorn waits without end for the rest of a header or a body and takes headers of any size. bodies.py has the deadlines
for bodies that endpoints read; this module has the other deadlines and limits.
"""

import asyncio
import socket
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from training.fleet.receiver.http.problems import raw_response
from training.fleet.wire.constants import ProblemType, Refusal
from training.fleet.wire.identity import Entrance, Peer, peer_of

HEADER_BYTES_MAX = 32 * 1024
HEADER_S = 10.0  # from the first byte of a request to the end of its header
UNREAD_BODY_S = 60.0  # for the rest of a body whose request was answered
EACH_MAX = 256  # connections of one host, operator or IP address; a worker needs five


class GuardedProtocol(HttpToolsProtocol):
    """A connection with deadlines for headers and unread bodies, a limit on the headers' size, and a limit on
    connections of one client."""

    header_s = HEADER_S
    unread_body_s = UNREAD_BODY_S
    each_max = EACH_MAX

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_header = self._in_body = False
        self._header_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._refused: Refusal | None = None
        self.peer = Peer(Entrance.LOCAL)
        self.whose: str | None = None
        self._answering: list[Any] = []  # requests, from the end of their header to that of their answer

    # -- asyncio's callbacks ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.peer = _peer(transport)
        self.whose = _whose(self.peer, self.client)
        self._arm(self.header_s)
        if self.whose is not None and self._as_mine() > self.each_max:
            self.whose = None  # a refused connection does not count while it closes
            detail = f"{self.each_max} connections are open already from here; close some and try again"
            self._hang_up(Refusal(ProblemType.SLOW_DOWN, detail))

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if not self._in_header:
            return
        self._header_bytes += len(data)
        if self._header_bytes > HEADER_BYTES_MAX:
            self._hang_up(_too_large())
        elif self._deadline is None:
            self._arm(self.header_s)

    def eof_received(self) -> None:
        """Refuse a request in whose middle the client closes its sending side, and close the connection."""
        if self._in_header or self._in_body:
            detail = "the request ended early; send it again (an upload resumes where it stopped)"
            self._hang_up(Refusal(ProblemType.BAD_REQUEST, detail))

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    # -- the parser's callbacks ---------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"]["peer"] = self.peer
        self._in_header, self._header_bytes = True, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > HEADER_BYTES_MAX:
            self._refused = _too_large()
            raise ValueError("header too large")  # the parser stops and `send_400_response` is called

    def on_headers_complete(self) -> None:
        self._disarm()
        self._in_header, self._in_body = False, True
        super().on_headers_complete()
        # While the first of pipelined requests is answered, uvicorn remembers only the last.
        self._answering = [each for each in self._answering if not each.response_complete]
        self._answering.append(self.cycle)

    def on_message_complete(self) -> None:
        self._in_body = False
        self._disarm()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._in_body:
            self._arm(self.unread_body_s)

    def _as_mine(self) -> int:
        return sum(getattr(each, "whose", None) == self.whose for each in self.connections)

    # -- refusing -----------------------------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that uvicorn's parser rejects: with 413 if the header was too large, else with 400."""
        self._hang_up(self._refused or Refusal(ProblemType.BAD_REQUEST, msg))

    def _hang_up(self, refusal: Refusal) -> None:
        begun = self.cycle is not None and self.cycle.response_started and not self._in_header
        self._in_header = self._in_body = False
        self._disarm()
        self.pipeline.clear()
        for cycle in self._answering:  # the client has gone
            cycle.disconnected = True
            cycle.message_event.set()
        if not self.transport.is_closing():
            if not begun:
                self.transport.write(raw_response(refusal, self.server_state.default_headers))
            self.transport.close()

    def _too_slow(self) -> None:
        self._deadline = None
        if self._in_header:
            detail = "the header took too long to arrive; send the request again"
            self._hang_up(Refusal(ProblemType.REQUEST_TIMEOUT, detail))
        else:
            self.transport.close()

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self._deadline = self.loop.call_later(seconds, self._too_slow)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _peer(transport: asyncio.Transport) -> Peer:
    """Read the client's identity from the connection itself; uvicorn does not pass it to applications."""
    tls = transport.get_extra_info("ssl_object")
    if tls is not None:
        return peer_of(tls.getpeercert(), tls.getpeercert(binary_form=True))
    own = transport.get_extra_info("socket")
    unix = own is not None and own.family == getattr(socket, "AF_UNIX", None)
    return Peer(Entrance.PROXY if unix else Entrance.LOCAL)


def _whose(peer: Peer, client: tuple[str, int] | None) -> str | None:
    """Name the client for whose limit a connection counts: by its certificate's names or fingerprint, or else its IP
    address. None for loopback and for a proxy, because all clients would share one limit."""
    if peer.channel is not Entrance.TLS:
        return None
    if peer.uris or peer.fingerprint:
        return " ".join(peer.uris) or peer.fingerprint
    return client[0] if client else None


def _too_large() -> Refusal:
    return Refusal(ProblemType.TOO_LARGE, f"the header is larger than {HEADER_BYTES_MAX} bytes")

"""A bad network between worker and receiver: it knows HTTP well enough to strike at a given byte of a given request."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
from dataclasses import dataclass

NEWLINES = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
BLOCK = 64 * 1024

# How many bytes of a message with a header of h and n bytes in all are let through.
PLACES = {
    "nothing": lambda h, n: 0,
    "one byte": lambda h, n: 1,
    "in the header": lambda h, n: h // 2,
    "the header": lambda h, n: h,
    "half the body": lambda h, n: h + (n - h) // 2,
    "all but a byte": lambda h, n: n - 1,
    "all": lambda h, n: n,
}


@dataclass(frozen=True)
class Strike:
    """The fault that strikes, once, the first request of a kind: ``how`` is cut, hang, double or slow."""

    kind: str  # "POST claim", "PUT model", …
    how: str
    where: str = "all"
    answer: bool = False  # of the answer, not of the request

    def __str__(self) -> str:
        whose = "the answer" if self.answer else "the request"
        return f"{self.how} {self.kind} after {self.where} of {whose}"


class Relay:
    """Listens beside the receiver. One thread a connection; ``with`` closes what is open."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        self._strike: Strike | None = None
        self._lock = threading.Lock()
        self.struck = threading.Event()
        self.seen: set[str] = set()  # kinds of requests
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        for each in self._sockets:
            each.close()

    def arm(self, strike: Strike) -> None:
        with self._lock:
            self.struck.clear()
            self._strike = strike

    def disarm(self) -> None:
        with self._lock:
            self._strike = None

    def _take(self, kind: str) -> Strike | None:
        with self._lock:
            self.seen.add(kind)
            if self._strike is None or self._strike.kind != kind:
                return None
            strike, self._strike = self._strike, None
            return strike

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            client.settimeout(120)
            server = self._dial()
            with server:
                while request := _message(client):
                    strike = self._take(_kind(request))
                    if not self._exchange(client, server, request, strike):
                        return

    def _dial(self) -> socket.socket:
        server = socket.create_connection(("127.0.0.1", self._port), timeout=120)
        self._sockets.append(server)
        return server

    def _exchange(self, client: socket.socket, server: socket.socket, request: bytes, strike: Strike | None) -> bool:
        """One request and its answer; False when the connection is no more."""
        if strike is not None and not strike.answer and strike.how in ("cut", "hang"):
            server.sendall(request[: _upto(request, strike.where)])
            return self._end(client, server, strike)
        if strike is not None and strike.how == "slow":
            _slowly(server, request)
        else:
            server.sendall(request)
        answer = _message(server, head_only=request.startswith(b"HEAD "))
        if strike is not None and strike.how == "double":
            with self._dial() as again:  # the network delivers it twice
                again.sendall(request)
                _message(again, head_only=request.startswith(b"HEAD "))
        if strike is not None and strike.answer:
            client.sendall(answer[: _upto(answer, strike.where)])
            return self._end(client, server, strike)
        if strike is not None and strike.how == "slow":
            _slowly(client, answer)
        else:
            client.sendall(answer)
        if strike is not None:
            self.struck.set()
        return bool(answer)

    def _end(self, client: socket.socket, server: socket.socket, strike: Strike) -> bool:
        self.struck.set()
        if strike.how == "hang":  # half open: nobody is told that it is over
            client.recv(1)
            return False
        for each in (client, server):
            with contextlib.suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False


def _upto(message: bytes, where: str) -> int:
    head = message.index(NEWLINES) + len(NEWLINES) if NEWLINES in message else len(message)
    return int(PLACES[where](head, len(message)))


def _slowly(target: socket.socket, data: bytes, bytes_per_s: int = 8000) -> None:
    """In drops: a kilobyte an eighth of a second."""
    for at in range(0, len(data), 1000):
        target.sendall(data[at : at + 1000])
        threading.Event().wait(1000 / bytes_per_s)


def _message(source: socket.socket, *, head_only: bool = False) -> bytes:
    """A whole request or answer; empty at the end of the connection."""
    data = b""
    while NEWLINES not in data:
        piece = source.recv(BLOCK)
        if not piece:
            return b""
        data += piece
    head = data.index(NEWLINES) + len(NEWLINES)
    length = _LENGTH.search(data[:head])
    whole = head + (0 if head_only or length is None else int(length[1]))
    while len(data) < whole:
        piece = source.recv(BLOCK)
        if not piece:
            return b""
        data += piece
    return data


def _kind(request: bytes) -> str:
    method, path = request.split(b" ", 2)[:2]
    words = path.decode().split("?")[0].strip("/").split("/")
    named = next((word for word in ("model", "piece", "dataset") if word in words), words[-1])
    return f"{method.decode()} {named}"

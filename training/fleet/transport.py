"""One HTTP request and its answer, over the standard library; tests and the simulation plug in their own.

:class:`HttpTransport` keeps connections alive and may be used from several threads at once: each request takes an
idle connection or opens one. It never retries; what may be tried again is :mod:`training.fleet.client`'s question.
"""

from __future__ import annotations

import http.client
import select
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urlsplit

BLOCK_BYTES = 1024 * 1024
_CUT = (
    http.client.RemoteDisconnected,
    http.client.IncompleteRead,
    ConnectionResetError,
    BrokenPipeError,
)
ANSWER_BYTES_MAX = 64 * 1024**2  # of an answer that is kept in memory


class Readable(Protocol):
    """A request's body that is read piece by piece; the Content-Length header says how long it is."""

    def read(self, size: int = -1, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Response:
    """An answer, whatever its status. Header names are in lower case."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class TransportError(Exception):
    """Nobody answered, or the answer broke off. The request may or may not have had its effect."""


class Transport(Protocol):
    """What the client needs from a network."""

    def request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | Readable | None,
        timeout_s: float,
        sink: Callable[[bytes], object] | None = None,
    ) -> Response:
        """Send and wait for the whole answer. ``timeout_s`` bounds every single wait for the other side.

        With ``sink``, the body of a 2xx answer goes there in pieces and ``Response.body`` is empty. Raises
        TransportError.
        """
        ...


class HttpTransport:
    """HTTP/1.1 with kept-alive connections to one origin."""

    def __init__(self, base_url: str, *, tls: ssl.SSLContext | None = None) -> None:
        """``base_url`` is ``http[s]://host[:port][/prefix]``; anything else is a ValueError in one sentence."""
        url = urlsplit(base_url)
        try:
            port = url.port
        except ValueError:
            port = -1
        if url.scheme not in ("http", "https") or not url.hostname or port == -1 or url.query:
            raise ValueError(
                f"{base_url!r} is not a receiver's address; it looks like http://10.100.0.1:8445"
            )
        self._host, self._port, self._prefix = url.hostname, port, url.path.rstrip("/")
        self._secure, self._tls = url.scheme == "https", tls
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    def request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | Readable | None,
        timeout_s: float,
        sink: Callable[[bytes], object] | None = None,
    ) -> Response:
        connection = self._take(timeout_s)
        try:
            answer = self._exchange(connection, method, path, headers, body)
            found = {name.lower(): value for name, value in answer.getheaders()}
            if sink is not None and 200 <= answer.status < 300:
                while piece := answer.read(BLOCK_BYTES):
                    sink(piece)
                content = b""
            else:
                content = answer.read(ANSWER_BYTES_MAX)
            if answer.length:  # `read` with a size keeps quiet about an early end
                raise http.client.IncompleteRead(content, answer.length)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise TransportError(_words(error)) from error
        except (
            BaseException
        ):  # the sink failed, or the program is stopping: what is left unread spoils the connection
            connection.close()
            raise
        if answer.isclosed() and not answer.will_close:
            with self._lock:
                self._idle.append(connection)
        else:
            connection.close()
        return Response(answer.status, found, content)

    def close(self) -> None:
        """Close the idle connections; the transport stays usable."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | Readable | None,
    ) -> http.client.HTTPResponse:
        try:
            connection.request(method, self._prefix + path, body=body, headers=dict(headers))
        except (BrokenPipeError, ConnectionResetError):
            # The other side may have refused the body and hung up; what it said before counts.
            try:
                return connection.getresponse()
            except (OSError, http.client.HTTPException):
                pass
            raise
        return connection.getresponse()

    def _take(self, timeout_s: float) -> http.client.HTTPConnection:
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self._new(timeout_s)
            if connection.sock is not None and not _readable(connection):
                connection.timeout = timeout_s
                connection.sock.settimeout(timeout_s)
                return connection
            connection.close()  # the other side has hung up while it was idle

    def _new(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._secure:
            return http.client.HTTPSConnection(
                self._host,
                self._port,
                timeout=timeout_s,
                blocksize=BLOCK_BYTES,
                context=self._tls,
            )
        return http.client.HTTPConnection(
            self._host, self._port, timeout=timeout_s, blocksize=BLOCK_BYTES
        )


def _readable(connection: http.client.HTTPConnection) -> bool:
    """Whether an idle connection has something to say, which can only be good-bye."""
    try:
        return bool(select.select([connection.sock], [], [], 0)[0])
    except (OSError, ValueError):
        return True


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, _CUT):
        return "the connection was cut"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__} {error}".strip()

"""Send one HTTP request and read its answer, over the standard library; tests and the simulation replace the transport
by their own.

:class:`HttpTransport` keeps connections alive and may be used from several threads at once: each request takes an idle
connection or opens one. :class:`HttpTransport` repeats a request only if an idle connection turns out to be closed, and
the body is no file; the retry table is in answers.py.
"""

from __future__ import annotations

import contextlib
import http.client
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import NamedTuple, Protocol

from training.crashpoint import crashpoint
from training.fleet.client.address import Address
from training.fleet.client.proxy import proxy_for
from training.frozen import frozen

BLOCK_BYTES = 1024 * 1024
ANSWER_BYTES_MAX = 64 * 1024**2  # of an answer that is kept in memory
_FAILURES = (OSError, http.client.HTTPException)
_IS_TLS = "TLS is spoken there: the address begins with https://"
_HANDSHAKE_S = 2.0  # for the look whether TLS is spoken
_HUNG_UP = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)


class Readable(Protocol):
    """A request's body that is read in blocks; the Content-Length header has its length."""

    def read(self, size: int = -1, /) -> bytes: ...


@frozen
class Response:
    """An answer of any status. Header names are in lower case."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class TransportError(Exception):
    """No answer, or an incomplete one. The receiver may still have carried out the request."""


class _OwnFileError(Exception):
    """A file on this machine could not be read or written; this says nothing about the receiver."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error)
        self.error = error


@contextlib.contextmanager
def _own_file() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _OwnFileError(error) from error


class _Body:
    """A request's body. A failure to read its file raises another error than a failure of the network."""

    def __init__(self, file: Readable) -> None:
        self._file = file

    def read(self, size: int = -1, /) -> bytes:
        with _own_file():
            return self._file.read(size)


Body = bytes | Readable | None
Sink = Callable[[bytes], object]


class Transport(Protocol):
    """The interface through which the client uses the network."""

    def request(
        self, method: str, path: str, headers: Mapping[str, str], body: Body, timeout_s: float, sink: Sink | None = None
    ) -> Response:
        """Send a request and return the whole answer. ``timeout_s`` bounds each wait for the other side.

        With ``sink``, the body of a 2xx answer goes there in blocks and ``Response.body`` is empty. Raises
        TransportError, and the OSError of a body that cannot be read or of a sink.
        """
        ...


class _Deadline:
    """A deadline after which the connection under :meth:`watch` is cut; with ``seconds`` None there is no deadline."""

    def __init__(self, seconds: float | None) -> None:
        self.words = ""  # once it has cut
        self._seconds = seconds
        self._sock: socket.socket | None = None
        self._timer = threading.Timer(seconds or 0.0, self._cut)
        self._timer.daemon = True

    def __enter__(self) -> _Deadline:
        if self._seconds is not None:
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def watch(self, connection: http.client.HTTPConnection) -> None:
        self._sock = connection.sock

    def _cut(self) -> None:
        self.words = f"no whole answer within {self._seconds:.0f} s"
        if self._sock is not None:
            with contextlib.suppress(OSError):  # the socket below TLS: TLS itself is in use by the reader
                socket.socket.shutdown(self._sock, socket.SHUT_RDWR)


class _Asked(NamedTuple):
    method: str
    address: str
    body: Body
    headers: dict[str, str]


class HttpTransport:
    """A transport over HTTP/1.1 with kept-alive connections to one origin."""

    def __init__(self, base_url: str, *, tls: ssl.SSLContext | None = None, answer_s: float | None = None) -> None:
        """``base_url`` is ``http[s]://host[:port][/prefix]``; anything else raises ValueError.

        ``answer_s``, or the request's ``timeout_s`` if that is longer, bounds a whole exchange that transfers no file,
        even if bytes keep arriving slowly. With ``answer_s`` None, no exchange is bounded as a whole.
        """
        self._answer_s = answer_s
        self._at = Address.of(base_url)
        # Without a context no receiver is trusted: the system's authorities do not know a receiver's own.
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if self._at.secure and tls is None else tls
        self._proxy = proxy_for(self._at)
        self._idle: list[http.client.HTTPConnection] = []
        self._answered = False  # ever: then no TLS is spoken at an address that begins with http://
        self._lock = threading.Lock()

    def request(
        self, method: str, path: str, headers: Mapping[str, str], body: Body, timeout_s: float, sink: Sink | None = None
    ) -> Response:
        bounded = self._answer_s is not None and sink is None and isinstance(body, bytes | None)
        own = body if isinstance(body, bytes | None) else _Body(body)
        connection = None
        with _Deadline(max(self._answer_s or 0.0, timeout_s) if bounded else None) as deadline:
            try:
                asked = _Asked(method, self._at.prefix + path, own, dict(headers))
                connection, answer = self._converse(asked, timeout_s, deadline)
                if answer.length is None and not answer.chunked:
                    # An end that is only the end of the connection cannot be told from a cut, not even in the header.
                    raise http.client.HTTPException("an answer without a length")
                content = _read(answer, sink if 200 <= answer.status < 300 else None)
            # The sink failed, or the program is stopping: the rest spoils the connection.
            except BaseException as error:
                if connection is not None:
                    connection.close()
                if isinstance(error, _OwnFileError):
                    raise error.error from None
                if isinstance(error, _FAILURES):
                    through = f"through the proxy {self._proxy.host}: " if self._proxy else ""
                    raise TransportError(through + (deadline.words or _words(error))) from error
                raise
        self._answered = True
        if answer.will_close:
            connection.close()
        else:
            with self._lock:
                self._idle.append(connection)
        return Response(answer.status, {name.lower(): value for name, value in answer.getheaders()}, content)

    def wait_for_hangup(self, timeout_s: float) -> bool:
        """Wait until the other side closes the idle connection that was used last, at most ``timeout_s`` seconds.

        Return True if the other side closed the connection in time, or if no connection is idle.
        """
        with self._lock:
            connection = self._idle[-1] if self._idle else None
        return connection is None or _readable(connection, timeout_s)

    def close(self) -> None:
        """Close the idle connections; the transport stays usable."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _converse(
        self, asked: _Asked, timeout_s: float, deadline: _Deadline
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """Send the request over an idle connection or a new one, and read the answer's header. If an idle connection
        turns out to be closed, try the next one, unless the body is a file."""
        while True:
            idle = self._take(timeout_s)
            connection = idle or self._new(timeout_s)
            try:
                if connection.sock is None:
                    connection.connect()
                deadline.watch(connection)
                return connection, _exchange(connection, asked)
            except _HUNG_UP as error:
                connection.close()
                if idle is None and not (self._at.secure or self._answered or deadline.words):
                    tls = f"; {_IS_TLS}" if _speaks_tls(connection.host, connection.port) else ""
                    raise TransportError(f"{_words(error)}{tls}") from error
                # The other side may have hung up just when its idle connection was taken up again.
                if idle is None or deadline.words or not isinstance(asked.body, bytes | None):
                    raise
            except BaseException:
                connection.close()
                raise

    def _take(self, timeout_s: float) -> http.client.HTTPConnection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if connection.sock is not None and not _readable(connection):
                connection.timeout = timeout_s
                connection.sock.settimeout(timeout_s)
                return connection
            connection.close()  # the other side has hung up while it was idle

    def _new(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._at.secure:
            via = self._proxy or self._at
            connection = http.client.HTTPSConnection(
                via.host, via.port, timeout=timeout_s, blocksize=BLOCK_BYTES, context=self._tls
            )
            if self._proxy:  # TLS is spoken with the receiver, inside the tunnel
                connection.set_tunnel(self._at.host, self._at.port, self._proxy.headers)
            return connection
        return http.client.HTTPConnection(self._at.host, self._at.port, timeout=timeout_s, blocksize=BLOCK_BYTES)


def _exchange(connection: http.client.HTTPConnection, asked: _Asked) -> http.client.HTTPResponse:
    try:
        connection.request(*asked)
    except (BrokenPipeError, ConnectionResetError):
        if connection.sock is None:  # it died while the connection was being made
            raise
        # The other side may have refused the body and hung up; its earlier answer counts.
        with contextlib.suppress(*_FAILURES):
            return connection.getresponse()
        raise
    crashpoint("client.sent", asked.method)
    return connection.getresponse()


def _read(answer: http.client.HTTPResponse, sink: Sink | None) -> bytes:
    content = b""
    if sink is None:
        content = answer.read(ANSWER_BYTES_MAX)
    else:
        while block := answer.read(BLOCK_BYTES):
            with _own_file():
                sink(block)
    if answer.length:  # `read` with a size reports no early end
        raise http.client.IncompleteRead(content, answer.length)
    return content


def _speaks_tls(host: str, port: int) -> bool:
    """Tell whether a TLS handshake at this host and port succeeds. A cut connection alone does not show that TLS is
    spoken: an overloaded receiver cuts connections, too."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection((host, port), _HANDSHAKE_S) as plain, context.wrap_socket(plain):
            return True
    except OSError:
        return False


def _readable(connection: http.client.HTTPConnection, timeout_s: float = 0) -> bool:
    """Return True if an idle connection becomes readable within ``timeout_s``: as no answer is due, the other side has
    closed it."""
    try:
        return bool(select.select([connection.sock], [], [], timeout_s)[0])
    except (OSError, ValueError):
        return True


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, ssl.SSLError):
        return _tls_words(error)
    if isinstance(error, (*_HUNG_UP, http.client.IncompleteRead)):
        return "the connection was cut"
    if isinstance(error, OSError) and str(error):
        return error.strerror or str(error)
    return f"{type(error).__name__} {error}".strip()


# TLS alerts and errors, in words for people.
_TLS_WORDS = (
    ("CERTIFICATE_EXPIRED", "this machine's certificate has expired; enroll it again"),
    ("UNKNOWN_CA", "this machine's certificate is another receiver's; enroll it again"),
    ("DECRYPT_ERROR", "this machine's certificate is another receiver's; enroll it again"),
    ("UNSUPPORTED_CERTIFICATE", "this machine's certificate is not one for a client"),
    ("BAD_CERTIFICATE", "this machine's certificate is not good (yet); is the clock right?"),
    ("PROTOCOL_VERSION", "it does not speak TLS 1.3"),
    ("WRONG_VERSION_NUMBER", "it does not speak TLS; is the address http:// and not https://?"),
)

# OpenSSL's numbers for an unknown authority.
_UNKNOWN_AUTHORITY = (18, 19, 20, 21)


def _tls_words(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = "check the address, and the receiver's --public-name"
        if error.verify_code in _UNKNOWN_AUTHORITY:
            remedy = (
                "this machine has not joined it; `cis490-jobs enroll` there prints the line (on the receiver's own "
                "machine set CIS490_TLS_DIR to its folder of certificates, `tls` beside its database)"
            )
        return f"the program that answers there does not prove to be the receiver ({error.verify_message}): {remedy}"
    reason = error.reason or str(error)
    for mark, words in _TLS_WORDS:
        if mark in reason:
            return words
    return f"the encrypted connection failed ({reason})"

"""The server that runs the application: its wake-ups, periodic work, and shutdown."""

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from types import FrameType
from typing import Any

from starlette.applications import Starlette
from uvicorn.config import Config
from uvicorn.server import Server as UvicornServer

from training.fleet.database.writer import DatabaseError
from training.fleet.receiver.hangups import EARLY, on_hangup
from training.fleet.receiver.http.connection import GuardedProtocol
from training.fleet.receiver.http.context import ReceiverContext
from training.fleet.receiver.http.gc import forget_states, keep_house
from training.fleet.receiver.http.notify import LOOK_S, Notifier
from training.fleet.receiver.http.steps import carry_out
from training.fleet.receiver.security.tls import Security
from training.fleet.store.errors import StoreError
from training.fleet.wire.constants import HEADER_DATABASE, Refusal
from training.logs import HOURLY

logger = logging.getLogger(__name__)

PART_SWEEP_S = 3600.0
FOLD_S = 10.0
KEEP_ALIVE_S = 75  # longer than the pause between two heartbeats
CERTIFICATE_S = 3600.0  # between two looks at the receiver's own certificate
HANDSHAKE_S = 10.0
GOODBYE_S = 1.0  # an idle client reads our closing only at its next request
BACKLOG = 1024
CONNECTIONS_MAX = 4096
GRACE_S = 10  # for requests under way when the receiver stops; uploads resume later


def configuration(app: Starlette) -> Config:
    """Configure uvicorn: limits on connections and waits, no access log, and above all no trust in forwarded addresses.

    Every answer has the header that names the database.
    """
    return Config(
        app,
        http=GuardedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        headers=[(HEADER_DATABASE, app.state.context.database_id)],
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
        limit_concurrency=CONNECTIONS_MAX,
    )


class Server(UvicornServer):
    """A server like uvicorn's that wakes only for work, runs the periodic work, and ends waiting claims before it
    stops."""

    def __init__(
        self,
        config: Config,
        context: ReceiverContext,
        security: Security | None = None,
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        """``on_stop`` ends waits outside of the server; :meth:`stop` calls it, from any thread or signal handler."""
        super().__init__(config)
        self._on_stop = on_stop
        self._context = context
        self._security = security
        context.hang_up = self._hang_up
        self._notifier = Notifier(context)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        """Make the server answer the requests in progress, then end; do not wait for that. Any thread or signal handler
        may call it."""
        self.should_exit = True
        self._on_stop()
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.set)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self.stop()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Catch signals as uvicorn does, but end a requested stop with exit code 0."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        wanted = [signal.SIGINT, signal.SIGTERM]
        before = {number: signal.signal(number, self.handle_exit) for number in wanted}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on the open ``sockets``, which may be a proxy's Unix socket. Unlike uvicorn's own method, set a
        deadline for TLS handshakes."""
        loop = asyncio.get_running_loop()
        self.server_state.default_headers = self.config.encoded_headers  # uvicorn's own loop is not ours

        def protocol() -> asyncio.Protocol:
            return self.config.http_protocol_class(  # type: ignore[call-arg]
                config=self.config, server_state=self.server_state, app_state={}, _loop=loop
            )

        tls: dict[str, Any] = {}
        if self._security is not None:
            tls = {"ssl": self._security.context, "ssl_handshake_timeout": HANDSHAKE_S}
            tls["ssl_shutdown_timeout"] = GOODBYE_S
        self.servers: list[asyncio.Server] = []
        for each in sockets or ():
            if each.family == getattr(socket, "AF_UNIX", None):
                server = await loop.create_unix_server(protocol, sock=each, backlog=BACKLOG)
            else:
                server = await loop.create_server(protocol, sock=each, backlog=BACKLOG, **tls)
            self.servers.append(server)
        self.started = True

    def _hang_up(self, revoked: Callable[[str], bool]) -> None:
        """Close every connection whose certificate was revoked, even in the middle of a request."""
        for connection in list(self.server_state.connections):
            peer = getattr(connection, "peer", None)
            if peer is not None and peer.fingerprint is not None and revoked(peer.fingerprint):
                connection.transport.abort()

    async def main_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        on_hangup(self._on_hangup)  # not the loop's own way: its handlers end with the loop, before this program
        if EARLY:  # the plan may have been edited after it was read
            self._on_hangup()
        period_s = self._context.service.policy.sweep_period_s
        for seconds, work in (
            (period_s, self._context.tick),
            (period_s, partial(forget_states, self._context)),
            (PART_SWEEP_S, self._context.sweep_parts),
            (0.0, self._fold),
            (PART_SWEEP_S, partial(keep_house, self._context)),
            (LOOK_S, self._notifier.tick),
            (PART_SWEEP_S, self._notifier.forget_old),
            (CERTIFICATE_S, self._look_at_certificate),
        ):
            self._start(self._every(seconds, work))
        if not self.should_exit:
            await self._stop.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._context.room.close()
        self._notifier.close()
        for task in self._tasks:
            task.cancel()
        await super().shutdown(sockets)

    def _on_hangup(self, *_: object) -> None:
        if self._loop is not None and not self._loop.is_closed() and not self.should_exit:
            self._loop.call_soon_threadsafe(lambda: self._start(self._reload_quietly()))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await work()
            except (DatabaseError, StoreError, Refusal) as error:
                logger.warning("left for the next time: %s", error, extra=HOURLY)

    async def _fold(self) -> None:
        """Wait for ``FOLD_S``, or until there is much new output; then move trainers' output from the database into
        files."""
        news = self._context.much_output
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(news.wait(), FOLD_S)
        news.clear()
        await carry_out(self._context, None, self._context.folding.fold())

    async def _look_at_certificate(self) -> None:
        if self._security is not None:
            await self._context.disk(self._security.tick)

    async def _reload_quietly(self) -> None:
        try:
            await self._context.reload("this machine (SIGHUP)")
        except (Refusal, DatabaseError) as error:
            logger.error("reload: %s", error)

"""Pages that follow what happens: one stream of server-sent events for each page that somebody looks at.

A frame is the page's own middle part, as its address would answer now. It is rendered once for all viewers of an
address, at most once a second, and sent when it differs; its ``id`` is the number of the last event row. A stream needs
no memory of what it sent: whoever comes back gets the present state, and the page of events what happened in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import unquote, urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from training.fleet.database.writer import Database, DatabaseError
from training.fleet.wire.messages import ProblemType, Refusal
from training.fleet.wire.routes import EVENTS

logger = logging.getLogger(__name__)

TICK_S = 1.0
PROGRESS_TICKS = 4  # a change that is no event (progress, a host that asked) may wait so long
AGE_TICKS = 20  # times as "3 min ago" are made anew
STREAMS_MAX = 4  # held for one browser, which opens six connections, and needs some for its pages
HELD_MAX = 200  # held in all
POLL_MS = 2800  # a viewer beyond those comes back after this time, give or take a third
_KEEP_TICKS = 8  # a silent stream shows that it is alive, and notices that its viewer has gone
_ALIVE = b"event: alive\ndata:\n\n"

Make = Callable[[], Awaitable[bytes]]
Pulse = Callable[[], object]  # of what a page shows: it is made anew when that differs


def of_all() -> object:
    """Stand for a page that depends on anything that changes."""
    return None


@dataclass(eq=False)
class Topic:
    """A page that somebody looks at."""

    make: Make
    pulse: Pulse = of_all
    viewers: int = 0
    beat: object = None  # the pulse when it was rendered
    frame: bytes = b""
    shows: bytes = b""  # the digest of what the frame shows
    number: int = -1  # of the last event when it was rendered
    version: int = -1  # of the database then
    ticks: int = 0  # since then
    over: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def due(self, now: State, patience: int = PROGRESS_TICKS) -> bool:
        """Tell whether to render anew; ``patience``: ticks for which a change that is no event may wait."""
        if self.number != now.number or self.ticks >= AGE_TICKS:
            return True
        return self.ticks >= patience and self.version != now.version and self.beat != now.beats.get(self, ())

    async def render(self, now: State) -> None:
        """Make the frame anew, and wake the viewers when it differs."""
        text = await self.make()
        self.number, self.version, self.beat, self.ticks = now.number, now.version, now.beats.get(self), 0
        shows = hashlib.sha256(text).digest()
        if shows != self.shows:
            lines = b"".join(b"data: " + line + b"\n" for line in text.splitlines())
            self.shows, self.frame = shows, b"retry: %d\nid: %d\n" % (POLL_MS, now.number) + lines + b"\n"
            self.news.set()
            self.news = asyncio.Event()


@dataclass(frozen=True, slots=True)
class State:
    """The database as a look found it: its last event, its version, and the pulse of each topic that has one."""

    number: int
    version: int
    beats: Mapping[Topic, object]


class Stream(Response):
    """An answer that goes on. Starlette's own would load the second half of anyio, more than a megabyte."""

    media_type = EVENTS

    def __init__(self, frames: AsyncGenerator[bytes, None], first: bytes, headers: Mapping[str, str]) -> None:
        super().__init__(headers=headers)
        del self.headers["content-length"]
        self._frames, self._first = frames, first

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(_disconnect(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": self._first, "more_body": True})
            async for frame in self._frames:
                if gone.done():
                    return
                await send({"type": "http.response.body", "body": frame, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            gone.cancel()
            await self._frames.aclose()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Live:
    """The topics, and the one task that renders them while there are viewers."""

    def __init__(self, database: Database, look: Callable[[Callable[[], State]], Awaitable[State]]) -> None:
        self._db = database
        self._look = look
        self._topics: dict[str, Topic] = {}
        self._streams: Counter[str] = Counter()
        self._task: asyncio.Task[None] | None = None
        self.closed = False

    @property
    def viewers(self) -> int:
        return sum(topic.viewers for topic in self._topics.values())

    async def _enter(self, address: str, make: Make, pulse: Pulse) -> Topic:
        """Join the viewers of a page, with a frame that is at most a tick old: a viewer may not stay for the next."""
        topic = self._topics.get(address)
        if topic is None:
            topic = Topic(make, pulse)
            await topic.render(await self._look(partial(self._state, [topic])))
            topic = self._topics.setdefault(address, topic)
        elif topic.ticks:
            now = await self._look(partial(self._state, [topic]))
            if topic.due(now, patience=1):
                await self._render(address, topic, now)
        topic.viewers += 1
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run())
        return topic

    def _leave(self, address: str, topic: Topic) -> None:
        topic.viewers -= 1
        if topic.viewers <= 0 and self._topics.get(address) is topic:
            del self._topics[address]

    async def frames(
        self, address: str, make: Make, who: str, check: Callable[[], None], pulse: Pulse = of_all
    ) -> AsyncGenerator[bytes, None]:
        """Yield frames until the viewer goes or the receiver stops. ``check`` raises when ``who`` may look no more."""
        topic = await self._enter(address, make, pulse)
        holds = self._streams[who] < STREAMS_MAX and self._streams.total() < HELD_MAX
        self._streams[who] += holds
        sent = b""
        try:
            while True:
                news = topic.news
                if topic.frame != sent:
                    sent = topic.frame
                    yield sent
                else:
                    yield _ALIVE
                if not holds or self.closed or topic.over:
                    return
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(news.wait(), _KEEP_TICKS * TICK_S)
                check()
        except Refusal:
            return
        finally:
            self._leave(address, topic)
            self._streams[who] -= holds
            if not self._streams[who]:
                del self._streams[who]

    def close(self) -> None:
        """End all streams: the receiver stops."""
        self.closed = True
        if self._task is not None:
            self._task.cancel()
        for topic in self._topics.values():
            topic.news.set()

    def _state(self, topics: Sequence[Topic]) -> State:
        row = self._db.one("newest_event")
        beats = {topic: topic.pulse() for topic in topics if topic.pulse is not of_all}
        return State(row["seq"] if row is not None else 0, self._db.version(), beats)

    async def _run(self) -> None:
        while self._topics and not self.closed:
            await asyncio.sleep(TICK_S)
            try:
                now = await self._look(partial(self._state, [*self._topics.values()]))
            except DatabaseError:
                continue
            for address, topic in list(self._topics.items()):
                topic.ticks += 1
                if topic.due(now):
                    await self._render(address, topic, now)

    async def _render(self, address: str, topic: Topic, now: State) -> None:
        """Make a topic's frame anew; one that cannot be made ends, and its viewers ask again, each for itself.

        A topic is made on behalf of whoever opened it, who may have been put out since.
        """
        try:
            await topic.render(now)
        except Exception as error:
            if not isinstance(error, DatabaseError | Refusal):
                logger.error("a page could not be followed", exc_info=error)
            self._topics.pop(address, None)
            topic.over = True
            topic.news.set()


def middle(page: bytes) -> bytes:
    """Cut a page's own part out of it."""
    _, opening, rest = page.partition(b"<main")
    inside, closing, _ = rest.partition(b"</main>")
    if not opening or not closing:
        raise Refusal(ProblemType.NOT_FOUND, "this address is no page that can be followed")
    return inside.partition(b">")[2]


def request_for(request: Request, address: str, params: dict[str, str]) -> Request:
    """Make the request that a browser would send for a page, on behalf of the same caller."""
    query = urlsplit(address).query
    headers = [pair for pair in request.scope["headers"] if pair[0] != b"accept-encoding"]
    state = dict(request.scope.get("state", {}))
    scope = {**request.scope, "path": urlsplit(address).path, "query_string": query.encode("ascii", "replace")}
    return Request({**scope, "headers": headers, "path_params": params, "state": state}, request.receive)


def part_of(address: str, path: str) -> dict[str, str] | None:
    """Match an address with a page's path; returns the parts that the path names, None when it is another page."""
    given, wanted = address.partition("?")[0].split("/"), path.split("/")
    if len(given) != len(wanted):
        return None
    found = {}
    for here, there in zip(given, wanted, strict=True):
        if there.startswith("{"):
            found[there.strip("{}")] = unquote(here)
        elif here != there:
            return None
    return found


def body_of(answer: Response) -> bytes:
    """Return a page's bytes; a refusal is none."""
    if answer.status_code != 200:
        raise Refusal(ProblemType.NOT_FOUND, "this address is no page that can be followed")
    return bytes(answer.body)

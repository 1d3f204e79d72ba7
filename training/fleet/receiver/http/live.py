"""Pages that follow what happens: one stream of server-sent events for each page that somebody looks at.

A frame is the page's own middle part, as its address would answer now. It is rendered once for all viewers of an
address, at most once a second, and sent when it differs; its ``id`` is the number of the last event row. A stream needs
no memory of what it sent: whoever comes back gets the present state.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from starlette.requests import Request
from starlette.responses import Response

from training.fleet.database.writer import Database, DatabaseError
from training.fleet.wire.messages import ProblemType, Refusal

logger = logging.getLogger(__name__)

TICK_S = 1.0
PROGRESS_TICKS = 4  # a change that is no event (progress, a host that asked) may wait so long
AGE_TICKS = 20  # times as "3 min ago" are made anew
STREAMS_MAX = 4  # held for one address; a browser opens six connections, and needs some for its pages
POLL_MS = 3500  # a viewer beyond those comes back after this time
_KEEP_TICKS = 15  # a silent stream shows that it is alive, and notices that its viewer has gone

Make = Callable[[], Awaitable[bytes]]


@dataclass(eq=False)
class Topic:
    """A page that somebody looks at."""

    make: Make
    viewers: int = 0
    frame: bytes = b""
    text: bytes = b""  # what the frame shows
    number: int = -1  # of the last event when it was rendered
    version: int = -1  # of the database then
    ticks: int = 0  # since then
    over: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def due(self, number: int, version: int) -> bool:
        """Tell whether to render anew."""
        if self.number != number:
            return True
        return self.ticks >= (PROGRESS_TICKS if self.version != version else AGE_TICKS)

    async def render(self, number: int, version: int) -> None:
        """Make the frame anew, and wake the viewers when it differs."""
        text = await self.make()
        self.number, self.version, self.ticks = number, version, 0
        if text != self.text:
            lines = b"".join(b"data: " + line + b"\n" for line in text.splitlines())
            self.text, self.frame = text, b"retry: %d\nid: %d\n" % (POLL_MS, number) + lines + b"\n"
            self.news.set()
            self.news = asyncio.Event()


class Live:
    """The topics, and the one task that renders them while there are viewers."""

    def __init__(self, database: Database, look: Callable[..., Awaitable[tuple[int, int]]]) -> None:
        self._db = database
        self._look = look
        self._topics: dict[str, Topic] = {}
        self._streams: Counter[str] = Counter()
        self._task: asyncio.Task[None] | None = None
        self.closed = False

    @property
    def viewers(self) -> int:
        return sum(topic.viewers for topic in self._topics.values())

    async def _enter(self, address: str, make: Make) -> Topic:
        """Join the viewers of a page, with a frame that is at most a tick old."""
        topic = self._topics.get(address)
        if topic is None:
            topic = Topic(make)
            await topic.render(*await self._look(self._state))
            topic = self._topics.setdefault(address, topic)
        topic.viewers += 1
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run())
        return topic

    def _leave(self, address: str, topic: Topic) -> None:
        topic.viewers -= 1
        if topic.viewers <= 0 and self._topics.get(address) is topic:
            del self._topics[address]

    async def frames(self, address: str, make: Make, who: str, check: Callable[[], None]) -> AsyncIterator[bytes]:
        """Yield frames until the viewer goes or the receiver stops. ``check`` raises when ``who`` may look no more."""
        topic = await self._enter(address, make)
        holds = self._streams[who] < STREAMS_MAX
        self._streams[who] += holds
        sent = b""
        try:
            while True:
                news = topic.news
                if topic.frame != sent:
                    sent = topic.frame
                    yield sent
                else:
                    yield b":\n\n"
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

    def _state(self) -> tuple[int, int]:
        row = self._db.one("newest_event")
        return (row["seq"] if row is not None else 0), self._db.version()

    async def _run(self) -> None:
        while self._topics and not self.closed:
            await asyncio.sleep(TICK_S)
            try:
                number, version = await self._look(self._state)
            except DatabaseError:
                continue
            for address, topic in list(self._topics.items()):
                topic.ticks += 1
                if topic.due(number, version):
                    await self._render(address, topic, number, version)

    async def _render(self, address: str, topic: Topic, number: int, version: int) -> None:
        """Make a topic's frame anew; one that cannot be made ends, and its viewers ask again, each for itself.

        A topic is made on behalf of whoever opened it, who may have been put out since.
        """
        try:
            await topic.render(number, version)
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

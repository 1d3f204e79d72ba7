"""Endpoints as generators: the same steps as the receiver's asynchronous ones, one thread, every wait explicit.

An endpoint yields what it waits for and gets its outcome back, as a value or as an exception::

    ticket = yield Commit(call, lambda: service.upload_ticket(…))   # run on the writer, resumed after the commit
    piece = yield PIECE                                             # the next piece of the body; None at its end
    yield News(count, until)                                        # something became claimable, or time is over
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from simulation.network import Connection, Request
from simulation.world import Timer


@dataclass
class Call:
    """The call under way, as the checkers see it."""

    name: str  # claim, heartbeat, complete, fail, ticket, upload, cancel, requeue, reload, tick
    request: Request | None = None
    connection: Connection | None = None
    message: Any = None  # the decoded body
    job_id: str | None = None


@dataclass(frozen=True)
class Commit:
    call: Call
    work: Callable[[], Any]


@dataclass(frozen=True)
class News:
    """Wait until the count of news differs, or until then, or until the client is gone."""

    count: int
    until: float


class Chunk:
    """Wait for the next piece of the body."""


PIECE = Chunk()
Effect = Commit | News | Chunk
Endpoint = Generator[Effect, Any, Any]


class BodyCut(Exception):  # noqa: N818
    """The connection ended before the body did."""


@dataclass(eq=False)
class Process:
    """One endpoint on its way."""

    call: Call
    steps: Endpoint
    wants_piece: bool = False
    pieces: list[bytes | BodyCut | None] = field(default_factory=list)  # that came before they were wanted
    waits: Timer | None = None
    wake: Callable[[], None] | None = None
    gone: bool = False

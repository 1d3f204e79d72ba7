"""Send a call over a transport, look its answer up in the retry table, and repeat the call while that can help."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from training import strict_json
from training.fleet.client import strangers
from training.fleet.client.answers import Stranger, Unavailable, Unreachable, backoff_s, decoded, problem
from training.fleet.client.transport import Body, Response, Sink, Transport, TransportError
from training.fleet.wire.constants import ProblemType
from training.fleet.wire.worker_routes import WORKERS, Route

T = TypeVar("T")

SLOW_S = 300.0  # syncing and hashing gigabytes takes a small board minutes
_SLOW = frozenset({
    "accept", "act_on_jobs", "complete", "deliver", "forecast", "forecast_of", "gc", "gc_now", "keep_state",
    "notify_test", "plan", "plan_of", "publish_dataset", "reload", "remove_dataset",
})  # fmt: skip


@dataclass(kw_only=True)
class Caller:
    """Sends requests to one receiver. ``tries`` bounds how often each request is sent (None: no bound); a call may
    override it."""

    transport: Transport
    base_url: str
    headers: Mapping[str, str]
    tries: int | None
    timeout_s: float
    chance: Callable[[], float]
    sleep: Callable[[float], object]
    granted_by: str | None = None  # the database of a grant: only its answers count
    # The first database that answered, the only one believed, to all callers made of this one; null: each is.
    first: dict[str, str] | None = None

    def call(
        self,
        name: str,
        /,
        *parts: object,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        tries: int | None = None,
        **given: Any,
    ) -> Any:
        """Make the call that has this name in the route table, and return its decoded reply.

        ``parts`` are the variable parts of the call's path. ``given`` has the call's parameters and, unless ``body`` is
        given, the members of the request.
        """
        route = route_of(name)
        known = {each.partition(":")[0] for each in route.parameters}
        query = {each: said for each, said in given.items() if each in known and said is not None and said is not False}
        rest = {each: said for each, said in given.items() if each not in known}
        if rest and route.request is None:
            raise TypeError(f"{name} takes no {', '.join(rest)}")
        if body is None and route.request is not None:
            body = route.request(**rest)
        content = None if route.method == "GET" else b"" if body is None else encoded(body)
        timeout_s = SLOW_S if name in _SLOW else None
        path = address(name, *parts) + _query(query)
        answer = self.again(
            lambda: self.send(route.method, path, body=content, headers=headers, timeout_s=timeout_s), tries
        )
        return decoded(answer, route.reply or dict)

    def again(self, call: Callable[[], T], tries: int | None, advanced: Callable[[], bool] = lambda: False) -> T:
        """Repeat the call, after a pause, until it succeeds, is refused permanently, or fails ``tries`` times. After a
        failure for which the function ``advanced`` returns True, the count begins again. If the tries are limited, a
        full disk of the receiver raises at once, because only a person makes room."""
        most = self.tries if tries is None else tries
        failures = 0
        while True:
            try:
                return call()
            except (Unreachable, Unavailable) as error:
                failures = 1 if advanced() else failures + 1
                full = getattr(error, "problem_type", None) == ProblemType.DISK_FULL
                if most is not None and (failures >= most or full):
                    raise
                least = getattr(error, "retry_after_s", None) or 0.0
            self.sleep(backoff_s(failures, self.chance(), least_s=least))

    def send(
        self,
        method: str,
        path: str,
        *,
        body: Body = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        sink: Sink | None = None,
    ) -> Response:
        """Send one request. Raises Unreachable if no answer came, Stranger if another program or database answered, and
        for any other error answer what ``verdict`` in answers.py names."""
        sent = {"Accept": "application/json", **self.headers, **(headers or {})}
        if isinstance(body, bytes):
            sent["Content-Type"] = "application/json"
        try:
            answer = self.transport.request(method, path, sent, body, timeout_s or self.timeout_s, sink)
        except TransportError as error:
            raise Unreachable(f"cannot reach the receiver at {self.base_url}: {error}") from error
        self._believe(answer)
        if 200 <= answer.status < 300:
            return answer
        raise problem(answer)

    def _believe(self, answer: Response) -> None:
        """Raise Stranger for an answer that another program sent, or a receiver with another database."""
        shown, before = strangers.shown_by(answer), None
        if shown is not None and self.granted_by is None and self.first is not None:
            before = self.first.setdefault("id", shown)  # atomic: there may be several threads
        who = strangers.stranger(answer, self.granted_by, before)
        if who is not None:
            raise Stranger(f"not the receiver answered at {self.base_url} but {who}")


def route_of(name: str) -> Route:
    """Return the row of the route table with this name. For a call that no worker makes, all messages are imported
    first."""
    if name in WORKERS:
        return WORKERS[name]
    from training.fleet.wire.routes import NAMED

    return NAMED[name]


def address(name: str, *parts: object) -> str:
    """Return the path of the call that has this name in the route table, filled with ``parts``."""
    between = re.split(r"\{\w+\}", route_of(name).path)
    ends = [*(segment(str(each)) for each in parts), ""]
    return "".join(start + end for start, end in zip(between, ends, strict=True))


def segment(ref: str) -> str:
    """Quote a segment of a path. Undecodable bytes from a command line become question marks. The segments ``.`` and
    ``..`` are quoted too, because some proxies would change the path."""
    plain = quote(ref, safe="", errors="replace")
    return plain.replace(".", "%2E") if ref in (".", "..") else plain


def encoded(message: object) -> bytes:
    """Encode a message as the JSON body of a request; an undecodable character in it becomes a question mark."""
    return strict_json.dumps(msgspec.to_builtins(message))


def _query(given: Mapping[str, Any]) -> str:
    return "?" + urlencode({name: "true" if said is True else said for name, said in given.items()}) if given else ""

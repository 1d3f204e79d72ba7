"""Calling somebody: an incident's document, its line for people, and the hooks that carry it away.

A hook is a command, which gets the incident as JSON on its standard input, or a web address, to which it is posted.
Both run beside the watch, one call at a time; a call that fails is tried again until it is taken, with the same id.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from training.printable import one_line
from training.trainer.reasons import in_words
from training.trainer.streams import Called

AGAIN_S = 60.0  # between a hook's failure and the next try
TIMEOUT_S = 60.0
MOST_WAITING = 200  # calls; of more the oldest are given up, and said to be

Hook = Callable[[Mapping[str, Any]], None]


class HookError(Exception):
    """A hook did not take a call; the message is a sentence, and no secret is in it."""


def document(
    called: Called,
    *,
    model: str,
    rule: str,
    event: str,
    threshold: float,
    why: Sequence[tuple[str, float]] = (),
    seconds: Sequence[tuple[float, float]] = (),
) -> dict[str, Any]:
    """The JSON values of an incident; times in epoch seconds, ``peak`` in units of the score above the threshold.

    ``why``: the channels that carried its alarms, and their shares; ``seconds``: the spans that did, from and to.
    """
    one = called.incident
    return {
        "event": event,
        "id": called.id,
        "host": called.host,
        "model": model,
        "began_at": one.began,
        "raised_at": one.raised,
        "last_alarm_at": one.last,
        "alarms": one.alarms,
        "peak": one.peak,
        "threshold": threshold,
        "rule": rule,
        "why": [{"channel": channel, "share": round(share, 4)} for channel, share in why],
        "seconds": [[round(start, 3), round(end, 3)] for start, end in seconds],
    }


def line(told: Mapping[str, Any]) -> str:
    """An incident for people, with times in UTC."""
    if told["event"] == "over":
        lasted = told["last_alarm_at"] - told["began_at"]
        return (
            f"{moment(told['last_alarm_at'])} over {told['id']}: {told['alarms']} alarms in {lasted:.0f} s{_why(told)}"
        )
    return (
        f"{moment(told['raised_at'])} INCIDENT {told['id']} on {told['host']}: {told['rule']} "
        f"since {moment(told['began_at'])}{_why(told)}"
    )


def _why(told: Mapping[str, Any]) -> str:
    named = [(str(one["channel"]), float(one["share"])) for one in told.get("why", ())]
    spans = [f"{_clock(start)} to {_clock(end)}" for start, end in told.get("seconds", ())]
    when = f" (from {', '.join(spans)})" if spans else ""
    return f", carried by {in_words(named)}{when}" if named else ""


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")


def moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def command_hook(command: str) -> Hook:
    """Start ``command`` for each call. Raises ValueError for a line that no shell could read."""
    words = shlex.split(command)
    if not words:
        raise ValueError("--exec names no command")
    if shutil.which(words[0]) is None:
        raise ValueError(f"--exec: {words[0]} is no program that can be started: name it with its whole path")

    def call(told: Mapping[str, Any]) -> None:
        data = json.dumps(told).encode() + b"\n"
        try:
            done = subprocess.run(words, input=data, stdout=subprocess.DEVNULL, timeout=TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            raise HookError(f"{words[0]} did not end within {TIMEOUT_S:.0f} s") from None
        except OSError as error:
            raise HookError(f"{words[0]} cannot be started: {error.strerror}") from None
        if done.returncode:
            raise HookError(f"{words[0]} ended with {done.returncode}")

    return call


def webhook(address: str) -> Hook:
    """Post each call to ``address``, which must be http or https, and may be a secret. Raises ValueError."""
    if not address.startswith(("http://", "https://")):
        raise ValueError("--webhook must begin with https:// or http://")

    class NoRedirect(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: object) -> None:
            return None

    opener = urllib.request.build_opener(NoRedirect)

    def call(told: Mapping[str, Any]) -> None:
        headers = {"Content-Type": "application/json", "Idempotency-Key": str(told["id"])}
        try:
            request = urllib.request.Request(address, json.dumps(told).encode(), headers)  # noqa: S310 - checked above
            with opener.open(request, timeout=TIMEOUT_S) as answer:
                answer.read(4096)
        except urllib.error.HTTPError as error:
            with error:
                raise HookError(f"the webhook answered {error.code}") from None
        except urllib.error.URLError as error:
            raise HookError(f"the webhook cannot be reached: {one_line(error.reason, 120)}") from None
        except (OSError, ValueError) as error:
            raise HookError(f"the webhook cannot be reached: {type(error).__name__}") from None

    return call


class Courier:
    """Carries calls to the hooks in a thread of its own; ``waiting`` is what none has taken yet, oldest first."""

    def __init__(self, hooks: Sequence[Hook], waiting: Sequence[dict[str, Any]], say: Callable[[str], None]) -> None:
        self._hooks, self._say = tuple(hooks), say
        self._lock = threading.Condition()
        self._waiting = list(waiting)
        self._taken: set[tuple[str, int]] = set()  # of those that wait: the hooks that need no second try
        self._ended = False
        self._thread = threading.Thread(target=self._work, name="hooks", daemon=True)
        if hooks:
            self._thread.start()

    @property
    def waiting(self) -> list[dict[str, Any]]:
        with self._lock:
            return list(self._waiting)

    def put(self, told: dict[str, Any]) -> None:
        if not self._hooks:
            return
        with self._lock:
            self._waiting.append(told)
            given_up = len(self._waiting) - MOST_WAITING
            if given_up > 0:
                del self._waiting[:given_up]
                self._say(f"{given_up} calls that no hook took were given up")
            self._lock.notify()

    def end(self, within_s: float) -> None:
        """Let what waits have one more try, and stop."""
        with self._lock:
            self._ended = True
            self._lock.notify()
        if self._hooks:
            self._thread.join(within_s)

    def _work(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._waiting or self._ended)
                if not self._waiting:
                    return
                told, ended = self._waiting[0], self._ended
            failed = self._carried(told)
            with self._lock:
                if not failed:
                    self._waiting = [one for one in self._waiting if one is not told]
                    self._taken.clear()
                elif ended:
                    return
                else:
                    self._lock.wait_for(lambda: self._ended, AGAIN_S)

    def _carried(self, told: Mapping[str, Any]) -> bool:
        """Return True where some hook did not take it."""
        failed = False
        for number, hook in enumerate(self._hooks):
            if (told["id"], number) in self._taken:
                continue
            try:
                hook(told)
                self._taken.add((told["id"], number))
            except HookError as error:
                failed = True
                self._say(f"{error}: incident {told['id']} is tried again")
        return failed

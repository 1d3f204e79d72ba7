"""Deliver incidents, and changes of a host's usual work, to hooks; describe them in lines of text.

A call is one JSON document for one hook. A hook is a command that gets the document on its standard input, a web
address to which it is posted, or the fleet's receiver. Commands and addresses get raised incidents only; the receiver
also gets incidents' ends, changes, and reports that the host is watched. Hooks run in threads beside the watch, each
delivering one call at a time. A failed call is tried again, with the same id, until it is delivered, refused for good,
or dropped. If more than 200 calls wait for a configured hook, the oldest are dropped.
"""

import json
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

from training.data.values import Json, JsonDict
from training.printable import one_line
from training.trainer.changes import LOOK, SHOWN, ToldChange
from training.trainer.reasons import in_words
from training.trainer.streams import Undelivered
from training.web import PostError, post

AGAIN_S = 60.0  # between a hook's failure and the next try
TIMEOUT_S = 60.0
MOST_WAITING = 200  # calls; of more the oldest are given up, and said to be

UNTIL = f"{LOOK} It counts until you confirm it (watch --confirm-change) or name a new reference"
WATCHING = "watching"  # the event of no incident: this host is watched
OF_CHANGE = frozenset({"changed", "confirmed", "referenced"})  # told, and over: by a person, or by a new reference

REPORTER = "training.fleet.client.watching"  # the command that tells the fleet
NEVER_TAKEN = 65  # its exit code for what the receiver refuses for good


class Hook(NamedTuple):
    """A way to deliver calls: the function ``call`` delivers one document, or raises ``HookError``; only documents
    whose event is in ``events`` go to this hook."""

    name: str  # under which its calls are kept
    call: Callable[[Json], None]
    events: frozenset[str] = frozenset({"raised"})


class HookError(Exception):
    """A hook did not deliver a call; the error's message is a sentence without secrets."""


class HookRefusedError(HookError):
    """The receiver refused a call for good, so that trying again is useless."""


def change_document(about: Json, told: ToldChange) -> JsonDict:
    """Return the JSON document of a host's change: the fields of ``about``, then the change's own. Times are epoch
    seconds; beyond the first ``SHOWN`` channels, the others are only counted."""
    return {
        **about,
        "since": told.since,
        "told_at": told.at,
        "at_once": not told.window,
        "channels": [one.to_dict() for one in told.moved[:SHOWN]],
        "more_channels": max(0, len(told.moved) - SHOWN),
        "words": told.words,
    }


def line(told: Json) -> str:
    """Return a line of text for people about a document ``told`` of the event ``raised``, ``over`` or ``changed``, with
    times in UTC."""
    if told["event"] == "changed":
        return f"{moment(told['told_at'])} CHANGED {told['id']}: {told['host']} {told['words']}. {UNTIL}"
    if told["event"] == "over":
        lasted = told["last_alarm_at"] - told["began_at"]
        return (
            f"{moment(told['last_alarm_at'])} over {told['id']}: {told['alarms']} alarms in {lasted:.0f} s{_why(told)}"
        )
    return (
        f"{moment(told['raised_at'])} INCIDENT {told['id']} on {told['host']}: {told['rule']} "
        f"since {moment(told['began_at'])}{_why(told)}"
    )


def _why(told: Json) -> str:
    named = [(str(one["channel"]), float(one["share"])) for one in told.get("why", ())]
    spans = [" to ".join(moment(at, "%H:%M:%S") for at in span) for span in told.get("seconds", ())]
    when = f" (from {', '.join(spans)})" if spans else ""
    return f", carried by {in_words(named)}{when}" if named else ""


def moment(at: float, form: str = "%Y-%m-%d %H:%M:%SZ") -> str:
    return datetime.fromtimestamp(at, UTC).strftime(form)


def fleet_hook(url: str, host: str, tls_dir: str | None) -> Hook:
    """Make a hook that reports to the fleet's receiver at ``url``, in the name of ``host``.

    Raises ValueError if the reporting command, started once with ``--check``, fails with these flags.
    """
    words = [sys.executable, "-m", REPORTER, "--receiver-url", url, "--host-id", host]
    words += ["--tls-dir", tls_dir] if tls_dir else []
    code, wrong = _reported([*words, "--check"], b"")
    if code:
        raise ValueError(f"--receiver-url: {wrong or f'the command that reports to the fleet ended with {code}'}")

    def call(told: Json) -> None:
        code, wrong = _reported(words, json.dumps(told).encode())
        if code:
            kind = HookRefusedError if code == NEVER_TAKEN else HookError
            raise kind(f"the report to the fleet failed: {wrong or f'its command ended with {code}'}")

    return Hook("fleet", call, OF_CHANGE | {"raised", "over", WATCHING})


def _reported(words: Sequence[str], data: bytes) -> tuple[int, str]:
    """Run the command that reports to the receiver, with ``data`` as its input; return its exit code and a text. The
    text is the last line of standard error if the command failed, else empty. If the command does not end in
    ``TIMEOUT_S`` seconds, the code is 75; if it cannot be started, 1; the text then is the reason."""
    try:
        # In a session of its own: a Ctrl-C that ends the watch lets its last call arrive.
        done = subprocess.run(
            words, input=data, capture_output=True, timeout=TIMEOUT_S, check=False, start_new_session=True
        )
    except subprocess.TimeoutExpired:
        return 75, f"no answer within {TIMEOUT_S:.0f} s"
    except OSError as error:
        return 1, f"its command cannot be started: {error.strerror}"
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return done.returncode, one_line(said[-1], 300) if said and done.returncode else ""


def command_hook(command: str) -> Hook:
    """Make a hook that starts ``command`` for each call, with the call as JSON on its input.

    Raises ValueError for a command line with an open quote, an empty one, or one whose program cannot be found.
    """
    words = shlex.split(command)
    if not words:
        raise ValueError("--exec names no command")
    if shutil.which(words[0]) is None:
        raise ValueError(f"--exec: {words[0]} is no program that can be started: name it with its whole path")

    def call(told: Json) -> None:
        data = json.dumps(told).encode() + b"\n"
        try:
            done = subprocess.run(words, input=data, stdout=subprocess.DEVNULL, timeout=TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            raise HookError(f"{words[0]} did not end within {TIMEOUT_S:.0f} s") from None
        except OSError as error:
            raise HookError(f"{words[0]} cannot be started: {error.strerror}") from None
        if done.returncode:
            raise HookError(f"{words[0]} ended with {done.returncode}")

    return Hook("exec", call)


def webhook(address: str) -> Hook:
    """Make a hook that posts each call as JSON to ``address``, which may contain a secret.

    Raises ValueError if ``address`` begins with neither http:// nor https://.
    """
    if not address.startswith(("http://", "https://")):
        raise ValueError("--webhook-file must hold, or --webhook be, an address that begins with https:// or http://")

    def call(told: Json) -> None:
        try:
            post(address, told, {"Idempotency-Key": str(told["id"])}, TIMEOUT_S)
        except PostError as error:
            raise HookError(f"the webhook {error}") from None

    return Hook("webhook", call)


class Courier:
    """Delivers calls to the hooks; each hook has its own thread, so that a failing hook does not delay the others.

    ``waiting`` has the calls not yet delivered, oldest first for each hook, without the reports that the host is
    watched. Calls for hooks that are not configured now are kept, and not tried.
    """

    def __init__(self, hooks: Sequence[Hook], waiting: Sequence[Undelivered], say: Callable[[str], None]) -> None:
        self._say, self._hooks = say, {hook.name: hook for hook in hooks}
        self._failed: dict[str, str] = {}  # hook → why its last call failed
        self._lock = threading.Condition()
        self._lines: dict[str, list[Undelivered]] = {name: [] for name in self._hooks}
        self._others: list[Undelivered] = []
        for kept in waiting:
            self._lines.get(kept["to"], self._others).append(kept)
        self._ended, self._working, self._news = False, len(self._hooks), 0
        for name in self._hooks:
            threading.Thread(target=self._work, args=(name,), name=f"hook-{name}", daemon=True).start()

    @property
    def waiting(self) -> list[Undelivered]:
        with self._lock:
            found = [*self._others, *(each for line in self._lines.values() for each in line)]
        return [each for each in found if each["told"]["event"] != WATCHING]

    @property
    def unnamed(self) -> int:
        """The number of waiting calls for hooks that this run of the program is not configured to call."""
        return len(self._others)

    def asked(self, told: Json) -> list[Undelivered]:
        """Return one call for each hook that takes the event of the document ``told``; deliver nothing."""
        return [{"to": hook.name, "told": dict(told)} for hook in self._hooks.values() if told["event"] in hook.events]

    def put(self, told: Json) -> None:
        with self._lock:
            for call in self.asked(told):
                line = self._lines[call["to"]]  # any later call says that the host is watched
                line[:] = [*(each for each in line if each["told"]["event"] != WATCHING and each != call), call]
                given_up = len(line) - MOST_WAITING
                if given_up > 0:
                    del line[:given_up]
                    self._say(f"{given_up} calls that {call['to']} did not take were given up")
            self._news += 1
            self._lock.notify_all()

    def end(self, within_s: float) -> None:
        """Let each hook deliver its waiting calls until one fails, and stop; wait at most ``within_s`` seconds."""
        with self._lock:
            self._ended = True
            self._lock.notify_all()
            self._lock.wait_for(lambda: not self._working, within_s)

    def _work(self, name: str) -> None:
        hook, line = self._hooks[name], self._lines[name]
        while True:
            with self._lock:
                self._lock.wait_for(lambda: line or self._ended)
                call, ended, news = (line[0] if line else None), self._ended, self._news
            done = call is None or self._carried(hook, call["told"])
            with self._lock:
                if done and call is not None:
                    line[:] = [each for each in line if each is not call]
                elif ended:
                    self._working -= 1
                    self._lock.notify_all()
                    return
                else:
                    self._lock.wait_for(partial(self._has_news, news), AGAIN_S)

    def _has_news(self, since: int) -> bool:
        return self._ended or self._news != since

    def _carried(self, hook: Hook, told: Json) -> bool:
        """Deliver the document ``told`` with a hook; return False if that failed and must be tried again."""
        kind = "change" if told["event"] in OF_CHANGE else "incident"
        what = f"{kind} {told['id']}" if "id" in told else "that this host is watched"
        try:
            hook.call(told)
        except HookRefusedError as error:
            self._say(f"{error}: {what} is given up")
        except HookError as error:
            said = f"{error}: {what} is tried again"
            if said != self._failed.get(hook.name):  # once
                self._say(said)
            self._failed[hook.name] = said
            return False
        return True

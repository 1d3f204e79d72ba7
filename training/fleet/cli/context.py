"""The objects that every command of ``cis490-jobs`` uses: network, input and output, environment, time."""

import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from training.clock import SystemClock
from training.fleet.cli.render import Lines
from training.fleet.client.client import ClientError, FleetClient, Refused
from training.fleet.client.credentials import Credentials, CredentialsError, renew_if_due
from training.fleet.wire.constants import DONE, REFUSED, TOKEN_VARIABLE, USAGE
from training.printable import json_text, one_line
from training.streams import complain
from training.strict_json import Json

URL_VARIABLE = "CIS490_RECEIVER_URL"
DEFAULT_URL = "http://127.0.0.1:8445"
_COMMAND = re.compile(r"`(cis490-jobs ([\w-]+)[^`]*)`")
_LINE_S = 10.0  # between two lines about progress, where there is no terminal

Connect = Callable[[str, str | None], FleetClient]


TLS_VARIABLE = "CIS490_TLS_DIR"
RECEIVERS_TLS_DIR = Path("/var/lib/cis490/tls")
TRIED_OUT_TLS_DIR = Path("var/tls")  # a receiver's, started in a checkout with --db var/…


def connect(url: str, token: str | None, *, patience_s: float | None = None) -> FleetClient:
    """Make a client that tries each call once, since a person is waiting, and renew this user's certificate if that is
    due. ``patience_s`` limits the wait for an answer."""
    credentials = find_credentials(os.environ) if url.startswith("https:") else None
    tls = None if credentials is None else credentials.context()
    client = FleetClient(
        url, operator_token=token, tls=tls, tries=1, timeout_s=patience_s or 15.0, answer_s=patience_s or 45.0
    )
    if credentials is not None:
        # The command itself reports an error; renewal waits for the next command.
        with suppress(ClientError, CredentialsError, OSError):
            if renew_if_due(credentials, client, SystemClock().now()):
                client.close()
    return client


def find_credentials(environ: Mapping[str, str]) -> Credentials | None:
    """Return the credentials in ``$CIS490_TLS_DIR``, or if that is not set, this user's from `join`, or else those of a
    receiver on this machine. Return None if there are no credentials."""
    named = environ.get(TLS_VARIABLE)
    home = Path(environ.get("HOME") or environ.get("USERPROFILE") or "~", ".config", "cis490", "tls")
    folders = [Path(named)] if named else [home, RECEIVERS_TLS_DIR]
    if not named and _is_ours(TRIED_OUT_TLS_DIR):
        folders.append(TRIED_OUT_TLS_DIR)
    return next((found for found in map(Credentials, folders) if found.present), None)


def _is_ours(folder: Path) -> bool:
    """Tell whether the folder belongs to this user: another user's folder in the present directory is not trusted. On
    Windows the answer is always True."""
    try:
        return os.name != "posix" or folder.stat().st_uid == os.geteuid()
    except OSError:
        return False


def usual_url(environ: Mapping[str, str]) -> str:
    """Return the URL of the receiver that this user has joined, or else the default URL on this machine: https if a
    receiver's own credentials were found, http without any."""
    found = find_credentials(environ)
    if found is None:
        return DEFAULT_URL
    known = found.identity()
    return DEFAULT_URL.replace("http:", "https:") if known is None else known.receiver_url


def browse(address: str) -> bool:
    """Open an address in the browser of this desktop, and tell whether that worked."""
    import webbrowser

    return webbrowser.open(address)


class CannotError(Exception):
    """A command cannot do its work. The text is one sentence."""

    def __init__(self, sentence: str, code: int = REFUSED) -> None:
        super().__init__(sentence)
        self.code = code


@dataclass(frozen=True)
class CommandContext:
    """The objects that a command uses: network, input and output, environment, time. Tests pass their own objects."""

    connect: Connect = connect
    out: IO[str] = field(default_factory=lambda: sys.stdout)
    err: IO[str] = field(default_factory=lambda: sys.stderr)
    into: IO[str] = field(default_factory=lambda: sys.stdin)  # the answers of who is asked
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    sleep: Callable[[float], object] = time.sleep
    browse: Callable[[str], bool] = browse  # in the browser of this desktop
    monotonic: Callable[[], float] = SystemClock().monotonic
    url: str | None = None
    as_json: bool = False
    given: list[str] = field(default_factory=list)  # the flags that named the receiver
    callers: set[str] = field(default_factory=set)  # the commands that take them; others work on the receiver's files
    opened: list[FleetClient] = field(default_factory=list)  # closed at the command's end

    def client(self) -> FleetClient:
        self.given[:] = ["--receiver-url", self.url] if self.url else []
        address = self.url or self.environ.get(URL_VARIABLE)
        token = self.environ.get(TOKEN_VARIABLE, "").strip()
        if not (token.isascii() and token.isprintable()):
            raise CannotError(f"${TOKEN_VARIABLE} holds characters that no token has", USAGE)
        try:
            self.opened.append(self.connect(address or usual_url(self.environ), token or None))
        except (CredentialsError, ValueError) as error:  # no URL; the transport explains
            raise CannotError(str(error), USAGE) from None
        return self.opened[-1]

    def console(self) -> Console:
        wide = None if self.out.isatty() else 10_000  # a pipe has no width to fit into
        return Console(file=self.out, highlight=False, markup=False, emoji=False, width=wide)

    def can_show(self, signs: str) -> bool:
        """Tell whether the output's encoding has these characters."""
        try:
            signs.encode(getattr(self.out, "encoding", None) or "utf-8")
        except (UnicodeEncodeError, LookupError):
            return False
        return True

    def show(self, data: Any, drawn: RenderableType | Callable[[Any], RenderableType]) -> None:
        """Print an answer: with ``--json`` the values ``data``, otherwise ``drawn``, or if that is a function, its
        result for ``data``."""
        if self.as_json:
            print(json_text(data), file=self.out)
        else:
            shown = self.typed(drawn(data) if callable(drawn) else drawn)
            # A line too long for a list is wrapped; sentences with paths and commands are not cut into lines of a pipe.
            self.console().print(shown, crop=False, soft_wrap=not self.out.isatty())

    def typed(self, said: RenderableType) -> RenderableType:
        """Return ``said`` with the flag ``--receiver-url``, if one was given, added to the commands in it that call a
        receiver."""
        return said if not self.given else _with_flags(said, shlex.join(self.given), self.callers)

    def each(
        self,
        names: Sequence[str],
        key: str,
        call: Callable[[str], Json],
        line: Callable[[str, Json], str],
    ) -> int:
        """Do ``call`` for each name, also after a refusal of another name, and print the answers; in JSON they are
        under ``key``. Return exit code 0, or 1 after a refusal."""
        answers, lines, code = [], [], DONE
        for name in names:
            try:
                answer = call(name)
            except Refused as refusal:
                self.complain(refusal)
                code = REFUSED
            else:
                answers.append(answer)
                lines.append(line(name, answer))
        if answers or self.as_json:
            self.show({key: answers}, "\n".join(lines))
        return code

    def confirm(self, question: str, *, look: str = "cis490-jobs plan") -> bool:
        """Ask for confirmation on the terminal, and tell whether the answer was yes. Without a terminal, CannotError
        names the flag to use instead."""
        if not (self.into.isatty() and self.err.isatty()):
            raise CannotError(f"there is no terminal to ask on: look at `{look}`, then add --yes", USAGE)
        print(f"{question} [y/N] ", end="", file=self.err, flush=True)
        return self.into.readline().strip().lower() in ("y", "yes")

    def complain(self, sentence: object) -> None:
        complain(f"cis490-jobs: {self.typed(one_line(sentence, 2000))}", self.err)


def _with_flags(said: RenderableType, flags: str, callers: Set[str]) -> RenderableType:
    if isinstance(said, str):
        return _COMMAND.sub(lambda found: f"`{found[1]} {flags}`" if found[2] in callers else found[0], said)
    if isinstance(said, Text):
        said.plain = str(_with_flags(said.plain, flags, callers))
    elif isinstance(said, Group):
        for each in said.renderables:
            _with_flags(each, flags, callers)
    elif isinstance(said, Table):
        for column in said.columns:
            for each in column.cells:
                if isinstance(each, Text):
                    _with_flags(each, flags, callers)
    elif isinstance(said, Lines):
        said.change(lambda text: str(_with_flags(text, flags, callers)))
    return said


@contextmanager
def meter(context: CommandContext, words: str, *, of_bytes: bool = True) -> Iterator[Callable[..., object]]:
    """Give the ``with`` block a function that shows progress as a bar on a terminal. Without a terminal the function
    prints a line at most every ten seconds if it counts bytes (``of_bytes``), else nothing."""
    if not context.err.isatty():
        yield _lines(context, words) if of_bytes else lambda *_: None
        return
    counts = (DownloadColumn(), TimeRemainingColumn()) if of_bytes else (MofNCompleteColumn(),)
    console = Console(file=context.err, highlight=False)
    said = TextColumn("{task.description}")
    with Progress(said, BarColumn(), *counts, console=console, transient=True) as bar:
        task = bar.add_task(words, total=None)

        def show(done: int, whole: int, what: str = words) -> None:
            bar.update(task, description=what, completed=done, total=whole or None)

        yield show


def _lines(context: CommandContext, words: str) -> Callable[[int, int], object]:
    """Return a function that prints the progress in bytes as a line, at most every ten seconds."""
    said_at = context.monotonic()

    def progress(done: int, whole: int) -> None:
        nonlocal said_at
        if context.monotonic() - said_at >= _LINE_S:
            said_at = context.monotonic()
            of_all = f" of {whole / 1024**2:.0f} MiB ({100 * (done / whole):.0f} %)" if whole else " MiB"
            context.complain(f"{words}: {done / 1024**2:.0f}{of_all}")

    return progress

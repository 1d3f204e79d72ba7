"""``cis490-jobs watch``: the fleet, live in a terminal, by the receiver's event stream or by asking again."""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
from types import ModuleType
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live

from training.fleet.cli.context import CommandContext
from training.fleet.cli.watch_screen import screen, watched
from training.fleet.client.client import FleetClient, Unavailable, Unreachable
from training.fleet.client.stream import Bell
from training.fleet.wire.constants import DONE
from training.fleet.wire.words import Json, duration
from training.printable import one_line

POLL_S = 2.0  # between two looks without a stream …
LOOK_S = 30.0  # … and with one: host names come and go without an event
KEY_S = 0.25  # between two looks for a key, and at the size of the terminal
PENDING_SHOWN = 200
PIPE_COLUMNS, PIPE_LINES = 120, 1000


def hook(app: typer.Typer) -> None:
    """Add this command to ``app``."""
    app.command()(watch)


def watch(
    ctx: typer.Context,
    receiver_url: Annotated[str | None, typer.Option(help="As for all commands.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON at each change.")] = False,
) -> int:
    """Watch the fleet live: what trains and how long yet, what waits, what failed. q or Ctrl-C quits."""
    context: CommandContext = ctx.obj
    return run(context, context.client(receiver_url), as_json=as_json or context.as_json)


def run(context: CommandContext, client: FleetClient, *, as_json: bool) -> int:
    """Watch until the user quits."""
    data = _ask(client)  # an error of the first look ends the command
    bell = Bell(client, "/")
    try:
        console = context.console()
        if as_json or not console.is_terminal or console.is_dumb_terminal:
            _print(context, client, bell, data, as_json=as_json)
        return _draw(context, client, bell, data)
    finally:
        bell.close()


def _ask(client: FleetClient) -> Json:
    pages: dict[str, list[Json]] = {"live": [], "pending": [], "failed": []}
    page: dict[str, Any] = {}
    for status, key, most in (
        ("running", "live", 1000),
        ("claimed", "live", 1000),
        ("failed", "failed", 1000),
        ("pending", "pending", PENDING_SHOWN),
    ):
        page = client.jobs(status=status, limit=most)
        pages[key] += [view for view in page["jobs"] if view.get("status") == status]
    return watched(pages, page["counts"], client.workers(), client.health(), page.get("now"))


def _print(context: CommandContext, client: FleetClient, bell: Bell, data: Json, *, as_json: bool) -> None:
    """Print a picture, or a line of JSON, at each change, for ever."""
    said = ""
    while True:
        if as_json:
            told = json.dumps(data)
            differs = json.dumps({**data, "now": None})
        else:
            lines = screen(data, PIPE_COLUMNS, PIPE_LINES, plain=not context.can_show("█░…"))
            told = differs = "\n".join(str(context.typed(line.plain.rstrip())) for line in lines)
        if differs != said:
            said = differs
            print(told if as_json else f"{told}\n", file=context.out, flush=True)
        _pause(context, bell)
        with contextlib.suppress(Unreachable, Unavailable):
            data = _ask(client)


def _pause(context: CommandContext, bell: Bell) -> None:
    if bell.listening:
        bell.rung(LOOK_S)
    else:
        context.sleep(POLL_S)


def _draw(context: CommandContext, client: FleetClient, bell: Bell, data: Json) -> int:
    """Draw in place, on a screen of its own, until q."""
    console, plain = context.console(), not context.can_show("█░…")
    looked_at = heard_at = context.monotonic()
    trouble = ""

    def picture() -> RenderableType:
        width, height = console.size
        lines = screen(data, width, height, plain=plain, footer=footer(width))
        shown = context.typed(Group(*lines))
        for line in lines:  # a command with the receiver's address may not push the footer off the screen
            line.truncate(max(1, width), overflow="crop" if plain else "ellipsis")
        return shown

    def footer(width: int) -> str:
        silent_s = context.monotonic() - heard_at
        how = "live" if bell.listening else f"every {POLL_S:.0f} s"
        said = f"no answer for {duration(silent_s)}: {trouble}" if trouble else how
        return f"q quits   {one_line(said, max(20, width - 12))}"

    try:
        with (
            Live(picture(), console=console, auto_refresh=False, screen=True, vertical_overflow="crop") as live,
            Keys(context) as keys,
        ):
            while keys.pressed(KEY_S) not in ("q", "Q", "\x03"):
                now = context.monotonic()
                if bell.rung() or now - looked_at >= (LOOK_S if bell.listening else POLL_S):
                    looked_at = now
                    try:
                        data, trouble = _ask(client), ""
                        heard_at = context.monotonic()
                    except (Unreachable, Unavailable) as error:
                        trouble = str(error)
                live.update(picture(), refresh=True)
    finally:
        console.print(context.typed(Group(*screen(data, console.width, max(10, console.height - 2), plain=plain))))
    return DONE


class Keys:
    """Single keys from the terminal, unechoed; where there is none, time goes by."""

    def __init__(self, context: CommandContext) -> None:
        self._context = context
        self._stack = contextlib.ExitStack()
        self._handle: int | None = None
        self._windows: ModuleType | None = None

    def __enter__(self) -> Keys:
        into = self._context.into
        if into.isatty():
            with contextlib.suppress(OSError, ValueError):
                self._take(into.fileno())
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def pressed(self, timeout_s: float) -> str:
        """Wait for a key; empty when none came."""
        if self._windows is not None:
            self._context.sleep(timeout_s)
            return str(self._windows.getwch()) if self._windows.kbhit() else ""
        if self._handle is None:
            self._context.sleep(timeout_s)
            return ""
        ready = select.select([self._handle], [], [], timeout_s)[0]
        return os.read(self._handle, 32).decode("ascii", "replace")[:1] if ready else ""

    def _take(self, handle: int) -> None:
        if sys.platform == "win32":
            import msvcrt

            self._windows = msvcrt
            return
        import termios
        import tty

        before = termios.tcgetattr(handle)
        tty.setcbreak(handle)
        self._stack.callback(termios.tcsetattr, handle, termios.TCSADRAIN, before)
        self._handle = handle

"""``cis490-jobs notify``: show and test the channels that carry notices to people."""

from typing import Annotated

import typer

from training.fleet.cli.context import CommandContext
from training.fleet.cli.registration import AsJson, Url, as_command, group, surroundings
from training.fleet.cli.render import Lines, table
from training.fleet.wire.constants import DONE, REFUSED
from training.printable import duration, one_line, printable
from training.strict_json import Json

NOTIFY = group("notify", "Show the channels for notices, and try them.")
NO_CHANNEL = "The plan has no channel: add [notify.NAME] to the manifest, then `cis490-jobs reload`."


@NOTIFY.callback(invoke_without_command=True)
def channels(ctx: typer.Context, receiver_url: Url = None, as_json: AsJson = False) -> None:
    """Show the channels of the plan's [notify.*]: when each last sent, and how many notices wait."""
    if ctx.invoked_subcommand is None:
        context = surroundings(ctx, receiver_url, as_json)
        data = context.client().notify()
        context.show(data, _table)


def _table(data: Json) -> Lines | str:
    if not data["channels"]:
        return NO_CHANNEL
    rows = []
    for each in data["channels"]:
        sent = "never" if each["sent_at"] is None else f"{duration(data['now'] - each['sent_at'])} ago"
        state = "ready"
        if each["error"] is not None:
            again = "" if each["next_at"] is None else f" (tried again in {duration(each['next_at'] - data['now'])})"
            state = f"{one_line(each['error'], 200)}{again}"
        rows.append((each["channel"], each["kind"], sent, each["waiting"], state))
    return table("channel", "kind", "last sent", "waiting", "state", rows=rows, right=("waiting",))


@as_command("test", group=NOTIFY)
def send_test(
    context: CommandContext,
    channel: Annotated[str | None, typer.Argument(help="A channel's name in [notify.*]; default all.")] = None,
) -> int:
    """Send a test message now; exit code 1 if there is no channel, or a channel did not take the message."""
    data = context.client().notify_test(channel=channel)
    results = data["results"]
    lines = [
        f"{printable(each['channel'])}: "
        + ("the test message arrived" if each["error"] is None else one_line(each["error"], 300))
        for each in results
    ]
    context.show(data, "\n".join(lines) or NO_CHANNEL)
    return DONE if results and all(each["error"] is None for each in results) else REFUSED

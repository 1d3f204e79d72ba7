"""``cis490-jobs open``: open the dashboard in this machine's browser."""

import sys
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import quote

import typer

from training.fleet.cli import complete
from training.fleet.cli.context import CommandContext, find_credentials
from training.fleet.cli.registration import as_command

HOW = (
    "over TLS the browser proves who looks by a certificate that was imported into it (`cis490 docs operations`), or "
    "by a login with a token, which `cis490-jobs tokens add NAME` makes"
)
LOG_IN = "anybody on this machine may look; to act, log in there with the operator's token"
NOWHERE = "no display was found here, so open the address in a browser that reaches it"
_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")


@as_command("open")
def open_pages(
    context: CommandContext,
    job: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="The page of this job.", autocompletion=complete.jobs)
    ] = None,
) -> None:
    """Print the dashboard's address and, if this machine has a desktop, open it in the browser."""
    client = context.client()
    client.health()  # a page that cannot be reached says less than the command does
    path = "/" if job is None else f"/jobs/{quote(client.job(job)['job']['job_id'], safe='')}"
    address = client.base_url.rstrip("/") + path
    opened = has_display(context.environ, sys.platform) and context.browse(address)
    secure = address.startswith("https:")
    said = [address, HOW if secure else LOG_IN, *([] if opened else [NOWHERE])]
    if secure and (found := find_credentials(context.environ)) is not None and found.identity() is not None:
        said.insert(2, f"this user's certificate is {found.folder / 'client.pem'}")
    context.show({"url": address, "opened": opened}, "\n".join(said))


def has_display(environ: Mapping[str, str], platform: str) -> bool:
    """Tell whether this machine has a desktop on which a browser opens in a window; a text browser would take over the
    terminal."""
    return platform in ("win32", "darwin") or any(environ.get(each) for each in _DISPLAYS)

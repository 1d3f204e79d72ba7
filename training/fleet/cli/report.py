"""``cis490-jobs report``: write the dashboard's pages as files, for mail and any web space."""

import re
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Annotated

import typer

from training import strict_json
from training.files import write_whole
from training.fleet.cli.context import CannotError, CommandContext, meter
from training.fleet.cli.registration import as_command
from training.fleet.client.client import FleetClient, Refused
from training.fleet.wire.constants import REFUSED
from training.printable import counted

MARK = "cis490-site.json"  # names every file that the command wrote
_NAME = re.compile(r"([A-Za-z0-9_-][A-Za-z0-9._-]*/)?[A-Za-z0-9_-][A-Za-z0-9._-]*")


@as_command()
def report(
    context: CommandContext,
    out: Annotated[Path, typer.Option(help="Folder: a new or empty one, or one that this command made.")] = Path(
        "site"
    ),
) -> None:
    """Write the dashboard's pages as files: they need no receiver, no script and no network."""
    before = _owned(out)
    with meter(context, "reading pages", of_bytes=False) as step:
        written = write_site(context.client(), out, before, step)
    first = (out / "index.html").resolve()
    shape = {"folder": str(out), "index": first.as_uri(), **written}
    said = f"{counted(written['files'], 'files')} in {out}, of {counted(written['jobs'], 'jobs')}: {first.as_uri()}"
    if written["left_out"]:
        said += (
            f"\n{counted(written['left_out'], 'further jobs')} have no page: a site holds {written['jobs']:,} at most"
        )
    context.show(shape, said)


def write_site(client: FleetClient, out: Path, before: list[str], step: Callable[[int, int], object]) -> dict[str, int]:
    """Request the pages, write them into ``out``, and remove those files of ``before`` that this site does not have.
    Return the numbers of files, of jobs with a page, and of jobs left out."""
    from training.fleet.pages.site import site

    made = site(partial(_page, client), step)
    out.mkdir(parents=True, exist_ok=True)
    names = sorted(made.files)
    write_whole(out / MARK, strict_json.dumps({"files": sorted({*before, *names})}))  # also of what comes half
    for name in set(before) - made.files.keys():
        (out / name).unlink(missing_ok=True)
    for name, body in made.files.items():
        (out / name).parent.mkdir(exist_ok=True)
        write_whole(out / name, body, durable=False)
    write_whole(out / MARK, strict_json.dumps({"files": names}))
    return {"files": len(names), "jobs": made.jobs, "left_out": made.left_out}


def _page(client: FleetClient, address: str) -> bytes | None:
    try:
        return client.get_page(address)
    except Refused as refusal:
        if refusal.status == HTTPStatus.NOT_FOUND:  # what was linked has gone meanwhile
            return None
        raise


def _owned(out: Path) -> list[str]:
    """Return the names of the files of an earlier site in this folder; empty for a new or empty one. Raises CannotError
    for a file or any other folder."""
    if not out.is_dir() or not any(out.iterdir()):
        if out.exists() and not out.is_dir():
            raise CannotError(f"{out} is a file; name a folder with --out", REFUSED)
        return []
    try:
        names = strict_json.loads((out / MARK).read_bytes())["files"]
        return [name for name in names if _NAME.fullmatch(name)]
    except (OSError, ValueError, KeyError, TypeError):
        raise CannotError(f"{out} holds other files; name a new or empty folder with --out", REFUSED) from None

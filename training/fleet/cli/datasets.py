"""``cis490-jobs dataset push``, ``list`` and ``remove``: manage the data sets on the receiver, which workers fetch."""

import re
from pathlib import Path
from typing import Annotated

import typer

from training.contract import VALIDATION_FILE
from training.fleet.cli.context import CannotError, CommandContext, meter
from training.fleet.cli.registration import as_command, group
from training.fleet.cli.render import Lines, table
from training.fleet.client.push import FolderError, push, read_folder
from training.fleet.wire.constants import DATASET_NAME_PATTERN, REFUSED, USAGE
from training.fleet.wire.dataset_listing import Catalogue, UnknownDataset
from training.fleet.wire.words import Json, ago, size
from training.printable import counted, printable

DATASET = group("dataset", "Data sets that workers fetch.")


@as_command("push", group=DATASET)
def push_dataset(
    context: CommandContext,
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="A folder that `build` or `ingest` wrote.")],
    name: Annotated[str | None, typer.Option("--name", help="Name of the data set; default the folder's.")] = None,
) -> None:
    """Push a folder to the receiver. Only missing bytes are sent; an interrupted push resumes."""
    if not folder.strip():  # an unset shell variable: it does not mean the present folder
        raise CannotError("name the folder, for example data/processed", USAGE)
    path = Path(folder)
    called = name or path.resolve().name
    if not re.fullmatch(DATASET_NAME_PATTERN, called):
        raise CannotError(
            f"{called!r} cannot name a data set; choose a name of small letters, digits, dots, dashes and "
            "underscores with --name",
            USAGE,
        )
    calls = context.client().datasets
    try:
        with meter(context, "reading") as progress:
            listing = read_folder(path, progress)
        with meter(context, "sending") as progress:
            view, sent = push(calls, path, listing, called, progress)
    except FolderError as error:
        raise CannotError(str(error)) from None
    line = (
        f"{called} is data set {listing.dataset_id[:12]}: {size(listing.size)} "
        f"in {counted(len(listing.files), 'files')}, {size(sent)} of them sent"
    )
    context.show({**view, "sent": sent}, lambda _: "\n".join([line, *moved_lines(view, called)]))
    if not any(file.path == VALIDATION_FILE for file in listing.files):
        context.complain(
            f"the folder has no {VALIDATION_FILE}, so only custom trainers can use this data set; "
            "`cis490 build` makes a folder for the built-in trainers"
        )


def moved_lines(view: Json, name: str) -> list[str]:
    """Return lines on the data set that ``name`` meant before, the jobs that the next reload creates again, and
    unfinished jobs that use the earlier one. Return an empty list if none of these applies."""
    anew, waiting = view["jobs_anew"], view["jobs_waiting"]
    was, lines = "another one", []
    if view["was"]:
        was = printable(view["was"])[:12]
        lines.append(f"{name} was {was}, which stays under its id")
    elif anew:
        lines.append(f"{name} was {was} when the plan was read, and is not any more")
    if anew:
        jobs = counted(anew, "jobs")
        lines.append(f"the plan names {name}: the next reload creates {jobs} again, trained on this one")
    if waiting:
        jobs = counted(waiting, "jobs")
        lines.append(
            f"{jobs} not finished will train on {was}; after the reload "
            "`cis490-jobs cancel --removed` takes such jobs out"
        )
    return lines


@as_command("list", group=DATASET)
def list_datasets(context: CommandContext) -> None:
    """List the data sets: names, id, size, number of files, time since the push."""
    answer = context.client().datasets.datasets()
    context.show(answer, _table)


@as_command("remove", group=DATASET)
def remove_dataset(
    context: CommandContext,
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="A data set's name, id, or a prefix of its id.")],
) -> None:
    """Remove a data set that no job needs; given one of its several names, remove only that name."""
    calls = context.client().datasets
    rows = calls.datasets()["datasets"]
    names = {name: row["dataset_id"] for row in rows for name in row["names"]}
    try:
        found = Catalogue(frozenset(row["dataset_id"] for row in rows), names).resolve(dataset)
    except UnknownDataset as error:
        raise CannotError(f"{error}; `cis490-jobs dataset list` shows all", REFUSED) from None
    others = sorted(name for name, each in names.items() if each == found and name != dataset)
    if dataset in names and others:
        still = ", ".join(others)
        line = (
            f"{printable(dataset)} names nothing any more; its files stay, {found[:12]} is also called "
            f"{printable(still)} (`cis490-jobs dataset remove {found[:12]}` removes them under every name)"
        )
        context.show(calls.unname(found, dataset), line)
        return
    answer = calls.remove(found)
    called = ", ".join(name for name in sorted(names) if names[name] == found) or "data set"
    line = f"{printable(called)} ({found[:12]}) is gone, {size(answer['freed'])} are free"
    context.show(answer, line)


def _table(answer: Json) -> Lines | str:
    if not answer["datasets"]:
        return "none; `cis490-jobs dataset push FOLDER` brings one"
    rows = []
    for row in answer["datasets"]:
        names, pushed = ", ".join(row["names"]) or "-", ago(row["pushed_at"], answer["now"])
        rows.append((names, row["dataset_id"][:12], size(row["size"]), row["files"], pushed))
    return table("name", "id", "size", "files", "pushed", rows=rows)

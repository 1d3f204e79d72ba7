"""``cis490-jobs report``: the dashboard's pages as files, for mail and any web space."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from training import strict_json
from training.files import write_whole
from training.fleet.cli.context import CannotError, CommandContext
from training.fleet.client.client import ClientError, FleetClient
from training.fleet.wire.constants import DONE, REFUSED
from training.fleet.wire.messages import (
    CurveReply,
    ExplainReply,
    HealthReply,
    JobDetail,
    LogReply,
    ModelsReply,
    WorkersReply,
)
from training.installed import own_version
from training.printable import counted

MARK = "cis490-site.json"  # names every file that the command wrote
JOBS_MAX = 2000
CURVE_POINTS = 150
_NAME = re.compile(r"([A-Za-z0-9_-][A-Za-z0-9._-]*/)?[A-Za-z0-9_-][A-Za-z0-9._-]*")
T = TypeVar("T")


def hook(app: typer.Typer) -> None:
    """Add this command to ``app``."""
    app.command()(report)


def report(
    ctx: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder: a new or empty one, or one that this command made.")] = Path(
        "site"
    ),
    receiver_url: Annotated[str | None, typer.Option(help="As for all commands.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Write the dashboard's pages as files: they need no receiver, no script and no network."""
    context: CommandContext = ctx.obj
    before = _owned(out)
    written = write_site(context.client(receiver_url), out, before, lambda words: _meter(context, words))
    first = (out / "index.html").resolve()
    shape = {"folder": str(out), "index": first.as_uri(), **written}
    said = f"{counted(written['files'], 'files')} in {out}, of {counted(written['jobs'], 'jobs')}: {first.as_uri()}"
    if written["left_out"]:
        said += f"\n{counted(written['left_out'], 'further jobs')} have no page: a site holds {JOBS_MAX:,}"
    context.show(as_json, shape, lambda: said)
    return DONE


Meter = Callable[[str], Any]


def write_site(client: FleetClient, out: Path, before: list[str], meter: Meter) -> dict[str, int]:
    """Ask for all, then put the pages in the place of the files ``before``; returns the numbers of files and jobs."""
    from training.fleet.pages.site import files  # with Jinja2, which no other command needs

    copied = gathered(client, meter)
    made = dict(files(copied, own_version()))
    out.mkdir(parents=True, exist_ok=True)
    names = sorted(made)
    write_whole(out / MARK, strict_json.dumps({"files": sorted({*before, *names})}))  # also of what comes half
    for name in set(before) - made.keys():
        (out / name).unlink(missing_ok=True)
    for name, body in made.items():
        (out / name).parent.mkdir(exist_ok=True)
        write_whole(out / name, body, durable=False)
    write_whole(out / MARK, strict_json.dumps({"files": names}))
    return {"files": len(names), "jobs": len(copied.jobs), "left_out": copied.left_out}


def _owned(out: Path) -> list[str]:
    """List the files of an earlier site; CannotError for a folder of something else."""
    if not out.is_dir() or not any(out.iterdir()):
        if out.exists() and not out.is_dir():
            raise CannotError(f"{out} is a file; name a folder with --out", REFUSED)
        return []
    try:
        names = strict_json.loads((out / MARK).read_bytes())["files"]
        return [name for name in names if _NAME.fullmatch(name)]
    except (OSError, ValueError, KeyError, TypeError):
        raise CannotError(f"{out} holds other files; name a new or empty folder with --out", REFUSED) from None


def gathered(client: FleetClient, meter: Meter) -> Any:
    """Ask the receiver for all that the pages show."""
    from training.fleet.pages.copied import Copied, ResultCopies

    page, health = client.jobs(), _as(HealthReply, client.health())
    views = list(client.all_jobs())
    views.sort(key=lambda view: (not view["in_manifest"], -(view["finished_at"] or view["created_at"])))
    shown = views[:JOBS_MAX]
    jobs = {}
    with meter("reading jobs") as step:
        for number, view in enumerate(shown, start=1):
            jobs[str(view["job_id"])] = _job(client, str(view["job_id"]))
            step(number, len(shown))
    return Copied(
        now=float(page["now"]),
        health=health,
        hosts=_as(WorkersReply, client.workers()),
        number=page["counts"],
        jobs=jobs,
        models=ResultCopies(jobs, _models(client)),
        left_out=len(views) - len(shown),
    )


def _job(client: FleetClient, job_id: str) -> Any:
    from training.fleet.pages.copied import JobCopy

    detail = _as(JobDetail, client.job(job_id))
    log = None
    if detail.job.attempt:
        first = _as(LogReply, client.log(job_id))
        log = first if not first.lines or not client.log(job_id, after=first.next)["lines"] else None
    return JobCopy(
        detail=detail,
        curve=_as(CurveReply, client.curve(job_id, points=CURVE_POINTS)),
        explained=_as(ExplainReply, client.explain(job_id)) if detail.job.status == "pending" else None,
        log=log,
        report=None if detail.result is None else _report(client, detail),
    )


def _report(client: FleetClient, detail: JobDetail) -> Any:
    from training.fleet.wire import reports
    from training.fleet.wire.views import ReportView

    assert detail.result is not None
    try:
        return reports.read(strict_json.dumps(client.get_json(f"/v1/job/{detail.job.job_id}/report")))
    except (ClientError, ValueError):  # no JSON, or another's answer: its row knows as much
        return ReportView(result=detail.result)


def _models(client: FleetClient) -> dict[str, ModelsReply]:
    """Ask for the models of every test."""
    found = {}
    for test in [None, *(each["test"] for each in client.models(limit=1)["tests"][1:])]:
        reply = client.models(test=test, limit=200)
        models, after = list(reply["models"]), reply["next_after"]
        while after and len(models) < JOBS_MAX:
            more = client.models(test=reply["test"], after=after, limit=200)
            models, after = models + more["models"], more["next_after"]
        found[str(reply["test"])] = _as(ModelsReply, {**reply, "models": models, "next_after": None})
    return found


def _as(kind: type[T], answer: dict[str, Any]) -> T:
    return msgspec.convert(answer, kind)


@contextmanager
def _meter(context: CommandContext, words: str) -> Iterator[Callable[[int, int], object]]:
    """Show a bar on a terminal, and nothing elsewhere."""
    console = Console(file=context.err, highlight=False)
    columns = (TextColumn(words), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True, disable=not context.err.isatty()) as bar:
        task = bar.add_task(words, total=None)
        yield lambda done, whole: bar.update(task, completed=done, total=whole)

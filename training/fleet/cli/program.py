"""``cis490-jobs``: look at the fleet, and act on it.

Exit codes: 0 done, 1 refused by the receiver or by a check of ours, 2 wrong usage, 75 receiver unreachable.
The operator's token comes from ``$CIS490_OPERATOR_TOKEN`` only: an argument would show in the process list.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer

from training.fleet.cli import (
    act,
    audit,
    browse,
    curve,
    datasets,
    enroll,
    forecast,
    gc,
    hosts,
    incidents,
    logs,
    notify,
    plan,
    recovery,
    report,
    speeds,
    standings,
    watch,
)
from training.fleet.cli import complete as cli_complete
from training.fleet.cli import render as cli_views
from training.fleet.cli import wait as cli_wait
from training.fleet.cli.context import DEFAULT_URL, URL_VARIABLE, CannotError, CommandContext, meter
from training.fleet.cli.mistakes import complain_of, mistakes_of
from training.fleet.cli.models import BundleRefused, fetch_model
from training.fleet.client.client import (
    ClientError,
    Damaged,
    FleetClient,
    Refused,
    Stranger,
    Unavailable,
    Unreachable,
)
from training.fleet.scheduling.job import JobStatus
from training.fleet.wire.constants import DONE, REFUSED, UNREACHABLE, USAGE
from training.fleet.wire.messages import MovedReply
from training.fleet.wire.words import Json, removed_sentence, size
from training.installed import own_version
from training.printable import json_text, printable
from training.streams import has_seen_enough, replace_unprintable, write_no_more

NAME_A_JOB = "name a job: its name, its id, or a unique prefix of the id"

app = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _named(given: Any) -> Any:
    """Refuse an empty name, which an unset shell variable leaves: it means no job."""
    if any(not ref.strip() for ref in ([given] if isinstance(given, str) else given or [])):
        raise typer.BadParameter(NAME_A_JOB)
    return given


JOB = typer.Argument(
    metavar="JOB",
    help="Its name, its id, or a unique prefix of the id.",
    callback=_named,
    autocompletion=cli_complete.jobs,
)
Job = Annotated[str, JOB]
JOBS = typer.Argument(
    metavar="JOB...",
    help="Names, ids, or at least six digits of ids.",
    callback=_named,
    autocompletion=cli_complete.jobs,
)
Url = Annotated[
    str | None,
    typer.Option(help=f"Default ${URL_VARIABLE}, the joined one, or {DEFAULT_URL}."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _version(asked: bool) -> None:
    if asked:
        print(f"cis490-jobs {own_version()}")
        raise typer.Exit


@app.callback()
def common(
    ctx: typer.Context,
    receiver_url: Url = None,
    as_json: AsJson = False,
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    """Show and change the training fleet.

    Changes, audit, certificates and tokens need an operator's certificate or $CIS490_OPERATOR_TOKEN.
    """
    ctx.obj = replace(ctx.obj or CommandContext(), url=receiver_url, as_json=as_json)


@app.command("list")
def list_jobs(
    ctx: typer.Context,
    wanted: Annotated[JobStatus | None, typer.Option("--status", help="Only jobs with this status.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Also ended jobs that left the plan.")] = False,
    receiver_url: Url = None,
    as_json: AsJson = False,
) -> int:
    """List the jobs, in the order of arrival."""
    context: CommandContext = ctx.obj
    jobs = list(context.client(receiver_url).all_jobs(status=wanted))
    context.show(as_json, {"jobs": jobs}, lambda: cli_views.render_list(jobs, every=every))
    return DONE


@app.command()
def show(ctx: typer.Context, job: Job, receiver_url: Url = None, as_json: AsJson = False) -> int:
    """Show a job: its requirements and every attempt at it."""
    context: CommandContext = ctx.obj
    detail = context.client(receiver_url).job(job)
    context.show(as_json, detail, lambda: cli_views.render_job(detail))
    return DONE


@app.command()
def explain(ctx: typer.Context, job: Job, receiver_url: Url = None, as_json: AsJson = False) -> int:
    """Explain, host by host, why a job does not run."""
    context: CommandContext = ctx.obj
    answer = context.client(receiver_url).explain(job)
    context.show(as_json, answer, lambda: cli_views.render_explain(answer))
    return DONE


@app.command()
def workers(ctx: typer.Context, receiver_url: Url = None, as_json: AsJson = False) -> int:
    """List all hosts that ever claimed work."""
    context: CommandContext = ctx.obj
    answer = context.client(receiver_url).workers()
    context.show(as_json, answer, lambda: cli_views.render_workers(answer))
    return DONE


@app.command()
def cancel(
    ctx: typer.Context,
    jobs: Annotated[list[str] | None, JOBS] = None,
    removed: Annotated[bool, typer.Option("--removed", help="All jobs that the plan no longer names.")] = False,
    receiver_url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Cancel jobs; a running trainer stops at its worker's next heartbeat."""
    context: CommandContext = ctx.obj
    if not (jobs or removed):
        raise CannotError(f"{NAME_A_JOB}; or all that the plan no longer names: --removed", USAGE)
    client = context.client(receiver_url)
    refs = list(jobs or ())
    gone: list[str] = []
    if removed:
        unplanned = (each for each in client.all_jobs() if not each["in_manifest"])
        gone = [
            each["job_id"] for each in unplanned if each["status"] not in (JobStatus.COMPLETED, JobStatus.CANCELLED)
        ]
        if not refs + gone:
            context.complain("nothing to cancel: the plan names every job that is not finished or failed")

    return _move(context, [*refs, *gone], as_json, lambda ref: client.cancel(ref, removed=ref in gone))


@app.command()
def requeue(
    ctx: typer.Context,
    jobs: Annotated[list[str] | None, JOBS] = None,
    failed: Annotated[bool, typer.Option("--failed", help="All failed jobs of the plan.")] = False,
    receiver_url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Train jobs again, from any state, with fresh budgets."""
    context: CommandContext = ctx.obj
    if not (jobs or failed):
        raise CannotError(f"{NAME_A_JOB}; or all that have failed: --failed", USAGE)
    client = context.client(receiver_url)
    refs = list(jobs or ())
    if failed:
        found = client.all_jobs(status="failed")
        refs += [each["job_id"] for each in found if each["in_manifest"]]
        if not refs:
            context.complain("nothing to requeue: no job of the plan has failed")
    return _move(context, refs, as_json, client.requeue)


@app.command()
def hold(
    ctx: typer.Context,
    jobs: Annotated[list[str], JOBS],
    receiver_url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Keep jobs from being granted until they are unheld; running attempts continue."""
    return _move(ctx.obj, jobs, as_json, ctx.obj.client(receiver_url).hold)


@app.command()
def unhold(
    ctx: typer.Context,
    jobs: Annotated[list[str], JOBS],
    receiver_url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Let jobs be granted again."""
    return _move(ctx.obj, jobs, as_json, ctx.obj.client(receiver_url).unhold)


@app.command()
def wait(
    ctx: typer.Context,
    jobs: Annotated[list[str] | None, JOBS] = None,
    every: Annotated[bool, typer.Option("--all", help="Every job of the plan.")] = False,
    receiver_url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Wait until jobs have ended. Exit code 0: all completed; 3: one failed; 4: one was cancelled."""
    context: CommandContext = ctx.obj
    if bool(jobs) == every:
        raise CannotError(f"{NAME_A_JOB}; or every job of the plan: --all", USAGE)
    quiet = as_json or context.as_json
    over = cli_wait.wait(context, context.client(receiver_url), list(jobs or ()), quiet=quiet)
    if quiet:
        keys = ("job_id", "name", "status", "error", "ended_by")
        told = [{key: view.get(key) for key in keys} for view in over]
        print(json_text({"jobs": told}), file=context.out)
    return cli_wait.outcome(view["status"] for view in over)


def _move(context: CommandContext, refs: Sequence[str], as_json: bool, call: Callable[[str], MovedReply]) -> int:
    """Move each job."""
    return context.each(refs, "jobs", as_json, lambda ref: call(ref).to_dict(), cli_views.moved_line)


@app.command()
def reload(ctx: typer.Context, receiver_url: Url = None, as_json: AsJson = False) -> int:
    """Make the receiver read its manifest again; a bad one changes nothing."""
    context: CommandContext = ctx.obj
    try:
        counts = context.client(receiver_url).reload()
    except Refused as refusal:
        mistakes = mistakes_of(refusal)
        if not mistakes:
            raise
        complain_of(context, mistakes, as_json)
        return REFUSED
    context.show(as_json, counts, lambda: cli_views.render_reload(counts))
    return DONE


@app.command()
def get(
    ctx: typer.Context,
    job: Annotated[str | None, JOB] = None,
    every: Annotated[bool, typer.Option("--all", help="Every completed job of the plan, a folder each.")] = False,
    attempt: Annotated[int | None, typer.Option(help="The model of this attempt.", min=1)] = None,
    out: Annotated[Path | None, typer.Option(help="Folder; default MODEL_MODE-ID.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that differ.")] = False,
    receiver_url: Url = None,
    as_json: AsJson = False,
) -> int:
    """Fetch a completed job's model, verify it, and unpack it."""
    context: CommandContext = ctx.obj
    if (job is not None) == every:
        raise CannotError(f"{NAME_A_JOB}; or every completed one of the plan: --all", USAGE)
    if every and attempt is not None:
        raise CannotError("--attempt is of one job; name it instead of --all", USAGE)
    client = context.client(receiver_url)
    if job is not None:
        shape, text = _get(context, client, job, out, attempt=attempt, force=force)
        context.show(as_json, shape, lambda: text)
        return DONE
    code, shapes = DONE, []
    for view in client.all_jobs(status="completed"):
        if not view["in_manifest"]:
            continue
        if gone := view.get("removed"):
            context.complain(removed_sentence(view, gone["at"], gone["why"]))
            continue
        try:
            shape, text = _get(context, client, view["job_id"], out, force=force, parent=True)
        except (BundleRefused, Refused) as refusal:
            context.complain(f"{view['name']}: {refusal}")
            code = REFUSED
            continue
        shapes.append(shape)
        if not (as_json or context.as_json):
            print(f"{printable(view['name'])}:\n{text}", file=context.out, flush=True)
    if as_json or context.as_json:
        print(json_text({"models": shapes}), file=context.out)
    elif not shapes and code == DONE:
        context.complain("no job of the plan is completed yet")
    return code


def _get(
    context: CommandContext,
    client: FleetClient,
    ref: str,
    out: Path | None,
    *,
    force: bool,
    attempt: int | None = None,
    parent: bool = False,
) -> tuple[Json, str]:
    """Fetch one model into ``out``, or (``parent``) into a folder of its own there; returns JSON and text."""
    detail = client.job(ref)
    view, spec = detail["job"], detail["spec"]
    number = "" if attempt is None else f"-{attempt}"
    own = Path(f"{spec['model']}_{spec['mode']}-{view['job_id'][:12]}{number}").name
    folder = (out or Path()) / own if parent else out or Path(own)
    with meter(context, "fetching") as progress:
        artifact_id, files = fetch_model(client, detail, folder, progress, attempt=attempt, force=force)
    shape = {
        "job_id": view["job_id"],
        "name": view["name"],
        "artifact_id": artifact_id,
        "path": str(folder),
        "files": [{"name": f.name, "bytes": f.size, "sha256": f.sha256} for f in files],
    }
    lines = [printable(f"{folder / f.name}  {size(f.size)}") for f in files]
    return shape, "\n".join([*lines, f"verified: artifact {artifact_id}"])


# Each module adds its commands; those of this file act on jobs by name.
MODULES = (
    act,
    audit,
    browse,
    curve,
    standings,
    report,
    enroll,
    forecast,
    gc,
    hosts,
    incidents,
    notify,
    plan,
    recovery,
    speeds,
    watch,
    logs,
    datasets,
)
for _module in MODULES:
    _module.hook(app)


_REMEDIES = {  # for a file that cannot be used
    errno.ENOSPC: "make room there, or name another folder",
    errno.EDQUOT: "make room there, or name another folder",
    errno.EROFS: "name a folder that can be written",
    errno.EACCES: "give this user the right to it, or name another folder",
    errno.EPERM: "give this user the right to it, or name another folder",
    errno.ENOENT: "look at its name",
}


def main(argv: Sequence[str] | None = None, *, context: CommandContext | None = None) -> int:
    """Run one command; returns the exit code. Every error is one sentence on standard error."""
    context = context or CommandContext()
    replace_unprintable(context.out, context.err)
    context.callers.update(callers())
    try:
        return _run(sys.argv[1:] if argv is None else list(argv), context)
    except typer.TyperException as error:  # wrong usage
        said = error.format_message().replace("Value error, ", "", 1).rstrip(".")  # a type's name
        context.complain(f"{said}; see cis490-jobs --help")
        return USAGE
    except Damaged as error:
        context.complain(error)
        return REFUSED
    except Unreachable as error:
        running = "" if isinstance(error, Stranger) else "is it running there? "
        context.complain(f"{error}; {running}--receiver-url or ${URL_VARIABLE} names it")
        return UNREACHABLE
    except Unavailable as error:
        context.complain(error)
        return UNREACHABLE
    except CannotError as error:
        context.complain(error)
        return error.code
    except (ClientError, BundleRefused) as error:
        context.complain(error)
        return REFUSED
    except OSError as error:
        if has_seen_enough(error):
            write_no_more()
            return REFUSED
        remedy = _REMEDIES.get(error.errno or 0, "name another place, or see what holds it")
        context.complain(f"{error.filename or 'standard output'}: {error.strerror or error}; {remedy}")
        return REFUSED


@cache
def command() -> Any:
    """All commands with their flags, read from the functions once: it takes longer than most commands."""
    return typer.main.get_command(app)


def callers() -> set[str]:
    """Name the commands that call a receiver, by their flag for its address."""
    found: dict[str, Any] = command().commands
    groups = {name: list(getattr(each, "commands", {name: each}).values()) for name, each in found.items()}
    return {
        name
        for name, all_of_it in groups.items()
        if any(p.name == "receiver_url" for one in all_of_it for p in one.params)
    }


def _run(given: list[str], context: CommandContext) -> int:
    """Run one command; a group that is named alone prints its help."""
    try:
        code = command().main(given, prog_name="cis490-jobs", standalone_mode=False, obj=context)
    except typer.TyperException as error:
        asked: Any = getattr(error, "ctx", None)
        if asked is None or error.format_message() != "Missing command.":
            raise
        print(asked.get_help(), file=context.out)
        return DONE
    return code if isinstance(code, int) else DONE


if __name__ == "__main__":
    sys.exit(main())

"""``cis490-jobs list``, ``show``, ``cancel``, ``get`` and others: show jobs by name, and change them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from training.fleet.cli import render
from training.fleet.cli import wait as waiting
from training.fleet.cli.context import CannotError, CommandContext, meter
from training.fleet.cli.mistakes import complain_of, mistakes_of
from training.fleet.cli.models import BundleRefused, fetch_model
from training.fleet.cli.options import JOB, JOBS, NAME_A_JOB, Job, Jobs
from training.fleet.cli.registration import as_command
from training.fleet.client.client import FleetClient, Refused
from training.fleet.scheduling.job import JobStatus
from training.fleet.wire.attempts import MovedReply
from training.fleet.wire.constants import DONE, REFUSED, USAGE
from training.fleet.wire.words import Json, removed_sentence, size
from training.printable import json_text, printable


@as_command("list")
def list_jobs(
    context: CommandContext,
    wanted: Annotated[JobStatus | None, typer.Option("--status", help="Only jobs with this status.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Also ended jobs that left the plan.")] = False,
) -> None:
    """List the jobs, in the order of arrival; without --all or --json, ended jobs that left the plan are only
    counted."""
    jobs = list(context.client().all_jobs(status=wanted))
    context.show({"jobs": jobs}, lambda _: render.render_list(jobs, every=every))


@as_command()
def show(context: CommandContext, job: Job) -> None:
    """Show a job: its requirements and every attempt at it."""
    detail = context.client().job(job)
    context.show(detail, render.render_job)


@as_command()
def explain(context: CommandContext, job: Job) -> None:
    """Explain, host by host, why a job does not run."""
    answer = context.client().explain(job)
    context.show(answer, render.render_explain)


@as_command()
def workers(context: CommandContext) -> None:
    """List all hosts that ever asked for work: what they have, what they train, and their most important warning."""
    answer = context.client().workers()
    context.show(answer, render.render_workers)


@as_command()
def upgrade(
    context: CommandContext,
    check: Annotated[bool, typer.Option("--check", help="List them; the exit code is 1 if there are any.")] = False,
) -> int:
    """Check which hosts run another version or commit than the receiver. Nothing updates itself."""
    if not check:
        raise CannotError(
            "nothing updates itself: upgrade the receiver, then each host, as `cis490 docs operations` says; "
            "`upgrade --check` lists the hosts that are not like the receiver",
            USAGE,
        )
    answer = context.client().workers()
    unlike = {worker["hostname"]: worker["unlike"] for worker in answer["workers"] if worker["unlike"]}
    rows = [("the receiver", answer["build"]), *unlike.items()]
    same = f"every host runs the receiver's program, {printable(answer['build'])}"
    shown = {"build": answer["build"], "unlike": unlike}
    context.show(shown, lambda _: render.table("HOST", "RUNS", rows=rows) if unlike else same)
    return REFUSED if unlike else DONE


@as_command()
def cancel(
    context: CommandContext,
    jobs: Annotated[list[str] | None, JOBS] = None,
    removed: Annotated[bool, typer.Option("--removed", help="All incomplete jobs that left the plan.")] = False,
) -> int:
    """Cancel jobs; a running trainer stops at its worker's next heartbeat."""
    if not (jobs or removed):
        raise CannotError(f"{NAME_A_JOB}; or all that the plan no longer names: --removed", USAGE)
    client = context.client()
    refs = list(jobs or ())
    gone: list[str] = []
    if removed:
        unplanned = (each for each in client.all_jobs() if not each["in_manifest"])
        gone = [
            each["job_id"] for each in unplanned if each["status"] not in (JobStatus.COMPLETED, JobStatus.CANCELLED)
        ]
        if not refs + gone:
            context.complain("nothing to cancel: the plan names every job that is not finished or failed")

    return _move(context, [*refs, *gone], lambda ref: client.cancel(ref, removed=ref in gone))


@as_command()
def requeue(
    context: CommandContext,
    jobs: Annotated[list[str] | None, JOBS] = None,
    failed: Annotated[bool, typer.Option("--failed", help="All failed jobs of the plan.")] = False,
) -> int:
    """Train jobs again, whatever their state: a running attempt is superseded, and failures and losses count from 0."""
    if not (jobs or failed):
        raise CannotError(f"{NAME_A_JOB}; or all that have failed: --failed", USAGE)
    client = context.client()
    refs = list(jobs or ())
    if failed:
        found = client.all_jobs(status="failed")
        refs += [each["job_id"] for each in found if each["in_manifest"]]
        if not refs:
            context.complain("nothing to requeue: no job of the plan has failed")
    return _move(context, refs, client.requeue)


@as_command()
def hold(context: CommandContext, jobs: Jobs) -> int:
    """Keep jobs from being granted until they are unheld; running attempts continue."""
    return _move(context, jobs, context.client().hold)


@as_command()
def unhold(context: CommandContext, jobs: Jobs) -> int:
    """Let held jobs be granted again."""
    return _move(context, jobs, context.client().unhold)


@as_command()
def wait(
    context: CommandContext,
    jobs: Annotated[list[str] | None, JOBS] = None,
    every: Annotated[bool, typer.Option("--all", help="Wait for every job of the plan.")] = False,
) -> int:
    """Wait until jobs have ended. Exit code 0: all completed; 3: one failed; 4: none failed, but one was cancelled."""
    if bool(jobs) == every:
        raise CannotError(f"{NAME_A_JOB}; or every job of the plan: --all", USAGE)
    over = waiting.wait(context, context.client(), list(jobs or ()), quiet=context.as_json)
    if context.as_json:
        keys = ("job_id", "name", "status", "error", "ended_by")
        told = [{key: view.get(key) for key in keys} for view in over]
        print(json_text({"jobs": told}), file=context.out)
    return waiting.outcome(view["status"] for view in over)


def _move(context: CommandContext, refs: Sequence[str], call: Callable[[str], MovedReply]) -> int:
    """Do an act, ``call``, on each job and print the state that each has now; return the exit code."""
    return context.each(refs, "jobs", lambda ref: call(ref).to_dict(), render.moved_line)


@as_command()
def reload(context: CommandContext) -> int:
    """Make the receiver read its manifest again; a manifest with mistakes changes nothing."""
    try:
        counts = context.client().reload()
    except Refused as refusal:
        mistakes = mistakes_of(refusal)
        if not mistakes:
            raise
        complain_of(context, mistakes)
        return REFUSED
    context.show(counts, render.render_reload)
    return DONE


@as_command()
def get(
    context: CommandContext,
    job: Annotated[str | None, JOB] = None,
    every: Annotated[bool, typer.Option("--all", help="Every completed job of the plan, a folder each.")] = False,
    attempt: Annotated[int | None, typer.Option(help="The model of this attempt.", min=1)] = None,
    out: Annotated[Path | None, typer.Option(help="Folder; default MODEL_MODE-ID; with --all, its parent.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that differ.")] = False,
) -> int:
    """Fetch a completed job's model, verify it, and unpack it."""
    if (job is not None) == every:
        raise CannotError(f"{NAME_A_JOB}; or every completed one of the plan: --all", USAGE)
    if every and attempt is not None:
        raise CannotError("--attempt is of one job; name that job instead of --all", USAGE)
    client = context.client()
    if job is not None:
        shape, text = _get(context, client, job, out, attempt=attempt, force=force)
        context.show(shape, text)
        return DONE
    code, shapes = DONE, []
    for view in client.all_jobs(status="completed"):
        if not view["in_manifest"]:
            continue
        if gone := view["removed"]:
            context.complain(removed_sentence(view, gone["at"], gone["why"]))
            continue
        try:
            shape, text = _get(context, client, view["job_id"], out, force=force, parent=True)
        except (BundleRefused, Refused) as refusal:
            context.complain(f"{view['name']}: {refusal}")
            code = REFUSED
            continue
        shapes.append(shape)
        if not context.as_json:
            print(f"{printable(view['name'])}:\n{text}", file=context.out, flush=True)
    if context.as_json:
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
    """Fetch one model into ``out``, or if ``parent`` into a folder of its own inside ``out``; return JSON and text."""
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

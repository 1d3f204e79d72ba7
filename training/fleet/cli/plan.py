"""``cis490-jobs plan`` and ``apply``: show what an edit of the manifest would do, and do it.

The file is read on this machine, with the rights of the user who runs the command; the receiver gets the plan as plain
data and checks it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from training.files import mark_of, write_whole
from training.fleet.cli.context import CannotError, CommandContext
from training.fleet.cli.mistakes import complain_of, mistakes_of
from training.fleet.cli.planned import render_plan
from training.fleet.cli.registration import as_command
from training.fleet.cli.render import render_reload
from training.fleet.cli.why import JobIdentity, render_why, why_data
from training.fleet.client.client import ClientError, FleetClient, Refused, Unavailable, Unreachable
from training.fleet.wire.constants import DONE, REFUSED, UNREACHABLE, USAGE
from training.fleet.wire.dataset_listing import Catalogue, UnknownDataset
from training.printable import printable
from training.strict_json import Json, JsonObject

if TYPE_CHECKING:
    from training.fleet.manifest.types import JobSpec, Manifest

INVALID, WOULD_CHANGE = 2, 3  # exit codes of `plan`
NOT_TAKEN = "this manifest has mistakes, and a reload would take nothing of it"
BEFORE = ".before"  # ending of the manifest that `apply` replaced


@as_command()
def plan(
    context: CommandContext,
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE", help="A manifest on this machine; default the receiver's own.", show_default=False
        ),
    ] = None,
    why: Annotated[
        bool, typer.Option("--why", help="JOB [OTHER] instead of FILE: what makes a job's id, or two jobs differ.")
    ] = False,
    within: Annotated[
        Path | None, typer.Option("--in", metavar="FILE", help="With --why: a manifest to look in first.")
    ] = None,
) -> int:
    """Show what a manifest would change, without applying it. Exit code 0: nothing would change, 2: the manifest is
    invalid, 3: something would change."""
    names = list(given or ())
    if why:
        return _why(context, names, within)
    if len(names) > 1 or within is not None:
        raise CannotError("plan takes one FILE; --in and names of jobs need --why", USAGE)
    file = Path(names[0]) if names else None
    answer = _judged(context, context.client(), file)
    if answer is None:
        return INVALID
    context.show(answer, lambda _: render_plan(answer, file))
    return WOULD_CHANGE if answer["changed"] else DONE


@as_command()
def apply(
    context: CommandContext,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Replaces the receiver's manifest.", show_default=False)
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int:
    """Show what a manifest would change, ask, and apply it: FILE replaces the receiver's manifest; without FILE the
    receiver reads its own again."""
    client = context.client()
    seen = None if file is None else mark_of(file)
    answer = _judged(context, client, file)
    if answer is None:
        return INVALID
    if not context.as_json:
        context.show(answer, lambda _: render_plan(answer, file))
    if not answer["changed"]:
        context.show({"plan": answer, "reload": None, "kept": None}, "nothing to do")
        return DONE
    target = None if file is None else _place(answer, file)
    client.call("tokens")  # an operator's call: who may not reload replaces no file
    if not (yes or context.confirm("Apply this?")):
        context.complain("nothing was applied")
        return REFUSED
    kept = None
    if target is not None and file is not None and target != file.resolve():
        kept = _put(file, seen, target, answer)
    try:
        reload = client.reload()
    except Refused as refusal:
        if kept is not None and target is not None:  # undo
            write_whole(target, kept.read_bytes(), mode=target.stat().st_mode & 0o777)
        mistakes = mistakes_of(refusal)
        if not mistakes:
            raise
        complain_of(context, mistakes)
        return INVALID
    except ClientError as error:
        where = "" if target is None else f"; {file} is in place, and read at the next reload"
        code = UNREACHABLE if isinstance(error, Unreachable | Unavailable) else REFUSED
        raise CannotError(f"{error}{where}", code) from None
    shape = {"plan": answer, "reload": reload, "kept": None if kept is None else str(kept)}
    said = [render_reload(reload, None if context.as_json else answer["reload"])]
    if kept is not None:
        said.append(printable(f"the earlier manifest is kept as {kept}"))
    context.show(shape, "\n".join(said))
    return DONE


# -- judging ----------------------------------------------------------------------------------------------------


def _judged(context: CommandContext, client: FleetClient, file: Path | None) -> Json | None:
    """Return the receiver's answer to what a manifest would change; None if the manifest is invalid, after printing its
    mistakes."""
    manifest = None
    if file is not None:
        manifest = read_plan(context, file)
        if manifest is None:
            return None
    try:
        return client.plan(None if manifest is None or file is None else sent_plan(manifest, file))
    except Refused as refusal:
        mistakes = mistakes_of(refusal)
        if not mistakes:
            raise
        complain_of(context, _located(mistakes, manifest, file), NOT_TAKEN)
        return None


def read_plan(context: CommandContext, file: Path) -> Manifest | None:
    """Return the checked plan in a file, read with this user's rights; None if it has mistakes, after printing them."""
    from training.fleet.manifest.load import load_manifest  # for these commands only
    from training.fleet.manifest.types import ManifestError

    try:
        return load_manifest(file)
    except ManifestError as error:
        complain_of(context, [mistake.to_dict() for mistake in error.mistakes], NOT_TAKEN)
        return None


def sent_plan(manifest: Manifest, file: Path) -> JsonObject:
    """Return a checked plan as the body of a request: jobs without ids, hosts and custom trainers by name, and channels
    only as digests."""
    from training.fleet.manifest.channels import digests
    from training.fleet.manifest.types import retention_table

    return {
        "file": str(file),
        "jobs": [_without(job.to_dict(), "job_id") for job in manifest.jobs] if manifest.names_jobs else None,
        "hosts": {name: _without(host.to_dict(), "name") for name, host in manifest.hosts.items()},
        "trainers": {name: _without(own.to_dict(), "name") for name, own in manifest.trainers.items()},
        "retention": retention_table(manifest.retention),
        "scheduling": manifest.scheduling.value,
        "notify": digests(manifest.channels),
    }


def _without(table: Json, key: str) -> JsonObject:
    return {each: value for each, value in table.items() if each != key and value is not None}


def _located(mistakes: Sequence[Json], manifest: Manifest | None, file: Path | None) -> list[Json]:
    """Return the receiver's mistakes with the names of jobs instead of numbers, because the receiver counts every job
    that a matrix makes. Without FILE, the mistakes are returned unchanged."""
    if manifest is None or file is None:
        return list(mistakes)
    found: list[Json] = []
    for mistake in mistakes:
        key = str(mistake.get("key") or "")
        number, closed, rest = key.removeprefix("jobs[").partition("]")
        if key.startswith("jobs[") and closed and number.isdecimal() and int(number) < len(manifest.jobs):
            mistake = {**mistake, "key": f'job "{manifest.jobs[int(number)].name}"{rest}'}
        found.append(mistake)
    return found


# -- applying ---------------------------------------------------------------------------------------------------


def _place(answer: Json, file: Path) -> Path:
    """Return the path of the receiver's manifest if it is on this machine; otherwise CannotError says where FILE must
    be put."""
    said, mark, machine = answer["file"], answer["mark"], printable(answer["machine"] or "")
    target = Path(str(said))
    if not said or not mark or mark_of(target) != mark:
        where = f"{printable(said or 'its manifest')} on {machine or 'its machine'}"
        raise CannotError(f"the receiver reads {where}, which is not here: put {file} there, then `cis490-jobs reload`")
    return target.resolve()


def _put(file: Path, seen: str | None, target: Path, answer: Json) -> Path:
    """Write FILE durably as the receiver's manifest, and keep the earlier manifest beside it; return the kept file's
    path. Raises CannotError if either file has changed since the plan was shown, or cannot be read or written."""
    kept = target.with_name(target.name + BEFORE)
    try:
        content, before, mode = file.read_bytes(), target.read_bytes(), target.stat().st_mode & 0o777
        for path, mark in ((file, seen), (Path(str(answer["file"])), answer["mark"])):
            if mark_of(path) != mark:
                raise CannotError(f"{path} was changed meanwhile; look at the plan again")
        write_whole(kept, before, mode=mode)
        write_whole(target, content, mode=mode)
    except OSError as error:
        reason = error.strerror or error
        raise CannotError(
            f"cannot put {file} in the place of {target}: {reason}; run this as a user who may write in {target.parent}"
        ) from None
    return kept


# -- why --------------------------------------------------------------------------------------------------------


def _why(context: CommandContext, names: Sequence[str], within: Path | None) -> int:
    if len(names) not in (1, 2) or not all(name.strip() for name in names):
        raise CannotError("name one job or two: plan --why JOB [OTHER]", USAGE)
    client, manifest = context.client(), None
    if within is not None:
        manifest = read_plan(context, within)
        if manifest is None:
            return INVALID
    jobs = [_asked(client, manifest, name) for name in names]
    context.show(why_data(jobs), lambda _: render_why(jobs))
    return DONE


def _asked(client: FleetClient, manifest: Manifest | None, name: str) -> JobIdentity:
    """Return the identity of the job with this name in the file, or else of the receiver's job."""
    if manifest is not None:
        job = next((each for each in manifest.jobs if each.name == name), None)
        if job is not None:
            return _of_file(client, manifest, job)
    detail = client.job(name)
    return JobIdentity(str(detail["job"]["name"]), str(detail["job"]["job_id"]), detail["spec"])


def _of_file(client: FleetClient, manifest: Manifest, job: JobSpec) -> JobIdentity:
    """Return the identity of a job in a file, from the job dict that the receiver would make: with its data set's id
    and a custom trainer's command."""
    from training.contract import job_identity

    spec = manifest.job_dict(job)
    if job.dataset is not None:
        known = client.datasets.datasets()["datasets"]
        names = {name: str(each["dataset_id"]) for each in known for name in each["names"]}
        catalogue = Catalogue(frozenset(str(each["dataset_id"]) for each in known), names)
        try:
            spec["dataset"] = catalogue.resolve(job.dataset)
        except UnknownDataset as error:
            raise CannotError(f"job {job.name}: {error}") from None
    return JobIdentity(job.name, job_identity(spec), spec)

"""``cis490-jobs doctor``, ``backup``, ``restore`` and ``rebuild``: commands for the state on the receiver's machine."""

from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from training.clock import SystemClock
from training.files import check_plain
from training.fleet.cli.context import CannotError, CommandContext, meter
from training.fleet.cli.registration import as_command
from training.fleet.recovery.findings import DoctorReport, Finding, Gravity
from training.fleet.service.state import DEFAULT, MANIFEST, Deployment, RecoveryError
from training.fleet.wire.constants import DONE, REFUSED, USAGE
from training.fleet.wire.words import size
from training.printable import counted, printable

# The parser does not check these: our own error names the user who may read them.
StateDir = Annotated[Path, typer.Option(metavar="FOLDER", help="State folder of the receiver.", readable=False)]
Db = Annotated[Path | None, typer.Option(metavar="FILE", help="Database, if not in --state-dir.", readable=False)]
ModelsDir = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Store, if not in --state-dir.", readable=False)]
_STYLES = {Gravity.FAULT: "bold red", Gravity.WARNING: "yellow", Gravity.NOTE: "dim"}


@as_command(calls=False)
def doctor(
    context: CommandContext,
    state_dir: StateDir = DEFAULT,
    db: Db = None,
    models_dir: ModelsDir = None,
    deep: Annotated[bool, typer.Option("--deep", help="Also hash every bundle, report and file of output.")] = False,
    policy: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="The receiver's --policy.")] = None,
) -> int:
    """Check the receiver's database and store for damage. The command runs on the receiver's machine and changes
    nothing."""
    from training.fleet.recovery.doctor import (
        examine,  # loaded for these commands only
    )
    from training.fleet.scheduling.policy_options import policy_of, setting

    try:
        figures = policy_of(map(setting, policy or []))
    except ArgumentTypeError as error:
        raise CannotError(str(error), USAGE) from None
    state = _state(state_dir, db, models_dir)
    with stages(context) as progress:
        report = examine(state, SystemClock(), deep=deep, policy=figures, progress=progress)
    report = report.worded(state.typed)
    context.show(report.to_dict(), lambda _: render(report, deep=deep))
    return DONE if report.healthy else REFUSED


@as_command(calls=False)
def backup(
    context: CommandContext,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder for backups only.")],
    state_dir: StateDir = DEFAULT,
    db: Db = None,
    models_dir: ModelsDir = None,
    keep: Annotated[int, typer.Option(help="Number of databases to keep; bundles stay.", min=1)] = 10,
) -> int:
    """Copy database and store while the receiver works; of the store, a repeated backup copies only new files."""
    from training.fleet.recovery.backup import Backup

    state = _state(state_dir, db, models_dir)
    with stages(context) as progress, explained(state):
        made = Backup(folder, progress=progress).make(state, SystemClock(), keep=keep)
    held, jobs = made.contents, sum(made.contents.jobs.values())
    shape = {
        "snapshot": made.name,
        "jobs": jobs,
        "bundles": held.bundles,
        "copied": made.copied,
        "bytes": made.bytes_copied,
        "lost": held.lost,
        "datasets": len(held.datasets),
    }
    lines = [state.typed(f"lost: {each}; `cis490-jobs doctor --deep` says what to do") for each in held.lost]
    lines.append(
        f"backup {made.name}: {counted(jobs, 'jobs')}, {counted(held.bundles, 'bundles')}, {made.copied} of them new "
        f"({size(made.bytes_copied)}), {counted(len(held.datasets), 'data sets')} ({size(made.dataset_bytes)} new)"
    )
    context.show(shape, printable_text(lines))
    return REFUSED if held.lost else DONE


@as_command(calls=False)
def restore(
    context: CommandContext,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of backups.")],
    state_dir: StateDir = DEFAULT,
    db: Db = None,
    models_dir: ModelsDir = None,
    snapshot: Annotated[str | None, typer.Option(help="Name of the backup; default the newest.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing database, which is kept beside.")] = False,
) -> int:
    """Restore the newest backup in FOLDER, or the one that --snapshot names; the receiver must be stopped."""
    from training.fleet.recovery.backup import Restore

    state = _state(state_dir, db, models_dir)
    with stages(context) as progress, explained(state):
        done = Restore(folder, state, SystemClock(), progress=progress).run(snapshot=snapshot, force=force)
    report = _checked(state)
    made_at = datetime.fromtimestamp(done.contents.made_at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    shape = {
        "snapshot": done.snapshot,
        "made_at": done.contents.made_at,
        "bundles_brought": done.brought,
        "bundles_kept": done.kept,
        "completed_since": done.completed_since,
        "lost": done.lost,
        "datasets": done.datasets,
        "database_kept_as": None if done.aside is None else str(done.aside),
        "doctor": report.to_dict(),
    }
    lines = [f"lost: {each}" for each in done.lost]
    lines += [f"completed since, and taken back from the store: {each}" for each in done.completed_since]
    if done.aside is not None:
        lines.append(f"the database that was there is {done.aside}")
    lines += [
        f"restored {done.snapshot}: {counted(done.brought, 'bundles')} brought back; there already: {done.kept}",
        f"data sets there: {done.datasets}, {size(done.dataset_bytes)} of them restored",
        f"everything else since {made_at} is forgotten: cancel, requeue and revoke again what you had since",
        "what workers finished since waits in `cis490-jobs workers`; `cis490-jobs accept HOST --all` takes it",
    ]
    context.show(shape, lambda _: Group(printable_text(lines), render(report, deep=False)))
    return REFUSED if done.lost or not report.healthy else DONE


@as_command(calls=False)
def rebuild(
    context: CommandContext,
    state_dir: StateDir = DEFAULT,
    db: Db = None,
    models_dir: ModelsDir = None,
    manifest: Annotated[Path, typer.Option(metavar="FILE", help="The plan, for jobs that are not done.")] = MANIFEST,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing database, which is kept beside.")] = False,
) -> int:
    """Rebuild the database from the store and the manifest alone; the receiver must be stopped."""
    from training.fleet.recovery.rebuild import FORGOTTEN, planned
    from training.fleet.recovery.rebuild import rebuild as make_anew

    state = _state(state_dir, db, models_dir, manifest)
    with stages(context) as progress, explained(state):
        jobs = planned(manifest, state)
        done = make_anew(state, jobs, SystemClock(), force=force, progress=progress)
    report = _checked(state)
    shape = {
        "completed": done.completed,
        "not_in_manifest": done.unlisted,
        "removed": done.removed,
        "pending": done.pending,
        "unusable": [{"path": each.path, "why": each.why} for each in done.unusable],
        "forgotten": list(FORGOTTEN),
        "database_kept_as": None if done.aside is None else str(done.aside),
        "doctor": report.to_dict(),
    }
    lines = [f"not usable: {each.path}: {each.why}" for each in done.unusable]
    lines += [f"completed, though no longer in the manifest: {name}" for name in done.unlisted]
    lines += [f"completed, and not trained again: {each}" for each in done.removed]
    lines += [f"not recoverable: {each}" for each in FORGOTTEN]
    if done.aside is not None:
        lines.append(f"the database that was there is {done.aside}")
    lines.append(f"rebuilt: {counted(len(done.completed), 'jobs')} completed, {done.pending} to train")
    context.show(shape, lambda _: Group(printable_text(lines), render(report, deep=False)))
    return DONE if report.healthy else REFUSED


def _state(folder: Path, db: Path | None, models: Path | None, manifest: Path = MANIFEST) -> Deployment:
    """Return the paths that the options name. Raises OSError if something other than a file is at the database's
    path."""
    state = Deployment.of(folder, db, models, manifest)
    check_plain(state.db)  # a pipe would be waited for without end
    return state


def _checked(state: Deployment) -> DoctorReport:
    from training.fleet.recovery.doctor import examine

    return examine(state, SystemClock()).worded(state.typed)


def printable_text(lines: list[str]) -> Text:
    return Text("\n".join(map(printable, lines)))


@contextmanager
def explained(state: Deployment) -> Iterator[None]:
    """Turn a RecoveryError into a CannotError, whose text names commands with this deployment's flags."""
    try:
        yield
    except RecoveryError as error:
        raise CannotError(state.typed(str(error))) from None


def render(report: DoctorReport, *, deep: bool) -> RenderableType:
    """Render every finding with its remedy, the sizes of what grows, and the scope of the check."""
    lines = [_line(each) for each in report.findings]
    looked = " and ".join(counted(count, what) for what, count in report.looked_at.items())
    read = "every byte was read" if deep else "their bytes were not read: --deep does that"
    bad = sum(each.level is not Gravity.NOTE for each in report.findings)
    verdict = "1 thing needs you" if bad == 1 else f"{bad} things need you"
    if report.healthy:
        verdict = "all promises are kept"
    grown = [Text(each.sentence, "dim") for each in report.grown if each.count]
    return Group(*lines, *grown, Text(f"{verdict}; looked at {looked} ({read})"))


def _line(finding: Finding) -> Text:
    text = Text(f"{finding.level.value}: ", _STYLES[finding.level])
    text.append(printable(finding.problem), "")
    text.append(f"\n  {printable(finding.remedy)}", "dim")
    return text


@contextmanager
def stages(context: CommandContext) -> Iterator[Callable[[str, int, int], object]]:
    """Give the ``with`` block a function that shows the present stage as a progress bar on a terminal; elsewhere the
    function shows nothing."""
    with meter(context, "", of_bytes=False) as show:
        yield lambda what, done, whole: show(done, whole, what)

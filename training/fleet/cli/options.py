"""The arguments and options that commands share."""

from typing import Annotated, Any

import typer

from training.fleet.cli import complete

NAME_A_JOB = "name a job: its name, its id, or a unique prefix of the id"


def _named(given: Any) -> Any:
    """Refuse an empty name, which results from an unset shell variable and names no job."""
    if any(not ref.strip() for ref in ([given] if isinstance(given, str) else given or [])):
        raise typer.BadParameter(NAME_A_JOB)
    return given


JOB = typer.Argument(
    metavar="JOB", help="A job's name, id, or a unique prefix of its id.", callback=_named, autocompletion=complete.jobs
)
JOBS = typer.Argument(
    metavar="JOB", help="Jobs' names, ids, or unique prefixes of ids.", callback=_named, autocompletion=complete.jobs
)
Job = Annotated[str, JOB]
Jobs = Annotated[list[str], JOBS]

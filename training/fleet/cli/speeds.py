"""``cis490-jobs speeds``: show how long jobs take on each host, as learned from completed jobs."""

from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from training.fleet.cli.context import CannotError, CommandContext
from training.fleet.cli.registration import as_command
from training.fleet.cli.render import cell, table
from training.fleet.wire.constants import REFUSED
from training.fleet.wire.words import Json, duration, size
from training.printable import counted, one_line, printable

_HYPER_MAX = 60  # characters of a kind's settings
_FROM = {
    "here": "other {model} jobs here",
    "calibrated": "{model} on other hosts, its calibration",
    "elsewhere": "{model} on other hosts",
    "guess": "a guess",
}


@as_command()
def speeds(
    context: CommandContext,
    model: Annotated[str | None, typer.Option(help="Only jobs of this model.")] = None,
    host: Annotated[str | None, typer.Option(help="Only this host.")] = None,
) -> None:
    """Show how long each kind of job takes on each host, the range for four of five such jobs, and their memory."""
    client = context.client()
    answer = dict(client.speeds())
    kinds = [_on(host, kind) for kind in answer["kinds"]]
    if host is not None and not any(kind["hosts"] for kind in kinds):
        known = [str(each["hostname"]) for each in client.workers()["workers"]]
        if host.lower() not in map(str.lower, known):
            raise CannotError(f"no host is called {printable(host)}; `cis490-jobs workers` lists them", REFUSED)
    answer["kinds"] = [kind for kind in kinds if model in (None, kind["model"])]
    context.show(answer, rendered)


def _on(host: str | None, kind: Json) -> Json:
    """Return a kind of jobs with the times on ``host`` alone; unchanged if ``host`` is None."""
    if host is None:
        return kind
    return {**kind, "hosts": [each for each in kind["hosts"] if each["host"].lower() == host.lower()]}


def rendered(answer: Json) -> RenderableType:
    kinds = [kind for kind in answer["kinds"] if kind["hosts"]]
    doubts = [cell(f"{name}: {why}", "yellow", chars_max=600) for name, why in answer["doubts"].items()]
    if not kinds:
        said = Text(
            "nothing is known yet: durations are learned from completed jobs"
            if not answer["attempts"]
            else "no completed job is of this model or host; without --model and --host all are shown"
        )
        return Group(said, *doubts)
    rows = []
    for kind in kinds:
        for n, told in enumerate(kind["hosts"]):
            between = f"{duration(told['low'])} to {duration(told['high'])}"
            learned = cell(basis(kind, told), "" if told["basis"] == "same" else "dim")
            rows.append((named(kind) if n == 0 else "", told["host"], duration(told["seconds"]), between, learned))
    made = table("JOBS", "HOST", "TAKES", "FOUR OF FIVE TAKE", "LEARNED FROM", rows=rows)
    from_jobs = Text(f"from {counted(answer['attempts'], 'completed jobs')}", style="dim")
    return Group(made, from_jobs, *doubts)


def named(kind: Json) -> str:
    """Describe a kind of jobs in words: model, mode, hyperparameters, memory."""
    hyper = ", ".join(f"{name} {value}" for name, value in sorted(kind["hyper"].items()))
    parts = [f"{kind['model']} {kind['mode']}"]
    parts += [one_line(hyper, _HYPER_MAX)] if hyper else []
    gib = kind["ram_gib"]
    parts += [] if gib is None else [f"up to {size(gib * 2**30)}"]
    return " · ".join(parts)


def basis(kind: Json, told: Json) -> str:
    """Say from which attempts a predicted time was learned."""
    if told["basis"] == "same":
        return f"{counted(told['seen'], 'such jobs')} here"
    return _FROM.get(str(told["basis"]), "").format(model=one_line(kind["model"], 40))

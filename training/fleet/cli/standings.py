"""``cis490-jobs models``: list the trained models with their figures, like the page of models."""

from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from training.fleet.cli.context import CommandContext
from training.fleet.cli.registration import as_command
from training.fleet.cli.render import Lines, in_columns, item, reasons, table
from training.fleet.wire import results
from training.fleet.wire.words import called, day
from training.printable import counted, one_line, some
from training.strict_json import JsonObject

HOSTS_SHOWN = 8  # columns


@as_command("models")
def models(
    context: CommandContext,
    test: Annotated[str | None, typer.Option(help="Another test: digits of its id, or part of its name.")] = None,
    why: Annotated[bool, typer.Option("--why", help="Show each model's whole verdict and figures.")] = False,
) -> None:
    """Show which model to believe: figures with intervals, ties, verdicts, and what each was never tested on."""
    client = context.client()
    reply = client.models()
    if test is not None:
        meant = [key for each in reply["tests"] if (key := each["test"]).startswith(test) or test in each["name"]]
        if len(meant) != 1:
            raise typer.BadParameter(
                f"{counted(len(meant), 'tests')} match {test}; `cis490-jobs models` lists them", param_hint="--test"
            )
        reply = client.models(test=meant[0])
    found = reply["models"]
    while reply["next_after"]:
        page = client.models(test=reply["test"], after=reply["next_after"])
        found += page["models"]
        reply = {**reply, "next_after": page["next_after"]}
    reply = {**reply, "models": found}
    context.show(reply, lambda _: _drawn(reply, why=why))


def _drawn(reply: JsonObject, *, why: bool) -> RenderableType:
    found, parts = reply["models"], _rotations(reply["rotations"])
    parts.append(Text(one_line(results.ranking(found), 400)))
    if found:
        use = one_line(results.which(found), 400)
        parts += [standings(found), Text(use)]
        if not why:
            rest = [each for each in found if f"{each['name']}, with caution: {_clause(each)}" not in use]
            parts += reasons(((called(each, 200), _clause(each)) for each in rest), "models")
            parts.append(Text("The whole verdicts: `cis490-jobs models --why`", "dim"))
        for each in found if why else ():
            parts.append(Text(one_line(f"{called(each, 200)}: {_clause(each)}", 1500)))
            parts += [item(line) for line in _whole(each)]
        if why:
            parts += reasons(((called(each, 200), never) for each in found if (never := _never_tested(each))), "models")
            parts.append(Text(results.beliefs(found)))
    others = [each for each in reply["tests"] if each["test"] != reply["test"]]
    if others:
        named = next((one_line(each["name"], 200) for each in reply["tests"] if each["test"] == reply["test"]), "")
        parts.append(Text(f"Tested on {named}. Other models were judged on other tests:", "dim"))
        parts += [item(_test(each), "dim") for each in others]
    if reply["without"]:
        names = [one_line(each["name"], 60) for each in reply["without_jobs"]]
        named = some(names, len(names), reply["without"])
        parts.append(Text(f"{counted(reply['without'], 'trained jobs')} came without a report: {named}", "dim"))
    return Group(*parts)


def _rotations(found: list[JsonObject]) -> list[RenderableType]:
    """Render the rotations: one row each, then AUROC by host, the model to deploy, and jobs that do not count."""
    if not found:
        return []
    rows: list[list[object]] = []
    for each in found:
        auroc, alarms = each["auroc"], results.folded_per_cent(each["false_alarms"])
        row = [each["name"], results.done_of(each), results.folded(auroc), results.worst(auroc)]
        row += [results.folded_per_cent(each["caught"]), f"{results.per_cent(each['promised'])} → {alarms}"]
        rows.append([*row, results.gap_to_first(each)])
    heads = ("ROTATION", "DONE", "AUROC", "WORST HOST", "CAUGHT", "FALSE ALARMS", "GAP TO THE FIRST")
    made, hosts = table(*heads, rows=rows), results.rotated_hosts(found, HOSTS_SHOWN)
    names = [one_line(host, 200) for host in hosts]
    each_host = ((each["name"], *results.by_host(each, hosts)) for each in found)
    by_host = table("AUROC, HOST UNSEEN", *names, rows=each_host, right=names)
    lines = [f"{each['name']}: to deploy: {results.to_deploy(each['deploy'])}." for each in found if each["deploy"]]
    if lacking := [str(each["name"]) for each in found if not each["deploy"]]:
        lines.append(f"to deploy: {results.to_deploy([])} ({', '.join(lacking)}).")
    lines += [f"{each['name']}: {note}." for each in found for note in each["notes"]]
    said = [Text(one_line(line, 600)) for line in lines]
    return [Text(one_line(results.rotated(found), 600)), made, by_host, *said, Text(results.SPREAD, "dim"), Text()]


def standings(found: list[JsonObject]) -> Lines:
    """Make the table of models judged on one test; "=" marks those that cannot be distinguished from the first."""
    rows = []
    for each in found:
        result = each["result"]
        auroc, between = in_columns(results.short(result["auroc"]))
        auroc += {"tied": " =", "unknown": " ?"}.get(str(each["standing"]), "")
        caught, calls = result["caught"]["value"], results.a_day(result["calls_a_day"])
        rows.append((each["name"], auroc, between, results.per_cent(caught), calls, result["level"] or "–"))
    heads = ("MODEL", "AUROC", "[95 %]", "CAUGHT", "FALSE CALLS", "VERDICT")
    return table(*heads, rows=rows, right=("CAUGHT", "FALSE CALLS"), first=[each for each in heads if each != "[95 %]"])


def _test(each: JsonObject) -> str:
    return f"--test {each['test'][:6] or 'unknown'}: {counted(each['models'], 'models')}, {each['name']}"


def _clause(each: JsonObject) -> str:
    result = each["result"]
    gone = (
        f" Its model was removed on {day(each['removed']['at'])}: {each['removed']['why']}." if each["removed"] else ""
    )
    return f"{result['why'] or result['because'] or results.LEVELS[str(result['level'])]}.{gone}"


def _whole(each: JsonObject) -> list[str]:
    """Return the verdict's lines and further sentences, and the figures that the table lacks."""
    result, twin = each["result"], each["twin"]
    lines = [*result["verdict"].splitlines(), result["more"]]
    if result["caught"]["value"] is not None:
        lines.append(f"Caught {results.whole_per_cent(result['caught'])}; false alarms {results.alarms(result)}.")
    if twin:
        other = "" if twin["same_test"] else ", on another test"
        lines.append(f"In {twin['mode']} mode: AUROC {results.whole(twin['auroc'])}{other}.")
    return [line for line in lines if line]


def _never_tested(each: JsonObject) -> str:
    never = "; ".join(map(str, each["result"]["never_tested"]))
    return f"never tested on {never}." if never else ""

"""Show the mistakes of a refused manifest, for people and machines."""

from collections.abc import Mapping, Sequence

from training.fleet.cli.context import CommandContext
from training.fleet.client.client import Refused
from training.printable import json_text, one_line
from training.streams import complain


def mistakes_of(refusal: Refused) -> list[Mapping[str, object]]:
    """Return the mistakes in a refusal; none if the refusal is about something else."""
    found = refusal.extra.get("mistakes")
    return found if isinstance(found, list) else []


REFUSED_SO = "the manifest was not taken; nothing has changed"


def complain_of(context: CommandContext, mistakes: Sequence[object], said: str = REFUSED_SO) -> None:
    """Print every mistake to standard error, after the line ``said``; with ``--json`` print only the mistakes, as JSON
    to standard output."""
    if context.as_json:
        print(json_text({"mistakes": list(mistakes)}), file=context.out)
        return
    context.complain(said)
    for mistake in mistakes:
        complain(_sentence(mistake), context.err)


def _sentence(entry: object) -> str:
    if not isinstance(entry, Mapping):
        return one_line(entry)
    place = ":".join(str(entry[key]) for key in ("file", "line") if entry.get(key))
    sentence = "; ".join(str(entry[key]) for key in ("message", "suggestion") if entry.get(key))
    return one_line(": ".join(part for part in (place, entry.get("key"), sentence) if part), 2000)

"""``cis490-jobs logs``: print all stored output of a trainer, and with --follow new lines as they come, each line
once."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

import typer

from training.fleet.cli.context import CannotError, CommandContext
from training.fleet.cli.options import Job
from training.fleet.cli.registration import as_command
from training.fleet.cli.wait import CANCELLED, FAILED
from training.fleet.client.client import FleetClient, Unavailable, Unreachable
from training.fleet.wire.constants import DONE, USAGE
from training.fleet.wire.words import day, readable
from training.printable import json_text, printable_lines
from training.streams import complain
from training.strict_json import JsonObject

POLL_S = 2.0  # between two looks
LATE_LOOKS = 5  # after the attempt's end, for its last lines
LATE = "its last lines have not arrived"


@as_command()
def logs(
    context: CommandContext,
    job: Job,
    attempt: Annotated[int | None, typer.Option(help="Number of the attempt; default the last.", min=1)] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Each line as the trainer printed it.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow new output until the attempt ends.")] = False,
) -> int:
    """Print the trainer's output, its progress in words. With --follow the exit code is 4 if the attempt was
    cancelled, 3 if it ended otherwise without completing, else 0."""
    if context.as_json and follow:
        raise CannotError("--follow prints for people; call logs --json repeatedly instead", USAGE)
    reader = LogReader(context.client(), job, attempt, raw)
    lines: list[str] = []
    gaps: list[str] = []
    for page in reader.pages():
        if context.as_json:
            lines += page["lines"]
            gaps += filter(None, [page["gap"]])
        else:
            _print(context, page, reader)
    if context.as_json:
        shape = {key: reader.last.get(key) for key in ("job_id", "live", "complete", "removed")}
        print(json_text({**shape, "attempt": reader.attempt, "gaps": gaps, "lines": lines}), file=context.out)
    elif follow and (reader.last.get("live") or (reader.attempt and reader.last.get("complete") is False)):
        _follow(context, reader)
    elif (gone := reader.last.get("removed")) and not reader.after:
        when = day(gone["at"])
        context.complain(f"the output of attempt {reader.attempt} of job {job} was removed on {when}: {gone['why']}")
    elif reader.last.get("complete") is False and not reader.last.get("live") and reader.attempt:
        context.complain(LATE)
    elif not reader.after:
        before, sentence = (reader.attempt or 0) - 1, f"job {job} has printed nothing yet"
        if before > 0:
            remedy = f"`cis490-jobs logs {job} --attempt {before}` shows the one before"
            sentence = f"attempt {before + 1} of {sentence}; {remedy}"
        context.complain(sentence)
    return _outcome(context, reader) if follow else DONE


@dataclass
class LogReader:
    """A reader of one attempt's lines, each once. Without ``attempt``, the reader takes the attempt that is the job's
    last at the first call."""

    client: FleetClient
    job: str
    attempt: int | None
    raw: bool = False
    after: int = 0  # the number of the next line
    last: JsonObject = field(default_factory=dict)  # the last answer

    def pages(self) -> Iterator[JsonObject]:
        """Yield the receiver's answers with lines that were not read yet, until there are no more."""
        while True:
            page = self.client.log(self.job, attempt=self.attempt, after=self.after)
            self.attempt, self.job, self.last = page["attempt"] or self.attempt, page["job_id"], page
            if page["next"] <= self.after:
                return
            self.after = page["next"]
            yield page


def _print(context: CommandContext, page: JsonObject, reader: LogReader) -> None:
    if page["gap"]:
        context.complain(page["gap"])
    for line in page["lines"]:
        said = "\n".join(printable_lines(line if reader.raw else readable(line)))
        print(said, file=context.out) if reader.raw else complain(said, context.out)
    context.out.flush()


def _follow(context: CommandContext, reader: LogReader) -> None:
    """Print new lines until the attempt has ended and its last line has arrived, or ``LATE_LOOKS`` requests after its
    end have brought no line; wait while the receiver does not answer."""
    left, told = LATE_LOOKS, False
    while reader.last.get("live") or (reader.last.get("complete") is False and left > 0):
        left -= not reader.last.get("live")
        context.sleep(POLL_S)
        try:
            for page in reader.pages():
                _print(context, page, reader)
                left = LATE_LOOKS
            told = False
        except (Unreachable, Unavailable) as error:
            if not told:
                context.complain(f"{error}; waiting for it")
            told = True


def _outcome(context: CommandContext, reader: LogReader) -> int:
    """Return the exit code for the attempt's end: 0 if it completed or has not ended, 4 if it was cancelled, else 3.
    Print how the attempt ended, unless it completed, and whether its last lines are missing."""
    if not reader.attempt:
        return DONE
    found = [each for each in reader.client.job(reader.job)["attempts"] if each["attempt"] == reader.attempt]
    reason = found[0].get("end_reason") if found else None
    if reason not in (None, "completed"):
        context.complain(f"attempt {reader.attempt} ended: {str(reason).replace('_', ' ')}")
    if reader.last.get("complete") is False and reason is not None:
        context.complain(LATE)
    return DONE if reason in (None, "completed") else CANCELLED if reason == "cancelled" else FAILED

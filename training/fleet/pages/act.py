"""The pages before and after an act: what it will do, and what it did. After a pause or a drain, the page links the
resume."""

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlencode

from training.fleet.scheduling.edits import counts, sentence
from training.fleet.service.acts import JOBS_MAX, ActOutlook, Done, Selection, for_good, in_words, state_word
from training.fleet.service.audit import Act
from training.fleet.wire.constants import JobAct
from training.fleet.wire.messages import DecisionReply, ReloadReply
from training.printable import counted, one_line

NAMES_MAX = 50

_MEANS = {
    JobAct.CANCEL: "They will not run again until requeued; running trainers stop at their next heartbeat.",
    JobAct.REQUEUE: "They are trained again, with fresh budgets; stored models stay stored.",
    JobAct.HOLD: "No host gets them until they are unheld; running jobs continue.",
    JobAct.UNHOLD: "Hosts may get them again.",
}
_RELEASED = "No act undoes that: to keep the host from jobs, drain it, stop its worker or revoke its certificate."


class Question(NamedTuple):
    """The content of a confirmation page: what an act will do, and the fields that its form sends."""

    title: str
    says: Sequence[str]
    button: str | None  # None: there is nothing to do
    fields: Sequence[tuple[str, str]]
    lines: Sequence[str] = ()
    more: int = 0


class Outcome(NamedTuple):
    """The result of an act. ``back`` is the address and the button of the act that undoes it, None if the page offers
    none."""

    title: str
    says: Sequence[str]
    back: tuple[str, str] | None = None


# -- jobs -------------------------------------------------------------------------------------------------------


def jobs_question(forecast: ActOutlook, selection: Selection) -> Question:
    """Make the content of the confirmation page of an act on the selected jobs; without a button if the act would
    change none."""
    title = f"{in_words(forecast)}."
    left = forecast.left_alone
    alone = f"{counted(left, 'jobs')} of those found {'is' if left == 1 else 'are'} left alone."
    most = f"One act takes {JOBS_MAX:,} jobs; more were found, so narrow the filters, or repeat the act after this one."
    says = [_MEANS[forecast.doing]] if forecast.targets else ["There is nothing to do."]
    says += filter(None, [for_good(forecast)])
    says += [alone] if left else []
    says += [] if forecast.whole else [most]
    verb = forecast.doing.capitalize()
    return Question(
        f"{title[:1].upper()}{title[1:]}",
        says,
        f"{verb} {counted(len(forecast.targets), 'jobs')}" if forecast.targets else None,
        [("what", forecast.doing), ("number", str(len(forecast.targets))), *fields(selection)],
        [f"{one_line(each.name, 80)} ({state_word(each.state)})" for each in forecast.targets[:NAMES_MAX]],
        max(0, len(forecast.targets) - NAMES_MAX),
    )


def jobs_outcome(doing: JobAct, done: Done) -> Outcome:
    """Describe the result of an act on jobs: how many it changed, and how many it skipped because they had changed
    since."""
    skipped = (
        f"{counted(done.skipped, 'jobs')} had changed since and {'was' if done.skipped == 1 else 'were'} not touched."
    )
    title = f"{counted(done.moved, 'jobs')} {'was' if done.moved == 1 else 'were'} {doing.done}."
    return Outcome(title, [skipped] if done.skipped else [])


def fields(selection: Selection) -> list[tuple[str, str]]:
    """Return the fields (name, value) that select these jobs in an address or a form."""
    if selection.job_ids:
        return [("jobs", each) for each in selection.job_ids]
    return [("all", "1"), *selection.wanted.given().items()]


# -- a host, the plan -------------------------------------------------------------------------------------------


def release_question(host: str, reason: str) -> Question:
    """Make the content of the confirmation page of a host's release from quarantine; ``reason`` is why it is there."""
    name = one_line(host, 60)
    says = [
        f"It is {one_line(reason, 400)}",
        "It may get a job at once; if that fails, the host goes back into quarantine.",
        _RELEASED,
    ]
    return Question(f"Release {name}.", says, f"Release {name}", [("what", "release"), ("host", host)])


def release_outcome(host: str) -> Outcome:
    return Outcome(f"{one_line(host, 60)} was released.", [_RELEASED])


_DECIDED = {  # what it does, what it did
    Act.ACCEPT: (
        "Jobs that still wait are completed by it; accept only what you expect, as after a restore.",
        "accepted",
    ),
    Act.REFUSE: ("Its worker sets it aside; the jobs are trained as if it had not come.", "refused"),
}


def decision_question(act: Act, host: str, jobs: Sequence[str], mark: str) -> Question:
    """Make the content of the confirmation page for a host's unconfirmed work, which is of these jobs and has this
    mark."""
    button = f"{act.capitalize()} {counted(len(jobs), 'results')} of {one_line(host, 60)}"
    lines = [one_line(job, 80) for job in jobs]
    fields = [("what", str(act)), ("host", host), ("mark", mark)]
    return Question(f"{button}.", [_DECIDED[act][0]], button, fields, lines)


def decision_outcome(act: Act, answer: DecisionReply) -> Outcome:
    title = f"The work of {one_line(answer.host, 60)} was {_DECIDED[act][1]}."
    return Outcome(title, [one_line(each, 400) for each in answer.left])


_ORDERED = {  # the button, what it does, what it did
    Act.PAUSE: ("Pause", "Its trainers stop where they are, at its worker's next heartbeat.", "is paused"),
    Act.DRAIN: ("Drain", "What it trains runs to its end.", "is drained"),
    Act.RESUME: ("Resume", "It gets jobs again, and its paused trainers continue.", "was resumed"),
}
_UNTIL = "It gets no jobs until it is resumed."
_LASTS = "A trainer that is paused for too long is stopped, and its job goes to another host; no attempt is lost."


def order_question(act: Act, host: str, now: str | None, jobs: Sequence[str]) -> Question:
    """Make the content of the confirmation page of a host's pause, drain or resume. ``now`` says why the host already
    gets no jobs, if so; ``jobs`` names what it trains."""
    name, (button, means, _) = one_line(host, 60), _ORDERED[act]
    says = [f"It is {one_line(now, 400)}."] if now else []
    says += [means] if act is Act.RESUME else [_UNTIL, means, *([_LASTS] if act is Act.PAUSE else [])]
    lines = [one_line(job, 80) for job in jobs[:NAMES_MAX]]
    fields, more = [("what", str(act)), ("host", host)], max(0, len(jobs) - NAMES_MAX)
    return Question(f"{button} {name}.", says, f"{button} {name}", fields, lines, more)


def order_outcome(act: Act, host: str, note: str | None) -> Outcome:
    """Describe the result of an order to a host. After a pause or a drain, link the resume; after a resume, ``note``
    says why the host still gets no jobs, if so."""
    title = f"{one_line(host, 60)} {_ORDERED[act][2]}."
    if act is Act.RESUME:
        return Outcome(title, [f"It still gets no jobs: it is {one_line(note, 400)}."] if note else [])
    back = f"/act?{urlencode([('what', Act.RESUME), ('host', host)])}"
    return Outcome(title, [_UNTIL], (back, f"Resume {one_line(host, 60)}"))


def reload_question(would: ReloadReply, mark: str, file: str) -> Question:
    """Make the content of the confirmation page of a reload of the manifest; without a button if it would change
    nothing."""
    answer = would.to_dict()
    edits = [sentence(each) for each in answer["edits"]]
    says: list[str] = []
    if would.changed:
        notes = (one_line(note, 400) for note in would.notes)
        says = [f"Jobs: {counts(answer)}.", "Running jobs keep the settings they were granted with.", *notes]
    return Question(
        f"Reload {one_line(file, 200)}." if would.changed else f"A reload of {one_line(file, 200)} changes nothing.",
        says,
        "Reload the plan" if would.changed else None,
        [("what", "reload"), ("mark", mark)],
        [one_line(each, 300) for each in edits[:NAMES_MAX]],
        max(0, len(edits) - NAMES_MAX),
    )


def reload_outcome(answer: ReloadReply) -> Outcome:
    back = "To undo this, restore the earlier manifest and reload again."
    says = [f"Jobs: {counts(answer.to_dict())}.", back, *(one_line(note, 400) for note in answer.notes)]
    return Outcome("The plan was reloaded.", says)

"""The page of a job: its state and the reason for it, attempts, output, curves and report."""

from collections.abc import Iterator, Mapping
from typing import Any

from training.fleet.pages.curves import figures, roc, usage
from training.fleet.pages.page_request import PageRequest
from training.fleet.pages.rendering import Frame, render
from training.fleet.scheduling.job import constraints_in_words
from training.fleet.service.views import Views
from training.fleet.wire import words
from training.fleet.wire.constants import ProblemType, Refusal
from training.printable import one_line
from training.strict_json import Json, JsonObject

LINES_SHOWN = 20  # of the log's end
EVENTS_SHOWN = 50


def page(asked: PageRequest, frame: Frame) -> str:
    """Render the page of a job. ``attempt`` in the address selects the attempt whose output and usage are shown, by
    default the last."""
    views, (job_id,), attempt = asked.views, asked.jobs, asked.number("attempt") or None
    detail = views.job(job_id).to_dict()
    job, attempts = detail["job"], detail["attempts"]
    number = attempt or job["attempt"]
    if attempt and all(each["attempt"] != attempt for each in attempts):
        raise Refusal(ProblemType.BAD_REQUEST, f"{one_line(job['name'], 60)} has no attempt {attempt}")
    explained = views.explain(job_id).to_dict() if job["status"] == "pending" else None
    log = views.log_end(job_id, number, LINES_SHOWN) if number else None
    return render(
        "job.html",
        frame,
        job=job,
        spec=detail["spec"],
        attempts=attempts[::-1],
        events=detail["events"][::-1][:EVENTS_SHOWN],
        sentence=sentence(detail, explained, frame.now),
        explained=explained,
        log=log,
        facts=[*facts(detail)],
        asked=[*flat(detail["spec"])],
        record=[*flat(attempts[-1]["record"])] if attempts and attempts[-1]["record"] else [],
        figures=[*figures(views, [(job_id, job["name"])]), *usage(views, job_id, attempt)],
        **_result(views, detail),
    )


def _result(views: Views, detail: Json) -> JsonObject:
    """Return a completed job's report and its ROC chart for the template, or in ``no_report`` why it has none. For a
    job that is not completed all three are None."""
    job, attempts = detail["job"], detail["attempts"]
    if job["status"] != "completed":
        return {"report": None, "drawing": None, "no_report": None}
    found = views.models.report(job["job_id"])
    if found is not None:
        return {"report": found.to_dict(), "drawing": roc([("", found)]), "no_report": None}
    record = (attempts[-1]["record"] if attempts else None) or {}
    said = one_line(record.get("no_report") or "the job was trained before reports were kept", 200)
    return {"report": None, "drawing": None, "no_report": said}


def sentence(detail: Json, explained: Json | None, now: float) -> str:
    """Say in one line which state the job is in, since when and why."""
    job, last = detail["job"], (detail["attempts"] or [None])[-1]
    name, status = one_line(job["name"], 80), job["status"]
    over = words.ago(job["finished_at"], now)
    if status == "completed":
        in_ = f" in {took(last)}" if took(last) else ""
        return f"{name} is trained: by {job['host']}{in_}, {over}."
    if status == "failed":
        where = f" on {last['host']}, in attempt {last['attempt']}" if last else ""
        why = one_line(job["ended_by"] or "", 200).removeprefix("trainer: ").removeprefix("infrastructure: ")
        return f"{name} failed {over}{where}{': ' if why else ''}{why}."
    if status == "cancelled":
        return f"{name} was cancelled {over}: {one_line(job['ended_by'] or 'no reason was given', 200)}."
    if status == "pending":
        return f"{name}: {one_line((explained or {}).get('summary', 'it waits'), 400)}."
    long = words.duration(now - (job["claimed_at"] or now))
    how = words.under_way(job, now)
    host = job["host"]
    doing = f"has trained on {host} for {long}" if status == "running" else f"was given to {host} {long} ago"
    return f"{name} {doing}" + (f": {how}." if how else ".")


def took(attempt: Json | None) -> str:
    """Say how long an attempt took; empty if there is none, or it has not ended."""
    return words.duration(attempt["ended_at"] - attempt["granted_at"]) if attempt and attempt["ended_at"] else ""


def facts(detail: Json) -> Iterator[tuple[str, str]]:
    """Yield label and text of each known fact about a job other than its state."""
    return words.facts(detail, constraints_in_words(detail["spec"]))


def flat(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted key and the text of each value in a nested JSON object; an empty value becomes a dash."""
    if isinstance(value, Mapping) and value:
        for key, each in value.items():
            yield from flat(each, f"{prefix}.{key}" if prefix else str(key))
    else:
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        yield prefix, one_line("–" if shown in (None, "", {}) else shown, 300)

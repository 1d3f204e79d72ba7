"""The page that compares jobs and shows in what they differ."""

from collections.abc import Sequence

from msgspec import structs

from training.fleet.pages.curves import figures, roc
from training.fleet.pages.job import flat, took
from training.fleet.pages.page_request import PageRequest
from training.fleet.pages.rendering import Frame, render
from training.fleet.service.rotations import with_gaps
from training.fleet.service.views import Views
from training.fleet.wire import results, words
from training.fleet.wire.constants import ProblemType, Refusal
from training.printable import counted, one_line
from training.strict_json import Json, JsonObject

JOBS_MAX = 4
HOSTS_MAX = 40
_LABELS = frozenset({"name", "job_id"})  # differ always, and make no difference


def page(asked: PageRequest, frame: Frame) -> str:
    """Render two to four jobs side by side; raises Refusal for another number."""
    views, ids = asked.views, list(dict.fromkeys(asked.jobs))
    if not 2 <= len(ids) <= JOBS_MAX:
        raise Refusal(ProblemType.BAD_REQUEST, f"compare takes two to {JOBS_MAX} jobs: /compare?jobs=NAME,NAME")
    details = [views.job(each).to_dict() for each in ids]
    unlike, alike = differences([asked_of(detail) for detail in details])
    return render(
        "compare.html",
        frame,
        jobs=[detail["job"] for detail in details],
        sentence=sentence([detail["job"]["name"] for detail in details], unlike, len(alike)),
        unlike=unlike,
        alike=alike,
        figures=figures(views, [(detail["job"]["job_id"], detail["job"]["name"]) for detail in details]),
        ends=[row for row in zip(*map(_end, details), strict=True) if any(text != "–" for _, text in row)],
        **_results(views, details),
        **_rotations(views, ids),
    )


def asked_of(detail: Json) -> Json:
    """Return the job dict that a job's present attempt was granted, which the plan may have changed since; the plan's
    if the job waits."""
    job = detail["job"]
    tried = detail["attempts"] if job["status"] != "pending" else []
    found: Json = next((each["granted"] for each in tried if each["attempt"] == job["attempt"]), detail["spec"])
    return found


def _rotations(views: Views, ids: Sequence[str]) -> JsonObject:
    """Return the rotations to which the jobs belong, in the jobs' order, and their hosts. Of these rotations, each
    complete one of the plan has its gap to the first complete one with the same seeds and tests."""
    known = views.models.models(limit=1).rotations
    of_job = {one.job_id: place for place, each in enumerate(known) for host in each.by_host for one in host.jobs}
    places = dict.fromkeys(of_job[job_id] for job_id in ids if job_id in of_job)
    mine = with_gaps([structs.replace(known[place], gap=None) for place in places])
    found = [each.to_dict() for each in mine]
    return {"rotations": found, "rotated_hosts": results.rotated_hosts(found, HOSTS_MAX)}


def _results(views: Views, details: Sequence[Json]) -> JsonObject:
    """Return the jobs' reports side by side: figures, gaps to the first job's AUROC, figures by host, and ROC curves in
    one chart."""
    found = [
        views.models.report(each["job"]["job_id"]) if each["job"]["status"] == "completed" else None for each in details
    ]
    known = [(each["job"]["name"], report) for each, report in zip(details, found, strict=True) if report is not None]
    said = [None if report is None else report.to_dict() for report in found]
    of = [None if each is None else each["result"] for each in said]
    tests = {each["test"] for each in of if each is not None}
    hosts: dict[str, list[Json | None]] = {}
    for place, report in enumerate(said):
        for host in () if report is None else report["per_host"]:
            hosts.setdefault(host["host"], [None] * len(said))[place] = host
    return {
        "reports": said if known else [],
        "gaps": [None, *(_gap(of[0], each) for each in of[1:])],
        "same_test": len(tests) == 1 and "" not in tests,
        "hosts": sorted(hosts.items())[:HOSTS_MAX],
        "drawing": roc(known),
    }


def _gap(first: Json | None, other: Json | None) -> tuple[str, str]:
    """Return how far another job's AUROC is from the first job's, and a remark; a dash and the reason if they cannot be
    compared."""
    if first is None or other is None:
        return "–", "one of the two has no report here"
    if not first["test"] or first["test"] != other["test"]:
        return "–", "they were judged on different tests"
    return results.gap(first["auroc"], other["auroc"])


def differences(specs: Sequence[Json]) -> tuple[list[tuple[str, list[str]]], list[tuple[str, str]]]:
    """Compare job dicts: return the fields in which they differ, with each job's value, and the equal fields. Names and
    ids are left out."""
    found = [dict(flat(spec)) for spec in specs]
    keys = [key for key in dict.fromkeys(key for each in found for key in each) if key not in _LABELS]
    rows = [(key, [each.get(key, "–") for each in found]) for key in keys]
    unlike = [(key, values) for key, values in rows if len(set(values)) > 1]
    return unlike, [(key, values[0]) for key, values in rows if len(set(values)) == 1]


def sentence(names: Sequence[str], unlike: Sequence[tuple[str, list[str]]], alike: int) -> str:
    """Say in one line in how many fields the jobs differ, and name at most four of these fields."""
    told = [one_line(name, 60) for name in names]
    who = f"{', '.join(told[:-1])} and {told[-1]}"
    if not unlike:
        return f"{who} have equal settings."
    fields = ", ".join(one_line(key, 40) for key, _ in unlike[:4]) + (" and others" if len(unlike) > 4 else "")
    return f"{who} differ in {len(unlike)} of {counted(len(unlike) + alike, 'fields')}: {fields}."


def _end(detail: Json) -> list[tuple[str, str]]:
    """Return how a job ended as (label, text) pairs, with the same labels for every job."""
    job, attempts = detail["job"], detail["attempts"]
    last = attempts[-1] if attempts else None
    said = job["trained"] or {}
    pairs = (
        ("host", job["host"]),
        ("attempts", len(attempts)),
        ("the last one took", took(last)),
        ("trained on data", str(said.get("data") or "")[: words.ID_SHOWN]),
        ("trained by code", str(said.get("code") or "")[: words.ID_SHOWN]),
        ("error", one_line(job["error"] or "", 200)),
    )
    return [(label, str(value or "–")) for label, value in pairs]

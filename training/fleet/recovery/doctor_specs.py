"""The doctor's check of derived values: compute them again from a job's dict or a worker's record, and compare.
Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from training import strict_json
from training.contract import job_identity
from training.fleet.queue.rows import trained_of
from training.fleet.recovery.findings import BACKUP, HISTORY, Finding
from training.fleet.scheduling.job import Needs, Trained
from training.fleet.scheduling.workload import work_facts
from training.strict_json import Json, JsonObject

Fields = Json
Spec = JsonObject


def look_at_specs(rows: Sequence[Fields]) -> Iterator[Finding]:
    """Report jobs whose dict does not agree with their name, priority, model, mode or needs. Report a job whose id
    differs from the id computed from its dict only if most jobs' ids agree with theirs."""
    specs = [_dict(row["spec"]) for row in rows]
    ids = [None if spec is None else job_identity(spec) for spec in specs]
    planned = sum(row["job_id"] == found for row, found in zip(rows, ids, strict=True))
    for row, spec, found in zip(rows, specs, ids, strict=True):
        if spec is None:
            wrong = ["no job dict at all"]
        else:
            wrong = [what for what, differs in _compared(row, spec) if differs]
            if 2 * planned > len(rows) and found != row["job_id"]:
                wrong.append("another id")
        if wrong:
            what = f"the dict of job {row['name']} ({row['job_id'][:12]}) says {', '.join(wrong)}"
            yield Finding("specs", what, BACKUP)


def look_at_records(rows: Iterable[Fields]) -> Iterator[Finding]:
    """Report attempts that were granted another job, or whose columns of data and code differ from their worker's
    record."""
    for row in rows:
        which = f"attempt {row['attempt']} of job {row['job_id'][:12]}"
        granted, spec = _dict(row["granted"]), _dict(row["spec"])
        if granted is not None and spec is not None and job_identity(granted) != job_identity(spec):
            yield Finding("granted", f"{which} was granted another job than this", HISTORY)
        trained = trained_of(row)
        if trained.known() is not None and trained != Trained.of(_dict(row["record"])):
            yield Finding("trained", f"{which} was trained on other data or code than its worker said", HISTORY)


def _compared(row: Fields, spec: Spec) -> Iterator[tuple[str, bool]]:
    yield "another name", row["name"] != str(spec.get("name") or row["job_id"])
    yield "another priority", row["priority"] != spec.get("priority", 0)
    for key in ("model", "mode"):
        yield f"another {key}", row[key] != str(spec.get(key) or "")
    try:
        learned = {key: row[key] for key in ("ram_above_gib", "vram_above_gib")}
        needs = replace(Needs.of(spec), **learned)
        known = {needs.canonical(work_facts(spec, coarse=coarse)) for coarse in (False, True)}
    except (TypeError, ValueError):
        known = set()
    yield "other needs", row["needs"] not in known


def _dict(text: str | None) -> Spec | None:
    try:
        value = None if text is None else strict_json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None

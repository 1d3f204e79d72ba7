"""``cis490-jobs plan --why``: show the fields that a job's id is computed from, or those in which two jobs differ.
Pure."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from training.contract import identity_of, job_identity
from training.fleet.cli.render import cell, short_id, table
from training.fleet.scheduling.edits import changed
from training.printable import one_line
from training.strict_json import Json, JsonObject

_NOT_THERE = "—"


class JobIdentity(NamedTuple):
    """A job's name, id and job dict, from the receiver or from a file."""

    name: str
    job_id: str
    spec: Json

    @property
    def fields(self) -> JsonObject:
        """The fields from which the job's id is computed, with those of `hyper` one by one."""
        found = identity_of(self.spec)
        hyper = found.pop("hyper", None) or {}
        return {**found, **{f"hyper.{key}": hyper[key] for key in sorted(hyper)}}


def why_data(jobs: Sequence[JobIdentity]) -> JsonObject:
    """Return the answer for ``--json``: each job's fields; of two jobs also which fields differ, in the id (`differ`)
    and outside the id (`beside`)."""
    data: JsonObject = {"jobs": [{"name": job.name, "job_id": job.job_id, "fields": job.fields} for job in jobs]}
    if len(jobs) == 2:
        one, other = jobs
        data["differ"] = differing(one.fields, other.fields)
        data["beside"] = _beside(one.spec, other.spec)
    return data


def differing(one: Json, other: Json) -> list[str]:
    """Return the names of the fields whose values differ when written as JSON."""
    return [key for key in {**one, **other} if _shown(one, key) != _shown(other, key)]


def _beside(one: Json, other: Json) -> list[str]:
    in_the_id = {*identity_of(one), *identity_of(other), "trainer.command", "name", "job_id"}
    return [key for key in changed(one, other) if key.partition(".")[0] not in in_the_id and key not in in_the_id]


def render_why(jobs: Sequence[JobIdentity]) -> RenderableType:
    """Render the fields of one job, or of two jobs the fields in which they differ."""
    if len(jobs) == 1:
        (job,) = jobs
        rows = ((key, cell(_shown(job.fields, key), chars_max=2000)) for key in job.fields)
        made = table("FIELD", "VALUE", rows=rows)
        title = Text(f"{one_line(job.name, 140)} is {job.job_id}, the SHA-256 of:")
        mismatch = job_identity(job.spec) != job.job_id
        note = [Text("its id is not that of these fields: another program made it")] if mismatch else []
        return Group(title, Text(), made, *note)
    one, other = jobs
    keys, beside = differing(one.fields, other.fields), _beside(one.spec, other.spec)
    also = [Text(f"also different, and no part of an id: {', '.join(beside)}")] if beside else []
    if not keys:
        return Group(
            Text(f"{one_line(one.name, 140)} and {one_line(other.name, 140)} are the same job: one model"), *also
        )
    both = [[key, *(cell(_shown(each.fields, key), chars_max=2000) for each in jobs)] for key in keys]
    both.append(["(id)", short_id(one.job_id), short_id(other.job_id)])
    return Group(table("FIELD", one_line(one.name, 140), one_line(other.name, 140), rows=both), *also)


def _shown(fields: Json, key: str) -> str:
    return json.dumps(fields[key], ensure_ascii=False) if key in fields and fields[key] is not None else _NOT_THERE

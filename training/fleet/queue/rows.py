"""Conversions of database rows to the values of :mod:`training.fleet.scheduling.job`."""

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from training.certain import certain
from training.fleet.database.writer import Database, Row
from training.fleet.scheduling.job import Attempt, EndReason, FailedBy, Job, JobStatus, Trained
from training.fleet.scheduling.resources import Booking
from training.strict_json import JsonObject

_JOB_ROW = tuple(each.name for each in fields(Job) if each.name != "progress")  # that is the live attempt's
_ATTEMPT_ROW = tuple(each.name for each in fields(Attempt) if each.name not in ("trained", "booked"))
_DECODED: Mapping[str, Callable[[Any], Any]] = {
    "spec": json.loads,
    "progress": json.loads,
    "record": json.loads,
    "granted": json.loads,
    "status": JobStatus,
    "failed_by": FailedBy,
    "end_reason": EndReason,
    "avoid_host": lambda host: host or None,
    **dict.fromkeys(("in_manifest", "passed_over", "paused", "resumable", "crashed", "pardoned"), bool),
}


def _members(row: Row, names: tuple[str, ...]) -> JsonObject:
    """Decode those columns of a row that have the names of a value's fields."""
    read = {name: row[name] for name in names}
    for name in names:
        if name in _DECODED and read[name] is not None:
            read[name] = _DECODED[name](read[name])
    return read


def job_of(row: Row) -> Job:
    """Convert a row of ``jobs`` to a value."""
    return Job(**_members(row, _JOB_ROW))


def known_job(db: Database, job_id: str) -> Job:
    """Read a job that certainly exists; an unknown id is a mistake of the program."""
    return job_of(certain(db.one("job", job_id=job_id), "the job exists"))


def trained_of(row: Row) -> Trained:
    """Read the digests of the data and code of a model from a row with an attempt's columns."""
    return Trained(row["data_digest"], row["code_digest"], row["training_commit"])


def jobs_by_host(db: Database) -> dict[str, list[str]]:
    """Map each host to the names of the jobs that are granted to it now."""
    held: dict[str, list[str]] = {}
    for row in db.all("live_jobs_by_host"):
        held.setdefault(row["host"], []).append(row["name"])
    return held


def set_aside_of(row: Row) -> list[JsonObject]:
    """Return the jobs with finished but undelivered work that a host's worker reported."""
    return [dict(each) for each in json.loads(row["set_aside"])]


def attempt_of(row: Row) -> Attempt:
    """Convert a row of ``attempts`` to a value."""
    return Attempt(**_members(row, _ATTEMPT_ROW), trained=trained_of(row), booked=booked_of(row))


def booked_of(row: Row) -> Booking:
    """Read the booking from a row with an attempt's columns."""
    return Booking(**json.loads(row["booked"]))

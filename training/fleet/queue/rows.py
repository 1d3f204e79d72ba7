"""Rows of the database as the nouns of :mod:`training.fleet.scheduling.job`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from training.fleet.database.writer import Database, Row
from training.fleet.scheduling.job import Attempt, EndReason, Job, JobStatus, Trained
from training.fleet.scheduling.resources import Booking


def job_of(row: Row) -> Job:
    """A row of ``jobs`` as a value."""
    return Job(
        job_id=row["job_id"],
        name=row["name"],
        spec=json.loads(row["spec"]),
        status=JobStatus(row["status"]),
        priority=row["priority"],
        created_at=row["created_at"],
        claimable_at=row["claimable_at"],
        attempt=row["attempt"],
        generation=row["generation"],
        grants=row["grants"],
        trainer_failures=row["trainer_failures"],
        host_losses=row["host_losses"],
        claim_id=row["claim_id"],
        worker_hostname=row["worker_hostname"],
        claimed_at=row["claimed_at"],
        heartbeat_at=row["heartbeat_at"],
        finished_at=row["finished_at"],
        artifact_id=row["artifact_id"],
        error=row["error"],
        ended_by=row["ended_by"],
        avoid_host=row["avoid_host"] or None,
        avoid_until=row["avoid_until"],
        short_runs=row["short_runs"],
        ram_above_gib=row["ram_above_gib"],
        vram_above_gib=row["vram_above_gib"],
        in_manifest=bool(row["in_manifest"]),
        held_by=row["held_by"],
        held_at=row["held_at"],
    )


def known_job(db: Database, job_id: str) -> Job:
    """Read a job that is surely there."""
    row = db.one("job", job_id=job_id)
    assert row is not None
    return job_of(row)


def trained_of(row: Row) -> Trained:
    """Read what a model was trained on from a row that has an attempt's columns."""
    return Trained(row["data_digest"], row["code_digest"], row["training_commit"])


def jobs_by_host(rows: Iterable[Row]) -> dict[str, list[str]]:
    """Host → the names of the jobs that it holds now."""
    held: dict[str, list[str]] = {}
    for row in rows:
        held.setdefault(row["host"], []).append(row["name"])
    return held


def set_aside_of(row: Row) -> list[dict[str, Any]]:
    """The finished work that a host said lies there undelivered."""
    return [dict(each) for each in json.loads(row["set_aside"])]


def attempt_of(row: Row) -> Attempt:
    """A row of ``attempts`` as a value."""
    return Attempt(
        job_id=row["job_id"],
        attempt=row["attempt"],
        claim_id=row["claim_id"],
        host=row["host"],
        generation=row["generation"],
        granted_at=row["granted_at"],
        instance_id=row["instance_id"],
        session_id=row["session_id"],
        slot=row["slot"],
        request_id=row["request_id"],
        ended_at=row["ended_at"],
        end_reason=None if row["end_reason"] is None else EndReason(row["end_reason"]),
        error=row["error"],
        exit_code=row["exit_code"],
        seq=row["seq"],
        progress=None if row["progress"] is None else json.loads(row["progress"]),
        readoptions=row["readoptions"],
        artifact_id=row["artifact_id"],
        record=None if row["record"] is None else json.loads(row["record"]),
        log_next=row["log_next"],
        log_total=row["log_total"],
        lived_s=row["lived_s"],
        heard_s=row["heard_s"],
        paused=bool(row["paused"]),
        paused_s=row["paused_s"],
        resumable=bool(row["resumable"]),
        gives_way_to=row["gives_way_to"],
        out_of_memory=row["out_of_memory"],
        crashed=bool(row["crashed"]),
        pardoned=bool(row["pardoned"]),
        trained=trained_of(row),
        granted=None if row["granted"] is None else json.loads(row["granted"]),
        booked=booked_of(row),
    )


def booked_of(row: Row) -> Booking:
    """Read the booking of an attempt from a row that has its columns."""
    return Booking.of(None if row["booked"] is None else json.loads(row["booked"]))

"""Finished work under claims that the database did not grant is stored until an operator accepts or refuses it.

After a restore, workers bring work that the older database does not know; but a host may also invent a claim.
Unconfirmed work changes no job until an operator accepts it. A host's unconfirmed work takes at most the host's share
of the free space. The worker keeps its copy and repeats its report until the work is accepted or refused. No HTTP and
no SQL.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import asdict

import msgspec

from training.contract import spec_hash
from training.fleet.database.writer import Database, Row
from training.fleet.scheduling.job import Job, JobStatus
from training.fleet.service.fleet import FleetState
from training.fleet.service.guards import check_spec
from training.fleet.store.artifacts import Artifact
from training.fleet.store.incoming import within_share
from training.fleet.wire.attempts import CompleteReply, CompleteRequest, DeliverRequest
from training.fleet.wire.constants import ID_PATTERN, UNCONFIRMED, ProblemType, Refusal

CLAIMS_MAX = 32  # of one host


def job_of(fleet: FleetState, job_id: str, claim_id: str | None, host_id: str | None) -> Job | None:
    """Return the job of a claim that the database did not grant, if its work may be stored as unconfirmed. Return None
    for a known or malformed claim, and without a claim or host. Raise Refusal if the work is of no use, or the host is
    not known."""
    if host_id is None or not re.fullmatch(ID_PATTERN, claim_id or "") or fleet.queue.attempts.by_claim(str(claim_id)):
        return None
    job, row = fleet.job(job_id), fleet.queue.db.one("unconfirmed", claim_id=claim_id)
    if job.status is JobStatus.CANCELLED:
        raise Refusal(ProblemType.JOB_CANCELLED, f"job {job.name} was cancelled; stop and drop the work")
    if row is not None and (row["job_id"], row["host"]) != (job_id, host_id):
        raise Refusal(ProblemType.LEASE_SUPERSEDED, f"that claim is not host {host_id}'s on this job; drop the work")
    if row is not None and row["refused_at"] is not None:
        raise Refusal(ProblemType.LEASE_SUPERSEDED, f"an operator refused this work of job {job.name}; drop it")
    if job.status is JobStatus.COMPLETED:
        raise Refusal(ProblemType.RESULT_CONFLICT, f"job {job.name} was completed by other work; drop this one")
    if host_id not in fleet.host_registry.known:
        raise Refusal(ProblemType.WRONG_STATE, f"host {host_id} is not known yet; let its worker ask for a job first")
    return job


def check_wanted(fleet: FleetState, host: str, claim_id: str, sha256: str | None, size: int) -> None:
    """Raise Refusal if the claim brought another bundle before, if ``CLAIMS_MAX`` other results of the host wait, or if
    the host's unconfirmed work with ``size`` more bytes would exceed the host's share."""
    row = fleet.queue.db.one("unconfirmed", claim_id=claim_id)
    held = fleet.queue.db.all("unconfirmed_share", host=host, claim_id=claim_id)[0]
    if row is not None and sha256 not in (None, row["artifact_id"]):
        raise Refusal(ProblemType.RESULT_CONFLICT, "this claim brought another bundle before; drop this one")
    if held["n"] >= CLAIMS_MAX or not within_share(held["bytes"], size, fleet.store.disk_free_bytes()):
        raise Refusal(
            ProblemType.DISK_FULL,
            f"{held['n']} results of host {host} wait to be confirmed, and this one exceeds the host's share; "
            f"`cis490-jobs accept {host}` or `cis490-jobs refuse {host}` makes room, and so does free disk space",
        )


def keep(fleet: FleetState, job: Job, request: CompleteRequest | DeliverRequest) -> CompleteReply:
    """Store the worker's report that would complete the job with an unconfirmed bundle, and return the reply. Raise
    Refusal if the bundle was not uploaded before, or another spec was trained."""
    row = fleet.queue.db.one("unconfirmed", claim_id=request.claim_id)
    check_spec(job, request.spec_hash)
    stored = row is not None and row["artifact_id"] == request.artifact_id
    fleet.check_stored(job, request.artifact_id, delivered=stored)
    if row is not None and row["told"] is None:
        told = msgspec.json.encode(DeliverRequest.of(request, spec_hash=spec_hash(job.spec))).decode()
        fleet.queue.db.run("tell_unconfirmed", claim_id=row["claim_id"], told=told, database_id=request.database_id)
    return CompleteReply(job_id=job.job_id, status=UNCONFIRMED, artifact_id=request.artifact_id, attempt=0)


def waiting(db: Database, host: str, *, before_restore: bool = False) -> list[Row]:
    """Return a host's work that waits for an operator's decision, and with ``before_restore`` also every host's from
    before a restore; raise Refusal if there is none."""
    rows = db.all("unconfirmed_work", host=host, before_restore=before_restore)
    if not rows:
        raise Refusal(ProblemType.WRONG_STATE, f"no work of host {host[:80]} waits to be confirmed")
    return rows


def mark_of(rows: Sequence[Row]) -> str:
    """Return a digest of unconfirmed work, by which a later call finds that it is still the same."""
    return hashlib.sha256(" ".join(row["claim_id"] for row in rows).encode()).hexdigest()


def refuse(fleet: FleetState, row: Row) -> None:
    """Refuse unconfirmed work: the worker is answered so and sets its copy aside. The bundle here is deleted, unless an
    attempt or other unconfirmed work has the same bundle."""
    fleet.queue.db.run("refuse_unconfirmed", claim_id=row["claim_id"], now=fleet.clock.now())
    _remove(fleet, row)


def forget_useless(fleet: FleetState, before: float) -> None:
    """Delete unconfirmed work whose job is completed or cancelled, and work that was refused or left unfinished before
    the time ``before`` (epoch seconds)."""
    for row in fleet.queue.db.all("useless_unconfirmed", before=before):
        fleet.queue.db.run("forget_unconfirmed", claim_id=row["claim_id"])
        _remove(fleet, row)


def _remove(fleet: FleetState, row: Row) -> None:
    """Delete the bundle of unconfirmed work, unless an attempt or other unconfirmed work has the same bundle. This
    function runs on the writer's thread, which also writes the rows of new deliveries, so that none comes between the
    look and the deletion."""
    artifact = Artifact(row["artifact_id"], row["model"], row["mode"], 0)
    if fleet.queue.db.one("is_bundle_named", **asdict(artifact)) is None:
        fleet.store.remove(artifact)

"""Conversions of the database's rows to the store's forms (index lines, provenance), and of a report to its row."""

from collections.abc import Iterator
from typing import Any

import msgspec

from training.contract import spec_hash
from training.fleet.database.writer import Database, Row
from training.fleet.queue.attempts import KeptReport
from training.fleet.scheduling.job import Attempt, Job
from training.fleet.store.artifacts import Artifact
from training.fleet.store.index import IndexRow
from training.fleet.wire import reports


def index_rows(database: Database) -> Iterator[IndexRow]:
    """Yield an index row for each artifact once, with the attempt that delivered it first, in the order of commits."""
    seen: set[bytes] = set()
    for row in database.all("artifacts"):
        key = bytes.fromhex(row["artifact_id"])
        if key not in seen:
            seen.add(key)
            yield _index_row(row)


def first_delivery(database: Database, artifact_id: str, *, job_id: str, attempt: int) -> IndexRow | None:
    """Return the index row of an artifact if this attempt was the first to deliver it, else None."""
    row = database.one("artifact", artifact_id=artifact_id)
    first = row is not None and (row["job_id"], row["attempt"]) == (job_id, attempt)
    return _index_row(row) if first and row is not None else None


def provenance_of(job: Job, attempt: Attempt, *, now: float, report: str | None = None) -> dict[str, Any]:
    """Return an attempt's provenance as a dict. With the ids and the size that the store adds, it is enough to rebuild
    the job's row from the store alone.

    ``report`` is the SHA-256 of the attempt's report, or None if no report is stored with the bundle.
    """
    job = job.granted(attempt)
    return {
        "claim_id": attempt.claim_id,
        "name": job.name,
        "spec": job.spec,
        "spec_hash": spec_hash(job.spec),
        "generation": attempt.generation,
        "host": attempt.host,
        "instance_id": attempt.instance_id,
        "granted_at": attempt.granted_at,
        "delivered_at": now,
        "record": attempt.record,
        **({} if report is None else {"report": report}),
    }


def kept_of(digest: str, body: bytes) -> KeptReport:
    """Return the database row for a report with this digest: its size, figures and test. Invalid parts of the report
    are left out."""
    result = reports.read(body).result
    return KeptReport(
        report=digest,
        bytes=len(body),
        figures=msgspec.json.encode(result).decode(),
        test=result.test or None,
        auroc=result.auroc.value,
        auroc_low=result.auroc.low,
        auroc_high=result.auroc.high,
    )


def artifact_of(row: Row) -> Artifact:
    """Return the artifact that the columns of a row name."""
    return Artifact(row["artifact_id"], row["model"], row["mode"], row["size"])


def _index_row(row: Row) -> IndexRow:
    gone = None if row["removed_at"] is None else (row["removed_at"], row["removed_why"])
    return artifact_of(row).index_row(row["job_id"], row["attempt"], row["stored_at"], gone)

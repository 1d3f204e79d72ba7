"""Planted bugs: uploads, the store, its index, output, commits."""

from __future__ import annotations

from simulation.mutate import Mutant
from training.fleet.database.writer import Writer
from training.fleet.queue.attempts import Attempts
from training.fleet.service.delivery import DeliverySteps, report_bytes
from training.fleet.service.output import keep_lines
from training.fleet.store.artifacts import ArtifactStore
from training.fleet.store.incoming import Incoming, PartFile

STORE_BUGS = (
    # ── uploads and the store ───────────────────────────────────────────────────────────────
    Mutant("the part is not synced", PartFile.seal, "self._fs.fsync(handle)", "pass", seed=4),
    Mutant("the folders are not synced", ArtifactStore._sync_way_to, "self._fs.sync_folder(folder)", "pass", seed=4),
    Mutant("a stalled upload may go on", Incoming.open, "if predecessor is not None:", "if False:", seed=150),
    Mutant(
        "a wrong digest is stored",
        PartFile.seal,
        "digest = self._hash.hexdigest()",
        "digest = sha256 or self._hash.hexdigest()",
        seed=8,
    ),
    Mutant(
        "a completion lays no provenance down",
        DeliverySteps.complete,
        "_, kept = yield from self._proven(claim_id, job, attempt, request.artifact_id, record, body)",
        "pass",
        seed=0,
    ),
    Mutant(
        "a report is not made durable before its row",
        ArtifactStore.write_report,
        "self._make_durable(target)",
        "pass",
        seed=40,
    ),
    Mutant(
        "a repeated completion brings no report",
        report_bytes,
        "None if report is None else",
        "None if True else",
        seed=5,
    ),
    Mutant("the index gets a line for every upload", Attempts.add_artifact, "if added:", "if True:", seed=92),
    Mutant(
        "the index follows the clock", "artifacts", "ORDER BY r.seq", "ORDER BY r.stored_at, r.artifact_id", seed=12
    ),
    Mutant(
        "the first delivery is the earliest by the clock",
        "artifact",
        "ORDER BY r.seq LIMIT 1",
        "ORDER BY r.stored_at LIMIT 1",
        seen_by="test_fleet_service:"
        "test_of_two_deliveries_the_first_is_the_one_that_came_first_whatever_the_clock_said",
    ),
    Mutant(
        "a late word takes lines of output back",
        keep_lines,
        "log.total >= attempt.log_next and log.total > (attempt.log_total or -1)",
        "log.total != attempt.log_total",
        seen_by="test_fleet_curves:test_a_copied_disk_that_knows_of_fewer_lines_makes_no_output_complete",
    ),
    Mutant(
        "output is stored twice", Attempts.append_log, "start = max(first, attempt.log_next)", "start = first", seed=98
    ),
    Mutant("progress may go back", "beat_attempt", "max(seq, :seq)", ":seq", seed=2),
    Mutant(
        "answer before the commit",
        Writer._one,
        "return future, call(), None",
        "future.set_result(call())\n            return Future(), None, None",
        seed=6,
    ),
)

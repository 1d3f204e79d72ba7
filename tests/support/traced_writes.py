"""Run under ``strace``: each adapter whose word means "durable" keeps one promise, with a mark before and after it.

A mark is a look for a file that is not there, ``<folder>/mark.<name>``: it shows in the trace and touches nothing.
"""

from __future__ import annotations

import hashlib
import sys
from contextlib import contextmanager
from pathlib import Path

from wire_builders import a_grant

from training.files import LocalFs, write_private
from training.fleet.queue.jobs import JobQueue
from training.fleet.recovery.backup import Backup
from training.fleet.scheduling.job import EndReason
from training.fleet.store.artifacts import ArtifactStore
from training.fleet.store.index import IndexRow
from training.fleet.worker.bundle import pack
from training.fleet.worker.state.events import Delivery, FailureReport, Saved
from training.fleet.worker.state.exit_code import Failure
from training.fleet.worker.state_folder import StateFolder, write_whole

CONTENT = b"a bundle " * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
OTHER = b"another " * 1000


def main(folder):
    """Every promise once. Sections of one store follow each other, as they do in a receiver."""

    @contextmanager
    def section(name):
        (folder / f"mark.{name}").exists()
        yield
        (folder / "mark.end").exists()

    def upload(store, claim_id, content):
        part = store.open_part(claim_id, hashlib.sha256(content).hexdigest())
        part.write(content[:100])
        part.write(content[100:])
        digest = part.seal(sha256=None, size=len(content))
        return store.publish(part, digest, model="gbt", mode="oracle")

    with section("store_opened"):
        store = ArtifactStore(folder / "models")
    with section("published"):
        artifact = upload(store, "a" * 32, CONTENT)
    with section("equal_bundle_found"):
        upload(store, "b" * 32, CONTENT)
    with section("confirmed"):
        store.confirm(SHA256, model="gbt", mode="oracle")
    (folder / "models" / artifact.path).write_bytes(b"rotten")
    with section("rotten_bundle_replaced"):
        upload(store, "c" * 32, CONTENT)
    with section("provenance_written"):
        store.write_provenance(artifact, job_id="1" * 64, attempt=1, record={"host": "pi"})
    row = IndexRow(
        artifact_id=SHA256,
        job_id="1" * 64,
        attempt=1,
        model="gbt",
        mode="oracle",
        size=len(CONTENT),
        stored_at=1.0,
        path=artifact.path,
    )
    with section("index_rebuilt"):
        store.index.repair([row])
    with section("index_line_added"):
        store.index.append(row)
    with section("damaged_bundle_put_aside"):
        store.put_aside(artifact)
    queue = JobQueue(folder / "jobs.db")
    job = {"job_id": "j", "name": "j", "model": "gbt", "mode": "oracle"}
    with section("committed"):
        queue.sync_from_manifest([job])
    with section("granted"):
        queue.claim_next(worker_hostname="pi", capability={})
    with section("worker_state_saved"):
        write_whole(folder / "saved.json", b"{}")
    state = StateFolder(folder / "state")
    assignment = a_grant(job_id="1" * 64, claim_id="c", name="j")
    with section("delivery_kept"):
        state.save(Saved(delivery=Delivery(assignment=assignment, path="x", sha256=SHA256, size=1)))
    with section("report_kept"):
        failure = Failure(EndReason.TRAINER_FAILED, "e", 1, None)
        state.save(Saved(report=FailureReport(assignment=assignment, failure=failure)))
    with section("backups_begun"):
        Backup(folder / "backups")._open()
    with section("private_key_kept"):
        write_private(folder / "key.pem", b"secret")
    file = folder / "torn"
    file.write_bytes(b"whole\ntorn")
    with section("end_of_a_file_cut"):
        handle = LocalFs().reopen(file, 6)
        LocalFs().fsync(handle)
        LocalFs().close(handle)
    out = folder / "out"
    out.mkdir()
    (out / "model.bin").write_bytes(OTHER)
    with section("bundle_packed"):
        pack(out, folder, folder / "m.tar.zst", model="m", mode="oracle", outputs=["model.bin"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""The promises at the end of a run, checked with SQL of its own, the files, and what the workers were told."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

from process_fleet import until

from torture.fleet import Fleet, processes

ENDED = ("completed", "failed", "cancelled")
_MARK = re.compile(r'"epoch": \d+,|chatter \d+')  # what a trainer of ours numbers in its output


def judge(fleet: Fleet, *, whole_logs: bool = True) -> None:
    """Every promise, on a fleet whose jobs have all ended. Raises AssertionError with the first that is broken."""
    connection = sqlite3.connect(f"file:{fleet.folder}/state/jobs.db?mode=ro", uri=True)
    connection.row_factory = sqlite3.Row
    try:
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        assert not connection.execute("PRAGMA foreign_key_check").fetchall()
        for broken in [
            *_ended_once(connection, fleet),
            *_events_tell_it(connection),
            *_acknowledged(connection, fleet.folder / "witness.jsonl"),
            *_stored(connection, fleet.folder / "state" / "models"),
            *_output(connection, fleet.folder / "state" / "models", fleet, whole_logs),
        ]:
            raise AssertionError(f"{broken} ({fleet.folder})")
    finally:
        connection.close()


def _ended_once(connection: sqlite3.Connection, fleet: Fleet) -> Iterator[str]:
    jobs = connection.execute("SELECT * FROM jobs").fetchall()
    if {job["name"] for job in jobs} != {job["name"] for job in fleet.jobs}:
        yield "the jobs are not those of the plan"
    for job in jobs:
        attempts = connection.execute(
            "SELECT * FROM attempts WHERE job_id = ? ORDER BY attempt", (job["job_id"],)
        ).fetchall()
        if job["status"] not in ENDED:
            yield f"{job['name']} is {job['status']}"
        if [each["attempt"] for each in attempts] != list(range(1, job["attempt"] + 1)):
            yield f"the attempts of {job['name']} are not numbered one by one"
        if any(each["ended_at"] is None for each in attempts):
            yield f"an attempt of {job['name']} is live"
        done = [
            each for each in attempts
            if each["end_reason"] == "completed" and each["generation"] == job["generation"]
        ]  # fmt: skip
        if (len(done) == 1) != (job["status"] == "completed") or len(done) > 1:
            yield f"{job['name']} is {job['status']} by {len(done)} attempts"


def _events_tell_it(connection: sqlite3.Connection) -> Iterator[str]:
    status: dict[str, str | None] = defaultdict(lambda: None)
    events = connection.execute("SELECT * FROM events ORDER BY seq").fetchall()
    if [event["seq"] for event in events] != list(range(1, len(events) + 1)):
        yield "the event log has a gap"
    for event in events:
        if status[event["job_id"]] != event["from_status"]:
            yield f"event {event['seq']} does not follow what was before"
        status[event["job_id"]] = event["to_status"]
    for job in connection.execute("SELECT job_id, status FROM jobs").fetchall():
        if status[job["job_id"]] != job["status"]:
            yield f"the events of {job['job_id']} do not lead to its status"


def _acknowledged(connection: sqlite3.Connection, witness: Path) -> Iterator[str]:
    """Check that a worker's acknowledgements hold."""
    if not witness.exists():
        return
    for text in witness.read_text().splitlines():
        said = json.loads(text)
        attempt = connection.execute("SELECT * FROM attempts WHERE claim_id = ?", (said["claim_id"],)).fetchone()
        if attempt is None or (attempt["job_id"], attempt["host"]) != (said["job_id"], said["host"]):
            yield f"a claim that was granted is missing: {text}"
            continue
        if said["said"] == "Completed":
            found = (attempt["end_reason"], attempt["artifact_id"])
            if found != ("completed", said["sha256"]):
                yield f"a receipt was given and is not kept: {text}"
        if said["said"] == "FailTaken" and attempt["end_reason"] is None:
            yield f"a report was taken and is not kept: {text}"
        if (
            said["said"] == "Uploaded"
            and not connection.execute(
                "SELECT 1 FROM artifacts WHERE job_id = ? AND attempt = ? AND artifact_id = ?",
                (said["job_id"], said["attempt"], said["sha256"]),
            ).fetchone()
        ):
            yield f"an upload was acknowledged and is not kept: {text}"


def _stored(connection: sqlite3.Connection, models: Path) -> Iterator[str]:
    rows = connection.execute("SELECT DISTINCT artifact_id, model, mode FROM artifacts").fetchall()
    let_go = "SELECT subject FROM removals WHERE what = 'bundle' AND done_at IS NOT NULL AND back_at IS NULL"
    gone = {row["subject"].split("/")[1] for row in connection.execute(let_go)}
    for row in rows:
        if row["artifact_id"] in gone:
            continue
        folder = models / f"{row['model']}_{row['mode']}" / row["artifact_id"]
        bundle = folder / "bundle.tar.zst"
        if not bundle.exists():
            yield f"row without bundle: {row['artifact_id']}"
        elif hashlib.sha256(bundle.read_bytes()).hexdigest() != row["artifact_id"]:
            yield f"the bundle {row['artifact_id']} is damaged"
    for row in connection.execute("SELECT * FROM attempts WHERE end_reason = 'completed'").fetchall():
        name = f"{row['job_id']}-{row['attempt']}.json"
        found = list(models.glob(f"*/{row['artifact_id']}/provenance/{name}"))
        if len(found) != 1 or json.loads(found[0].read_bytes())["claim_id"] != row["claim_id"]:
            yield f"artifact without provenance: {name}"
    index = [json.loads(line) for line in _text(models / "index.jsonl").splitlines()]
    listed = sorted(row["artifact_id"] for row in index)
    if listed != sorted({row["artifact_id"] for row in rows}):
        yield f"the index lists {len(listed)} of {len(rows)} artifacts"


def _output(connection: sqlite3.Connection, models: Path, fleet: Fleet, whole: bool) -> Iterator[str]:
    """Check what an attempt printed: each line at most once, in order; of a completed one none is missing."""
    chatter = {job["name"]: int(job["hyper"].get("chatter", 0)) for job in fleet.jobs}
    attempts = "SELECT attempts.*, jobs.name FROM attempts JOIN jobs USING (job_id)"
    for row in connection.execute(attempts).fetchall():
        key = row["job_id"], row["attempt"]
        ranges = "SELECT * FROM {} WHERE job_id = ? AND attempt = ? ORDER BY first"
        files = connection.execute(ranges.format("log_files"), key).fetchall()
        chunks = connection.execute(ranges.format("log_chunks"), key).fetchall()
        texts = [_filed(models / "logs" / row["job_id"], file) for file in files] + [each["text"] for each in chunks]
        found = [mark for text in texts for mark in _MARK.findall(text)]
        wanted = [f'"epoch": {n},' for n in range(1, 6)]
        wanted += [f"chatter {n}" for n in range(1, chatter[row["name"]] + 1)]
        if not whole or row["end_reason"] != "completed":
            wanted = [mark for mark in wanted if mark in set(found)]
        if found != wanted:
            is_there, not_there = next(pair for pair in zip_longest(found, wanted) if pair[0] != pair[1])
            told = f"{len(found)} lines, of {len(wanted)}: {is_there} instead of {not_there}"
            yield f"the output of attempt {row['attempt']} of {row['name']} has {told}"


def _filed(folder: Path, row: sqlite3.Row) -> str:
    """Return the text of a file of output, as far as it is there."""
    path = folder / f"{row['attempt']}-{row['first']}-{(row['sha256'] or '')[:16]}.log.gz"
    return gzip.decompress(path.read_bytes()).decode() if path.exists() else ""


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def all_told(fleet: Fleet) -> None:
    """Wait until the receiver has every line, also of attempts that are over: no worker owes it any."""
    owed = "*/artifacts/.worker/*/outbox/*.jsonl"
    until(lambda: not list(fleet.folder.glob(owed)), "every line of output is brought")


def nothing_left(fleet: Fleet) -> None:
    """No process and no half file is left behind by those who were killed."""
    mine = str(fleet.folder)

    def none() -> bool:
        return not [pid for pid, words in processes() if mine in words and "trainer.py" in words]

    until(none, f"the trainers of {mine} end", 20.0)


def leftovers(folder: Path) -> list[Any]:
    """Half-written files on the workers' disks."""
    return sorted(folder.glob("*/artifacts/**/*.part"))

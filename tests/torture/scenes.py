"""Places that the storm of kills.py does not pass for sure: each has a scene in which somebody dies there once."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from itertools import accumulate
from pathlib import Path
from typing import Any

from process_fleet import until

from torture.database_parts import memory_folder
from torture.fleet import ROOT, Fleet, FleetWithData, dies
from torture.suspended import LEASE_S, is_held, leave
from training.clock import SystemClock
from training.contract import spec_hash
from training.crashpoint import VARIABLE
from training.fleet.client.client import ClientError, FleetClient
from training.fleet.database import sqlite
from training.fleet.database.sqlite import SCHEMA_VERSION
from training.fleet.queue.jobs import JobQueue
from training.fleet.recovery.backup import Restore, snapshots
from training.fleet.recovery.doctor import examine
from training.fleet.recovery.findings import Gravity
from training.fleet.service.state import Deployment
from training.fleet.wire.dataset_listing import CHUNK_BYTES

Scene = Callable[[str, random.Random], None]  # at a place ("name" or "name:nth"), with chance


def run_python(*words: str, folder: Path, crash: str = "") -> int:
    """A program of ours that ends by itself, or at a place; its exit status."""
    run = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, VARIABLE: crash, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    wanted = -signal.SIGKILL if crash else 0
    assert run.returncode == wanted, f"{words} at {crash or 'no place'}: {run.stderr[-1500:]}"
    return run.returncode


# ── the database ────────────────────────────────────────────────────────────────────────────

STEP = """\
ALTER TABLE jobs ADD COLUMN mood TEXT NOT NULL DEFAULT '';
CREATE INDEX jobs_by_mood ON jobs (mood);
"""
MIGRATE = """\
import sys
from pathlib import Path
from training.fleet.database import sqlite
sqlite._SQL = Path(sys.argv[2])
sqlite.SCHEMA_VERSION += 1
sqlite.SqliteDatabase(sys.argv[1]).close()
"""
GROW = """\
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
INSERT INTO jobs (job_id, name, spec, class_id, priority, status, created_at, claimable_at)
SELECT 'more-' || i, 'more-' || i, spec, class_id, 0, 'pending', 0, 0
FROM n, (SELECT spec, class_id FROM jobs ORDER BY seq LIMIT 1)
"""


def version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def contents(path: Path, tables: set[str]) -> dict[str, Any]:
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        return {
            table: [dict(row) for row in connection.execute(f"SELECT * FROM {table} ORDER BY 1")]
            for table in sorted(tables)
        }


def invent_step(folder: Path) -> None:
    """Lay the tables of a later version, and the step that leads to them, into a new folder."""
    (folder / "migrations").mkdir(parents=True)
    (folder / f"migrations/{SCHEMA_VERSION + 1:04}_mood.sql").write_text(STEP)
    schema = (Path(sqlite.__file__).parent / "sql" / "schema_sqlite.sql").read_text(encoding="utf-8")
    (folder / "schema_sqlite.sql").write_text(schema + STEP, encoding="utf-8")


def migrating(place: str, chance: random.Random) -> None:
    """A database is brought up to a later version: it is the old one until it is the new one."""
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        path, sql = Path(folder) / "training_jobs.db", Path(folder) / "sql"
        invent_step(sql)
        with closing(JobQueue(path)) as queue:
            queue.sync_from_manifest([{"job_id": "id-one", "name": "one"}])
            queue._conn.execute(GROW, (chance.randint(1, 3000),))
        before = contents(path, {"jobs"})
        run_python("-c", MIGRATE, str(path), str(sql), folder=path.parent, crash=place)
        assert version(path) == SCHEMA_VERSION, f"half a step after {place}"
        assert contents(path, {"jobs"}) == before, f"rows changed by what was undone after {place}"
        run_python("-c", MIGRATE, str(path), str(sql), folder=path.parent)
        assert version(path) == SCHEMA_VERSION + 1
        assert len(contents(path, {"jobs"})["jobs"]) == len(before["jobs"])


def backing_up(place: str, chance: random.Random) -> None:
    """Beside a receiver at work: half a backup never passes for one, and the next is whole."""
    with Fleet() as fleet:
        fleet.start_receiver()
        worker = fleet.start_worker()
        folder = fleet.folder / "backups"
        command = ("-m", "training.fleet.cli", "backup", str(folder))
        command += ("--db", "state/jobs.db", "--models-dir", "state/models")
        fleet.wait_for(fleet.add(behave="well"), "completed")
        for _ in range(chance.randint(0, 2)):
            run_python(*command, folder=fleet.folder)
        for _ in range(3):  # they end while it is copied, or after
            fleet.add(behave="well", bytes=str(chance.choice((20_000, 1_500_000))))
        earlier = snapshots(folder)
        run_python(*command, folder=fleet.folder, crash=place)
        assert snapshots(folder) == earlier, "half a backup passes for one"
        run_python(*command, folder=fleet.folder)
        assert len(snapshots(folder)) == len(earlier) + 1
        assert not list(folder.rglob("*.part*")), "half a backup was left"
        fleet.all_over()
        leave(fleet, worker)
        new = fleet.folder / "new"
        state = Deployment(new / "jobs.db", new / "models", new / "tls")
        Restore(folder, state, SystemClock()).run()
        found = examine(state, SystemClock(), deep=True).findings
        assert not [each.sentence for each in found if each.level is not Gravity.NOTE]


# ── the data set ────────────────────────────────────────────────────────────────────────────


def fetching(place: str, chance: random.Random) -> None:
    """A worker dies amid a fetch: what was there does not travel twice, and the job is trained."""
    with FleetWithData() as fleet:
        fleet.start_receiver()
        listing = fleet.publish(
            chance.randbytes(chance.choice((1000, CHUNK_BYTES, chance.randint(1, 3 * CHUNK_BYTES))))
            for _ in range(chance.randint(2, 5))
        )
        here = [0, *accumulate(piece.length for piece in listing.places())]
        pieces = len(here) - 1
        if place == "client.sent.GET":  # the first is for the listing
            nth = chance.randint(1, pieces + 1)
            begun_with = [0, here[nth - 2]][:nth]  # bytes that are here when a fetch begins
        elif place == "worker.fetch.piece":
            nth = chance.randint(1, pieces)
            begun_with = [0, here[nth]]
        else:
            nth = 1
            begun_with = [0, listing.size] if place == "worker.fetch.stamped" else [0]
        name = fleet.add(behave="well")
        dies(fleet.start_worker(crash=f"{place}:{nth}"), f"{place}:{nth}")
        worker = fleet.start_worker()
        fleet.wait_for(name, "completed")
        told = re.findall(r"fetching data set \w+: (\d+) of", fleet.log("host"))
        assert [int(bytes_here) for bytes_here in told] == begun_with, f"{place}:{nth}: {told}"
        leave(fleet, worker)


# ── the late word ───────────────────────────────────────────────────────────────────────────

TRAINING = ("worker.spawned", "worker.printed")
FINISHED = (
    "worker.pack.begin", "worker.before.Upload", "client.body", "worker.after.Upload",
    "worker.before.SendComplete",
)  # fmt: skip


def heard_again(place: str, chance: random.Random) -> None:
    """A host given up for lost is heard, and the receiver dies taking it, or its finished work, back."""
    adopts = place == "transition.adopt"
    policy = {"stale_after_s": LEASE_S}
    if adopts:  # else a heartbeat comes first, and the attempt lives again before it delivers
        policy["max_readoptions"] = 0
    with Fleet(policy=policy, timeout_s=3.0) as fleet:
        doomed = fleet.start_receiver(place)
        go = fleet.folder / "go"
        if adopts:
            go.touch()
        name = fleet.add(behave="linger", go=str(go))
        silent_at = chance.choice(FINISHED if adopts else TRAINING)
        worker = fleet.start_worker(crash=f"{silent_at}:1:STOP")
        until(lambda: is_held(worker), f"the worker is suspended at {silent_at}")
        fleet.wait_for(name, "pending")
        worker.send_signal(signal.SIGCONT)
        dies(doomed, place)
        fleet.start_receiver()
        go.touch()
        fleet.wait_for(name, "completed")
        fleet.ended(name, "completed")
        leave(fleet, worker)


def by_hand(place: str, _: random.Random) -> None:
    """The receiver dies while it takes finished work that was set aside; offered once more, it is taken once."""
    bundle = b"finished work"
    with Fleet() as fleet:
        doomed = fleet.start_receiver(place)
        name = fleet.add(behave="well")
        host = FleetClient(fleet.url, "host", tries=1)
        grant = host.claim({"cpu_cores": 4, "ram_available_gib": 8.0})
        host.fail(grant.job_id, error="worker shutdown", reason="worker_shutdown")
        path = fleet.folder / "set-aside.tar.zst"
        path.write_bytes(bundle)
        offer = {
            "claim_id": grant.claim_id,
            "spec_hash": spec_hash(grant.spec),
            "artifact_id": hashlib.sha256(bundle).hexdigest(),
        }
        with contextlib.suppress(ClientError):
            host.deliver(grant.job_id, path, **offer)
        dies(doomed, place)
        host.close()
        fleet.start_receiver()
        assert fleet.status(name) == "pending", "what was not committed did not happen"
        again = FleetClient(fleet.url, "host", tries=1)
        for _ in range(2):
            again.deliver(grant.job_id, path, **offer)
        again.close()
        fleet.ended(name, "worker_shutdown", "completed")


def pardoning(place: str, chance: random.Random) -> None:
    """Three jobs die at once on one host, which is taken out; the receiver dies while it pardons them."""
    policy = {"odd_deaths": 3, "odd_death_s": 600.0, "backoff_s": 600.0, "backoff_max_s": 600.0}
    with Fleet(policy=policy) as fleet:
        doomed = fleet.start_receiver(f"{place}:{chance.randint(1, 3)}")
        names = [fleet.add(behave="fail-once") for _ in range(3)]
        worker = fleet.start_worker()
        dies(doomed, place)
        fleet.start_receiver()
        until(lambda: fleet.client.release("host"), "the host is taken out")
        for name in names:  # at once: who is pardoned waits for nothing
            fleet.wait_for(name, "completed")
            fleet.ended(name, "trainer_failed", "completed")
            assert fleet.job(name)["job"]["trainer_failures"] == 0, f"{name} pays for its host"
        leave(fleet, worker)


def ordering(place: str, _: random.Random) -> None:
    """The receiver dies at an order of the operator, of which nothing is left; given again, it holds."""
    what = place.partition(".")[2]
    with Fleet() as fleet:
        doomed = fleet.start_receiver(place)
        name = fleet.add(behave="bad-data" if what == "take_out" else "well")
        if what == "take_out":
            fleet.add(behave="well")
            worker = fleet.start_worker()
            fleet.wait_for(name, "failed")
            fleet.jobs.pop(0)
            fleet.write_plan()
            fleet.client.reload()
        elif what == "unhold":
            fleet.client.hold(name)
        call = {"take_out": fleet.client.cancel}.get(what) or getattr(fleet.client, what)
        before = fleet.job(name)
        with contextlib.suppress(ClientError):
            call(name)
        dies(doomed, place)
        fleet.start_receiver()
        after = fleet.job(name)
        assert (after["job"], after["events"]) == (before["job"], before["events"])
        call(name)
        if what == "take_out":
            fleet.jobs.insert(0, {"name": name, "seed": 0, "hyper": {"behave": "bad-data"}})
            fleet.write_plan()
            fleet.client.reload()
            assert fleet.status(name) == "cancelled"
        else:
            worker = fleet.start_worker()
            if what == "hold":
                fleet.wait_for(fleet.add(behave="well"), "completed")
                fleet.ended(name)
                fleet.client.unhold(name)
            fleet.wait_for(name, "completed")
        leave(fleet, worker)


def keeping(place: str, _: random.Random) -> None:
    """The receiver dies while it lets a model go: the next one ends that, and the others' models stay."""
    with Fleet() as fleet:
        doomed = fleet.start_receiver(place)
        goes, stays = fleet.add(behave="well"), fleet.add(behave="well")
        worker = fleet.start_worker()
        for name in (goes, stays):
            fleet.wait_for(name, "completed")
        fleet.client.hold(goes)
        fleet.client.requeue(goes)
        fleet.client.cancel(goes)
        fleet.client.unhold(goes)
        fleet.retention = ["keep_superseded_days = 0"]
        fleet.write_plan()
        fleet.client.reload()
        with contextlib.suppress(ClientError):
            fleet.client.gc_now()
        dies(doomed, place)
        fleet.start_receiver()
        fleet.client.gc_now()
        left = [*(fleet.folder / "state" / "models").glob("fake_oracle/*/bundle.tar.zst")]
        assert [path.parent.name for path in left] == [fleet.job(stays)["job"]["artifact_id"]]
        assert (fleet.status(goes), fleet.status(stays)) == ("cancelled", "completed")
        leave(fleet, worker)


# ── all of them ─────────────────────────────────────────────────────────────────────────────

SCENES: Mapping[str, Scene] = {
    "database.copied": backing_up,
    "database.migrated": migrating,
    "client.sent.GET": fetching,
    "worker.fetch.piece": fetching,
    "worker.fetch.stamped": fetching,
    "worker.fetch.whole": fetching,
    "retention.decided": keeping,
    "retention.noted": keeping,
    "retention.unlinked": keeping,
    "transition.adopt": heard_again,
    "transition.readopt": heard_again,
    "transition.pardon": pardoning,
    "transition.deliver": by_hand,
    "transition.take_out": ordering,
    "transition.hold": ordering,
    "transition.unhold": ordering,
}


def kill_in_scenes(seed: int) -> Counter[str]:
    """Kill once in each scene; how often at which place."""
    counts: Counter[str] = Counter()
    for place, scene in SCENES.items():
        scene(place, random.Random(f"{place} {seed}"))
        counts.update({f"at {place}": 1, "kills": 1})
    return counts

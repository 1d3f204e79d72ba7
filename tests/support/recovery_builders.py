"""A receiver's state after some work: a database and a store, made over HTTP by the production code."""

from __future__ import annotations

import io
import json
import shutil
import sqlite3
from contextlib import closing

from builders import a_capability, a_job
from inline_steps import fold
from receiver_running import Receiver, job_id

from training.clock import SystemClock
from training.files import LocalFs
from training.fleet.cli import program
from training.fleet.cli.context import CommandContext
from training.fleet.database import seals
from training.fleet.database.sqlite import SqliteDatabase
from training.fleet.recovery.doctor import examine
from training.fleet.recovery.findings import Gravity
from training.fleet.service.state import Deployment
from training.fleet.wire.attempts import LogLines

# The higher the priority, the sooner it is given out.
NAMES = ["waits", "is-cancelled", "runs", "fails", "done-twice", "done", "same-bytes"]
JOBS = [a_job(name, priority=10 * n, split_recipe="host") for n, name in enumerate(NAMES)]
JOBS[NAMES.index("fails")]["allowed_hosts"] = ["pi"]  # no other host is asked what it says
PLAN = [job | {"job_id": job_id(job)} for job in JOBS]


def state_in(folder):
    return Deployment(folder / "jobs.db", folder / "models", folder / "tls")


def cis490_jobs(*words):
    """Run the command; returns its exit code, and what it printed as output and as errors."""
    out, err = io.StringIO(), io.StringIO()
    code = program.main(words, context=CommandContext(out=out, err=err, environ={}))
    return code, out.getvalue(), err.getvalue()


def a_state(folder):
    """One completed job, two with the same bytes, one completed again after a requeue, whose output
    is in a file, and one of each other kind."""
    bundles = folder.parent / f"{folder.name}-bundles"
    bundles.mkdir(parents=True)
    folder.mkdir(parents=True)
    with Receiver(folder, JOBS) as receiver:
        desk, pi = receiver.client("desk"), receiver.client("pi")
        deliver(desk, claim(desk), bundles, b"the same", report='{"verdict": "so"}')
        deliver(pi, claim(pi), bundles, b"the same")
        deliver(pi, claim(pi), bundles, b"first")
        pi.requeue("done-twice")
        second = claim(desk)
        deliver(desk, second, bundles, b"second")
        desk.output(second.job_id, claim_id=second.claim_id, log=LogLines(first=1, total=1))
        failing = claim(pi)
        pi.heartbeat(failing.job_id, lines=["epoch 1", "no rows"])
        pi.fail(failing.job_id, error="ValueError: no rows", exit_code=65)
        running = claim(desk)
        told = {"event": "epoch", "epoch": 1, "loss": 0.5, "metric": 0.25, "seconds": 2.5}
        used = {"cpu": 1.5, "memory_bytes": 10**9, "gpu": 0.5, "gpu_memory_bytes": 10**9}
        desk.heartbeat(running.job_id, lines=[json.dumps(told)], progress={"epoch": 1}, usage=used)
        pi.cancel("is-cancelled")
    shutil.rmtree(bundles)
    state = state_in(folder)
    assert fold(state.db, state.models) == 1
    return state


def claim(client):
    grant = client.claim(a_capability())
    assert grant is not None
    return grant


def deliver(client, grant, bundles, body, report=None):
    client.heartbeat(grant.job_id, lines=["epoch 1"])
    path = bundles / "bundle.tar.zst"
    path.write_bytes(body * 1000)
    artifact = client.upload_artifact(grant.job_id, path)
    client.complete(grant.job_id, artifact_id=artifact, record={"seconds": 3.0}, report=report)


def copied(state, folder):
    """The same in another folder, for a test that breaks it."""
    shutil.copytree(state.db.parent, folder)
    return state_in(folder)


def change(state, *statements, by_hand=False):
    """Change the tables as a bug of the program does; ``by_hand`` leaves the checksums as they were."""
    with closing(sqlite3.connect(state.db, isolation_level=None)) as connection:
        connection.row_factory = sqlite3.Row
        if not by_hand:
            seals.learn(connection)
            seals.keep(connection)
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("PRAGMA ignore_check_constraints = ON")
        for statement in statements:
            assert connection.execute(statement).rowcount != 0, f"{statement} changed nothing"


def rows(state, sql):
    with closing(sqlite3.connect(state.db)) as connection:
        return connection.execute(sql).fetchall()


def found(state, *, deep=False, notes=False, clock=None):
    """Return the doctor's findings, but for notes."""
    report = examine(state, clock or SystemClock(), deep=deep)
    return [each for each in report.findings if notes or each.level is not Gravity.NOTE]


def checks(state, *, deep=False):
    return {each.check for each in found(state, deep=deep)}


def bundle_of(state, name):
    """Return where the bundle of this completed job lies."""
    database = SqliteDatabase(state.db, read_only=True)
    row = database.one("job", job_id=job_id({"name": name}))
    database.close()
    return state.models / "gbt_realistic" / row["artifact_id"] / "bundle.tar.zst"


def flip(path, bit=3):
    """One bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1 << bit
    path.write_bytes(data)


def tree(folder):
    """Every file but the lock, with its bytes."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".lock"
    }


class Unreadable(LocalFs):
    """A disk that refuses to read, or to tell the age of, what has this name."""

    def __init__(self, name):
        super().__init__()
        self.name = name

    def _look(self, path):
        if path.name.endswith(self.name):
            raise PermissionError(13, "Permission denied", str(path))

    def read(self, path):
        self._look(path)
        return super().read(path)

    def size(self, path):
        self._look(path)
        return super().size(path)

    def modified_at(self, path):
        self._look(path)
        return super().modified_at(path)

"""A receiver that really listens, in a thread of the test: the production server over a temporary folder."""

from __future__ import annotations

import contextlib
import json
import socket
import threading

from builders import a_job

from training.clock import SystemClock
from training.contract import digest
from training.files import LocalFs
from training.fleet.client.client import FleetClient
from training.fleet.database.sqlite import SqliteDatabase
from training.fleet.database.writer import Writer
from training.fleet.queue.jobs import JobQueue
from training.fleet.receiver.http.context import ReceiverContext, ReceiverSettings, WaitingRoom
from training.fleet.receiver.http.server import Server, configuration
from training.fleet.receiver.program import create_app
from training.fleet.recovery.doctor import examine
from training.fleet.recovery.findings import Gravity
from training.fleet.scheduling.policy import Policy, Scheduling
from training.fleet.service.hosts import Plan
from training.fleet.service.service import Service
from training.fleet.service.state import Deployment
from training.fleet.store.artifacts import ArtifactStore
from training.fleet.store.datasets import DatasetStore
from training.fleet.store.states import StateStore

TOKEN = "sesame, öffne dich"


class SmallDisk(LocalFs):
    """The machine's disk, with as much free space as a test says."""

    free = 10**12

    def free_bytes(self, path):
        return self.free


class WatchedRoom(WaitingRoom):
    """Tells the test when a claim begins to wait and when it stops waiting."""

    def __init__(self):
        super().__init__()
        self.waiting = threading.Semaphore(0)
        self.left = threading.Semaphore(0)

    async def wait(self, *args):
        self.waiting.release()
        try:
            await super().wait(*args)
        finally:
            self.left.release()


class Receiver:
    """Runs between ``with``; everything it consists of is within reach of the test.

    ``fleet_clock`` is the whole receiver's, ``clock`` that of its HTTP side alone. The oldest job goes to the
    first that asks: by the measured duration of a job of milliseconds, chance would decide.
    """

    def __init__(
        self, folder, jobs, *, security=None, clock=None, fleet_clock=None, scheduling=Scheduling.FIRST_COME, **settings
    ):
        self.folder = folder
        self.disk = SmallDisk()
        policy = Policy(sweep_period_s=3600, second_opinion_s=0)  # a refusal is final at once
        self.queue = JobQueue(folder / "jobs.db", policy=policy, clock=fleet_clock)
        self.plan = [job | {"job_id": job_id(job)} for job in jobs]
        self.queue.sync_from_manifest(self.plan)
        self.store = ArtifactStore(folder / "models", self.disk)
        self.store.mark(self.queue.database_id)
        self.read = Plan(scheduling=scheduling)  # what a reload reads
        self.service = Service(self.queue, self.store, self.read)
        self.writer = Writer(self.queue.db)
        self.reader = SqliteDatabase(folder / "jobs.db")
        self.hub = ReceiverContext(
            self.service,
            self.writer,
            self.store,
            DatasetStore(folder / "datasets", self.disk),
            StateStore(folder / "states", self.disk),
            self.reader,
            clock or fleet_clock or SystemClock(),
            ReceiverSettings(
                **{"operator_token": TOKEN, **settings},
                secure=security is not None,
                names=security.names if security else (),
            ),
            security.authority if security else None,
            self._reload,
        )
        self.room = self.hub.room = WatchedRoom()
        self.server = Server(configuration(create_app(self.hub)), self.hub, security)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()
        self.url = f"http://127.0.0.1:{self.address[1]}"
        self.thread = threading.Thread(target=self.server.run, args=([self.listener],))
        self.clients = []
        self.judged = True

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, failed, *_):
        for client in self.clients:
            client.close()
        self.stop()
        self.hub.close()
        self.writer.close()
        self.reader.close()
        self.queue.close()
        self.listener.close()
        if self.judged and failed is None:
            self.judge()

    def judge(self):
        """Check that no promise is broken after the test. One that breaks things itself sets ``judged`` False."""
        state = Deployment(self.folder / "jobs.db", self.folder / "models", self.folder / "tls")
        report = examine(state, SystemClock(), fs=self.disk)
        bad = [each.sentence for each in report.findings if each.level is Gravity.FAULT]
        assert bad == [], bad

    def stop(self):
        self.server.stop()
        self.thread.join(30)
        assert not self.thread.is_alive(), "the receiver did not stop"

    def client(self, host="pi", token=TOKEN, **how):
        client = FleetClient(self.url, host, operator_token=token, tries=how.pop("tries", 1), **how)
        self.clients.append(client)
        return client

    def add(self, *jobs):
        """Add jobs as a reload does."""
        self.plan += [job | {"job_id": job_id(job)} for job in jobs]
        self.client().reload()

    def status(self, name):
        return str(self.client().job(name)["job"]["status"])

    def index(self):
        file = self.folder / "models" / "index.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def _reload(self, _who):
        return self.writer.submit(lambda: self.service.reload(self.plan, self.read)).result()


def job_id(job):
    return digest(job["name"])


def running(folder, *names, **settings):
    return Receiver(folder, [a_job(name) for name in names or ("gbt-realistic",)], **settings)


class Wire:
    """A connection on which a test says exactly what it wants."""

    def __init__(self, receiver):
        self.socket = socket.create_connection(receiver.address, timeout=30)
        self.database_id = receiver.hub.database_id

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, data):
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(data.encode() if isinstance(data, str) else data)
        return self

    def request(self, method, path, body=b"", **headers):
        """A whole request; the names of headers are given with ``_`` for ``-``."""
        given = {"Host": "127.0.0.1", "Content_Length": len(body), **headers}
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in given.items() if value is not None]
        return self.send("\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""])).send(body)

    def answer(self):
        """Status, headers in lower case, body."""
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._more()
        head, _, body = data.partition(b"\r\n\r\n")
        first, *rest = head.decode("latin-1").split("\r\n")
        headers = {n.lower(): v for n, _, v in (line.partition(": ") for line in rest)}
        assert headers.get("x-database-id") == self.database_id, f"an answer of nobody: {head!r}"
        while len(body) < int(headers.get("content-length", 0)):
            body += self._more()
        return int(first.split()[1]), headers, body

    def problem(self):
        """Status and slug of a refusal, which must be a problem document."""
        status, headers, body = self.answer()
        assert headers["content-type"] == "application/problem+json"
        found = json.loads(body)
        assert found["status"] == status
        assert found["type"] == headers["x-problem"]
        assert found["detail"]
        assert "Traceback" not in found["detail"]
        return status, found["type"]

    def _more(self):
        data = self.socket.recv(1 << 20)
        if not data:
            raise EOFError("the receiver hung up")
        return data


@contextlib.contextmanager
def in_background(call):
    """Run ``call`` beside the test; the list has its result (or exception) when the block is left."""
    result = []

    def run():
        try:
            result.append(call())
        except Exception as error:  # noqa: BLE001 - handed to the test
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield result
    finally:
        thread.join(30)
        assert result, "the call did not return"


__all__ = ["TOKEN", "Receiver", "Wire", "in_background", "job_id", "running"]

"""Workers' bodies: decoded or refused, and what was decoded is decided on, by a real queue, without a fault.

The first byte chooses the call; the rest is its body.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import msgspec

from fuzz import scratch
from training.contract import digest
from training.fleet.database.writer import DatabaseError
from training.fleet.queue.jobs import JobQueue
from training.fleet.receiver.http.problems import body_of, decoded
from training.fleet.service.service import Service
from training.fleet.service.views import Views
from training.fleet.wire import attempts
from training.fleet.wire import messages as wire
from training.fleet.wire.constants import Refusal

KINDS: tuple[type[Any], ...] = (
    attempts.ClaimRequest, attempts.HeartbeatRequest, attempts.CompleteRequest, attempts.FailRequest,
    attempts.ClaimRequest, attempts.HeartbeatRequest, wire.JoinRequest, wire.RenewRequest, wire.InviteRequest,
    wire.RevokeRequest, wire.TokenRequest, wire.TokenRevokeRequest,
)  # fmt: skip
WORDS = (
    b'"host_id":"pi"', b'"claim_id":"CLAIM"', b'"seq":', b'"log":{"first":0,"lines":["', b'"progress":{"a":', b"{",
    b"[",
    b"[" * 200, b'{"a":' * 150, b"]", b"}", b'"', b",", b":", b"null", b"true", b"-1", b"1e400", b"1e308", b"9" * 25,
    b"9223372036854775807", b"18446744073709551616", b"\\u0000", b"\\ud800", b"\\u001b", b"\xed\xa0\x80", b"\xff",
    b'"capability":{"cpu_cores":', b'"cuda_devices":[', b'"ram_available_gib":', b'"wait_s":', b'"slot":',
    b'"trainer_digests":{', b'"exit_code":', b'"reason":"worker_shutdown"', b'"record":{"seconds":', b'"artifact_id":',
    b'"spec_hash":"', b'"error":"', b'"session_id":"0000000001-a"', b'"instance_id":"i"', b'"request_id":"r"',
)  # fmt: skip


class _Undo(Exception):  # noqa: N818 - no error at all
    """Every call is taken back, so that each input meets the same queue."""


class _Shelf:
    def has_room(self, *_: object) -> bool:
        return True

    def find(self, *_: object, **_how: object) -> object | None:
        return None


class _Stopped:
    """A clock that stands still, so that pi falls silent in no run, however long."""

    def now(self) -> float:
        return 1_700_000_000.0

    monotonic = awake = now


class _World:
    """Two jobs: one claimed by installation ``i`` of host pi, one pending.

    What a service remembers of its hosts is no part of the database: each call has one that has just started.
    """

    def __init__(self) -> None:
        self.folder = scratch.folder("wire")
        self.queue = JobQueue(Path(self.folder.name) / "jobs.db", clock=_Stopped())
        self.queue.sync_from_manifest([_job("one"), _job("two")])
        first = attempts.ClaimRequest(host_id="pi", instance_id="i", session_id="0000000001-a")
        with self.queue.db.transaction():
            grant = self._service().claim(first)
        assert grant.job_id is not None
        assert grant.claim_id is not None
        self.job_id, self.claim_id = grant.job_id, grant.claim_id

    def _service(self) -> Service:
        return Service(self.queue, _Shelf())

    def call(self, message: Any) -> None:
        job_id, service = self.job_id, self._service()
        replies: list[Any]
        match message:
            case attempts.ClaimRequest():
                replies = [service.claim(message)]
            case attempts.HeartbeatRequest():
                replies = [service.heartbeat(job_id, message)]
            case attempts.CompleteRequest():
                replies = [service.complete(job_id, message)]
            case attempts.FailRequest():
                replies = [service.fail(job_id, message)]
            case _:
                return
        views = Views(self.queue.db, service)
        looks = [views.job(job_id), views.log(job_id), views.jobs(), views.workers()]
        for each in [*replies, *looks, views.explain(job_id)]:
            msgspec.json.encode(each)


def _job(name: str) -> dict[str, Any]:
    return {
        "name": name, "job_id": digest(name), "model": "gbt", "mode": "realistic", "priority": 1,
        "require_cuda": False,
        "prefer_cuda": False, "min_vram_gib": 0.0, "min_ram_gib": 0.0, "min_cores": 0, "allowed_hosts": [],
        "denied_hosts": [], "hyper": {}, "split_recipe": "host", "train_hosts": ["lab-1"], "seed": 7,
        "n_resamples": 10,
    }  # fmt: skip


def one_input(data: bytes) -> None:
    kind, body = KINDS[data[0] % len(KINDS)] if data else KINDS[0], data[1:]
    world = _world()
    try:
        message = decoded(body.replace(b"CLAIM", world.claim_id.encode()), kind)
    except Refusal as refusal:
        body_of(refusal)
        return
    assert msgspec.json.decode(msgspec.json.encode(message), type=kind) == message
    try:
        with world.queue.db.transaction():
            world.call(message)
            raise _Undo
    except _Undo:
        return
    except Refusal as refusal:
        body_of(refusal)
    except DatabaseError as error:
        raise AssertionError(f"the database refused what was let through: {error}") from error


@functools.cache
def _world() -> _World:
    return _World()

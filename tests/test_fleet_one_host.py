"""One host that means ill, or is broken, within its quota: it may not stop the fleet."""

from __future__ import annotations

import contextlib
import hashlib
import json
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from builders import a_capability
from conformance.memory_fs import MemoryFs
from fakes import FakeClock
from receiver_running import Receiver, Wire, in_background, running
from tls_world import secure

from training.fleet.client import Grant, Unavailable
from training.fleet.database_sqlite import SqliteDatabase
from training.fleet.protocol import Refusal
from training.fleet.service import BUNDLES_MAX
from training.fleet.storage.errors import StoreFull, TooManyParts
from training.fleet.storage.incoming import PARTS_MAX
from training.fleet.store import RESERVE_BYTES, ArtifactStore
from training.fleet.trust.credentials import new_request
from training.fleet.trust.identity import Role
from training.fleet.trust.registry import A_DAY_MAX, DAY_S, Certified, Registry
from training.fleet.web.connection import GuardedProtocol

MIB = 1024**2


def claimed(receiver: Receiver, host: str = "pi") -> Grant:
    grant = receiver.client(host).claim(a_capability())
    assert grant is not None
    return grant


def put(wire: Wire, grant: Grant, body: bytes, **headers: Any) -> Wire:
    path = f"/v1/model/{grant.job_id}"
    return wire.request("PUT", path, body, X_Claim_Id=grant.claim_id, **headers)


# -- the reserve of free space ----------------------------------------------------------------------------------


def filling(receiver: Receiver, free: int) -> None:
    """From now on the disk has so much free space, and less with every byte written."""
    disk, write = receiver.disk, receiver.disk.write
    disk.free = free

    def less(handle: int, data: bytes | memoryview) -> None:
        disk.free -= len(data)
        write(handle, data)

    disk.write = less  # type: ignore[method-assign]


def test_an_upload_of_unknown_length_leaves_the_reserve_alone(tmp_path: Path) -> None:
    with running(tmp_path) as receiver:
        grant = claimed(receiver)
        filling(receiver, RESERVE_BYTES + 3 * MIB)
        for n in range(3):
            body = bytes([n]) * (4 * MIB)
            chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
            with Wire(receiver) as wire:
                how = {"Transfer_Encoding": "chunked", "Content_Length": None}
                put(wire, grant, chunks, X_Content_SHA256=f"{n:064x}", **how)
                assert wire.problem() == (507, "disk_full")
        assert receiver.disk.free >= RESERVE_BYTES


def test_what_is_being_written_is_room_no_more() -> None:
    """The disk may not count it yet, and another upload asks meanwhile."""
    seen: list[bool] = []

    class Slow(MemoryFs):
        def write(self, handle: int, data: bytes | memoryview) -> None:
            seen.append(store.has_room(4000))
            super().write(handle, data)

    store = ArtifactStore(Path("/models"), Slow(capacity=10_000), reserve_bytes=1000)
    part = store.open_part("a" * 32, None)
    part.write(b"x" * 6000)
    assert seen == [False]
    with pytest.raises(StoreFull):
        part.write(b"x" * 3001)
    part.write(b"x" * 3000)
    assert not store.has_room(1)
    part.close()


# -- bundles ----------------------------------------------------------------------------------------------------


def sha(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def answered(receiver: Receiver, grant: Grant, body: bytes, **headers: Any) -> tuple[int, str]:
    with Wire(receiver) as wire:
        status, found, _ = put(wire, grant, body, **headers).answer()
    return status, found.get("x-problem", "")


def bundles(receiver: Receiver) -> int:
    return len(list((receiver.folder / "models").rglob("bundle.tar.zst")))


@pytest.mark.parametrize("declared", [True, False])
def test_an_attempt_brings_only_so_many_bundles(tmp_path: Path, declared: bool) -> None:
    with running(tmp_path) as receiver:
        grant = claimed(receiver)
        bodies = [b"%d" % n * 1000 for n in range(BUNDLES_MAX + 1)]
        for body in [*bodies[:-1], bodies[0]]:
            headers = {"X_Content_SHA256": sha(body)} if declared else {}
            assert answered(receiver, grant, body, **headers) == (200, "")
        headers = {"X_Content_SHA256": sha(bodies[-1])} if declared else {}
        assert answered(receiver, grant, bodies[-1], **headers) == (413, "too_large")
        assert bundles(receiver) == BUNDLES_MAX
        assert list((tmp_path / "models" / "incoming").iterdir()) == []
        receipt = receiver.client().complete(
            grant.job_id, claim_id=grant.claim_id, artifact_id=sha(bodies[1])
        )
        assert receipt.status == "completed"


def test_who_completed_a_job_brings_no_further_bundle(tmp_path: Path) -> None:
    with running(tmp_path) as receiver:
        grant = claimed(receiver)
        assert answered(receiver, grant, b"good" * 99, X_Content_SHA256=sha(b"good" * 99))[0] == 200
        receiver.client().complete(
            grant.job_id, claim_id=grant.claim_id, artifact_id=sha(b"good" * 99)
        )
        for n in range(3):
            assert answered(receiver, grant, b"%d" % n * 99) == (409, "result_conflict")
        assert bundles(receiver) == 1


def test_bundles_at_once_are_counted_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one is made durable, another of the same claim comes to its end and is told to come again."""
    with running(tmp_path) as receiver:
        grant = claimed(receiver)
        publishing, go = threading.Event(), threading.Event()
        publish = receiver.store.publish

        def slowly(*args: Any, **how: Any) -> Any:
            publishing.set()
            assert go.wait(20)
            return publish(*args, **how)

        monkeypatch.setattr(receiver.store, "publish", slowly)
        with in_background(lambda: answered(receiver, grant, b"one")) as first:
            assert publishing.wait(20)
            assert answered(receiver, grant, b"two", X_Content_SHA256=sha(b"two")) == (
                429,
                "slow_down",
            )
            go.set()
        assert first == [(200, "")]
        assert receiver.store.offset(grant.claim_id, sha(b"two")) == 3, "nothing is sent twice"
        tail = {"X_Content_SHA256": sha(b"two"), "Upload_Offset": 3}
        assert answered(receiver, grant, b"", **tail) == (200, "")


def test_a_claim_leaves_only_so_many_unfinished_uploads() -> None:
    fs = MemoryFs()
    store = ArtifactStore(Path("/models"), fs)
    other = store.open_part("b" * 32, sha(b"other"))
    for n in range(PARTS_MAX + 2):
        fs.now = float(n)
        part = store.open_part("a" * 32, sha(b"%d" % n))
        part.write(b"x")
        part.close()
    kept = [n for n in range(PARTS_MAX + 2) if store.offset("a" * 32, sha(b"%d" % n))]
    assert kept == list(range(2, PARTS_MAX + 2)), "what was written last stays"
    held = [store.open_part("a" * 32, sha(b"%d" % n), offset=1) for n in kept]
    with pytest.raises(TooManyParts):
        store.open_part("a" * 32, None)
    for each in [*held, other]:
        each.write(b"goes on")
        each.close()


# -- reading whole bundles --------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["confirm", "open_part", "verify"])
def test_what_is_read_on_demand_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    body = b"bundle" * 1000
    with running(tmp_path) as receiver:
        grant = claimed(receiver)
        if what == "open_part":
            part = receiver.store.open_part(grant.claim_id, sha(body))
            part.write(body)
            part.close()
        else:
            assert answered(receiver, grant, body, X_Content_SHA256=sha(body))[0] == 200
        reading, go = threading.Event(), threading.Event()
        real = getattr(receiver.store, what)

        def slowly(*args: Any, **how: Any) -> Any:
            reading.set()
            assert go.wait(20)
            return real(*args, **how)

        monkeypatch.setattr(receiver.store, what, slowly)

        def ask() -> tuple[int, str]:
            if what != "verify":
                tail = {"X_Content_SHA256": sha(body), "Upload_Offset": len(body)}
                return answered(receiver, grant, b"", **tail)
            with Wire(receiver) as wire:
                said = json.dumps({"claim_id": grant.claim_id, "artifact_id": sha(body)}).encode()
                wire.request("POST", f"/v1/job/{grant.job_id}/complete", said)
                status, found, _ = wire.answer()
            return status, found.get("x-problem", "")

        with in_background(ask) as first:
            assert reading.wait(20)
            with ThreadPoolExecutor(8) as several:
                asked = [several.submit(ask) for _ in range(8)]
                health = receiver.client(timeout_s=5.0).health()
                go_on = [each.result(10) for each in asked]
            go.set()
        assert health["status"] == "ok"
        assert go_on == [(429, "slow_down")] * 8
        assert first == [(200, "")]


# -- connections ------------------------------------------------------------------------------------------------


def test_one_host_has_only_so_many_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GuardedProtocol, "each_max", 3)
    with secure(tmp_path) as receiver, ExitStack() as open_ones:
        pem, _ = receiver.admitted("pi")
        renewed, _ = receiver.admitted("pi")

        def connected(pem: bytes | None) -> Wire:
            wire = open_ones.enter_context(Wire(receiver))
            wire.socket = receiver.context(pem).wrap_socket(
                wire.socket, server_hostname="localhost"
            )
            return wire

        def answers(wire: Wire) -> bool:
            return wire.request("GET", "/v1/health", Host="localhost").answer()[0] in (200, 403)

        held = [connected(pem), connected(renewed), connected(pem)]
        assert all(map(answers, held))
        assert connected(renewed).problem() == (429, "slow_down")
        nobody = [connected(None) for _ in range(3)]
        assert all(map(answers, nobody))
        assert connected(None).problem() == (429, "slow_down")
        assert answers(connected(receiver.admitted("desktop")[0]))
        held.pop().socket.close()
        for _ in range(200):  # until the receiver has noticed
            with contextlib.suppress(EOFError, ssl.SSLError, ConnectionError):
                if answers(connected(pem)):
                    break
        else:
            raise AssertionError("the place of a closed connection stays taken")


# -- certificates -----------------------------------------------------------------------------------------------


def test_a_host_gets_only_so_many_certificates_a_day(tmp_path: Path) -> None:
    with secure(tmp_path) as receiver:
        pem, _ = receiver.admitted("pi")
        host = receiver.showing(pem)

        def renewed() -> bool:
            return "certificate" in host.post_json("/v1/renew", {"csr": new_request("pi")[1]})

        # An answer that was lost is asked for again, with the certificate that is still there.
        assert all(renewed() for _ in range(A_DAY_MAX - 1))
        with pytest.raises(Unavailable, match="within a day") as caught:
            renewed()
        assert caught.value.slug == "slow_down"
        assert len(receiver.hub.door.registry.certificates()) == A_DAY_MAX
        desktop = receiver.showing(receiver.admitted("desktop")[0])
        assert desktop.post_json("/v1/renew", {"csr": new_request("desktop")[1]})
        receiver.clock.advance(DAY_S)
        assert renewed()


def test_renewals_at_once_are_counted_too() -> None:
    """Each was asked for before the others were written."""
    database, clock = SqliteDatabase(":memory:"), FakeClock()
    registry = Registry(database, clock)

    def certified(n: int) -> Certified:
        return Certified(f"{n:064x}", Role.HOST, "pi", clock.now(), clock.now() + 30 * DAY_S)

    code = registry.invite(Role.HOST, "pi").code
    registry.admit(certified(0), registry.check_code(Role.HOST, "pi", code, b"csr"), b"csr")
    registry.check_pace(Role.HOST, "pi")
    for n in range(1, A_DAY_MAX):
        registry.admit(certified(n), None, b"csr")
    with pytest.raises(Refusal, match="within a day"):
        registry.admit(certified(A_DAY_MAX), None, b"csr")
    with pytest.raises(Refusal, match="within a day"):  # the same code again, for the same request
        registry.check_code(Role.HOST, "pi", code, b"csr")
    database.close()

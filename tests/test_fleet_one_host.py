"""One host that means ill, or is broken, within its quota: it may not stop the fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builders import a_capability
from conformance.memory_fs import MemoryFs
from fakes import FakeClock
from receiver_running import Receiver, Wire, running
from tls_world import secure

from training.fleet.client import Grant, Unavailable
from training.fleet.database_sqlite import SqliteDatabase
from training.fleet.protocol import Refusal
from training.fleet.storage.errors import StoreFull
from training.fleet.store import RESERVE_BYTES, ArtifactStore
from training.fleet.trust.credentials import new_request
from training.fleet.trust.identity import Role
from training.fleet.trust.registry import A_DAY_MAX, DAY_S, Certified, Registry

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

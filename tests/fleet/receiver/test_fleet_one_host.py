"""One host that means ill, or is broken, within its quota: it may not stop the fleet."""

import contextlib
import hashlib
import json
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from builders import a_capability
from conformance.memory_fs import MemoryFs
from fakes import FakeClock
from hypothesis import given, settings
from hypothesis import strategies as st
from receiver_running import Wire, in_background, running
from tls_world import secure

from training.fleet.client.client import Unavailable
from training.fleet.client.credentials import new_request
from training.fleet.database.sqlite import SqliteDatabase
from training.fleet.receiver.http.connection import GuardedProtocol
from training.fleet.receiver.security.registry import A_DAY_MAX, DAY_S, Certified, Registry
from training.fleet.service.endings import BUNDLES_MAX
from training.fleet.store.artifacts import RESERVE_BYTES, ArtifactStore
from training.fleet.store.errors import ShareFull, StoreFull, TooManyParts
from training.fleet.store.incoming import PARTS_MAX, PartFile
from training.fleet.wire.constants import Refusal
from training.fleet.wire.identity import Role

MIB = 1024**2


def claimed(receiver, host="pi"):
    grant = receiver.client(host).claim(a_capability())
    assert grant is not None
    return grant


def put(wire, grant, body, **headers):
    return wire.request("PUT", f"/v1/model/{grant.job_id}", body, X_Claim_Id=grant.claim_id, **headers)


# -- the reserve of free space ----------------------------------------------------------------------------------


def filling(receiver, free):
    """From now on the disk has so much free space, and less with every byte written."""
    disk, write = receiver.disk, receiver.disk.write
    disk.free = free

    def less(handle, data):
        disk.free -= len(data)
        write(handle, data)

    disk.write = less


def test_an_upload_of_unknown_length_leaves_the_reserve_alone(tmp_path):
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


def test_what_is_being_written_is_room_no_more():
    """The disk may not count it yet, and another upload asks meanwhile."""
    seen = []

    class Slow(MemoryFs):
        def write(self, handle, data):
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


def sha(body):
    return hashlib.sha256(body).hexdigest()


def answered(receiver, grant, body, **headers):
    with Wire(receiver) as wire:
        status, found, _ = put(wire, grant, body, **headers).answer()
    return status, found.get("x-problem", "")


def bundles(receiver):
    return len(list((receiver.folder / "models").rglob("bundle.tar.zst")))


@pytest.mark.parametrize("declared", [True, False])
def test_an_attempt_brings_only_so_many_bundles(tmp_path, declared):
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
        receipt = receiver.client().complete(grant.job_id, claim_id=grant.claim_id, artifact_id=sha(bodies[1]))
        assert receipt.status == "completed"


def test_who_completed_a_job_brings_no_further_bundle(tmp_path):
    with running(tmp_path) as receiver:
        grant = claimed(receiver)
        assert answered(receiver, grant, b"good" * 99, X_Content_SHA256=sha(b"good" * 99))[0] == 200
        receiver.client().complete(grant.job_id, claim_id=grant.claim_id, artifact_id=sha(b"good" * 99))
        for n in range(3):
            assert answered(receiver, grant, b"%d" % n * 99) == (409, "result_conflict")
        assert bundles(receiver) == 1


def test_bundles_at_once_are_counted_too(tmp_path, monkeypatch):
    """While one is made durable, another of the same claim comes to its end and is told to come again."""
    with running(tmp_path) as receiver:
        grant = claimed(receiver)
        publishing, go = threading.Event(), threading.Event()
        publish = receiver.store.publish

        def slowly(*args, **how):
            publishing.set()
            assert go.wait(20)
            return publish(*args, **how)

        monkeypatch.setattr(receiver.store, "publish", slowly)
        with in_background(lambda: answered(receiver, grant, b"one")) as first:
            assert publishing.wait(20)
            assert answered(receiver, grant, b"two", X_Content_SHA256=sha(b"two")) == (429, "slow_down")
            go.set()
        assert first == [(200, "")]
        assert receiver.store.offset(grant.claim_id, sha(b"two")) == 3, "nothing is sent twice"
        tail = {"X_Content_SHA256": sha(b"two"), "Upload_Offset": 3}
        assert answered(receiver, grant, b"", **tail) == (200, "")


def test_a_claim_leaves_only_so_many_unfinished_uploads():
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


@dataclass
class Sender:
    """An upload of a simulated host; it tells nobody when it breaks off."""

    host: str
    claim: str
    body: bytes
    part: PartFile | None = None
    done: bool = False

    def go_on(self, store, size):
        """Bring so many bytes more; ``False`` when there is no room now."""
        digest = sha(self.body)
        try:
            if self.part is None:
                at = store.offset(self.claim, digest)
                coming = len(self.body) - at
                self.part = store.open_part(self.claim, digest, offset=at, host=self.host, coming=coming)
            self.part.write(self.body[self.part.offset : self.part.offset + size])
        except StoreFull:
            self.break_off()
            return False
        if self.part.offset == len(self.body):
            self.part.seal(sha256=digest, size=len(self.body))
            bundle = store.publish(self.part, digest, model="m", mode="m")
            store._fs.unlink(store.root / bundle.path)  # somebody moves it elsewhere
            self.done = True
        return True

    def break_off(self):
        if self.part is not None:
            self.part.close()
        self.part = None


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_host_takes_more_than_its_share_and_every_bundle_that_fits_arrives(data):
    sizes = data.draw(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 600)), min_size=1, max_size=8))
    senders = [Sender(host, f"{n:032x}", bytes([n]) * size) for n, (host, size) in enumerate(sizes)]
    fs = MemoryFs(capacity=10**6)
    store = ArtifactStore(Path("/models"), fs, reserve_bytes=0)
    room = max(size for _, size in sizes) + data.draw(st.integers(0, 400))
    fs.capacity = room + (10**6 - fs.free_bytes(Path("/models")))  # just enough for each of them

    def take_turn(sender, size):
        fs.now += 1.0
        if not sender.go_on(store, size):
            return False
        own = sum(store.offset(each.claim, sha(each.body)) for each in senders if each.host == sender.host)
        beyond = store.incoming._beyond
        part = f"{sender.claim}-{sha(sender.body)}.part"
        assert sender.done or beyond == part or 4 * own <= fs.free_bytes(Path("/models")) + own
        return True

    for _ in range(data.draw(st.integers(0, 40))):
        left = [each for each in senders if not each.done]
        if not left:
            break
        sender = data.draw(st.sampled_from(left))
        if data.draw(st.booleans()):
            take_turn(sender, data.draw(st.integers(1, 300)))
        else:
            sender.break_off()
    for _ in range(100 * len(senders)):  # from here on nobody breaks off
        for sender in senders:
            if not sender.done:
                take_turn(sender, 50)
    assert all(each.done for each in senders)


def test_the_folder_of_uploads_is_not_listed_for_each_block():
    listed = []

    class Listed(MemoryFs):
        def names(self, path):
            listed.append(path)
            return super().names(path)

    store = ArtifactStore(Path("/models"), Listed(capacity=10**6), reserve_bytes=0)
    with closing(store.open_part("a" * 32, None, host="ada")) as idle:
        idle.write(b"x" * 1000)
    part = store.open_part("b" * 32, None, host="ada")
    listed.clear()
    for _ in range(50):
        part.write(b"x" * 100)
    assert len(listed) <= 1
    assert store.incoming._unfinished("ada") == 6000
    part.close()
    assert store.incoming._unfinished("ada") == 6000
    assert store.incoming.forget(["a" * 32]) == 1000
    assert store.incoming._unfinished("ada") == 5000


def test_another_large_upload_waits_and_is_told_why():
    fs = MemoryFs(capacity=1000)
    store = ArtifactStore(Path("/models"), fs, reserve_bytes=0)
    free = fs.free_bytes(Path("/models"))
    large, small = b"l" * (free // 2), b"s" * (free // 10)
    first = store.open_part("a" * 32, sha(large), host="ada", coming=len(large))
    with pytest.raises(ShareFull, match="of host bob may take a quarter of what is free"):
        store.open_part("b" * 32, sha(large), host="bob", coming=len(large))
    store.open_part("c" * 32, sha(small), host="bob", coming=len(small)).close()
    first.close()
    store.open_part("b" * 32, sha(large), host="bob", coming=len(large)).close()


def test_halves_of_uploads_keep_no_other_out():
    fs = MemoryFs(capacity=1000)
    store = ArtifactStore(Path("/models"), fs, reserve_bytes=0)
    room = fs.free_bytes(Path("/models"))
    body = b"x" * (room * 6 // 10)
    half = store.open_part("a" * 32, sha(body), host="ada", coming=len(body))
    half.write(body[: room // 2])
    half.close()
    with pytest.raises(StoreFull, match="no room"):
        store.open_part("b" * 32, sha(body), host="bob", coming=room + 1)
    assert store.offset("a" * 32, sha(body)) == room // 2, "what would not be enough stays"
    store.open_part("b" * 32, sha(body), host="bob", coming=len(body)).close()
    assert store.offset("a" * 32, sha(body)) == 0


def test_who_is_refused_in_the_place_of_another_leaves_nobody_the_turn():
    fs = MemoryFs(capacity=1000)
    store = ArtifactStore(Path("/models"), fs, reserve_bytes=0)
    large = b"l" * (fs.free_bytes(Path("/models")) // 2)
    first = store.open_part("a" * 32, sha(large), host="ada", coming=len(large))
    with pytest.raises(StoreFull, match="no room"):
        store.open_part("a" * 32, sha(large), host="ada", coming=1001)
    first.close()
    store.open_part("b" * 32, sha(large), host="bob", coming=len(large)).close()
    assert store.incoming.forget({"a" * 32, "b" * 32}) == 0
    assert store.incoming.claims() == set(), "and it can be removed"


def test_what_a_host_began_before_a_restart_counts_as_its_own():
    fs = MemoryFs(capacity=1000)
    store = ArtifactStore(Path("/models"), fs, reserve_bytes=0)
    body = b"x" * (fs.free_bytes(Path("/models")) // 5)
    part = store.open_part("a" * 32, sha(body), host="ada", coming=len(body))
    part.write(body)
    part.close()
    store = ArtifactStore(Path("/models"), fs, reserve_bytes=0)
    assert store.incoming.unclaimed() == {"a" * 32}
    store.incoming.learn({"a" * 32: "ada"})
    assert store.incoming.unclaimed() == set()
    large = store.open_part("b" * 32, sha(b"b"), host="bob", coming=fs.free_bytes(Path("/models")))
    with pytest.raises(ShareFull):
        store.open_part("c" * 32, sha(body), host="ada", coming=len(body) // 2)
    large.close()


# -- reading whole bundles --------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["confirm", "open_part", "verify"])
def test_what_is_read_on_demand_holds_nobody_up(tmp_path, monkeypatch, what):
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

        def slowly(*args, **how):
            reading.set()
            assert go.wait(20)
            return real(*args, **how)

        monkeypatch.setattr(receiver.store, what, slowly)

        def ask():
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


def test_one_host_has_only_so_many_connections(tmp_path, monkeypatch):
    monkeypatch.setattr(GuardedProtocol, "each_max", 3)
    with secure(tmp_path) as receiver, ExitStack() as open_ones:
        pem, _ = receiver.admitted("pi")
        renewed, _ = receiver.admitted("pi")

        def connected(pem):
            wire = open_ones.enter_context(Wire(receiver))
            wire.socket = receiver.context(pem).wrap_socket(wire.socket, server_hostname="localhost")
            return wire

        def answers(wire):
            return wire.request("GET", "/v1/health", Host="localhost").answer()[0] in (200, 403)

        held = [connected(pem), connected(renewed), connected(pem)]
        assert all(map(answers, held))
        assert connected(renewed).problem() == (429, "slow_down")
        assert all(map(answers, [connected(None) for _ in range(3)]))
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


def test_a_host_gets_only_so_many_certificates_a_day(tmp_path):
    with secure(tmp_path) as receiver:
        pem, _ = receiver.admitted("pi")
        host = receiver.showing(pem)

        def renewed():
            return "certificate" in host.call("renew", csr=new_request("pi")[1])

        # An answer that was lost is asked for again, with the certificate that is still there.
        assert all(renewed() for _ in range(A_DAY_MAX - 1))
        with pytest.raises(Unavailable, match="within a day") as caught:
            renewed()
        assert caught.value.problem_type == "slow_down"
        assert len(receiver.hub.authenticator.registry.certificates()) == A_DAY_MAX
        desktop = receiver.showing(receiver.admitted("desktop")[0])
        assert desktop.call("renew", csr=new_request("desktop")[1])
        receiver.clock.advance(DAY_S)
        assert renewed()


def test_renewals_at_once_are_counted_too():
    """Each was asked for before the others were written."""
    database, clock = SqliteDatabase(":memory:"), FakeClock()
    registry = Registry(database, clock)

    def certified(n):
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

"""Behaviours that use a host's resources as an intruder's programs would, but do no harm.

These behaviours encrypt files made for the purpose, send data to the recorder's own server on loopback, and probe ports
of this host. There is no malware here: nothing spreads, hides, persists, or reads files outside its scratch folder.
"""

import hashlib
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress

from training.watch.recording.behaviours import Context, behaviour, forget
from training.watch.recording.loopback import LOOPBACK, ask_name, knock, send


@behaviour("grind hashes for a rare prefix and report shares to a pool on loopback", malicious=True)
def hash_grind(ctx: Context) -> Iterator[None]:
    header, nonce = ctx.rng.randbytes(76), 0
    # In a third of the cases a second grinder, as miners start one a core.
    second = ctx.rng.random() < 0.33
    child = subprocess.Popen([sys.executable, "-c", _GRIND, str(ctx.intensity)]) if second else None
    try:
        while True:
            for _ in range(4000):
                digest = _double_sha256(header + nonce.to_bytes(4, "little"))
                nonce = (nonce + 1) & 0xFFFFFFFF
                if digest[:2] == b"\0\0":
                    with suppress(OSError), socket.create_connection((LOOPBACK, ctx.far.sink), timeout=1) as pool:
                        pool.sendall(digest + header)
            yield
    finally:
        if child is not None:
            child.kill()
            child.wait()


def _double_sha256(data: bytes) -> bytes:
    return hashlib.sha256(hashlib.sha256(data).digest()).digest()


_GRIND = """
import hashlib, os, sys, time
duty, data, parent = max(0.05, float(sys.argv[1])), b"x" * 76, os.getppid()
while os.getppid() == parent:
    begun = time.monotonic()
    for n in range(4000):
        hashlib.sha256(hashlib.sha256(data + n.to_bytes(4, "little")).digest()).digest()
    time.sleep(min(1.0, (time.monotonic() - begun) * (1 - duty) / duty))
"""


@behaviour("encrypt the scratch files one after the other and leave a note", malicious=True)
def bulk_encrypt(ctx: Context) -> Iterator[None]:
    key = ctx.rng.randbytes(32)
    partial = ctx.rng.random() < 0.4  # only the head of each file, as the hasty ones do
    while True:
        for number, path in enumerate(ctx.rng.sample(files := ctx.files(), k=len(files))):
            data = path.read_bytes()
            locked = path.with_suffix(".locked" if path.suffix != ".locked" else ".dat")
            head = data[: 64 * 1024] if partial else data
            with locked.open("wb") as file:
                for start in range(0, len(head), 64 * 1024):
                    file.write(_cipher(head[start : start + 64 * 1024], key, number, start))
                    yield
                file.write(data[len(head) :])
            if ctx.rng.random() < 0.4:
                forget(locked)
            path.unlink()
            (path.parent / "NOTE.txt").write_text("Only a recording: nothing of yours was touched.\n")
            yield


def _cipher(data: bytes, key: bytes, number: int, start: int) -> bytes:
    """Encrypt ``data`` with a stream cipher made from SHAKE-256, which causes realistic work and output.

    ``number`` is the file's number, and ``start`` the position of the data in the file.
    """
    stream = hashlib.shake_256(key + number.to_bytes(4, "big") + start.to_bytes(8, "big")).digest(len(data))
    return (int.from_bytes(data, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(data), "big")


@behaviour("read files in bulk and send them out (to a sink on loopback)", malicious=True, paced=False)
def bulk_send(ctx: Context) -> Iterator[None]:
    squeeze = ctx.rng.random() < 0.5
    block = int(2 ** ctx.rng.uniform(13, 17))
    bytes_per_s = 2 ** ctx.between(17, 23)  # an uplink: some hundred kB to some MB a second
    while True:
        for path in ctx.rng.sample(files := ctx.files(), k=len(files)):
            data = path.read_bytes()
            yield from send(zlib.compress(data, 1) if squeeze else data, ctx.far.sink, block, bytes_per_s=bytes_per_s)


@behaviour("sweep this host's own ports for open ones", malicious=True, paced=False)
def connect_sweep(ctx: Context) -> Iterator[None]:
    rate = 2 ** ctx.between(3, 8.5)  # knocks a second; the slow ones hide among ordinary connections
    batch = max(1, int(rate / 20))
    while True:
        for _ in range(batch):
            knock(ctx.rng.randint(1, 60_000))
        time.sleep(batch / rate * ctx.rng.uniform(0.7, 1.3))
        yield


@behaviour("call home (on loopback) at intervals, take an order, carry it out", malicious=True, paced=False)
def beacon(ctx: Context) -> Iterator[None]:
    period = 1.0 / ctx.between(0.6, 6.0)
    jitter, by_name = ctx.rng.uniform(0.05, 0.5), ctx.rng.random() < 0.4
    while True:
        if by_name:
            # The message travels in name look-ups, a few dozen bytes in each.
            for _ in range(ctx.rng.randint(2, 8)):
                ask_name(ctx.far.names)
        else:
            with suppress(OSError), socket.create_connection((LOOPBACK, ctx.far.sink), timeout=1) as home:
                home.sendall(_cipher(ctx.rng.randbytes(ctx.rng.randint(64, 512)), b"k", 0, 0))
                home.shutdown(socket.SHUT_WR)
                home.recv(16)
        if ctx.rng.random() < 0.25:
            # The order: look around and hash what is there.
            for path in ctx.rng.sample(ctx.files(), k=3):
                hashlib.sha256(path.read_bytes()).hexdigest()
        time.sleep(period * ctx.rng.uniform(1 - jitter, 1 + jitter))
        yield

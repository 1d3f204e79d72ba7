"""The behaviours that recordings are made of: real work, small and bounded, from the standard library alone.

Each behaviour is a generator that does one short step between two yields; a pacer sleeps between the steps, so that
the same behaviour can run hot or throttled. ``intensity`` runs from 0 (barely there) to 1 (as fast as it can).
The malicious-like ones only resemble what they are named after: they encrypt files made for the purpose, send to
their own sink on loopback, and knock at ports of this host. Nothing here looks outside its scratch folder.

    python -m training.data.workloads hash_grind --scratch DIR --seed 1 --intensity 0.5 --duration-s 5
"""

from __future__ import annotations

import argparse
import bz2
import gzip
import hashlib
import lzma
import os
import random
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import tarfile
import threading
import time
import urllib.error
import urllib.request
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from training.clock import Clock, SystemClock

LOOPBACK = "127.0.0.1"
MIB = 1 << 20
WORDS = tuple(
    [
        "the",
        "of",
        "session",
        "error",
        "user",
        "timeout",
        "disk",
        "queue",
        "retry",
        "open",
        "closed",
        "request",
        "cache",
        "index",
        "worker",
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a behaviour works with: its own scratch folder (already filled), its randomness, its intensity."""

    scratch: Path
    rng: random.Random
    intensity: float

    def files(self) -> list[Path]:
        return sorted(p for p in (self.scratch / "files").rglob("*") if p.is_file())

    def between(self, low: float, high: float) -> float:
        """A value that grows with the intensity, give or take a fifth."""
        return (low + (high - low) * self.intensity) * self.rng.uniform(0.8, 1.2)


Steps = Callable[[Context], Iterator[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """``paced`` behaviours are slowed by the pacer; the others keep a rhythm of their own."""

    name: str
    malicious: bool
    summary: str
    steps: Steps
    paced: bool = True


BEHAVIOURS: dict[str, Behaviour] = {}


def behaviour(
    summary: str, *, malicious: bool = False, paced: bool = True
) -> Callable[[Steps], Steps]:
    """Enter a generator function into the list of behaviours under its own name."""

    def enter(steps: Steps) -> Steps:
        name = steps.__name__
        BEHAVIOURS[name] = Behaviour(
            name=name, malicious=malicious, summary=summary, steps=steps, paced=paced
        )
        return steps

    return enter


def fill_scratch(scratch: Path, rng: random.Random, total_bytes: int) -> None:
    """Make a tree of files as people have them: texts, tables and incompressible blobs of very unlike sizes."""
    left, number = total_bytes, 0
    while left > 0:
        size = min(left, int(2 ** rng.uniform(11, 20)))
        folder = scratch / "files" / f"d{rng.randrange(8)}"
        folder.mkdir(parents=True, exist_ok=True)
        if rng.random() < 0.3:
            data = rng.randbytes(size)
        else:
            line = " ".join(rng.choices(WORDS, k=200)) + f" {rng.random()}\n"
            data = (line.encode() * (size // len(line) + 1))[:size]
        (folder / f"f{number:04}.dat").write_bytes(data)
        left, number = left - size, number + 1
    for cold in (scratch / "files").rglob("*.dat"):
        _forget(cold)


def _forget(path: Path) -> None:
    """Ask the kernel to drop a file from its cache, so that reading it again is a real read."""
    if hasattr(os, "posix_fadvise"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# ---------------------------------------------------------------------------------------------- benign


@behaviour("byte-compile Python sources with short-lived compiler processes")
def compile_code(ctx: Context) -> Iterator[None]:
    sources = [
        p for p in Path(os.__file__).parent.glob("*.py") if 4_000 < p.stat().st_size < 80_000
    ]
    build = ctx.scratch / "build"
    build.mkdir(exist_ok=True)
    while True:
        for source in ctx.rng.sample(sources, k=min(ctx.rng.randint(1, 4), len(sources))):
            shutil.copyfile(source, build / source.name)
        subprocess.run(
            [sys.executable, "-I", "-S", "-m", "compileall", "-qf", str(build)], check=False
        )
        yield
        for product in build.iterdir():
            shutil.rmtree(product) if product.is_dir() else product.unlink()
        yield


@behaviour("compress files with zlib, bz2 and lzma")
def compress(ctx: Context) -> Iterator[None]:
    squeeze: list[Callable[[bytes], bytes]] = [
        zlib.compress,
        bz2.compress,
        lambda d: lzma.compress(d, preset=1),
    ]
    while True:
        for path in ctx.rng.sample(files := ctx.files(), k=len(files)):
            method = ctx.rng.choice(squeeze)
            data = path.read_bytes()
            parts = []
            for start in range(0, len(data), 128 * 1024):
                parts.append(method(data[start : start + 128 * 1024]))
                yield
            (ctx.scratch / f"{path.stem}.z").write_bytes(b"".join(parts))


@behaviour("SQLite: insert, update, look up, and commit to disk")
def database(ctx: Context) -> Iterator[None]:
    db = sqlite3.connect(ctx.scratch / "work.db", isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute(
        "CREATE TABLE IF NOT EXISTS item (id INTEGER PRIMARY KEY, word TEXT, n REAL, body TEXT)"
    )
    db.execute("CREATE INDEX IF NOT EXISTS item_word ON item (word)")
    rows = max(1, int(ctx.between(5, 120)))
    while True:
        db.execute("BEGIN IMMEDIATE")
        words = ctx.rng.choices(WORDS, k=rows)
        db.executemany(
            "INSERT INTO item (word, n, body) VALUES (?, ?, ?)",
            [(w, ctx.rng.random(), w * ctx.rng.randint(5, 60)) for w in words],
        )
        if ctx.rng.random() < 0.3:
            db.execute("UPDATE item SET n = n + 1 WHERE id % 97 = ?", (ctx.rng.randrange(97),))
        db.execute("COMMIT")
        yield
        for word in ctx.rng.choices(WORDS, k=ctx.rng.randint(1, 6)):
            db.execute(
                "SELECT count(*), avg(n), max(length(body)) FROM item WHERE word = ?", (word,)
            ).fetchone()
        if ctx.rng.random() < 0.02:
            db.execute("DELETE FROM item WHERE id % 3 = 0")
        yield


class _Page(BaseHTTPRequestHandler):
    """Answers with as many bytes as the path asks for, after a little templating work."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        size = int(self.path.strip("/") or "1000")
        words = " ".join(WORDS)
        body = (words * (size // len(words) + 1))[:size].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", hashlib.md5(body, usedforsecurity=False).hexdigest())
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Stay silent: the recorder owns standard error."""


def _serve() -> int:
    """Start a web server of our own on loopback, in a thread; returns its port."""
    server = ThreadingHTTPServer((LOOPBACK, 0), _Page)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return int(server.server_address[1])


def _fetch(port: int, size: int) -> None:
    with suppress(OSError, urllib.error.URLError):
        urllib.request.urlopen(f"http://{LOOPBACK}:{port}/{size}", timeout=5).read()


@behaviour("a web server on loopback and clients that load pages from it", paced=False)
def web(ctx: Context) -> Iterator[None]:
    port = _serve()
    visits_per_s = ctx.between(2, 60)
    while True:
        for _ in range(ctx.rng.randint(1, 6)):
            _fetch(port, int(2 ** ctx.rng.uniform(8, 18)))
        time.sleep(ctx.rng.expovariate(visits_per_s / 3.5))
        yield


@behaviour("copy trees of files, sync them, delete the older copies")
def file_copy(ctx: Context) -> Iterator[None]:
    generation = 0
    while True:
        target = ctx.scratch / f"copy{generation % 3}"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        for number, path in enumerate(ctx.files()):
            shutil.copyfile(path, target / f"{number}.dat")
            if ctx.rng.random() < 0.4:
                _forget(target / f"{number}.dat")
            yield
        generation += 1


@behaviour("write logs, parse them with regular expressions, rotate them with gzip")
def log_processing(ctx: Context) -> Iterator[None]:
    pattern = re.compile(r"level=(\w+) user=(\d+) took=(\d+)ms (.*)")
    log = ctx.scratch / "app.log"
    while True:
        with log.open("a") as file:
            for _ in range(ctx.rng.randint(100, 600)):
                words = " ".join(ctx.rng.choices(WORDS, k=8))
                file.write(
                    f"level={ctx.rng.choice(WORDS)} user={ctx.rng.randrange(999)} took=12ms {words}\n"
                )
        yield
        counts: Counter[tuple[str, str]] = Counter()
        with log.open() as file:
            for number, line in enumerate(file):
                if match := pattern.match(line):
                    counts[match[1], match[2]] += 1
                if number % 2000 == 1999:
                    yield
        if log.stat().st_size > 2 * MIB:
            (ctx.scratch / "app.log.gz").write_bytes(gzip.compress(log.read_bytes(), 6))
            log.unlink()
        yield


@behaviour(
    "back files up: read, hash, pack into an archive, send the archive to a store on loopback"
)
def backup(ctx: Context) -> Iterator[None]:
    send = ctx.rng.random() < 0.5
    port = _sink() if send else 0
    while True:
        archive = ctx.scratch / "backup.tar"
        with tarfile.open(archive, "w") as tar:
            for path in ctx.files():
                hashlib.sha256(path.read_bytes()).hexdigest()
                tar.add(path, arcname=path.name)
                yield
        _forget(archive)
        yield
        if send:
            yield from _send(
                archive.read_bytes(), port, 256 * 1024, bytes_per_s=2 ** ctx.rng.uniform(20, 24)
            )


@behaviour("number crunching: matrix products, sorting, prime sieves")
def numeric(ctx: Context) -> Iterator[None]:
    size = 48
    while True:
        a = [[ctx.rng.random() for _ in range(size)] for _ in range(size)]
        columns = list(zip(*a, strict=True))
        [[sum(x * y for x, y in zip(row, column, strict=True)) for column in columns] for row in a]
        yield
        sorted(ctx.rng.random() for _ in range(20_000))
        yield
        sieve = bytearray(b"\1") * 200_000
        for n in range(2, 447):
            if sieve[n]:
                sieve[n * n :: n] = bytes(len(range(n * n, 200_000, n)))
        yield


@behaviour("a monitor that asks services on loopback, up and down ones, how they are", paced=False)
def monitor(ctx: Context) -> Iterator[None]:
    names, up = _name_service(), [_serve() for _ in range(3)]
    down = [_free_port() for _ in range(ctx.rng.randint(1, 6))]
    period = 1.0 / ctx.between(0.5, 8.0)
    while True:
        for port in up:
            _ask_name(names)
            _fetch(port, ctx.rng.randint(40, 400))
        for port in down:
            _knock(port)
        time.sleep(period * ctx.rng.uniform(0.95, 1.05))
        yield


# ------------------------------------------------------------------------------------- malicious-like


@behaviour("grind hashes for a rare prefix and report shares to a pool on loopback", malicious=True)
def hash_grind(ctx: Context) -> Iterator[None]:
    port = _sink()
    header, nonce, found = ctx.rng.randbytes(76), 0, 0
    workers = ctx.rng.choice((1, 1, 2))
    for _ in range(workers - 1):
        # A second grinder of its own, as miners start one a core; it ends with this process group.
        subprocess.Popen([sys.executable, "-c", _GRIND, str(ctx.intensity)])
    while True:
        for _ in range(4000):
            digest = hashlib.sha256(
                hashlib.sha256(header + nonce.to_bytes(4, "little")).digest()
            ).digest()
            nonce = (nonce + 1) & 0xFFFFFFFF
            if digest[:2] == b"\0\0":
                found += 1
                with (
                    suppress(OSError),
                    socket.create_connection((LOOPBACK, port), timeout=1) as pool,
                ):
                    pool.sendall(digest + header)
        yield


_GRIND = """
import hashlib, sys, time
duty, data, end = max(0.05, float(sys.argv[1])), b"x" * 76, 1 << 62
while True:
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
                _forget(locked)
            path.unlink()
            (path.parent / "NOTE.txt").write_text(
                "Only a recording: nothing of yours was touched.\n"
            )
            yield


def _cipher(data: bytes, key: bytes, number: int, start: int) -> bytes:
    """A stream cipher from SHAKE-256: enough to make the work and the bytes look right."""
    stream = hashlib.shake_256(key + number.to_bytes(4, "big") + start.to_bytes(8, "big")).digest(
        len(data)
    )
    return (int.from_bytes(data, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(data), "big")


@behaviour(
    "read files in bulk and send them out (to a sink on loopback)", malicious=True, paced=False
)
def bulk_send(ctx: Context) -> Iterator[None]:
    port = _sink()
    squeeze = ctx.rng.random() < 0.5
    chunk = int(2 ** ctx.rng.uniform(13, 17))
    bytes_per_s = 2 ** ctx.between(17, 23)  # an uplink: some hundred kB to some MB a second
    while True:
        for path in ctx.rng.sample(files := ctx.files(), k=len(files)):
            data = path.read_bytes()
            yield from _send(
                zlib.compress(data, 1) if squeeze else data, port, chunk, bytes_per_s=bytes_per_s
            )


@behaviour("sweep this host's own ports for open ones", malicious=True, paced=False)
def connect_sweep(ctx: Context) -> Iterator[None]:
    rate = 2 ** ctx.between(
        3, 8.5
    )  # knocks a second; the slow ones hide among ordinary connections
    batch = max(1, int(rate / 20))
    while True:
        for _ in range(batch):
            _knock(ctx.rng.randint(1, 60_000))
        time.sleep(batch / rate * ctx.rng.uniform(0.7, 1.3))
        yield


@behaviour(
    "call home (on loopback) at intervals, take an order, carry it out", malicious=True, paced=False
)
def beacon(ctx: Context) -> Iterator[None]:
    port, names = _sink(), _name_service()
    period = 1.0 / ctx.between(0.6, 6.0)
    jitter, by_name = ctx.rng.uniform(0.05, 0.5), ctx.rng.random() < 0.4
    while True:
        if by_name:
            # The message travels in name look-ups, a few dozen bytes in each.
            for _ in range(ctx.rng.randint(2, 8)):
                _ask_name(names)
        else:
            with suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1) as home:
                home.sendall(_cipher(ctx.rng.randbytes(ctx.rng.randint(64, 512)), b"k", 0, 0))
                home.shutdown(socket.SHUT_WR)
                home.recv(16)
        if ctx.rng.random() < 0.25:
            # The order: look around and hash what is there.
            for path in ctx.rng.sample(ctx.files(), k=3):
                hashlib.sha256(path.read_bytes()).hexdigest()
        time.sleep(period * ctx.rng.uniform(1 - jitter, 1 + jitter))
        yield


# --------------------------------------------------------------------------------------- small tools


def _sink() -> int:
    """A listener on loopback that reads whatever comes and answers with two bytes; returns its port."""
    listener = socket.create_server((LOOPBACK, 0))

    def drain() -> None:
        while True:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                while connection.recv(64 * 1024):
                    pass
                connection.sendall(b"ok")

    threading.Thread(target=drain, daemon=True).start()
    return int(listener.getsockname()[1])


def _send(data: bytes, port: int, chunk: int, *, bytes_per_s: float) -> Iterator[None]:
    with socket.create_connection((LOOPBACK, port), timeout=5) as out:
        for start in range(0, len(data), chunk):
            part = data[start : start + chunk]
            out.sendall(part)
            time.sleep(len(part) / bytes_per_s)
            yield


def _name_service() -> int:
    """Something that answers datagrams, as a resolver would; returns its port."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((LOOPBACK, 0))

    def answer() -> None:
        while True:
            question, sender = server.recvfrom(512)
            server.sendto(question + b"\0" * 16, sender)

    threading.Thread(target=answer, daemon=True).start()
    return int(server.getsockname()[1])


def _ask_name(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking, suppress(OSError):
        asking.settimeout(0.5)
        asking.sendto(b"q" * 48, (LOOPBACK, port))
        asking.recv(512)


def _knock(port: int) -> None:
    with socket.socket() as probe, suppress(OSError):
        probe.settimeout(0.2)
        probe.connect((LOOPBACK, port))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


class Pacer:
    """Sleeps between steps so that work takes about ``duty`` of the time, in bursts rather than evenly."""

    def __init__(self, duty: float, rng: random.Random, clock: Clock) -> None:
        self._duty, self._rng, self._clock = max(0.02, min(1.0, duty)), rng, clock
        self._begun = clock.monotonic()
        self._owed = 0.0

    def pause(self) -> float:
        """Seconds to sleep now. Debts are paid at random moments, a burst of work at a time."""
        busy = self._clock.monotonic() - self._begun
        self._owed += busy * (1 - self._duty) / self._duty
        if self._owed < 0.005 or self._rng.random() < 0.5:
            return 0.0
        pause, self._owed = min(self._owed, 1.0), max(0.0, self._owed - 1.0)
        return pause

    def resume(self) -> None:
        self._begun = self._clock.monotonic()


def run(name: str, ctx: Context, clock: Clock, duration_s: float) -> None:
    """Carry a behaviour out for a while. Real programs are killed rather than asked, and so is this one."""
    chosen = BEHAVIOURS[name]
    end = clock.monotonic() + duration_s
    pacer = Pacer(ctx.intensity, ctx.rng, clock)
    for _ in chosen.steps(ctx):
        if clock.monotonic() >= end:
            return
        if chosen.paced and (pause := pacer.pause()):
            time.sleep(pause)
        pacer.resume()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="training.data.workloads", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("behaviour", choices=sorted(BEHAVIOURS))
    parser.add_argument(
        "--scratch", type=Path, required=True, help="a folder to work in; it is filled when empty"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--intensity", type=float, default=0.5)
    parser.add_argument("--duration-s", type=float, default=3600.0)
    args = parser.parse_args(argv)
    rng = random.Random(args.seed)
    args.scratch.mkdir(parents=True, exist_ok=True)
    if not (args.scratch / "files").is_dir():
        fill_scratch(args.scratch, rng, 4 * MIB)
    context = Context(scratch=args.scratch, rng=rng, intensity=args.intensity)
    run(args.behaviour, context, SystemClock(), args.duration_s)
    return 0


if __name__ == "__main__":
    sys.exit(main())

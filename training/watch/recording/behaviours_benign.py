"""Benign behaviours: ordinary work of hosts, done with the standard library alone, in a scratch folder and over
loopback."""

import bz2
import gzip
import hashlib
import lzma
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from training.watch.recording.behaviours import Context, behaviour, forget
from training.watch.recording.loopback import WORDS, ask_name, fetch, free_port, knock, send, serve


@behaviour("byte-compile Python sources with short-lived compiler processes")
def compile_code(ctx: Context) -> Iterator[None]:
    sources = [p for p in Path(os.__file__).parent.glob("*.py") if 4_000 < p.stat().st_size < 80_000]
    build = ctx.scratch / "build"
    build.mkdir(exist_ok=True)
    while True:
        for source in ctx.rng.sample(sources, k=min(ctx.rng.randint(1, 4), len(sources))):
            shutil.copyfile(source, build / source.name)
        subprocess.run([sys.executable, "-I", "-S", "-m", "compileall", "-qf", str(build)], check=False)
        yield
        for product in build.iterdir():
            shutil.rmtree(product) if product.is_dir() else product.unlink()
        yield


@behaviour("compress files with zlib, bz2 and lzma")
def compress(ctx: Context) -> Iterator[None]:
    squeeze: list[Callable[[bytes], bytes]] = [zlib.compress, bz2.compress, lambda d: lzma.compress(d, preset=1)]
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
    with closing(sqlite3.connect(ctx.scratch / "work.db", isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("CREATE TABLE IF NOT EXISTS item (id INTEGER PRIMARY KEY, word TEXT, n REAL, body TEXT)")
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
                db.execute("SELECT count(*), avg(n), max(length(body)) FROM item WHERE word = ?", (word,)).fetchone()
            if ctx.rng.random() < 0.02:
                db.execute("DELETE FROM item WHERE id % 3 = 0")
            yield


@behaviour("a web server on loopback and clients that load pages from it", paced=False)
def web(ctx: Context) -> Iterator[None]:
    port = serve()
    visits_per_s = ctx.between(2, 60)
    while True:
        for _ in range(ctx.rng.randint(1, 6)):
            fetch(port, int(2 ** ctx.rng.uniform(8, 18)))
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
                forget(target / f"{number}.dat")
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
                file.write(f"level={ctx.rng.choice(WORDS)} user={ctx.rng.randrange(999)} took=12ms {words}\n")
        yield
        counts: Counter[tuple[str, str]] = Counter()
        with log.open() as file:
            for number, line in enumerate(file):
                if match := pattern.match(line):
                    counts[match[1], match[2]] += 1
                if number % 2000 == 1999:
                    yield
        if log.stat().st_size > 2 << 20:
            (ctx.scratch / "app.log.gz").write_bytes(gzip.compress(log.read_bytes(), 6))
            log.unlink()
        yield


@behaviour("back files up: read, hash, pack into an archive; half of the runs send it to a store on loopback")
def backup(ctx: Context) -> Iterator[None]:
    sends = ctx.rng.random() < 0.5
    while True:
        archive = ctx.scratch / "backup.tar"
        with tarfile.open(archive, "w") as tar:
            for path in ctx.files():
                hashlib.sha256(path.read_bytes()).hexdigest()
                tar.add(path, arcname=path.name)
                yield
        forget(archive)
        yield
        if sends:
            yield from send(archive.read_bytes(), ctx.far.sink, 256 * 1024, bytes_per_s=2 ** ctx.rng.uniform(20, 24))


@behaviour("archive files: compress each one, write a file as large as the original, delete the original")
def archive(ctx: Context) -> Iterator[None]:
    while True:
        for path in ctx.rng.sample(files := ctx.files(), k=len(files)):
            data = path.read_bytes()
            packed = path.with_suffix(".gz" if path.suffix != ".gz" else ".dat")
            with packed.open("wb") as file:
                squeeze = zlib.compressobj(ctx.rng.choice((1, 6)))
                for start in range(0, len(data), 64 * 1024):
                    squeeze.compress(data[start : start + 64 * 1024])
                    file.write(data[start : start + 64 * 1024])  # kept whole: there must be work left
                    yield
            if ctx.rng.random() < 0.4:
                forget(packed)
            path.unlink()
            yield


@behaviour("upload files to a store on loopback, as a cloud folder does", paced=False)
def cloud_sync(ctx: Context) -> Iterator[None]:
    block = int(2 ** ctx.rng.uniform(13, 17))
    bytes_per_s = 2 ** ctx.between(17, 23)
    while True:
        for path in ctx.rng.sample(files := ctx.files(), k=len(files)):
            data = path.read_bytes()
            hashlib.sha256(data).hexdigest()
            if ctx.rng.random() < 0.3:
                data = zlib.compress(data, 1)
            yield from send(data, ctx.far.sink, block, bytes_per_s=bytes_per_s)
            time.sleep(ctx.rng.expovariate(5))


@behaviour("number crunching: matrix products, sorting, prime sieves, password hashes")
def numeric(ctx: Context) -> Iterator[None]:
    kinds = (_matrix, _sort, _sieve, _passwords)
    chosen = ctx.rng.sample(kinds, k=ctx.rng.randint(1, 3))
    while True:
        ctx.rng.choice(chosen)(ctx)
        yield


def _matrix(ctx: Context) -> None:
    a = [[ctx.rng.random() for _ in range(48)] for _ in range(48)]
    columns = list(zip(*a, strict=True))
    [[sum(x * y for x, y in zip(row, column, strict=True)) for column in columns] for row in a]


def _sort(ctx: Context) -> None:
    sorted(ctx.rng.random() for _ in range(20_000))


def _sieve(_ctx: Context) -> None:
    size = 200_000
    sieve = bytearray(b"\1") * size
    for n in range(2, int(size**0.5)):
        if sieve[n]:
            sieve[n * n :: n] = bytes(len(range(n * n, size, n)))


def _passwords(ctx: Context) -> None:
    for _ in range(ctx.rng.randint(1, 6)):
        hashlib.pbkdf2_hmac("sha256", ctx.rng.randbytes(12), b"salt", 8_000)


@behaviour("a monitor that asks services on loopback, up and down ones, how they are", paced=False)
def monitor(ctx: Context) -> Iterator[None]:
    up = ctx.rng.sample(ctx.far.web, k=ctx.rng.randint(1, 3))
    # A plain health check, or one that looks whether any of many ports has come up.
    down = [free_port() for _ in range(ctx.rng.choice((0, 1, 4, 30)))]
    by_name = ctx.rng.random() < 0.6
    period = 1.0 / ctx.between(0.4, 6.0)
    while True:
        for port in up:
            if by_name:
                ask_name(ctx.far.names)
            fetch(port, ctx.rng.randint(40, 4000))
        for port in down:
            knock(port)
        time.sleep(period * ctx.rng.uniform(0.8, 1.2))
        yield

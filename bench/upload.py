"""The speed of an upload into the store, hashed and synced, and the delay of claims meanwhile.

    python bench/upload.py [--mib 1024] [--rounds 3] [--json]

Compared, in turn in the same run, with SHA-256 alone, with a plain copy that is synced, and with nginx's PUT (which
does not hash) followed by a sync, where nginx is installed.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import shutil
import socket
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from claim import WAIT_S, claim
from receivers import (
    CAPABILITY,
    MIB,
    Caller,
    Report,
    Served,
    arguments,
    fill,
    latencies_ms,
    p50,
    receiver,
    workplace,
)

from training.fleet.client.client import FleetClient

NGINX = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
events {{ worker_connections 64; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/p;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{
    listen 127.0.0.1:{port}; client_max_body_size 0; root {folder}/www;
    location / {{ dav_methods PUT; create_full_put_path on; }}
  }}
}}
"""


def timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def make_bundle(path: Path, mib: int) -> None:
    block = os.urandom(MIB)
    with path.open("wb") as file:
        for n in range(mib):
            file.write(n.to_bytes(8, "big") + block[8:])


def touch_up(path: Path) -> None:
    """Make it another bundle, so that the store does not know it yet."""
    with path.open("r+b") as file:
        file.write(os.urandom(16))


def upload(served: Served, bundle: Path) -> float:
    """Seconds from the first request of an upload to its answer; the digest is the worker's and is made before."""
    client = FleetClient(f"http://127.0.0.1:{served.port}", "bench-0", tries=1)
    grant = client.claim(CAPABILITY, wait_s=WAIT_S)
    assert grant is not None
    digest = sha256(bundle)
    seconds = timed(lambda: client.upload_artifact(grant.job_id, bundle, sha256=digest))
    client.close()
    shutil.rmtree(served.folder / "models" / "gbt_oracle")
    return seconds


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_in_memory(mib: int) -> None:
    block, digest = os.urandom(MIB), hashlib.sha256()
    for _ in range(mib):
        digest.update(block)


def copy(source: Path, target: Path) -> None:
    with source.open("rb") as read, target.open("wb") as written:
        shutil.copyfileobj(read, written, MIB)
        written.flush()
        os.fsync(written.fileno())
    target.unlink()


@contextlib.contextmanager
def nginx(folder: Path) -> Iterator[Callable[[Path], None] | None]:
    """Something that puts a file to nginx and syncs it there; None where there is no nginx."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        yield None
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "www").mkdir()
    (folder / "www").chmod(0o777)
    folder.chmod(0o755)
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, port=port))
    process = subprocess.Popen([program, "-c", str(folder / "nginx.conf")], stderr=subprocess.DEVNULL)

    def put(bundle: Path) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300, blocksize=MIB)
        with bundle.open("rb") as file:
            size = str(bundle.stat().st_size)
            connection.request("PUT", "/b", file, {"Content-Length": size})
            status = connection.getresponse().status
        connection.close()
        assert status in (201, 204), status
        stored = folder / "www" / "b"
        handle = os.open(stored, os.O_RDWR)
        os.fsync(handle)
        os.close(handle)
        stored.unlink()

    try:
        while process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
        yield put if process.poll() is None else None
    finally:
        process.terminate()
        process.wait()


def speeds(report: Report, folder: Path, served: Served, mib: int, rounds: int) -> None:
    bundle = folder / "bundle.tar.zst"
    make_bundle(bundle, mib)
    seconds: dict[str, list[float]] = {"ours": [], "sha256": [], "copy": [], "nginx": []}
    cpu = []
    with nginx(folder) as put:
        for _ in range(rounds):
            touch_up(bundle)
            before = served.cpu_s()
            seconds["ours"].append(upload(served, bundle))
            cpu.append((served.cpu_s() - before) * 1024 / mib)
            seconds["sha256"].append(timed(lambda: hash_in_memory(mib)))
            seconds["copy"].append(timed(lambda: copy(bundle, folder / "copy")))
            if put is not None:
                seconds["nginx"].append(timed(lambda: put(bundle)))
    rate = {name: mib * MIB / 1e6 / statistics.median(found) for name, found in seconds.items() if found}
    ours = rate["ours"]
    report.row(
        f"upload of {mib} MiB, hashed and synced",
        ours,
        "MB/s",
        spread=_spread(seconds["ours"], mib),
    )
    report.row("… the receiver's CPU for it", statistics.median(cpu), "s/GiB")
    report.row("… / SHA-256 alone", ours / rate["sha256"], "×", "bar: 0.5", alone=rate["sha256"])
    report.row("… / copy of a file, synced, not hashed", ours / rate["copy"], "×", "", copy=rate["copy"])
    if "nginx" in rate:
        report.row(
            "… / nginx PUT, synced, not hashed",
            ours / rate["nginx"],
            "×",
            "bar: 1.0",
            nginx=rate["nginx"],
        )
    else:
        report.note("  nginx is not installed: no comparison with it (Debian: nginx-light)")


def _spread(seconds: list[float], mib: int) -> str:
    found = sorted(mib * MIB / 1e6 / each for each in seconds)
    return f"{found[0]:.0f}–{found[-1]:.0f}"


def claims_meanwhile(report: Report, folder: Path, served: Served) -> None:
    bundle = folder / "bundle.tar.zst"
    idle = latencies_ms(served.port, claim, 200, client=1)
    touch_up(bundle)
    done = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            upload(served, bundle)
        except BaseException as error:
            failures.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=run)
    thread.start()
    busy: list[float] = []
    call = Caller(served.port)
    while not done.is_set():
        begun = time.perf_counter()
        claim(call, 2)
        busy.append((time.perf_counter() - begun) * 1e3)
    thread.join()
    call.close()
    assert not failures, failures
    report.row(
        "p50 of a claim during an upload",
        p50(busy),
        "ms",
        "bar: 3 × idle",
        idle=p50(idle),
        ratio=p50(busy) / p50(idle),
    )


def main() -> None:
    parser = arguments(__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    report = Report("upload", args.json)
    with workplace() as folder:
        fill(folder / "jobs.db", 50_000)
        with receiver(folder) as served:
            speeds(report, folder, served, args.mib, args.rounds)
            claims_meanwhile(report, folder, served)
    report.end()


if __name__ == "__main__":
    main()

"""Servers and clients on this host's loopback interface: the only network that behaviours use.

    python -m training.watch.recording.loopback        the far end, as a process of its own; prints its ports

The "far end" is a group of servers that play the other machines which a host contacts. The recorder runs the far end
outside the recorded container, because otherwise the servers' threads and memory would reveal a behaviour.
"""

import hashlib
import json
import socket
import socketserver
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from training.streams import replace_unprintable

LOOPBACK = "127.0.0.1"
# Of made-up logs, pages and tables.
WORDS = ("the", "of", "session", "error", "user", "timeout", "disk", "queue", "retry", "open")


class _Page(BaseHTTPRequestHandler):
    """Answers a request with as many bytes of text as the address's path names (1000 if it names none)."""

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
        """Log nothing, because standard error is the recorder's."""


class FarEnd(NamedTuple):
    """The ports of the far end's servers on loopback: ``sink`` discards what it gets, ``names`` answers datagrams, and
    ``web`` are web servers."""

    sink: int
    names: int
    web: tuple[int, ...]


def open_far_end() -> FarEnd:
    """Start the far end's servers in threads of this process; return their ports."""
    return FarEnd(sink=sink(), names=name_service(), web=tuple(serve() for _ in range(3)))


def serve() -> int:
    """Start a web server on loopback, in a thread; return its port."""
    return _started(ThreadingHTTPServer((LOOPBACK, 0), _Page))


def _started(server: ThreadingHTTPServer | socketserver.ThreadingTCPServer) -> int:
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return int(server.server_address[1])


def fetch(port: int, size: int) -> None:
    with suppress(OSError, urllib.error.URLError):
        urllib.request.urlopen(f"http://{LOOPBACK}:{port}/{size}", timeout=5).read()


class _Drain(socketserver.BaseRequestHandler):
    """Reads and discards all that a client sends, then answers with two bytes."""

    def handle(self) -> None:
        with suppress(OSError):
            while self.request.recv(64 * 1024):
                pass
            self.request.sendall(b"ok")


def sink() -> int:
    """Start a server on loopback that discards what any number of clients send; return its port."""
    return _started(socketserver.ThreadingTCPServer((LOOPBACK, 0), _Drain))


def send(data: bytes, port: int, block: int, *, bytes_per_s: float) -> Iterator[None]:
    """Send ``data`` to a port in blocks, at most ``bytes_per_s``, with a yield after each block; if the connection is
    lost, skip the rest without an error."""
    with suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=5) as out:
        for start in range(0, len(data), block):
            part = data[start : start + block]
            out.sendall(part)
            time.sleep(len(part) / bytes_per_s)
            yield
    yield  # a moment for the pacer, even when nothing could be sent


def name_service() -> int:
    """Start a server that answers each datagram with the same bytes and 16 more, about as a DNS resolver does; return
    its port."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((LOOPBACK, 0))

    def answer() -> None:
        while True:
            question, sender = server.recvfrom(512)
            server.sendto(question + b"\0" * 16, sender)

    threading.Thread(target=answer, daemon=True).start()
    return int(server.getsockname()[1])


def ask_name(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking, suppress(OSError):
        asking.settimeout(0.5)
        asking.sendto(b"q" * 48, (LOOPBACK, port))
        asking.recv(512)


def knock(port: int) -> None:
    with socket.socket() as probe, suppress(OSError):
        probe.settimeout(0.2)
        probe.connect((LOOPBACK, port))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def main() -> int:
    replace_unprintable()
    print(json.dumps(open_far_end()._asdict()), flush=True)
    sys.stdin.read()  # until the recorder that started this goes away
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The bell rings at each frame, and once a stream has ended: whoever waits then looks for itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from training.fleet.client import stream
from training.fleet.client.answers import Unreachable
from training.fleet.client.stream import Bell

PATIENCE_S = 30.0


class Streams:
    """Streams, one after the other, of which a test releases each line."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.lines: list[bytes | None] = []
        self._more = threading.Semaphore(0)
        self.opened = threading.Semaphore(0)

    def say(self, *lines: bytes | None) -> None:
        """Send lines; None cuts the connection."""
        for line in lines:
            self.lines.append(line)
            self._more.release()

    def listen(self, path: str, _timeout_s: float) -> Callable[[], Iterator[bytes]]:
        self.paths.append(path)
        return self._one

    def _one(self) -> Iterator[bytes]:
        self.opened.release()
        while True:
            self._more.acquire()
            line = self.lines.pop(0)
            if line is None:
                raise Unreachable("cut")
            yield line


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    monkeypatch.setattr(stream, "AGAIN_S", 0.0)
    return Streams()


def test_it_rings_for_frames_and_not_for_signs_of_life(streams: Any) -> None:
    bell = Bell(streams, "/jobs/a b?x=1")
    assert streams.paths == ["/v1/stream?of=%2Fjobs%2Fa%20b%3Fx%3D1"]
    streams.say(b":\n", b"\n", b"retry: 3500\n", b"id: 7\n", b"data: x\n")
    assert bell.rung(PATIENCE_S)
    assert bell.listening
    bell.close()
    streams.say(b":\n")


def test_a_stream_that_is_cut_rings_once_and_is_opened_again(streams: Any) -> None:
    bell = Bell(streams, "/")
    assert streams.opened.acquire(timeout=PATIENCE_S)
    streams.say(b":\n", None)
    assert streams.opened.acquire(timeout=PATIENCE_S)
    assert bell.rung(PATIENCE_S)
    assert not bell.listening, "nobody speaks yet"
    streams.say(b"id: 8\n")
    assert bell.rung(PATIENCE_S)
    assert bell.listening
    bell.close()
    streams.say(b":\n")


def test_without_such_a_transport_it_never_rings() -> None:
    class Deaf:
        def listen(self, *_: object) -> None:
            return None

    bell = Bell(Deaf(), "/")  # type: ignore[arg-type]
    assert not bell.listening
    assert not bell.rung()

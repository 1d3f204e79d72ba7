"""Following the receiver's event stream: a bell that rings when a page has changed.

The frames are for browsers and are not read; whoever hears the bell asks for what it needs. So nothing is lost with a
connection: the first frame of the next one rings, too.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from urllib.parse import quote

from training.fleet.client.answers import ClientError
from training.fleet.client.client import FleetClient

AGAIN_S = 3.5  # until a stream that ended is opened again; a receiver may let one wait, and answer once each time
SILENT_S = 60.0  # a living stream says something every 15 s


class Bell:
    """Rings when a page of the receiver changes. While there is no stream, ``listening`` is False."""

    def __init__(self, client: FleetClient, page: str) -> None:
        """``page`` is its address, as in a browser, without the receiver's own."""
        self.listening = False
        self._rung, self._closed = threading.Event(), threading.Event()
        lines = client.listen(f"/v1/stream?of={quote(page, safe='')}", SILENT_S)
        if lines is not None:
            threading.Thread(target=self._listen, args=(lines,), name="stream", daemon=True).start()

    def rung(self, timeout_s: float = 0.0) -> bool:
        """Wait for the bell; True, once, when it has rung."""
        rung = self._rung.wait(timeout_s) if timeout_s else self._rung.is_set()
        self._rung.clear()
        return rung

    def close(self) -> None:
        """Listen no more; the connection goes with the thread, or with the program."""
        self._closed.set()

    def _listen(self, lines: Callable[[], Iterator[bytes]]) -> None:
        while not self._closed.is_set():
            with suppress(ClientError, OSError, http.client.HTTPException, ValueError):
                for line in lines():
                    self.listening = True
                    if self._closed.is_set():
                        return
                    if line.startswith(b"id:"):
                        self._rung.set()
            self.listening = False
            self._rung.set()  # whoever waits looks for itself from now on
            self._closed.wait(AGAIN_S)

"""A server of one test, in a thread that ends with it."""

from __future__ import annotations

import threading
from contextlib import contextmanager


@contextmanager
def serving(server):
    """Let the server answer; its port."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

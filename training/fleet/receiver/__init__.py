"""The receiver: its program, its HTTP side, and who may call it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from training.fleet.receiver.hangups import note_hangups
from training.lazy import attribute, defer
from training.streams import replace_unprintable

# The libraries below bring 4 MiB that a server at rest never uses: a command line and multiprocessing, pickle, the
# parser of mail, the names of HTML's characters, packers, schemas; and what serves options that are not set here.
defer("uvicorn", Config="uvicorn.config")
defer("uvicorn.middleware.asgi2", "ASGI2Middleware")
defer("uvicorn.middleware.message_logger", "MessageLoggerMiddleware")
defer("uvicorn.middleware.proxy_headers", "ProxyHeadersMiddleware")
defer("uvicorn.middleware.wsgi", "WSGIMiddleware")
defer("configparser", "RawConfigParser")
defer("starlette.formparsers", "FormParser", "MultiPartException", "MultiPartParser")
defer("msgspec.inspect")
defer("logging.config")
defer("http.client")
defer("html")
defer("bz2")
defer("lzma")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the receiver. SIGHUP is looked after before the rest of the program is loaded. Returns its exit code."""
    replace_unprintable()
    note_hangups()
    from training.fleet.receiver import program

    return program.main(argv)


def __getattr__(name: str) -> Any:
    return attribute(__name__, "program", name)

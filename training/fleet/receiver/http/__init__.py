"""HTTP: decode, call, encode; bodies, connections, uploads."""

from __future__ import annotations

from training.lazy import defer

# Of the 2 MiB that these bring (a command line, multiprocessing, pickle), a server at rest uses nothing.
defer("uvicorn", Config="uvicorn.config")
defer("logging.config")

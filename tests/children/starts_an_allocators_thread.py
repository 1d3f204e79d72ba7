"""A module that starts a thread of an allocator's name when it is imported, as pyarrow's jemalloc does."""

import threading
from pathlib import Path

_named = threading.Event()


def _rest() -> None:
    Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("jemalloc_bg_thd")
    _named.set()
    threading.Event().wait()


threading.Thread(target=_rest, daemon=True).start()
_named.wait()

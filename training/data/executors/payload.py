"""Pack tasks as bytes for a worker, run them there, and unpack the results; a worker checks versions before it unpacks
tasks.

An engine transports only ``pickle.loads`` and bytes, and needs no code of this project for that. Unpacking the bytes
calls :func:`work` at the worker, with the expected versions as text and the tasks still packed. A worker with other
code refuses, instead of unpacking tasks that it cannot read. Results and errors come back as bytes, the same way on
every engine.
"""

import functools
import pickle
import platform
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from training.certain import certain
from training.checkout import code_digest
from training.data.executors.engine import EngineError
from training.installed import version

unpickle = pickle.loads

Fact = tuple[str, str, str | int | None]  # its kind, of what, and what it is here

UNLIKE = {  # what a worker is told whose fact is another, by kind
    "python": "runs Python {own}, and here it is {wanted}: start workers with the same Python",
    "code": "has another version of this project: bring it to the same commit, and restart the workers",
    "library": "has {name} {own}, and here it is {wanted}: install the versions of constraints.txt at both",
    "file": "does not see {name} as it is here: use folders that all machines share under the same path",
}


def expected(libraries: Iterable[str], files: Iterable[Path]) -> tuple[Fact, ...]:
    """Return the facts that workers must share with this process: the versions of Python, code and libraries, and the
    sizes of files.

    ``files`` are absolute paths; those that do not exist here are left out.
    """
    named = [("library", name) for name in sorted(libraries)]
    named += [("file", str(path)) for path in files if path.is_file()]
    return tuple((kind, name, _fact(kind, name)) for kind, name in (("python", ""), ("code", ""), *named))


def _fact(kind: str, name: str) -> str | int | None:
    match kind:
        case "python":
            return f"{sys.version_info.major}.{sys.version_info.minor}"
        case "code":
            return code_digest()
        case "library":
            return version(name)
        case _:
            path = Path(name)
            return path.stat().st_size if path.is_file() else None


def packed(expect: tuple[Fact, ...], function: Callable[[Any], Any], tasks: Sequence[Any]) -> bytes:
    """Return bytes that, when a worker unpickles them, apply ``function`` to the tasks, after a check of ``expect``."""
    certain(getattr(function, "__module__", None) != "__main__", "the program of a worker is another one")
    return pickle.dumps(_Call(expect, pickle.dumps((function, tasks))))


def unpacked(outcome: bytes) -> list[Any]:
    """Return the results of tasks from the bytes that :func:`work` returned; raise the error if a task failed."""
    good, found = pickle.loads(outcome)  # noqa: S301 - from workers that were given code to run
    if not good:
        raise found
    return list(found)


class _Call:
    """An object that calls `work` when it is unpickled."""

    def __init__(self, *given: Any) -> None:
        self._given = given

    def __reduce__(self) -> tuple[Callable[..., bytes], tuple[Any, ...]]:
        return work, self._given


def work(expect: tuple[Fact, ...], tasks: bytes) -> bytes:
    """Apply the packed function to the packed tasks, if this worker has the facts in ``expect``.

    Returns the results, or the error if the check or a task failed, as bytes.
    """
    try:
        _check(expect)
        function, given = pickle.loads(tasks)  # noqa: S301 - from the process that this worker serves
        return pickle.dumps((True, [function(task) for task in given]))
    except Exception as error:  # noqa: BLE001 - it is raised again where the tasks came from
        error.add_note("".join(traceback.format_exception(error)))
        try:
            outcome = pickle.dumps((False, error))
            pickle.loads(outcome)  # noqa: S301 - some errors are packed and cannot be unpacked
        except Exception:  # noqa: BLE001
            outcome = pickle.dumps((False, EngineError(f"a worker failed: {type(error).__name__}: {error}")))
        return outcome


@functools.lru_cache(8)
def _check(expect: tuple[Fact, ...]) -> None:
    """Raise EngineError if this worker's Python, code, libraries or files differ from the expected ones."""
    for kind, name, wanted in expect:
        own = _fact(kind, name)
        if own != wanted:
            words = UNLIKE[kind].format(name=name, own=own or "none", wanted=wanted)
            raise EngineError(f"the worker on {platform.node()} {words}")


def absent(error: BaseException) -> EngineError | None:
    """Return an EngineError if ``error`` shows that a worker does not have this project; None for other errors.

    Engines wrap the worker's error, some with the whole traceback, so the text is searched.
    """
    if not re.search(r"No module named 'training['.]", str(error)):
        return None
    return EngineError("a worker does not have this project: install it there (pip install -e .), at the same commit")

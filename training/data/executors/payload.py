"""Tasks on their way to a worker and back: plain bytes, which are checked there before they are unpacked.

An engine carries ``pickle.loads`` and bytes, and so needs nothing of ours. The bytes call :func:`work` at the worker
with the expected versions as text, and with the tasks still packed: a worker with other code refuses, instead of
unpacking bytes it cannot read. Results and errors come back as bytes too, the same way on every engine.
"""

from __future__ import annotations

import functools
import hashlib
import json
import pickle
import platform
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from training.data.executors.engine import EngineError

unpickle: Callable[[bytes], bytes] = pickle.loads
ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("data", "executors", "trainer")  # whose code works at a worker
SELF = "training"


def expected(libraries: Iterable[str], files: Iterable[Path]) -> str:
    """Say what workers must have in common with this process, as JSON: Python, code, libraries, files by size.

    ``files`` are absolute; those that are not here are left out.
    """
    sizes = {str(path): path.stat().st_size for path in files if path.is_file()}
    return json.dumps(
        {
            "python": _python(),
            "code": code_digest(),
            "libraries": {name: _version(name) for name in sorted(libraries)},
            "files": sizes,
        }
    )


def packed(expect: str, function: Callable[[Any], Any], tasks: Sequence[Any]) -> bytes:
    """Bytes that do the tasks when they are unpickled."""
    assert getattr(function, "__module__", None) != "__main__", "the program of a worker is another one"
    return pickle.dumps(_Call(expect, pickle.dumps((function, tasks))))


def unpacked(outcome: bytes) -> list[Any]:
    """The results of the tasks; raises the error that ended them."""
    good, found = pickle.loads(outcome)  # noqa: S301 - from workers that were given code to run
    if not good:
        raise found
    return list(found)


class _Call:
    """A call of `work` that is made where this is unpickled."""

    def __init__(self, *given: str | bytes) -> None:
        self._given = given

    def __reduce__(self) -> tuple[Callable[..., bytes], tuple[str | bytes, ...]]:
        return work, self._given


def work(expect: str, tasks: bytes) -> bytes:
    """Do tasks at a worker, after a look at whether it is one that may."""
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
def _check(expect: str) -> None:
    """Raise EngineError where this process differs from the expected one."""
    if expect and (why := _unlike(json.loads(expect))) is not None:
        raise EngineError(f"the worker on {platform.node()} {why}")


def _unlike(expect: Mapping[str, Any]) -> str | None:
    if expect["python"] != _python():
        return f"runs Python {_python()}, and here it is {expect['python']}: start workers with the same Python"
    if expect["code"] != code_digest():
        return "has another version of this project: bring it to the same commit, and restart the workers"
    for name, wanted in expect["libraries"].items():
        if _version(name) != wanted:
            own = _version(name) or "none"
            return f"has {name} {own}, and here it is {wanted}: install the versions of constraints.txt at both"
    for path, size in expect["files"].items():
        try:
            if Path(path).stat().st_size == size:
                continue
        except OSError:
            pass
        return f"does not see {path} as it is here: use folders that all machines share under the same path"
    return None


def absent(error: BaseException) -> EngineError | None:
    """The sentence for a worker that does not have this project; None for other errors."""
    if not isinstance(error, ModuleNotFoundError):
        return None
    missing = error.name or str(error).partition("'")[2]  # the name is lost where an engine wraps the error
    if missing.partition("'")[0].partition(".")[0] != SELF:
        return None
    return EngineError("a worker does not have this project: install it there (pip install -e .), at the same commit")


@functools.cache
def code_digest() -> str:
    """SHA-256 of the code that may work at a worker."""
    total = hashlib.sha256()
    rooms = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    for path in sorted([*ROOT.glob("*.py"), *rooms]):
        total.update(f"{path.relative_to(ROOT).as_posix()}\n".encode() + path.read_bytes())
    return total.hexdigest()


def _python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None

"""Parse the name of an engine, and open the engine: ``processes``, ``dask:tcp://HOST:PORT``, ``ray:auto`` or
``slurm:PARTITION``."""

import argparse
import functools
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Self

from training.checkout import to_install
from training.data.executors import payload
from training.data.executors.engine import Engine, EngineError
from training.data.executors.spread import spread
from training.hyper import whole

HERE = "processes"
FORMS = {
    HERE: HERE,
    "dask": "dask:tcp://HOST:PORT",  # or tls://
    "ray": "ray:auto",
    "slurm": "slurm:PARTITION",
}
SENT_BY = {"dask": "distributed", "ray": "ray", "slurm": "submitit"}  # packages
SCRATCH = ".scratch-"  # the beginning of a folder's name: what a killed program left, the next build removes

Mapped = Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Any]]


class Name(NamedTuple):
    """An engine's name: its kind and its address, which is "" for processes on this machine."""

    kind: str = HERE
    address: str = ""

    @property
    def far(self) -> bool:
        """True if workers may be on other machines, or in other Python environments of this machine."""
        return self.kind != HERE

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the name that a user wrote as ``text``. Raises argparse.ArgumentTypeError, with a sentence, for
        another form."""
        kind, colon, address = text.partition(":")
        if kind not in FORMS:
            raise argparse.ArgumentTypeError(f"{text!r} is no executor: there are {', '.join(FORMS.values())}")
        wanted = {HERE: "", "dask": r"[a-z]+://.+:\d+"}.get(kind, ".+")
        if not re.fullmatch(wanted, address) or (kind == HERE and colon):
            raise argparse.ArgumentTypeError(f"{text!r} is not of the form {FORMS[kind]}")
        return cls(kind, address)


PROCESSES = Name()


def add_executor(parser: argparse.ArgumentParser, *, processes: str) -> None:
    """Add the flags ``--executor`` and ``--jobs``; ``processes`` is the help text for the number of processes without
    ``--jobs``."""

    where = f"where the work is done: {', '.join(FORMS.values())} (default {HERE})"
    parser.add_argument("--executor", type=Name.parse, default=PROCESSES, metavar="ENGINE", help=where)
    default = f"{processes}; of a cluster as many as it can, of Slurm 4"
    at_once = whole("jobs", 1, 1, 1024, "").parse
    parser.add_argument(
        "--jobs", type=at_once, help=f"number of processes, or of tasks at once on another engine (default: {default})"
    )


@contextmanager
def spread_over(
    name: Name, jobs: int | None, *, libraries: Sequence[str], files: Sequence[Path], folder: Path
) -> Iterator[Mapped]:
    """Open an engine, and yield a ``map`` function that runs on it; if only one process would run, yield Python's own
    ``map``.

    ``jobs`` is the largest number of tasks at once; None means as many as the engine can run (under Slurm 4). Workers
    elsewhere must have the same Python, code and versions of ``libraries``, see the same ``files``, and be able to read
    and write below ``folder``. Raises EngineError if the engine cannot be opened.
    """
    if not name.far and (jobs or os.cpu_count()) == 1:
        yield map
        return
    with ExitStack() as held:
        expect: tuple[payload.Fact, ...] = ()
        if name.far:
            own = tempfile.TemporaryDirectory(prefix=SCRATCH, dir=folder, ignore_cleanup_errors=True)
            folder = Path(held.enter_context(own)).absolute()
            mark = folder / "here"
            mark.write_bytes(b"here")
            libraries = (*libraries, SENT_BY[name.kind])
            expect = payload.expected(libraries, (mark, *(path.absolute() for path in files)))
        engine = held.enter_context(closing(_engine(name, jobs, folder)))
        yield functools.partial(spread, engine, expect=expect)


def _engine(name: Name, jobs: int | None, folder: Path) -> Engine:
    """Import the module for this kind of engine, and return the opened engine. Raises EngineError if a package is
    missing, or the engine cannot be opened."""
    try:
        adapter = import_module(f"training.data.executors.on_{name.kind}")
        engine: Engine = adapter.open_engine(name.address, jobs, folder)
        return engine
    except ModuleNotFoundError as error:
        raise EngineError(f"the package {error.name} is not installed here: run {to_install(name.kind)}") from None

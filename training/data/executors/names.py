"""Engines by the names that a user gives them: ``processes``, ``dask:tcp://HOST:PORT``, ``slurm:PARTITION``."""

from __future__ import annotations

import argparse
import functools
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.data.executors import payload
from training.data.executors.engine import Engine, EngineError
from training.data.executors.on_processes import processes
from training.data.executors.spread import spread

HERE = "processes"
FORMS = {
    HERE: HERE,
    "dask": "dask:tcp://HOST:PORT",  # or tls://
    "ray": "ray:auto",
    "slurm": "slurm:PARTITION",
}
SENT_BY = {"dask": ("distributed",), "ray": ("ray",), "slurm": ("submitit",)}  # packages
SCRATCH = ".scratch-"  # the beginning of a folder's name: what a killed program left, the next build removes
SLURM_JOBS = 4  # at once, unless --jobs says another number

Mapped = Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Any]]


@dataclass(frozen=True, slots=True)
class Name:
    """The name of an engine: its kind, and where it is; "" for processes of this machine."""

    kind: str = HERE
    address: str = ""

    @property
    def far(self) -> bool:
        """True where workers may be other machines, or other environments of this one."""
        return self.kind != HERE

    @classmethod
    def parse(cls, text: str) -> Name:
        """Read a name. Raises ValueError with a sentence."""
        kind, colon, address = text.partition(":")
        if kind not in FORMS:
            raise ValueError(f"{text!r} is no executor: there are {', '.join(FORMS.values())}")
        wanted = {HERE: "", "dask": r"[a-z]+://.+:\d+"}.get(kind, ".+")
        if not re.fullmatch(wanted, address) or (kind == HERE and colon):
            raise ValueError(f"{text!r} is not of the form {FORMS[kind]}")
        return cls(kind, address)


PROCESSES = Name()


def add_executor(parser: argparse.ArgumentParser, *, processes: str) -> None:
    """Add the flags by which a program's user names an engine; ``processes``: how many there are without ``--jobs``."""

    def name(text: str) -> Name:
        try:
            return Name.parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    def at_once(text: str) -> int:
        value = int(text)
        if not 1 <= value <= 1024:
            raise argparse.ArgumentTypeError(f"{text} is not between 1 and 1024")
        return value

    where = f"where the work is done: {', '.join(FORMS.values())} (default {HERE})"
    parser.add_argument("--executor", type=name, default=PROCESSES, metavar="ENGINE", help=where)
    default = f"{processes}; of a cluster as many as it can, of Slurm {SLURM_JOBS}"
    parser.add_argument(
        "--jobs", type=at_once, help=f"number of processes, or of tasks at once on another engine (default: {default})"
    )


@contextmanager
def spread_over(
    name: Name, jobs: int | None, *, libraries: Sequence[str], files: Sequence[Path], folder: Path
) -> Iterator[Mapped]:
    """A map over an engine, which is opened at once. Raises EngineError.

    ``jobs``: how much is done at once, at most; None: as much as the engine can. Workers elsewhere must have the same
    ``libraries`` and see the same ``files``, and read and write below ``folder``.
    """
    if not name.far:
        jobs = jobs or os.cpu_count() or 1
        if jobs == 1:
            yield map
            return
        with closing(processes(jobs)) as engine:
            yield functools.partial(spread, engine)
        return
    with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=folder, ignore_cleanup_errors=True) as own:
        mark = Path(own).absolute() / "here"
        mark.write_bytes(b"here")
        expect = payload.expected((*libraries, *SENT_BY[name.kind]), (mark, *(path.absolute() for path in files)))
        with closing(_engine(name, jobs, mark.parent)) as engine:
            yield functools.partial(spread, engine, expect=expect)


def _engine(name: Name, jobs: int | None, folder: Path) -> Engine:
    try:
        match name.kind:
            case "dask":
                from training.data.executors.on_dask import dask

                return dask(name.address, jobs)
            case "ray":
                from training.data.executors.on_ray import ray

                return ray(name.address, jobs)
            case _:
                from training.data.executors.on_slurm import slurm

                return slurm(name.address, jobs or SLURM_JOBS, folder)
    except ModuleNotFoundError as error:
        raise EngineError(
            f"the package {error.name} is not installed here: run pip install -c constraints.txt -e '.[{name.kind}]'"
        ) from None

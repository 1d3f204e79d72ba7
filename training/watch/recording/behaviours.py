"""The registry of behaviours (workloads that the recorder runs), and the scratch files on which behaviours work.

Each behaviour is a generator that does one short step between two yields. ``workloads.run`` sleeps between the steps of
a paced behaviour, so that the same behaviour can run fast or slowed. Importing a behaviour's module registers it in
``BEHAVIOURS``.
"""

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from training.watch.recording.loopback import WORDS, FarEnd


class Context(NamedTuple):
    """The values that a behaviour gets: its scratch folder (already filled), its random generator, its intensity from 0
    to 1, and the ports of the servers that it may call."""

    scratch: Path
    rng: random.Random
    intensity: float
    far: FarEnd

    def files(self) -> list[Path]:
        return sorted(p for p in (self.scratch / "files").rglob("*") if p.is_file())

    def between(self, low: float, high: float) -> float:
        """Return a value that grows with the intensity from ``low`` to ``high``, varied at random by up to a fifth."""
        return (low + (high - low) * self.intensity) * self.rng.uniform(0.8, 1.2)


Steps = Callable[[Context], Iterator[None]]


class Behaviour(NamedTuple):
    """A behaviour that the recorder can run; if ``paced``, the pacer slows it, else the behaviour paces itself."""

    name: str
    malicious: bool
    summary: str
    steps: Steps = lambda _ctx: iter(())
    paced: bool = True


BEHAVIOURS: dict[str, Behaviour] = {}


def behaviour(summary: str, *, malicious: bool = False, paced: bool = True) -> Callable[[Steps], Steps]:
    """Return a decorator that registers a generator function as a behaviour, under the function's name."""

    def enter(steps: Steps) -> Steps:
        name = steps.__name__
        BEHAVIOURS[name] = Behaviour(name=name, malicious=malicious, summary=summary, steps=steps, paced=paced)
        return steps

    return enter


def fill_scratch(scratch: Path, rng: random.Random, total_bytes: int) -> None:
    """Write files of ``total_bytes`` together below ``scratch / "files"``: texts and incompressible data, from 2 KiB to
    1 MiB each (the last may be smaller). Drop the files from the kernel's cache where that is possible."""
    left, number = total_bytes, 0
    while left > 0:
        size = min(left, int(2 ** rng.uniform(11, 20)))
        folder = scratch / "files" / f"d{rng.randrange(8)}"
        folder.mkdir(parents=True, exist_ok=True)
        if rng.random() < 0.3:
            data = rng.randbytes(size)
        else:
            line = " ".join(rng.choices(WORDS, k=200)) + f" {rng.random()}\n"
            data = (line.encode() * (size // len(line) + 1))[:size]
        (folder / f"f{number:04}.dat").write_bytes(data)
        left, number = left - size, number + 1
    for cold in (scratch / "files").rglob("*.dat"):
        forget(cold)


def forget(path: Path) -> None:
    """Ask the kernel to drop a file from its cache, so that the next read comes from the disk; does nothing where the
    system has no such call."""
    if hasattr(os, "posix_fadvise"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

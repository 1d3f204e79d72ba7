"""Runs a part's tasks in processes of their own, adds up what they counted, and says how far it is."""

from __future__ import annotations

import multiprocessing
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from torture.parts import ROOT, Part, Task


def _run(task: Task) -> tuple[Counter[str], str | None]:
    try:
        return task.call(*task.args), None
    except AssertionError as broken:
        return Counter(), f"{task.call.__name__}{task.args}: {broken}"


def _results(part: Part, tasks: list[Task], jobs: int) -> Iterator[tuple[Counter[str], str | None]]:
    if part.alone or jobs <= 1:
        yield from map(_run, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=20) as pool:
        yield from pool.imap_unordered(_run, tasks)


def run_part(part: Part, *, full: bool, jobs: int) -> dict[str, Any]:
    """Run one part and say how far it is."""
    tasks = part.tasks(full)
    counts: Counter[str] = Counter()
    figures: dict[str, int] = {}
    broken: list[str] = []
    begun = time.monotonic()
    for number, (found, failure) in enumerate(_results(part, tasks, jobs), 1):
        for name, value in found.items():
            if name.endswith("_max") or "_p" in name:  # not a sum
                figures[name] = max(value, figures.get(name, 0))
            else:
                counts[name] += value
        if failure is not None:
            broken.append(failure)
            print(f"BROKEN {part.name}: {failure}", flush=True)
        _progress(part.name, number, len(tasks), time.monotonic() - begun)
    return {
        "promise": part.promise,
        "full": full,
        "counts": dict(sorted((counts | Counter(figures)).items())),
        "broken": broken,
        "seconds": round(time.monotonic() - begun, 1),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
        "commit": _commit(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "ended": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def _progress(name: str, done: int, of: int, seconds: float) -> None:
    left = seconds / done * (of - done)
    line = f"{name}: {done} of {of}, {seconds:.0f} s, about {left:.0f} s left"
    if sys.stderr.isatty():
        print(f"\r{line:<70}", end="\n" if done == of else "", file=sys.stderr, flush=True)
    elif done == of or done % max(1, of // 20) == 0:
        print(line, file=sys.stderr, flush=True)


def _commit() -> str:
    told = os.environ.get("CIS490_COMMIT")
    if told:
        return told
    command = ["git", "describe", "--always", "--dirty", "--abbrev=7"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"

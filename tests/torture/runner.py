"""Runs a part's tasks in processes of their own, adds up what they counted, and says how far it is."""

from __future__ import annotations

import multiprocessing
import os
import platform
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from torture.parts import ROOT, Part, Task

THE_RECORD = ":!docs/guarantees.*"  # is written meanwhile, and tries nothing
Found = tuple[int, Counter[str], str | None]  # which task, what it counted, what was broken


def _run(numbered: tuple[int, Task]) -> Found:
    number, task = numbered
    try:
        return number, task.call(*task.args), None
    except Exception as broken:  # noqa: BLE001 - whatever it is, the case was not shown to hold
        told = isinstance(broken, AssertionError) and str(broken)
        words = told or "".join(traceback.format_exception(broken))[-1500:]
        return number, Counter(), f"{task.call.__name__}{task.args}: {words}"


def _results(part: Part, tasks: list[tuple[int, Task]], jobs: int) -> Iterator[Found]:
    if part.alone or jobs <= 1:
        yield from map(_run, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=20) as pool:
        yield from pool.imap_unordered(_run, tasks)


def run_part(part: Part, *, full: bool, jobs: int, before: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    """Run one part, or what ``before`` (its record so far) lacks; the record after each task."""
    tasks = part.tasks(full)
    record = _begun(part, full, len(tasks), before)
    done = set(record["done"])
    todo = [(number, task) for number, task in enumerate(tasks) if number not in done]
    counts = Counter(record["counts"])
    begun, spent_s = time.monotonic(), record["seconds"]
    for many, (number, found, failure) in enumerate(_results(part, todo, jobs), 1):
        for name, value in found.items():
            largest = name.endswith("_max")
            counts[name] = max(value, counts[name]) if largest else value + counts[name]
        record["done"] = sorted([*record["done"], number])
        record["counts"] = dict(sorted(counts.items()))
        if failure is not None:
            record["broken"].append(failure)
            print(f"BROKEN {part.name}: {failure}", flush=True)
        seconds = time.monotonic() - begun
        record["seconds"] = round(spent_s + seconds, 1)
        record["ended"] = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
        yield record
        _progress(part.name, many, len(todo), seconds)


def _begun(part: Part, full: bool, tasks: int, before: Mapping[str, Any] | None) -> dict[str, Any]:
    commit = _commit()
    if before and before["full"] == full and before["tasks"] == tasks:
        commits = before["commit"].split(" ")
        joined = " ".join(commits if commit in commits else [*commits, commit])
        return {**before, "commit": joined, "done": list(before["done"])}
    return {
        "full": full,
        "tasks": tasks,
        "done": [],
        "counts": {},
        "broken": [],
        "seconds": 0.0,
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
        "commit": commit,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
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
    head = _git("rev-parse", "--short=7", "HEAD")
    others = _git("status", "--porcelain", "--untracked-files=no", "--", ".", THE_RECORD)
    return f"{head}-dirty" if others else head or "unknown"


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()

"""Plant a mutant in a copy of the checkout, run the nearest tests there, and say who noticed."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from mutants import python_operators, sql_operators
from mutants.areas import AREAS, BESIDE, LIMITS, ROOT, files_of, tests
from mutants.mutant import Mutant
from mutants.nearest import MAPS, Map

BUDGET_S = 60.0  # of nearest tests a mutant, by the time they took when the map was made
SURE_S = 0.5  # a test that took less starts no programs that a busy machine could starve
DID_NOT_END = "(did not end)"  # seen, but looked at apart: a busy machine too makes tests slow
SCHEMA = ROOT / "training" / "fleet" / "database" / "sql" / "schema_sqlite.sql"
_PLACE = re.compile(r"(?<![\w:/.])/[\w.-]+/\S+")  # of a temporary folder: another one at each run
LEFT_BEHIND = {".git", ".venv", "build", "demo", "var", ".hypothesis", ".mypy_cache", ".ruff_cache", ".pytest_cache"}


def all_mutants() -> dict[str, list[Mutant]]:
    """Every mutant of every area."""
    schema, found = SCHEMA.read_text(encoding="utf-8"), {}
    for area in AREAS:
        found[area] = [each for path in files_of(area) for each in _of(path, schema)]
    return found


def _of(path: str, schema: str) -> list[Mutant]:
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".sql"):
        return sql_operators.mutants_of(path, text, schema)
    return python_operators.mutants_of(path, text)


def sample(found: dict[str, list[Mutant]], count: int, seed: int) -> list[tuple[str, Mutant]]:
    """``count`` mutants, spread evenly over areas, and within an area over its operators."""
    chance, chosen = random.Random(seed), list[tuple[str, Mutant]]()
    queues = {area: _mixed(mutants, chance) for area, mutants in found.items()}
    while len(chosen) < count and any(queues.values()):
        for area, waiting in queues.items():
            if waiting and len(chosen) < count:
                chosen.append((area, waiting.pop()))
    return chosen


def _mixed(mutants: list[Mutant], chance: random.Random) -> list[Mutant]:
    by_operator: dict[str, list[Mutant]] = defaultdict(list)
    for each in mutants:
        by_operator[each.operator].append(each)
    for group in by_operator.values():
        chance.shuffle(group)
    groups, turns = list(by_operator.values()), list[Mutant]()
    chance.shuffle(groups)
    while any(groups):
        turns += [group.pop() for group in groups if group]
    return turns[::-1]


def make_map(folder: Path, jobs: int) -> None:
    """Run the tests once, unchanged, and write who runs what. Raises SystemExit when one fails."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(MAPS):
        old.unlink()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "mutants.nearest", "-n", str(jobs), "--dist", "worksteal",
               "-p", "no:randomly", "-p", "no:cacheprovider", *tests()]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, env=_environment(ROOT) | {"MUTANTS_MAP": str(folder)})
    if done.returncode:
        raise SystemExit("the tests fail without any mutant: mend them first")


def _environment(root: Path) -> dict[str, str]:
    path = os.pathsep.join([str(root), str(root / "tests")])
    return os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


@contextmanager
def copies(count: int) -> Iterator[SimpleQueue[Path]]:
    """Copies of the checkout to plant mutants in, so that nobody edits while they lie in it."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        free: SimpleQueue[Path] = SimpleQueue()
        Path(folder).chmod(0o755)  # some tests look from another user's side
        first = Path(folder, "0")
        shutil.copytree(ROOT, first, ignore=_left_behind)
        (first / ".venv").symlink_to(ROOT / ".venv")
        _compile(first)
        free.put(first)
        for number in range(1, count):
            free.put(shutil.copytree(first, Path(folder, str(number)), symlinks=True))
        yield free


def _left_behind(folder: str, names: list[str]) -> set[str]:
    return {"__pycache__", *(LEFT_BEHIND if Path(folder) == ROOT else ())} & set(names)


def _compile(root: Path) -> None:
    """Keep the bytecode of all tests and of what they import, which is half of the time that a mutant takes."""
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", *tests()]  # fmt: skip
    environment = _environment(root)
    del environment["PYTHONDONTWRITEBYTECODE"]
    subprocess.run(command, cwd=root, env=environment, stdout=subprocess.DEVNULL, check=True)


def nearest(mutant: Mutant, known: Map, texts: dict[str, str]) -> list[str]:
    """The tests to ask about a mutant, quickest first."""
    words = _words(mutant)
    if mutant.path.endswith(".sql"):
        return known.quickest(known.statements[mutant.owner], BUDGET_S, words)
    last = mutant.line + mutant.old.count("\n")
    reached = known.of_lines(mutant.path, mutant.line, last)
    first = [] if reached else [LIMITS]
    if not reached:  # a constant of a module or a class: its line ran at import
        line = texts[mutant.path].splitlines()[mutant.line - 1]
        name = re.match(r"\s*(\w+)\s*(?::[^=]*)?=", line)
        if name:
            reached = known.of_word(name[1], texts)
    if not reached and known.ran(mutant.path, mutant.line):  # at import: whoever uses the module
        reached = known.of_file(mutant.path)
    beside = [BESIDE[mutant.path]] if mutant.path in BESIDE else []
    return first + known.quickest(reached, BUDGET_S, words) + beside


def _words(mutant: Mutant) -> set[str]:
    """The name that tests of the module, or of the statement, carry: those are asked first."""
    named = mutant.owner if mutant.path.endswith(".sql") else Path(mutant.path).stem
    folder = Path(mutant.path).parent.name
    return {*named.lower().strip("_").split("_"), folder} - {"fleet", "work", "sql"}


def judge(mutant: Mutant, asked: list[str], root: Path, seconds: dict[str, float]) -> dict[str, Any]:
    """Run the tests over the planted mutant. ``seen`` tells the first test that failed, ``why`` its last words."""
    if not asked:
        return {"seen": None, "why": "no test of the map reaches it", "asked": 0, "seconds": 0.0}
    place = root / mutant.path
    text, known = place.read_text(encoding="utf-8"), place.stat()
    place.write_text(mutant.applied_to(text), encoding="utf-8")
    limit = 60.0 + 5.0 * sum(seconds.get(test, 1.0) for test in asked)
    begun = time.monotonic()
    try:
        seen, why = _first_failure(asked, root, limit)
        # A test with real programs may fail for want of time on a busy machine: it must do so twice.
        while seen in seconds and seconds[seen] > SURE_S:
            slow, (seen, why) = seen, _first_failure([seen], root, limit)
            if seen is not None or slow == asked[-1]:
                break
            seen, why = _first_failure(asked[asked.index(slow) + 1 :], root, limit)
    finally:
        place.write_text(text, encoding="utf-8")
        os.utime(place, ns=(known.st_atime_ns, known.st_mtime_ns))  # its bytecode holds again
    took = round(time.monotonic() - begun, 1)
    return {"seen": seen, "why": why, "asked": len(asked), "seconds": took}


def _first_failure(asked: list[str], root: Path, limit_s: float) -> tuple[str | None, str]:
    arguments = root / "asked.txt"
    arguments.write_text("\n".join(asked), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:randomly", "-p", "no:cacheprovider",
               "-p", "no:xdist", "--tb=no", "-rfE", f"@{arguments}"]  # fmt: skip
    try:
        done = subprocess.run(command, cwd=root, env=_environment(root) | {"COLUMNS": "300"}, capture_output=True,
                              text=True, timeout=limit_s, start_new_session=True)  # fmt: skip
    except subprocess.TimeoutExpired:
        return DID_NOT_END, f"within {limit_s:.0f} s"
    if done.returncode == 0:
        return None, ""
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - (.*))?$", done.stdout, re.MULTILINE)
    if failed:
        return failed[1], _PLACE.sub("…", failed[2] or "")[:100]
    return f"(exit {done.returncode})", ""


def run(chosen: list[tuple[str, Mutant]], known: Map, jobs: int) -> Iterator[tuple[str, Mutant, dict[str, Any]]]:
    """Judge each mutant, ``jobs`` at a time; they come as they end."""
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in known.lines if (ROOT / path).exists()}
    done: SimpleQueue[tuple[str, Mutant, dict[str, Any]]] = SimpleQueue()
    with copies(jobs) as free, ThreadPoolExecutor(jobs) as pool:

        def one(area: str, mutant: Mutant) -> None:
            root = free.get()
            try:
                done.put((area, mutant, judge(mutant, nearest(mutant, known, texts), root, known.seconds)))
            finally:
                free.put(root)

        waiting = [pool.submit(one, area, mutant) for area, mutant in chosen]
        for _ in waiting:
            yield done.get()

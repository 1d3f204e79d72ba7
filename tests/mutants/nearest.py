"""The tests that reach a place, quickest first: a pytest plugin that writes the map, and the reading of it.

``python -m pytest -p mutants.nearest`` with ``$MUTANTS_MAP`` set to a folder writes there, once a process, the lines
and the SQL statements that each test ran (lines by coverage.py, one context a test), and how long each took.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

MAPS = "*.map.json"
_FOLDER = os.environ.get("MUTANTS_MAP", "")
_STATE: dict[str, Any] = {}


def pytest_configure(config: pytest.Config) -> None:
    leads = config.getoption("numprocesses", None) and "PYTEST_XDIST_WORKER" not in os.environ
    if not _FOLDER or _STATE or leads:  # who hands tests out runs none
        return
    import coverage  # only where a map is made

    from training.fleet.database.sqlite import SqliteDatabase

    own = f"{os.environ.get('PYTEST_XDIST_WORKER', 'main')}-{os.getpid()}"
    cover = coverage.Coverage(data_file=None, include=["training/fleet/*", "training/files.py"], config_file=False)
    statements: dict[str, set[str]] = defaultdict(set)
    _STATE.update(cover=cover, own=own, statements=statements, seconds={}, test="")
    for name in ("all", "one", "run"):
        _watch(SqliteDatabase, name)
    cover.start()


def _watch(database: type, name: str) -> None:
    asked = getattr(database, name)

    def watched(self: Any, statement: str, *args: Any, **params: Any) -> Any:
        _STATE["statements"][statement].add(_STATE["test"])
        return asked(self, statement, *args, **params)

    setattr(database, name, watched)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if not _STATE:
        yield
        return
    _STATE["test"] = item.nodeid
    _STATE["cover"].switch_context(item.nodeid)
    begun = time.perf_counter()
    yield
    _STATE["seconds"][item.nodeid] = time.perf_counter() - begun


def pytest_sessionfinish() -> None:
    if not _STATE:
        return
    cover = _STATE["cover"]
    cover.stop()
    data = cover.get_data()
    lines: dict[str, dict[str, list[str]]] = {}
    for file in data.measured_files():
        path = Path(file).relative_to(Path.cwd()).as_posix()
        by_line = data.contexts_by_lineno(file)
        lines[path] = {str(line): sorted(filter(None, tests)) for line, tests in by_line.items()}
    found = {
        "lines": lines,
        "statements": {name: sorted(tests) for name, tests in _STATE["statements"].items()},
        "seconds": _STATE["seconds"],
    }
    Path(_FOLDER, f"{_STATE['own']}.map.json").write_text(json.dumps(found))


class Map:
    """The tests that run each line and each SQL statement."""

    def __init__(self, folder: Path) -> None:
        self.lines: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        self.statements: dict[str, set[str]] = defaultdict(set)
        self.seconds: dict[str, float] = {}
        for file in sorted(folder.glob(MAPS)):
            found = json.loads(file.read_text())
            self.seconds |= found["seconds"]
            for name, tests in found["statements"].items():
                self.statements[name] |= set(tests)
            for path, by_line in found["lines"].items():
                for line, tests in by_line.items():
                    self.lines[path][int(line)] |= set(tests)

    def of_lines(self, path: str, first: int, last: int) -> set[str]:
        return set().union(*(self.lines[path].get(line, set()) for line in range(first, last + 1)))

    def of_word(self, word: str, texts: Mapping[str, str]) -> set[str]:
        """Tests of every line that names ``word``: for constants, whose own line runs at import."""
        found: set[str] = set()
        for path, text in texts.items():
            for number, line in enumerate(text.splitlines(), 1):
                if word in line:
                    found |= self.lines[path].get(number, set())
        return found

    def ran(self, path: str, line: int) -> bool:
        """Tell if the line ran at all, be it in no test, as a module's own lines do."""
        return line in self.lines[path]

    def of_file(self, path: str) -> set[str]:
        return set().union(*self.lines[path].values())

    def quickest(self, tests: set[str], budget_s: float, words: Collection[str] = ()) -> list[str]:
        """As many as fit into the budget, and at least one; those of a file that is named by one of ``words`` first."""

        def order(test: str) -> tuple[bool, float, str]:
            named = {word[:4] for word in Path(test.partition("::")[0]).stem.split("_")}
            own = not named.isdisjoint(word[:4] for word in words)  # `storage` is tested in `store`
            return not own, self.seconds.get(test, 0.0), test

        chosen, spent = list[str](), 0.0
        for test in sorted(tests, key=order):
            spent += self.seconds.get(test, 0.0)
            if chosen and spent > budget_s:
                break
            chosen.append(test)
        return chosen

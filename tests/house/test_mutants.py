"""The mutation tests' own net: what an operator changes, who is asked, and that a bug nobody sees is called unseen."""

from __future__ import annotations

import ast
import os
import py_compile
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from mutants import python_operators, runner, sql_operators
from mutants.__main__ import EXCUSED
from mutants.areas import AREAS, LIMITS, ROOT, files_of
from mutants.figures import Row, counted, lines
from mutants.mutant import Mutant
from mutants.nearest import Map
from mutants.runner import SCHEMA, all_mutants, judge, nearest, sample

MODULE = '''
LIMIT = 5


def take(items, held, disk):
    """Words that nobody plants anything in."""
    assert items, "nor here"
    if held and len(items) < LIMIT:
        return None
    disk.write(items)
    disk.sync()
    disk.held = None
    while items:
        items.pop()
    try:
        return sorted(items)
    except ValueError:
        raise KeyError("gone") from None


def begin(turn, report, folder):
    folder.mkdir(parents=True, exist_ok=True)
    turn.say("words")
    turn.set(held=None)
    turn.set_work(left=None)
    report.add("one" + "two")
    report.add(folder)


if __name__ == "__main__":
    begin(None, None, None)
'''

STATEMENTS = """-- name: head — the first
SELECT job_id FROM jobs WHERE status = 'pending' AND priority < :below
ORDER BY priority DESC, seq LIMIT 1

-- name: end — the last word
UPDATE jobs SET claim_id = NULL, error = :error WHERE job_id = :job_id AND claim_id = :claim_id
"""


def changed(mutants: list[Mutant]) -> set[tuple[str, str, str]]:
    return {(each.operator, " ".join(each.old.split()), " ".join(each.new.split())) for each in mutants}


def test_python_is_changed_in_every_way_that_is_named() -> None:
    found = python_operators.mutants_of("m.py", MODULE)
    for mutant in found:
        ast.parse(mutant.applied_to(MODULE))
    assert changed(found) >= {
        ("constant", "5", "10"),
        ("condition dropped", "held and len(items) < LIMIT", "(held)"),
        ("condition dropped", "held and len(items) < LIMIT", "(len(items) < LIMIT)"),
        ("relation", "len(items) < LIMIT", "len(items) <= LIMIT"),
        ("guard never holds", "held and len(items) < LIMIT", "False"),
        ("call skipped", "disk.sync()", "pass"),
        ("order reversed", "disk.write(items) disk.sync()", "disk.sync() disk.write(items)"),
        ("assignment skipped", "disk.held = None", "pass"),
        ("page not followed", "items.pop()", "items.pop() break"),
        ("order reversed", "sorted(items)", "sorted(items, reverse=True)"),
        ("other exception caught", "ValueError", "ZeroDivisionError"),
    }
    assert not any("Words" in each.old or "nor here" in each.old for each in found)


def test_what_no_promise_hangs_on_is_left_alone() -> None:
    """Eased flags, words for people, the order of what is only collected, and what is no program any more."""
    found = [each for each in python_operators.mutants_of("m.py", MODULE) if each.owner == "begin"]
    assert {(each.operator, each.old) for each in found} == {
        ("call skipped", "folder.mkdir(parents=True, exist_ok=True)"),
        ("call skipped", "turn.set(held=None)"),
        ("call skipped", "turn.set_work(left=None)"),
        ("call skipped", 'report.add("one" + "two")'),
        ("call skipped", "report.add(folder)"),
    }
    assert not any("__main__" in each.old for each in python_operators.mutants_of("m.py", MODULE))


def test_sql_is_changed_in_every_way_that_is_named() -> None:
    found = sql_operators.mutants_of("q.sql", STATEMENTS, SCHEMA.read_text(encoding="utf-8"))
    assert changed(found) >= {
        ("condition dropped", "status = 'pending'", "true"),
        ("condition dropped", "priority < :below", "true"),
        ("condition dropped", "claim_id = :claim_id", "true"),
        ("column not set", ", error = :error", ""),
        ("column not set", "claim_id = NULL,", ""),
        ("relation", "<", "<="),
        ("order reversed", "DESC", "ASC"),
        ("order dropped", "ORDER BY priority DESC, seq", ""),
        ("limit dropped", "LIMIT 1", ""),
    }


@pytest.mark.parametrize("area", AREAS)
def test_an_area_is_files_that_exist(area: str) -> None:
    files = files_of(area)
    assert files
    assert all((ROOT / each).is_file() for each in files), files


def test_keys_are_unique_and_the_draw_is_even_and_repeatable() -> None:
    found = {"a": python_operators.mutants_of("m.py", MODULE), "b": python_operators.mutants_of("n.py", MODULE)}
    keys = [each.key for group in found.values() for each in group]
    assert len(keys) == len(set(keys))
    drawn = sample(found, 8, seed=3)
    assert [area for area, _ in drawn] == ["a", "b"] * 4
    assert drawn == sample(found, 8, seed=3) != sample(found, 8, seed=4)


def test_the_nearest_tests_are_the_quickest_that_reach_the_place(tmp_path: Path) -> None:
    (tmp_path / "1.map.json").write_text(
        '{"lines": {"m.py": {"8": ["slow", "quick"], "10": ["other"]}}, "statements": {"end": ["quick"]}, '
        '"seconds": {"slow": 70, "quick": 0.1, "other": 1}}'
    )
    known = Map(tmp_path)
    relation = next(each for each in python_operators.mutants_of("m.py", MODULE) if each.operator == "relation")
    constant = python_operators.mutants_of("m.py", MODULE)[0]
    assert nearest(relation, known, {"m.py": MODULE}) == ["quick"]  # the slow one is beyond the budget
    assert nearest(constant, known, {"m.py": MODULE}) == [LIMITS, "quick"], "who runs what names it"
    ended = sql_operators.mutants_of("q.sql", STATEMENTS, SCHEMA.read_text(encoding="utf-8"))[-1]
    assert nearest(ended, known, {}) == ["quick"]


def test_an_excuse_is_of_a_bug_that_is_planted_and_gives_a_reason() -> None:
    excused = tomllib.loads(EXCUSED.read_text(encoding="utf-8"))
    planted = {each.key for group in all_mutants().values() for each in group}
    assert set(excused) <= planted, "the code has moved on: take these out, or name them anew"
    assert all(len(reason.split()) > 3 for reason in excused.values())


def test_a_line_of_a_module_is_asked_of_whoever_uses_the_module(tmp_path: Path) -> None:
    """Such a line runs when it is imported, in no test; tests that are named by the module go first."""
    (tmp_path / "1.map.json").write_text(
        '{"lines": {"m.py": {"2": [], "10": ["tests/test_a.py::b", "tests/test_m.py::a"]}}, "statements": {}, '
        '"seconds": {"tests/test_a.py::b": 1, "tests/test_m.py::a": 2}}'
    )
    constant = replace(python_operators.mutants_of("m.py", MODULE)[0], line=2)
    asked = nearest(constant, Map(tmp_path), {"m.py": "\n5"})
    assert asked == [LIMITS, "tests/test_m.py::a", "tests/test_a.py::b"]


def test_a_bug_is_seen_by_a_test_that_looks_and_by_no_other(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("def least(a, b):\n    return min(a, b)\n")
    looks = "from m import least\ndef test_it():\n    assert least(1, 2) == 1\n"
    (tmp_path / "test_looks.py").write_text(looks)
    (tmp_path / "test_away.py").write_text("from m import least\ndef test_it():\n    least(1, 2)\n")
    os.utime(tmp_path / "m.py", (1e9, 1e9))
    py_compile.compile(str(tmp_path / "m.py"))  # of a text as long as that with the bug
    (mutant,) = python_operators.mutants_of("m.py", (tmp_path / "m.py").read_text())
    assert judge(mutant, ["test_looks.py::test_it"], tmp_path, {})["seen"] == "test_looks.py::test_it"
    assert judge(mutant, ["test_away.py::test_it"], tmp_path, {})["seen"] is None
    assert judge(mutant, [], tmp_path, {})["why"] == "no test of the map reaches it"
    assert "min(a, b)" in (tmp_path / "m.py").read_text(), "and it is taken out again"
    assert (tmp_path / "m.py").stat().st_mtime == 1e9


def test_a_slow_test_must_fail_twice_and_else_the_others_are_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.py").write_text("def least(a, b):\n    return min(a, b)\n")
    (mutant,) = python_operators.mutants_of("m.py", (tmp_path / "m.py").read_text())
    fails = {("slow", "quick"): "slow", ("slow",): None, ("quick",): "quick"}

    def failure(asked: list[str], *_: object) -> tuple[str | None, str]:
        return fails[tuple(asked)], ""

    monkeypatch.setattr(runner, "_first_failure", failure)
    seconds = {"slow": 9.0, "quick": 0.1}
    assert judge(mutant, ["slow", "quick"], tmp_path, seconds)["seen"] == "quick"
    fails["slow", "quick"], fails["quick",] = "slow", None
    assert judge(mutant, ["slow", "quick"], tmp_path, seconds)["seen"] is None
    fails["slow",] = "slow"
    assert judge(mutant, ["slow", "quick"], tmp_path, seconds)["seen"] == "slow"


def test_the_figures_tell_the_draw_from_what_was_mended_after_it() -> None:
    mutants = {
        "seen": {"area": "sql", "first": True, "seen": "test"},
        "tested": {"area": "sql", "first": False, "seen": "test"},
        "harmless": {"area": "trust", "first": False, "seen": None},
        "gone": {"area": "trust", "first": False, "seen": None, "gone": True},
        "survives": {"area": "trust", "first": False, "seen": None},
    }
    rows = counted({"mutants": mutants}, {"harmless", "gone"})
    assert rows["sql"] == Row(drawn=2, first=1, seen=2)
    assert rows["trust"] == Row(drawn=3, excused=1, gone=1)
    assert (rows["all"].drawn, rows["all"].share) == (5, 75.0)
    record = {"of": {"sql": 3000, "trust": 9}, "seed": 7, "mutants": mutants}
    run = {"commit": "1234567", "date": "2026-01-31", "minutes": 50, "asked_s": 60.0}
    page = "\n".join(lines(record | {"run": run, "again": run | {"commit": "89abcde"}}, {"harmless"}))
    assert "| sql | 3,000 | 2 | 1 | 2 | 0 | 0 | 0 |" in page
    assert "| all | 3,009 | 5 | 1 | 2 | 1 | 1 | 1 |" in page
    assert "2026-01-31, commit 1234567: 20.0 % seen" in page
    assert "commit 89abcde: 75.0 %" in page

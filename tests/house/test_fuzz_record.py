"""Runs of the fuzzer add up: by several processes, in several goes, whatever ends them."""

from __future__ import annotations

import json
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from places import ROOT

sys.path.insert(0, str(ROOT))

from fuzz import __main__ as program
from fuzz import fuzz_index, record


@pytest.fixture
def path(tmp_path):
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield tmp_path / "record.json"
    for number, handler in handlers.items():
        signal.signal(number, handler)


def runs(path):
    return json.loads(path.read_text())["runs"]


def tried(monkeypatch, what=lambda _: None):
    """Record the inputs of the target from now on; ``what`` is done at each, by its number."""
    given = []

    def one_input(data):
        given.append(data)
        what(len(given))

    monkeypatch.setattr(fuzz_index, "one_input", one_input)
    return given


def test_several_processes_may_write_to_one_record(path):
    named = [{"target": t, "seed": seed} for t in ("wire", "index") for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        for runs_so_far in (1, 10):
            list(pool.map(lambda n, so_far=runs_so_far: record.keep(path, {**n, "runs": so_far}), named))
    assert record.total(path, "wire") == record.total(path, "index") == 80
    assert len(runs(path)) == 16
    assert json.loads(path.read_text())["inputs"] == {"index": 80, "wire": 80}


def test_runs_add_up_and_each_has_a_seed_of_its_own(path, monkeypatch):
    path.write_text('{"machine": "that one", "runs": [{"target": "index", "runs": 100}]}')
    given = tried(monkeypatch)
    for _ in range(2):
        assert program.main(["index", "--runs", "300", "--record", str(path)]) == 0
    _, first, second = runs(path)
    assert first["seed"] != second["seed"]
    assert (first["runs"], second["runs"]) == (300, 300)
    assert json.loads(path.read_text())["machine"] == "that one"
    seed = str(first["seed"])
    given, before = tried(monkeypatch), given
    assert program.main(["index", "--runs", "300", "--seed", seed]) == 0
    assert given == before[:300]


def test_a_total_goes_on_from_the_record(path, monkeypatch):
    given = tried(monkeypatch)
    for total in ("300", "700", "500"):
        assert program.main(["index", "--total", total, "--record", str(path)]) == 0
    assert record.total(path, "index") == len(given) == 700
    assert [run["runs"] for run in runs(path)] == [300, 400]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_and_leaves_what_it_did(path, monkeypatch, number):
    given = tried(monkeypatch, lambda n: signal.raise_signal(number) if n == 400 else None)
    assert program.main(["index", "--runs", "100000", "--record", str(path)]) == 130
    assert 400 <= len(given) < 1000
    assert record.total(path, "index") == len(given)


def test_what_raised_is_kept_and_on_record(path, monkeypatch, tmp_path):
    monkeypatch.setattr(program, "FOUND", tmp_path / "found")
    given = tried(monkeypatch, lambda n: 1 // (50 - n))
    assert program.main(["index", "--record", str(path)]) == 1
    (run,) = runs(path)
    assert run["runs"] == len(given) == 50
    assert [(tmp_path / "found" / name).read_bytes() for name in run["found"]] == [given[-1]]

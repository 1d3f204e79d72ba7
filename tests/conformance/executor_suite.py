"""The promises of every engine to those who spread work over it: one suite, run on each of them.

A class of tests for an engine sets ``cluster`` by a fixture of its own, and inherits `ExecutorSuite`.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import executor_builds
import executor_fixtures
import executor_tasks as tasks
import pytest
import telemetry_builders as made
from engines_running import Cluster

from training.data import build as building
from training.data.assemble import BuildOptions
from training.data.errors import DataError
from training.data.executors import payload
from training.data.executors.engine import EngineError, WorkerLost
from training.data.executors.names import Name, spread_over


class ExecutorSuite:
    """Tests of an engine that runs; ``cluster`` is that, ``scored_once`` a model, data, and their scores."""

    @pytest.fixture(autouse=True)
    def environment(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in cluster.environment.items():
            monkeypatch.setenv(name, value)

    def spread(self, cluster: Cluster, folder: Path, **more):
        given = {"libraries": ("numpy",), "files": ()} | more
        return spread_over(Name.parse(cluster.name), 2, folder=folder, **given)

    def test_results_come_in_order_and_each_once(self, cluster, tmp_path):
        with self.spread(cluster, tmp_path) as mapped:
            found = list(mapped(tasks.Noted(tmp_path), range(40)))
        assert found == [number * number for number in range(40)]
        assert sorted(path.name for path in tmp_path.iterdir() if path.name.isdigit()) == sorted(map(str, range(40)))
        assert not list(tmp_path.glob(".scratch-*"))

    def test_an_error_of_a_task_is_the_one_that_it_raised(self, cluster, tmp_path):
        with self.spread(cluster, tmp_path) as mapped:
            with pytest.raises(DataError) as raised:
                list(mapped(tasks.bad_at_seven, range(12)))
            assert str(raised.value) == "number 7 is bad"
            assert list(mapped(abs, [-1])) == [1], "the engine goes on"

    def test_a_lost_worker_costs_time_and_no_result(self, cluster, tmp_path):
        with self.spread(cluster, tmp_path) as mapped:
            found = list(mapped(tasks.Killing(tmp_path, at=5, times=1), range(20)))
        assert found == [number * number for number in range(20)]
        assert len(list(tmp_path.glob("killed-*"))) == 1

    def test_the_same_bytes_as_from_one_process(self, cluster, tmp_path):
        made.write_fleet(tmp_path / "in")
        building.build(tmp_path / "in", tmp_path / "one", BuildOptions())
        building.build(tmp_path / "in", tmp_path / "many", BuildOptions(jobs=2, executor=Name.parse(cluster.name)))
        assert made.outputs(tmp_path / "many") == made.outputs(tmp_path / "one")
        remembered = [path.name for path in (tmp_path / "many" / building.dataset.MEMORY_FOLDER).iterdir()]
        assert Counter(remembered) == Counter(
            p.name for p in (tmp_path / "one" / building.dataset.MEMORY_FOLDER).iterdir()
        )

    def test_the_same_scores_as_from_one_process(self, cluster, scored_once, tmp_path):
        checkpoint, data, wanted = scored_once
        arguments = [checkpoint, data, "--out", tmp_path / "scores.csv", "--executor", cluster.name, "--jobs", "2"]
        assert executor_fixtures.score(*arguments) == (0, "")
        assert (tmp_path / "scores.csv").read_bytes() == wanted


class DeadlySuite(ExecutorSuite):
    """The same, and tasks that end each worker that takes them: slow where a worker is slow to start."""

    def test_what_ends_every_worker_is_told_in_a_sentence(self, cluster, tmp_path):
        with self.spread(cluster, tmp_path) as mapped, pytest.raises(WorkerLost, match="resume"):
            list(mapped(tasks.Killing(tmp_path, at=0, times=99), range(2)))
        assert 3 <= len(list(tmp_path.glob("killed-*"))) <= 5, "tried again, and not for ever"


class FarSuite(ExecutorSuite):
    """Tests of engines whose workers may be elsewhere."""

    @pytest.mark.parametrize(
        ("fact", "words"),
        [
            (("python", "", "3.9"), r"runs Python 3\.\d+, and here it is 3\.9: "),
            (("code", "", "other"), "has another version of this project: "),
            (("library", "numpy", "1.0"), r"has numpy 2\S+, and here it is 1\.0: "),
            (("library", "no-such", "1.0"), r"has no-such none, and here it is 1\.0: "),
            (("file", "/nowhere/episode", 1), "does not see /nowhere/episode as it is here: "),
        ],
    )
    def test_a_worker_that_is_not_as_expected_does_nothing(self, cluster, tmp_path, monkeypatch, fact, words):
        wanted = (*payload.expected((), ()), fact)
        monkeypatch.setattr(payload, "expected", lambda *_: wanted)
        with self.spread(cluster, tmp_path) as mapped, pytest.raises(EngineError, match=f"^the worker on .* {words}"):
            list(mapped(tasks.Noted(tmp_path), range(3)))
        assert not [path for path in tmp_path.iterdir() if path.name.isdigit()]

    def test_a_worker_without_the_project_is_told(self, cluster, tmp_path, monkeypatch):
        monkeypatch.setattr(payload, "packed", lambda *_: b"ctraining.nobody\nwork\n.")
        with self.spread(cluster, tmp_path) as mapped, pytest.raises(EngineError, match="does not have this project"):
            list(mapped(abs, [1]))


class EngineSuite(FarSuite, DeadlySuite):
    """All of it, and workers killed amid a build."""

    def test_a_build_whose_worker_is_killed_has_the_same_bytes(self, cluster, tmp_path):
        """The one that reads an episode, and later one that cuts."""
        made.write_fleet(tmp_path / "in", episodes=6)
        building.build(tmp_path / "in", tmp_path / "one", BuildOptions())
        for number, killed in enumerate((executor_builds.KilledReading, executor_builds.KilledCutting)):
            marks = tmp_path / f"marks-{number}"
            marks.mkdir()
            out = tmp_path / f"many-{number}"
            with pytest.MonkeyPatch.context() as patch:
                killed.put(patch, marks)
                building.build(tmp_path / "in", out, BuildOptions(jobs=2, executor=Name.parse(cluster.name)))
            assert len(list(marks.iterdir())) == 1
            assert made.outputs(out) == made.outputs(tmp_path / "one")

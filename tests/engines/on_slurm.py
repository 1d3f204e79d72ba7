"""The whole suite on a real Slurm, and what only a cluster with a queue can say."""

from __future__ import annotations

import os
import subprocess

import engines_running
import executor_fixtures
import pytest
from conformance.executor_suite import EngineSuite

from training.data.executors import on_slurm
from training.data.executors.engine import EngineError
from training.data.executors.names import Name, spread_over

scored_once = executor_fixtures.scored_once


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch, engines_running.slurm(tmp_path_factory.mktemp("slurm")) as running:
        patch.setattr(on_slurm, "QUEUE_LOOKS", 2)
        yield running


class TestSlurm(EngineSuite):
    """The suite, on Slurm."""

    @pytest.mark.parametrize(
        ("partition", "words"),
        [("nope", "^Slurm has no partition nope: there are small, down$"), ("down", "the partition is down: choose")],
    )
    def test_a_partition_that_cannot_be_used_is_said(self, cluster, tmp_path, partition, words):
        with (
            pytest.raises(EngineError, match=words),
            spread_over(Name("slurm", partition), 2, libraries=(), files=(), folder=tmp_path) as mapped,
        ):
            list(mapped(abs, [-1]))
        assert waiting() == [], "nothing is left in the queue"

    def test_no_controller_is_said(self, cluster, tmp_path, monkeypatch):
        monkeypatch.setenv("SLURM_CONF", str(tmp_path / "none"))
        with (
            pytest.raises(EngineError, match=r"^Slurm's controller does not answer .*: run it again later"),
            spread_over(Name("slurm", "small"), 2, libraries=(), files=(), folder=tmp_path),
        ):
            pass


def waiting():
    command = ["squeue", "--noheader", "--states=PENDING"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    return done.stdout.splitlines()

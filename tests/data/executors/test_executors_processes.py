"""Work spread over processes of this machine: none of them stays behind when their parent is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import executor_fixtures
import pytest
from conformance.executor_suite import DeadlySuite
from engines_running import Cluster

scored_once = executor_fixtures.scored_once

POOL = """
import os, signal
from training.data.executors.names import PROCESSES, spread_over
from pathlib import Path

if __name__ == "__main__":
    with spread_over(PROCESSES, 2, libraries=(), files=(), folder=Path()) as mapped:
        print(sum(mapped(abs, range(-20, 0))), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_pool_ends_with_a_parent_that_is_killed(tmp_path):
    """All its processes hold the pipe of standard output, which ends with the last of them."""
    script = tmp_path / "pool.py"
    script.write_text(POOL)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, script], stdout=subprocess.PIPE, timeout=100, check=False, env=environment)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"210\n")


@pytest.fixture
def cluster():
    return Cluster("processes")


class TestProcesses(DeadlySuite):
    """The suite, on processes of this machine."""

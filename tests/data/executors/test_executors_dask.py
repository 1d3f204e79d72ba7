"""Work spread over a real Dask cluster: a scheduler and two processes of this machine."""

from __future__ import annotations

import engines_running
import executor_fixtures
import pytest
from conformance.executor_suite import FarSuite

from training.data.executors import payload
from training.data.executors.engine import EngineError, WorkerLost
from training.data.executors.names import Name, spread_over

scored_once = executor_fixtures.scored_once


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with engines_running.dask(tmp_path_factory.mktemp("dask"), nanny=False) as running:
        yield running


class TestDask(FarSuite):
    """The suite, on Dask."""

    def test_a_result_that_dask_reads_as_an_error_is_asked_for_again(self, cluster, tmp_path, monkeypatch):
        monkeypatch.setattr(payload, "packed", lambda *_: b"cbuiltins\nint\n(Vseen as an error\ntR.")
        with self.spread(cluster, tmp_path) as mapped, pytest.raises(WorkerLost, match="one after the other"):
            list(mapped(abs, [1]))


def test_where_nothing_answers_is_said(tmp_path):
    address = f"tcp://127.0.0.1:{engines_running.free_port()}"
    with (
        pytest.raises(EngineError, match=f"^no Dask scheduler answers at {address} .*: start one"),
        spread_over(Name("dask", address), None, libraries=(), files=(), folder=tmp_path),
    ):
        pass
    assert not list(tmp_path.iterdir())

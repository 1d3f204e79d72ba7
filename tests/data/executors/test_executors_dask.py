"""Work spread over a real Dask cluster: a scheduler and two processes of this machine."""

from __future__ import annotations

from collections.abc import Iterator

import engines_running
import executor_fixtures
import pytest
from conformance.executor_suite import FarSuite

from training.data.executors.engine import EngineError
from training.data.executors.names import Name, spread_over

scored_once = executor_fixtures.scored_once


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[engines_running.Cluster]:
    with engines_running.dask(tmp_path_factory.mktemp("dask"), nanny=False) as running:
        yield running


class TestDask(FarSuite):
    """The suite, on Dask."""


def test_where_nothing_answers_is_said(tmp_path):
    address = f"tcp://127.0.0.1:{engines_running.free_port()}"
    with (
        pytest.raises(EngineError, match=f"^no Dask scheduler answers at {address} .*: start one"),
        spread_over(Name("dask", address), None, libraries=(), files=(), folder=tmp_path),
    ):
        pass
    assert not list(tmp_path.iterdir())

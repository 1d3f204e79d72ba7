"""The whole suite on a real Ray cluster, workers killed as often as it allows among it."""

from __future__ import annotations

import engines_running
import executor_fixtures
import pytest
from conformance.executor_suite import EngineSuite

scored_once = executor_fixtures.scored_once


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with engines_running.ray(tmp_path_factory.mktemp("ray")) as running:
        yield running


class TestRay(EngineSuite):
    """The suite, on Ray."""

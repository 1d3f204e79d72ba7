"""The database without power and on a disk that fails, on recorded writes (tests/torture has the long runs)."""

from __future__ import annotations

import sys
from unittest import mock

import pytest

apsw = pytest.importorskip("apsw", reason="records what SQLite writes; pip install apsw")

from torture import database_parts, failing_database  # noqa: E402
from torture.queue_work import JobQueue  # noqa: E402

from training.fleet.database.sqlite import SqliteDatabase  # noqa: E402

REQUESTS = failing_database.REQUESTS


@pytest.fixture(autouse=True)
def _no_thread_is_watched():
    """Python code inside SQLite is called on the writer's thread, where pytest need not look."""
    yield
    sys.stdout.flush()


def test_power_cut_after_every_operation():
    counts = database_parts.check_life(seed=0, states=1)
    assert counts["states"] >= 700
    assert counts["transactions"] > 30


@pytest.mark.thorough
def test_it_would_see_a_database_that_does_not_sync():
    """``synchronous=NORMAL`` loses what was acknowledged: that must show."""

    def careless(path, **how):
        return JobQueue(path, database=SqliteDatabase(path, synchronous="NORMAL"), **how)

    with (
        mock.patch("torture.queue_work.JobQueue", careless),
        pytest.raises(AssertionError, match="acknowledged commit is missing"),
    ):
        database_parts.check_life(seed=1, states=1)


@pytest.mark.parametrize("most", [10, pytest.param(20, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("request_name", REQUESTS)
def test_the_nth_operation_fails(request_name, most):
    """Once and for ever, on a broken or on a full disk: each of the first operations of each request."""
    assert failing_database.all_cases(request_name, most, by_turns=True)["failures"] >= 4

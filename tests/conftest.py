"""Settings of all tests: no property is judged by how fast the machine was, nor rests on an order nobody asked for."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import weakref

import places  # noqa: F401 - puts the folders of tests on the module path
import pytest
from hypothesis import HealthCheck, settings

from training.fleet.database.sqlite import SqliteDatabase
from training.trainer.contract import limit_threads

OWN = "_hypothesis_internal_use_settings"  # where a test has settings of its own
limit_threads(1)  # as trainers do by themselves; tests run side by side, and threads that wait for a core burn it


def pytest_collection_modifyitems(items):
    """Mark as thorough what is like others that stay: of the nets, ``cnn`` and ``transformer_ssl`` stand for all.

    Of a test's cases every second one, where the test is marked so; and `make test` halves examples by hand as well.
    """
    for item in items:
        given = getattr(item, "callspec", None)
        if given and (
            not {"gru", "lstm", "transformer"}.isdisjoint(str(value) for value in given.params.values())
            or (item.get_closest_marker("half") and sum(set(given.indices.values())) % 2)
        ):
            item.add_marker(pytest.mark.thorough)
    if settings.default is settings.get_profile("half"):
        for test in {item.function for item in items}:
            own = getattr(test, OWN, settings.default)
            if own is not settings.default:
                setattr(test, OWN, settings(own, max_examples=(own.max_examples + 1) // 2))


def pytest_collection_finish():
    """Take what thousands of collected tests hold out of the collector's sight.

    It lives until the end, and looking through it over and over cost a third of the time of many tests.
    """
    gc.collect()
    gc.freeze()


# One commit has one verdict: what is drawn follows from the test itself, as in Hypothesis' own profile for CI.
# `make explore` draws anew at each run.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("any machine", settings.get_profile("explore"), derandomize=True)
settings.register_profile("half", settings.get_profile("any machine"), max_examples=50)  # for `make test`
settings.load_profile("any machine")


def _rows_the_other_way(prepare):
    """SQL promises an order to those alone that ask for one: who does not, gets the less usual one here.

    A test may leave its database open. Python 3.13 would warn of the connection, and fail a later test.
    """

    def prepared(self, *args):
        weakref.finalize(self, self.connection.close).atexit = False
        prepare(self, *args)
        self.connection.execute("PRAGMA reverse_unordered_selects = ON")

    return prepared


SqliteDatabase._prepare = _rows_the_other_way(SqliteDatabase._prepare)  # type: ignore[method-assign]


_POLITE = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name)]
_AS_BEFORE = {number: signal.getsignal(number) for number in _POLITE}


@pytest.fixture(autouse=True)
def signals_as_before():
    """Give back the signals that a program takes which a test runs within itself: processes started later inherit them.

    As they were before all tests: a fixture of a whole module may have taken them first.
    """
    yield
    for number, handler in _AS_BEFORE.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def one_anomaly_method():
    """One of the plain anomaly methods stands for all beside a small model: they cost more than the model."""
    from training.trainer import baselines

    with pytest.MonkeyPatch.context() as patch:
        found = {"mahalanobis": baselines.ANOMALY_METHODS["mahalanobis"]}
        patch.setattr(baselines, "ANOMALY_METHODS", found)
        yield


@pytest.fixture
def no_rival_models(monkeypatch):
    """A report without rival models, for tests in which they have no part: they cost more than a small model."""
    monkeypatch.setattr("training.trainer.session.run_baselines", lambda *_, **__: {})


@pytest.fixture
def dig(tmp_path):
    """Make folders below one so deep that no path reaches the last one, and no recursion does."""

    def dug(folder):
        inside = os.open(folder, os.O_RDONLY)
        for _ in range(1100):
            os.mkdir("deep", dir_fd=inside)
            outside, inside = inside, os.open("deep", os.O_RDONLY, dir_fd=inside)
            os.close(outside)
        os.close(inside)

    yield dug
    subprocess.run(["rm", "-rf", *tmp_path.iterdir()], check=True)  # pytest itself could not

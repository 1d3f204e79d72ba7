"""Chunks, their order, and what is sent again, on an engine that loses what it is told to; and the names of engines."""

from __future__ import annotations

import pickle
from concurrent.futures import Executor, Future

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.executors.engine import EngineError, WorkerLost
from training.executors.names import FORMS, Name
from training.executors.on_slurm import Seen, jobs_of
from training.executors.spread import AHEAD, TRIES, Spread


class LostError(Exception):
    pass


class Losing(Executor):
    """An engine that does each task at once, or loses it: as often as ``losses`` has true values, in turn."""

    width, lost_often = 2, "lost too often"

    def __init__(self, losses=(), size=3, deaf=False):
        self.losses, self.size, self.deaf = iter(losses), size, deaf
        self.executor, self.sent, self.renewed = self, 0, 0

    def submit(self, fn, /, *args, **kwargs):
        self.sent += 1
        future = Future()
        if next(self.losses, False):
            future.set_exception(LostError())
        elif not self.deaf:
            future.set_result(fn(*args, **kwargs))
        return future

    def chunk(self, tasks):
        return self.size

    def verdict(self, error):
        return None if isinstance(error, LostError) else EngineError(str(error))

    def renew(self):
        self.renewed += 1

    def trouble(self):
        return "nobody answers" if self.deaf else None

    def close(self):
        pass


@given(st.lists(st.booleans(), max_size=40), st.integers(0, 30), st.integers(1, 5))
def test_each_result_comes_once_and_in_order_whatever_is_lost(losses, tasks, size):
    engine = Losing(losses, size)
    found = []
    try:
        found.extend(Spread(engine).map(abs, range(-tasks, 0)))
    except WorkerLost:
        assert sum(losses) >= TRIES
    else:
        assert len(found) == tasks
    assert found == [abs(number) for number in range(-tasks, 0)][: len(found)]
    assert engine.sent <= -(-tasks // size) + sum(losses)


def test_a_chunk_is_tried_a_few_times_and_not_for_ever():
    engine = Losing([True] * 99)
    with pytest.raises(WorkerLost, match="lost too often"):
        list(Spread(engine).map(abs, [-1]))
    assert engine.sent == TRIES


def test_no_more_is_sent_ahead_than_an_engine_can_work_on_soon():
    engine = Losing(size=1)
    results = Spread(engine).map(abs, range(-1000, 0))
    assert next(results) == 1000
    assert engine.sent == AHEAD * engine.width


def test_an_engine_that_will_never_answer_is_told():
    with pytest.raises(EngineError, match=r"^nobody answers$"):
        list(Spread(Losing(deaf=True), ask_s=0.0).map(abs, [-1]))


def test_nothing_is_sent_for_no_task():
    engine = Losing()
    assert list(Spread(engine).map(abs, [])) == []
    assert engine.sent == 0


def test_an_error_that_cannot_travel_is_told_by_its_words():
    class OddError(Exception):
        def __init__(self, one, two):
            super().__init__(f"{one} and {two}")

    def odd(_number):
        raise OddError(1, 2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("training.executors.sent.packed", lambda *given: pickle.dumps(0))
        patch.setattr("training.executors.sent.unpickle", lambda _packed: _work(odd))
        with pytest.raises(EngineError, match=r"^a worker failed: OddError: 1 and 2$"):
            list(Spread(Losing()).map(abs, [-1]))


def _work(function):
    from training.executors import sent

    with pytest.MonkeyPatch.context() as patch:
        loads = pickle.loads
        patch.setattr(sent.pickle, "loads", lambda text: (function, [1]) if text == b"tasks" else loads(text))
        return sent.work("", b"tasks")


@pytest.mark.parametrize(
    ("text", "kind", "address"),
    [
        ("processes", "processes", ""),
        ("dask:tcp://10.0.0.5:8786", "dask", "tcp://10.0.0.5:8786"),
        ("dask:tls://head:8786", "dask", "tls://head:8786"),
        ("ray:auto", "ray", "auto"),
        ("slurm:gpu", "slurm", "gpu"),
    ],
)
def test_an_engine_is_named(text, kind, address):
    assert Name.parse(text) == Name(kind, address)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "'' is no executor: there are processes, dask:tcp://HOST:PORT, ray:auto, slurm:PARTITION"),
        ("spark:x", "'spark:x' is no executor: there are " + ", ".join(FORMS.values())),
        ("dask", "'dask' is not of the form dask:tcp://HOST:PORT"),
        ("dask:10.0.0.5:8786", "'dask:10.0.0.5:8786' is not of the form dask:tcp://HOST:PORT"),
        ("slurm:", "'slurm:' is not of the form slurm:PARTITION"),
        ("processes:2", "'processes:2' is not of the form processes"),
        ("processes:", "'processes:' is not of the form processes"),
    ],
)
def test_a_name_that_is_none_is_refused(text, words):
    with pytest.raises(ValueError) as refused:
        Name.parse(text)
    assert str(refused.value) == words


def test_slurms_queue_is_read():
    lines = ["12|PENDING|Resources", "13|RUNNING|None", "14|OUT_OF_MEMORY|OutOfMemory", "", "slurm_load_jobs error"]
    seen = jobs_of(lines)
    assert seen == {
        "12": Seen("PENDING", "Resources"),
        "13": Seen("RUNNING", "None"),
        "14": Seen("OUT_OF_MEMORY", "OutOfMemory"),
    }
    assert [one.under_way for one in seen.values()] == [True, True, False]

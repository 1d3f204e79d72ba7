"""Chunks, their order, and what is sent again, on an engine that loses what it is told to; and the names of engines."""

import subprocess
import threading
from argparse import ArgumentTypeError
from concurrent.futures import Executor, Future
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training import checkout
from training.data.executors import on_slurm
from training.data.executors.engine import Engine, EngineError, TaskLost, WorkerLost
from training.data.executors.names import FORMS, Name
from training.data.executors.spread import AHEAD, TRIES, spread


class Losing(Executor):
    """An executor that does each task at once, or loses it: as often as ``losses`` has true values, in turn."""

    def __init__(self, losses=(), deaf=False):
        self.losses, self.deaf, self.sent = iter(losses), deaf, 0

    def submit(self, fn, /, *args, **kwargs):
        self.sent += 1
        future = Future()
        if next(self.losses, False):
            future.set_exception(TaskLost("out of memory"))
        elif not self.deaf:
            future.set_result(fn(*args, **kwargs))
        return future

    def map(self, function, tasks, size=3, **more):
        engine = Engine(
            self, 2, lambda error: error if isinstance(error, TaskLost) else EngineError(str(error)),
            "lost too often ({})", self.shutdown, lambda: "it never answers" if self.deaf else None, size, size,
        )  # fmt: skip
        return spread(engine, function, tasks, **more)


@given(st.lists(st.booleans(), max_size=40), st.integers(0, 30), st.integers(1, 5))
def test_each_result_comes_once_and_in_order_whatever_is_lost(losses, tasks, size):
    engine = Losing(losses)
    found = []
    try:
        found.extend(engine.map(abs, range(-tasks, 0), size))
    except WorkerLost:
        assert sum(losses) >= TRIES
    else:
        assert len(found) == tasks
    assert found == [abs(number) for number in range(-tasks, 0)][: len(found)]
    assert engine.sent <= -(-tasks // size) + sum(losses)


def test_a_chunk_is_tried_a_few_times_and_not_for_ever():
    engine = Losing([True] * 99)
    with pytest.raises(WorkerLost, match=r"^lost too often \(out of memory\)$"):
        list(engine.map(abs, [-1]))
    assert engine.sent == TRIES


def test_no_more_is_sent_ahead_than_an_engine_can_work_on_soon():
    engine = Losing()
    results = engine.map(abs, range(-1000, 0), size=1)
    assert next(results) == 1000
    assert engine.sent == AHEAD * 2


def test_an_engine_that_will_never_answer_is_told():
    with pytest.raises(EngineError, match=r"^it never answers$"):
        list(Losing(deaf=True).map(abs, [-1], ask_s=0.0))


def test_what_is_lost_is_sent_again_while_an_earlier_chunk_is_awaited():
    engine = Losing(losses=[False, True], deaf=True)
    with pytest.raises(EngineError, match=r"^it never answers$"):
        list(engine.map(abs, [-1, -2, -3], size=1, ask_s=0.0))
    assert engine.sent == 4


def test_nothing_is_sent_for_no_task():
    engine = Losing()
    assert list(engine.map(abs, [])) == []
    assert engine.sent == 0


class OddError(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")
        self.held = threading.Lock()  # without it, a library that another test imports may have taught errors to travel


def odd(number):
    raise OddError(number, 2)


def test_an_error_that_cannot_travel_is_told_by_its_words():
    with pytest.raises(EngineError, match=r"^a worker failed: OddError: 1 and 2$"):
        list(Losing().map(odd, [1]))


def test_the_code_of_a_worker_is_compared_wherever_it_lies(tmp_path, monkeypatch):
    """That of the trainers was left out once."""
    for name in ("clock.py", "data/doubts/windows.py", "trainer/session.py"):
        path = tmp_path / "training" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1")
    monkeypatch.setattr(checkout, "ROOT", tmp_path)
    found = {checkout.code_digest.__wrapped__()}
    for path in tmp_path.rglob("*.py"):
        path.write_text("2")
        found.add(checkout.code_digest.__wrapped__())
    assert len(found) == 4


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
    with pytest.raises(ArgumentTypeError) as refused:
        Name.parse(text)
    assert str(refused.value) == words


@pytest.mark.parametrize(
    ("returncode", "stdout", "stderr", "found"),
    [
        (0, "PENDING|Resources\n", "", ("PENDING", "Resources")),
        (0, "OUT_OF_MEMORY|OutOfMemory\n", "", ("OUT_OF_MEMORY", "OutOfMemory")),
        (0, "", "", ("forgotten", "")),
        (1, "", "slurm_load_jobs error: Invalid job id specified", ("forgotten", "")),
        (
            1,
            "",
            "slurm_load_jobs error: Unable to contact slurm controller",
            ("", "slurm_load_jobs error: Unable to contact slurm controller"),
        ),
    ],
)
def test_slurms_queue_is_read(monkeypatch, returncode, stdout, stderr, found):
    done = subprocess.CompletedProcess([], returncode, stdout, stderr)
    monkeypatch.setattr(on_slurm, "_asked", lambda *_: done)
    assert on_slurm.state_of("12") == found


@pytest.mark.parametrize("bad", [("", "busy"), ("NODE_FAIL", "")])
def test_a_slurm_job_is_given_up_only_for_bad_answers_in_a_row(tmp_path, monkeypatch, bad):
    said, result = iter([bad, ("RUNNING", "")] * on_slurm.DEAF), tmp_path / "result"

    def state_of(_):
        answer = next(said, None)
        if answer is None:
            result.touch()
        return answer or ("RUNNING", "")

    for name, value in (("LOOK_S", 0.0), ("QUEUE_LOOKS", 1), ("state_of", state_of)):
        monkeypatch.setattr(on_slurm, name, value)
    job = SimpleNamespace(job_id=12, paths=SimpleNamespace(result_pickle=result), result=lambda: "done")
    jobs = on_slurm.SlurmJobs(SimpleNamespace(submit=lambda *_: job), 1)
    assert jobs.submit(abs, -1).result() == "done"
    jobs.shutdown()

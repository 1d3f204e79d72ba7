"""Exit codes, progress lines and the polite stop."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from functools import partial

import pytest
from fakes import FakeClock
from hypothesis import given
from hypothesis import strategies as st
from trainer_builders import Memory, told_in_order

from training.contract import Exit
from training.trainer import contract
from training.trainer.contract import Progress, Stop, perform
from training.trainer.stages import Stages


def outcome(work):
    out, err = io.StringIO(), io.StringIO()
    code = perform(work, out=out, err=err, clock=FakeClock(), stop=Stop())
    return code, [json.loads(line) for line in out.getvalue().splitlines()], err.getvalue()


def raising(error):
    def work(progress, stop):
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (contract.BadArguments("lower the rate"), Exit.BAD_ARGUMENTS, "error: lower the rate\n"),
        (contract.BadData("record more"), Exit.BAD_DATA, "error: record more\n"),
        (MemoryError(), Exit.OUT_OF_MEMORY, "error: out of memory: choose a smaller batch_size"),
        (RuntimeError("CUDA out of memory. Tried"), Exit.OUT_OF_MEMORY, "error: out of memory"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), Exit.OUT_OF_MEMORY, "error: out of memory"),
        (contract.Interrupted(), Exit.INTERRUPTED, "the same command resumes from"),
        (
            OSError(28, "No space left on device", "/models/w"),
            Exit.NO_ACCESS,
            "error: cannot use the disk: /models/w: No space left on device; see that",
        ),
        (OSError(5, "Input/output error"), Exit.NO_ACCESS, "cannot use the disk: Input/output"),
        (
            ModuleNotFoundError("No module", name="numpy.linalg"),
            Exit.BUG,
            "numpy.linalg is not installed here: run",
        ),
    ],
)
def test_every_end_has_its_code_and_a_sentence(error, code, sentence):
    ended, _, said = outcome(raising(error))
    assert ended == code
    assert sentence in said
    assert "Traceback" not in said


def test_a_bug_shows_where_and_ends_with_a_sentence():
    code, events, said = outcome(raising(ZeroDivisionError("by zero")))
    assert code == Exit.BUG
    assert said.splitlines()[-1] == "error: a bug in the trainer: ZeroDivisionError: by zero"
    assert events[-1]["code"] == 70


def test_done_is_zero():
    assert outcome(lambda progress, stop: progress.event("done"))[:2] == (0, [{"event": "done"}])


def test_progress_lines_are_rare_but_never_miss_the_last():
    clock, out = FakeClock(), io.StringIO()
    progress = Progress(out, clock)
    progress.metric_name = "validation AUROC"
    with progress.stage("search", 0, [100, 60]):
        progress.begin_epochs()
        for epoch in range(1, 101):
            clock.advance(0.01)
            progress.epoch(epoch, 100, loss=float("nan"), metric=0.5)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert len(lines) < 10
    assert lines[-1] == {
        "event": "epoch", "stage": "1 of 2: search", "epoch": 100, "epochs": 160, "stage_epoch": 100,
        "stage_epochs": 100, "loss": None, "metric": 0.5, "metric_name": "validation AUROC", "seconds": 1.0,
        "eta_s": 0.6,
    }  # fmt: skip


def test_a_resumed_run_estimates_by_its_own_pace():
    clock, out = FakeClock(), io.StringIO()
    progress = Progress(out, clock)
    clock.advance(1000.0)  # loading took its time
    with progress.stage("search", 0, [100]):
        progress.begin_epochs()
        for epoch in (51, 52):
            clock.advance(1.0)
            progress.epoch(epoch, 100, loss=1.0, metric=None)
    assert [json.loads(line)["eta_s"] for line in out.getvalue().splitlines()] == [49.0, 48.0]


trainings = st.lists(st.lists(st.integers(1, 12), min_size=3, max_size=3).map(sorted), min_size=1, max_size=4)


@given(own=trainings, others=st.lists(trainings, max_size=2), stops=st.lists(st.integers(0, 30), max_size=4))
def test_no_stop_and_no_early_end_turns_progress_back(own, others, stops):
    """Of each stage: after how many epochs it ends, how many are planned as it begins, and at most as the run does."""
    clock, out, keeper, weights = FakeClock(), io.StringIO(), Memory(), [1.0] * (len(others) + 1)
    weights.append(sum(weights) / 9)

    def fit(last, most, keeper):
        done = int(keeper.load() or 0)
        keeper.watch(lambda: b"%d" % (done - done % 3))  # as of trees, of which the last few are boosted again
        progress.begin_epochs()
        while done < last:
            if next(left) == 0:
                raise contract.Interrupted
            clock.advance(0.15)
            done += 1
            progress.epoch(done, most, loss=0.5, metric=None)
        return b"done"

    def train(stages, keeper):
        inner = Stages(keeper, progress, [planned for *_, planned in stages])
        for number, (last, most, _) in enumerate(stages):
            inner.answer(str(number), partial(fit, last, most))
        return b"trained"

    for stop in [*stops, -1]:
        left, progress = iter(range(stop, -1 if stop >= 0 else -10_000, -1)), Progress(out, clock)
        stages = Stages(keeper, progress, weights)
        try:
            stages.run("", partial(train, own))
            for number, other in enumerate(others):
                stages.answer(f"without {number}", partial(train, other), curve=False)
        except contract.Interrupted:
            keeper = Memory(keeper.snapshot())
        else:
            break
    with progress.stage("evaluation", len(weights) - 1, weights):
        progress.event("evaluate", **progress.place())
    told = told_in_order([json.loads(line) for line in out.getvalue().splitlines()])
    points = [line["epoch"] for line in told if "loss" in line]
    assert len(points) == len(set(points)), "each is a row of the curve"
    assert told[-1]["epochs"] == pytest.approx(10 / 9 * len(weights[1:]) * sum(planned for *_, planned in own), abs=1)


@pytest.fixture
def restored_signals():
    kept = {name: signal.getsignal(name) for name in (signal.SIGTERM, signal.SIGINT)}
    yield
    for name, handler in kept.items():
        signal.signal(name, handler)


@pytest.mark.usefixtures("restored_signals")
def test_a_polite_signal_is_heard_at_the_next_safe_point():
    stop = Stop()
    stop.listen()
    stop.check()
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(contract.Interrupted):
        stop.check()


@pytest.mark.usefixtures("restored_signals")
def test_before_there_is_anything_to_keep_a_polite_signal_is_heard_at_once():
    stop, reached = Stop(), []
    stop.listen()

    def read():
        with stop.at_once():
            reached.append("began")
            signal.raise_signal(signal.SIGTERM)
            reached.append("went on")

    for _ in range(2):  # a stop that was requested before is heard before anything begins
        with pytest.raises(contract.Interrupted):
            read()
    assert reached == ["began"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows ends processes without a signal")
def test_a_signal_behind_the_end_does_not_undo_a_finished_run():
    """Python gives its handlers back before it ends: what is freed after that sends the signal here."""
    program = (
        "import os, signal, sys\n"
        "from training.trainer.contract import perform\n"
        "class Late:\n"
        "    def __del__(self, kill=os.kill, me=os.getpid(), number=int(signal.SIGTERM)):\n"
        "        kill(me, number)\n"
        "late = Late()\n"
        "sys.exit(perform(lambda progress, stop: progress.event('done')))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (Exit.DONE, '{"event": "done"}\n')

"""The meaning of a trainer's end and its last words."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.fleet.process.ended import Ended
from training.fleet.scheduling.job import EndReason
from training.fleet.wire.constants import ERROR_CHARS_MAX
from training.fleet.wire.progress import parse_progress, taken
from training.fleet.worker.state.exit_code import MemoryKind, error_text, judge

TRACEBACK = [
    "loading 120 episodes",
    "Traceback (most recent call last):",
    '  File "run.py", line 3, in <module>',
    "    fit(x)",
    "training.data.SplitError: train host pi-1 is also in the test",
    "/usr/lib/python3.11/multiprocessing/resource_tracker.py:224: UserWarning: leaked semaphores",
    "  warnings.warn('resource_tracker: There appear to be leaked objects')",
]


def exited(code):
    return Ended(code=code)


def headline(ended, lines, complaint=None):
    return judge(ended, lines, complaint).error.splitlines()[0]


def test_success_is_no_failure():
    assert judge(exited(0), ["ValueError: only a word in the output"]) is None


@pytest.mark.parametrize(
    ("lines", "complaint", "words"),
    [
        (TRACEBACK, None, "training.data.SplitError: train host pi-1 is also in the test"),
        (TRACEBACK, "cannot split", "cannot split"),
        (["error: no such file", "usage: run"], None, "error: no such file"),
        (["RuntimeError: boom", '{"event": "error", "code": 70}'], None, "RuntimeError: boom"),
        (["half way", "gave up"], None, "gave up"),
        (["  indented", ""], None, "indented"),
        (
            [
                "terminate called after throwing …",
                "  what():  [10:31:02] x.cc:37: no room",
                "Stack trace:",
                "  [bt] (0) x",
            ],
            None,
            "what():  [10:31:02] x.cc:37: no room",
        ),
    ],
)
def test_first_line_is_the_actual_error(lines, complaint, words):
    assert headline(exited(70), lines, complaint) == f"exit status 70: {words}"


def test_error_says_nothing_twice_and_leaves_progress_out():
    lines = ['{"event": "start"}', "reading", '{"event": "error", "message": "no rows"}']
    failure = judge(exited(65), [*lines, "error: no rows"], "no rows")
    assert failure.error == "exit status 65: no rows\nit also printed: reading"


def test_silence_is_said_to_be_that():
    assert headline(exited(3), []) == "exit status 3, and it printed nothing"


@pytest.mark.parametrize(
    ("ended", "lines", "words"),
    [
        (exited(1), ["torch.cuda.OutOfMemoryError: CUDA out of memory. Tried …"], "(out of GPU memory)"),
        (exited(1), ["MemoryError: Unable to allocate 3 GiB"], "(out of memory)"),
        (exited(134), ["terminate called after throwing std::bad_alloc"], "(out of memory)"),
        (exited(137), ["Killed"], "(possibly out of memory)"),
        (Ended(signal=9), [], "(possibly out of memory)"),
    ],
)
def test_memory_that_ran_out_is_named(ended, lines, words):
    assert words in headline(ended, lines)


GIB = 1024**2  # in KiB
KILLED = Ended(signal=9, max_rss_kib=6 * GIB)


@pytest.mark.parametrize(
    ("ended", "lines", "lacking"),
    [
        # said by the trainer
        (exited(1), ["torch.OutOfMemoryError: CUDA out of memory. Tried …"], MemoryKind.VRAM),
        (exited(1), ["RuntimeError: CUDA error: out of memory"], MemoryKind.VRAM),
        (exited(1), ["xgboost.core.XGBoostError: cudaErrorMemoryAllocation: out of memory"], MemoryKind.VRAM),
        (exited(1), ["RuntimeError: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"], MemoryKind.VRAM),
        (exited(1), ["on the GPU now", "MemoryError: Unable to allocate 3 GiB"], MemoryKind.RAM),
        (exited(134), ["terminate called …", "  what():  std::bad_alloc"], MemoryKind.RAM),
        (exited(1), ["RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory"], MemoryKind.RAM),
        # said by the kernel
        (replace(KILLED, oom_kills=1), ["epoch 3"], MemoryKind.RAM),
        (replace(KILLED, oom_kills=2), ["CUDA is in use"], MemoryKind.RAM),
        (Ended(code=137, oom_kills=1), ["Killed"], MemoryKind.RAM),
        (replace(KILLED, free_kib=7 * GIB), [], MemoryKind.RAM),
        # not said
        (KILLED, [], None),
        (replace(KILLED, free_kib=8 * GIB), [], None),
        (exited(137), ["Killed"], None),
        (Ended(signal=11, oom_kills=1), [], None),
        (exited(1), ["ValueError: bad shape"], None),
        (exited(1), ["CUDA out of memory, with a smaller batch now", *"abcdef", "ValueError: x"], None),
    ],
)  # fmt: skip
def test_which_memory_ran_out_is_told_only_on_evidence(ended, lines, lacking):
    assert judge(ended, lines).out_of_memory is lacking


@pytest.mark.skipif(os.name == "nt", reason="no signal ends a process there")
def test_kernels_kill_names_what_the_trainer_held():
    assert headline(replace(KILLED, oom_kills=1), ["epoch 3"]) == (
        "killed by SIGKILL (out of memory, at 6.0 GiB): epoch 3"
    )


def test_segmentation_fault_is_not_called_memory():
    assert headline(Ended(signal=11), []) == ("killed by SIGSEGV, and it printed nothing")


@pytest.mark.skipif(os.name == "nt", reason="no signal ends a process there")
def test_a_page_that_does_not_come_is_said():
    said = "killed by SIGBUS (a file that it had mapped could not be read or had no room)"
    assert headline(Ended(signal=signal.SIGBUS), ["epoch 3"]) == f"{said}: epoch 3"


@pytest.mark.parametrize("ended", [exited(75), Ended(signal=15)])
def test_being_asked_to_stop_by_somebody_else_is_nobodys_fault(ended):
    assert judge(ended, TRACEBACK).reason is EndReason.INTERRUPTED


def test_unheard_of_signal_has_a_number():
    assert Ended(signal=250).describe() == "killed by signal 250"


@given(st.text(max_size=9000), st.lists(st.text(max_size=600), max_size=60))
def test_error_text_is_bounded_and_keeps_the_end(first, lines):
    text = error_text(first, lines)
    assert len(text) <= ERROR_CHARS_MAX
    assert text.startswith(first[:1000])


@given(st.text() | st.recursive(st.none() | st.floats() | st.text(), st.lists).map(json.dumps))
def test_any_line_is_progress_or_none(line):
    parse_progress(line)
    parse_progress('{"event": "x", "v": ' + line + "}")


def test_long_progress_is_taken_and_what_is_not_is_said():
    long = {"event": "epoch"} | {f"loss_{number}": number / 7 for number in range(100)} | {"epoch": 9}
    assert len(json.dumps(long)) > 2048
    assert taken(json.dumps(long)) == (long, "")
    fields, complaint = taken(json.dumps({"note": "x" * 5000, "more": "x" * 5000, "event": "e", "loss": 1}))
    assert fields == {"note": "x" * 5000, "event": "e", "loss": 1}
    assert "1 of 4 fields are not taken" in complaint
    fields, complaint = taken(json.dumps({"event": "x" * 9000}))
    assert fields is None
    assert "not taken" in complaint


def test_progress_keeps_only_what_can_be_shown():
    line = '{"event": "epoch", "loss": NaN, "eta_s": 1e999, "n": 3, "deep": {"a": 1}, "ok": true, "m": null}'
    assert parse_progress(line) == {"event": "epoch", "n": 3, "ok": True, "m": None}
    assert parse_progress('{"event": 1}') is None
    assert parse_progress('{"event": "x", "n": ' + "9" * 1000 + "}") == {"event": "x"}
    assert parse_progress("[" * 2000) is None
    assert parse_progress('{"a":' * 300) is None

"""A program that leaves does what the interpreter would still do, but for taking itself apart."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from places import ROOT

from training.leaving import CANNOT_FLUSH


def ran(program, **how):
    found = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", "PYTHONUNBUFFERED": ""}
    words = [sys.executable, "-c", "from training.leaving import leave\n" + program]
    return subprocess.run(words, env=found, text=True, stderr=subprocess.PIPE, check=False, **how)


def said(program):
    done = ran(program, stdout=subprocess.PIPE)
    assert done.stderr == ""
    return done.returncode, done.stdout


@pytest.mark.parametrize("code", [0, 1, 75])
def test_what_was_printed_arrives_and_the_code_is_that_of_the_program(code):
    assert said(f"print('x' * 10_000, end='')\nleave({code})") == (code, "x" * 10_000)


def test_what_is_registered_for_the_end_runs_and_objects_are_not_taken_apart():
    program = """
import atexit
class Told:
    def __del__(self): print("taken apart")
told = Told()
atexit.register(print, "registered")
leave(3)
"""
    assert said(program) == (3, "registered\n")


def test_a_temporary_folder_goes(tmp_path):
    program = f"import tempfile\nkept = tempfile.TemporaryDirectory(dir={str(tmp_path)!r})\nleave(0)"
    assert ran(program, stdout=subprocess.PIPE).returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_a_thread_that_is_no_daemon_is_waited_for():
    program = """
import threading
go = threading.Event()
def late():
    go.wait()
    print("late")
threading.Thread(target=late).start()
threading.Thread(target=go.wait, args=(1000,), daemon=True).start()
threading.Timer(0.1, go.set).start()
leave(0)
"""
    assert said(program) == (0, "late\n")


@pytest.mark.skipif(os.name != "posix", reason="closes the reading end of a pipe")
@pytest.mark.parametrize(("code", "seen"), [(0, CANNOT_FLUSH), (75, 75)])
def test_a_reader_that_went_away_is_an_exit_code(code, seen):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert ran(f"print('x')\nleave({code})", stdout=writing).returncode == seen
    finally:
        os.close(writing)

"""A program never ends by what it prints: neither a sign that the stream has not, nor a reader that went away."""

import ast
import errno
import io
import logging
import os
import subprocess
import sys

import pytest
from places import ROOT

from training.logs import HOURLY, Hourly
from training.streams import complain, has_seen_enough, replace_unprintable

PROGRAMS = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "training").rglob("*.py")
    if "\ndef main(" in path.read_text("utf-8")
    and path.name != "fresh.py"  # it runs before the package is installed, and its sentences are plain ASCII
)


def test_what_a_stream_has_no_sign_for_becomes_a_question_mark():
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding="cp1252")
    replace_unprintable(stream)
    stream.write("1 → 2 …")
    stream.flush()
    assert written.getvalue().decode("cp1252") == "1 ? 2 …"


@pytest.mark.parametrize(("terminal", "said"), [(True, "see the\ncis490-jobs\n"), (False, "see the cis490-jobs\n")])
def test_complaint_is_wrapped_at_words_on_a_terminal_alone(monkeypatch, terminal, said):
    monkeypatch.setenv("COLUMNS", "12")
    err = io.StringIO()
    monkeypatch.setattr(err, "isatty", lambda: terminal)
    complain("see the cis490-jobs", err)
    assert err.getvalue() == said


def test_line_that_a_timer_repeats_is_logged_once_an_hour():
    passes = Hourly().filter
    lines = [("a", 0, HOURLY), ("a", 3599, HOURLY), ("b", 3599, HOURLY), ("a", 3599, {}), ("a", 3600, HOURLY)]
    records = [logging.makeLogRecord({"msg": text, "created": at, **extra}) for text, at, extra in lines]
    assert [passes(each) for each in records] == [True, False, True, True, True]


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_sees_to_its_streams_first(program):
    tree = ast.parse((ROOT / program).read_text("utf-8"))
    (main,) = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "main")
    calls = [n.func.id for n in ast.walk(main) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    assert next(name for name in calls if name != "note_hangups") == "replace_unprintable"  # which prints nothing


def test_an_installation_is_told_in_a_pipe_that_knows_few_signs():
    done = subprocess.run(
        [
            *(sys.executable, "-m", "training.fleet.install", "worker", "--dry-run"),
            *("--receiver-url", "http://127.0.0.1:9", "--host-id", "pc"),
        ],
        capture_output=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert b"Traceback" not in done.stderr
    assert b"Looking at this machine" in done.stdout
    assert done.stdout.isascii()


@pytest.mark.parametrize(
    ("error", "system", "seen"),
    [
        (BrokenPipeError(errno.EPIPE, "gone"), "posix", True),
        (BrokenPipeError(errno.EPIPE, "gone"), "nt", True),
        (OSError(errno.EINVAL, "gone"), "nt", True),
        (OSError(errno.EINVAL, "wrong"), "posix", False),
        (OSError(errno.ENOSPC, "full"), "nt", False),
    ],
)
def test_a_reader_that_went_away_is_known_on_every_system(error, system, seen, monkeypatch):
    monkeypatch.setattr("training.streams.os.name", system)
    told = has_seen_enough(error)
    monkeypatch.undo()
    assert told is seen


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", ["training.fleet.cli.program", "training.command init", "training.data.build --help"])
def test_a_command_ends_quietly_when_its_reader_went_away(words, unbuffered, tmp_path):
    """Unbuffered, its print fails; buffered, its last flush."""
    reader, writer = os.pipe()
    os.close(reader)
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", *words.split()]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False, cwd=tmp_path, env=env)
    os.close(writer)
    assert done.stderr == b""

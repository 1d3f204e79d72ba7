"""Real processes in tests: whether they run, how they ended, and waiting for what they bring about."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from places import CHILDREN

from training.fleet.process.environment import trainer_environment
from training.fleet.process.supervise import CommandSpec

PATIENCE_S = 60.0


def nap(seconds):
    threading.Event().wait(seconds)


def until(condition, pause=nap):
    """Wait for a condition that another process brings about; ``pause`` is something that takes a moment."""
    for _ in range(int(PATIENCE_S / 0.01)):
        if condition():
            return
        pause(0.01)
    raise AssertionError("it did not happen")


def state_of(pid):
    """The letter of its state, as Linux shows it; X for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def is_running(pid):
    """A zombie that waits for init counts as ended."""
    return state_of(pid) not in "ZX"


def end_of(process):
    ended = process.wait(PATIENCE_S)
    assert ended is not None, "it does not end"
    return ended


def begun(runner, folder, child, *arguments, says="", end=None, env=None):
    """Start one of the children, and wait until it ``says`` this."""
    argv = [sys.executable, str(CHILDREN / f"{child}.py"), *map(str, arguments)]
    environment = trainer_environment(os.environ) if env is None else env
    process = runner.start(CommandSpec(argv, folder, environment, folder / "output.log", end))
    until(lambda: says in printed(folder), process.wait)
    return process


def printed(folder):
    file = folder / "output.log"
    return file.read_text("utf-8", "replace") if file.exists() else ""

"""``cis490-jobs watch``: what it lays out in any size, and how it behaves in a real terminal."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import a_capability, a_job
from hypothesis import given
from hypothesis import strategies as st
from receiver_running import Receiver
from torture.fleet import until

from training.fleet.cli.watch_screen import screen, sentence

NOW = 1_700_000_000.0
REMOTE = st.text(max_size=60)
VIEW = st.fixed_dictionaries(
    {
        "name": REMOTE,
        "status": st.sampled_from(["running", "claimed"]),
        "host": REMOTE,
        "progress": st.none()
        | st.fixed_dictionaries(
            {"epoch": st.integers(0, 99), "epochs": st.integers(0, 99), "eta_s": st.floats(0, 1e6)}
        ),
        "heartbeat_at": st.none() | st.floats(NOW - 1e6, NOW),
        "error": REMOTE,
        "obstacle": st.none() | REMOTE,
        "held_by": st.none() | REMOTE,
    }
)
FLEET = st.fixed_dictionaries(
    {
        "counts": st.dictionaries(
            st.sampled_from(["running", "pending", "failed", "completed"]), st.integers(0, 10**6)
        ),
        "live": st.lists(VIEW, max_size=8),
        "pending": st.lists(VIEW, max_size=8),
        "failed": st.lists(VIEW, max_size=8),
        "workers": st.lists(st.fixed_dictionaries({"hostname": REMOTE, "alive": st.booleans()}), max_size=8),
        "detail": st.none() | REMOTE,
        "quarantined": st.dictionaries(REMOTE, REMOTE, max_size=3),
        "now": st.just(NOW),
    }
)


@given(FLEET, st.integers(20, 200), st.integers(3, 60), st.booleans())
def test_it_fits_into_every_terminal_and_nothing_from_afar_moves_the_cursor(
    data: dict[str, Any], width: int, height: int, plain: bool
) -> None:
    lines = screen(data, width, height, plain=plain, footer="q quits")
    assert len(lines) <= height
    assert lines[-1].plain == "q quits"
    for line in lines:
        assert line.cell_len <= width
        assert line.plain.isprintable() or not line.plain


def test_a_host_that_is_taken_out_is_not_idle() -> None:
    workers = [{"hostname": "pi", "alive": True}, {"hostname": "desk", "alive": True}]
    pending = [{"name": "one"}, {"name": "two", "obstacle": "no known host can run it"}]
    data = {"counts": {"pending": 2}, "live": [], "pending": pending, "failed": [], "workers": workers, "now": NOW}
    lines = [line.plain.split() for line in screen(data | {"quarantined": {"pi": "sick"}}, 80, 24, plain=True)]
    assert ["pi", "gets", "no", "jobs"] in lines
    assert ["desk", "idle"] in lines
    assert ["one:", "for", "their", "turn"] in lines


def test_a_sentence_says_how_far_the_plan_is() -> None:
    assert sentence({"counts": {}}) == "There are no jobs yet."
    assert sentence({"counts": {"completed": 14, "cancelled": 2}}) == "14 of 14 jobs trained."
    counts = {"completed": 11, "running": 2, "pending": 1, "failed": 1}
    assert sentence({"counts": counts}) == "11 of 15 jobs trained; 2 training, 1 waiting, 1 failed."


# ── in a real terminal ──────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    jobs = [a_job("gbt-oracle", priority=90), a_job("needs-gpu", require_cuda=True), a_job("later")]
    with Receiver(tmp_path_factory.mktemp("watched"), jobs) as made:
        yield made


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Callable[..., str]]:
    program = shutil.which("tmux")
    if program is None:
        pytest.skip("no tmux here")
    name = f"cis490-{uuid.uuid4().hex[:8]}"

    def run(*words: str) -> str:
        environment = {**os.environ, "LC_ALL": "C.UTF-8", "HOME": str(tmp_path)}
        command = [program, "-L", name, "-f", "/dev/null", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    yield run
    subprocess.run([program, "-L", name, "kill-server"], capture_output=True, check=False)


def command(receiver: Receiver, *words: str) -> str:
    return " ".join([sys.executable, "-m", "training.fleet.cli", *words, "--receiver-url", receiver.url])


def test_it_draws_in_place_follows_what_happens_and_quits(receiver: Receiver, tmux: Callable[..., str]) -> None:
    # With the receiver's address added, the command that lifts a hold is wider than the terminal.
    receiver.client("ada").hold("needs-gpu")
    line = f"NO_COLOR=1 {command(receiver, 'watch')}; echo code=$?; read end"
    tmux("new-session", "-d", "-x", "80", "-y", "24", "-s", "w", line)

    def shown() -> str:
        return tmux("capture-pane", "-p", "-t", "w")

    try:
        until(lambda: "q quits   live" in shown(), "it listens to the stream")
    except AssertionError as error:
        raise AssertionError(f"{error}; on the screen:\n{shown()}") from None
    assert "0 of 3 jobs trained; 3 waiting." in shown()
    assert "held by operator until `cis490-jobs unhold" in shown()
    desk = receiver.client("desk")
    grant = desk.claim(a_capability())
    assert grant is not None
    desk.heartbeat(grant.job_id, progress={"event": "epoch", "epoch": 3, "epochs": 4, "eta_s": 80.0})
    until(lambda: "3/4 (75%)" in shown(), "the bar follows")
    (desk_now,) = (each for each in shown().splitlines() if each.startswith("desk"))
    assert "gbt-oracle" in desk_now
    assert "1 min 20 s left" in desk_now
    assert "█" in desk_now
    tmux("resize-window", "-t", "w", "-x", "50", "-y", "10")
    until(lambda: max(map(len, shown().splitlines())) <= 50 and "q quits" in shown().splitlines()[-1], "it fits")
    tmux("send-keys", "-t", "w", "q")
    until(lambda: "code=0" in shown(), "it quits, and the last picture stays")
    assert "gbt-oracle" in shown()


def test_json_is_a_line_a_change(receiver: Receiver) -> None:
    words = [sys.executable, "-m", "training.fleet.cli", "watch", "--json", "--receiver-url", receiver.url]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        pending = first["counts"]["pending"]
        receiver.client("ada").hold("later")
        second = json.loads(process.stdout.readline())
        process.terminate()
    assert pending == second["counts"]["pending"]
    assert [view["held_by"] is not None for view in second["pending"] if view["name"] == "later"] == [True]

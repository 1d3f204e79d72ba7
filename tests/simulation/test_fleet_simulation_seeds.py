"""Fleets in which a promise was broken once, each under the name of what was found there.

What a seed stands for moves with the code around it, so these are no proof that a mended fault stays mended: that is
what the planted bugs are for. They are the fleets in which it happened.
"""

from __future__ import annotations

import pytest

from simulation.run import run_seed

FOUND = {
    18: "a later delivery passed for the first when the clock was a day back",
    37: "a repeated upload was indexed twice",
    66: "a repeated claim promised a lease by a clock that had just been set back",
    307: "a step of the clock was forgotten with the commit that a full disk undid",
    714: "another installation was let in because the clock had stepped forward",
    720: "another installation was let in because the clock had stepped forward, once more",
    3336: "another installation was let in because the clock had stepped before a crash",
    8329: "a heartbeat a minute late took a job back for a worker that had gone on to another",
}


@pytest.mark.parametrize("seed", FOUND, ids=lambda seed: f"{seed}: {FOUND[seed]}")
def test_what_was_found_once_is_not_found_again(seed: int) -> None:
    assert run_seed(seed).violation is None

"""Slow clients beside a good one, and many workers at once. How fast is printed, never asserted."""

import os

import pytest
from torture.load import many_workers, slow_clients

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="starts the receiver as a POSIX process"),
    pytest.mark.timeout(600),
]


def test_200_slow_clients_beside_a_good_one():
    counts = slow_clients(200, to_the_end=False)
    assert counts["slow_clients"] == 200
    assert counts["good_claims"] > 10
    print(f"the good client's claims: p99 {counts['claim_p99_ms_max']} ms")


@pytest.mark.parametrize("seconds", [10.0, pytest.param(20.0, marks=pytest.mark.thorough)])
def test_20_workers_for_a_while(seconds):
    counts = many_workers(20, seconds)
    assert counts["completed"] > 20
    print(f"{counts['claims']} claims, p99 {counts['claim_p99_ms_max']} ms")

"""A relay that strikes at a given byte of a given request; sleepers; a receiver that is away; two with one name."""

from __future__ import annotations

import os

import pytest
from torture import suspended
from torture.bad_network import KINDS, strike_at

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="starts and suspends POSIX processes"),
    pytest.mark.timeout(600),
]


@pytest.mark.half
@pytest.mark.parametrize("kind", KINDS)
def test_a_job_completes_once_whatever_the_network_does(kind):
    assert strike_at(kind, full=False)["strikes"] >= 5


@pytest.mark.parametrize(
    "taken",
    [pytest.param(False, id="alone"), pytest.param(True, id="another-host-takes-it", marks=pytest.mark.thorough)],
)
@pytest.mark.parametrize("place", ["worker.printed", "worker.before.Upload"])
def test_a_worker_sleeps_beyond_its_lease(place, taken):
    suspended.worker_sleeps(place, taken)


def test_a_receiver_dies_and_stays_away_for_leases():
    suspended.receiver_away("store.published")


def test_a_receiver_sleeps_and_holds_it_against_nobody():
    suspended.receiver_sleeps()


def test_two_installations_of_one_name():
    suspended.two_installations()


def test_two_machines_from_one_disk():
    suspended.copied_disk(3)

"""From a bare machine to a trained model and out again, over a network: see two_namespaces.py."""

from __future__ import annotations

import pytest
from two_namespaces import STOPS_S, Impossible, run


@pytest.fixture(scope="module")
def told():
    try:
        yield run()
    except Impossible as error:
        pytest.skip(str(error))


def test_one_line_joins_a_machine_that_trains_with_data_it_did_not_have(told):
    assert told["line"].startswith("sudo scripts/install-training-worker.sh --receiver-url https://")
    assert told["line"].count("\n") == 1
    assert "join the fleet" in told["pasted"]["out"]
    assert len(told["artifact"]) == len(told["dataset"]) == 64
    assert "fetching data set" in told["log"]


def test_putting_it_out_stops_its_training_at_once_and_for_good(told):
    assert told["trainer_gone_s"] <= STOPS_S
    assert told["trainers_after"] == []
    assert told["status_after"] == "pending", "others may have the job"
    assert told["attempts_after"] == ["host_lost"], "and it was never given to this host again"
    assert "revoked" in told["log"]
    assert not told["active"], "the worker ended"

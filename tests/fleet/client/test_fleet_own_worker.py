"""A worker loop of a user's own, over FleetClient alone, against a receiver that really listens."""

import json
from collections.abc import Mapping
from types import SimpleNamespace

import pytest
from builders import a_job
from receiver_running import Receiver

from training.fleet.wire.incident_messages import WatchReply

CAPABILITY = {"hostname": "mine", "cpu_cores": 4, "ram_available_gib": 8.0, "cuda_available": False}


@pytest.fixture
def receiver(tmp_path):
    with Receiver(tmp_path, [a_job("good"), a_job("bad", seed=2)]) as running:
        yield running


def work(client, folder, *, as_items):
    """Train what there is, as somebody writes it who has only read the five calls."""
    done = []
    while (job := client.claim(CAPABILITY)) is not None:
        said = job if as_items else job.to_dict()
        job_id, spec = (said["job_id"], said["spec"]) if as_items else (job.job_id, job.spec)
        assert isinstance(spec, Mapping)
        beat = client.heartbeat(job_id, lines=["epoch 1"], progress={"event": "epoch", "epoch": 1, "epochs": 2})
        assert beat["action"] == beat.action == "continue"
        assert client.heartbeat(job_id, lines=["epoch 2"])["log_next"] == 2
        if job.name == "bad":
            assert client.fail(job_id, error="ValueError: no rows")["status"] == "pending", "it is tried again"
            client.call("cancel", job_id)
        else:
            bundle = folder / f"{job_id}.tar.zst"
            bundle.write_bytes(b"a model")
            artifact_id = client.upload_artifact(job_id, bundle)
            receipt = client.complete(job_id, artifact_id=artifact_id)
            assert receipt.to_dict() == {
                "job_id": job_id,
                "status": "completed",
                "artifact_id": artifact_id,
                "attempt": 1,
            }
        done.append(job.name)
    return done


@pytest.mark.parametrize("as_items", [True, False])
def test_a_workers_loop_of_ones_own(receiver, tmp_path, as_items):
    client = receiver.client("mine")
    assert sorted(work(client, tmp_path, as_items=as_items)) == ["bad", "good"]
    assert {each["name"]: each["status"] for each in client.all_jobs()} == {"good": "completed", "bad": "cancelled"}
    (last,) = client.job("bad")["attempts"]
    assert last["error"] == "ValueError: no rows"
    assert client.log("good")["lines"] == ["epoch 1", "epoch 2"]
    assert json.dumps(client.claim(CAPABILITY)) == "null"


@pytest.mark.parametrize("value", [{"number": 3}, SimpleNamespace(number=3)])
def test_a_message_takes_no_default_for_what_it_is_made_from_lacks(value):
    assert WatchReply.of(value, known=True) == WatchReply(number=3, known=True)
    with pytest.raises((KeyError, AttributeError), match="known"):
        WatchReply.of(value)

"""Data reaches a host: a receiver, a worker that has none, and one of our own trainers, as real processes."""

from __future__ import annotations

import io
import os
import random

import pytest
from process_fleet import until
from test_fleet_dataset import QUIET
from test_fleet_end_to_end import Fleet
from torture.scenes import fetching
from trainer_builders import make_data

from training.fleet.cli.context import CommandContext
from training.fleet.cli.program import main
from training.fleet.client.push import push, read_folder

pytestmark = pytest.mark.skipif(os.name != "posix", reason="starts and signals POSIX processes")

PLAN = """\
schema_version = 1
name = "bare"

[defaults]
dataset = "processed"
split_recipe = "host"
train_hosts = ["alpha", "beta"]
n_resamples = 200

[[jobs]]
name = "gbt"
model = "gbt"
mode = "realistic"
hyper.n_estimators = 5
"""


@pytest.fixture
def fleet(tmp_path):
    one = Fleet(tmp_path)
    (tmp_path / "plan.toml").write_text("schema_version = 1\n")
    one.start_receiver()
    yield one
    one.close()


def cis490_jobs(fleet, *argv):
    out = io.StringIO()
    world = CommandContext(connect=lambda url, token: fleet.client, out=out, err=out, environ={})
    return main([*argv], context=world), out.getvalue()


def test_a_worker_without_data_trains_on_what_was_pushed(fleet, tmp_path):
    assert PLAN.count("\n") == 14
    data = make_data(tmp_path / "elsewhere" / "processed")
    (fleet.folder / "plan.toml").write_text(PLAN)
    code, said = cis490_jobs(fleet, "reload")
    assert (code, "there is no data set `processed`" in said) == (1, True), said

    assert cis490_jobs(fleet, "dataset", "push", str(data))[0] == 0
    code, said = cis490_jobs(fleet, "reload")
    assert (code, "1 new" in said) == (0, True), said
    fleet.start_worker(name="bare")
    until(lambda: fleet.status("gbt") == "completed")
    job = fleet.job("gbt")
    assert job["spec"]["dataset"] == read_folder(data, QUIET).dataset_id
    (there,) = fleet.folder.glob("artifacts/.worker/bare/datasets/sets/*")
    assert there.name == job["spec"]["dataset"]
    assert "whole and verified" in fleet.log("bare")
    assert not (fleet.folder / "data").exists()


def test_a_receiver_starts_though_a_data_set_is_gone_so_that_it_can_be_pushed(fleet, tmp_path):
    data = make_data(tmp_path / "elsewhere" / "processed", episodes=6)
    fleet.receiver.terminate()
    fleet.receiver.wait()
    lines = PLAN + '[[jobs]]\nname = "other"\nmodel = "gbt"\nmode = "oracle"\ndataset = "%s"\n'
    (fleet.folder / "plan.toml").write_text(lines % ("a" * 64))
    fleet.start_receiver()
    (other,) = fleet.client.jobs()["jobs"]
    assert (other["name"], other["obstacle"]) == ("other", "its data set aaaaaaaaaaaa is not here: push it"), (
        "it is named by its id"
    )
    said = cis490_jobs(fleet, "status")[1]
    assert "processed: the name is unknown: push it and reload" in said
    assert "is not here (aaaaaaaaaaaa): push it; 1 job of the plan must wait" in said
    push(fleet.client.datasets, data, read_folder(data, QUIET), "processed", QUIET)
    code, said = cis490_jobs(fleet, "reload")
    assert (code, "there is no data set `aaaa" in said, "known: processed" in said) == (1, True, True)
    (fleet.folder / "plan.toml").write_text(PLAN)
    assert cis490_jobs(fleet, "reload")[0] == 0
    assert [job["name"] for job in fleet.client.jobs()["jobs"] if job["in_manifest"]] == ["gbt"]


@pytest.mark.half
@pytest.mark.parametrize(
    "place", ["client.sent.GET", *(f"worker.fetch.{each}" for each in ("piece", "stamped", "whole"))]
)
def test_a_worker_that_is_killed_amid_a_fetch_goes_on_with_it(place):
    fetching(place, random.Random(0))

"""Data sets that the plan names and the receiver lacks, or whose names have moved."""

from __future__ import annotations

import logging

import pytest
from builders import a_worker_claim
from fakes import Counting, FakeClock, FakeShelf
from test_fleet_manifest import TableDescriber

from training.contract import HOSTS_FILE
from training.fleet.client.push import recording_hosts
from training.fleet.database.writer import Writer
from training.fleet.queue.jobs import JobQueue
from training.fleet.service.audit import AuditLog
from training.fleet.service.data_use import check_unused
from training.fleet.service.hosts import Plan
from training.fleet.service.plan import Reloader
from training.fleet.service.references import KnownReferences, unknown
from training.fleet.service.service import Service
from training.fleet.service.views import Views
from training.fleet.store.datasets import BadName, DatasetStore
from training.fleet.wire.constants import Refusal
from training.fleet.wire.dataset_listing import Catalogue, Listing, UnknownDataset, cut

A, B = "a" * 64, "b" * 64
PLAN = """\
schema_version = 1

[[jobs]]
name = "one"
model = "gbt"
mode = "realistic"
dataset = "processed"
"""


class Fleet:
    """A receiver's decisions with a manifest and a shelf on the disk; may be started again, also elsewhere."""

    def __init__(self, folder):
        self.folder, self.clock = folder, FakeClock()
        self.plan = folder / "plan.toml"
        self.plan.write_text(PLAN)
        self.queue = JobQueue(folder / "jobs.db", clock=self.clock, new_claim_id=Counting())
        self.writer = Writer(self.queue.db)

    def push(self, content, name="processed", hosts=()):
        listing = Listing((cut("data", [content]),))
        self.dataset_store.begin(listing.dataset_id, listing.document)
        for place in listing.distinct():
            self.dataset_store.put(listing.dataset_id, [(place.sha256, content)])
        self.dataset_store.publish(listing.dataset_id, name, 0.0, hosts)
        self.service.host_registry.datasets = self.dataset_store.catalogue().ids
        return listing.dataset_id

    def start(self, datasets="datasets"):
        self.dataset_store = DatasetStore(self.folder / datasets, reserve_bytes=0)
        self.service = Service(self.queue, FakeShelf())
        self.views = Views(self.queue.db, self.service)
        audit = AuditLog(self.queue.db, self.clock)
        describer = TableDescriber()
        kept = self.folder / "plan.kept"
        self._reload = Reloader(self.plan, self.service, self.writer, describer, audit, self.dataset_store, kept)
        return self._reload("the receiver at its start", starting=True)

    def reload(self):
        return self._reload("ada")

    def jobs(self):
        ids = [view.job_id for view in self.views.jobs().jobs if view.in_manifest]
        return [job for job in map(self.queue.get, ids) if job is not None]

    def obstacles(self):
        return [view.obstacle for view in self.views.jobs().jobs if view.in_manifest]


@pytest.fixture
def fleet(tmp_path):
    made = Fleet(tmp_path)
    yield made
    made.writer.close()
    made.queue.close()


# ── what references mean ────────────────────────────────────────────────────────────────────


def test_a_start_goes_by_what_a_reload_found_and_a_reload_looks_anew():
    here, remembered = frozenset({A, B}), {"processed": A}
    start = KnownReferences(here, {"processed": B}, remembered, starting=True)
    assert (start.resolve("processed"), start.moved()) == (A, {"processed": B})
    again = KnownReferences(here, {"processed": B}, remembered)
    assert (again.resolve("processed"), again.moved(), again.found) == (B, {}, {"processed": B})


def test_what_was_found_once_is_no_mistake_when_it_is_gone():
    gone = KnownReferences(frozenset(), {}, {"processed": A})
    assert gone.resolve("processed") == A
    assert gone.found == {"processed": A}
    for typo in ("prcessed", B):
        with pytest.raises(UnknownDataset):
            gone.resolve(typo)


def test_at_a_start_an_id_means_itself_and_a_name_that_nobody_knows_nothing():
    start = KnownReferences(frozenset(), {}, {}, starting=True)
    assert start.resolve(B) == B
    assert unknown(start.resolve("processed")) == "processed"
    assert unknown(B) is None
    assert start.found == {}, "neither is remembered: a reload may still call it a mistake"


def test_without_memory_it_is_a_catalogue():
    plain, asked = Catalogue(frozenset({A}), {"x": A}), KnownReferences(frozenset({A}), {"x": A})
    assert [asked.resolve(each) for each in (A, "x", "aaaaaa")] == [plain.resolve(each) for each in (A, "x", "aaaaaa")]


# ── a data set that is not here is an obstacle ──────────────────────────────────────────────


def test_a_start_without_the_folder_of_data_sets_takes_no_job_out_of_the_plan(fleet):
    fleet.start()
    dataset_id = fleet.push(b"data")
    fleet.reload()
    (job,) = fleet.jobs()
    lost = fleet.start("elsewhere")
    assert (lost.removed, lost.unchanged) == (0, 1)
    why = f"its data set {dataset_id[:12]} is not here: push it"
    assert fleet.obstacles() == [why]
    assert fleet.views.explain(job.job_id).summary == why
    reply = fleet.service.claim(a_worker_claim("pi"))
    assert (reply.job_id, reply.reason) == (None, f"none of the pending jobs fits this host: {why}")
    assert fleet.service.host_registry.missing_datasets() == {
        "processed": f"it is not here ({dataset_id[:12]}): push it; 1 job of the plan must wait"
    }
    assert fleet.reload().notes == [
        f"data set processed: {fleet.service.host_registry.missing_datasets()['processed']}"
    ]
    assert (fleet.start().unchanged, fleet.obstacles()) == (1, [None])
    assert fleet.service.claim(a_worker_claim("pi")).job_id == job.job_id


def test_a_push_ends_the_obstacle(fleet):
    fleet.start()
    fleet.push(b"data")
    fleet.reload()
    fleet.start("elsewhere")
    assert fleet.service.claim(a_worker_claim("pi")).job_id is None
    fleet.push(b"data")
    assert fleet.obstacles() == [None]
    assert fleet.service.claim(a_worker_claim("pi")).job_id is not None


def test_a_requeued_job_whose_data_set_was_removed_waits_for_it_instead_of_failing(fleet):
    fleet.start()
    dataset_id = fleet.push(b"data")
    fleet.reload()
    (job,) = fleet.jobs()
    fleet.queue.cancel(job.job_id)
    fleet.plan.write_text("schema_version = 1\n")
    fleet.reload()
    check_unused(fleet.service, dataset_id)
    fleet.dataset_store.remove(dataset_id)
    fleet.service.host_registry.datasets = fleet.dataset_store.catalogue().ids
    fleet.service.requeue(job.name)
    assert fleet.service.claim(a_worker_claim("pi")).job_id is None
    assert "is not here" in (fleet.views.jobs().jobs[0].obstacle or "")


def test_a_data_set_is_kept_while_an_unfinished_job_needs_it(fleet):
    fleet.start()
    dataset_id = fleet.push(b"data")
    fleet.reload()
    with pytest.raises(Refusal, match="jobs of the plan name this data set"):
        check_unused(fleet.service, dataset_id)
    fleet.plan.write_text("schema_version = 1\n")
    fleet.reload()
    with pytest.raises(Refusal, match=r"1 job that the plan no longer names .* \(one\)") as refused:
        check_unused(fleet.service, dataset_id)
    assert "cis490-jobs cancel --removed" in refused.value.detail
    fleet.queue.cancel(fleet.views.jobs().jobs[0].job_id)
    check_unused(fleet.service, dataset_id)


@pytest.mark.parametrize("nothing", ["", "\n", "# to be written\n", "\ufeff"])
def test_a_file_that_says_nothing_is_not_taken_for_a_plan_without_jobs(fleet, nothing):
    fleet.start()
    fleet.push(b"data")
    fleet.reload()
    fleet.plan.write_text(nothing)
    with pytest.raises(Refusal, match=r"says nothing, .* not finished writing.*jobs = \[\]"):
        fleet.reload()
    assert len(fleet.jobs()) == 1
    fleet.plan.write_text("[hosts.pi]\n")
    answer = fleet.reload()
    assert answer.removed == 1
    assert "the plan has no jobs: " in answer.notes[0]
    fleet.plan.write_text("jobs = []\n")
    assert fleet.reload().notes == []


def test_a_data_set_is_not_called_as_another_ones_id_begins(fleet):
    fleet.start()
    dataset_id = fleet.push(b"data")
    for name in (dataset_id, dataset_id[:6], "f" * 64):
        with pytest.raises(BadName, match=r"it is the id of .*, or how it begins; choose another"):
            fleet.push(b"other", name)
    fleet.push(b"other", "20261122")
    assert fleet.dataset_store.catalogue().resolve(dataset_id[:6]) == dataset_id


# ── a restart alone changes nothing ─────────────────────────────────────────────────────────


def test_a_name_that_moved_makes_other_jobs_at_a_reload_and_not_at_a_start(fleet, caplog):
    fleet.start()
    was = fleet.push(b"data")
    fleet.reload()
    (job,) = fleet.jobs()
    now = fleet.push(b"other data")
    for _ in range(2):  # each start says so
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            again = fleet.start()
        assert (again.inserted, again.removed, again.unchanged) == (0, 0, 1)
        assert fleet.jobs() == [job]
        assert f"data set processed is {now[:12]} now; until a reload the plan has {was[:12]}" in caplog.text
    reply = fleet.reload()
    assert (reply.inserted, reply.removed) == (1, 1)
    assert fleet.jobs()[0].spec["dataset"] == now
    assert fleet.start().unchanged == 1
    assert fleet.jobs()[0].spec["dataset"] == now


RICH = """\
schema_version = 1
[trainers.own]
command = ["own"]
env = { DEPTH = "3" }
[hosts.pi]
allow_jobs = ["gbt"]
env = { HF_HOME = "/data" }
[[jobs]]
name = "one"
model = "gbt"
mode = "realistic"
dataset = "processed"
allowed_hosts = ["pi", "desk"]
"""


def kept_plan(fleet, caplog):
    """Start again; true when the plan was taken as it was kept."""
    caplog.clear()
    with caplog.at_level(logging.INFO):
        fleet.start()
    return "as it was taken over, 1 job" in caplog.text


def test_a_restart_takes_the_plan_as_it_was_kept(fleet, caplog):
    fleet.plan.write_text(RICH)
    fleet.start()
    fleet.push(b"data")
    read = fleet.reload()
    plan, jobs = fleet.service.plan, fleet.jobs()
    assert kept_plan(fleet, caplog)
    assert (fleet.service.plan, fleet.jobs()) == (plan, jobs)
    assert all(f"manifest {fleet.plan}: {note}" in caplog.text for note in read.notes)
    assert read.notes, "a job that names a host which never asked"
    assert not fleet.reload().changed
    assert (fleet.folder / "plan.kept").stat().st_mode & 0o777 == 0o600


def test_a_kept_plan_is_no_plan_once_anything_it_was_made_from_has_changed(fleet, caplog, monkeypatch):
    fleet.start()
    fleet.push(b"data")
    fleet.reload()
    (job,) = fleet.jobs()
    kept = fleet.folder / "plan.kept"

    def damage():
        kept.write_bytes(kept.read_bytes().replace(b"processed", b"Processed"))

    for change in (
        lambda: fleet.plan.write_text(PLAN + "priority = 5\n"),
        lambda: fleet.push(b"more", "another"),
        lambda: fleet.push(b"data", hosts=["desk"]),
        lambda: fleet.queue.db.run("mark_removed", job_id=job.job_id, passed_over=1),
        lambda: fleet.queue._conn.execute("UPDATE jobs SET name = 'other'"),
        lambda: monkeypatch.setattr("training.fleet.service.plan.stamps", lambda: ["newer"]),
        damage,
        lambda: kept.write_bytes(b""),
        kept.unlink,
    ):
        assert kept_plan(fleet, caplog), "while nothing has changed"
        change()
        assert not kept_plan(fleet, caplog)
        assert [each.name for each in fleet.jobs()] == ["one"]
    assert fleet.jobs()[0].priority == 5


def test_a_start_whose_file_is_wrong_by_now_takes_no_kept_plan(fleet):
    fleet.start()
    fleet.push(b"data")
    fleet.reload()
    fleet.plan.write_text(PLAN + "prority = 5\n")
    with pytest.raises(Refusal, match="prority"):
        fleet.start()


def test_a_name_that_nobody_knew_at_the_start_is_said_and_entered_by_a_reload(fleet):
    fleet.start()
    assert fleet.jobs() == []
    assert "processed: the name is unknown: push it and reload" in ": ".join(
        next(iter(fleet.service.host_registry.missing_datasets().items()))
    )
    with pytest.raises(Refusal, match="there is no data set `processed`"):
        fleet.reload()
    fleet.push(b"data")
    assert fleet.reload().inserted == 1
    assert fleet.service.host_registry.missing_datasets() == {}


def test_hosts_to_train_on_that_the_data_set_has_not_are_named_at_once(fleet):
    fleet.start()
    split = 'split_recipe = "host"\ntrain_hosts = ["lab-1", "desk"]\n'
    fleet.plan.write_text(PLAN + split + PLAN.partition("\n\n")[2].replace("one", "two") + split + "seed = 8\n")
    fleet.push(b"data")  # by a program of before, which does not say where it was recorded
    assert not [note for note in fleet.reload().notes if "train_hosts" in note]
    fleet.push(b"data", hosts=["desk", "lab-2"])
    note = 'train_hosts of job "one" names "lab-1", which its data set lacks; known: desk, lab-2; did you mean lab-2?'
    assert [each for each in fleet.reload().notes if "train_hosts" in each] == [note]
    fleet.push(b"data")  # once more by the other
    assert note in fleet.start().notes
    fleet.push(b"more", hosts=["desk", "lab-1"])
    assert not [each for each in fleet.reload().notes if "train_hosts" in each]


@pytest.mark.parametrize(
    ("said", "hosts"),
    [
        (b'{"hosts": ["a", "b"]}\n', ["a", "b"]),
        (b'{"hosts": ["a", 1, null]}', ["a"]),
        (b'{"hosts": "a"}', []),
        (b"[]", []),
        (b"{", []),
        (b"\xff", []),
        (None, []),
    ],
)
def test_where_a_folder_was_recorded_is_read_or_is_not_known(tmp_path, said, hosts):
    if said is not None:
        (tmp_path / HOSTS_FILE).write_bytes(said)
    assert recording_hosts(tmp_path) == hosts


def test_missing_data_sets_are_listed_in_one_order():
    plan = Plan(dataset_jobs={"b": ("beta", 1), "a": ("alpha", 2)})
    assert list(plan.missing(())) == ["alpha", "beta"]

"""The bare queue: the interface that existing callers use, name by name, and the claim against a full scan."""

from __future__ import annotations

import json
import random
import threading
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from builders import a_capability, a_host, a_job
from fakes import Counting, FakeClock
from hypothesis import given, settings
from hypothesis import strategies as st

from training.fleet.database.sqlite import SqliteDatabase
from training.fleet.queue.choose import NoJob
from training.fleet.queue.jobs import Claimant, GrantedJob, JobQueue, _eligible
from training.fleet.queue.kinds import places, places_of
from training.fleet.queue.plan_diff import class_key
from training.fleet.scheduling import policy as rules
from training.fleet.scheduling.edits import LISTED_MAX, first
from training.fleet.scheduling.edits import EditKind as EditKind
from training.fleet.scheduling.job import LIVE, EndReason, JobStatus, Needs
from training.fleet.scheduling.policy import Fleet, Policy
from training.fleet.scheduling.schedule import JobKind, Slot

CPU, GPU = a_capability(), a_capability(cuda=True)
STATUSES = ["pending", "claimed", "running", "completed", "failed", "cancelled"]


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def queue(tmp_path, clock):
    jobs = JobQueue(tmp_path / "training_jobs.db", clock=clock, new_claim_id=Counting())
    yield jobs
    jobs.close()


def claim(queue, host="pi", capability=CPU, **more):
    return queue.claim_next(worker_hostname=host, capability=capability, **more)


def names_in_order(queue, host="pi", capability=CPU):
    return [job.name for job in iter(lambda: claim(queue, host, capability), None)]


def events(queue):
    return [SimpleNamespace(**dict(row)) for row in queue.db.all("events_of_job", job_id="id-one")]


def bring_to(queue, job_id, status):
    """Lead the only job to a status by ordinary calls."""
    if status in {"claimed", "running", "completed", "failed"}:
        assert claim(queue) is not None
    if status == "running":
        assert queue.heartbeat(job_id, "pi")
    if status == "completed":
        assert queue.complete(job_id, "pi", artifact_id="anything at all")
    if status == "failed":
        assert queue.fail(job_id, "pi", error="bad data", exit_code=65)
    if status == "cancelled":
        assert queue.cancel(job_id)
    assert status_of(queue, job_id) == status


def status_of(queue, job_id):
    return queue.get(job_id).status


# ── the manifest ────────────────────────────────────────────────────────────────────────────


def test_sync_is_idempotent_and_counts(queue):
    jobs = [a_job("one"), a_job("two")]
    assert queue.sync_from_manifest(jobs)["inserted"] == 2
    again = queue.sync_from_manifest(jobs)
    assert (again["inserted"], again["unchanged"]) == (0, 2)
    assert queue.counts()["pending"] == 2


@pytest.fixture
def one_job(queue):
    queue.sync_from_manifest([a_job("one")])


@pytest.mark.parametrize("status", STATUSES)
def test_known_jobs_keep_their_state(queue, one_job, status):
    bring_to(queue, "id-one", status)
    assert queue.sync_from_manifest([a_job("one")])["unchanged"] == 1
    assert status_of(queue, "id-one") == status


@pytest.mark.parametrize("status", STATUSES)
def test_a_reload_updates_a_job_of_every_status_and_leaves_its_state(queue, status):
    queue.sync_from_manifest([a_job("one", priority=1)])
    bring_to(queue, "id-one", status)
    before = queue.get("id-one")
    edited = a_job("one", priority=9, denied_hosts=["pi"]) | {"name": "other"}
    counts = queue.sync_from_manifest([edited])
    assert (counts["updated"], counts["renamed"]) == (1, 1)
    assert queue.get("id-one") == replace(before, name="other", priority=9, spec=edited)


def test_changed_needs_take_effect_on_a_waiting_job(queue):
    queue.sync_from_manifest([a_job("one", require_cuda=True)])
    assert claim(queue) is None
    queue.sync_from_manifest([a_job("one", require_cuda=False)])
    assert claim(queue) is not None


def test_removed_jobs_stay_until_cancelled_and_may_come_back(queue):
    queue.sync_from_manifest([a_job("one"), a_job("two")])
    assert queue.sync_from_manifest([a_job("two")])["removed"] == 1
    removed = queue.get("id-one")
    assert (removed.status, removed.in_manifest) == ("pending", False)
    assert (claim(queue, "pi").name, claim(queue, "pi").name) == ("one", "two"), "a bare queue knows of no plan"
    assert queue.sync_from_manifest([a_job("two")])["removed"] == 0, "told once"
    queue.sync_from_manifest([a_job("one"), a_job("two")])
    assert queue.get("id-one").in_manifest


def test_missing_optional_keys_ask_for_nothing(queue):
    queue.sync_from_manifest([{"job_id": "any text", "name": "bare"}])
    job = claim(queue, capability={})
    assert (job.name, job.job_id, job.model, job.mode, job.priority) == ("bare", "any text", "", "", 0)


def test_ids_are_opaque_and_specs_need_not_be_unique(queue):
    twins = [a_job("one", job_id="käse/1"), a_job("one", job_id="../2; DROP TABLE jobs")]
    assert queue.sync_from_manifest(twins)["inserted"] == 2
    assert names_in_order(queue) == ["one", "one"]
    assert queue.complete("käse/1", "pi", artifact_id="")
    assert queue.get("käse/1").artifact_id == ""


# ── claiming ────────────────────────────────────────────────────────────────────────────────


def test_a_claim_answers_with_the_job(queue, one_job):
    job = claim(queue)
    assert (job.name, job.job_id, job.status, job.artifact_id) == ("one", "id-one", "claimed", None)
    assert (job.worker_hostname, job.spec) == ("pi", a_job("one"))
    assert claim(queue) is None, "there is no other"


def test_priority_first_then_age_then_the_order_of_the_manifest(queue, clock):
    old = [a_job("old", priority=5), a_job("low", priority=1)]
    queue.sync_from_manifest(old)
    clock.advance(1)
    young = [a_job("high", priority=9), a_job("z", priority=5), a_job("a", priority=5)]
    queue.sync_from_manifest(old + young)
    assert names_in_order(queue) == ["high", "old", "z", "a", "low"]


def test_prefer_cuda_holds_back_hosts_without_it_for_the_grace(queue, clock):
    queue.sync_from_manifest([a_job("one", prefer_cuda=True)])
    clock.advance(299)
    assert claim(queue) is None
    assert claim(queue, prefer_cuda_grace_s=299.0) is not None
    queue.requeue("id-one")
    clock.advance(299)
    assert claim(queue) is None, "the grace counts from when it became claimable"
    clock.advance(1)
    assert claim(queue) is not None
    queue.requeue("id-one")
    assert claim(queue, "desktop", GPU) is not None


def test_workers_are_recorded_at_each_claim(queue, clock):
    assert queue.workers() == []
    assert claim(queue, "pi", {"cpu_cores": 4}) is None
    clock.advance(5)
    claim(queue, "pi", {"cpu_cores": 2, "anything": ["else"]})
    claim(queue, "desktop", GPU)
    found = {each["hostname"]: each["capability"] for each in queue.workers()}
    assert found == {"pi": {"cpu_cores": 2, "anything": ["else"]}, "desktop": GPU}
    (pi,) = (each for each in queue.workers() if each["hostname"] == "pi")
    assert pi["last_seen"] - pi["first_seen"] == 5


def in_threads(count, work):
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("connections", [1, 4])
def test_no_job_is_granted_twice_whoever_asks_at_once(tmp_path, connections):
    queues = [JobQueue(tmp_path / "training_jobs.db") for _ in range(connections)]
    queues[0].sync_from_manifest(a_job(f"job-{n}") for n in range(40))
    granted = []

    def work(number):
        granted.extend(names_in_order(queues[number % connections], f"host-{number}"))

    in_threads(4, work)
    assert sorted(granted) == sorted(f"job-{n}" for n in range(40))
    for queue in queues:
        queue.close()


def test_a_file_whose_tables_somebody_makes_meanwhile_is_ours(tmp_path, monkeypatch):
    path, ask = tmp_path / "training_jobs.db", SqliteDatabase._pragma

    def interrupted(self, pragma):
        found = ask(self, pragma)
        if pragma.endswith("_version"):
            monkeypatch.setattr(SqliteDatabase, "_pragma", ask)
            SqliteDatabase(path).close()
        return found

    monkeypatch.setattr(SqliteDatabase, "_pragma", interrupted)
    SqliteDatabase(path).close()


def test_several_connections_may_create_the_file_at_once(tmp_path):
    opened = []
    in_threads(6, lambda _: opened.append(JobQueue(tmp_path / "training_jobs.db")))
    assert len(opened) == 6
    opened[0].sync_from_manifest([a_job("one")])
    assert [claim(each) is not None for each in opened].count(True) == 1
    for each in opened:
        each.close()


# ── eligible ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("spec", "host_spec", "capability", "said"),
    [
        ({"require_cuda": True}, None, {}, "no CUDA"),
        ({"require_cuda": True, "min_vram_gib": 20}, None, GPU, "vram_free 8.0 < 20.0"),
        ({"min_ram_gib": 64}, None, CPU, "ram_available 8.0 < 64.0"),
        ({"min_cores": 64}, None, CPU, "cpu_cores 4 < 64"),
        ({"allowed_hosts": ["desktop"]}, None, CPU, "not in whitelist"),
        ({}, {"allow_jobs": ["mlp"]}, CPU, "not in whitelist"),
        ({"denied_hosts": ["pi"]}, None, CPU, "denied_hosts"),
        ({}, {"deny_jobs": ["gbt"], "allow_jobs": ["gbt"]}, CPU, "deny_jobs"),
        ({"require_cuda": True}, {"cuda": False}, GPU, "no CUDA"),
        ({"prefer_cuda": True}, None, CPU, "prefer_cuda"),
    ],
)
def test_eligible_gives_its_reason(spec, host_spec, capability, said):
    verdict = _eligible(
        spec=a_job(**spec),
        hostname="pi",
        capability=capability,
        host_spec=host_spec,
        prefer_cuda_grace_s=300.0,
        job_age_s=0.0,
    )
    assert verdict[0] is False
    assert said in verdict[1]


@pytest.mark.parametrize("age_s", [0.0, 299.9, 300.0, 1e9])
def test_eligible_counts_the_grace_by_the_jobs_age(age_s):
    asked = {"hostname": "pi", "capability": CPU, "host_spec": None, "prefer_cuda_grace_s": 300.0}
    ok, reason = _eligible(spec=a_job(prefer_cuda=True), job_age_s=age_s, **asked)
    assert ok == (age_s >= 300.0)
    assert (reason == "ok") == ok
    assert _eligible(spec=a_job(), job_age_s=age_s, **asked) == (True, "ok")


FIELDS = {**GPU, "hostname": "pi", "torch_version": None, "training_commit": "abc"}


@given(st.sets(st.sampled_from(sorted(FIELDS))))
def test_a_capability_may_hold_any_subset_of_its_fields(kept):
    asked = {"hostname": "pi", "capability": {key: FIELDS[key] for key in kept}}
    assert _eligible(spec={}, **asked) == (True, "ok")
    ok, reason = _eligible(spec={"require_cuda": True, "min_vram_gib": 1.0}, **asked)
    assert ok == ({"cuda_available", "cuda_devices"} <= kept), reason


# ── heartbeat, complete, fail, cancel, requeue ──────────────────────────────────────────────


def test_only_the_holder_is_heard(queue, one_job):
    assert not queue.heartbeat("id-one", "pi"), "pending"
    claim(queue)
    assert not queue.heartbeat("id-one", "desktop")
    assert not queue.complete("id-one", "desktop", artifact_id="x")
    assert not queue.fail("id-one", "desktop", error="x")
    assert not queue.heartbeat("no such job", "pi")
    assert status_of(queue, "id-one") == "claimed"


def test_an_attempt_that_ended_writes_nothing_into_its_job(queue, one_job, clock):
    """Callers have checked already; the statements check once more, so that no mistake above them costs a job."""
    old = queue.grant(a_host("pi"), Claimant(), Fleet())
    queue.requeue("id-one")
    new = queue.grant(a_host("pi"), Claimant(), Fleet())
    clock.advance(5)
    with pytest.raises(AssertionError, match="only a live attempt"):
        queue.moves.renew(new.job, old.attempt, seq=1)
    with pytest.raises(AssertionError, match="only a live attempt"):
        queue.settle(new.job, old.attempt, EndReason.HOST_LOST)
    with pytest.raises(AssertionError, match="only a live attempt"):
        queue.accept(new.job, old.attempt, "a" * 64)
    assert queue.get("id-one") == new.job


def test_the_first_heartbeat_makes_it_running_and_each_renews_the_lease(queue, one_job, clock):
    claim(queue)
    for _ in range(2):
        clock.advance(30)
        assert queue.heartbeat("id-one", "pi")
        assert status_of(queue, "id-one") == "running"
        assert queue.get("id-one").heartbeat_at == clock.now()


@pytest.mark.parametrize("status", ["claimed", "running"])
def test_complete_keeps_the_artifact_and_may_be_repeated(queue, one_job, status):
    bring_to(queue, "id-one", status)
    assert queue.complete("id-one", "pi", artifact_id="abc")
    assert queue.complete("id-one", "pi", artifact_id="abc")
    assert not queue.complete("id-one", "pi", artifact_id="another")
    assert not queue.complete("id-one", "desktop", artifact_id="abc")
    assert queue.events.fired["complete_repeat"] == 1, "what is refused repeats nothing"
    job = queue.get("id-one")
    assert (job.status, job.artifact_id, job.worker_hostname) == ("completed", "abc", "pi")


@pytest.mark.parametrize("status", STATUSES)
def test_requeue_from_any_state(queue, one_job, status):
    bring_to(queue, "id-one", status)
    assert queue.requeue("id-one") is True
    job = queue.get("id-one")
    assert (job.status, job.generation, job.grants) == ("pending", 2, 0)
    assert (job.artifact_id, job.error, job.claim_id) == (None, None, None)
    assert not queue.heartbeat("id-one", "pi"), "who held it holds it no more"
    assert claim(queue) is not None


def test_a_pardon_leaves_nothing_to_wait_for(queue, one_job, clock):
    queue._conn.execute(
        "UPDATE jobs SET status = 'failed', claimable_at = 9e9, avoid_host = 'pi', avoid_until = 9e9, error = 'e',"
        " ended_by = 'e', failed_by = 'refusal', finished_at = 5"
    )
    nothing = dict.fromkeys(("avoid_until", "ended_by", "failed_by"))
    queue.db.run("pardon_job", job_id="id-one", now=clock.now(), avoid_host="", **nothing)
    row = queue.db.one("job", job_id="id-one")
    kept = ("claimable_at", "avoid_host", "avoid_until", "error", "ended_by", "failed_by", "finished_at")
    assert [row[name] for name in kept] == [clock.now(), "", *[None] * 5]


def test_a_requeue_leaves_nothing_of_what_was(queue):
    """Every column is as if the job had just been named, but for the numbers that are never given twice."""
    queue.sync_from_manifest([a_job("one"), a_job("other")])
    numbers = {"job_id": "id-one", "name": "one", "seq": 1, "generation": 2}
    with queue.db.transaction():
        queue._conn.execute(
            "UPDATE jobs SET status = 'failed', grants = 2, trainer_failures = 2, host_losses = 2, finished_at = 5,"
            " claimable_at = 9e9, artifact_id = 'a', error = 'e', ended_by = 'e', heartbeat_at = 5, claimed_at = 5,"
            " worker_hostname = 'pi', avoid_host = 'pi', avoid_until = 9e9, short_runs = 2, ram_above_gib = 8,"
            " failed_by = 'refusal', vram_above_gib = 8 WHERE job_id = 'id-one'"
        )
    queue.requeue("id-one")
    one, other = (dict(queue.db.one("job", job_id=each) or {}) | numbers for each in ("id-one", "id-other"))
    one["spec"] = other["spec"]
    assert one.pop("seal") != other.pop("seal"), "of the rows' own ids"
    assert one == other


def test_a_requeued_job_may_go_where_it_failed(queue, one_job):
    claim(queue)
    queue.fail("id-one", "pi", error="x", exit_code=1)
    fleet = Fleet(alive=(a_host("desktop"),))
    assert not isinstance(queue.grant(a_host("pi"), Claimant(), fleet), GrantedJob)
    queue.requeue("id-one")
    assert isinstance(queue.grant(a_host("pi"), Claimant(), fleet), GrantedJob)


def test_requeue_and_cancel_know_their_jobs(queue):
    assert queue.requeue("no such job") is False
    assert queue.cancel("no such job") is False
    assert queue.get("no such job") is None


@pytest.mark.parametrize("status", STATUSES)
def test_cancel_is_final(queue, one_job, status):
    bring_to(queue, "id-one", status)
    assert queue.cancel("id-one") == (status in {"pending", "claimed", "running"})
    if status in {"pending", "claimed", "running"}:
        assert status_of(queue, "id-one") == "cancelled"
        assert not queue.heartbeat("id-one", "pi")
        assert not queue.complete("id-one", "pi", artifact_id="x")
        assert claim(queue) is None


def test_a_status_equals_its_string(queue):
    assert [status.value for status in JobStatus] == STATUSES
    assert all(JobStatus(text) == text for text in STATUSES)
    assert list(queue.counts()) == STATUSES


# ── the sweep ───────────────────────────────────────────────────────────────────────────────


def go_silent(queue, seconds=601.0):
    """Write the past into the row, as existing tests do."""
    queue._conn.execute("UPDATE jobs SET heartbeat_at = heartbeat_at - ?", (seconds,))


@pytest.mark.parametrize("status", ["claimed", "running"])
def test_the_row_is_the_truth_for_the_sweep(queue, one_job, status):
    bring_to(queue, "id-one", status)
    assert queue.sweep_stale(stale_after_s=600, max_attempts=3) == 0
    go_silent(queue)
    assert queue.sweep_stale(stale_after_s=600, max_attempts=3) == 1
    assert status_of(queue, "id-one") == "pending"
    assert queue.sweep_stale(stale_after_s=600, max_attempts=3) == 0
    assert claim(queue) is not None, "claimable at once"


@pytest.mark.parametrize("max_attempts", [0, 1, 3, 30])
def test_a_sweep_fails_what_was_granted_more_often_than_max_attempts(queue, one_job, max_attempts):
    for _ in range(max_attempts):
        claim(queue)
        go_silent(queue)
        assert queue.sweep_stale(stale_after_s=600, max_attempts=max_attempts) == 1
        assert status_of(queue, "id-one") == "pending"
    claim(queue)
    go_silent(queue)
    assert queue.sweep_stale(stale_after_s=600, max_attempts=max_attempts) == 1
    job = queue.get("id-one")
    assert job.status == "failed"
    assert "pi was not seen for 600 s" in (job.error or "")
    assert f"granted {max_attempts + 1} times" in (job.ended_by or "")


def test_without_max_attempts_losses_have_their_own_budget(tmp_path, clock):
    policy = Policy(max_host_losses=2, stale_after_s=60)
    queue = JobQueue(tmp_path / "jobs.db", clock=clock, policy=policy)
    queue.sync_from_manifest([a_job("one")])
    for status in ("pending", "failed"):
        claim(queue)
        clock.advance(61)
        assert queue.sweep_stale() == 1
        assert status_of(queue, "id-one") == status
    assert "max_host_losses" in (queue.get("id-one").ended_by or "")
    queue.close()


def test_the_sweep_leaves_what_is_heard(queue, clock):
    queue.sync_from_manifest([a_job("one"), a_job("two")])
    claim(queue, "pi")
    claim(queue, "desktop")
    clock.advance(600)
    queue.heartbeat("id-two", "desktop")
    assert queue.sweep_stale(stale_after_s=600) == 0, "a lease is kept to its last second"
    clock.advance(1)
    assert queue.sweep_stale(stale_after_s=600) == 1
    assert (status_of(queue, "id-one"), status_of(queue, "id-two")) == ("pending", "running")


def test_the_connection_commits_by_itself_and_the_table_is_where_it_was(tmp_path):
    queue = JobQueue(tmp_path / "training_jobs.db")
    queue.sync_from_manifest([a_job("one")])
    queue._conn.execute("UPDATE jobs SET heartbeat_at = 12.5 WHERE job_id = 'id-one'")
    queue.close()
    again = JobQueue(str(tmp_path / "training_jobs.db"))
    row = again._conn.execute("SELECT job_id, heartbeat_at FROM jobs").fetchone()
    assert tuple(row) == ("id-one", 12.5)
    again.close()


# ── history ─────────────────────────────────────────────────────────────────────────────────


def test_attempts_are_numbered_once_and_for_all(queue, one_job, clock):
    for _ in range(2):
        claim(queue)
        queue.fail("id-one", "pi", error="it broke", exit_code=1)
        clock.advance(3600)
    queue.requeue("id-one")
    claim(queue, "desktop")
    found = queue.attempts.of_job("id-one")
    assert [(each.attempt, each.generation, each.host) for each in found] == [
        (1, 1, "pi"),
        (2, 1, "pi"),
        (3, 2, "desktop"),
    ]
    assert [each.end_reason for each in found] == [EndReason.TRAINER_FAILED] * 2 + [None]
    assert len({each.claim_id for each in found}) == 3


def test_log_lines_are_stored_once_and_all_of_them(queue, one_job):
    claim(queue)
    attempt = queue.attempts.of_job("id-one")[0]
    assert queue.attempts.append_log(attempt, 0, ["a", "b"]) == 2
    attempt = queue.attempts.of_job("id-one")[0]
    assert queue.attempts.append_log(attempt, 0, ["a", "b"]) == 2, "again the same"
    assert queue.attempts.append_log(attempt, 1, ["b", "c"]) == 3, "overlapping"
    rows = queue.db.all("log", job_id="id-one", attempt=1, after=0, most=10)
    assert [(row["first"], row["text"]) for row in rows] == [(0, "a\nb"), (2, "c")]
    attempt = queue.attempts.of_job("id-one")[0]
    assert queue.attempts.append_log(attempt, 3, [""] * 10_000) == 10_003
    rows = queue.db.all("log", job_id="id-one", attempt=1, after=0, most=10)
    assert [row["first"] for row in rows] == [0, 2, 3]


# ── the claim equals a full scan ────────────────────────────────────────────────────────────

HOSTS = ["pi", "laptop", "desktop"]
specs = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["gbt", "cnn"]),
        "priority": st.integers(0, 2),
        "require_cuda": st.booleans(),
        "prefer_cuda": st.booleans(),
        "min_vram_gib": st.sampled_from([0, 8]),
        "min_cores": st.sampled_from([0, 4]),
        "allowed_hosts": st.lists(st.sampled_from(HOSTS), max_size=2, unique=True),
    }
)
delays = st.sampled_from([-1000.0, -300.0, -30.0, -10.0, -5.0, 0.0, 5.0, 100.0])
avoiding = st.none() | st.tuples(st.sampled_from([*HOSTS, "*"]), st.sampled_from([-1.0, 0.0, 1.0, 50.0]))
learned = st.sampled_from([0.0, 0.0, 8.0, 16.0])  # GiB that did not do
waiting_jobs = st.lists(st.tuples(specs, delays, avoiding, learned), max_size=12)
hosts = st.builds(
    a_host,
    st.sampled_from(HOSTS),
    cuda=st.booleans(),
    vram_free_gib=st.sampled_from([4.0, 8.0]),
    cores=st.sampled_from([2, 4]),
    ram_total_gib=st.sampled_from([8.0, 16.0, 32.0]),
    priority=st.integers(0, 2),
    deny_jobs=st.sampled_from([frozenset(), frozenset({"cnn"})]),
)


@st.composite
def fleets(draw):
    """A host that asks, and the others: alive, some of them waiting."""
    host, others = draw(hosts), draw(st.lists(hosts, max_size=2, unique_by=lambda each: each.name))
    others = [each for each in others if each.name != host.name]
    return host, Fleet(tuple(others), tuple(each for each in others if draw(st.booleans())))


def scan(jobs, host, fleet, now):
    """The specification: look at every pending job, take the best of those this host may have now."""
    policy, may = Policy(), []
    for job in jobs:
        wants = replace(Needs.of(json.loads(job["spec"])), ram_above_gib=job["ram_above_gib"])
        avoids = job["avoid_until"] is not None and job["avoid_until"] > now
        if (
            rules.fits(wants, host) is None
            and not (avoids and rules.must_avoid(wants, job["avoid_host"], host, fleet))
            and job["claimable_at"] + rules.hold(wants, host, fleet, policy).seconds <= now
        ):
            may.append((rules.rank(job["priority"], job["claimable_at"], job["seq"]), job["job_id"]))
    return min(may)[1] if may else None


def pending(queue):
    rows = queue._conn.execute("SELECT * FROM jobs WHERE status = 'pending'").fetchall()
    return [dict(row) for row in rows]


def fill(queue, jobs, now):
    queue.sync_from_manifest({"job_id": str(number), **spec} for number, (spec, *_) in enumerate(jobs))
    for number, (_, delay_s, avoids, above_gib) in enumerate(jobs):
        job = queue.get(str(number))
        queue.moves.widen(job, replace(job.needs, ram_above_gib=above_gib))
        host, left_s = avoids or ("", None)
        until = None if left_s is None else now + left_s
        queue._conn.execute(
            "UPDATE jobs SET claimable_at = ?, avoid_host = ?, avoid_until = ? WHERE job_id = ?",
            (now + delay_s, host, until, str(number)),
        )


@settings(max_examples=250)
@given(jobs=waiting_jobs, asking=fleets(), held=st.sets(st.integers(0, 12)))
def test_a_claim_gives_what_a_full_scan_would_give(jobs, asking, held):
    """The claim looks at the heads of classes and gates only; this is what allows it to. Claims until none is left."""
    host, fleet = asking
    clock = FakeClock()
    queue = JobQueue(":memory:", clock=clock)
    fill(queue, jobs, clock.now())
    for number in held:
        queue.hold(str(number))
    while True:
        rows = [row for row in pending(queue) if row["held_at"] is None]
        wanted = scan(rows, host, fleet, clock.now())
        outcome = queue.grant(host, Claimant(), fleet, first_come=True)
        if isinstance(outcome, NoJob):
            break
        assert outcome.job.job_id == wanted
    assert wanted is None
    check_wait(outcome, rows, host, fleet, clock.now())
    queue.close()


def check_wait(outcome, rows, host, fleet, now):
    """ "Wait until": time alone changes the answer then, and not before."""
    moments = {row["claimable_at"] + hold_s for row in rows for hold_s in (0.0, 10.0, 300.0)}
    moments |= {row["avoid_until"] for row in rows if row["avoid_until"] is not None}
    first = min((at for at in moments if at > now and scan(rows, host, fleet, at)), default=None)
    assert (outcome.retry_after_s is None) == (first is None), outcome
    if first is not None:
        assert 0 < outcome.retry_after_s <= first - now, outcome


def test_a_job_in_back_off_holds_up_no_other(queue, clock):
    high, low, following = (a_job(name, priority=p) for name, p in (("high", 9), ("low", 1), ("next", 1)))
    queue.sync_from_manifest([high, low])
    queue._conn.execute("UPDATE jobs SET claimable_at = ? WHERE name = 'high'", (clock.now() + 50,))
    assert names_in_order(queue) == ["low"]
    queue.sync_from_manifest([high, low, following])
    queue._conn.execute("UPDATE jobs SET claimable_at = ? WHERE name = 'next'", (clock.now() + 20,))
    nothing = queue.grant(a_host(), Claimant(), Fleet())
    assert nothing.retry_after_s == 20, "the one that is due first, whatever its priority"
    clock.advance(50)
    assert names_in_order(queue) == ["high", "next"]


@pytest.mark.parametrize("status", STATUSES)
def test_a_held_job_is_granted_to_nobody_whatever_becomes_of_it(queue, one_job, clock, status):
    """The mark stays through a reload, a requeue, a cancel that is undone, and the end of what ran."""
    bring_to(queue, "id-one", status)
    assert queue.hold("id-one", by="ada")
    at = clock.now()
    clock.advance(60)
    assert not queue.hold("id-one", by="bob"), "it is held already"
    job = queue.get("id-one")
    assert (job.status, job.held_by, job.held_at) == (status, "ada", at)
    if status in ("claimed", "running"):
        assert queue.fail("id-one", "pi", error="it broke", exit_code=1)
    queue.requeue("id-one")
    queue.sync_from_manifest([])
    queue.cancel("id-one", as_removed=True)
    queue.sync_from_manifest([a_job("one", priority=7)])
    clock.advance(10_000)
    outcome = queue.grant(a_host(), Claimant(), Fleet())
    assert outcome == NoJob("every pending job is held by the operator")
    assert queue.unhold("id-one", by="bob")
    assert not queue.unhold("id-one")
    assert claim(queue) is not None
    told = [(e.transition, e.detail) for e in events(queue) if "hold" in e.transition]
    assert told == [("hold", "ada"), ("unhold", "bob")]


def test_a_hold_stops_nothing_that_runs_and_stands_before_nobody(queue, clock):
    queue.sync_from_manifest([a_job("one", priority=900), a_job("two"), a_job("three")])
    assert claim(queue) is not None
    queue.hold("id-one")
    queue.hold("id-two")
    assert names_in_order(queue) == ["three"]
    clock.advance(10_000)
    assert queue.sweep_stale() == 2
    assert claim(queue, "laptop").name == "three"
    job, attempt = queue.get("id-one"), queue.attempts.of_job("id-one")[0]
    assert queue.moves.readopt(job, attempt)[0].status is JobStatus.RUNNING, "it runs all the same"
    assert queue.complete("id-one", "pi", artifact_id="a")


def test_the_wait_is_told_with_its_reason(queue, clock):
    host = a_host()
    assert queue.grant(host, Claimant(), Fleet()) == NoJob("no job is pending")
    queue.sync_from_manifest([a_job("one", prefer_cuda=True), a_job("two", require_cuda=True)])
    clock.advance(100)
    held = queue.grant(host, Claimant(), Fleet())
    assert held.retry_after_s == 200.0
    assert "prefer_cuda" in held.reason
    queue.cancel("id-one")
    misfit = queue.grant(host, Claimant(), Fleet())
    assert misfit == NoJob(
        "none of the pending jobs fits this host: no CUDA device available, and the job has require_cuda"
    )


def test_a_reload_of_a_plan_that_is_known_asks_for_no_job_by_itself(queue, monkeypatch):
    plan, asked, one = [a_job(f"{n}") for n in range(20)], list[str](), queue.db.one
    queue.sync_from_manifest(plan)

    def counted(statement, **params):
        asked.append(statement)
        return one(statement, **params)

    monkeypatch.setattr(queue.db, "one", counted)
    assert queue.sync_from_manifest(plan)["unchanged"] == 20
    assert asked == []


# ── what every statement costs ──────────────────────────────────────────────────────────────

HOT = """head grant stale open_gates gates pending_classes beat_job beat_attempt job attempt_by_claim
  attempt_by_request live_attempts_of_host settle_job complete_job end_attempt note_host
  widen_job give_up_job note_crash add_death forget_deaths deaths pardon_attempt give_back pardon_job
  hold_job unhold_job held_pending end_quarantine move_log_next
  drop_chunks log log_pieces add_log_file lose_log_file log_files_going extend_gap
  events_of_job attempts_of_job artifacts_of add_job"""


@pytest.mark.parametrize("statement", HOT.split())
def test_no_hot_statement_looks_at_all_jobs(queue, statement):
    sql = queue.db._sql[statement]
    plan = queue._conn.execute(f"EXPLAIN QUERY PLAN {sql}", _no_params()).fetchall()
    steps = [row["detail"] for row in plan]
    # What is walked from end to end: the requirement classes and what was picked out of jobs, a handful both.
    walked = [step for step in steps if step.startswith("SCAN")]
    assert set(walked) <= {"SCAN c", "SCAN avoiding", "SCAN CONSTANT ROW"}, steps
    if statement in {"head", "stale"}:
        assert not any("ORDER BY" in step for step in steps), "one step into an index, nothing sorted"


def _no_params():
    class Nothing(dict[str, Any]):
        def __missing__(self, key):
            return None

    return Nothing()


def test_live_jobs_have_live_attempts_and_the_database_insists(queue, one_job):
    assert queue.grant(a_host(), Claimant(), Fleet()).job.status in LIVE
    with pytest.raises(Exception, match="CHECK constraint"):
        queue._conn.execute("UPDATE jobs SET claim_id = NULL")
    with pytest.raises(Exception, match="CHECK constraint"):
        queue._conn.execute("UPDATE jobs SET status = 'lost'")
    with pytest.raises(Exception, match="UNIQUE constraint"):
        queue._conn.execute(
            "INSERT INTO attempts (job_id, attempt, claim_id, generation, host, granted_at, granted, booked)"
            " VALUES ('id-one', 2, 'other', 1, 'pi', 0, '{}', '{}')"
        )


def test_a_step_of_the_clock_moves_what_it_stamped_but_not_beyond_what_can_be(queue, clock):
    queue.sync_from_manifest([a_job("runs", priority=9), a_job("waits", priority=1)])
    claim(queue)
    queue._conn.execute(
        "UPDATE jobs SET claimable_at = ?, avoid_host = 'pi', avoid_until = ? WHERE name = 'waits'",
        (clock.now() + 10, clock.now() + 20),
    )

    def stamps():
        runs, waits = (queue.db.one("job", job_id=f"id-{name}") for name in ("runs", "waits"))
        (host,) = queue.workers()
        found = (
            *(runs["heartbeat_at"], runs["claimed_at"], host["last_seen"]),
            *(waits["claimable_at"], waits["avoid_until"]),
        )
        return [each - clock.now() for each in found]

    for step_s in (1e6, -1e6):
        clock.step(step_s)
        queue.hosts.shift_times(step_s)
        assert stamps() == [0, 0, 0, 10, 20]
    queue.hosts.shift_times(1e6)  # told twice
    most, further = queue.policy.backoff_max_s, queue.policy.retry_elsewhere_grace_s
    assert stamps() == [0, 0, 0, most, most + further]
    for step_s, moved in ((60, [-60, -60, -60, most - 110]), (-100, [-10, -10, -10, most - 60])):
        clock.step(step_s)
        queue.hosts.shift_times(-50.0, since=clock.now())  # at a start: what is not ahead of the clock is right
        assert stamps()[:4] == moved


def test_the_newest_time_is_that_of_whatever_was_noted_last(queue, clock):
    def newest():
        return float((queue.db.one("newest_time") or {})["at"]) - began

    began = clock.now()
    queue.sync_from_manifest([a_job("one"), a_job("two")])
    clock.step(-1000)
    queue.sync_from_manifest([a_job("three"), a_job("four")])
    assert newest() == -1000, "the clock was put back since"
    claim(queue)
    clock.advance(100)
    claim(queue, "desktop")
    queue.heartbeat("id-three", "pi")
    clock.advance(100)
    assert queue.heartbeat("id-three", "pi"), "which leaves no event"
    assert newest() == -800
    clock.advance(100)
    assert claim(queue, "mac") is None
    assert newest() == -700


def test_a_name_is_that_of_the_job_in_the_plan(queue):
    before, after = a_job("gbt", job_id="before"), a_job("gbt", job_id="after", seed=8)
    queue.sync_from_manifest([before])
    queue.sync_from_manifest([after])
    assert queue.moves.named("gbt") == [("after", "gbt")]
    assert queue.moves.named("befor") == [("before", "gbt")], "the other by its id"
    queue.sync_from_manifest([])
    assert len(queue.moves.named("gbt")) == 2, "neither is in the plan"


def test_a_call_that_names_a_job_is_told_how_many_others_it_nearly_hit(queue):
    queue.sync_from_manifest([a_job("one"), a_job("two")])
    for name in ("two", "two-more", "tw", "tx"):
        queue.sync_from_manifest([a_job("other") | {"name": name, "job_id": f"other-{name}"}])
    assert queue.moves.near("two", "id-two") == 2, "another of that name, and one that begins so"
    assert queue.moves.near("other-tw", "other-two") == 2, "ids, and one that is the text itself"
    assert queue.moves.near("nobody", "id-two") == 0


def test_what_is_asked_for_one_row_reads_one(queue):
    """However long the queue is, or the audit."""
    queue.sync_from_manifest([a_job(name) for name in "abc"])
    class_id = queue.db.all("pending_classes")[0]["class_id"]
    heads = queue.db.all("head", class_id=class_id, avoid_host="", below=99, host="pi")
    for seq in (1, 2, 3):
        row = {"before": None, "after": None, "digest": "", "who": "x", "act": "x", "subject": "x"}
        queue.db.run("add_audit", seq=seq, at=0.0, **row)
        artifact = {"artifact_id": "0" * 64, "model": "gbt", "mode": "m", "size": 1, "now": 0.0}
        claim(queue)
        queue.db.run("add_artifact", job_id=f"id-{'abc'[seq - 1]}", attempt=1, **artifact)
    artifacts = queue.db.all("artifact", artifact_id="0" * 64)
    assert len(heads) == len(artifacts) == len(queue.db.all("audit_head")) == 1


def test_a_page_of_jobs_reads_a_page(queue):
    queue.sync_from_manifest([a_job(name) for name in "abc"])
    assert len(queue.db.all("jobs_page", seq=0, most=2)) == 2


def test_progress_of_a_message_that_comes_again_is_not_taken(queue, one_job):
    claim(queue)
    (attempt,) = queue.attempts.of_job("id-one")
    for seq, step in ((3, 1), (3, 2), (2, 3)):
        queue.attempts.note_progress(attempt, seq, {"step": step})
    assert queue.attempts.of_job("id-one")[0].progress == {"step": 1}


def test_what_was_cancelled_is_told_in_the_order_of_the_plan(queue):
    jobs = [a_job(name) for name in "abc"]
    queue.sync_from_manifest(jobs)
    for name in "cab":
        queue.cancel(f"id-{name}")
    assert [edit.name for edit in queue.sync(jobs).edits] == ["a", "b", "c"]


def half_written(queue, jobs):
    """Write all but the last part of a plan, two jobs at once."""
    queue.plan.part = 2
    write = queue.plan.write(queue.plan.draft(jobs))
    assert write.is_long
    while write.is_long:
        write.write_part()
    return write


def test_a_plan_that_is_written_in_parts_is_granted_as_a_whole():
    with closing(JobQueue(":memory:", clock=FakeClock(), new_claim_id=Counting())) as queue:
        write = half_written(queue, [a_job(name, seed=n) for n, name in enumerate("abcde")])
        assert len(queue.db.all("jobs_page", seq=0, most=9)) == 4
        assert claim(queue) is None
        assert queue.events.fired["insert"] == 0, "or waiting claims would be told of them"
        with queue.db.transaction():
            assert write.finish().counts["inserted"] == 5
        assert queue.plan.edition == 1
        assert {claim(queue).name for _ in range(5)} == set("abcde")


def test_a_plan_cut_off_is_finished_by_the_next_write(queue):
    jobs = [a_job(name, seed=n) for n, name in enumerate("abcde")]
    half_written(queue, jobs)
    counts = queue.sync(jobs).counts
    assert {word: n for word, n in counts.items() if n} == {"inserted": 1, "unchanged": 4}
    assert {claim(queue).name for _ in range(5)} == set("abcde")


def test_a_plan_cut_off_is_undone_by_the_plan_before(queue):
    queue.sync([a_job("old")])
    half_written(queue, [a_job(name, seed=n) for n, name in enumerate("abcde")])
    queue.sync([a_job("old")])
    jobs = [queue.get(f"id-{name}") for name in "abcd"]
    assert {job.status for job in jobs if job is not None} == {JobStatus.CANCELLED}
    assert claim(queue).name == "old"
    assert claim(queue) is None
    assert queue.sync([a_job("old"), a_job("a", seed=0)]).counts["revived"] == 1
    assert claim(queue).name == "a"


def test_no_two_plans_are_written_at_once(queue):
    write = queue.plan.write(queue.plan.draft([a_job("one")]))
    queue.sync([a_job("two")])
    with pytest.raises(AssertionError, match="another plan"):
        write.finish()


def test_of_jobs_that_changed_only_the_first_hundred_are_told(queue):
    jobs = [a_job(f"job-{n}", seed=n) for n in range(150)]
    queue.sync(jobs)
    edited = [{**job, "priority": 7, "name": f"new-{n}" if n > 140 else job["name"]} for n, job in enumerate(jobs)]
    found = queue.sync(edited)
    assert (found.counts["updated"], found.counts["renamed"]) == (150, 9)
    assert [edit.name for edit in first(found.edits) if edit.kind is EditKind.JOB] == [f"job-{n}" for n in range(91)]
    left = queue.sync([])
    assert left.counts["removed"] == 150
    assert [edit.job_id for edit in left.edits] == sorted(job["job_id"] for job in jobs)[:LISTED_MAX]


def test_what_ran_out_of_memory_keeps_its_class_in_an_edited_plan(queue):
    above_gib = {"one": (8.0, 0.0), "two": (0.0, 8.0), "three": (0.0, 0.0)}
    queue.sync([a_job(name, seed=n) for n, name in enumerate(above_gib)])
    for name, (ram_gib, vram_gib) in above_gib.items():
        job = queue.get(f"id-{name}")
        queue.moves.widen(job, replace(job.needs, ram_above_gib=ram_gib, vram_above_gib=vram_gib))
    queue.sync([a_job(name, seed=n, min_cores=2) for n, name in enumerate(above_gib)])
    classes = {row["name"]: row["class_id"] for row in queue.db.all("jobs_page", seq=0, most=3)}
    needs = {name: queue.classes.at(class_id).needs for name, class_id in classes.items()}
    assert {name: (each.ram_above_gib, each.vram_above_gib) for name, each in needs.items()} == above_gib


def test_a_host_that_must_wait_is_told_of_the_first_job_that_it_may_have_again(queue, clock):
    queue.sync_from_manifest([a_job("one"), a_job("two")])
    for job_id, left_s in (("id-one", 90.0), ("id-two", 40.0)):
        queue._conn.execute(
            "UPDATE jobs SET avoid_host = 'pi', avoid_until = ? WHERE job_id = ?", (clock.now() + left_s, job_id)
        )
    other = Fleet(alive=(a_host("desktop"),))
    assert queue.grant(a_host("pi"), Claimant(), other).retry_after_s == 40.0


@pytest.mark.parametrize("how", ["adopt", "readopt"])
def test_a_host_that_is_heard_again_gives_back_its_own_loss_alone(queue, one_job, how):
    for _ in range(3):
        assert claim(queue) is not None
        job = queue.get("id-one")
        attempt = queue.attempts.of_job("id-one")[-1]
        queue.settle(job, attempt, EndReason.HOST_LOST)
    job, attempt = queue.get("id-one"), queue.attempts.of_job("id-one")[-1]
    assert job.host_losses == 3
    if how == "adopt":
        queue.moves.adopt(job, attempt, "a" * 64)
    else:
        queue.moves.readopt(job, attempt)
    assert queue.get("id-one").host_losses == 2


def test_what_a_text_may_mean_is_told_in_the_order_of_the_plan_and_not_without_end(queue):
    ids = [f"j{number:02d}" for number in random.Random(1).sample(range(99), 30)]
    queue.sync_from_manifest([a_job("same") | {"job_id": job_id} for job_id in ids])
    assert [job_id for job_id, _ in queue.moves.named("j")] == ids[:20]
    assert [job_id for job_id, _ in queue.moves.named("same")] == ids[:20]


def test_a_whole_id_is_found_however_many_are_called_so(queue):
    called = [a_job("the-id") | {"job_id": f"other-{number}"} for number in range(21)]
    queue.sync_from_manifest([*called, a_job("one") | {"job_id": "the-id"}])
    assert queue.moves.named("the-id")[0] == ("the-id", "one")


def test_a_grant_is_written_of_a_job_that_waits_and_of_no_other(queue, one_job):
    assert claim(queue) is not None
    with pytest.raises(AssertionError, match="one transaction"):
        queue.grants.write("id-one", a_host("desk"), Claimant())


@pytest.mark.parametrize(("priority", "first"), [(9, "avoids"), (1, "other")])
def test_a_job_that_avoids_a_host_keeps_its_place_before_the_others(queue, clock, priority, first):
    queue.sync_from_manifest([a_job("avoids", priority=priority), a_job("other", priority=5, seed=1)])
    queue._conn.execute(
        "UPDATE jobs SET avoid_host = 'pi', avoid_until = ? WHERE name = 'avoids'", (clock.now() + 90.0,)
    )
    assert queue.grant(a_host("desktop"), Claimant(), Fleet(alive=(a_host("pi"),))).job.name == first


def test_a_job_that_avoids_its_host_no_longer_is_not_passed_over(queue, clock):
    """The schedule of a moment ago does not know it: it was made while the job was in none."""
    jobs = [a_job("avoided", priority=9), a_job("other", priority=5, seed=1)]
    queue.sync_from_manifest([{**job, "allowed_hosts": ["pi"]} for job in jobs])
    queue._conn.execute(
        "UPDATE jobs SET avoid_host = 'pi', avoid_until = ? WHERE name = 'avoided'", (clock.now() + 1.0,)
    )
    assert isinstance(queue.grant(a_host("desk"), Claimant(), Fleet(alive=(a_host("pi"),))), NoJob)
    clock.advance(2.0)
    assert queue.policy.reschedule_s > 2.0
    assert queue.grant(a_host("pi"), Claimant(), Fleet(alive=(a_host("desk"),))).job.name == "avoided"


def test_jobs_of_equal_class_keys_are_of_one_class(queue):
    """The key is only quicker to write: whatever differs in a class must differ in it."""
    plain = {**a_job(), "dataset": "d", "max_run_s": 60.0}

    def class_of(spec):
        return queue.classes.of(Needs.of(spec), spec)

    apart = set()
    for key, value in plain.items():
        spec = {**plain, key: {str: "other", list: ["pi"], dict: {"depth": 9}, bool: True}.get(type(value), 9)}
        if class_of(spec) != class_of(plain):
            apart.add(key)
            assert class_key(spec) != class_key(plain), key
    assert {"model", "require_cuda", "min_ram_gib", "allowed_hosts", "dataset", "hyper"} <= apart


def test_of_very_many_classes_the_last_ignore_hyperparameters_while_the_first_wait(queue, monkeypatch):
    monkeypatch.setattr("training.fleet.queue.classes.CLASSES_MOST", 2)
    for powers in (range(4), range(4, 8)):
        queue.sync([a_job(f"{n}", hyper={"max_depth": 2**n}) for n in powers])
        assert len(queue.db.all("pending_classes")) == 3, "one each for two, and one for the others"
        for n in powers:
            queue.cancel(f"id-{n}")


def test_of_a_host_with_very_many_attempts_those_that_end_first_are_places():
    busy = [Slot("desk", n, n + 1.0) for n in range(20)]
    assert [slot.ready_s for slot in places("desk", busy)] == [*range(16)]
    assert places("pi", []) == [Slot("pi")]
    numbered = [(slot.number, slot.ready_s) for slot in places("desk", busy[:2], most=3)]
    assert numbered == [(0, 1), (1, 0), (2, 0.0)], "a job that needs the whole host waits for the last"


@pytest.mark.parametrize(
    ("priorities", "of_each"),
    [((100, 40), (1, 1)), ((40, 40), (1, 1)), ((40, 100), (0, 2))],
    ids=["first on the processor", "alike", "first on the GPU"],
)
def test_jobs_that_share_a_gpu_leave_a_place_to_one_on_the_processor_unless_they_come_first(priorities, of_each):
    """Found by the simulation: with all places on the GPU, such a job was in no schedule, and others went before it."""
    plain, on_gpu = priorities
    kinds = [
        JobKind("plain", 1, {"desk": 10.0}, plain, places={"desk": (False, 2)}),
        JobKind("gpu", 3, {"desk": 10.0}, on_gpu, places={"desk": (True, 2)}),
    ]
    found = [slot.gpu for slot in places_of([a_host("desk", slots=2)], {}, kinds)]
    assert (found.count(False), found.count(True)) == of_each


def test_who_waits_is_told_of_the_host_that_begins_such_jobs_first(queue, clock):
    slots = [Slot("late", 40.0), Slot("first", 30.0), Slot("last", 50.0)]
    kinds = [JobKind("1:0:", 9, {slot.host: 10.0 for slot in slots})]
    queue.ahead.rolling.renew(kinds, slots, clock.monotonic())
    assert queue.ahead.told("1:0:", "pi")[1].startswith("such jobs are scheduled for first from ")

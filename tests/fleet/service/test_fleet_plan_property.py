"""Random edits of a plan, with reloads, restarts, work and orders between: what is granted, recorded and left.

The model knows the file as it was last read and nothing of how the queue keeps it.
"""

from __future__ import annotations

from builders import a_completion, a_failure, a_job, a_worker_claim
from fakes import Counting, FakeClock, FakeShelf
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec import to_builtins

from training.fleet.queue.jobs import JobQueue
from training.fleet.queue.plan_diff import foresee, planned_ids
from training.fleet.queue.rows import jobs_by_host
from training.fleet.scheduling.policy import Policy
from training.fleet.service.catalogue import provenance_of
from training.fleet.service.changes import told
from training.fleet.service.hosts import HostRegistry, Plan
from training.fleet.service.service import Service

JOBS = ("one", "two", "three", "four")  # the last is in no first plan
HOSTS = ("pi", "desktop")
A = "a" * 64

# Whatever may be edited without making another job.
EDITS = st.one_of(
    st.tuples(st.just("priority"), st.integers(0, 3)),
    st.tuples(st.just("n_resamples"), st.integers(1, 3)),
    st.tuples(st.just("max_run_s"), st.sampled_from([2.0, 60.0, None])),
    st.tuples(st.just("max_silence_s"), st.sampled_from([5.0, None])),
    st.tuples(st.just("denied_hosts"), st.lists(st.sampled_from(HOSTS), max_size=1)),
    st.tuples(st.just("allowed_hosts"), st.lists(st.sampled_from(HOSTS), max_size=1)),
    st.tuples(st.just("min_cores"), st.sampled_from([0, 2, 64])),
    st.tuples(st.just("trainer"), st.sampled_from([None, *({"name": "own", "outputs": [name]} for name in "ab")])),
)
NUMBER = st.integers(0, 3)


class Edited(RuleBasedStateMachine):
    """An operator at the file and the command line, two hosts at work."""

    def __init__(self):
        super().__init__()
        self.clock, self.dataset_store = FakeClock(), FakeShelf()
        # Hosts are believed here: whoever fails everything goes on being asked.
        policy = Policy(backoff_s=0.0, retry_elsewhere_grace_s=0.0, host_priority_grace_s=0.0)
        self.queue = JobQueue(":memory:", clock=self.clock, new_claim_id=Counting(), policy=policy)
        self.file = [a_job(name, seed=n) for n, name in enumerate(JOBS[:3])]
        self.first = [dict(entry) for entry in self.file]
        self.read = {}  # what the last plan that named a job said of it
        self.planned = set()
        self.granted = {}  # claim → what its answer said
        self.stopped = set()  # jobs that somebody cancelled by name
        self.idle = {entry["job_id"] for entry in self.file}  # that nobody touched
        self.held = {}  # host → the claim and job it works on
        self.start()

    # ── the plan ────────────────────────────────────────────────────────────────────────────

    @rule()
    def start(self):
        self.service = Service(self.queue, self.dataset_store)
        self.reload()

    @rule()
    def reload(self):
        jobs = [dict(entry) for entry in self.file]
        before = {job.job_id: job for job in self.rows()}
        said = self.preview()
        reply = self.service.reload(jobs, Plan())
        assert said == reply, "a preview says what the reload will"
        assert not self.preview().changed, "and once it is done, that it changes nothing"
        self.tell(before, reply)
        self.planned = {entry["job_id"] for entry in self.file}
        self.read |= {entry["job_id"]: dict(entry) for entry in self.file}

    def preview(self):
        after = HostRegistry(self.service.known_hosts(), Plan())
        synced, _ = foresee(self.queue.db, self.file, planned_ids(self.queue.db))
        return told(synced, self.service.compared_with, after, jobs_by_host(self.queue.db))

    def tell(self, before, reply):
        """The answer counts and names what it changed."""
        known = [entry for entry in self.file if entry["job_id"] in before]
        updated = [each for each in known if each != before[each["job_id"]].spec]
        renamed = [each for each in known if each["name"] != before[each["job_id"]].name]
        back = [each for each in known if not before[each["job_id"]].in_manifest]
        assert reply.inserted == len(self.file) - len(known)
        assert (reply.updated, reply.unchanged) == (len(updated), len(known) - len(updated))
        assert (reply.renamed, reply.revived) == (len(renamed), len(back))
        told = {(edit.kind, edit.job_id): edit for edit in reply.edits}
        for entry in renamed:
            assert told["rename", entry["job_id"]].was == before[entry["job_id"]].name
        for entry in updated:
            was = before[entry["job_id"]]
            keys = {key for key in entry.keys() | was.spec.keys() if key != "name"}
            keys = {key for key in keys if entry.get(key) != was.spec.get(key)}
            edit = told.get(("job", entry["job_id"]))
            said = set() if edit is None else {key.partition(".")[0] for key in edit.keys}
            assert said == keys
            if edit is not None:
                later = {"pending": "at once", "claimed": "from the next attempt"}
                later["running"] = later["claimed"]
                assert edit.holds.startswith(later.get(was.status, "when it is requeued"))

    @rule(number=NUMBER, edit=EDITS)
    def edit(self, number, edit):
        if self.file:
            key, value = edit
            entry = self.file[number % len(self.file)]
            entry.pop(key) if value is None and key in entry else None
            if value is not None:
                entry[key] = value

    @rule(number=NUMBER, name=st.sampled_from(["small", "large", *JOBS]))
    def rename(self, number, name):
        """The name of a job that left, or finished, may be taken."""
        if self.file and name not in {entry["name"] for entry in self.file}:
            self.file[number % len(self.file)]["name"] = name

    @rule(one=NUMBER, other=NUMBER)
    def swap(self, one, other):
        if self.file:
            a, b = self.file[one % len(self.file)], self.file[other % len(self.file)]
            a["name"], b["name"] = b["name"], a["name"]

    @rule(number=NUMBER)
    def remove(self, number):
        if self.file:
            self.file.pop(number % len(self.file))

    @rule(number=NUMBER)
    def bring(self, number):
        """A job that was there before, or a new one, under any free name."""
        name, taken = JOBS[number], {entry["name"] for entry in self.file}
        if f"id-{name}" not in {entry["job_id"] for entry in self.file}:
            free = next(each for each in (name, f"{name}-again", "x", "y", "z") if each not in taken)
            self.file.append(a_job(name, seed=number) | {"name": free})

    # ── work ────────────────────────────────────────────────────────────────────────────────

    @rule(host=st.sampled_from(HOSTS))
    def claim(self, host):
        if host in self.held:
            return
        self.clock.advance(1.0)
        reply = self.service.claim(a_worker_claim(host, session_id=None))
        if reply.claim_id is None:
            return
        assert reply.spec == self.read[reply.job_id], "the newest plan that named it"
        assert reply.name == reply.spec["name"]
        assert host not in reply.spec["denied_hosts"]
        assert reply.spec["allowed_hosts"] in ([], [host])
        self.granted[reply.claim_id] = reply.spec
        self.held[host] = (reply.claim_id, reply.job_id)
        self.idle.discard(reply.job_id)

    @precondition(lambda self: self.held)
    @rule(number=NUMBER, well=st.booleans())
    def end(self, number, *, well):
        host = sorted(self.held)[number % len(self.held)]
        claim_id, job_id = self.held.pop(host)
        attempt = self.queue.attempts.by_claim(claim_id)
        if not attempt.live:
            return
        if well:
            ticket = self.service.upload_permission(job_id, claim_id, host)
            self.dataset_store.put(A, model=ticket.model, mode=ticket.mode)
            self.service.upload_done(ticket, A, 10)
            self.service.complete(job_id, a_completion(claim_id, A))
        else:
            self.clock.advance(100.0)  # nobody is to blame
            self.service.fail(job_id, a_failure(claim_id, error="no", exit_code=1))

    # ── orders ──────────────────────────────────────────────────────────────────────────────

    @rule(number=NUMBER)
    def cancel(self, number):
        job_id = f"id-{JOBS[number]}"
        if self.queue.cancel(job_id, by="operator ada"):
            self.stopped.add(job_id)
            self.idle.discard(job_id)

    @rule()
    def cancel_removed(self):
        for job in self.rows():
            if not job.in_manifest and job.status in ("pending", "claimed", "running"):
                self.service.cancel(job.job_id, as_removed=True)

    @rule(number=NUMBER)
    def requeue(self, number):
        job_id = f"id-{JOBS[number]}"
        if self.queue.requeue(job_id):
            self.stopped.discard(job_id)

    # ── what holds ──────────────────────────────────────────────────────────────────────────

    def rows(self):
        return [job for job in map(self.queue.get, (f"id-{name}" for name in JOBS)) if job]

    @invariant()
    def the_plans_jobs_are_what_the_plan_says(self):
        jobs = [job for job in self.rows() if job.in_manifest]
        assert {job.job_id for job in jobs} == self.planned
        assert len({job.name for job in jobs}) == len(jobs)
        for job in jobs:
            said = self.read[job.job_id]
            assert (job.name, job.spec, job.priority) == (said["name"], said, said["priority"])
            assert self.service.resolve(job.name) == job.job_id
            assert (job.status == "cancelled") == (job.job_id in self.stopped)

    @invariant()
    def what_is_recorded_is_what_was_granted(self):
        for job in self.rows():
            for attempt in self.queue.attempts.of_job(job.job_id):
                assert attempt.granted == self.granted[attempt.claim_id]
                said = provenance_of(job, attempt, now=0.0)
                assert said["spec"] == attempt.granted
                assert said["name"] == attempt.granted["name"]

    def teardown(self):
        """Undoing every edit gives the first state; what was worked on is as the work left it."""
        self.file = [dict(entry) for entry in self.first]
        self.reload()
        rows = {job.job_id: job for job in self.rows() if job.in_manifest}
        assert {job_id: (job.name, job.spec) for job_id, job in rows.items()} == {
            entry["job_id"]: (entry["name"], entry) for entry in self.first
        }
        assert {rows[job_id].status for job_id in self.idle} <= {"pending"}
        again = self.service.reload(self.first, Plan())
        assert (again.unchanged, again.changed) == (len(self.first), False)
        assert all(edit.kind == "stands" for edit in again.edits), to_builtins(again)
        assert self.queue.plan.draft(self.first).plan_jobs() == self.queue.plan.jobs()
        assert not [each for each in self.queue.db.sealed() if each.broken or each.rows != each.counted]
        self.queue.close()


TestEdited = Edited.TestCase
TestEdited.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)

"""Views: pages, histories, logs, and the answer to "why is it not running?"."""

from __future__ import annotations

import msgspec
import pytest
from builders import a_beat, a_capability, a_job, a_worker_claim, some_lines
from fakes import FakeClock, FakeShelf
from hypothesis import given, settings
from hypothesis import strategies as st
from service_running import POLICY, Receiver

from training.fleet.database.sqlite import SqliteDatabase
from training.fleet.pages.rendering import job_path
from training.fleet.queue.jobs import JobQueue
from training.fleet.scheduling.retention import Rules
from training.fleet.scheduling.workload import Workload
from training.fleet.service.hosts import Plan
from training.fleet.service.job_views import JobFilter, ListPlace
from training.fleet.service.service import Service
from training.fleet.service.views import Views
from training.fleet.wire.constants import ProblemType, Refusal


class Looking(Receiver):
    """A service with its file, and views on a connection of their own beside it, as the receiver has them."""

    views = None

    def __init__(self, path):
        super().__init__(path=path)
        self.reader = SqliteDatabase(path)
        self.views = Views(self.reader, self.service)

    def plan(self, *jobs, **hosts):
        super().plan(*jobs, hosts=hosts)

    def job(self, name="one"):
        return self.views.job(f"id-{name}").job

    def verdicts(self, name="one"):
        reply = self.views.explain(f"id-{name}")
        return {each.host: (each.fits, each.reason, each.wait_s) for each in reply.hosts}


@pytest.fixture
def fleet(tmp_path):
    looking = Looking(tmp_path / "training_jobs.db")
    yield looking
    looking.reader.close()
    looking.queue.close()


# ── pages ───────────────────────────────────────────────────────────────────────────────────


def walked(fleet, **wish):
    """Names of all jobs, page by page."""
    names, after = [], 0
    while True:
        page = fleet.views.jobs(after=after, **wish)
        assert page.jobs, "a page is promised only where there is one"
        names += [job.name for job in page.jobs]
        if page.next_after is None:
            return names
        after = page.next_after


@pytest.mark.parametrize("limit", [1, 2, 3, 6, 7, 1000])
def test_pages_show_every_job_once_in_order_of_arrival(fleet, limit):
    names = [f"job-{n}" for n in range(6)]
    fleet.plan(*(a_job(name, priority=n) for n, name in enumerate(names)))
    assert walked(fleet, limit=limit) == names


def test_a_page_of_one_status(fleet):
    fleet.plan(*(a_job(f"job-{n}") for n in range(5)))
    fleet.service.cancel("job-1")
    fleet.service.cancel("job-3")
    assert walked(fleet, wanted=JobFilter(status="cancelled"), limit=1) == ["job-1", "job-3"]
    page = fleet.views.jobs(JobFilter(status="cancelled"))
    assert (page.counts["pending"], page.counts["cancelled"]) == (3, 2), "of the whole queue"
    assert page.now == fleet.clock.now()
    with pytest.raises(Refusal) as refused:
        fleet.views.jobs(JobFilter(status="lost"))
    assert refused.value.problem_type is ProblemType.BAD_REQUEST
    assert "pending" in refused.value.detail


@settings(max_examples=40)
@given(
    wanted=st.builds(
        JobFilter,
        st.sampled_from(["", "pending", "running", "cancelled", "held"]),
        st.sampled_from(["", "gbt", "mlp"]),
        st.sampled_from(["", "realistic", "oracle"]),
        st.sampled_from(["", "pi", "nobody"]),
        st.sampled_from(["", "B-1", "é", "_", "%"]),
    ),
    sort=st.sampled_from(["newest", "name", "priority", "arrival"]),
    most=st.sampled_from([1, 3, 50]),
)
def test_filters_let_through_what_a_look_at_each_job_lets_through(listed, wanted, sort, most):
    """Out of an index and page by page, and counted alike."""
    seen, place = [], ListPlace()
    while True:
        found, following = listed.views.found(wanted, sort, place, most)
        seen += [each.name for each in found]
        if following is None:
            break
        place = following
    expected = [each for each in listed.views.jobs().jobs if passes(wanted, each)]
    keys = {
        "newest": lambda job: -(job.finished_at or job.claimed_at or job.created_at),
        "name": lambda job: job.name,
        "priority": lambda job: -job.priority,
        "arrival": lambda job: 0,
    }
    assert seen == [each.name for each in sorted(expected, key=keys[sort])]
    counted = sum(
        kind.n
        for kind in listed.views.counted(wanted.q)
        if all(getattr(wanted, n) in ("", getattr(kind, n)) for n in ("status", "model", "mode", "host"))
    )
    if wanted.status != "held":
        assert counted == len(expected)


def passes(wanted, job):
    held = wanted.status == "held" and job.status == "pending" and job.held_by is not None
    return (
        (held or wanted.status in ("", job.status))
        and wanted.model in ("", job.model)
        and wanted.mode in ("", job.mode)
        and wanted.host in ("", job.host)
        and wanted.q.lower() in job.name.lower()
    )


@pytest.fixture(scope="module")
def listed(tmp_path_factory):
    """Jobs of every kind that a filter can tell apart."""
    looking = Looking(tmp_path_factory.mktemp("listed") / "training_jobs.db")
    looking.plan(
        *(
            a_job(f"{model}-{n}-é", model=model, mode=("realistic", "oracle")[n % 2], priority=n % 3)
            for model in ("gbt", "mlp")
            for n in range(6)
        )
    )
    for n in range(3):
        looking.clock.advance(10)
        claim = looking.granted(session=n + 1, slot=n)
        looking.service.heartbeat(next(j.job_id for j in looking.views.live() if j.status == "claimed"), a_beat(claim))
    looking.service.cancel("mlp-5-é")
    looking.service.hold("mlp-4-é", by="ada")
    yield looking
    looking.reader.close()
    looking.queue.close()


def test_jobs_that_wait_for_another_host_are_named_like_others(fleet):
    fleet.plan(a_job("one"), a_job("two"), a_job("three"))
    fleet.fail(fleet.granted())
    (group,) = fleet.views.waiting()
    assert (group.count, sorted(each["name"] for each in group.jobs)) == (3, ["one", "three", "two"])


@pytest.fixture
def one_job(fleet):
    fleet.plan(a_job("one"))


def test_of_two_waiting_jobs_with_one_name_each_has_its_own_page(fleet, one_job):
    fleet.plan({**a_job("two"), "name": "one"})
    waits, left = fleet.views.waiting()
    assert [*map(job_path, (*waits.jobs, *left.jobs))] == ["/jobs/one", "/jobs/id-one"]


def test_a_running_job_shows_its_host_and_progress_and_a_pending_one_none(fleet, one_job):
    claim_id = fleet.granted()
    fleet.beat(claim_id, progress={"epoch": 2, "eta_s": 30})
    (shown,) = fleet.views.jobs().jobs
    assert (shown.status, shown.host, shown.progress) == ("running", "pi", {"epoch": 2, "eta_s": 30})
    assert fleet.job() == shown, "one job looks alike on its own page"
    fleet.fail(claim_id)
    (shown,) = fleet.views.jobs().jobs
    assert (shown.status, shown.host, shown.progress) == ("pending", None, None)
    assert shown.error == "it broke", "what happened last stays visible while it waits"


@pytest.mark.parametrize(
    ("reason", "fresh", "shown"),
    [
        ("interrupted", None, {"epoch": 2}),
        ("worker_shutdown", {"event": "data"}, {"epoch": 2}),
        ("interrupted", {"epoch": 1}, {"epoch": 1}),
        ("interrupted", {"event": "fetch", "bytes": 1}, {"event": "fetch", "bytes": 1}),
        ("trainer_failed", {"event": "data"}, {"event": "data"}),
    ],
)
def test_a_resumed_job_shows_how_far_it_was_until_it_says_how_far_it_is(fleet, one_job, reason, fresh, shown):
    claim_id = fleet.granted()
    fleet.beat(claim_id, progress={"epoch": 2})
    fleet.fail(claim_id, reason=reason)
    fleet.clock.advance(3600)
    fleet.fail(fleet.granted(), reason="worker_shutdown")
    fleet.beat(fleet.granted(), progress=fresh)
    assert fleet.job().progress == shown


def test_every_answer_can_be_sent(fleet):
    fleet.plan(a_job("one"), desktop={"priority": 1})
    fleet.fail(fleet.granted(), exit_code=65)
    for answer in (
        fleet.views.jobs(),
        fleet.views.job("id-one"),
        fleet.views.explain("id-one"),
        fleet.views.log("id-one"),
        fleet.views.workers(),
    ):
        assert msgspec.json.decode(msgspec.json.encode(answer), type=type(answer)) == answer


@pytest.mark.parametrize("question", ["job", "log", "explain"])
def test_an_unknown_job_is_said_to_be_one(fleet, question):
    with pytest.raises(Refusal) as refused:
        getattr(fleet.views, question)("no such job")
    assert refused.value.problem_type is ProblemType.UNKNOWN_JOB


# ── one job ─────────────────────────────────────────────────────────────────────────────────


def test_a_job_tells_how_long_the_plan_keeps_what_its_trainer_saved(fleet, one_job):
    assert fleet.views.job("id-one").keep_state_s is None
    fleet.service.reload([a_job("one")], Plan(retention=Rules(keep_states_days=7.0)))
    assert fleet.views.job("id-one").keep_state_s == 604_800.0


def test_a_job_shows_its_whole_history(fleet, one_job):
    fleet.fail(fleet.granted(), exit_code=1, record={"seconds": 3.5})
    fleet.service.requeue("one")
    fleet.ask("desktop")
    detail = fleet.views.job("id-one")
    assert [(a.attempt, a.generation, a.host, a.end_reason) for a in detail.attempts] == [
        (1, 1, "pi", "trainer_failed"),
        (2, 2, "desktop", None),
    ]
    assert (detail.attempts[0].exit_code, detail.attempts[0].record) == (1, {"seconds": 3.5})
    moves = [(each.transition, each.to_status) for each in detail.events]
    assert moves == [
        ("insert", "pending"),
        ("claim", "claimed"),
        ("retry", "pending"),
        ("requeue", "pending"),
        ("claim", "claimed"),
    ]
    assert detail.spec == a_job("one")


def test_a_failed_job_shows_its_error_and_what_ended_it(fleet, one_job):
    fleet.fail(fleet.granted(), error="CUDA out of memory", exit_code=2)
    shown = fleet.job()
    assert (shown.status, shown.error) == ("failed", "CUDA out of memory")
    assert "exit code 2 (bad arguments)" in (shown.ended_by or "")


def test_a_log_is_read_from_any_line_on(fleet, one_job):
    claim_id = fleet.granted()
    for first, lines in ((0, ["a", "b", "c"]), (3, ["d", "e"])):
        fleet.beat(claim_id, log=some_lines(*lines, first=first))
    for after, lines in ((0, "abcde"), (1, "bcde"), (3, "de"), (4, "e")):
        reply = fleet.views.log("id-one", after=after)
        assert (reply.first, "".join(reply.lines), reply.next, reply.live) == (after, lines, 5, True)
    done = fleet.views.log("id-one", after=5)
    assert (done.lines, done.next) == ([], 5), "asked again from there, nothing is repeated"
    fleet.service.cancel("one")
    assert not fleet.views.log("id-one").live


def test_a_long_log_is_read_page_by_page(fleet, monkeypatch):
    monkeypatch.setattr("training.fleet.service.logs.PAGE_BYTES", 4)
    fleet.plan(a_job("one"))
    claim_id = fleet.granted()
    for n in range(5):
        fleet.beat(claim_id, log=some_lines(str(n), first=n))
    after, pages = 0, []
    while (reply := fleet.views.log("id-one", after=after)).lines:
        pages.append("".join(reply.lines))
        after = reply.next
    assert pages == ["01", "23", "4"]


def test_each_attempt_has_its_own_log(fleet, one_job):
    assert fleet.views.log("id-one").lines == [], "before its first attempt"
    for n in (1, 2):
        fleet.beat(fleet.granted(session=n), log=some_lines(f"try {n}"))
    assert fleet.views.log("id-one").lines == ["try 2"]
    for ask in (fleet.views.log, fleet.views.curve):
        for never in (0, 3):
            with pytest.raises(Refusal, match=f"one has no attempt {never}; the last one is 2"):
                ask("id-one", attempt=never)
    earlier = fleet.views.log("id-one", attempt=1)
    assert (earlier.lines, earlier.live) == (["try 1"], False)


# ── why is it not running? ──────────────────────────────────────────────────────────────────


def test_a_job_that_no_known_host_can_run_says_why_in_the_list(fleet):
    fleet.plan(a_job("one", require_cuda=True), a_job("two"))
    assert "no worker has asked" in (fleet.job().obstacle or "")
    fleet.ask("pi")
    by_name = {job.name: job.obstacle for job in fleet.views.jobs().jobs}
    assert by_name["one"] == "needs a GPU, and no host has one"
    assert by_name["two"] is None
    assert fleet.views.explain("id-one").summary == "it needs a GPU, and no host has one"
    fleet.ask("desktop", capability=a_capability(cuda=True, vram=1))
    assert fleet.job().obstacle is None


def test_explain_notes_the_hosts_that_a_job_names_and_that_never_asked(fleet):
    fleet.plan(a_job("one", denied_hosts=["smal"]))
    fleet.ask("small")
    fleet.service.host_registry.plan = Plan(named_hosts={"smal": "denied_hosts of job one", "x": "y"})
    verdicts = fleet.verdicts()
    assert verdicts["smal"][1].endswith("never asked for work; did you mean small?")
    assert "x" not in verdicts, "another job names it"


def test_explain_answers_for_every_host(fleet):
    fleet.plan(
        a_job("one", require_cuda=True, min_vram_gib=8, denied_hosts=["laptop"]),
        a_job("other", priority=99),
        office={"priority": 1},
    )
    fleet.ask("pi")
    fleet.service.cancel("other")
    for host, vram in (("small", 4.0), ("laptop", 24.0)):
        fleet.ask(host, capability=a_capability(cuda=True, vram=vram))
    verdicts = fleet.verdicts()
    assert "no CUDA" in verdicts["pi"][1]
    assert "vram_free 4.0 < 8.0" in verdicts["small"][1]
    assert "denied_hosts" in verdicts["laptop"][1]
    assert "never asked for work" in verdicts["office"][1]
    assert not any(fits for fits, _, _ in verdicts.values())
    assert fleet.views.explain("id-one").summary == "no known host can run it"


def test_explain_says_that_a_host_holds_as_many_jobs_as_it_may(fleet):
    fleet.plan(a_job("first", priority=99), a_job("one"))
    fleet.ask("pi", capability=a_capability(cores=1))
    why = "host pi holds 1 job and has 1 core: it gets another when one has ended"
    assert fleet.verdicts()["pi"] == (True, why, None)
    assert fleet.views.explain("id-one").summary == f"it waits: pi: {why}"


def test_explain_says_whom_a_slow_host_leaves_the_job_to_and_for_how_long_at_most(fleet):
    fleet.plan(a_job("first"), a_job("one"), desktop={"slots": 1})
    speeds, work = fleet.queue.ahead.kinds.learned.speeds(), Workload.of(a_job("one"))
    for host, seconds in (("desktop", 100.0), ("pi", 9_000.0)) * 3:
        speeds.learn(work, host, seconds)
    fleet.ask("desktop")
    reply = fleet.ask("pi")
    verdicts = fleet.verdicts()
    assert verdicts["desktop"][1].startswith("host desktop holds 1 job and has 1 slot")
    _, why, wait_s = verdicts["pi"]
    assert why.startswith("such jobs are scheduled for desktop from ")
    assert "which has them done sooner; free for this host in " in why
    assert wait_s == pytest.approx(reply.declined.open_at - fleet.clock.now())


def test_hosts_come_page_by_page(fleet):
    fleet.plan()
    for name in ("d", "b", "e", "a", "c"):
        fleet.ask(name)
    pages, after = [], ""
    while True:
        page = fleet.views.workers(after=after, limit=2)
        pages.append([worker.hostname for worker in page.workers])
        if page.next_after is None:
            break
        after = page.next_after
    assert pages == [["a", "b"], ["c", "d"], ["e"]]
    assert fleet.views.workers(limit=5).next_after is None
    assert len(fleet.views.workers(limit=0).workers) == 1


def test_explain_counts_down_what_time_will_remove(fleet):
    fleet.plan(a_job("one", prefer_cuda=True), desk={})
    fleet.ask("pi")
    fleet.clock.advance(100)
    fits, reason, wait_s = fleet.verdicts()["pi"]
    assert (fits, wait_s) == (True, 200.0)
    assert reason == "prefer_cuda: a CUDA host goes first, 200 s more"
    fleet.clock.advance(200)
    assert fleet.verdicts()["pi"] == (True, "ok", None)
    assert "waits for pi to ask for work" in fleet.views.explain("id-one").summary


def test_explain_says_that_a_busy_host_ends_a_job_first(fleet):
    fleet.plan(a_job("one"), a_job("two", seed=1))
    fleet.ask("pi")
    waits = next(job.job_id for job in fleet.views.jobs(limit=9).jobs if job.status == "pending")
    assert fleet.views.explain(waits).summary.startswith("it waits for pi to end a job that is trained there")


def test_explain_tells_back_off_and_avoidance(fleet, one_job):
    fleet.ask("desktop")
    fleet.service.requeue("one")
    fleet.fail(fleet.granted("pi"))
    away = POLICY.backoff_s + POLICY.retry_elsewhere_grace_s
    assert fleet.verdicts()["pi"] == (True, f"the job failed here, another host goes first for {away:.0f} s more", away)
    assert fleet.verdicts()["desktop"][1:] == ("the job failed a moment ago, 15 s more", 15.0)
    assert fleet.views.explain("id-one").summary.startswith("it waits: desktop: ")
    fleet.clock.advance(POLICY.backoff_s)
    assert fleet.verdicts()["desktop"][1] == "ok"
    fleet.clock.advance(POLICY.retry_elsewhere_grace_s + 1)
    assert fleet.verdicts()["pi"][1] == "ok", "and the time to avoid a host ends"


def test_explain_says_when_a_fitting_host_is_silent(fleet, one_job):
    fleet.ask("pi")
    fleet.service.requeue("one")
    fleet.clock.advance(POLICY.stale_after_s + 1)
    assert fleet.verdicts()["pi"][1] == "it fits, but was not seen for 10 min"


def test_a_job_whose_only_fitting_host_is_gone_says_so(fleet):
    fleet.plan(a_job("one", require_cuda=True), a_job("two", require_cuda=True, seed=8))
    fleet.ask("w1", capability=a_capability(cuda=True))
    assert fleet.job("two").note is None
    fleet.clock.advance(POLICY.stale_after_s + 1)
    fleet.ask("pi")
    waits = "waits for w1, not seen for 10 min"
    assert [job.note for job in fleet.views.jobs(JobFilter(status="pending")).jobs] == [waits]
    assert (fleet.job("two").note, fleet.job("two").obstacle) == (waits, None)
    fleet.clock.advance(31 * 86400)
    fleet.ask("pi")
    assert fleet.job("two").note == "waits for w1, not seen for 31 d 0 h"
    fleet.ask("desk", capability=a_capability(cuda=True))
    assert fleet.job("two").note is None


def test_silent_hosts_are_named_the_last_one_heard_first(fleet):
    fleet.plan(a_job("one", min_ram_gib=99))
    for number in range(5):
        fleet.ask(f"w{number}", capability=a_capability(ram=100.0 * (number > 0)))
        fleet.service.requeue("one")
        fleet.clock.advance(60)
    fleet.clock.advance(POLICY.stale_after_s)
    assert fleet.job().note == (
        "waits for w4, not seen for 11 min or w3, not seen for 12 min or w2, not seen for 13 min or 1 more"
    )


def test_a_job_that_runs_where_it_would_not_get_again_says_so(fleet, one_job):
    fleet.ask("pi")
    assert fleet.job().note is None
    fleet.plan(a_job("one"), pi={"deny_jobs": ["gbt"]})
    assert fleet.job().note == (
        "it continues on pi, which would not get it again (the model is in the host's deny_jobs); requeue it to move it"
    )
    fleet.service.requeue("one")
    assert fleet.job().note is None


SPECS = st.fixed_dictionaries(
    {
        "require_cuda": st.booleans(),
        "prefer_cuda": st.booleans(),
        "min_cores": st.sampled_from([0, 4, 8]),
        "denied_hosts": st.sampled_from([[], ["pi"], ["desktop"]]),
    }
)
HOSTS = st.dictionaries(
    st.sampled_from(["pi", "desktop", "laptop"]),
    st.tuples(st.booleans(), st.sampled_from([2, 4, 8]), st.integers(0, 1), st.booleans()),
    min_size=1,
)


@settings(max_examples=150)
@given(
    spec=SPECS,
    hosts=HOSTS,
    age_s=st.sampled_from([-20.0, 0.0, 5.0, 10.0, 299.0, 300.0]),
    avoids=st.none() | st.tuples(st.sampled_from(["pi", "desktop", "*"]), st.sampled_from([1.0, 60.0])),
)
def test_explain_agrees_with_the_claim(spec, hosts, age_s, avoids):
    """Its word on a host is the one that this host gets when it asks the next moment."""
    queue = JobQueue(":memory:", clock=FakeClock())
    service = Service(queue, FakeShelf())
    views, now = Views(queue.db, service), queue.clock.now()
    service.reload([], Plan(hosts={host: {"priority": facts[2]} for host, facts in hosts.items()}))
    capabilities = {h: a_capability(cuda=cuda, cores=n) for h, (cuda, n, _, _) in hosts.items()}
    for host, capability in capabilities.items():
        service.claim(a_worker_claim(host, capability=capability))
        if hosts[host][3]:
            service.host_registry.wait_begins(host)
    service.reload([a_job("one", **spec)], service.plan)
    host_avoided, left_s = avoids or ("", None)
    queue._conn.execute(
        "UPDATE jobs SET claimable_at = ?, avoid_host = ?, avoid_until = ?",
        (now - age_s, host_avoided, None if left_s is None else now + left_s),
    )
    for verdict in views.explain("id-one").hosts:
        reply = service.claim(a_worker_claim(verdict.host, capability=capabilities[verdict.host]))
        assert (reply.job_id is not None) == (verdict.reason == "ok"), (verdict, reply)
        if reply.job_id is not None:
            break  # the others would now be told of another state
        if not verdict.fits:
            assert verdict.reason in (reply.reason or "")
            assert reply.retry_after_s is verdict.wait_s is None
        else:
            assert 0 < (reply.retry_after_s or 0) <= (verdict.wait_s or 0), (verdict, reply)
    queue.close()


def test_a_held_job_says_who_holds_it_and_since_when(fleet):
    fleet.plan(a_job("one", require_cuda=True), a_job("two"), a_job("three", priority=-1))
    assert fleet.granted() == fleet.service.queue.get("id-two").claim_id
    fleet.service.hold("one", by="ada")
    moved = fleet.service.hold("two", by="ada")
    assert (moved.status, moved.held_by, moved.held_at) == ("claimed", "ada", fleet.clock.now())
    fleet.service.hold("three", by="ada")
    assert fleet.verdicts("three")["pi"][:2] == (True, "it fits, and waits only because the job is held")
    fleet.clock.advance(3600)
    job = fleet.job()
    assert (job.status, job.held_by, job.obstacle) == ("pending", "ada", None)
    assert job.held_at == fleet.clock.now() - 3600
    assert fleet.views.explain("id-one").summary == (
        "it is held by ada, 1 h 00 min ago, and granted to no host until `cis490-jobs unhold`"
    )
    assert fleet.views.explain("id-two").summary.startswith(
        "the job is claimed; should it wait again, it is held by ada"
    )
    assert fleet.service.unhold("one").held_by is None
    assert fleet.job().obstacle is not None


def test_explain_of_what_is_over_says_how_it_ended(fleet, one_job):
    fleet.fail(fleet.granted(), exit_code=65)
    assert "failed: trainer: exit code 65" in fleet.views.explain("id-one").summary


# ── workers ─────────────────────────────────────────────────────────────────────────────────


def test_workers_show_what_they_can_do_hold_and_lack(fleet):
    jobs = [a_job("one")]
    plan = Plan(hosts={"pi": {"allow_jobs": ["gbt"]}}, trainer_digests=dict.fromkeys(("cnn", "mlp", "gru"), "new"))
    fleet.service.reload(jobs, plan)
    fleet.ask("pi", trainer_digests=dict.fromkeys(("cnn", "mlp", "gru"), "old"))
    with pytest.raises(Refusal):
        fleet.ask("pi", instance_id="clone")
    fleet.clock.advance(1)
    fleet.ask("desktop")
    desktop, pi = fleet.views.workers().workers
    assert (pi.hostname, pi.jobs, pi.declared) == ("pi", ["one"], {"allow_jobs": ["gbt"]})
    assert "for cnn, gru, mlp; update the checkout on pi" in (pi.obstacle or "")
    assert "clone" in (pi.conflict or "")
    assert (desktop.jobs, desktop.declared, desktop.obstacle, desktop.conflict) == ([], None, None, None)
    assert desktop.capability == a_capability()
    fleet.clock.advance(POLICY.stale_after_s)
    assert [worker.alive for worker in fleet.views.workers().workers] == [True, False]


def test_counts_name_every_status(fleet):
    assert fleet.views.counts() == fleet.queue.counts()
    assert set(fleet.views.counts().values()) == {0}

"""The service: who may do what, with the guards that need more than the row, and what observed time means."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing, suppress

import pytest
from builders import a_beat, a_capability, a_claim, a_completion, a_failure, a_job, a_worker_claim, some_lines
from service_running import POLICY, A, Receiver, refused, with_two_jobs

from training.checkout import own_commit
from training.contract import spec_hash
from training.fleet.database.writer import DatabaseFull
from training.fleet.queue.attempts import DeliveryNews
from training.fleet.queue.unavailable import quarantines
from training.fleet.scheduling.job import AMOUNTS, AT_BEST, RESERVES, EndReason, JobStatus
from training.fleet.scheduling.orders import PAUSE_MAX_S
from training.fleet.service import claims
from training.fleet.service.catalogue import first_delivery
from training.fleet.service.claims import SPARE_HOSTS_STEP
from training.fleet.service.hosts import Plan
from training.fleet.wire.attempts import ClaimRequest, SetAsideWork, TrainerUse
from training.fleet.wire.constants import SET_ASIDE_TOLD, SLOTS_MAX, VERSION, Action, ProblemType, Refusal
from training.installed import own_version

B = "b" * 64
DAY = 86_400.0


@pytest.fixture
def receiver():
    with closing(with_two_jobs()) as made:
        yield made


# ── claim ───────────────────────────────────────────────────────────────────────────────────


def test_a_claim_answers_with_all_that_a_worker_needs(receiver):
    reply = receiver.ask()
    assert (reply.job_id, reply.name, reply.attempt) == ("id-one", "one", 1)
    assert reply.spec == a_job("one", priority=90)
    assert reply.lease_s == POLICY.stale_after_s
    assert receiver.queue.attempts.of_job("id-one")[0].session_id == "0000000001-abcd"


def test_a_call_reads_a_row_once_at_most(receiver, monkeypatch):
    rows, asked = {"job", "attempt_by_claim", "live_attempts_of_host"}, Counter[str]()
    read = receiver.queue.db.all  # so does `one`

    def counted(statement, **params):
        asked.update({statement} & rows)
        return read(statement, **params)

    def read_by(call, *args):
        asked.clear()
        call(*args)
        return dict(asked)

    monkeypatch.setattr(receiver.queue.db, "all", counted)
    assert read_by(receiver.claim, a_worker_claim()) == {"live_attempts_of_host": 1}
    (attempt,) = receiver.queue.attempts.of_job("id-one")
    one_job_and_its_attempt = {"job": 1, "attempt_by_claim": 1}
    permission = receiver.service.upload_permission("id-one", attempt.claim_id, "pi")
    receiver.dataset_store.put(A, model=permission.model, mode=permission.mode)
    assert read_by(receiver.service.upload_done, permission, A, 10) == one_job_and_its_attempt
    completion = a_completion(attempt.claim_id, A)
    assert read_by(receiver.service.completable, "id-one", completion) == one_job_and_its_attempt
    assert read_by(receiver.service.complete, "id-one", completion) == one_job_and_its_attempt
    assert receiver.status() == "completed"


@pytest.mark.parametrize("member", ["capability", "trainer_digests"])
def test_what_a_host_says_of_itself_is_bounded(receiver, member):
    said = {**a_capability()} if member == "capability" else {}
    receiver.ask("pi", **{member: said | {"note": "x" * 7_000}})
    claim = a_worker_claim("laptop", **{member: said | {"note": "x" * 8_192}})
    why = refused(ProblemType.BAD_REQUEST, receiver.claim, claim)
    assert why.startswith(f"$.{member}: at most 8 KiB as JSON")
    assert [known.name for known in receiver.service.known_hosts()] == ["pi"]


def test_of_hosts_that_never_got_a_job_the_last_heard_are_remembered(receiver, monkeypatch):
    kept = 300
    monkeypatch.setattr(claims, "SPARE_HOSTS_KEPT", kept)
    receiver.granted("pi")  # the first of all, and it has an attempt
    aside = [SetAsideWork(job_id="id-one", name="one", size=1, why="cancelled")]
    receiver.claim(a_claim("keeper", set_aside=aside))
    receiver.plan(a_job("one"))
    ill = a_capability(healthy=False, self_test="fans are off")
    for number in range(900):
        receiver.clock.advance(1)
        receiver.claim(a_claim(f"made-up-{number:04d}", capability=ill))
    names = [known.name for known in receiver.service.known_hosts()]
    assert {"keeper", "pi", "made-up-0899"} <= set(names)
    assert "made-up-0000" not in names
    assert len(names) <= kept + SPARE_HOSTS_STEP + 2
    assert names == [row["hostname"] for row in receiver.queue.workers()]
    assert set(quarantines(receiver.queue.db)) <= set(names)


def test_a_host_of_two_cores_holds_two_jobs_and_is_told_why_not_three():
    empty = Receiver()
    empty.service.reload([a_job(name) for name in ("one", "two", "three")], Plan())
    two_cores = a_capability(cores=2)
    claims = [empty.granted(slot=slot, capability=two_cores) for slot in range(2)]
    reply = empty.ask(slot=2, capability=two_cores)
    assert reply.reason == ("host pi holds 2 jobs and has 2 cores: it gets another when one has ended")
    assert (reply.job_id, reply.ask_again, reply.retry_after_s) == (None, True, 10.0)
    empty.fail(claims[0])
    assert empty.granted(slot=2, capability=two_cores)


@pytest.mark.parametrize("named", [{"hosts": {"PI": {}}}, {"named_hosts": {"pi": "allowed_hosts of job x"}}, {}])
def test_a_host_that_the_plan_does_not_name_holds_two_jobs_until_two_of_its_models_were_verified(named):
    fleet, many = Receiver(), a_capability(cores=4096, ram=1e6)
    jobs = [a_job(str(n), seed=n) for n in range(8)]
    fleet.plan(*jobs, **named)
    claims = {f"{n}": fleet.granted(slot=n, capability=many) for n in range(2)}
    if not named:
        fleet.service.upload_permission("id-0", claims["0"], None)  # which takes it off no count
        reply = fleet.ask(slot=2, capability=many)
        assert (reply.job_id, reply.slots) == (None, 2)
        assert "holds 2 jobs, and is not in the plan" in (reply.reason or "")
        fleet.deliver(claims["0"], name="0")
        assert fleet.granted(slot=2, capability=many)
        fleet.restart()
        assert fleet.ask(slot=3, capability=many).job_id is None
        fleet.deliver(claims["1"], name="1")
    assert [fleet.ask(slot=n, capability=many).slots for n in range(4, 7)] == [SLOTS_MAX] * 3
    assert len(fleet.queue.attempts.live_on("pi")) >= 4
    fleet.close()


@pytest.mark.parametrize("capability", [{}, a_capability(cores=0)])
def test_a_host_that_tells_no_cores_holds_one_job(receiver, capability):
    receiver.granted(capability=capability)
    reply = receiver.ask(slot=1, capability=capability)
    assert "holds 1 job and has 1 core" in (reply.reason or "")
    assert receiver.granted("laptop", capability=capability)


def test_the_plan_caps_how_many_jobs_a_host_holds(receiver):
    receiver.plan(a_job("one"), a_job("two"), hosts={"pi": {"max_cores": 1}})
    receiver.granted()
    assert "has 1 core:" in (receiver.ask(slot=1).reason or "")


def test_a_lost_attempt_does_not_come_back_to_a_host_that_is_full(receiver):
    one_core = a_capability(cores=1)
    lost = receiver.granted(slot=0, capability=one_core)
    assert receiver.watch(2 * POLICY.stale_after_s + 20) == 1
    receiver.plan(a_job("one"), a_job("two", priority=99))
    receiver.granted(slot=1, capability=one_core)
    refused(ProblemType.LEASE_SUPERSEDED, receiver.beat, lost)
    assert receiver.status("one") == "pending"


def test_no_job_comes_with_the_reason(receiver):
    receiver.plan(a_job("big", require_cuda=True))
    receiver.service.cancel("one")
    receiver.service.cancel("two")
    reply = receiver.claim(a_claim())
    assert (reply.job_id, reply.retry_after_s) == (None, None)
    assert "no CUDA" in (reply.reason or "")


def test_a_full_disk_grants_nothing_and_loses_nobody(receiver):
    receiver.dataset_store.room = False
    reply = receiver.ask()
    assert reply.job_id is None
    assert "disk" in (reply.reason or "")
    assert [known.name for known in receiver.service.known_hosts()] == ["pi"]
    receiver.dataset_store.room = True
    receiver.granted()


def test_the_same_request_has_the_same_answer_with_what_is_left_of_the_lease(receiver):
    asked = a_worker_claim(request_id="r1")
    first = receiver.claim(asked)
    receiver.clock.advance(100)
    again = receiver.claim(asked)
    assert (again.claim_id, again.repeated, again.lease_s) == (first.claim_id, True, 500.0)
    assert receiver.status("two") == "pending"


def test_a_request_id_belongs_to_its_host(receiver):
    mine, other = (receiver.granted(host, request_id="r1") for host in ("pi", "desktop"))
    assert mine != other


def test_a_request_whose_attempt_has_ended_is_not_answered_with_a_dead_claim(receiver):
    receiver.fail(receiver.granted(request_id="r1"))
    said = refused(ProblemType.LEASE_SUPERSEDED, receiver.granted, request_id="r1")
    assert "trainer_failed" in said
    receiver.clock.advance(100)
    receiver.beat(receiver.granted("desktop"))
    crashed = a_worker_claim(request_id="r1", session=2)
    said = refused(ProblemType.LEASE_SUPERSEDED, receiver.claim, crashed)
    assert "trainer_failed" in said, "how its own attempt ended, though another runs"
    receiver.service.cancel("two")
    assert receiver.queue.counts()["claimed"] == 0


@pytest.mark.parametrize("host_id", ["", "a b", "../pi", "x" * 65, "-pi", "pi\n", "пи"])
def test_an_invalid_host_id_is_refused(receiver, host_id):
    assert "--host-id" in refused(ProblemType.BAD_REQUEST, receiver.claim, a_claim(host_id))
    assert receiver.service.known_hosts() == []


@pytest.mark.parametrize("field", ["instance_id", "session_id", "request_id"])
def test_invalid_ids_are_refused(receiver, field):
    request = a_worker_claim(**{field: "../../etc"})
    assert f"$.{field}" in refused(ProblemType.BAD_REQUEST, receiver.claim, request)


# ── hosts, sessions, slots ──────────────────────────────────────────────────────────────────


def test_a_slot_holds_one_job_and_other_slots_are_free(receiver):
    receiver.granted()
    assert "id-one" in refused(ProblemType.SLOT_BUSY, receiver.granted)
    receiver.granted(slot=1)
    assert receiver.queue.counts()["claimed"] == 2


def test_a_caller_of_the_old_form_has_no_slots(receiver):
    assert [receiver.claim(a_claim()).job_id for _ in range(2)] == ["id-one", "id-two"]


def test_a_new_session_ends_the_old_ones_claims_at_once(receiver):
    receiver.granted(session=1)
    receiver.granted(session=1, slot=1)
    receiver.granted("desktop", session=9) if receiver.status("two") == "pending" else None
    again = receiver.ask(session=2)
    assert (again.job_id, again.attempt) == ("id-one", 2)
    first = receiver.queue.attempts.of_job("id-one")[0]
    assert first.end_reason is EndReason.HOST_LOST
    assert "restarted without this job" in (first.error or "")
    assert receiver.status("two") == "pending"
    assert receiver.job().host_losses == 1


def test_a_new_session_leaves_other_hosts_alone(receiver):
    receiver.granted("desktop")
    receiver.granted("pi", session=5)
    assert receiver.queue.counts()["claimed"] == 2


def test_an_older_session_may_not_claim_any_more(receiver):
    receiver.ask(session=10)
    assert receiver.ask(session=9).ask_again
    assert receiver.status("one") == "claimed", "the newer one's claim stands"
    receiver.restart()
    assert receiver.ask(session=9).ask_again


@pytest.mark.parametrize(
    ("newer", "older", "ordered"),
    [
        ("0000000010-aa", "0000000009-ff", True),
        ("0000000010-aa", "0000000010-bb", False),  # of the same count: nobody can tell
        ("some-session", "0000000009-ff", False),
        ("0000000010-aa", "another", False),
    ],
)
def test_only_session_ids_that_sort_are_compared(receiver, newer, older, ordered):
    receiver.granted(session_id=newer)
    assert receiver.claim(a_worker_claim(session_id=older)).attempt == (None if ordered else 2)


def test_a_clone_is_refused_and_shown_until_the_first_is_silent_for_a_lease(receiver):
    receiver.granted()
    clone = a_worker_claim(instance_id="clone-of-pi", session_id="0000000001-ffff")
    assert "--host-id" in refused(ProblemType.HOST_ID_CONFLICT, receiver.claim, clone)
    (known,) = receiver.service.known_hosts()
    assert "clone-of" in (receiver.service.refused(known) or "")
    assert known.instance_id == "instance-of-pi"
    assert receiver.status() == "claimed", "nothing of the first was touched"
    receiver.watch(POLICY.stale_after_s + 10)
    assert receiver.claim(clone).job_id is not None, "it takes over"
    (known,) = receiver.service.known_hosts()
    assert (known.instance_id, known.conflict) == ("clone-of-pi", None)


@pytest.fixture
def claim_id(receiver):
    return receiver.granted()


def test_a_refused_installation_is_named_while_it_asks_and_no_longer(receiver, claim_id):
    for host_id in ("pi", "PI"):
        clone = a_worker_claim(host_id=host_id, instance_id="clone-of-pi")
        refused(ProblemType.HOST_ID_CONFLICT, receiver.claim, clone)
        (known,) = receiver.service.known_hosts()
        assert "--host-id" in (receiver.service.refused(known) or "")
    for _ in range(2):
        receiver.clock.advance(POLICY.stale_after_s / 2)
        receiver.beat(claim_id)
    (known,) = receiver.service.known_hosts()
    assert receiver.service.refused(known) is None, "nobody asks in its name any more"


def test_every_message_shows_that_a_host_lives(receiver, claim_id):
    receiver.clock.advance(500)
    receiver.beat(claim_id)
    receiver.clock.advance(500)
    refused(ProblemType.HOST_ID_CONFLICT, receiver.granted, instance_id="clone")


@pytest.mark.parametrize("how", ["repeated", "refused", "held back"])
def test_a_claim_that_moves_nothing_shows_that_a_host_lives(receiver, how):
    receiver.claim(a_worker_claim(session_id="0000000001-aa", request_id="first", echo=""))
    receiver.ask(session_id="0000000002-bb", request_id="second", echo="")
    match how:
        case "repeated":
            claim = a_worker_claim(session_id="0000000002-bb", request_id="second", echo="")
        case "refused":
            claim = a_worker_claim(session_id="0000000002-bb", request_id="first", echo="")
        case _:
            claim = a_worker_claim(session_id="0000000001-aa", request_id="third", echo="")
    receiver.watch(POLICY.stale_after_s - 10)
    if how == "refused":
        refused(ProblemType.LEASE_SUPERSEDED, receiver.claim, claim)
    else:
        assert receiver.claim(claim).repeated is (how == "repeated")
    receiver.watch(20)
    refused(ProblemType.HOST_ID_CONFLICT, receiver.granted, instance_id="clone")


def test_hosts_are_remembered_over_a_restart(receiver):
    receiver.granted()
    receiver.restart()
    refused(ProblemType.HOST_ID_CONFLICT, receiver.granted, instance_id="clone")


@pytest.mark.parametrize("how", ["down", "on another time, and then down", "asleep"])
def test_what_the_receiver_did_not_watch_lets_no_other_installation_in(receiver, how):
    receiver.watch(POLICY.stale_after_s)
    receiver.granted()
    if how == "on another time, and then down":
        receiver.clock.step(POLICY.stale_after_s)  # and nobody looked at it
        receiver.clock.advance(10)
    else:
        receiver.clock.advance(POLICY.stale_after_s + 10)
    if how != "asleep":
        receiver.restart()
    refused(ProblemType.HOST_ID_CONFLICT, receiver.granted, instance_id="clone")
    receiver.watch(POLICY.stale_after_s + 10)
    receiver.granted(instance_id="clone")


def test_an_idle_host_of_higher_priority_goes_first_for_a_while(receiver):
    declared = {"desktop": {"priority": 100}, "pi": {"deny_jobs": []}}
    receiver.plan(a_job("one", priority=90), a_job("two"), hosts=declared)
    receiver.granted("desktop")
    receiver.service.host_registry.wait_begins("desktop")
    reply = receiver.ask("pi")
    assert (reply.job_id, reply.retry_after_s) == (None, POLICY.host_priority_grace_s)
    assert "desktop (priority 100 > 0)" in (reply.reason or "")
    receiver.clock.advance(POLICY.host_priority_grace_s)
    receiver.granted("pi")
    receiver.service.cancel("two")
    receiver.service.requeue("two")
    receiver.service.host_registry.wait_ends("desktop")
    receiver.granted("laptop")


def test_a_grant_says_which_variables_the_plan_has_for_this_host(receiver):
    receiver.plan(a_job("one"), a_job("two"), hosts={"Pi": {"env": {"HF_HOME": "/data/hf"}}})
    asked = a_worker_claim("pi", request_id="r")
    assert receiver.claim(asked).env == receiver.claim(asked).env == {"HF_HOME": "/data/hf"}
    assert receiver.ask("laptop").env is None


def test_two_open_polls_of_a_host_are_one_waiting_host(receiver):
    receiver.ask("desktop")
    for _ in range(2):
        receiver.service.host_registry.wait_begins("desktop")
    receiver.service.host_registry.wait_ends("desktop")
    assert [host.name for host in receiver.service.fleet().waiting] == ["desktop"]
    receiver.service.host_registry.wait_ends("desktop")
    assert receiver.service.fleet().waiting == ()


def test_a_host_whose_trainers_have_other_flags_is_an_obstacle(receiver):
    receiver.service.reload([a_job("one"), a_job("two")], Plan(trainer_digests={"gbt": "new", "cnn": "new"}))
    for stale in ({"gbt": "old", "cnn": "new"}, {"cnn": "new"}):
        reply = receiver.ask("pi", trainer_digests=stale)
        assert "update the checkout" in (reply.reason or "")
    assert receiver.ask("desktop", trainer_digests={"gbt": "new"}).job_id, "it lacks another"
    assert receiver.ask("laptop").job_id, "who says nothing is believed"


@pytest.mark.parametrize(("protocol", "late"), [(VERSION - 1, "the worker on pi"), (VERSION + 1, "the receiver")])
def test_another_protocol_is_refused_with_the_remedy_which_operators_see(receiver, protocol, late):
    receiver.ask("pi")
    sentence = refused(ProblemType.PROTOCOL_MISMATCH, lambda: receiver.ask("pi", capability={"protocol": protocol}))
    assert f"speaks protocol {protocol}, this receiver {VERSION}: upgrade {late} to" in sentence
    (pi,) = receiver.views.workers().workers
    assert pi.conflict == sentence


@pytest.mark.parametrize(
    ("version", "commit", "unlike"),
    [
        (own_version(), own_commit(), None),
        (None, None, None),
        (own_version(), None, None),
        ("9.9", None, "9.9 of commit unknown"),
        (own_version(), "0" * 40, f"{own_version()} of commit {'0' * 12}"),
    ],
)
def test_a_host_with_another_program_than_the_receivers_is_named(receiver, version, commit, unlike):
    receiver.ask("pi", capability=a_capability(version=version, training_commit=commit))
    said = receiver.views.workers()
    assert [worker.unlike for worker in said.workers] == [unlike]
    assert said.build == f"{own_version()} of commit {own_commit()[:12]}"


def test_after_a_failure_another_host_goes_first(receiver):
    receiver.service.cancel("two")
    receiver.ask("desktop")
    receiver.queue.requeue("id-one")
    receiver.fail(receiver.granted("pi"))
    receiver.clock.advance(POLICY.backoff_s)
    waits = receiver.ask("pi")
    assert (waits.job_id, waits.retry_after_s) == (None, POLICY.retry_elsewhere_grace_s)
    assert receiver.ask("desktop", session=2).job_id == "id-one"


# ── heartbeat, complete, fail ───────────────────────────────────────────────────────────────


def test_a_heartbeat_renews_the_lease_and_progress_never_goes_back(receiver, claim_id):
    for seq, epoch in ((1, 1), (3, 3), (2, 2)):
        reply = receiver.beat(claim_id, seq=seq, progress={"epoch": epoch})
        assert (reply.action, reply.lease_s) == ("continue", POLICY.stale_after_s)
    assert receiver.queue.attempts.of_job("id-one")[0].progress == {"epoch": 3}
    receiver.beat(claim_id, seq=4)
    assert receiver.queue.attempts.of_job("id-one")[0].progress == {"epoch": 3}


def test_output_lines_are_cut_and_stored_once(receiver, claim_id):
    def ship(log):
        return receiver.beat(claim_id, log=log).log_next

    assert ship(some_lines("a", "b")) == 2
    assert ship(some_lines("a", "b")) == 2
    assert ship(some_lines("b", "c" * 10_000, first=1)) == 3
    assert ship(some_lines(*["x"] * 1000, first=3)) == 203
    chunks = receiver.queue.db.all("log", job_id="id-one", attempt=1, after=0, most=10)
    text = "\n".join(chunk["text"] for chunk in chunks).split("\n")
    assert [len(line) for line in text[:4]] == [1, 1, 500, 1]


def test_a_line_that_hides_further_lines_counts_as_one(receiver):
    beat = a_beat(receiver.granted(), log=some_lines("a\nb\nc", "d"))
    assert receiver.service.heartbeat("id-one", beat).log_next == 2
    (chunk,) = receiver.queue.db.all("log", job_id="id-one", attempt=1, after=0, most=10)
    assert len(chunk["text"].split("\n")) == chunk["count"] == 2


def test_cancel_reaches_the_worker_at_its_next_beat_and_is_never_undone(receiver, claim_id):
    receiver.service.cancel("one")
    assert receiver.beat(claim_id).action == "stop"
    refused(ProblemType.JOB_CANCELLED, receiver.fail, claim_id)
    refused(ProblemType.JOB_CANCELLED, receiver.service.upload_permission, "id-one", claim_id, None)
    refused(ProblemType.JOB_CANCELLED, receiver.service.complete, "id-one", a_completion(claim_id))
    assert receiver.status() == "cancelled"


def test_the_same_complete_gives_the_same_receipt_and_another_artifact_conflicts(receiver, claim_id):
    receiver.deliver(claim_id)
    again = receiver.service.complete("id-one", a_completion(claim_id))
    assert (again.status, again.artifact_id, again.attempt) == ("completed", A, 1)
    refused(ProblemType.RESULT_CONFLICT, receiver.service.complete, "id-one", a_completion(claim_id, B))
    receiver.service.requeue("one")
    assert receiver.service.complete("id-one", a_completion(claim_id)).artifact_id == A
    assert receiver.status() == "pending", "the receipt is of the past; the requeue stands"


def test_only_an_artifact_that_this_attempt_delivered_completes(receiver):
    mine, other = receiver.granted("pi"), receiver.granted("desktop")
    refused(ProblemType.NO_ARTIFACT, receiver.service.complete, "id-one", a_completion(mine))
    receiver.dataset_store.put(A, model="gbt", mode="realistic")
    refused(ProblemType.NO_ARTIFACT, receiver.service.complete, "id-one", a_completion(mine))
    receiver.deliver(other, A, "two")
    refused(ProblemType.NO_ARTIFACT, receiver.service.complete, "id-one", a_completion(mine))
    receiver.deliver(mine, A)
    receiver.dataset_store.bundles.clear()
    assert receiver.status() == "completed"


def test_what_was_trained_must_be_what_the_job_asks_for(receiver, claim_id):
    permission = receiver.service.upload_permission("id-one", claim_id, None)
    receiver.dataset_store.put(A, model=permission.model, mode=permission.mode)
    receiver.service.upload_done(permission, A, 10)
    wrong = a_completion(claim_id, spec_hash=spec_hash(a_job("one", seed=8)))
    refused(ProblemType.SPEC_MISMATCH, receiver.service.complete, "id-one", wrong)
    right = a_completion(claim_id, spec_hash=spec_hash(a_job("any name", priority=1)))
    assert receiver.service.complete("id-one", right).status == "completed"


def test_a_failure_keeps_the_error_and_says_what_follows(receiver):
    failure = a_failure(receiver.granted(), error="x" * 9999, exit_code=65, record={"seconds": 3})
    assert receiver.service.fail("id-one", failure).status == "failed"
    (attempt,) = receiver.queue.attempts.of_job("id-one")
    assert (attempt.exit_code, attempt.record, len(attempt.error or "")) == (65, {"seconds": 3}, 4096)
    assert receiver.service.fail("id-one", failure).status == "failed", "again the same"
    job = receiver.job()
    assert job.error == "x" * 4096
    assert "exit code 65" in (job.ended_by or "")


@pytest.mark.parametrize("said", ["worker shutdown", "Worker Shutdown "])
def test_the_old_form_of_a_hand_back_is_understood(receiver, said):
    receiver.claim(a_claim("pi"))
    assert receiver.fail(None, host_id="pi", error=said).status == "pending"
    assert receiver.queue.attempts.of_job("id-one")[0].end_reason is EndReason.WORKER_SHUTDOWN
    assert receiver.job().trainer_failures == 0


@pytest.mark.parametrize("reason", ["host_lost", "completed", "cancelled", "superseded", "bored"])
def test_a_worker_may_not_report_what_only_the_receiver_concludes(receiver, reason):
    said = refused(ProblemType.BAD_REQUEST, receiver.fail, receiver.granted(), reason=reason)
    assert said.endswith("expected one of interrupted, spawn_failed, trainer_failed, upload_failed, worker_shutdown")
    assert receiver.status() == "claimed"


def test_without_a_claim_id_the_holder_is_served_and_nobody_else(receiver):
    receiver.claim(a_claim("pi"))
    for host_id in ("desktop", None):
        refused(ProblemType.LEASE_SUPERSEDED, receiver.beat, host_id=host_id)
    assert receiver.beat(None, host_id="pi").action == "continue"
    receiver.deliver(None, host_id="pi")
    assert receiver.service.complete("id-one", a_completion(host_id="pi")).artifact_id == A
    refused(ProblemType.LEASE_SUPERSEDED, receiver.service.complete, "id-one", a_completion(host_id="desktop"))


def test_a_claim_id_opens_its_own_job_from_its_own_host_only(receiver):
    claim_id = receiver.granted("pi")
    for job_id, request in (
        ("id-two", a_beat(claim_id)),
        ("id-one", a_beat(claim_id, host_id="desktop")),
        ("id-one", a_beat("never given")),
    ):
        refused(ProblemType.LEASE_SUPERSEDED, receiver.service.heartbeat, job_id, request)
    refused(ProblemType.UNKNOWN_JOB, receiver.service.heartbeat, "nothing", a_beat(claim_id))


# ── late messages ───────────────────────────────────────────────────────────────────────────


def lose(receiver):
    claim_id = receiver.granted("pi")
    assert receiver.watch(POLICY.stale_after_s + 20) == 1
    assert receiver.status() == "pending"
    return claim_id


def test_a_late_complete_is_adopted(receiver):
    receiver.deliver(lose(receiver))
    assert receiver.status() == "completed"
    job, (attempt,) = receiver.job(), receiver.queue.attempts.of_job("id-one")
    assert (job.host_losses, job.artifact_id, job.worker_hostname) == (0, A, "pi")
    assert (attempt.end_reason, attempt.artifact_id) == (EndReason.COMPLETED, A)


def test_a_late_complete_is_refused_once_somebody_else_has_the_job(receiver):
    claim_id = lose(receiver)
    receiver.granted("desktop")
    refused(ProblemType.LEASE_SUPERSEDED, receiver.deliver, claim_id)
    assert receiver.status() == "claimed"


@pytest.mark.parametrize("word", ["cancel", "requeue"])
def test_a_late_message_does_not_undo_the_operators_word(receiver, word):
    claim_id = lose(receiver)
    getattr(receiver.service, word)("one")
    before = receiver.status()
    refused(ProblemType.LEASE_SUPERSEDED, receiver.deliver, claim_id)
    refused(ProblemType.LEASE_SUPERSEDED, receiver.beat, claim_id)
    assert receiver.status() == before


def test_a_late_fail_is_refused(receiver):
    refused(ProblemType.LEASE_SUPERSEDED, receiver.fail, lose(receiver))
    assert receiver.job().trainer_failures == 0


def beating(receiver, claim_id, seconds, **fields):
    """Beat every ten seconds for so long; returns after how many the receiver said to stop, 0 if it did not."""
    for turn in range(1, round(seconds / 10) + 1):
        receiver.clock.advance(10)
        receiver.service.tick()
        reply = receiver.beat(claim_id, **fields)
        if reply.action is Action.STOP:
            return 10.0 * turn
    return 0.0


@pytest.fixture
def limited(receiver):
    """The same with a job that may run for an hour."""
    receiver.plan(a_job("one", max_run_s=3600.0))
    return receiver


LONG_S = 1.25 * 3600


def test_the_receiver_ends_what_its_worker_lets_run_far_beyond_the_limit(limited):
    claim = limited.granted()
    # what was granted counts, whatever the plan says by now
    limited.plan(a_job("one", max_run_s=100_000.0))
    assert beating(limited, claim, 4 * 3600) == LONG_S + 10
    (ended,) = limited.queue.attempts.of_job("id-one")
    assert (ended.end_reason, limited.status()) == (EndReason.TRAINER_FAILED, "pending")
    assert (ended.error or "").startswith(
        "host pi has had it for 1 h 15 min, and it may run for 1 h 00 min, and the worker did not stop it; "
    )
    assert limited.job().trainer_failures == 1
    refused(ProblemType.LEASE_SUPERSEDED, limited.beat, claim)


FETCH = {"event": "fetch", "bytes": 1, "bytes_total": 2}


@pytest.mark.parametrize(
    ("every_s", "says", "allowed_s"),
    [
        (10, lambda at: {"paused": True, "paused_s": at}, PAUSE_MAX_S),
        (10, lambda at: {"paused_s": at} if at < 300 else {}, 290.0),
        (10, lambda _: {"progress": FETCH}, POLICY.fetch_max_s),
        (10, lambda at: {"progress": FETCH if at % 20 else {"event": "waiting"}}, POLICY.fetch_max_s),
        (int(POLICY.stale_after_s) - 1, lambda _: {}, POLICY.fetch_max_s),
    ],
    ids=["paused", "paused for a while", "fetches", "waits", "seldom"],
)
def test_an_attempt_is_ended_in_time_whatever_its_host_says(limited, every_s, says, allowed_s):
    claim, at = limited.granted(), 0
    while at < 10 * 3600:
        limited.clock.advance(every_s)
        at += every_s
        if limited.beat(claim, seq=at, **says(float(at))).action is Action.STOP:
            break
    assert 0 < at - (LONG_S + allowed_s) <= every_s


def test_a_host_that_says_for_ever_that_it_delivers_is_not_believed(limited):
    claim = limited.granted()
    limited.service.upload_permission("id-one", claim, None)
    limited.restart()
    assert beating(limited, claim, 5 * 3600) == LONG_S + POLICY.fetch_max_s + 10


def test_a_restart_of_the_receiver_begins_no_new_count(limited):
    claim, heard_s = limited.granted(), 0.0
    for _ in range(17):  # every five minutes
        stopped = beating(limited, claim, 300)
        heard_s += stopped or 300
        if stopped:
            break
        limited.restart()
    assert heard_s == LONG_S + 10


@pytest.mark.parametrize("job", [{}, {"max_run_s": None}, {"max_run_s": True}, {"max_run_s": "1"}])
def test_a_job_without_a_limit_runs_as_long_as_it_takes(receiver, job):
    receiver.plan(a_job("one", **job))
    assert not beating(receiver, receiver.granted(), 5 * 3600)


@pytest.mark.parametrize("end", ["host_lost", "worker_shutdown", "interrupted"])
def test_a_job_that_was_nearly_done_is_granted_before_those_that_came_later(receiver, end):
    receiver.plan(*(a_job(name, seed=n) for n, name in enumerate(("one", "three", "four"))))
    claim = receiver.granted()
    receiver.clock.advance(300)
    receiver.beat(claim, resumable=end == "host_lost")
    if end == "host_lost":
        assert receiver.watch(POLICY.stale_after_s + 10) == 1
    else:
        receiver.fail(claim, reason=end, exit_code=None)
    if end == "interrupted":  # without a running time: perhaps memory was short before the start
        assert receiver.ask("laptop").name != "one"
        receiver.clock.advance(POLICY.short_pause_s)
    assert receiver.ask("desktop").name == "one"


def test_a_late_heartbeat_readopts_and_gives_the_loss_back_three_times(receiver):
    claim_id = lose(receiver)
    for _ in range(POLICY.max_readoptions):
        assert receiver.job().host_losses == 1
        receiver.beat(claim_id)
        job = receiver.job()
        assert (job.status, job.host_losses, job.attempt) == ("running", 0, 1)
        assert receiver.queue.attempts.of_job("id-one")[0].error is None
        assert receiver.watch(POLICY.stale_after_s + 20) == 1
    refused(ProblemType.LEASE_SUPERSEDED, receiver.beat, claim_id)
    receiver.deliver(claim_id)
    assert receiver.status() == "completed", "finished work is taken all the same"


def test_a_late_heartbeat_of_a_host_that_went_on_to_another_job_takes_nothing_back(receiver):
    claim_id = lose(receiver)
    receiver.plan(a_job("one"), a_job("two", priority=90))
    receiver.granted()
    assert receiver.status("two") == "claimed"
    refused(ProblemType.LEASE_SUPERSEDED, receiver.beat, claim_id)
    assert receiver.status() == "pending"


# ── observed time ───────────────────────────────────────────────────────────────────────────


def test_a_restart_gives_everybody_a_full_lease(receiver):
    receiver.granted()
    receiver.watch(POLICY.stale_after_s)
    receiver.clock.suspend(3600)
    receiver.restart()
    assert receiver.watch(POLICY.stale_after_s - 10) == 0
    assert receiver.watch(20) == 1


def test_a_suspended_receiver_holds_its_own_silence_against_nobody(receiver, claim_id):
    receiver.watch(POLICY.stale_after_s - 100)
    receiver.clock.suspend(3 * DAY)
    assert receiver.service.tick() == 0
    assert receiver.watch(100) == 0
    receiver.beat(claim_id)
    assert receiver.watch(POLICY.stale_after_s) == 0


@pytest.mark.parametrize("step_s", [DAY, -DAY])
def test_a_clock_step_moves_leases_and_holds_along(receiver, step_s):
    receiver.granted("pi")
    receiver.fail(receiver.granted("desktop"), "two")

    def left():
        """Return what is left of the lease, the back-off, the avoidance, and of the host's own lease."""
        one, two = receiver.job("one"), receiver.job("two")
        (row, *_) = receiver.queue.workers()
        known = receiver.service.known_hosts()[0].last_seen
        times = (one.heartbeat_at, two.claimable_at, two.avoid_until, row["last_seen"], known)
        return [None if at is None else at - receiver.clock.now() for at in times]

    before = left()
    receiver.clock.step(step_s)
    assert receiver.service.tick() == 0
    assert left() == before


@pytest.mark.parametrize("step_s", [DAY, -DAY])
def test_what_was_written_between_a_step_and_its_discovery_is_not_lost_for_a_day(receiver, step_s):
    """The tick finds the step some seconds late; what was stamped by the new time already must not move again."""
    claim_id = receiver.granted("pi")
    receiver.watch(POLICY.stale_after_s + 10)
    receiver.beat(claim_id)
    receiver.clock.step(step_s)
    receiver.clock.advance(5)
    receiver.beat(claim_id)
    receiver.service.requeue("two")
    receiver.clock.advance(5)
    receiver.service.tick()
    assert receiver.watch(POLICY.stale_after_s + 10) == 1, "a lease later the silent one is swept"
    receiver.service.cancel("one")
    assert receiver.ask("desktop").job_id == "id-two"


def test_a_step_that_could_not_be_written_is_found_again(receiver, monkeypatch):
    receiver.granted()
    receiver.clock.step(DAY)
    with monkeypatch.context() as broken:
        broken.setattr(receiver.queue.hosts, "shift_times", full_disk)
        with pytest.raises(DatabaseFull):
            receiver.service.tick()
    receiver.service.forget_look()  # as the sweep does; and it was the first look
    assert receiver.service.known_hosts()[0].last_seen == receiver.clock.now() - DAY
    receiver.service.tick()
    assert receiver.service.known_hosts()[0].last_seen == receiver.clock.now()
    assert receiver.job().heartbeat_at == receiver.clock.now()


def full_disk(step_s):
    raise DatabaseFull("the disk is full")


def test_a_clock_set_back_while_the_receiver_was_down_holds_nothing_up(receiver):
    """A small board without a clock chip starts with the time of its last shutdown, and finds the right one later."""
    receiver.fail(receiver.granted(), error="boom")
    held = receiver.granted("pi")
    assert held
    receiver.clock.step(-DAY)
    receiver.clock.restart()
    receiver.restart()
    assert receiver.watch(POLICY.stale_after_s + 10) == 1, "no heartbeat for a lease"
    assert receiver.ask("desktop").job_id == "id-one"
    assert receiver.ask("laptop").job_id == "id-two"


def test_a_clock_that_was_ahead_moves_no_time_twice(receiver):
    """Events keep the wrong clock's time, and each start finds them ahead."""
    receiver.clock.step(730 * DAY)
    receiver.service.tick()
    receiver.granted()
    receiver.clock.step(-730 * DAY)
    receiver.service.tick()
    for _ in range(3):
        receiver.clock.restart()
        receiver.restart()
        (known,) = receiver.service.known_hosts()
        assert receiver.clock.now() - known.last_seen == receiver.clock.now() - receiver.job().heartbeat_at == 0.0


def test_a_class_that_no_job_has_any_more_is_forgotten_at_the_next_start(receiver):
    for cores in range(1, 20):
        receiver.plan(a_job("one", min_cores=cores), a_job("two"))
    receiver.plan(a_job("one"), a_job("two"))
    receiver.restart()
    receiver.plan(a_job("one", min_cores=50), a_job("two"))
    assert len(receiver.queue.db.all("pending_classes")) == 2
    kept = receiver.queue._conn.execute("SELECT class_id FROM classes ORDER BY class_id").fetchall()
    assert [number for (number,) in kept] == [1, 20, 21], "no number is given twice"


# ── the operator ────────────────────────────────────────────────────────────────────────────


def test_a_job_is_named_by_its_name_its_id_or_a_unique_prefix(receiver):
    receiver.plan(a_job("gbt", job_id="abc1"), a_job("mlp", job_id="abd2"))
    found = [receiver.service.resolve(ref) for ref in ("gbt", "abc1", "abc", "mlp")]
    assert found == ["abc1", "abc1", "abc1", "abd2"]
    assert "gbt (abc1), mlp (abd2)" in refused(ProblemType.UNKNOWN_JOB, receiver.service.resolve, "ab")
    for ref in ("", "x", "'; DROP TABLE jobs", "\x1b[31m"):
        assert "\x1b" not in refused(ProblemType.UNKNOWN_JOB, receiver.service.resolve, ref)


def test_a_name_that_several_jobs_have_is_refused_with_their_ids(receiver):
    receiver.service.reload([a_job("twin", job_id=f"{n}") for n in range(8)], Plan())
    assert "prefix of the id" in refused(ProblemType.UNKNOWN_JOB, receiver.service.requeue, "twin")


def test_cancel_of_what_is_over_is_refused_with_the_state(receiver):
    receiver.service.cancel("one")
    assert "cancelled already" in refused(ProblemType.WRONG_STATE, receiver.service.cancel, "one")


def test_a_reload_leaves_what_is_in_flight(receiver, claim_id):
    counts = receiver.plan(a_job("three"))
    assert (counts.inserted, counts.removed) == (1, 2)
    assert receiver.beat(claim_id).action == "continue"
    receiver.deliver(claim_id)
    assert receiver.job().status is JobStatus.COMPLETED


# ── uploads ─────────────────────────────────────────────────────────────────────────────────


def test_who_delivers_is_heard(receiver):
    permission = receiver.service.upload_permission("id-one", receiver.granted(), "pi")
    assert (permission.model, permission.mode, permission.attempt) == ("gbt", "realistic", 1)
    receiver.clock.advance(500)
    assert receiver.service.upload_done(permission, A, 10) is None, "it is not in the store"
    receiver.dataset_store.put(A, model="gbt", mode="realistic")
    assert receiver.service.upload_done(permission, A, 10)
    assert not receiver.service.upload_done(permission, A, 10), "it has been brought"
    assert receiver.job().heartbeat_at == receiver.clock.now()
    assert receiver.status() == "running"


def test_an_upload_whose_claim_was_lost_meanwhile_is_refused_at_its_end(receiver):
    permission = receiver.service.upload_permission("id-one", receiver.granted(), None)
    receiver.service.requeue("one")
    refused(ProblemType.LEASE_SUPERSEDED, receiver.service.upload_done, permission, A, 10)
    assert receiver.queue.db.all("artifacts") == []


def test_a_second_different_bundle_is_neither_taken_nor_listed(receiver, claim_id):
    receiver.deliver(claim_id, A)
    permission = receiver.service.upload_permission("id-one", claim_id, None)
    assert receiver.service.upload_done(permission, A, 10) is DeliveryNews.KNOWN, "the same again is known"
    refused(ProblemType.RESULT_CONFLICT, receiver.service.upload_done, permission, B, 10)
    assert [row["artifact_id"] for row in receiver.queue.db.all("artifacts")] == [A]


def test_a_capability_is_what_the_last_claim_said(receiver):
    receiver.plan(a_job("one"), a_job("big", priority=99, require_cuda=True))
    assert receiver.ask("desktop", capability=a_capability()).job_id == "id-one"
    second = a_worker_claim("desktop", slot=1, capability=a_capability(cuda=True))
    assert receiver.claim(second).job_id == "id-big"


def test_nothing_is_promised_by_a_clock_that_stepped_a_moment_ago():
    """Until the next look at the clocks nobody knows what is left of a lease."""
    receiver = with_two_jobs()
    first = receiver.ask(request_id="again")
    receiver.clock.step(-DAY)
    again = receiver.ask(request_id="again")
    assert (again.claim_id, again.lease_s) == (first.claim_id, 0.0)


def test_of_two_deliveries_the_first_is_the_one_that_came_first_whatever_the_clock_said():
    receiver = with_two_jobs()
    one, two = receiver.granted(), receiver.granted("other")
    receiver.deliver(one, A)
    receiver.clock.step(-DAY)
    receiver.deliver(two, A, "two", host_id="other")
    database = receiver.queue.db
    assert first_delivery(database, A, job_id="id-one", attempt=1) is not None
    assert first_delivery(database, A, job_id="id-two", attempt=1) is None


@pytest.mark.parametrize(
    ("needs", "declared"), [*(({key: 1}, {}) for key in AMOUNTS), *(({}, {key: 1}) for key in RESERVES)]
)
def test_a_gpu_is_waited_for_only_where_one_may_come(receiver, needs, declared):
    pi = a_claim(capability=a_capability(**AT_BEST))
    receiver.service.cancel("two")
    receiver.plan(a_job("one", prefer_cuda=True, **needs), hosts={"desk": declared})
    assert "a CUDA host goes first" in str(receiver.claim(pi).reason), "desk may have one"
    receiver.plan(a_job("one", prefer_cuda=True), hosts={"desk": {"cuda": False}})
    assert receiver.claim(pi).job_id == "id-one", "nobody has one"
    receiver.service.requeue("one")
    desk = a_claim("desk", capability=a_capability(cuda=True, ram_available_gib=0.5))
    receiver.plan(a_job("one", prefer_cuda=True, min_ram_gib=1.0))
    receiver.claim(desk)
    assert "a CUDA host goes first" in str(receiver.claim(pi).reason)
    receiver.watch(POLICY.stale_after_s)
    receiver.service.requeue("one")
    assert "a CUDA host goes first" in str(receiver.claim(pi).reason), "it may sleep"
    receiver.clock.advance(POLICY.gone_s)
    receiver.service.requeue("one")
    assert receiver.claim(pi).job_id == "id-one", "it is gone"


@pytest.mark.parametrize(
    ("path", "capability"),
    [
        ("cuda_available", {"cuda_available": "false"}),
        ("healthy", {"healthy": 0}),
        ("cpu_cores", {"cpu_cores": "8"}),
        ("ram_available_gib", {"ram_available_gib": True}),
        ("ram_total_gib", {"ram_total_gib": [1]}),
        ("cuda_devices", {"cuda_devices": {}}),
        ("cuda_devices[0]", {"cuda_devices": ["RTX"]}),
        ("cuda_devices[1].vram_free_gib", {"cuda_devices": [{}, {"vram_free_gib": "8"}]}),
        ("cpu_cores", {"cpu_cores": 1e999}),
        ("ram_available_gib", {"ram_available_gib": float("nan")}),
    ],
)
def test_a_capability_without_sense_is_refused_by_its_path_and_harms_no_other_host(receiver, path, capability):
    said = refused(ProblemType.BAD_REQUEST, receiver.claim, ClaimRequest(host_id="odd", capability=capability))
    assert said.startswith(f"$.capability.{path}: ")
    assert receiver.service.known_hosts() == []
    receiver.granted("pi")


def test_what_a_host_says_of_finished_work_is_cut(receiver):
    aside = SetAsideWork(job_id="i" * 999, name="n" * 999, size=1, why="w" * 999)
    receiver.claim(a_claim("pi", set_aside=[aside] * 99))
    (row,) = receiver.queue.db.all("hosts_aside")
    kept = json.loads(row["set_aside"])
    assert len(kept) == SET_ASIDE_TOLD
    assert [len(kept[0][member]) for member in ("job_id", "name", "why")] == [128, 64, 300]


def test_what_names_of_data_sets_stand_for_is_kept_with_the_plan(receiver):
    for names in ({"processed": "a" * 64, "b" * 8: "b" * 64}, {"processed": "c" * 64}):
        receiver.plan(a_job("one"), dataset_names=names)
        assert receiver.queue.plan.datasets() == names


def test_a_step_of_the_clock_that_nobody_has_looked_at_makes_no_host_silent(receiver):
    receiver.granted()
    for step_s in (2 * POLICY.stale_after_s, -4 * POLICY.stale_after_s):
        receiver.clock.step(step_s)
        (pi,) = receiver.service.known_hosts()
        assert receiver.service.alive(pi)


# ── several jobs a host ─────────────────────────────────────────────────────────────────────


def test_what_a_worker_only_delivers_takes_no_slot(receiver):
    receiver.plan(a_job("one"), a_job("two"), hosts={"pi": {"slots": 1}})
    first = receiver.granted()
    assert receiver.ask(slot=1).reason == ("host pi holds 1 job and has 1 slot: it gets another when one has ended")
    reply = receiver.ask(slot=1, delivering=[first, "no such claim"])
    assert (reply.job_id is not None, reply.slots) == (True, 1)
    receiver.beat(first)  # it is this session's still


def test_finished_work_that_does_not_leave_the_host_keeps_it_from_more(receiver):
    receiver.plan(*(a_job(f"job-{n}") for n in range(5)), hosts={"pi": {"slots": 1}})
    held = []
    for slot in range(3):
        held.append(receiver.granted(slot=slot, delivering=held))
    assert "holds 3 jobs and has 1 slot" in (receiver.ask(slot=3, delivering=held).reason or "")


def test_a_new_session_goes_on_with_what_it_says_it_delivers(receiver):
    kept, lost = receiver.granted(slot=0), receiver.granted(slot=1)
    receiver.ask(session=2, slot=1, delivering=[kept])
    receiver.beat(kept, session_id="0000000002-abcd")
    refused(ProblemType.LEASE_SUPERSEDED, receiver.beat, lost, "two")


def test_what_may_still_be_adopted_is_not_given_again_to_the_host_that_delivers_it(receiver):
    receiver.plan(a_job("one"), hosts={"pi": {"slots": 2}})
    late = receiver.granted()
    receiver.queue.sweep_stale(stale_after_s=-1.0)
    reply = receiver.ask(slot=1, delivering=[late])
    assert reply.job_id is None
    assert reply.reason == "host pi first delivers one, which was given up as lost but may be adopted"
    assert receiver.ask(slot=1).job_id is not None, "it is not delivered any more"


def test_nobody_delivers_for_another_installation(receiver):
    held = receiver.granted()
    refused(ProblemType.HOST_ID_CONFLICT, receiver.ask, instance_id="another", delivering=[held])
    receiver.ask("laptop", delivering=[held])
    assert receiver.queue.attempts.by_claim(held).heard_s is not None, "it trains as before"


@pytest.mark.parametrize(
    ("declared", "slots"), [({}, 4), ({"slots": 3}, 3), ({"slots": "auto"}, 4), ({"slots": "auto", "max_cores": 2}, 2)]
)
def test_a_worker_is_told_for_how_many_jobs_it_may_ask(receiver, declared, slots):
    receiver.plan(a_job("one"), a_job("two"), hosts={"pi": declared})
    reply = receiver.ask()
    assert reply.slots == slots
    assert receiver.service.heartbeat(str(reply.job_id), a_beat(reply.claim_id)).slots == slots


@pytest.mark.parametrize(
    ("declared", "sentence"),
    [
        ({"reserve_cores": 4}, "reserve_cores = 4 leaves nothing of its 4 cores"),
        ({"reserve_ram_gib": 9}, "reserve_ram_gib = 9 leaves nothing of its 8.0 GiB of memory"),
        ({"reserve_ram_gib": 7}, "reserve_ram_gib = 7 leaves nothing of its 6.0 GiB of memory that are free now"),
    ],
)
def test_a_reserve_that_leaves_nothing_is_named(receiver, declared, sentence):
    receiver.plan(a_job("one"), hosts={"pi": declared})
    reply = receiver.ask(capability=a_capability() | {"ram_total_gib": 8.0, "ram_available_gib": 6.0})
    assert reply.job_id is None
    assert sentence in (reply.reason or "")


@pytest.fixture
def empty():
    """A receiver whose jobs are those of the test alone."""
    with closing(Receiver()) as made:
        yield made


def test_what_goes_on_is_not_given_again_to_the_host_that_trains_it():
    empty = Receiver()
    empty.plan(a_job("lost"), hosts={"pi": {"slots": 2}})
    held = empty.granted()
    empty.queue.sweep_stale(stale_after_s=-1.0)
    training = [TrainerUse(claim_id=held)]
    reply = empty.ask(slot=1, training=training)
    assert reply.reason == "host pi still trains lost, which was given up as lost; its heartbeat is due"
    empty.beat(held, "lost")
    assert empty.queue.attempts.live_on("pi"), "it was readopted"
    assert empty.ask(slot=1, training=training).reason == "no job is pending"


def _booked(reply):
    return reply.booked.cores, round(reply.booked.ram_gib, 3)


def test_two_slots_that_need_the_last_gib_get_one_job(empty):
    empty.plan(*(a_job(f"job-{n}", min_ram_gib=2.5) for n in range(3)), hosts={"pi": {"slots": 3}})
    capability = a_capability() | {"ram_total_gib": 6.0, "ram_available_gib": 6.0}
    first = empty.ask(slot=0, capability=capability)
    assert _booked(first) == (1, 2.5)
    used = TrainerUse(claim_id=str(first.claim_id), ram_gib=1.0)
    there = capability | {"ram_available_gib": 4.0}  # 1 ours, 1 somebody's: 2.5 are left for others
    assert _booked(empty.ask(slot=1, capability=there, training=[used])) == (1, 2.5)
    third = empty.ask(slot=2, capability=there, training=[used])
    assert third.reason == "the next job waits for room here: 2.5 GiB of memory wanted, and 0.0 left beside 2 jobs"


def test_an_attempt_comes_back_only_where_its_place_is_still_there():
    empty = Receiver()
    empty.plan(*(a_job(name, min_ram_gib=4.0) for name in ("three", "four")))
    capability = a_capability() | {"ram_total_gib": 6.0, "ram_available_gib": 6.0}
    lost = empty.granted(capability=capability)
    job = next(job for job in ("three", "four") if empty.queue.get(f"id-{job}").claim_id == lost)
    empty.queue.sweep_stale(stale_after_s=-1.0)
    empty.service.hold(f"id-{job}")
    other = empty.granted(slot=1, capability=capability)  # by a worker that does not say what it trains
    assert other != lost
    with suppress(Refusal):
        empty.service.heartbeat(f"id-{job}", a_beat(lost))
    assert [each.claim_id for each in empty.queue.attempts.live_on("pi")] == [other]


def test_a_job_that_waits_for_room_is_not_passed_by_those_behind_it():
    empty = Receiver()
    wide = a_job("wide", min_cores=4, priority=90)
    empty.plan(a_job("first", priority=91), wide, a_job("last", priority=89))
    capability = a_capability() | {"cpu_cores": 4, "ram_total_gib": 8.0, "ram_available_gib": 8.0}
    held = empty.granted(capability=capability)
    waits = empty.ask(slot=1, capability=capability)
    assert waits.reason == "the next job waits for room here: 4 cores wanted, and 3 cores left beside 1 job"
    empty.service.hold("id-wide")
    assert empty.ask(slot=1, capability=capability).name == "last"
    assert held


def test_a_job_goes_on_with_as_many_threads_as_before():
    """Its saved state belongs to a run key, and that to a number of threads."""
    empty = Receiver()
    empty.plan(a_job("threaded", model="own"))  # nobody knows how that scales: it gets all
    capability = a_capability() | {"cpu_cores": 4, "ram_total_gib": 8.0, "ram_available_gib": 8.0}
    first = empty.ask(capability=capability)
    assert _booked(first)[0] == 4
    empty.fail(first.claim_id, "threaded", reason="interrupted", exit_code=None)
    empty.clock.advance(60)
    assert _booked(empty.ask("desktop", capability=capability | {"cpu_cores": 16}))[0] == 4

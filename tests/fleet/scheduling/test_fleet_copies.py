"""A machine and a copy of it: told from restarts, backups and late messages, and refused until one is gone."""

from __future__ import annotations

from contextlib import closing

import pytest
from builders import a_job
from hypothesis import given
from hypothesis import strategies as st
from service_running import POLICY, Receiver

from training.fleet.scheduling.copies import SESSIONS_KEPT, SessionLine, Standing
from training.fleet.scheduling.job import EndReason, JobStatus
from training.fleet.wire.attempts import ClaimRequest, HeartbeatRequest, OutputRequest
from training.fleet.wire.constants import ProblemType, Refusal

LEASE_S = POLICY.stale_after_s


class Worker:
    """One run of a worker; it brings back the echo of the last answer, as ours do."""

    def __init__(self, service, count, mark):
        self.service = service
        self.session = f"{count:010d}-{mark}"
        self.echo = ""
        self.asked = 0
        self.claim_id = ""
        self.job_id = ""
        self.seq = 0

    def ask(self, **more):
        self.asked += 1
        request = {"request_id": f"{self.session}-{self.asked}", "instance_id": "installation"}
        reply = self.service.claim(
            ClaimRequest(
                host_id="pi",
                capability={"cpu_cores": 4},
                session_id=self.session,
                echo=self.echo,
                **{**request, **more},
            )
        )
        self.echo = reply.echo
        if reply.claim_id is not None:
            self.claim_id, self.job_id, self.seq = reply.claim_id, str(reply.job_id), 0
        return reply

    def heartbeat(self):
        """Return True when the job is still this worker's."""
        self.seq += 1
        request = HeartbeatRequest(
            host_id="pi", claim_id=self.claim_id, session_id=self.session, echo=self.echo, seq=self.seq
        )
        try:
            reply = self.service.heartbeat(self.job_id, request)
        except Refusal:
            return False
        self.echo = reply.echo
        return True


@pytest.fixture
def fleet():
    """It has been there for so long that silence may be held against hosts."""
    with closing(Receiver()) as made:
        made.plan(*(a_job(f"j{n}", seed=n) for n in range(4)))
        made.watch(LEASE_S + 10)
        yield made


def note(fleet):
    return fleet.views.workers().workers[0].conflict


def refused(worker):
    with pytest.raises(Refusal) as refusal:
        worker.ask()
    assert refusal.value.problem_type is ProblemType.HOST_ID_CONFLICT
    return refusal.value.detail


@pytest.mark.parametrize("counts", [(6, 6), (6, 7), (7, 6), (3, 9)])
def test_a_copy_is_noticed_within_two_claims_of_each(fleet, counts):
    machine, copy = Worker(fleet.service, counts[0], "aa"), Worker(fleet.service, counts[1], "bb")
    first = machine.ask()
    assert machine.heartbeat()
    for _ in range(2):  # each claims twice at most; whoever has a job trains
        for worker in (copy, machine):
            if not (worker.claim_id and worker.heartbeat()):
                worker.claim_id = ""
                worker.ask()
    assert "--new-identity" in (note(fleet) or "")
    working = [each for each in (machine, copy) if each.claim_id and each.heartbeat()]
    assert len(working) == 1  # what is in hand is finished
    for worker in (machine, copy):
        if worker not in working:
            assert "two machines ask as pi" in refused(worker)
    assert fleet.queue.get(str(first.job_id)).host_losses == 0


def test_idle_copies_are_noticed_before_there_is_work(fleet):
    for number in range(4):
        fleet.queue.cancel(f"id-j{number}")
    machine, copy = Worker(fleet.service, 6, "aa"), Worker(fleet.service, 6, "bb")
    for _ in range(2):
        machine.ask(request_id="the-same-on-both-disks")
        copy.ask(request_id="the-same-on-both-disks")
    told = machine.ask()  # the second since the copy began
    assert told.ask_again, "its worker asks on, until the copy is silent"
    assert refused(machine) == refused(copy) == told.reason


def test_two_copies_that_found_the_same_request_on_their_disks_do_not_share_its_job():
    with closing(Receiver()) as fleet:
        fleet.plan(a_job("j"))
        machine, copy = Worker(fleet.service, 6, "aa"), Worker(fleet.service, 6, "bb")
        assert machine.ask(request_id="r").claim_id == copy.ask(request_id="r").claim_id
        assert copy.heartbeat()
        assert not machine.heartbeat()


def test_a_request_whose_answer_arrived_is_not_answered_to_a_copy(fleet):
    machine, copy = Worker(fleet.service, 6, "aa"), Worker(fleet.service, 6, "bb")
    machine.ask(request_id="r")
    machine.heartbeat()
    with pytest.raises(Refusal) as refusal:
        copy.ask(request_id="r")
    assert refusal.value.problem_type is ProblemType.LEASE_SUPERSEDED
    assert machine.heartbeat()


def test_losses_of_copies_count_against_no_job(fleet):
    machine, copy = Worker(fleet.service, 6, "aa"), Worker(fleet.service, 6, "bb")
    job_id = str(machine.ask().job_id)
    copy.ask()
    assert [each.host_losses for each in (fleet.queue.get(job_id),) if each] == [1]
    copy.heartbeat()
    machine.ask()
    machine.ask()
    assert fleet.queue.get(job_id).host_losses == 0
    lost = [each for each in fleet.queue.attempts.of_job(job_id) if each.end_reason is EndReason.HOST_LOST]
    assert [each.pardoned for each in lost] == [True]


def test_a_heartbeat_that_shows_the_copy_gives_the_losses_back(fleet):
    machine, copy = Worker(fleet.service, 6, "aa"), Worker(fleet.service, 6, "bb")
    job_id = str(machine.ask().job_id)
    copy.ask()
    machine.ask()
    machine.ask()
    assert [each.host_losses for each in (fleet.queue.get(job_id),) if each] == [1]
    assert copy.heartbeat()
    assert copy.heartbeat()
    assert [each.host_losses for each in (fleet.queue.get(job_id),) if each] == [0]


@pytest.mark.parametrize("may", [False, True])
def test_a_silence_that_cannot_be_held_against_it_leaves_a_copy_one(*, may):
    line = SessionLine("6-aa", "round", {"6-aa": 0.0, "6-bb": 0.0}, {"6-aa", "6-bb"}, copied=True)
    said = line.ask("6-aa", "round", 700.0, lease_s=600.0, may_be_silent=may, new_round="next")
    assert said is (Standing.OWN if may else Standing.COPY)


def test_a_worker_restarted_quickly_is_no_copy(fleet):
    for count in range(6, 10):
        worker = Worker(fleet.service, count, f"{count}")
        assert worker.ask().job_id is not None
        assert worker.heartbeat()
    assert note(fleet) is None
    assert fleet.queue.counts()[JobStatus.RUNNING] == 1


def test_a_late_claim_of_the_session_before_changes_nothing(fleet):
    before, now = Worker(fleet.service, 6, "aa"), Worker(fleet.service, 7, "bb")
    before.ask()
    before.claim_id = ""
    now.ask()
    for _ in range(3):  # however often the network repeats it
        late = ClaimRequest(
            host_id="pi", instance_id="installation", session_id=before.session, request_id="late", echo=before.echo
        )
        assert fleet.service.claim(late).job_id is None
    assert now.heartbeat()
    assert note(fleet) is None


def test_a_machine_restored_from_a_backup_goes_on_when_its_past_is_silent(fleet):
    Worker(fleet.service, 9, "aa").ask()
    restored = Worker(fleet.service, 5, "bb")
    assert restored.ask().ask_again
    assert restored.ask().ask_again
    assert note(fleet) is None
    fleet.watch(LEASE_S + 10)
    assert restored.ask().job_id is not None
    assert restored.heartbeat()


def test_a_late_claim_takes_nothing_over_however_silent_the_present_session_is(fleet):
    before, now = Worker(fleet.service, 6, "aa"), Worker(fleet.service, 7, "bb")
    before.ask()
    now.ask()
    fleet.watch(LEASE_S + 10)
    assert before.ask().ask_again


def test_a_restored_machine_that_brings_what_its_past_left_is_no_copy(fleet):
    past = Worker(fleet.service, 9, "aa")
    past.ask()
    past.heartbeat()
    restored = Worker(fleet.service, 5, "bb")
    restored.ask()
    fleet.service.output(past.job_id, OutputRequest(host_id="pi", claim_id=past.claim_id))
    late = HeartbeatRequest(host_id="pi", claim_id=past.claim_id, session_id=past.session, echo=past.echo, seq=2)
    fleet.service.heartbeat(past.job_id, late)
    assert restored.ask().ask_again
    assert note(fleet) is None


def test_a_machine_restored_to_its_last_count_goes_on_at_once(fleet):
    Worker(fleet.service, 6, "aa").ask()
    restored = Worker(fleet.service, 6, "bb")
    assert restored.ask().job_id is not None
    assert restored.heartbeat()
    assert note(fleet) is None


def test_the_machine_goes_on_when_its_copy_has_been_silent_for_a_lease(fleet):
    machine, copy = Worker(fleet.service, 6, "aa"), Worker(fleet.service, 6, "bb")
    for worker in (machine, copy, machine, copy, machine):
        if worker.claim_id and worker.heartbeat():
            continue
        worker.claim_id = ""
        worker.ask()
    views = fleet.views
    assert note(fleet) == views.quarantined()["pi"], "status says it too"
    fleet.watch(LEASE_S + 10)
    assert machine.ask().job_id is not None
    assert note(fleet) is None
    assert views.quarantined() == {}


@given(st.randoms(use_true_random=False), st.integers(1, 6))
def test_sessions_that_follow_each_other_are_never_copies(chance, runs):
    """One machine: starts, restores of its counter, lost answers, and messages that arrive late and in any order."""
    line = SessionLine("0000000005-0", "round-0")
    late = []
    counter, names, now = 5, 0, 0.0
    for run in range(runs):
        counter = max(1, counter + chance.choice([1, 1, 1, 0, -2]))
        session, echo = f"{counter:010d}-{run}", ""
        for _ in range(chance.randint(0, 5)):
            names, now = names + 1, now + 1.0
            arrivals = [(session, echo)]
            if late and chance.random() < 0.5:
                arrivals.append(chance.choice(late))
            late.append((session, echo))
            if chance.random() < 0.3:  # arrives later, or never
                arrivals.pop(0)
            for who, said in arrivals:
                standing = line.ask(who, said, now, lease_s=1e9, may_be_silent=False, new_round=f"round-{names}")
                assert standing is not Standing.COPY
                if who == session and chance.random() < 0.7:
                    echo = line.round
            if chance.random() < 0.3:
                line.heartbeat(*chance.choice([(session, echo), *late]), now)


@given(st.lists(st.booleans(), min_size=12, max_size=40), st.integers(1, 9), st.integers(1, 9))
def test_two_that_live_at_once_are_always_noticed(turns, one, two):
    """Whichever of them asks when, each twice in a row at the latest once they have asked often enough."""
    line = SessionLine(f"{one:010d}-a", "round", {f"{one:010d}-a": 0.0})
    echoes = {f"{one:010d}-a": "", f"{two:010d}-b": ""}
    for number, turn in enumerate([*turns, True, False, True, False]):
        session = list(echoes)[turn]
        line.ask(session, echoes[session], 1.0, lease_s=9, may_be_silent=False, new_round=f"r{number}")
        echoes[session] = line.round
    assert line.copied


def test_of_many_late_sessions_the_one_that_works_is_never_forgotten():
    line = SessionLine(current="0000000999-a", round="r")
    line.heard["0000000999-a"] = 0.0
    for count in range(100):
        line.ask(f"{count:010d}-b", "", 1.0, lease_s=LEASE_S, may_be_silent=False, new_round="s")
    assert line.current == "0000000999-a"
    assert line.current in line.heard
    assert len(line.heard) == SESSIONS_KEPT


def test_how_long_a_session_was_silent_outlasts_a_restart_of_the_receiver(fleet):
    Worker(fleet.service, 9, "aa").ask()
    fleet.restart()
    fleet.watch(LEASE_S + 10)
    restored = Worker(fleet.service, 5, "bb")
    assert restored.ask().ask_again
    assert restored.ask().job_id is not None, "its past need not be silent for another lease"


def test_who_was_heard_before_a_claim_after_a_restart_was_not_silent(fleet):
    present = Worker(fleet.service, 9, "aa")
    present.ask()
    fleet.restart()
    present.service = fleet.service
    for _ in range(7):
        fleet.watch(100)
        assert present.heartbeat()
    restored = Worker(fleet.service, 5, "bb")
    assert restored.ask().ask_again
    assert restored.ask().ask_again

"""Hosts that get no jobs because somebody said so: operators' orders, owners' conditions; and hosts that are woken."""

from __future__ import annotations

import math
import socket

import pytest
from builders import a_beat, a_job, a_worker_claim
from fakes import FakeShelf
from hypothesis import given
from hypothesis import strategies as st
from service_running import Receiver

from training.fleet.receiver import wake_on_lan
from training.fleet.scheduling import policy as rules
from training.fleet.scheduling.job import JobStatus
from training.fleet.scheduling.orders import OrderKind
from training.fleet.scheduling.policy import Policy
from training.fleet.scheduling.wake import AGAIN_S, START_S, TRIES_MAX, Sleeper, Waits, to_wake
from training.fleet.service import acts
from training.fleet.service.audit import Act, AuditLog
from training.fleet.service.fleet import terms_of
from training.fleet.service.forecasts import Forecasts
from training.fleet.service.service import Service
from training.fleet.service.wakes import Wakes
from training.fleet.wire.constants import Refusal

MAC = "a0:b1:c2:d3:e4:f5"


class House(Receiver):
    """A service with two hosts and a few jobs."""

    def __init__(self, **plan):
        super().__init__()
        self.plan(*(a_job(f"job-{n}") for n in range(4)), **plan)

    def worker(self, host):
        return next(each for each in self.views.workers().workers if each.hostname == host)


@pytest.fixture
def house():
    made = House()
    yield made
    made.queue.close()


@pytest.mark.parametrize("order", OrderKind)
def test_a_host_under_an_order_gets_nothing_until_it_is_resumed(house, order):
    held = house.ask("pi").job_id
    house.service.order("PI", order, "ada")  # names are compared without case
    refused = house.ask("pi", slot=1)
    assert (refused.job_id, refused.ask_again) == (None, True), "a host that waits would count as idle"
    assert "by ada; `cis490-jobs resume pi` ends that" in str(refused.reason)
    assert (refused.terms.order, refused.terms.by) == (order.value, "ada")
    assert house.worker("pi").order == order.value
    assert "by ada" in {each.host: each for each in house.views.explain("id-job-3").hosts}["pi"].reason
    assert "by ada" in str(house.views.job("id-job-3").job.obstacle), "no other host is known"
    assert "by ada" in str(Forecasts(house.service, house.queue.db).now().hosts[0].note)
    with pytest.raises(Refusal, match="not quarantined"):
        house.service.release("pi", "ada")
    answer = house.service.resume_host("pi", "bob")
    assert (answer.order, answer.was, answer.jobs, answer.note) == (None, order, [held.removeprefix("id-")], None)
    assert house.ask("pi", slot=1).job_id is not None
    with pytest.raises(Refusal, match="host pi is neither paused nor drained; it gets work"):
        house.service.resume_host("pi", "ada")
    with pytest.raises(Refusal, match="no host is called 'pj'; `cis490-jobs workers` shows them all"):
        house.service.order("pj", order, "ada")


def test_an_order_is_kept_once_replaced_by_another_and_audited(house):
    house.ask("pi")
    audit = AuditLog(house.queue.db, house.clock)
    first = acts.order(house.service, audit, Act.DRAIN, "pi", "operator ada")
    house.clock.advance(5)
    again = acts.order(house.service, audit, Act.DRAIN, "pi", "operator bob")
    assert (again.since, again.by, again.was) == (first.since, "ada", "drain")
    other = acts.order(house.service, audit, Act.DRAIN, "pi", "operator bob", at_once=True)
    assert (other.order, other.by, other.was) == ("hand_back", "bob", "drain")
    acts.order(house.service, audit, Act.RESUME, "pi", "operator bob")
    rows = [(row["act"], row["subject"], row["after"]) for row in house.queue.db.all("audit_page", after=0, limit=9)]
    assert rows == [
        ("drain", "pi", '{"order": "drain"}'),
        ("drain", "pi", '{"order": "drain"}'),
        ("drain", "pi", '{"order": "hand_back"}'),
        ("resume", "pi", '{"order": null}'),
    ]


def test_an_order_outlives_the_receiver(house):
    house.ask("pi")
    house.service.order("pi", OrderKind.PAUSE, "ada")
    assert Service(house.queue, FakeShelf()).claim(a_worker_claim("pi", slot=1)).job_id is None


def test_a_host_at_rest_for_its_owner_gets_nothing_and_what_waited_before_neither(house):
    waiting = a_worker_claim("pi", request_id="r-1", wait_s=30.0)
    poll = house.service.host_registry.wait_begins("pi")
    rested = house.ask("pi", request_id="r-1", resting="on battery")
    assert (rested.job_id, rested.ask_again) == (None, True)
    assert "at rest for its owner (on battery)" in str(rested.reason)
    assert house.service.claim_again(waiting, poll).job_id is None, "it was sent before the owner came"
    assert house.worker("pi").resting == "at rest for its owner (on battery); it resumes automatically"
    assert house.worker("pi").quarantine is None
    assert house.ask("pi", request_id="r-1").job_id is not None


def test_a_heartbeat_tells_of_the_owner_too_and_paused_time_is_no_training_time(house):
    granted = house.ask("pi")

    def beat(seq, paused_s, *, paused, resting):
        said = a_beat(granted.claim_id, seq=seq, paused_s=paused_s, paused=paused, resting=resting)
        house.service.heartbeat(str(granted.job_id), said)
        return house.queue.attempts.by_claim(str(granted.claim_id)).heard_s

    house.clock.advance(60)
    assert beat(1, 0.0, paused=False, resting=None) == 60
    house.clock.advance(60)
    assert beat(2, 50.0, paused=True, resting="a person uses it") == 70
    shown = house.views.job(str(granted.job_id)).job
    (told,) = Forecasts(house.service, house.queue.db).now().jobs[:1]
    assert told.high_at - told.ends_at >= 300, "the pause may end at once, or last until the job is handed back"
    assert shown.paused == "pi is at rest for its owner (a person uses it); it resumes automatically"
    assert house.ask("pi", slot=1).job_id is not None, "a claim that says nothing of it is newer"
    house.clock.advance(100)
    assert beat(3, 150.0, paused=True, resting="a person uses it") == 70
    house.clock.advance(30)
    assert beat(4, 150.0, paused=False, resting=None) == 100
    assert house.views.job(str(granted.job_id)).job.paused is None


def test_the_shares_of_a_host_that_rests_go_to_others_at_once():
    house = House()
    first, second = house.ask("fast"), house.ask("slow")
    assert first.job_id
    assert second.job_id
    assert [host.name for host in house.service.fleet(but="slow").alive] == ["fast"]
    house.service.order("fast", OrderKind.PAUSE, "ada")
    making = house.service.begin_schedule()
    house.service.follow_schedule(making, house.queue.ahead.make(making))
    assert {slot.host for slot in house.queue.ahead.rolling.made.slots} == {"slow"}
    house.queue.close()


def test_terms_say_what_the_plan_declares():
    declared = {"hours": ["sa su", "22:00-7:00"], "pause_on_battery": True, "pause_above_cpu": 0.5, "slots": 2}
    terms = terms_of(declared, None)
    assert terms.hours[0] == (0, 420)
    assert (terms.pause_on_battery, terms.pause_above_cpu) == (True, 0.5)
    assert (terms.pause_max_s, terms.may_sleep) == (600, False)


@given(st.floats(0, 1e5), st.lists(st.tuples(st.floats(0, 1e3), st.floats(0, 1e3)), max_size=9))
def test_what_was_heard_is_never_less_than_before(begun, beats):
    heard = begun
    for since_s, stood_s in beats:
        before = heard
        heard = rules.heard_s(heard, since_s - stood_s, None, Policy())
        assert before <= heard <= before + max(0.0, since_s - stood_s)


# -- waking -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "ends_s", "sleeper", "woken"),
    [
        (100.0, None, Sleeper("pc"), True),
        (100.0, START_S + 101, Sleeper("pc"), True),
        (100.0, START_S + 99, Sleeper("pc"), False),
        (100.0, None, Sleeper("pc", 1, START_S - 1), False),
        (100.0, None, Sleeper("pc", 1, AGAIN_S - 1), False),
        (100.0, None, Sleeper("pc", 1, AGAIN_S), True),
        (100.0, None, Sleeper("pc", 2, AGAIN_S), False),
        (100.0, None, Sleeper("pc", TRIES_MAX, math.inf), False),
    ],
)
def test_a_host_is_woken_when_it_ends_a_job_sooner_and_not_too_often(seconds, ends_s, sleeper, woken):
    chosen = to_wake([Waits("1:0", {"pc": seconds}, ends_s)], [sleeper])
    assert chosen == ({"pc": "1:0"} if woken else {})


def test_one_host_is_woken_for_a_kind_the_one_that_ends_it_first():
    waiting = [Waits("1:0", {"pc": 50.0, "nas": 40.0}, None), Waits("2:0", {"nas": 9.0, "tv": 1.0}, None)]
    assert to_wake(waiting, [Sleeper("pc"), Sleeper("nas"), Sleeper("tv")]) == {"nas": "1:0"}
    assert to_wake(waiting, [Sleeper("pc"), Sleeper("nas", 1, 5.0)]) == {}, "one that comes may do it"


def test_a_silent_host_is_woken_for_a_job_that_failed_on_it_a_while_ago():
    house = Receiver()
    house.plan(a_job("one"), hosts={"pc": {"mac": MAC}})
    house.fail(house.granted("pc"), host_id="pc")
    house.clock.advance(3 * 600)
    assert list(Wakes(house.service).due()) == ["pc"]
    house.fail(house.granted("pi"), host_id="pi")
    assert not Wakes(house.service).due(), "pi ends it sooner, though it failed there"


def test_a_silent_host_is_woken_and_the_jobs_history_says_so():
    house = House(hosts={"pc": {"mac": MAC}})
    wakes = Wakes(house.service)
    house.ask("pc")
    assert not wakes.due(), "it is awake"
    house.clock.advance(3 * 600)
    assert wakes.due() == {"pc": MAC}
    row = [each for each in house.queue.db.all("events_of_job", job_id="id-job-1") if each["transition"] == "wake"]
    assert [(each["to_status"], each["detail"]) for each in row] == [
        (JobStatus.PENDING, "pc is asleep and would have it done sooner")
    ]
    assert not wakes.due(), "it may still come"
    house.clock.advance(AGAIN_S)
    assert len(wakes.due()) == 1
    house.service.order("pc", OrderKind.DRAIN, "ada")
    house.clock.advance(9 * AGAIN_S)
    assert not wakes.due(), "it would get nothing"
    house.queue.close()


def test_the_packet_is_what_a_network_card_waits_for():
    sent = []

    class Socket:
        def __enter__(self):
            return self

        def __exit__(self, *_): ...

        def sendto(self, data, to):
            sent.append((data, to))

    wake_on_lan.send(MAC, Socket)
    assert sent == [(b"\xff" * 6 + 16 * bytes.fromhex("a0b1c2d3e4f5"), ("255.255.255.255", 9))]
    with wake_on_lan._broadcasting() as made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST)

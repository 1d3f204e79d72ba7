"""The owner's conditions: judged from what was seen, heard from the receiver, and obeyed by every trainer."""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest
from fakes import FakeClock, FakePynvml
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from test_fleet_worker_slots import Worker, a_job
from wire_builders import claim_answered

from training.fleet.capability import owner as probe
from training.fleet.process import inhibitor
from training.fleet.process.driver_calls import DriverCalls
from training.fleet.process.ended import Ended
from training.fleet.process.inhibitor import Inhibitor
from training.fleet.scheduling.hours import DAY, WEEK, holds, parse
from training.fleet.scheduling.job import EndReason
from training.fleet.scheduling.orders import OrderKind
from training.fleet.wire.attempts import HostTerms
from training.fleet.worker.owner_monitor import Lookout
from training.fleet.worker.state import events as t
from training.fleet.worker.state.owner import EASE_S, LOOK_S, SETTLE_S, Owner, Sight, look, told
from training.fleet.worker.state.trainer import FIRST_BEAT_S

ASKED = HostTerms(
    hours=list(parse("mo-fr 18:00-08:00")),
    pause_on_battery=True,
    pause_when_used=True,
    pause_above_cpu=0.5,
    pause_above_gpu=0.2,
    pause_above_celsius=85.0,
)
QUIET = Sight(minute=19 * 60, on_battery=False, idle_s=1e4, cpu=0.1, gpu=0.0, celsius=50.0)
SIGHTS = st.builds(
    Sight,
    minute=st.none() | st.integers(0, WEEK - 1),
    on_battery=st.none() | st.booleans(),
    idle_s=st.none() | st.floats(0, 1e4),
    cpu=st.none() | st.floats(0, 1),
    gpu=st.none() | st.floats(0, 1),
    celsius=st.none() | st.floats(0, 150),
)


# -- the rule ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "words", "within_s"),
    [
        (replace(QUIET, minute=12 * 60), "outside its hours, until mo 18:00", 0.0),
        (replace(QUIET, on_battery=True), "on battery", 0.0),
        (replace(QUIET, idle_s=10.0), "a person uses it", 0.0),
        (replace(QUIET, cpu=0.73), "other programs use 73 % of its cores, more than 50 %", SETTLE_S),
        (replace(QUIET, gpu=0.9), "other programs use 90 % of its GPU, more than 20 %", SETTLE_S),
        (replace(QUIET, celsius=91.2), "it is 91 °C hot, more than 85 °C", SETTLE_S),
    ],
)
def test_a_condition_counts_within_its_time_and_is_over_within_its_time(seen, words, within_s):
    owner, now = look(Owner(), ASKED, seen, 0.0), 0.0
    while owner.reason is None:
        now += LOOK_S
        owner = look(owner, ASKED, seen, now)
    assert (owner.reason, now) == (words, within_s)
    began = now
    while owner.reason is not None:
        now += LOOK_S
        owner = look(owner, ASKED, QUIET, now)
    assert now - began <= LOOK_S + (EASE_S if within_s else 0.0)
    assert look(owner, HostTerms(), seen, now).reason is None, "nobody asked"


@pytest.mark.parametrize(
    "condition", [name for name in ASKED.__struct_fields__ if getattr(ASKED, name) != getattr(HostTerms(), name)]
)
def test_the_machine_is_looked_at_for_each_condition_by_itself(condition):
    assert HostTerms(**{condition: getattr(ASKED, condition)}).observes


@given(st.lists(st.tuples(SIGHTS, st.floats(0.1, 60)), max_size=20))
def test_what_the_system_does_not_tell_is_no_reason_and_words_stay(seen):
    owner, now = Owner(), 0.0
    for sight, step_s in seen:
        now += step_s
        before, owner = owner, look(owner, ASKED, sight, now)
        for name, words in owner.reasons.items():
            assert before.reasons.get(name, words) == words, "figures that change would be told at each heartbeat"
        assert set(owner.reasons) - set(before.reasons) <= _told_of(sight)
    assert told(owner, HostTerms()).reason is None, "a condition that was withdrawn is over at once"
    assert look(Owner(), ASKED, Sight(), now).reason is None


def _told_of(sight):
    names = {"minute": "hours", "on_battery": "battery", "idle_s": "used"}
    return {names.get(key, key) for key in Sight.__slots__ if getattr(sight, key) is not None}


@given(st.integers(0, 6), st.integers(0, DAY - 1), st.integers(0, DAY - 1), st.integers(0, WEEK - 1))
def test_hours_hold_as_a_clock_on_the_wall_says(day, begin, end, minute):
    if begin == end:
        return
    name = ("mo", "tu", "we", "th", "fr", "sa", "su")[day]
    spans = parse(f"{name} {begin // 60}:{begin % 60:02}-{end // 60:02}:{end % 60:02}")
    of_day = (minute - day * DAY) % WEEK  # since that day began
    expected = begin <= of_day < (end if end > begin else end + DAY)
    assert holds(spans, minute) == expected


# -- what follows for trainers -----------------------------------------------------------------------------------


ON_BATTERY = replace(QUIET, on_battery=True)
ONE, TWO = a_job(1), a_job(2)
BOTH = {ONE.claim_id, TWO.claim_id}


def owned(worker, **terms):
    """Give it an owner's conditions."""
    worker.slots = structs.replace(worker.slots, terms=structs.replace(ASKED, **terms))
    return worker


def claims(found):
    return {each.claim_id for each in found}


def test_every_trainer_pauses_for_the_owner_and_says_so_and_goes_on():
    worker = Worker(allowed=2).training(ONE, TWO)
    owned(worker)
    for slot, work in worker.slots.works.items():  # their first heartbeats are answered
        if work.beat_call is not None:
            worker.beat_answered(slot)
    worker.take(t.Seen(ON_BATTERY), after_s=5.0)
    assert claims(worker.all(t.PauseTrainer)) == BOTH
    assert [(each.message.resting, each.message.paused) for each in worker.all(t.SendHeartbeat)] == [
        ("on battery", True)
    ] * 2
    assert not worker.all(t.SendClaim)
    worker.take(t.Seen(QUIET), after_s=100.0)
    assert claims(worker.all(t.ResumeTrainer)) == BOTH
    for slot, work in worker.slots.works.items():
        assert work.stood_s == 100.0, slot


def test_paused_time_is_no_training_time_and_no_silence():
    worker = Worker(allowed=1, max_silence_s=60.0).training(ONE)
    owned(worker, pause_max_s=1e6)
    worker.take(t.Measured(claim_id=ONE.claim_id), after_s=5.0)
    worker.take(t.Seen(ON_BATTERY), after_s=5.0)
    for _ in range(100):
        worker.take(t.Measured(claim_id=ONE.claim_id), after_s=10.0)
        assert not worker.all(t.StopTrainer)
    worker.take(t.Seen(QUIET))
    worker.take(t.Measured(claim_id=ONE.claim_id), after_s=10.0)
    assert not worker.all(t.StopTrainer), "the pause does not count afterwards either"
    worker.ended(ONE).packed(ONE)
    assert worker.slots.works[0].delivery.record["train_s"] == 20.0 + FIRST_BEAT_S


def test_a_trainer_that_neither_speaks_nor_computes_is_stopped():
    worker = Worker(allowed=1, max_silence_s=60.0).training(ONE)
    worker.take(t.Measured(claim_id=ONE.claim_id), after_s=5.0)
    assert not worker.all(t.StopTrainer)
    worker.take(t.Measured(claim_id=ONE.claim_id), after_s=61.0)
    assert [each.claim_id for each in worker.all(t.StopTrainer)] == [ONE.claim_id]


def test_the_receivers_return_resumes_no_trainer_whose_owner_needs_the_machine():
    worker = Worker(allowed=1, on_silence=t.OnSilence.PAUSE).training(ONE)
    owned(worker, pause_max_s=1e6)
    worker.take(t.Seen(ON_BATTERY), after_s=5.0)
    assert worker.all(t.PauseTrainer)
    worker.take(t.Tick(), after_s=5000.0)
    assert worker.slots.works[0].paused
    worker.beat_answered(terms=worker.slots.terms)
    assert not worker.slots.works[0].paused
    assert not worker.all(t.ResumeTrainer)
    assert worker.take(t.Seen(QUIET), after_s=100.0).all(t.ResumeTrainer)


def test_a_pause_that_lasts_hands_the_job_back_and_nobody_is_at_fault():
    worker = Worker(allowed=1).training(ONE)
    owned(worker, pause_max_s=300.0)
    worker.take(t.Seen(replace(QUIET, idle_s=0.0)), after_s=5.0)
    assert worker.all(t.PauseTrainer)
    worker.take(t.Tick(), after_s=299.0)
    assert not worker.all(t.StopTrainer)
    worker.take(t.Tick(), after_s=1.0)
    assert worker.one(t.StopTrainer).claim_id == ONE.claim_id
    worker.ended(ONE, Ended(code=75))
    report = worker.one(t.SendFail).message
    assert (report.reason, report.error) == (EndReason.WORKER_SHUTDOWN, "handed back: a person uses it")


def test_an_operators_order_reaches_every_trainer_with_one_heartbeat():
    for order, stops, pauses in ((OrderKind.PAUSE, 0, 2), (OrderKind.HAND_BACK, 2, 0), (OrderKind.DRAIN, 0, 0)):
        worker = Worker(allowed=2).training(ONE, TWO)
        slot = next(slot for slot, work in worker.slots.works.items() if work.beat_call is not None)
        worker.beat_answered(slot, terms=HostTerms(order=order, by="ada"))
        assert (len(worker.all(t.StopTrainer)), len(worker.all(t.PauseTrainer))) == (stops, pauses)


def test_a_worker_at_rest_takes_its_open_request_back_and_asks_anew_as_soon_as_it_may():
    worker = Worker(allowed=1).take(t.Begin())
    first = worker.one(t.SendClaim)
    owned(worker)
    worker.take(t.Seen(ON_BATTERY), after_s=5.0)
    assert worker.one(t.Abort).call == first.call
    again = worker.one(t.SendClaim)
    assert (again.request_id, again.resting, again.wait_s) == (first.request_id, "on battery", 0.0)
    worker.take(claim_answered(call=again.call, reason="at rest", terms=ASKED))
    assert not worker.all(t.SendClaim)
    worker.take(t.Seen(QUIET), after_s=1.0)
    assert worker.one(t.SendClaim).resting is None


def test_what_was_granted_a_moment_before_goes_back_without_a_trainer():
    worker = Worker(allowed=1).take(t.Begin())
    owned(worker)
    worker.take(t.Seen(ON_BATTERY))
    worker.grant(a_job(1))
    assert not worker.all(t.Spawn)
    assert worker.one(t.SendFail).message.reason is EndReason.WORKER_SHUTDOWN


def test_silence_and_owner_pause_together_and_the_last_reason_lets_go():
    worker = Worker(allowed=1, on_silence=t.OnSilence.PAUSE).training(ONE)
    owned(worker, pause_max_s=1e6)
    worker.take(t.Seen(ON_BATTERY), after_s=5.0)
    assert worker.all(t.PauseTrainer)
    worker.take(t.Tick(), after_s=590.0)
    assert not worker.all(t.PauseTrainer), "it stands still already"
    worker.beat_answered()
    assert not worker.all(t.ResumeTrainer), "its owner still needs the machine"
    worker.take(t.Seen(QUIET), after_s=5.0)
    assert worker.all(t.ResumeTrainer)


def test_the_machine_is_kept_awake_while_it_trains_on_mains_power_and_no_longer():
    worker = Worker(allowed=1).training(ONE)
    worker.take(t.Seen(ON_BATTERY), after_s=5.0)
    assert [each.on for each in worker.all(t.KeepAwake)] == [False]
    worker.take(t.Seen(QUIET), after_s=5.0)
    assert [each.on for each in worker.all(t.KeepAwake)] == [True]
    worker.ended(ONE)
    assert [each.on for each in worker.all(t.KeepAwake)] == [False]
    worker = Worker(allowed=1)
    worker.slots = structs.replace(worker.slots, terms=HostTerms(may_sleep=True))
    worker.training(ONE)
    assert not worker.all(t.KeepAwake)


# -- looking -----------------------------------------------------------------------------------------------------

SESSIONS = """Class=user
IdleHint=yes
IdleSinceHint=1000000000

Class=manager
IdleHint=no
IdleSinceHint=0

Class=user
IdleHint=yes
IdleSinceHint=1700000000
"""


def test_a_person_is_away_for_as_long_as_the_session_that_was_used_last_is_idle():
    assert probe.idle_of(SESSIONS, 2000.0) == 300.0
    assert probe.idle_of(SESSIONS.replace("yes", "no", 1), 2000.0) == 0.0
    assert probe.idle_of("Class=greeter\nIdleHint=no", 2000.0) == 2000.0


@pytest.mark.skipif(sys.platform == "win32", reason="logind is Linux's")
def test_without_logind_nobody_says_whether_somebody_is_there():
    asked = []

    def silent(command):
        asked.append(list(command))
        return None if len(asked) != 2 else "  1 1000 ada seat0\n"

    assert probe.idle_s(silent, 2000.0) is None
    assert probe.idle_s(silent, 2000.0) is None, "the second question is not answered"
    assert probe.idle_s(lambda _: "", 2000.0) == 2000.0
    assert asked[-1][:3] == ["loginctl", "show-session", "1"]
    assert probe.printed_by(["no-such-program"]) is None


@pytest.mark.parametrize(
    ("pids", "samples", "share"),
    [
        ([7], None, 0.6),  # none of ours is there
        ([1, 7], [(1, 1, 50), (7, 1, 90), (7, 2, 20)], 0.2),
        ([1, 7], None, None),  # a driver that does not tell them apart
    ],
)
def test_of_a_gpu_only_what_others_use_counts(monkeypatch, pids, samples, share):
    answers = {"DeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=60)}
    if samples is not None:
        found = [SimpleNamespace(pid=pid, timeStamp=at, smUtil=busy) for pid, at, busy in samples]
        answers["DeviceGetProcessUtilization"] = lambda *_: found
    driver = FakePynvml(
        monkeypatch,
        DeviceGetCount=lambda: 1,
        DeviceGetHandleByIndex=int,
        DeviceGetComputeRunningProcesses=lambda _: [SimpleNamespace(pid=pid) for pid in pids],
        **answers,
    )
    assert probe.others_gpu(driver, {1}) == share


def test_this_machine_is_looked_at_without_an_error():
    observer = probe.Observer(FakeClock(), run=lambda _: None)
    found = [observer.look(person=True, load=True, gpu=True, heat=True) for _ in range(2)][-1]
    assert found.minute in range(WEEK)
    assert found.cpu is None or 0 <= found.cpu <= 1


@pytest.mark.parametrize(("sensor", "look"), [("battery", probe.on_battery), ("temperatures", probe.celsius)])
def test_a_sensor_that_does_not_answer_is_none(monkeypatch, sensor, look):
    answers = threading.Event()
    monkeypatch.setattr(psutil, f"sensors_{sensor}", answers.wait, raising=False)
    monkeypatch.setattr(probe, "ask_nvml", lambda _: None)
    monkeypatch.setattr(probe, "_SENSORS", DriverCalls("a sensor", 0.01))
    assert look() is None
    answers.set()


# -- the lock on falling asleep ----------------------------------------------------------------------------------


class FakeLock:
    def __init__(self, why=None):
        self.why, self.held = why, True

    def refused(self):
        return self.why

    def release(self):
        self.held = False


def test_a_lock_is_held_once_and_released_and_a_refusal_is_told(caplog):
    locks = []

    def take():
        locks.append(FakeLock())
        return locks[-1]

    seen = []
    observer = SimpleNamespace(look=lambda **_: Sight(minute=0))
    lookout = Lookout(observer, Inhibitor(take), HostTerms, lambda: True, seen.append)
    lookout.look()
    assert not locks
    lookout.keep_awake(True)
    lookout.look()
    lookout.look()
    assert [each.held for each in locks] == [True]
    assert len(seen) == 3
    with caplog.at_level(logging.INFO):
        for awake in (True, True, False, True, True):  # it takes a moment until a refusal is there
            lookout.keep_awake(awake)
            locks[-1].why = "logind refuses"
            lookout.look()
            lookout.look()
    assert not locks[0].held
    assert caplog.text.count("this machine may fall asleep while it trains: logind refuses") == 1
    lookout.keep_awake(False)
    lookout.look()
    assert not locks[-1].held

    def cannot():
        raise OSError(None, "there is no systemd-inhibit here")

    assert Inhibitor(cannot).hold() == "there is no systemd-inhibit here"


def test_a_lock_that_the_system_refused_is_none():
    refused = FakeLock("logind refuses")
    assert Inhibitor(lambda: refused).hold() == "logind refuses"
    assert not refused.held


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such program")
def test_the_program_that_holds_the_lock_gets_no_secret_of_the_worker(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    tell = "import os; open(os.environ['TMPDIR'] + '/said', 'w').write(str(os.environ)); input()"
    inhibitor.lock([sys.executable, "-c", tell]).release()
    assert "hidden" not in (tmp_path / "said").read_text()


@pytest.mark.skipif(sys.platform == "win32", reason="there the system ends it with the thread")
def test_no_lock_outlives_a_worker_that_is_killed():
    """The program under which the lock is held ends with the pipe, whatever ended the process at its other end."""
    code = (
        "import sys, time, json\n"
        "from training.fleet.process import inhibitor\n"
        "lock = inhibitor.lock(('cat',))\n"
        "print(json.dumps(lock._popen.pid), flush=True)\n"
        "time.sleep(600)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    ended = os.pidfd_open(json.loads(holder.stdout.readline()))
    try:
        holder.send_signal(signal.SIGKILL)
        holder.wait(30)
        assert select.select([ended], [], [], 30)[0], "the lock's program goes on"
    finally:
        os.close(ended)
        holder.stdout.close()


@pytest.mark.skipif(sys.platform == "win32", reason="there the system ends it with the thread")
def test_a_lock_ends_with_its_release_and_a_program_that_refuses_is_heard():
    held = inhibitor.lock(("cat",))
    assert held.refused() is None
    held.release()
    assert held.refused() is not None
    refusing = inhibitor.lock(("false",))
    refusing.release()
    assert "ended with 1" in str(refusing.refused())
    with pytest.raises(OSError, match="there is no no-such-program here"):
        inhibitor.lock(("no-such-program",))

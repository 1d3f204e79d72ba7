"""Planted bugs: hosts that are at rest for their owner, or by an operator's order."""

from __future__ import annotations

from simulation.mutate import Mutant
from training.fleet.process.inhibitor import Inhibitor
from training.fleet.scheduling import wake
from training.fleet.service.claims import Claims
from training.fleet.service.hosts import HostRegistry
from training.fleet.service.wakes import Wakes
from training.fleet.worker.state import halts, owner, slots, state, trainer

_WORKER = "test_fleet_worker_owner:test_"

OWNER_BUGS = (
    Mutant(
        "a host under an order is granted work",
        Claims._give,
        "if request.host_id in out:",
        "if request.host_id in sick:",
        seed=72,
    ),
    Mutant(
        "a host at rest for its owner is granted work",
        HostRegistry.rests,
        "self.resting[name] = reason[:RESTING_CHARS]",
        "pass",
        seed=72,
    ),
    Mutant(
        "paused time counts as training time",
        trainer._ended,
        "- halts.stood_s(work, transition.now), 3)",
        ", 3)",
        seen_by="test_fleet_worker_owner:test_paused_time_is_no_training_time_and_no_silence",
    ),
    Mutant(
        "a paused trainer is taken for one that hangs",
        trainer._measured,
        "if work.stood_at is not None:",
        "if False:",
        seed=81,
    ),
    Mutant(
        "a machine is kept awake when it trains no more",
        slots._Turn.take,
        "if self.slots.keeps_awake != before.keeps_awake:",
        "if self.slots.keeps_awake and not before.keeps_awake:",
        seed=72,
    ),
    Mutant(
        "a machine is kept awake on its battery",
        halts.keeps_awake,
        "return trains and not terms.may_sleep and not owner.on_battery",
        "return trains and not terms.may_sleep",
        seed=90,
    ),
    Mutant(
        "the receiver's return resumes a trainer whose owner needs the machine",
        state.StateStep.let_go_on,
        "and not self.work.paused and self.work.halted_at is None:",
        "and not self.work.paused:",
        seen_by="test_fleet_worker_owner:test_the_receivers_return_resumes_no_trainer_whose_owner_needs_the_machine",
    ),
    Mutant(
        "a pause has no end",
        halts.halt,
        "return Halt(owner.reason, terms.pause_max_s, owner.reason)",
        "return Halt(owner.reason, 1e9, owner.reason)",
        seed=74,
    ),
    Mutant(
        "a condition of the owner is seen and forgotten",
        owner.look,
        "said = complaint if now - began >= wait_s else counted",
        "said = counted",
        seed=74,
    ),
    Mutant(
        "a sleeping host is woken again and again",
        wake.Sleeper.may_be_tried.fget,
        "return self.tries < TRIES_MAX and (",
        "return True or (",
        seed=81,
    ),
    Mutant(
        "a host that is awake is woken",
        Wakes._asleep,
        "if service.alive(known):",
        "if False:",
        seen_by="simulation.test_fleet_simulation:"
        "test_a_host_that_is_awake_is_not_woken_for_jobs_that_it_has_yet_to_do",
    ),
    Mutant(
        "an order reaches the trainer alone that heard of it",
        slots._Turn._tell_others,
        "if self.slots.halt != before.halt:",
        "if False:",
        seen_by=_WORKER + "a_pause_reaches_the_trainer_whose_heartbeat_was_not_answered",
    ),
    Mutant(
        "a lock that the system refused counts as held",
        Inhibitor.hold,
        "return why",
        "return None",
        seen_by=_WORKER + "a_lock_that_the_system_refused_is_none",
    ),
)

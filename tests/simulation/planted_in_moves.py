"""Planted bugs: saved states on their way between hosts, and what is said of who trained what."""

from __future__ import annotations

from simulation.mutate import Mutant
from training.fleet.service import states
from training.fleet.store.states import StateStore
from training.fleet.wire import stretches
from training.fleet.worker import saved_states, state_transfer
from training.fleet.worker.state_transfer import StateTransfer
from training.trainer.state_file import StateFile

_DIRECTLY = "test_fleet_states:test_"

MOVE_BUGS = (
    Mutant(
        "a run goes on from a state of other code",
        StateFile._unlike,
        "- PROCESSOR",
        '- PROCESSOR - {"code"}',
        seen_by=_DIRECTLY + "a_state_of_other_code_is_not_gone_on_from",
    ),
    Mutant(
        "a job is handed the state of another one",
        StateStore.of,
        "return self._kept.get(job_id)",
        "return next(reversed(self._kept.values()), None)",
        seed=111,
        also=Mutant("… and takes it", StateFile._unlike, "- PROCESSOR", '- PROCESSOR - {"spec"}'),
    ),
    Mutant(
        "only the first state of an attempt is brought",
        StateTransfer.bring,
        "== self._kept",
        "and self._kept",
        seed=123,
    ),
    Mutant(
        "the state before is not removed",
        StateStore._remove,
        "self._sets.remove(state_id)",
        "pass",
        seen_by="test_fleet_states:test_of_a_job_one_state_alone_takes_room",
    ),
    Mutant("states of jobs that ended are kept", states.over, "job.status in OVER", "False", seed=75),
    Mutant(
        "a host keeps the notes of states that are gone", saved_states.forget, ", stretches_of(folder))", ",)", seed=123
    ),
    Mutant(
        "the folder of jobs' states is not durable",
        StateStore.keep,
        "for folder in self._unsynced or (path.parent,):",
        "for folder in (path.parent,):",
        seen_by=_DIRECTLY + "a_state_that_was_kept_survives_a_power_cut",
    ),
    Mutant(
        "what a crash left is counted twice",
        stretches.joined,
        'kept[-1]["ends"] = begins',
        "pass",
        seen_by=_DIRECTLY + "stretches_join_so_that_each_epoch_belongs_to_one",
    ),
    Mutant(
        "a run counts its first step for the one before",
        StateTransfer.heed,
        "max(0, point.epoch - 1)",
        "point.epoch",
        seen_by=_DIRECTLY + "the_first_epoch_that_a_trainer_prints_says_where_it_began",
    ),
    Mutant(
        "unlike processors pass for one",
        StateFile.load,
        'before.append(self._processor(header["facts"]))',
        "pass",
        seed=111,
    ),
    Mutant(
        "a run that began anew counts what it left",
        stretches.joined,
        "if begins is None or first < begins:",
        "if True:",
        seen_by=_DIRECTLY + "stretches_join_so_that_each_epoch_belongs_to_one",
    ),
    Mutant(
        "a stretch that told no epoch begins with the training",
        stretches.joined,
        "_last_known(kept) if",
        "0 if",
        seen_by=_DIRECTLY + "a_stretch_without_an_epoch_begins_no_earlier_than_the_one_before_came",
    ),
    Mutant(
        "a killed worker's stretch has no end",
        state_transfer.stretches_noted,
        'if own["ends"] is None:',
        "if False:",
        seen_by=_DIRECTLY + "a_killed_workers_stretch_ends_where_its_trainers_output_does",
    ),
)

"""Planted bugs: saved states on their way between hosts, and what is said of who trained what."""

from __future__ import annotations

from simulation.mutate import Mutant
from training.fleet.client.datasets import ChunkCalls
from training.fleet.service import states
from training.fleet.service.states import SavedStates
from training.fleet.store.states import StateStore
from training.fleet.wire import stretches
from training.fleet.worker import saved_states, state_transfer
from training.fleet.worker.state_transfer import StateTransfer
from training.trainer.state_file import StateFile

MOVE_BUGS = (
    Mutant(
        "a run goes on from a state of other code",
        StateFile._unlike,
        "- PROCESSOR",
        '- PROCESSOR - {"code"}',
        seed=79,
    ),
    Mutant(
        "a job is handed the state of another one",
        StateStore.of,
        "return self._kept.get(job_id)",
        "return next(reversed(self._kept.values()), None)",
        seed=79,
        also=Mutant("… and takes it", StateFile._unlike, "- PROCESSOR", '- PROCESSOR - {"spec"}'),
    ),
    Mutant(
        "only the first state of an attempt is brought", StateTransfer.bring, "== self._kept", "and self._kept", 111
    ),
    Mutant(
        "an older state on this host goes before the receiver's",
        StateTransfer.fetch,
        "(known.host != self._host and here.dataset_id != known.state_id)",
        "False",
        seed=79,
    ),
    Mutant("what a crash left is counted twice", stretches.joined, 'kept[-1]["ends"] = begins', "pass", seed=79),
    Mutant("a run that began anew counts what it left", stretches.joined, "< begins]", "<= 10**9]", seed=79),
    Mutant(
        "a run counts its first step for the one before",
        StateTransfer.heed,
        "max(0, point.epoch - 1)",
        "point.epoch",
        seed=79,
    ),
    Mutant(
        "a killed worker's stretch has no end",
        state_transfer.stretches_noted,
        'if own["ends"] is None:',
        "if False:",
        seed=79,
    ),
    Mutant(
        "unlike processors pass for one",
        StateFile.load,
        'before.append(self._processor(header["facts"]))',
        "pass",
        seed=79,
    ),
    Mutant("states of jobs that ended are kept", states.over, "job.status in OVER", "False", seed=79),
    Mutant("a host keeps the notes of states that are gone", saved_states.forget, ", stretches_of(folder)", ",", 75),
    Mutant("a chunk that arrived damaged is taken", ChunkCalls._get, "!= sha256", "== ''", seed=79),
    Mutant("the state before is not removed", StateStore._remove, "self._sets.remove(state_id)", "pass", seed=79),
    Mutant(
        "a state is kept for whoever held the job once",
        SavedStates._holder,
        "if not attempt.live:",
        "if False:",
        seed=79,
    ),
)

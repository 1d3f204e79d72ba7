"""Planted bugs: what retention lets go, and what it leaves behind."""

from __future__ import annotations

from simulation.mutate import Mutant
from training.fleet.scheduling import retention as rules
from training.fleet.service import retention
from training.fleet.service.retention import Retention

_DIRECTLY = "test_fleet_keeping:test_"

RETENTION_BUGS = (
    Mutant("the best goes, the worst stays", rules._beyond_the_best, "(-pair[0],", "(pair[0],", seed=9),
    Mutant("what a job yet needs goes", retention._delivery, "ended=ended", "ended=True", seed=39),
    Mutant(
        "a held job's model goes",
        retention._delivery,
        'held=row["held_at"] is not None',
        "held=False",
        seen_by=_DIRECTLY + "a_held_model_stays_until_its_hold_ends",
    ),
    Mutant(
        "nothing beside a bundle says that it went",
        Retention._noted,
        'self._store.note_removed(Removed(artifact, row["at"], row["why"]))',
        "pass",
        seed=9,
    ),
    Mutant("only the row goes", Retention._unlink, 'self._store.remove(Artifact.at(row["subject"]))', "pass", seed=9),
    Mutant(
        "what came again stays removed",
        "removal_back",
        "SET back_at = :now",
        "SET back_at = back_at",
        seen_by=_DIRECTLY + "a_late_upload_of_what_went_makes_the_index_say_that_it_is_back",
    ),
    Mutant(
        "who lost a model is trained again",
        Retention._let_bundle_go,
        "return bool(there)",
        "[self._service.queue.requeue(one.job_id) for one in there[0].deliveries]\n    return bool(there)",
        seed=9,
    ),
)

"""Train again without one behaviour at a time: decide which behaviours, and store the scores of those left out.

Families that train in seconds are trained again without each behaviour that can be left out, if these trainings
together take at most ``MOST_WORK`` windows. With the recipe ``behaviour`` any family is trained without behaviours,
whatever the number of windows. All trainings without a behaviour belong to the run of the model itself: they stop and
resume with it, under one run key.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np

from training.contract import Recipe
from training.data.split import Split
from training.data.values import Names
from training.trainer.contract import BadData
from training.trainer.evaluation.behaviours import BENIGN, Unshown, without
from training.trainer.inputs import Inputs

MOST_WORK = 100_000  # windows to learn from, of all trainings together, that a quick family trains again unasked


@dataclass(frozen=True)
class LeaveOutPlan:
    """The behaviours to leave out in turn, tested ones that never trained, and those not left out, with the reason."""

    left_out: tuple[str, ...] = ()
    never_trained: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    why: str | None = None  # nothing is left out: why not

    @property
    def speaks(self) -> bool:
        """Tell whether the report has a section on new behaviours."""
        return bool(self.left_out or self.never_trained or self.why)


def plan(inputs: Inputs, split: Split, *, recipe: Recipe, quick: bool, supervised: bool) -> LeaveOutPlan:
    """Decide which behaviours are left out. Raises ``BadData`` if the recipe is ``behaviour`` and too few behaviours
    can be left out."""
    behaviour = inputs.behaviour
    learnt, tested = (_names(behaviour[rows]) for rows in (split.learnt, split.test))
    calibrated = _names(behaviour[split.cal])
    never = tuple(sorted(tested - learnt - calibrated))
    both, skipped = [], {}
    for name in sorted(learnt & tested):
        rest = without(split, inputs.rows, behaviour, name)
        lacking = _lacking(rest, inputs, supervised=supervised, calibrated=bool(split.cal.size))
        if lacking:
            skipped[name] = lacking
        else:
            both.append(name)
    if len(learnt) < 2 or not both:
        if recipe is Recipe.BEHAVIOUR:
            raise BadData(
                "the split recipe 'behaviour' leaves each malicious-like behaviour out of training in turn, which "
                f"needs two that train, and one of them in the test with enough beside it (here {len(learnt)} train: "
                f"{_listed(learnt) or 'none'}; {_listed(learnt & tested) or 'none'} of them in the test): record more, "
                "or use the recipe 'host'"
            )
        return LeaveOutPlan(never_trained=never)
    work = split.train.size * len(both)
    if recipe is Recipe.BEHAVIOUR or (quick and work <= MOST_WORK):
        return LeaveOutPlan(tuple(both), never, skipped)
    more = f"{len(both)} more training{'s' * (len(both) != 1)}"
    size = f" of {split.train.size:,} windows each" if quick else ""
    return LeaveOutPlan(never_trained=never, why=f"it takes {more}{size}, which the split recipe 'behaviour' makes")


def _lacking(split: Split, inputs: Inputs, *, supervised: bool, calibrated: bool) -> str | None:
    """Return the reason why the windows of a split cannot train a model; None if they can."""
    is_benign = inputs.classes.is_benign(inputs.y)
    unset = calibrated and not is_benign[split.cal].any()
    if not split.train.size or not split.val.size or unset:
        return "without its recordings a side is empty"
    if (supervised and is_benign[split.train].all()) or not is_benign[split.train].any():
        return "without its recordings a single kind is left to learn from"
    return None


def _names(behaviour: Names) -> set[str]:
    return set(np.unique(behaviour).tolist()) - {BENIGN}


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))


def packed(one: Unshown | str) -> bytes:
    """Pack the scores of a model trained without a behaviour, or the reason why that training failed, into bytes."""
    return msgspec.msgpack.encode(one, enc_hook=np.ndarray.tolist)


def unpacked(kept: bytes) -> Unshown | str:
    """Read what `packed` wrote."""
    return msgspec.msgpack.decode(kept, type=str | Unshown, dec_hook=lambda _, values: np.array(values))

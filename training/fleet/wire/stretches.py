"""The parts of a training that moved: who did which epochs. Pure, standard library only: both sides join them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

STRETCHES_MAX = 200  # attempts that a state tells of


def joined(earlier: Sequence[Mapping[str, Any]], own: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the stretches of a training that continues in ``own``, so that each epoch belongs to one of them.

    The epoch after which it began says how far those before it count: the state after a crash may be older than its
    last report, or, on the same host, newer; and a trainer that started over used none of it.
    """
    begins = own["begins"]
    kept: list[dict[str, Any]] = []
    for each in earlier:
        # Of one that never told its first epoch: it began no earlier than the one before it is known to have come.
        first = _last_known(kept) if each["begins"] is None else each["begins"]
        if begins is None or first < begins:  # None: its trainer counts none, or has not said
            kept.append(dict(each))
    if kept and begins is not None:
        kept[-1]["ends"] = begins
    return [*kept, dict(own)][-STRETCHES_MAX:]


def _last_known(stretches: Sequence[Mapping[str, Any]]) -> int:
    """Return the last epoch that a training is known to have reached; 0 when none was reported."""
    points = (point for each in reversed(stretches) for point in (each["ends"], each["begins"]))
    return next((point for point in points if point is not None), 0)

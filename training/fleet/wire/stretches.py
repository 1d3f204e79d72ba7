"""The parts of a training that moved: who did which epochs. Pure, standard library only: both sides join them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

STRETCHES_MAX = 200  # attempts that a state tells of


def joined(earlier: Sequence[Mapping[str, Any]], own: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the stretches of a training that goes on in ``own``, so that each epoch belongs to one of them.

    The epoch after which it began says how far those before it count: what a crash left may be older than what was told
    of it last, or, on the same host, newer; and a trainer that began anew took none of it.
    """
    begins = own["begins"]
    if begins is None:  # its trainer counts none, or has not said
        kept = [dict(each) for each in earlier]
    else:
        kept = [dict(each) for each in earlier if (each["begins"] or 0) < begins]
        if kept:
            kept[-1]["ends"] = begins
    return [*kept, dict(own)][-STRETCHES_MAX:]

"""A sound JSON document with one of its members gone or another than it should be: every such document in turn.

What reads a file that others may have touched must end in its own error for each of them, never in Python's.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

ODD = (
    *(None, True, 7, -1, 1.5, 1e300, float("nan"), float("inf"), 10**30),
    *("", "x", "\0", "\ud800", [], ["x"], [None], {}, {"x": 1}),
)
GONE = object()


def variants(document):
    """(where, what is there now, the document); of a list only the first two members are changed."""
    for place in _places(document):
        for value in (*ODD, GONE):
            changed = copy.deepcopy(dict(document))
            inside = changed
            for step in place[:-1]:
                inside = inside[step]
            if value is GONE:
                del inside[place[-1]]
            else:
                inside[place[-1]] = value
            yield place, value, changed


def _places(value):
    inside = value.items() if isinstance(value, Mapping) else ()
    inside = enumerate(value[:2]) if isinstance(value, list) else inside
    for name, below in inside:
        yield (name,)
        yield from ((name, *rest) for rest in _places(below))

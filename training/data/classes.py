"""Choose the benign classes: the user names them, or one class has a usual name such as ``normal``.

Every alarm, false alarm and threshold depends on this choice, so ambiguous names are refused. The schema stores the
names in `FeatureSchema.benign`, except a single class called ``benign``; `benign_of` returns them in every case.
"""

from collections.abc import Sequence
from typing import NamedTuple

from training.data.errors import DataError
from training.data.schema import FeatureSchema
from training.printable import some

BENIGN, MALICIOUS = "benign", "malicious"
USUAL = ("benign", "normal", "ok", "clean", "legitimate", "background", "none", "0", "false")
NO_ALARM = "class"  # the target of a data set of which its owner said that no class is benign
SHOWN = 12  # names of classes in one sentence


class Benign(NamedTuple):
    """The names of the benign classes, and the reason why these were chosen; without benign classes a model raises no
    alarms."""

    names: tuple[str, ...]
    why: str


def choose_benign(classes: Sequence[str], said: Sequence[str] = (), *, none: bool = False, hint: str = "") -> Benign:
    """Return the benign ones of ``classes``, and the reason.

    ``said`` has the names given with --benign, and ``none`` is True with --no-benign. Raises DataError if --benign and
    --no-benign contradict each other or the classes, or if neither is given and no class or several classes have a
    usual name. ``hint`` ends the error text that asks for the benign class.
    """
    if none and said:
        raise DataError("--benign and --no-benign contradict each other: give one of them.")
    if none:
        if BENIGN in classes:
            raise DataError(f"--no-benign contradicts the class {BENIGN!r}: rename that class, or leave the flag out.")
        return Benign(names=(), why="--no-benign: a model separates the classes, and nothing raises an alarm")
    unknown = [name for name in said if name not in classes]
    if unknown:
        raise DataError(
            f"--benign names {unknown[0]!r}, which is no class here: the classes are {listed(classes)}"
            f"{_quoting(classes)}."
        )
    if said:
        return Benign(names=tuple(sorted(set(said), key=list(classes).index)), why="--benign")
    usual = [name for name in classes if name.casefold() in USUAL]
    if len(usual) == 1:
        return Benign(names=(usual[0],), why="a usual word for it; --benign NAME says otherwise")
    found = "several could be" if usual else "none has a usual name for it"
    raise DataError(
        f"Name the benign class ({found}; the classes are {listed(classes)}): "
        f"name it with --benign NAME[,NAME], or say --no-benign if none is{_quoting(classes)}{hint}."
    )


def listed(classes: Sequence[str]) -> str:
    """Return a list of at most ``SHOWN`` names as text, each as a flag takes it: in double quotes if it contains a
    comma."""
    return some([*map(quoted, classes)], SHOWN)


def quoted(name: str) -> str:
    """Return a name as a flag takes it: in double quotes if it contains a comma."""
    return f'"{name}"' if "," in name else name


def _quoting(classes: Sequence[str]) -> str:
    odd = next((name for name in classes if "," in name), None)
    return "" if odd is None else f" (a name that holds a comma in double quotes: --benign '\"{odd}\"')"


def stated(benign: Sequence[str]) -> tuple[str, ...]:
    """Return the value of the schema's field ``benign`` for these benign classes: empty if there is none, or the only
    one is called ``benign``."""
    return () if tuple(benign) == (BENIGN,) else tuple(benign)


def benign_of(schema: FeatureSchema) -> tuple[str, ...]:
    """Return the names of a data set's benign classes; empty if its user declared that no class is benign.

    An empty field ``benign`` means the class called ``benign``, or with the target ``class`` none. Raises DataError if
    a benign class is not among the schema's classes.
    """
    names = schema.benign or (() if schema.target == NO_ALARM else (BENIGN,))
    odd = [name for name in names if name not in schema.label_map]
    if odd:
        raise DataError(f"The schema calls {odd[0]!r} benign, which is none of its classes: build the data set again.")
    return names

"""The benign classes: named by the owner or recognised by a usual name, never guessed from an order.

Every alarm, false alarm and threshold depends on this choice, so ambiguous names are refused. The schema keeps the
owner's names (`FeatureSchema.benign`); `benign_of` reads them back.
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
    """The benign classes by the owner's names, and the reason why these were chosen. Without benign classes a model
    raises no alarms."""

    names: tuple[str, ...]
    why: str


def choose_benign(classes: Sequence[str], said: Sequence[str] = (), *, none: bool = False, hint: str = "") -> Benign:
    """Choose the benign ones of ``classes``.

    ``said`` is what --benign names, ``none`` is --no-benign, ``hint`` ends the refusal. Raises DataError.
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
    """Names as a flag takes them: one that holds a comma in double quotes."""
    return some([*map(quoted, classes)], SHOWN)


def quoted(name: str) -> str:
    """The name in the form that a flag takes."""
    return f'"{name}"' if "," in name else name


def _quoting(classes: Sequence[str]) -> str:
    odd = next((name for name in classes if "," in name), None)
    return "" if odd is None else f" (a name that holds a comma in double quotes: --benign '\"{odd}\"')"


def stated(benign: Sequence[str]) -> tuple[str, ...]:
    """The value of the schema's field ``benign`` for these classes: empty if the only one is called ``benign``."""
    return () if tuple(benign) == (BENIGN,) else tuple(benign)


def benign_of(schema: FeatureSchema) -> tuple[str, ...]:
    """The benign classes of a data set, by the owner's names; none where the owner said that none is.

    A schema that names none means the class called ``benign``. Raises DataError where there is no such class.
    """
    names = schema.benign or (() if schema.target == NO_ALARM else (BENIGN,))
    odd = [name for name in names if name not in schema.label_map]
    if odd:
        raise DataError(f"The schema calls {odd[0]!r} benign, which is none of its classes: build the data set again.")
    return names

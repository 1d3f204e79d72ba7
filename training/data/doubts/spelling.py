"""Detect names that look alike, because a host or a class with two spellings would count as two."""

import unicodedata
from collections.abc import Iterable

import numpy as np

from training.contract import RECORDING_HOST
from training.data.classes import listed
from training.data.doubts.windows import WindowsInQuestion
from training.data.errors import DataError
from training.data.values import Names

# What programs write where nothing is known. "none" is no such word for a class: it is a usual name of the benign one.
NOTHING = ("nan", "nat", "null", "na", "n/a", "<na>", "?", "-")
LABEL = "label"


def tidy(names: Names, what: str) -> Names:
    """Return the names without spaces around them; ``what`` is their kind, such as ``label``.

    Raises DataError for an empty name, for one that programs write where nothing is known (``nan``, ``n/a``), and for
    two that look alike.
    """
    found, place = np.unique(names, return_inverse=True)
    stripped = np.array([name.strip() for name in found.tolist()])
    if "" in stripped:
        raise DataError(f"A {what} is empty: name each one, or leave these rows out.")
    for name in stripped.tolist():
        if name.casefold() in (NOTHING if what == LABEL else (*NOTHING, "none")):
            raise DataError(
                f"A {what} is {name!r}, which is what programs write where nothing is known: name each one, or leave "
                "these rows out."
            )
    check_alike(stripped.tolist(), what)
    return stripped[place.reshape(names.shape)]


def check_alike(names: Iterable[str], what: str) -> None:
    """Raise DataError if two names differ only by case, spaces, invisible characters, or forms of the same
    character."""
    spellings: dict[str, str] = {}
    for name in names:
        other = spellings.setdefault(_as_it_looks(name), name)
        if other != name:
            by = "signs that look alike"
            if "".join(other.split()) == "".join(name.split()):
                by = "spaces"
            elif other.strip().casefold() == name.strip().casefold():
                by = "case"
            raise DataError(
                f"The {what}s {other!r} and {name!r} differ by {by} only: spell them alike, or rename one of them."
            )


def hosts_alike(windows: WindowsInQuestion) -> list[str]:
    """Return a sentence for each pair of hosts whose names suggest that they are one machine."""
    return [
        f"The hosts {first!r} and {other!r} look like one machine: name them equal if they are, or what it did "
        "stands on both sides of a split by host."
        for first, other in alike_hosts(windows.rows.host.present.tolist())
    ]


def unusual_hosts(windows: WindowsInQuestion) -> list[str]:
    """Return a list with one sentence on the hosts that no plan can name; an empty list if there are none."""
    odd = [name for name in windows.rows.host.present.tolist() if not RECORDING_HOST.fullmatch(name)]
    if not odd:
        return []
    said = f"A plan's train_hosts cannot name {listed(odd)}: to split by host, write hosts with letters, digits, dots, "
    return [f"{said}dashes and underscores alone."]


def alike_hosts(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return pairs of names that differ only by case, a domain that one of them has (h0, h0.lan), a final dot, or - and
    _."""
    found = []
    known: dict[str, str] = {}
    # Short names first; of two with a domain each (db.eu, db.us) nothing is said.
    for name in sorted(set(names), key=lambda name: (name.count("."), name)):
        plain = name.casefold().rstrip(".").replace("_", "-")
        short = plain.partition(".")[0]
        # The first part of an address is no name of a host.
        for key in (plain,) if short.isdigit() else (plain, short):
            if key in known:
                found.append((known[key], name))
                break
        known.setdefault(plain, name)
    return found


def _as_it_looks(name: str) -> str:
    """Return the name in the form by which look-alikes are compared: casefolded, normalised (NFKC), and without
    invisible characters and spaces."""
    seen = name if name.isascii() else "".join(sign for sign in name if unicodedata.category(sign) != "Cf")
    return "".join(unicodedata.normalize("NFKC", seen).casefold().split())

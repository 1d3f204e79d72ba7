"""A plain mutator: a sample of the corpus with a few small things done to it. Seeded, so that a run can be repeated.

To make an input must not cost more than to try it: chance is one ``random()`` a decision, and each sample is taken
apart once.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

BYTES_MAX = 8192
CORPUS = Path(__file__).parent / "corpus"
T = TypeVar("T")
Roll = Callable[[], float]  # from 0 up to, and not, 1

_EDGES = b'\0\1\t\n\x1b "/[\\{\x7f\x80\x9b\xc0\xfe\xff'
_TIMES = (1, 1, 2, 2, 3, 4, 8, 16)
_PLAIN: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**53, 2**63, 2**64, 10**30, -(2**63) - 1, 0.5, -0.0, 1e308, 1e-320, "",
    "a", "x" * 400,
    "\x00", "\x1b[2J", "\x1b]0;x\x07", "\x9b31m", "\u202e", "\u2028", "\ud800", "../x", "CLAIM", "pi", "running",
    [], {}, [[]],
    [None], {"": None}, {"a": {"b": []}}, ["a", 1, {}], "9" * 30, "-1", "nan",
)  # fmt: skip
_VALUES = tuple(json.dumps(value).encode() for value in _PLAIN)
_ALIKE = {
    kind: tuple(json.dumps(value).encode() for value in _PLAIN if type(value) is kind) for kind in map(type, _PLAIN)
}


class Place(NamedTuple):
    """The place of a value: ``at`` to ``end``; with its name and what parts it from the next, ``begin`` to ``stop``."""

    begin: int
    stop: int
    at: int
    end: int
    alike: tuple[bytes, ...]  # values of the same kind


@dataclass(frozen=True, slots=True)
class Sample:
    """A file of the corpus, with the values in it if it is JSON, behind its first byte, or lines of ``key = value``."""

    data: bytes
    text: bytes  # as JSON is written by us
    places: Sequence[Place]


def samples(target: str) -> list[bytes]:
    """Return the corpus for this target, in a fixed order."""
    found = [path.read_bytes() for path in sorted((CORPUS / target).iterdir())]
    assert found, f"the corpus of {target} is empty"
    return found


def inputs(target: str, words: Sequence[bytes], seed: int) -> Iterator[bytes]:
    """Without end: first the corpus as it is, then changed."""
    corpus = samples(target)
    yield from corpus
    known, roll = [_sample(data) for data in corpus], random.Random(seed).random
    while True:
        sample = _one(known, roll)
        exchanged = sample.places and roll() < 0.4
        data = _other_values(sample, roll, words) if exchanged else bytearray(sample.data)
        if not exchanged or roll() < 0.5:
            for _ in range(_one(_TIMES, roll)):
                _one(_WAYS, roll)(data, roll, words, corpus)
        yield bytes(data[:BYTES_MAX])


def _one(of: Sequence[T], roll: Roll) -> T:
    return of[int(roll() * len(of))]


# -- values -----------------------------------------------------------------------------------------------------

_ASSIGNED = re.compile(rb"^[^#\n=]*[^#\n= ] *= (.+)\n", re.MULTILINE)


def _sample(data: bytes) -> Sample:
    written, places = bytearray(data[:1]), list[Place]()
    value = _json(data[1:])
    if value is None:
        lines = _ASSIGNED.finditer(data)
        return Sample(data, data, [Place(*m.span(), *m.span(1), _alike(_json(m[1]))) for m in lines])
    _write(value, written, places)
    places.append(Place(1, len(written), 1, len(written), _VALUES))
    return Sample(data, bytes(written), places)


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _alike(value: Any) -> tuple[bytes, ...]:
    return _ALIKE.get(type(value), _VALUES)


def _write(value: Any, out: bytearray, places: list[Place]) -> None:
    """Add ``value`` as JSON to ``out``, and to ``places`` where the values in it stand."""
    if not isinstance(value, dict | list):
        out += json.dumps(value).encode()
        return
    named = isinstance(value, dict)
    out += b"{" if named else b"["
    last = len(value) - 1
    for number, key in enumerate(value):
        begin = len(out)
        out += json.dumps(key).encode() + b": " if named else b""
        at, held = len(out), value[key] if named else key
        _write(held, out, places)
        end = len(out)
        out += b", " if number < last else b""
        places.append(Place(begin, len(out), at, end, _alike(held)))
    out += b"}" if named else b"]"


def _other_values(sample: Sample, roll: Roll, words: Sequence[bytes]) -> bytearray:
    """The sample with a few values exchanged or gone, from the last to the first: so places before keep theirs."""
    data = bytearray(sample.text)
    chosen = {_one(sample.places, roll) for _ in range(_one((1, 1, 2, 3, 6), roll))}
    changed = len(data)
    for place in sorted(chosen, reverse=True):
        if place.stop > changed:
            continue  # something in it is another already
        changed, what = place.begin, roll()
        if what < 0.15:
            del data[place.begin : place.stop]
        elif what < 0.2:
            data[place.at : place.end] = b"%d" % ((roll() - 0.5) * 2.0 ** (roll() * 70))
        elif what < 0.25:
            data[place.at : place.end] = b'"%b"' % _one(words, roll)
        elif what < 0.3:
            other = _one(sample.places, roll)
            data[place.at : place.end] = sample.text[other.at : other.end]
        else:
            data[place.at : place.end] = _one(place.alike if what < 0.7 else _VALUES, roll)
    return data


# -- bytes ------------------------------------------------------------------------------------------------------

_Way = Callable[[bytearray, Roll, Sequence[bytes], Sequence[bytes]], None]


def _somewhere(data: bytearray, roll: Roll) -> int:
    return int(roll() * (len(data) + 1))


def _flip(data: bytearray, roll: Roll, _words: object, _corpus: object) -> None:
    if data:
        data[int(roll() * len(data))] ^= 1 << int(roll() * 8)


def _edge(data: bytearray, roll: Roll, _words: object, _corpus: object) -> None:
    if data:
        data[int(roll() * len(data))] = _one(_EDGES, roll)


def _insert(data: bytearray, roll: Roll, words: Sequence[bytes], _corpus: object) -> None:
    at = _somewhere(data, roll)
    data[at:at] = _one(words, roll) if roll() < 0.8 else int(roll() * 2**32).to_bytes(4)


def _replace(data: bytearray, roll: Roll, words: Sequence[bytes], _corpus: object) -> None:
    at = _somewhere(data, roll)
    data[at : at + int(roll() * 13)] = _one(words, roll)


def _cut(data: bytearray, roll: Roll, _words: object, _corpus: object) -> None:
    at = _somewhere(data, roll)
    del data[at : at + _one((1, 2, 8, 64, 512), roll)]


def _repeat(data: bytearray, roll: Roll, _words: object, _corpus: object) -> None:
    at = _somewhere(data, roll)
    piece = data[at : at + _one((1, 4, 32), roll)]
    data[at:at] = piece * _one((1, 2, 16, 600), roll)
    del data[BYTES_MAX:]


def _line(data: bytearray, roll: Roll, _words: object, _corpus: object) -> None:
    """A line goes, comes a second time, or moves."""
    at = data.rfind(b"\n", 0, _somewhere(data, roll)) + 1
    end = data.find(b"\n", at) + 1 or len(data)
    line, what = data[at:end], roll()
    if what < 0.7:
        del data[at:end]
    if what > 0.4:
        to = data.rfind(b"\n", 0, _somewhere(data, roll)) + 1
        data[to:to] = line


def _splice(data: bytearray, roll: Roll, _words: object, corpus: Sequence[bytes]) -> None:
    other = _one(corpus, roll)
    data[_somewhere(data, roll) :] = other[int(roll() * (len(other) + 1)) :]


_WAYS: tuple[_Way, ...] = (_flip, _edge, _insert, _insert, _replace, _cut, _repeat, _line, _splice)

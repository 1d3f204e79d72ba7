"""A plain mutator: a sample of the corpus with a few small things done to it. Seeded, so that a run can be repeated."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

BYTES_MAX = 8192
CORPUS = Path(__file__).parent / "corpus"
_EDGES = (
    0,
    1,
    0x09,
    0x0A,
    0x1B,
    0x20,
    0x22,
    0x2F,
    0x5B,
    0x5C,
    0x7B,
    0x7F,
    0x80,
    0x9B,
    0xC0,
    0xFE,
    0xFF,
)


def samples(target: str) -> list[bytes]:
    """What the corpus holds for this target, in a fixed order."""
    found = [path.read_bytes() for path in sorted((CORPUS / target).iterdir())]
    assert found, f"the corpus of {target} is empty"
    return found


def inputs(target: str, words: Sequence[bytes], seed: int) -> Iterator[bytes]:
    """Without end: first the corpus as it is, then changed."""
    corpus, chance = samples(target), random.Random(seed)
    yield from corpus
    while True:
        sample = chance.choice(corpus)
        data = bytearray(_other_values(sample, chance) if chance.random() < 0.5 else sample)
        if chance.random() < 0.3:
            yield bytes(data[:BYTES_MAX])
            continue
        for _ in range(chance.choice((1, 1, 2, 2, 3, 4, 8, 16))):
            chance.choice(_WAYS)(data, chance, words, corpus)
        yield bytes(data[:BYTES_MAX])


_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**53, 2**63, 2**64, 10**30, -(2**63) - 1, 0.5, -0.0, 1e308, 1e-320, "",
    "a", "x" * 400,
    "\x00", "\x1b[2J", "\x1b]0;x\x07", "\x9b31m", "\u202e", "\u2028", "\ud800", "../x", "CLAIM", "pi", "running",
    [], {}, [[]],
    [None], {"": None}, {"a": {"b": []}}, ["a", 1, {}], "9" * 30, "-1", "nan",
)  # fmt: skip


def _other_values(sample: bytes, chance: random.Random) -> bytes:
    """The JSON behind the sample's first byte with a few values exchanged or gone; other samples as they are."""
    try:
        whole = [json.loads(sample[1:])]
    except (ValueError, RecursionError):
        return sample
    for _ in range(chance.choice((1, 1, 2, 3, 6))):
        places = list(_places(whole))
        box, key = chance.choice(places)
        if chance.random() < 0.15 and box is not whole:
            del box[key]
        else:
            box[key] = copy.deepcopy(chance.choice(_VALUES))
    return sample[:1] + json.dumps(whole[0]).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a JSON value that holds something: its container and key."""
    boxes = [value]
    while boxes:
        box = boxes.pop()
        for key in list(box) if isinstance(box, dict) else range(len(box)):
            yield box, key
            if isinstance(box[key], dict | list):
                boxes.append(box[key])


_Way = Callable[[bytearray, random.Random, Sequence[bytes], list[bytes]], None]


def _flip(data: bytearray, chance: random.Random, _words: object, _corpus: object) -> None:
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _edge(data: bytearray, chance: random.Random, _words: object, _corpus: object) -> None:
    if data:
        data[chance.randrange(len(data))] = chance.choice(_EDGES)


def _insert(
    data: bytearray, chance: random.Random, words: Sequence[bytes], _corpus: object
) -> None:
    at = chance.randint(0, len(data))
    data[at:at] = chance.choice(words) if chance.random() < 0.8 else chance.randbytes(4)


def _replace(
    data: bytearray, chance: random.Random, words: Sequence[bytes], _corpus: object
) -> None:
    at = chance.randint(0, len(data))
    data[at : at + chance.randint(0, 12)] = chance.choice(words)


def _cut(data: bytearray, chance: random.Random, _words: object, _corpus: object) -> None:
    at = chance.randint(0, len(data))
    del data[at : at + chance.choice((1, 2, 8, 64, 512))]


def _repeat(data: bytearray, chance: random.Random, _words: object, _corpus: object) -> None:
    at = chance.randint(0, len(data))
    piece = bytes(data[at : at + chance.choice((1, 4, 32))])
    data[at:at] = piece * chance.choice((1, 2, 16, 600))
    del data[BYTES_MAX:]


def _splice(data: bytearray, chance: random.Random, _words: object, corpus: list[bytes]) -> None:
    other = chance.choice(corpus)
    at = chance.randint(0, len(data))
    data[at:] = other[chance.randint(0, len(other)) :]


_WAYS: tuple[_Way, ...] = (_flip, _edge, _insert, _insert, _replace, _cut, _repeat, _splice)

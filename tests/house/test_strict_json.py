"""JSON as every reader takes it."""

from __future__ import annotations

import json
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training import strict_json

# st.text() leaves halves of characters out; whoever reads files and command lines meets them.
TEXT = st.text(st.characters(exclude_categories=()))
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=8,
)


def numbers_in(value):
    if isinstance(value, float):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from numbers_in(each)


@given(VALUE)
def test_what_is_written_every_reader_takes(value):
    try:
        written = strict_json.dumps(value)
    except ValueError:
        assert not all(map(math.isfinite, numbers_in(value)))
    else:
        msgspec.json.decode(written)
        strict_json.loads(written)
        assert b"\n" not in written


@given(st.text() | st.binary() | VALUE.map(json.dumps))
def test_what_is_read_can_be_sent(text):
    try:
        value = strict_json.loads(text)
    except ValueError:
        return
    assert msgspec.json.decode(strict_json.dumps(value)) == value


@pytest.mark.parametrize(
    "text", [r'"\ud800"', r'{"\udc00": 1}', "NaN", "[-Infinity]", "1e999", "[" * 9999, b"\xff", "", "9" * 5000]
)
def test_what_others_refuse_is_refused(text):
    with pytest.raises(ValueError):
        strict_json.loads(text)


def test_half_a_character_becomes_a_question_mark():
    assert strict_json.dumps({"caf\udce9": "é\ud800"}) == '{"caf?": "é?"}'.encode()

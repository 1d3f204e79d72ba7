"""Ten thousand inputs for every fuzz target, and what such inputs have found before, each by its name.

``python -m fuzz TARGET --runs 10000000`` is the same for longer, and ``fuzz/record.json`` says how long that was.
"""

from __future__ import annotations

import importlib
import itertools
import sys

import pytest
from places import ROOT

sys.path.insert(0, str(ROOT))

from fuzz import TARGETS
from fuzz.mutate import CORPUS, inputs
from training.certain import certain
from training.fleet.service.claims import Claims

RUNS = 5_000  # with each seed


def target(name):
    return importlib.import_module(f"fuzz.fuzz_{name}")


_PLANTED = {
    "renderer": ("training.fleet.cli.render.one_line", lambda text, *_: str(text)),
    "wire": ("training.fleet.service.claims.check_claim", lambda _request: None),
    "index": ("training.fleet.store.index.StoreIndex._cut_torn_line", lambda _self: 1 // 0),
    "unpack": ("training.fleet.cli.models._check_sidecars", lambda *_: 1 // 0),
    "manifest": ("training.fleet.manifest.types.Mistake.__str__", lambda _self: "\x1b[2J"),
    "model": ("training.trainer.trees.Tree.checked", lambda *_: certain(False, "a fault that no reader foresees")),
}


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", TARGETS)
def test_thousands_of_inputs_then_a_planted_fault(name, seed, monkeypatch):
    fuzzed = target(name)
    tried = list(itertools.islice(inputs(name, fuzzed.WORDS, seed=seed), RUNS))
    for data in tried:
        try:
            fuzzed.one_input(data)
        except Exception as error:
            raise AssertionError(f"{name} fails with {data!r}") from error
    monkeypatch.setattr(*_PLANTED[name])
    with pytest.raises(Exception):  # noqa: B017 - whatever it is, and whatever was tried before
        all(fuzzed.one_input(data) is None for data in tried)


def test_a_call_meets_nothing_that_an_earlier_one_left(monkeypatch):
    claim, met = Claims.claim, []

    def claimed(claims, request):
        met.append([(host.name, host.session_id) for host in claims._fleet.known_hosts()])
        return claim(claims, request)

    monkeypatch.setattr(Claims, "claim", claimed)
    target("wire").one_input(b"")  # makes the world, with a claim of its own
    met.clear()
    for host in ("pi", "new", "pi"):
        call = b'\0{"host_id": "%b", "instance_id": "i", "session_id": "0000000009-z"}'
        target("wire").one_input(call % host.encode())
    assert met == [[("pi", "0000000001-a")]] * 3


def test_the_same_seed_makes_the_same_inputs():
    words = target("wire").WORDS
    first, again, other = (list(itertools.islice(inputs("wire", words, seed), 200)) for seed in (1, 1, 2))
    assert first == again != other


def test_every_target_has_a_file_and_every_file_is_a_target():
    files = {path.stem.removeprefix("fuzz_") for path in (ROOT / "fuzz").glob("fuzz_*.py")}
    assert files == set(TARGETS)


def test_whole_bundles_get_beyond_their_headers(monkeypatch):
    reached = []
    monkeypatch.setattr("training.fleet.cli.models._check_sidecars", lambda *_: reached.append(0))
    whole = [CORPUS / "unpack" / "0_good", *(CORPUS / "unpack").glob("[a-h]_*")]
    for sample in whole:
        target("unpack").one_input(sample.read_bytes())
    assert len(reached) == len(whole) == 9


# -- found before -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        b'\x01{"jobs": 5, "counts": {}}',
        b'\x01{"jobs": ["x"], "counts": {}}',
        b'\x08{"certificates": [{"name": "pi", "role": "host", "fingerprint": "", "expires_at": 1e300}]}',
        b'\x0a{"entries": [{"seq": "\xed\xa0\x80"}]}',
        b'\x0b{"datasets": [{"files": "\\u001b[2J", "names": [], "dataset_id": "", "size": 1}]}',
    ],
    ids=["no list", "a text for a job", "a time beyond all calendars", "half a character", "an escape"],
)
def test_an_answer_of_another_form_is_one_sentence_and_no_traceback(answer):
    target("renderer").one_input(answer)

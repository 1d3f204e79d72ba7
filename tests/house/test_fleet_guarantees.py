"""The page of promises says what the last long run recorded, and names tests that exist."""

from __future__ import annotations

import json
import re

import pytest
from places import ROOT
from simulation.faults import Fault
from torture.page import PAGE, RECORD, rendered
from torture.parts import PARTS

from training.fleet.scheduling.job import TRANSITIONS

TEXT = PAGE.read_text(encoding="utf-8")


def test_the_page_shows_the_record():
    assert rendered(TEXT) == TEXT, "run `python -m tests.torture.page`"


def test_nothing_recorded_was_broken():
    record = json.loads(RECORD.read_text())
    assert set(record) <= {part.name for part in PARTS}
    assert [case for run in record.values() for case in run["broken"]] == []


# What simulations meet that are younger than the recorded run; each is met in the default suite's.
NEWER = {
    *(
        f"fault {kind}"
        for kind in (Fault.OWNER, Fault.WOKEN, Fault.PAUSE_HOST, Fault.DRAIN, Fault.RESUME_HOST, Fault.STATE_LOST)
    ),
    "row wake",
}


def test_a_whole_simulation_met_every_fault_and_every_transition():
    """As the record stands, once no task of it is missing."""
    run = json.loads(RECORD.read_text())["sim"]
    if len(run["done"]) < run["tasks"]:
        pytest.skip("the recorded run has not come to its end")
    wanted = {f"fault {kind}" for kind in Fault} | {f"row {name}" for name in TRANSITIONS}
    assert wanted - set(run["counts"]) == NEWER, "what a new record has is newer than that no more"


def test_every_part_is_explained():
    below = TEXT.partition("## The promises")[2]
    assert [part.name for part in PARTS if f"*{part.name}*" not in below] == []


def test_every_test_that_is_named_exists():
    named = set(re.findall(r"`(?:tests/)?((?:\w+/)*\w+\.py)`", TEXT))
    assert named
    assert [name for name in named if not (ROOT / "tests" / name).exists()] == []


def test_every_part_makes_tasks_of_both_sizes():
    for part in PARTS:
        full, quick = part.tasks(True), part.tasks(False)
        assert len(full) >= len(quick), part.name
        assert full, part.name

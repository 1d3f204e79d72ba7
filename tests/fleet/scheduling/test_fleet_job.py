"""The nouns, and the transition table in its three places: code, database, and the picture here."""

from __future__ import annotations

import dataclasses
import json
import re
from itertools import product
from pathlib import Path

import pytest
from builders import a_capability, a_host, a_job, an_attempt
from hypothesis import given
from hypothesis import strategies as st
from places import ROOT

from training import strict_json
from training.contract import IDENTITY_KEYS, digest, spec_hash
from training.fleet.database import writer
from training.fleet.queue.jobs import JobQueue
from training.fleet.scheduling.job import (
    FAULT_OF,
    FINAL,
    KEEPS_STATUS,
    LIVE,
    MARKS,
    REPORTABLE,
    TRANSITIONS,
    EndReason,
    Fault,
    Host,
    JobStatus,
    Needs,
    check_transition,
)
from training.fleet.scheduling.policy import Policy

PAGE = (ROOT / "docs" / "job-lifecycle.md").read_text(encoding="utf-8")
SCHEMA = (Path(writer.__file__).parent / "sql" / "schema_sqlite.sql").read_text(encoding="utf-8")


PICTURE = """
[*] --> pending: insert
pending --> claimed: claim
claimed --> claimed: claim_repeat
running --> claimed: claim_repeat
claimed --> running: heartbeat
running --> running: heartbeat
claimed --> completed: complete
running --> completed: complete
completed --> completed: complete_repeat
pending --> completed: adopt
pending --> completed: deliver
pending --> running: readopt
claimed --> pending: retry
running --> pending: retry
claimed --> pending: hand_back
running --> pending: hand_back
claimed --> pending: sweep
running --> pending: sweep
claimed --> failed: exhaust
running --> failed: exhaust
pending --> failed: exhaust
pending --> pending: pardon
failed --> pending: pardon
pending --> cancelled: cancel
claimed --> cancelled: cancel
running --> cancelled: cancel
failed --> cancelled: take_out
pending --> pending: requeue
claimed --> pending: requeue
running --> pending: requeue
completed --> pending: requeue
failed --> pending: requeue
cancelled --> pending: requeue
pending --> pending: hold
pending --> pending: unhold
pending --> pending: wake
"""


def drawn(picture):
    """The arrows of the picture."""
    arrows = re.findall(r"^\s*(\S+) --> (\S+): (\w+)$", picture, re.MULTILINE)
    assert len(arrows) == picture.count("-->"), "every arrow can be read"
    return {(None if a == "[*]" else a, b, name) for a, b, name in arrows}


def tabled():
    """The rows; a mark, which leaves every status as it is, is drawn where it matters alone."""
    moves = [row for row in TRANSITIONS.values() if row.name not in MARKS]
    marks = {(JobStatus.PENDING, JobStatus.PENDING, name) for name in MARKS}
    return {(source, row.target, row.name) for row in moves for source in row.sources} | marks


# ── one table, three places ─────────────────────────────────────────────────────────────────


def test_the_picture_shows_the_table():
    assert drawn(PICTURE) == tabled()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("pending --> completed: adopt\n", ""),
        ("running --> failed: exhaust", "failed --> running: exhaust"),
        ("pending --> claimed: claim", "pending --> claimed: take"),
    ],
)
def test_a_wrong_picture_would_be_seen(old, new):
    assert old in PICTURE
    assert drawn(PICTURE.replace(old, new)) != tabled()


def constrained(column):
    (values,) = re.findall(rf"CHECK \({column} IN\s*\((.*?)\)\)", SCHEMA, re.DOTALL)
    return re.findall(r"'(\w+)'", values)


def test_the_database_knows_the_same_lists():
    assert constrained("status") == [status.value for status in JobStatus]
    assert constrained("end_reason") == [reason.value for reason in EndReason]


def test_the_table_is_whole():
    assert {row.target for row in TRANSITIONS.values()} == set(JobStatus)
    assert not LIVE & FINAL
    assert LIVE | FINAL | {JobStatus.PENDING} == set(JobStatus)
    for row in TRANSITIONS.values():
        left_final = row.sources & FINAL
        # The operator, twice; what a sick host did.
        undoes = {"requeue", "take_out", "pardon", *KEEPS_STATUS, *MARKS}
        assert not left_final or row.name in undoes, "a final status is final"


def test_whatever_is_not_in_the_table_is_refused():
    arrows = {arrow for arrow in tabled() if arrow[2] not in KEEPS_STATUS}
    arrows |= {(source, source, name) for source, _, name in tabled() if name in KEEPS_STATUS}
    arrows |= {(status, status, name) for status, name in product(JobStatus, MARKS)}
    for source, target, name in product([None, *JobStatus], JobStatus, TRANSITIONS):
        if (source, target, name) in arrows:
            check_transition(name, source, target)
        else:
            with pytest.raises(AssertionError):
                check_transition(name, source, target)


def test_the_page_has_a_section_for_each_status_and_a_row_for_each_end():
    headings = re.findall(r"^## (\w+)$", PAGE, re.MULTILINE)
    assert {status.value for status in JobStatus} <= set(headings)
    pays = {Fault.NOBODY: "nothing", Fault.TRAINER: "`max_attempts`", Fault.INFRASTRUCTURE: "`max_host_losses`"}
    rows = re.findall(r"^\| `(\w+)` \| .* \| ([\w`]+).* \|$", PAGE, re.MULTILINE)
    assert dict(rows) == {reason.value: pays[FAULT_OF[reason]] for reason in EndReason}


def test_the_page_names_the_budgets_as_they_are():
    policy = Policy()
    for text in (
        f"failed {policy.max_attempts} of {policy.max_attempts} times (max_attempts)",
        f"lost {policy.max_host_losses} of {policy.max_host_losses} times (max_host_losses)",
        f"granted {policy.max_grants} times without an end (max_grants)",
        f"without CUDA wait {policy.prefer_cuda_grace_s:.0f} s",
        f"*lease* of {policy.stale_after_s:.0f} s",
    ):
        assert text in PAGE


# ── closed lists ────────────────────────────────────────────────────────────────────────────


def test_every_end_has_somebody_who_pays_and_workers_report_only_what_they_can_know():
    assert set(FAULT_OF) == set(EndReason)
    own = {EndReason.COMPLETED, EndReason.HOST_LOST, EndReason.CANCELLED, EndReason.SUPERSEDED}
    assert set(EndReason) - REPORTABLE == own
    assert [r for r in EndReason if FAULT_OF[r] is Fault.TRAINER] == [EndReason.TRAINER_FAILED]


@pytest.mark.parametrize("kind", [JobStatus, EndReason])
def test_members_are_their_strings(kind):
    for member in kind:
        assert member == member.value == str(member) == json.loads(json.dumps(member))


# ── needs, hosts, identities ────────────────────────────────────────────────────────────────

wishes = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from(["gbt", "", None]),
        "require_cuda": st.sampled_from([True, False, None]),
        "min_vram_gib": st.sampled_from([0, 0.0, 1, 1.0, None]),
        "min_cores": st.sampled_from([0, 1, None]),
        "allowed_hosts": st.sampled_from([["a", "b"], ["b", "a"], ["a"], [], None]),
    },
)


@given(wishes, wishes)
def test_equal_needs_have_equal_text_and_only_they(one, other):
    mine, theirs = Needs.of(one), Needs.of(other)
    assert (mine == theirs) == (mine.canonical() == theirs.canonical())
    assert Needs.of(json.loads(mine.canonical())) == mine


def test_a_job_dict_without_optional_keys_needs_nothing():
    assert Needs.of({}) == Needs()


def test_nouns_are_frozen():
    for noun, field in ((a_host(), "cores"), (Needs(), "model"), (an_attempt(), "host")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(noun, field, None)


def test_an_empty_capability_is_a_host_of_nothing():
    assert Host.of("pi", {}) == Host(name="pi")
    none = dict.fromkeys(a_capability(), None)
    assert Host.of("pi", none) == Host(name="pi"), "null is the same as absent"


@given(st.permutations(list(a_job())))
def test_an_identity_depends_on_no_order_and_on_nothing_but_its_keys(order):
    job = a_job(hyper={"lr": 0.1, "depth": 3})
    assert spec_hash({key: job[key] for key in order}) == spec_hash(job)
    assert spec_hash({**job, "name": "x", "priority": 1, "n_resamples": 2}) == spec_hash(job)
    for key in IDENTITY_KEYS:
        assert spec_hash({**job, key: "something else"}) != spec_hash(job)


def test_canonical_text_is_the_same_everywhere():
    assert strict_json.canonical({"b": [1, "ä"], "a": None}) == '{"a":null,"b":[1,"ä"]}'
    assert digest({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    with pytest.raises(ValueError, match="JSON"):
        strict_json.canonical(float("nan"))


def test_every_move_leaves_its_witness_in_the_same_transaction():
    queue = JobQueue(":memory:")
    queue.sync_from_manifest([a_job("one")])
    queue.claim_next(worker_hostname="pi", capability={})
    queue._conn.execute("DROP TABLE events")
    with pytest.raises(writer.DatabaseError):
        queue.cancel("id-one")
    assert queue.get("id-one").status == "claimed", "no witness, no move"
    queue.close()


def test_the_queue_writes_no_move_that_is_not_in_the_table():
    queue = JobQueue(":memory:")
    queue.sync_from_manifest([a_job("one")])
    pending = queue.get("id-one")
    with pytest.raises(AssertionError, match="may not start from pending"):
        queue.events.moved("complete", pending.job_id, pending.status, JobStatus.COMPLETED)
    assert [event["transition"] for event in queue.db.all("events_of_job", job_id="id-one")] == ["insert"]
    queue.close()


def test_a_host_has_at_least_the_memory_that_is_free():
    """Workers of before do not tell how much there is in all; what is free may be reported as more than that."""
    for told, total in (({}, 8.0), ({"ram_total_gib": 16.0}, 16.0), ({"ram_total_gib": 7.5}, 8.0)):
        assert Host.of("pi", {"ram_available_gib": 8.0, **told}).ram_total_gib == total
    for device, whole in (({}, 4.0), ({"vram_total_gib": 6.0}, 6.0)):
        capability = {"cuda_available": True, "cuda_devices": [{"vram_free_gib": 4.0, **device}]}
        assert Host.of("pi", capability).vram_total_gib == whole


def test_a_reserve_is_taken_off_what_the_cap_leaves():
    gib = {"ram_available_gib": 20.0, "ram_total_gib": 24.0}
    gpu = {"vram_free_gib": 20.0, "vram_total_gib": 24.0}
    declared = {
        f"{rule}_{of}": n for rule, n in (("max", 16), ("reserve", 4)) for of in ("cores", "ram_gib", "vram_gib")
    }
    host = Host.of("pi", {**gib, "cpu_cores": 24, "cuda_available": True, "cuda_devices": [gpu]}, declared)
    assert host.cores == host.ram_available_gib == host.ram_total_gib == 12
    assert host.vram_free_gib == host.vram_total_gib == 12

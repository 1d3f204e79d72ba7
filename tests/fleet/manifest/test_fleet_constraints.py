"""A job's constraints, each declared in one line: what is declared holds in the manifest, the grant, words and pages.

Every test here is made for each declared key, so that a new one joins by itself. A key that is no amount needs an
example below: a value, a host that does not fit, and one that does.
"""

import io
import json
import math
import re
from dataclasses import dataclass, field
from typing import Any

import pytest
from builders import a_capability, a_claim, a_job
from fakes import Counting, FakeClock
from places import ROOT
from rich.console import Console
from test_fleet_manifest import HEAD, load, mistakes
from wire_builders import whole

from training.fleet.capability.probe import detect
from training.fleet.cli.render import render_job
from training.fleet.pages.job import facts
from training.fleet.queue.jobs import JobQueue
from training.fleet.receiver.http import openapi
from training.fleet.scheduling.job import AMOUNTS, CONSTRAINTS, Needs, constraints_in_words
from training.fleet.scheduling.policy import Policy
from training.fleet.service.guards import check_claim
from training.fleet.wire.constants import Refusal
from training.fleet.wire.views import JobDetail

DATA = "ab" * 32
CUDA = a_capability(cuda=True)


@dataclass(frozen=True)
class Example:
    """A value of a key, and hosts that differ in what it asks for."""

    value: Any
    reason: str = ""  # why the unfit host does not get the job; empty: this key keeps it from no host
    unfit: dict[str, Any] = field(default_factory=a_capability)
    fit: dict[str, Any] = field(default_factory=a_capability)
    others: dict[str, Any] = field(default_factory=dict)  # further keys of the job
    wrong: Any = ()  # a value that the manifest refuses
    written: str = ""  # what the sentence has of it; empty: it has a line of its own


EXAMPLES = {
    "model": Example("cnn", wrong="cn"),
    "require_cuda": Example(True, "no CUDA device", fit=CUDA, wrong=1, written="a GPU"),
    "prefer_cuda": Example(True, "prefer_cuda", fit=CUDA, wrong="yes", written="a GPU if possible"),
    "min_vram_gib": Example(9, "vram_free", CUDA, a_capability(cuda=True, vram=10.0), {"require_cuda": True}, -1, "9"),
    "threads": Example(2, wrong=0, written="2 threads"),
    "allowed_hosts": Example(["other"], "allowed_hosts", wrong=["a b"], written="only on other"),
    "denied_hosts": Example(["pi"], "denied_hosts", wrong="pi", written="not on pi"),
    "dataset": Example(DATA, wrong="a b"),
}


def example(key):
    if key not in AMOUNTS:
        return EXAMPLES[key]
    has = AMOUNTS[key].capability
    unfit, fit = (a_capability(**{has: much}) for much in (2, 4))
    return Example(3, has.removesuffix("_gib"), unfit, fit, wrong=-1, written="3")


@pytest.fixture(params=CONSTRAINTS)
def key(request):
    return request.param


@pytest.fixture
def queue(tmp_path):
    jobs = JobQueue(tmp_path / "jobs.db", clock=FakeClock(), new_claim_id=Counting(), policy=Policy())
    yield jobs
    jobs.close()


def a_plan(**keys):
    lines = (f"{key} = {json.dumps(value)}" for key, value in {"model": "gbt", **keys}.items())
    return HEAD + '[[jobs]]\nname = "a"\nmode = "oracle"\n' + "\n".join(lines)


def test_the_manifest_takes_it_and_refuses_a_wrong_value(key):
    shown = example(key)
    assert load(a_plan(**{key: shown.value})).jobs[0].to_dict()[key] == shown.value
    assert any(each.key.startswith(f"jobs[0].{key}") for each in mistakes(a_plan(**{key: shown.wrong})))


def test_the_grant_heeds_it(key, queue):
    shown = example(key)
    queue.sync_from_manifest([a_job(**{**shown.others, key: shown.value})])
    if shown.reason:
        assert queue.claim_next(worker_hostname="pi", capability=shown.unfit) is None
    fitting = "other" if shown.fit == shown.unfit and shown.reason else "pi"
    assert queue.claim_next(worker_hostname=fitting, capability=shown.fit) is not None


@pytest.mark.parametrize("amount", AMOUNTS.values(), ids=AMOUNTS)
@pytest.mark.parametrize("odd", ["8", math.nan, 10**400], ids=["text", "nan", "huge"])
def test_a_claim_may_not_report_an_amount_that_is_no_finite_number(amount, odd):
    with pytest.raises(Refusal, match=rf"\$\.capability\.{amount.capability}: a finite number"):
        check_claim(a_claim(capability=a_capability(**{amount.capability: odd})))


def test_jobs_that_differ_in_it_are_of_different_classes(key, queue):
    shown = example(key)
    queue.sync_from_manifest([a_job("one"), a_job("two", **{key: shown.value})])
    assert len(queue.classes.pending()) == 2
    needs = Needs.of({key: shown.value})
    assert needs != Needs()
    assert Needs.of(json.loads(needs.canonical())) == needs


def test_a_worker_tells_what_a_host_has_of_it(key):
    if key in AMOUNTS:
        assert detect().to_dict()[AMOUNTS[key].capability] > 0


def test_it_is_said_where_a_job_is_shown(key):
    shown = example(key)
    sentence = constraints_in_words({key: shown.value})
    assert shown.written in sentence
    assert bool(shown.written) is bool(sentence)
    assert constraints_in_words({key: 1}) not in ("1 cores", "1 threads")


def test_pages_and_commands_show_the_sentence():
    spec = a_job(**{key: example(key).value for key in CONSTRAINTS})
    detail = whole(JobDetail) | {"spec": spec}
    assert dict(facts(detail))["needs"] == constraints_in_words(spec)
    screen = Console(width=500, file=io.StringIO())
    screen.print(render_job(detail))
    assert constraints_in_words(spec) in screen.file.getvalue()


def test_the_published_interface_has_it(key):
    assert key in openapi.document()["components"]["schemas"]["JobSpec"]["properties"]


def test_the_page_for_people_explains_it(key):
    page = (ROOT / "docs/manifest.md").read_text(encoding="utf-8")
    section = re.split(r"^### ", page.partition("\n### `[[jobs]]`")[2], maxsplit=1, flags=re.MULTILINE)[0]
    assert re.search(rf"^\|[^|]*`{key}`[^|]*\|", section, re.MULTILINE)

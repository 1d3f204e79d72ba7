"""Edits of the plan: what a reload takes over, what an attempt was granted, and what is said of both."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
from builders import a_completion, a_job, a_worker_claim
from fakes import Counting, FakeClock, FakeShelf
from msgspec import to_builtins
from rich.console import Console

from training.fleet.commands.bundle import allowed_names, granted
from training.fleet.commands.views import render_job
from training.fleet.job import Attempt, Job, spec_hash
from training.fleet.queue import JobQueue
from training.fleet.service import Plan, Service
from training.fleet.views import Views
from training.fleet.web.catalogue import provenance_of

A = "a" * 64
OWN = {"name": "own", "command": ["train"], "describe": []}


class Receiver:
    """A service over a queue in memory."""

    def __init__(self) -> None:
        self.clock, self.shelf = FakeClock(), FakeShelf()
        self.queue = JobQueue(":memory:", clock=self.clock, new_claim_id=Counting())
        self.service = Service(self.queue, self.shelf)
        self.views = Views(self.queue.db, self.service)

    def plan(self, *jobs: dict[str, Any], **plan: Any) -> Any:
        return self.service.reload(list(jobs), Plan(**plan))

    def job(self, name: str = "one") -> Job:
        job = self.queue.get(f"id-{name}")
        assert job is not None
        return job

    def attempt(self, name: str = "one") -> Attempt:
        return self.queue.attempts(f"id-{name}")[-1]

    def take(self, host: str = "pi", **fields: Any) -> str:
        reply = self.service.claim(a_worker_claim(host, **fields))
        assert reply.claim_id is not None, reply.reason
        return reply.claim_id

    def deliver(self, claim_id: str, name: str = "one", artifact: str = A, **words: Any) -> None:
        ticket = self.service.upload_ticket(f"id-{name}", claim_id, None)
        self.shelf.put(artifact, model=ticket.model, mode=ticket.mode)
        self.service.upload_done(ticket, artifact, 10)
        self.service.complete(f"id-{name}", a_completion(claim_id, artifact, **words))


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.queue.close()


# ── what was granted ────────────────────────────────────────────────────────────────────────


def test_the_record_of_an_attempt_is_what_it_was_granted_whatever_the_plan_says_since(
    receiver: Receiver,
) -> None:
    outputs = {**OWN, "outputs": ["model.bin", "model.json"]}
    receiver.plan(a_job("one", n_resamples=100, trainer=outputs))
    claim_id = receiver.take()
    edited = {**OWN, "outputs": ["model.json", "extra.bin"]}
    receiver.plan(
        a_job("one", n_resamples=5000, denied_hosts=["pi"], trainer=edited) | {"name": "other"}
    )
    said = provenance_of(receiver.job(), receiver.attempt(), None, now=receiver.clock.now())
    assert (said["spec"]["n_resamples"], said["spec"]["denied_hosts"]) == (100, [])
    assert (said["name"], said["granted"]) == ("one", True)
    receiver.deliver(claim_id, spec_hash=spec_hash(said["spec"]))
    detail = receiver.views.job("id-one")
    assert detail.spec["n_resamples"] == 5000, "what the plan says"
    assert detail.attempts[0].granted == said["spec"], "what was granted"


def test_get_takes_the_files_that_were_promised_when_the_job_was_granted() -> None:
    was = a_job("one", trainer={**OWN, "outputs": ["model.bin"]})
    now = a_job("one", trainer={**OWN, "outputs": ["other.bin"]})
    completed = {"attempt": 2, "end_reason": "completed", "artifact_id": A, "granted": was}
    lost = {"attempt": 1, "end_reason": "host_lost", "artifact_id": None, "granted": now}
    detail = {"job": {"artifact_id": A}, "spec": now, "attempts": [lost, completed]}
    assert allowed_names(granted(detail)) == {"model.bin"}
    for nobody_knows in (completed | {"granted": None}, lost):
        detail["attempts"] = [nobody_knows]
        assert allowed_names(granted(detail)) == {"other.bin"}
    del detail["attempts"]
    assert granted(detail) is now, "a receiver of before"


def test_a_repeated_claim_is_answered_with_what_was_granted(receiver: Receiver) -> None:
    receiver.plan(a_job("one", n_resamples=100))
    first = receiver.service.claim(a_worker_claim("pi", request_id="again"))
    receiver.plan(a_job("one", n_resamples=9000) | {"name": "renamed"})
    again = receiver.service.claim(a_worker_claim("pi", request_id="again"))
    assert again.repeated
    assert (again.name, again.spec) == (first.name, first.spec)


def test_attempts_of_before_are_marked_as_not_known(receiver: Receiver) -> None:
    receiver.plan(a_job("one", n_resamples=100))
    claim_id = receiver.take()
    receiver.queue._conn.execute("UPDATE attempts SET granted = NULL")
    said = provenance_of(receiver.job(), receiver.attempt(), None, now=receiver.clock.now())
    assert (said["granted"], said["spec"]) == (False, receiver.job().spec)
    receiver.deliver(claim_id)
    detail = receiver.views.job("id-one")
    assert detail.attempts[0].granted is None


def test_show_says_where_an_attempt_was_granted_something_else(receiver: Receiver) -> None:
    receiver.plan(a_job("one", n_resamples=100, max_run_s=5.0))
    receiver.take()
    receiver.plan(a_job("one", n_resamples=100, max_run_s=60.0, denied_hosts=["pi"]))
    said = shown(render_job(to_builtins(receiver.views.job("id-one"))))
    assert "denied_hosts = [], max_run_s = 5.0" in said
    receiver.queue._conn.execute("UPDATE attempts SET granted = NULL")
    assert "not known" in shown(render_job(to_builtins(receiver.views.job("id-one"))))


def shown(renderable: Any) -> str:
    console = Console(width=400, file=io.StringIO())
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]

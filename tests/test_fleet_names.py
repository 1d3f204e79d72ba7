"""Names hit what they name: jobs, hosts and data sets as operators call them."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import a_job
from fakes import FakeClock, FakeShelf
from receiver_running import Receiver

from training.fleet.client import Refused
from training.fleet.protocol import Refusal
from training.fleet.queue import JobQueue
from training.fleet.service import Plan, Service

# ── jobs ────────────────────────────────────────────────────────────────────────────────────

ODD_NAMES = ["a/b", "..", ".", "x?y#z", "50% off", "a%2Fb", "/", "ä ö", "a//b/", "~x", "-", "\\"]


def test_every_name_that_a_plan_allows_is_one_on_the_command_line(tmp_path: Path) -> None:
    jobs = [a_job(name, seed=number) for number, name in enumerate(ODD_NAMES)]
    with Receiver(tmp_path, jobs) as receiver:
        client = receiver.client()
        for name in ODD_NAMES:
            assert client.job(name)["job"]["name"] == name
            assert client.explain(name)["name"] == name
            assert client.log(name)["lines"] == []
            moved = client.cancel(name)
            assert (moved.name, moved.status) == (name, "cancelled")
            assert client.requeue(name).status == "pending"
            with pytest.raises(Refused, match="is pending: it has no artifact"):
                client.get_model(name, receiver.folder / "bundle")


def a_service(*jobs: tuple[str, str]) -> Service:
    """With jobs of these names and ids."""
    queue = JobQueue(":memory:", clock=FakeClock())
    service = Service(queue, FakeShelf())
    service.reload([a_job(name, job_id=job_id) for name, job_id in jobs], Plan())
    return service


STRANGER = "a6168b95" + "0" * 56


@pytest.mark.parametrize("verb", ["cancel", "requeue"])
def test_a_few_digits_of_an_id_change_nothing(verb: str) -> None:
    service = a_service(("job15", STRANGER), ("b", "b" * 64))
    for ref in ("a", "a6168"):
        assert service.resolve(ref) == STRANGER, "looking at it is another matter"
        with pytest.raises(Refusal, match="at least 6 digits of its id; only job15 "):
            getattr(service, verb)(ref)
    assert getattr(service, verb)("a6168b").name == "job15"
    assert getattr(service, verb)("b").job_id == "b" * 64, "a whole name, however short"


def test_an_answer_counts_the_others_that_were_nearly_hit() -> None:
    service = a_service(*((f"job{n}", f"{n:064x}") for n in range(1, 14)))
    assert service.cancel("job1").near == 4, "job10 to job13"
    assert service.cancel("job2").near == 0
    assert service.cancel(f"{3:064x}").near == 0


def test_an_answer_says_when_the_plan_does_not_name_the_job() -> None:
    service = a_service(("one", STRANGER))
    assert service.requeue("one").in_manifest
    service.reload([], Plan())
    assert not service.requeue("one").in_manifest

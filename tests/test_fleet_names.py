"""Names hit what they name: jobs, hosts and data sets as operators call them."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import a_job, a_worker_claim
from fakes import FakeClock, FakeShelf
from receiver_running import Receiver
from test_fleet_manifest import HEAD, TableDescriber, job, only

from training.fleet import policy as rules
from training.fleet.client import Refused
from training.fleet.datasets.pieces import Catalogue
from training.fleet.job import Host, Needs
from training.fleet.protocol import Refusal, Slug
from training.fleet.queue import JobQueue
from training.fleet.service import Plan, Service
from training.fleet.web.plan import load_plan

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


# ── hosts ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("plan", "host"), [("w1", "W1"), ("W1", "w1"), ("Desk-A", "desk-a")])
def test_a_plan_means_a_host_in_whatever_case_it_writes_it(plan: str, host: str) -> None:
    machine = Host(host, cores=4)
    assert rules.fits(Needs(allowed_hosts=frozenset({plan})), machine) is None
    assert "denied_hosts" in str(rules.fits(Needs(denied_hosts=frozenset({plan})), machine))
    other = Needs(allowed_hosts=frozenset({f"{plan}0"}), denied_hosts=frozenset({"x"}))
    assert "whitelist" in str(rules.fits(other, machine))
    declared = {plan: {"deny_jobs": ["gbt"], "max_cores": 0}}
    service = a_service(("one", STRANGER))
    service.reload([], Plan(declared))
    service.claim(a_worker_claim(host))
    (known,) = service.known_hosts()
    assert service.host_of(known).deny_jobs == {"gbt"}
    assert service.roster.never_asked() == {}


def test_a_second_host_whose_name_differs_by_case_only_is_refused() -> None:
    service = a_service(("one", STRANGER), ("two", "b" * 64))
    service.claim(a_worker_claim("w1"))
    with pytest.raises(Refusal, match="host w1 is known here") as refused:
        service.claim(a_worker_claim("W1"))
    assert refused.value.slug is Slug.HOST_ID_CONFLICT
    (known,) = service.known_hosts()
    assert (known.name, known.conflict) == ("w1", "another asks as W1")


def test_hosts_that_two_databases_of_before_know_go_on() -> None:
    service = a_service(("one", STRANGER), ("two", "b" * 64))
    for name in ("w1", "W1"):
        service.queue.claim_next(worker_hostname=name, capability={})
    again = Service(service.queue, FakeShelf())
    for name in ("w1", "W1"):
        again.claim(a_worker_claim(name))


def test_hosts_that_never_asked_are_noted_with_the_nearest_that_did() -> None:
    service = a_service(("one", STRANGER))
    service.claim(a_worker_claim("spectral-desktop"))
    named = {"spektral-desk": "denied_hosts of one", "Spectral-Desktop": "the same"}
    reply = service.reload([], Plan({"moon": {}}, named_hosts=named))
    assert reply.notes == [
        "host moon: named in [hosts.moon], it has never asked for work; start its worker, or mend the name",
        "host spektral-desk: named in denied_hosts of one, it has never asked for work; did you mean spectral-desktop?",
    ]


def test_release_takes_a_host_in_whatever_case_and_names_the_nearest() -> None:
    service = a_service(("one", STRANGER))
    service.claim(a_worker_claim("desk"))
    with pytest.raises(Refusal, match="host desk is not quarantined"):
        service.release("DESK", "ada")
    with pytest.raises(Refusal, match="did you mean desk"):
        service.release("dsk", "ada")


def test_the_hosts_that_a_plan_file_names_are_those_of_its_jobs_too(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    lists = 'allowed_hosts = ["pi"]\ndenied_hosts = ["W-1"]'
    path.write_text(HEAD + job(lists) + "[hosts.desk]\n")
    _, plan = load_plan(path, TableDescriber(), Catalogue())
    assert plan.named_hosts == {"pi": "allowed_hosts of job a", "W-1": "denied_hosts of job a"}


def test_two_tables_for_one_host_are_refused() -> None:
    mistake = only(HEAD + "[hosts.w1]\n[hosts.W1]\n" + job())
    assert (mistake.key, mistake.line) == ("hosts.W1", 4)
    assert "[hosts.w1] is the same host" in mistake.message

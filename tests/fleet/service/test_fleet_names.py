"""Names hit what they name: jobs, hosts and data sets as operators call them."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
from builders import a_job, a_worker_claim
from fakes import FakeClock, FakeShelf
from receiver_running import Receiver
from test_fleet_manifest import HEAD, TableDescriber, job, load, only

from training.fleet.cli.datasets import moved_lines
from training.fleet.client.client import Refused
from training.fleet.manifest.load import ManifestError
from training.fleet.queue.jobs import JobQueue
from training.fleet.scheduling import policy as rules
from training.fleet.scheduling.job import Host, Needs
from training.fleet.service.audit import AuditLog
from training.fleet.service.data_use import NameMoved, check_unused, name_moved
from training.fleet.service.guards import the_one_meant
from training.fleet.service.hosts import Plan
from training.fleet.service.plan import Reloader, load_plan
from training.fleet.service.references import KnownReferences
from training.fleet.service.service import Service
from training.fleet.wire.constants import ProblemType, Refusal
from training.fleet.wire.dataset_listing import Catalogue

# ── jobs ────────────────────────────────────────────────────────────────────────────────────

ODD_NAMES = ["a/b", "..", ".", "x?y#z", "50% off", "a%2Fb", "/", "ä ö", "a//b/", "~x", "-", "\\"]


def test_every_name_that_a_plan_allows_is_one_on_the_command_line(tmp_path):
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


def a_service(*jobs):
    """With jobs of these names and ids."""
    service = Service(JobQueue(":memory:", clock=FakeClock()), FakeShelf())
    service.reload([a_job(name, job_id=job_id) for name, job_id in jobs], Plan())
    return service


STRANGER = "a6168b95" + "0" * 56


@pytest.mark.parametrize("verb", ["cancel", "requeue"])
def test_a_few_digits_of_an_id_change_nothing(verb):
    service = a_service(("job15", STRANGER), ("b", "b" * 64))
    for ref in ("a", "a6168"):
        assert service.resolve(ref) == STRANGER, "looking at it is another matter"
        with pytest.raises(Refusal, match="at least 6 digits of its id; only job15 "):
            getattr(service, verb)(ref)
    assert getattr(service, verb)("a6168b").name == "job15"
    assert getattr(service, verb)("b").job_id == "b" * 64, "a whole name, however short"


def test_a_whole_id_goes_before_a_whole_name_and_that_before_digits():
    """A database of before may hold such names, which no plan may bring any more."""
    service = a_service(("one", STRANGER), (STRANGER, "b" * 64), (STRANGER[:12], "c" * 64))
    assert service.cancel(STRANGER).name == "one"
    answer = service.cancel(STRANGER[:12])
    assert (answer.job_id, answer.near) == ("c" * 64, 2)


def test_a_short_name_is_hit_among_many_ids_that_begin_so():
    many = [(f"job-{n}", "a" + f"{n:063x}") for n in range(30)]
    assert a_service(*many, ("a", "b" * 64)).cancel("a").job_id == "b" * 64


def test_a_job_is_not_called_as_another_ones_id_begins():
    plan = HEAD + job(name="one") + job("seed = 1", name="%s")
    one = load(plan % "two").jobs[0].job_id
    for name in (one, one[:6], one[:12]):
        mistake = only(plan % name)
        assert 'the id of job "one"' in mistake.message
        assert mistake.key == "jobs[1].name"
    assert "is an id" in only(plan % ("f" * 64)).message
    assert len(load(plan % "20261122").jobs) == len(load(plan % one[:5]).jobs) == 2


def test_an_answer_counts_the_others_that_were_nearly_hit():
    service = a_service(*((f"job{n}", f"{n:064x}") for n in range(1, 14)))
    assert service.cancel("job1").near == 4, "job10 to job13"
    assert service.cancel("job2").near == 0
    assert service.cancel(f"{3:064x}").near == 0


def test_an_answer_says_when_the_plan_does_not_name_the_job():
    service = a_service(("one", STRANGER))
    assert service.requeue("one").in_manifest
    service.reload([], Plan())
    assert not service.requeue("one").in_manifest


# ── hosts ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("plan", "host"), [("w1", "W1"), ("W1", "w1"), ("Desk-A", "desk-a")])
def test_a_plan_means_a_host_in_whatever_case_it_writes_it(plan, host):
    machine = Host(host, cores=4)
    assert rules.fits(Needs(allowed_hosts=(plan,)), machine) is None
    assert "denied_hosts" in str(rules.fits(Needs(denied_hosts=(plan,)), machine))
    other = Needs(allowed_hosts=(f"{plan}0",), denied_hosts=("x",))
    assert "whitelist" in str(rules.fits(other, machine))
    declared = {plan: {"deny_jobs": ["gbt"], "max_cores": 0}}
    service = a_service(("one", STRANGER))
    service.reload([], Plan(declared))
    service.claim(a_worker_claim(host))
    (known,) = service.known_hosts()
    assert service.host_of(known).deny_jobs == {"gbt"}
    assert service.host_registry.never_asked() == {}


def test_a_second_host_whose_name_differs_by_case_only_is_refused():
    service = a_service(("one", STRANGER), ("two", "b" * 64))
    service.claim(a_worker_claim("w1"))
    with pytest.raises(Refusal, match="host w1 is known here") as refused:
        service.claim(a_worker_claim("W1"))
    assert refused.value.problem_type is ProblemType.HOST_ID_CONFLICT
    (known,) = service.known_hosts()
    assert known.name == "w1"
    assert "a worker asks as W1: " in (service.refused(known) or "")


def test_hosts_that_two_databases_of_before_know_go_on():
    service = a_service(("one", STRANGER), ("two", "b" * 64))
    for name in ("w1", "W1"):
        service.queue.claim_next(worker_hostname=name, capability={})
    again = Service(service.queue, FakeShelf())
    for name in ("w1", "W1"):
        again.claim(a_worker_claim(name))


def test_hosts_that_never_asked_are_noted_with_the_nearest_that_did():
    service = a_service(("one", STRANGER))
    service.claim(a_worker_claim("spectral-desktop"))
    named = {"spektral-desk": "denied_hosts of one", "Spectral-Desktop": "the same"}
    reply = service.reload([], Plan({"moon": {}}, named_hosts=named))
    assert reply.notes == [
        "host moon: named in [hosts.moon], but never asked for work; start its worker, or correct the name",
        "host spektral-desk: named in denied_hosts of one, but never asked for work; did you mean spectral-desktop?",
    ]


def test_release_takes_a_host_in_whatever_case_and_names_the_nearest():
    service = a_service(("one", STRANGER))
    service.claim(a_worker_claim("desk"))
    with pytest.raises(Refusal, match="host desk is not quarantined"):
        service.release("DESK", "ada")
    with pytest.raises(Refusal, match="did you mean desk"):
        service.release("dsk", "ada")


def test_the_hosts_that_a_plan_file_names_are_those_of_its_jobs_too(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(HEAD + job('allowed_hosts = ["pi"]\ndenied_hosts = ["W-1"]') + "[hosts.desk]\n")
    _, plan = load_plan(path, TableDescriber(), KnownReferences())
    assert plan.named_hosts == {"pi": "allowed_hosts of job a", "W-1": "denied_hosts of job a"}


def test_jobs_that_differ_in_how_a_number_is_written_are_noted(tmp_path):
    own = '[trainers.own]\ncommand = ["x"]\n'
    values = ("1", "1.0", '"1"', "2", "true", '"one"')
    jobs = [
        job(f"hyper.a = {n}\nhyper.pause = {value}", model="own", name=f"j{place}")
        for place, (n, value) in enumerate([(0, value) for value in values] + [(9, "1")])
    ]
    path = tmp_path / "plan.toml"
    path.write_text(HEAD + "".join(jobs) + own)
    _, plan = load_plan(path, TableDescriber(), KnownReferences())
    said = [note.split(", and both")[0] for note in plan.notes]
    assert said == [
        'jobs "j0" and "j1" differ only in how hyper.pause is written (1 and 1.0)',
        'jobs "j0" and "j2" differ only in how hyper.pause is written (1 and "1")',
    ]
    assert a_service().reload([], plan).notes == list(plan.notes)


def test_two_tables_for_one_host_are_refused():
    mistake = only(HEAD + "[hosts.w1]\n[hosts.W1]\n" + job())
    assert (mistake.key, mistake.line) == ("hosts.W1", 4)
    assert "[hosts.w1] is the same host" in mistake.message


# ── data sets ───────────────────────────────────────────────────────────────────────────────

OLD, NEW = "d" * 64, "e" * 64


class FakeDatasets:
    """A shelf with two data sets, of which only their names matter."""

    def __init__(self, names):
        self.ids, self.names = {OLD, NEW}, names

    def catalogue(self):
        return Catalogue(frozenset(self.ids), dict(self.names))

    def sets(self):
        return []  # nobody said where they were recorded


class AtOnce:
    """A writer without a thread."""

    def submit(self, call):
        future = Future()
        future.set_result(call())
        return future


def a_plan_of_data(names):
    return Plan(datasets=dict.fromkeys(names.values(), frozenset()), dataset_names=names)


def test_a_push_under_a_used_name_says_what_follows():
    service = a_service()
    jobs = [a_job(name, dataset=data) for name, data in (("a", OLD), ("b", OLD), ("c", NEW))]
    service.reload(jobs, a_plan_of_data({"processed": OLD}))
    service.cancel("b")
    assert name_moved(service, "processed", NEW) == NameMoved(jobs_anew=2, jobs_waiting=1)
    assert name_moved(service, "processed", OLD) == NameMoved(), "it stays"
    assert name_moved(service, "other", NEW) == NameMoved(), "the plan does not name it"
    assert name_moved(service, None, NEW) == NameMoved()
    service.reload(jobs, a_plan_of_data({}))
    assert name_moved(service, "processed", NEW) == NameMoved(), "named by ids alone"


def test_the_data_of_an_unfinished_job_stays_though_the_plan_does_not_name_it():
    service = a_service()
    service.reload([a_job("a", dataset=OLD), a_job("b", dataset=OLD)], a_plan_of_data({"x": OLD}))
    with pytest.raises(Refusal, match="jobs of the plan name"):
        check_unused(service, OLD)
    service.reload([], Plan())
    left = r"2 jobs that the plan no longer names would still train on this data set \(a, b\)"
    with pytest.raises(Refusal, match=left):
        check_unused(service, OLD)
    check_unused(service, NEW)
    service.cancel("a")
    with pytest.raises(Refusal, match=r"1 job that the plan no longer names .*\(b\)"):
        check_unused(service, OLD)
    service.cancel("b")
    check_unused(service, OLD)


def test_a_push_is_told_what_its_name_was_and_what_that_means():
    view = {"was": OLD, "jobs_anew": 14, "jobs_waiting": 1}
    assert moved_lines(view, "processed") == [
        "processed was dddddddddddd, which stays under its id",
        "the plan names processed: the next reload creates 14 jobs again, trained on this one",
        (
            "1 job not finished will train on dddddddddddd; after the reload "
            "`cis490-jobs cancel --removed` takes such jobs out"
        ),
    ]
    assert moved_lines({"was": None, "jobs_anew": 0, "jobs_waiting": 0}, "processed") == []
    lost = moved_lines({"was": None, "jobs_anew": 3, "jobs_waiting": 1}, "processed")
    assert lost[0] == "processed was another one when the plan was read, and is not any more"
    assert "creates 3 jobs again" in lost[1], "the shelf lost what it was"
    assert "1 job not finished will train on another one" in lost[2]


def test_a_plan_notes_the_names_of_data_sets_that_it_was_written_with(tmp_path):
    path = tmp_path / "plan.toml"
    text = HEAD + job('dataset = "processed"') + job(f'dataset = "{NEW[:8]}"', name="b")
    path.write_text(text)
    known = KnownReferences(frozenset((OLD, NEW)), {"processed": OLD, "unused": NEW})
    _, plan = load_plan(path, TableDescriber(), known)
    assert plan.dataset_names == {"processed": OLD, NEW[:8]: NEW}
    path.write_text(text.replace("processed", "procesed"))
    with pytest.raises(ManifestError, match="known: processed, unused"):
        load_plan(path, TableDescriber(), known)


def test_a_start_names_what_its_references_have_come_to_mean():
    here = Catalogue(frozenset((OLD, NEW)), {"moved": NEW, "same": OLD})
    found = KnownReferences(here.ids, here.names, remembered={"moved": OLD, "same": OLD}, starting=True)
    assert [found.resolve(name) for name in ("moved", "same")] == [OLD, OLD]
    assert found.moved() == {"moved": NEW}


def test_a_start_alone_makes_no_job_anew(tmp_path):
    path, dataset_store = tmp_path / "plan.toml", FakeDatasets({"processed": OLD})
    path.write_text(HEAD + job('dataset = "processed"'))
    service = a_service()
    audit = AuditLog(service.queue.db, service.queue.clock)
    read = Reloader(path, service, AtOnce(), TableDescriber(), audit, dataset_store)
    assert read("ada").inserted == 1
    dataset_store.names["processed"] = NEW
    started = read("the receiver at its start", starting=True)
    assert (started.inserted, started.removed) == (0, 0)
    assert service.plan.dataset_names == {"processed": OLD}
    assert (read("ada").inserted, service.plan.dataset_names["processed"]) == (1, NEW)
    dataset_store.names["processed"] = OLD
    dataset_store.ids.remove(NEW)
    assert read("at its start", starting=True).inserted == 0
    assert service.plan.dataset_names == {"processed": NEW}, "its jobs wait for it to be pushed"


def test_of_several_that_are_found_the_one_that_is_called_so_is_meant():
    assert the_one_meant("ab", [("abc", "one"), ("def", "ab")]) == "def"

"""The news that become notices: each once, from rows, wherever the receiver stopped."""

from __future__ import annotations

import dataclasses

from builders import a_failure, a_job
from service_running import POLICY, Receiver

from training.fleet.manifest.channels import NoticeKind
from training.fleet.scheduling.quarantine import Cause
from training.fleet.service.notify import notices
from training.fleet.service.notify.notices import CERTIFICATE_S, NoticeOutbox, Notices

DAY_S = 86400.0


class World(Receiver):
    def __init__(self, *names, **policy):
        jobs = [a_job(name, seed=number) for number, name in enumerate(names)]
        super().__init__(*jobs, policy=dataclasses.replace(POLICY, **policy))
        self.room = True
        self.outbox = NoticeOutbox(self.queue.db, self.clock)
        self.notices = Notices(self.queue.db, self.clock, self.outbox, lambda: self.room)

    def told(self):
        """Look for news, and return all that was ever told: kind and sentence."""
        with self.queue.db.transaction():
            self.notices.look()
        rows = self.queue.db.all("notices", after=0, most=1000)
        return [(row["kind"], row["sentence"]) for row in rows]

    def fail_next(self, error="the loss is NaN"):
        """Fail the next job once."""
        granted = self.ask()
        self.service.fail(str(granted.job_id), a_failure(granted.claim_id, error=error, exit_code=1))


def test_a_job_that_failed_for_good_and_the_end_of_the_plan_are_told_once():
    world = World("gbt-ä", "cnn", max_attempts=1)
    assert world.told() == []
    world.fail_next()
    (failure,) = world.told()
    assert failure == ("failure", "job gbt-ä failed on pi after 1 attempt: the loss is NaN")
    world.fail_next("no data\nat all")
    assert world.told()[1:] == [
        ("failure", "job cnn failed on pi after 1 attempt: no data | at all"),
        ("plan_done", "the plan is done: 2 jobs, 2 failed"),
    ]
    assert len(world.told()) == 3, "each once"
    world.service.requeue("cnn")
    assert len(world.told()) == 3
    world.fail_next()
    assert [kind for kind, _ in world.told()[3:]] == ["failure", "plan_done"], "it failed again"


def test_an_attempt_that_is_tried_again_is_no_news_and_nothing_is_written():
    world = World("gbt", max_attempts=3)
    world.fail_next()
    before = world.queue.db.connection.total_changes
    assert world.told() == []
    assert world.queue.db.connection.total_changes == before


def test_more_ends_than_one_look_reads_are_all_told(monkeypatch):
    monkeypatch.setattr(notices, "PAGE", 2)
    world = World(*(f"job-{n}" for n in range(5)), max_attempts=1, odd_deaths=0)
    for _ in range(5):
        world.fail_next()
    for _ in range(3):
        told = world.told()
    kinds = [kind for kind, _ in told]
    assert kinds.count("failure") == 5
    assert kinds[-1] == "plan_done"


def test_a_host_in_quarantine_is_told_with_what_to_do():
    world = World("gbt")
    world.ask("pi")
    world.queue.quarantines.put("pi", Cause.DEATHS, "three jobs died at once")
    expected = "host pi gets no more jobs: three jobs died at once; `cis490-jobs release pi` when it is fixed"
    assert world.told() == [("quarantine", expected)]
    assert world.told() == [("quarantine", expected)]


def test_a_full_disk_is_told_once_until_it_has_room_again():
    world = World("gbt")
    world.room = False
    assert [kind for kind, _ in world.told()] == ["disk"]
    assert [kind for kind, _ in world.told()] == ["disk"]
    world.room = True
    assert [kind for kind, _ in world.told()] == ["disk"]
    world.room = False
    assert [kind for kind, _ in world.told()] == ["disk", "disk"]


def test_a_certificate_that_nobody_renews_is_told_once_and_a_renewed_or_revoked_one_never():
    world = World("gbt")
    now = world.clock.now()

    def issue(role, name, days):
        world.queue.db.run("add_certificate", fingerprint=f"{role}{name}{days}", role=role, name=name,
                           issued_at=now, expires_at=now + days * DAY_S)  # fmt: skip

    issue("host", "pi", 6.5)
    issue("operator", "ada", 30)
    issue("host", "renewed", 1)
    issue("host", "renewed", 60)
    issue("host", "out", 1)
    world.queue.db.run("revoke_certificates", role="host", name="out", now=now)
    (told,) = world.told()
    assert told == ("certificate", "the certificate of host pi expires in 6 d 12 h: a running worker renews its own")
    assert len(world.told()) == 1
    world.clock.advance(30 * DAY_S - CERTIFICATE_S + 1)
    assert world.told()[1][1].startswith("the certificate of operator ada expires in 7 d 0 h")
    issue("host", "pi", 60)
    world.told()
    assert world.outbox.lasting(NoticeKind.CERTIFICATE) == {"operator ada"}

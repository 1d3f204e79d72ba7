"""Incidents of watched hosts: kept once each whatever comes twice, late or in another order; a flood is slowed down."""

from __future__ import annotations

import msgspec
import pytest
from fakes import FakeClock
from hypothesis import given, settings
from hypothesis import strategies as st

from training.fleet.queue.jobs import JobQueue
from training.fleet.service import incident_table as rules
from training.fleet.service.audit import AuditLog
from training.fleet.service.incident_table import IncidentTable, IncidentViews
from training.fleet.wire.constants import ProblemType, Refusal
from training.fleet.wire.incident_messages import SPANS_MAX, WatchedIncident, WatchReply, WatchRequest

WHY = [{"channel": "forks", "share": 0.6}, {"channel": "cpu_user", "share": 0.25}]


def an_incident(number=1, *, event="raised", alarms=2, **parts):
    """The incident ``number`` of a host as it stands after so many alarms, 2 s apart."""
    told = {
        "id": f"{number:016x}", "event": event, "rule": "2 of 3 windows", "began_at": 100.0, "raised_at": 104.0,
        "last_alarm_at": 100.0 + 2 * alarms, "alarms": alarms, "peak": 0.1 * alarms, "threshold": 0.5, "why": WHY,
    }  # fmt: skip
    return msgspec.convert(told | parts, WatchedIncident)


def a_change(number=1, event="changed", **parts):
    """The change ``number`` of a host, of two channels and one more."""
    forks, load = ("forks", "level", 0.21, 3.4), ("load_1m", "spread", 0.4, 1.1)
    channels = [dict(zip(("channel", "measure", "before", "after"), each, strict=True)) for each in (forks, load)]
    told = {"id": f"{number:016x}", "event": event, "began_at": 100.0, "raised_at": 3700.0, "channels": channels,
            "more_channels": 1}  # fmt: skip
    return msgspec.convert(told | parts, WatchedIncident)


class World:
    def __init__(self):
        self.clock = FakeClock()
        self.queue = JobQueue(":memory:", clock=self.clock)
        self.audit = AuditLog(self.queue.db, self.clock)
        self.incidents = IncidentTable(self.queue.db, self.clock, self.audit)
        self.views = IncidentViews(self.queue.db, self.clock)

    def tell(self, incident=None, host="office", checkpoint="ab"):
        told = WatchRequest(host_id=host, model="gbt realistic", checkpoint=checkpoint, incident=incident)
        with self.queue.db.transaction():
            return self.incidents.report(told)

    def changes(self, **asked):
        return [(each.number, each.ended) for each in self.shown(**asked).incidents if each.kind == "change"]

    def judge(self, verdict, number=1):
        with self.queue.db.transaction():
            return self.incidents.judge(number, verdict, "operator ada")

    def notices(self):
        return [row["sentence"] for row in self.queue.db.all("notices", after=0, most=1000)]

    def shown(self, **asked):
        return self.views.incidents(**asked)


@pytest.fixture
def world():
    return World()


def test_an_incident_is_kept_and_told_once_and_its_end_is_noted(world):
    assert world.tell() == WatchReply()
    assert world.tell(an_incident()) == WatchReply(number=1)
    world.clock.advance(90)
    assert world.tell(an_incident()) == WatchReply(number=1, known=True), "an answer was lost"
    assert world.views.open() == {"office": (1, 104.0)}
    assert world.tell(an_incident(event="over", alarms=9)).known
    (one,) = world.shown().incidents
    assert (one.ended, one.alarms, one.last_alarm_at, one.heard_at - one.told_at) == ("over", 9, 118.0, 90)
    assert world.views.open() == {}
    (told,) = world.notices()
    said = "incident 1 on office: 2 of 3 windows (gbt realistic), carried by forks 60 %, cpu_user 25 %"
    assert told == f"{said}; `cis490-jobs incidents --host office`"
    assert not world.tell(an_incident(), host="attic").known, "the id is the host's"


@given(st.permutations([("raised", 2), ("raised", 2), ("raised", 4), ("over", 9), ("over", 9)]))
def test_reports_in_any_order_and_number_end_alike(reports):
    """Knowledge of an incident only grows: a report that comes late opens nothing again."""
    world = World()
    for event, alarms in reports:
        why = [{"channel": "late", "share": 1.0}] if alarms == 9 else WHY
        world.tell(an_incident(event=event, alarms=alarms, why=why, seconds=[(100.0, 100.0 + alarms)]))
    (one,) = world.shown().incidents
    assert (one.ended, one.alarms, one.peak, one.last_alarm_at) == ("over", 9, pytest.approx(0.9), 118.0)
    assert [each.channel for each in one.why] == ["late"]
    assert one.seconds == [(100.0, 102.0), (100.0, 104.0), (100.0, 109.0)]
    assert len(world.notices()) == 1
    world.queue.close()


def test_a_host_that_floods_is_slowed_down_and_others_are_not(world, monkeypatch):
    monkeypatch.setattr(rules, "NEW_AN_HOUR_MAX", 3)
    for one in (an_incident(0), a_change(), an_incident(2)):
        world.tell(one)
        world.clock.advance(60)
    with pytest.raises(Refusal) as refused:
        world.tell(an_incident(3))
    assert (refused.value.problem_type, refused.value.extra["retry_after_s"]) == (ProblemType.SLOW_DOWN, 3600 - 180)
    assert world.tell(an_incident(2, event="over", alarms=5)).known, "what is known is no flood"
    assert world.tell(an_incident(3), host="attic").number == 4
    world.clock.advance(3600 - 180)
    assert world.tell(an_incident(3)).number == 5


def test_the_newest_incidents_of_a_host_stay_and_old_ones_go(world, monkeypatch):
    monkeypatch.setattr(rules, "KEPT_OF_HOST", 2)
    monkeypatch.setattr(rules, "WATCHES_OF_HOST", 2)
    world.tell(an_incident(), host="attic")
    for number, checkpoint in enumerate(("aa", "bb", "cc")):
        world.clock.advance(10)
        world.tell(an_incident(number), checkpoint=checkpoint)
    assert [each.number for each in world.shown(host="office").incidents] == [4, 3]
    assert [each.checkpoint for each in world.shown(host="office").watches] == ["cc", "bb"]
    assert [each.number for each in world.shown(host="attic").incidents] == [1]
    world.clock.advance(rules.KEPT_S + 1)
    with world.queue.db.transaction():
        world.incidents.forget_old()
    assert (world.shown().incidents, world.shown().watches) == ([], [])


@given(st.lists(st.integers(0, 400), max_size=6))
@settings(max_examples=15)
def test_what_was_heard_of_lately_stays_and_all_else_is_forgotten(days):
    """Incidents for a year, watches for 90 days."""
    world, last = World(), max(days, default=0)
    for number, ago in enumerate(sorted(days, reverse=True)):
        world.clock.advance((last - ago) * 86_400)
        last = ago
        world.tell(an_incident(number), host=f"h{number}")
    world.clock.advance(last * 86_400)
    with world.queue.db.transaction():
        world.incidents.forget_old()
    shown = world.shown()
    assert len(shown.incidents) == sum(ago <= 365 for ago in days)
    assert len(shown.watches) == sum(ago <= 90 for ago in days)
    world.queue.close()


def test_an_incident_keeps_as_many_spans_as_its_answer_may_have(world):
    for begin in (100, 200):
        world.tell(an_incident(seconds=[(begin + 2.0 * n, begin + 2.0 * n + 1) for n in range(40)]))
    spans = world.shown().incidents[0].seconds
    assert (len(spans), spans[0], spans[-1]) == (SPANS_MAX, (100.0, 101.0), (246.0, 247.0))


def test_a_page_has_its_most_whatever_is_asked_for(world, monkeypatch):
    monkeypatch.setattr(rules, "PAGE_MAX", 2)
    for number in range(3):
        world.tell(an_incident(number, raised_at=104.0 + number))
    for asked, got in ((1, 1), (2, 2), (999, 2), (0, 1)):
        assert len(world.shown(limit=asked).incidents) == got
    assert world.views.open() == {"office": (3, 104.0)}, "since the first of them"


def test_an_end_that_gives_no_reasons_takes_none_away(world):
    world.tell(an_incident())
    world.tell(an_incident(event="over", alarms=9, why=[]))
    assert [each.channel for each in world.shown().incidents[0].why] == ["forks", "cpu_user"]


def test_there_are_only_so_many_watches(world, monkeypatch):
    monkeypatch.setattr(rules, "WATCHES_MAX", 1)
    world.tell()
    world.tell()
    with pytest.raises(Refusal, match="1 watches are known here"):
        world.tell(host="attic")


def test_a_watch_that_is_not_heard_is_silent_and_begins_anew(world):
    begun = world.clock.now()
    for _ in range(3):
        world.tell()
        world.clock.advance(900)
    (watch,) = world.shown().watches
    assert (watch.since, watch.heard_at, watch.silent) == (begun, begun + 1800, False)
    world.clock.advance(961)
    assert world.shown().watches[0].silent
    world.tell()
    assert world.shown().watches[0].since == world.clock.now()
    often = WatchRequest(host_id="office", model="gbt realistic", checkpoint="ab", every_s=10.0)
    with world.queue.db.transaction():
        world.incidents.report(often)
    world.clock.advance(81)
    assert world.shown().watches[0].silent, "what it says last counts"


@pytest.mark.parametrize(("told", "verdict"), [(an_incident, "false"), (a_change, "closed")])
def test_a_verdict_is_kept_audited_and_taken_back(world, told, verdict):
    """A change is closed whose watch lost its state: the next one never reports the end of what the one before did."""
    world.tell(told())
    judged, at = world.judge(verdict), world.clock.now()
    world.clock.advance(60)
    assert world.judge(verdict) == judged, "once"
    assert (judged.verdict, judged.judged_by, judged.judged_at) == (verdict, "operator ada", at)
    assert (world.shown().open, world.shown().changed) == (0, 0)
    world.tell(told())
    assert world.shown().incidents[0].verdict == verdict
    assert world.judge("open").judged_by is None
    assert (world.shown().open + world.shown().changed) == 1
    acts = world.queue.db.all("audit_page", after=0, limit=10)
    assert [(row["act"], row["subject"], row["before"], row["after"]) for row in acts] == [
        ("judge", "incident 1 of office", '{"verdict": null}', f'{{"verdict": "{verdict}"}}'),
        ("judge", "incident 1 of office", f'{{"verdict": "{verdict}"}}', '{"verdict": null}'),
    ]
    with pytest.raises(Refusal, match="no incident has the number 7"):
        world.judge(verdict, 7)
    with pytest.raises(Refusal, match=f"judge it .*{verdict}, or open"):
        world.judge("closed" if verdict == "false" else "false")


def test_pages_of_incidents_go_on_where_the_last_ended():
    world, found, before = World(), [], None
    for number in range(7):
        world.tell(an_incident(number), host=("office", "attic")[number % 2])
    for _ in range(3):
        reply = world.shown(before=before or 0, limit=3)
        found += [each.number for each in reply.incidents]
        before = reply.next_before
    assert before is None
    assert found == [7, 6, 5, 4, 3, 2, 1]
    assert world.shown(host="attic").open == 3


def test_a_change_is_kept_and_told_once_and_stands_until_it_is_confirmed(world):
    assert world.tell(a_change()) == WatchReply(number=1)
    assert world.tell(a_change()) == WatchReply(number=1, known=True), "an answer was lost, or the watch began again"
    words = "has changed since 1970-01-01 00:01:40 UTC: forks 0.21 → 3.4; spread of load_1m 0.4 → 1.1 and 1 more"
    (told,) = world.notices()
    assert told.startswith(f"office {words} (gbt realistic). An attack that stays looks like this")
    assert [row["kind"] for row in world.queue.db.all("notices", after=0, most=9)] == ["change"]
    assert list(world.views.changed()) == ["office"]
    assert (world.shown().changed, world.shown(host="attic").changed, world.shown(host="office").changed) == (1, 0, 1)
    assert (world.changes(), world.changes(host="attic")) == ([(1, None)], [])
    world.tell(an_incident())
    assert world.shown().incidents[0].ended is None, "a change lowers no incident, and none lowers it"
    world.clock.advance(60)
    assert world.tell(a_change(event="confirmed")).known
    one = world.shown().incidents[-1]
    assert (one.ended, one.ended_at, one.heard_at - one.told_at) == ("confirmed", world.clock.now(), 60)
    assert world.views.changed() == {}
    world.clock.advance(60)
    world.tell(a_change())
    world.tell(a_change(event="referenced"))
    assert world.shown().incidents[-1].ended_at == one.ended_at, "what is over stays as it is"
    assert len(world.notices()) == 2


@given(st.lists(st.sampled_from(["changed", "confirmed", "referenced"]), min_size=1, max_size=5))
def test_a_change_ends_as_it_was_ended_first_whatever_is_repeated(events):
    world = World()
    for event in events:
        world.tell(a_change(event=event))
    ends = [{"confirmed": "confirmed", "referenced": "reference"}[each] for each in events if each != "changed"]
    assert world.changes() == [(1, ends[0] if ends else None)]
    assert len(world.notices()) == (events[0] == "changed"), "an end is no news"
    world.queue.close()


def test_another_change_takes_the_place_of_the_last_one_of_its_watch(world):
    world.tell(a_change(1))
    world.tell(a_change(2), checkpoint="cd")
    world.tell(a_change(3), host="attic")
    world.tell(a_change(4))
    assert world.changes() == [(4, None), (3, None), (2, None), (1, "later")]
    world.tell(a_change(1, "confirmed"))
    assert world.changes(host="office") == [(4, None), (2, None), (1, "confirmed")]
    assert {host: one.number for host, one in world.views.changed().items()} == {"office": 4, "attic": 3}


def test_a_change_of_a_watch_that_is_gone_stands_no_longer(world):
    """Of another model's watch that never comes back, for example: nobody can confirm it any more."""
    world.tell(a_change())
    world.clock.advance(rules.STANDS_S)
    assert world.shown().changed == 1
    world.clock.advance(1)
    assert (world.shown().changed, world.changes()) == (0, [(1, None)])
    world.tell()
    assert world.shown().changed == 1, "it was only away"

"""The outbox of notifications: each notice arrives once and in order, whatever the channel and the receiver do."""

from __future__ import annotations

import pytest
from fakes import FakeClock
from hypothesis import given
from hypothesis import strategies as st

from training.fleet.database.sqlite import SqliteDatabase
from training.fleet.database.writer import id_of
from training.fleet.manifest.channels import ChannelKind, NoticeKind, NotifyChannel, Secret
from training.fleet.service.notify.notices import NoticeOutbox
from training.fleet.service.notify.rules import CHARS_MAX, FOLD_S, NOTICES_MAX, RETRY_MOST_S, retry_after_s

NTFY = NotifyChannel(name="phone", kind=ChannelKind.NTFY, url=Secret("/etc/topic"))
DAY_S = 86400.0


class World:
    """One database, one clock, one channel, and what arrived on it."""

    def __init__(self, channel=NTFY):
        self.clock = FakeClock()
        self.db = SqliteDatabase(":memory:")
        self.outbox = NoticeOutbox(self.db, self.clock)
        self.channel = channel
        self.outbox.place([channel])
        self.arrived = []
        self.made = []

    def tell(self, kind=NoticeKind.FAILURE, words=""):
        number = len(self.made) + 1
        self.made.append(f"{number}: {words}")
        self.outbox.add(kind, f"job-{number}", self.made[-1], event=number)

    def work_off(self, *, up=True, note=True):
        """Send what is due; ``note`` False is a crash between sending and noting."""
        while (message := self.outbox.next(self.channel)) is not None:
            if up:
                self.arrived.append(message)
            if not note:
                return
            if up:
                self.outbox.sent(self.channel)
            else:
                self.outbox.failed(self.channel, "nobody answers")

    def distinct(self):
        """The messages that arrived, without repetitions; these must be equal to what they repeat."""
        found = {}
        for each in self.arrived:
            assert found.setdefault(each.key, each) == each, "a repetition says something else"
        return list(found.values())


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("tell"), st.integers(0, 400)),
        st.tuples(st.just("pass"), st.sampled_from([1.0, FOLD_S, 3600.0])),
        st.tuples(st.just("up"), st.just(0)),
        st.tuples(st.just("down"), st.just(0)),
        st.tuples(st.just("crash"), st.just(0)),
    ),
    max_size=40,
)


@given(STEPS)
def test_each_notice_arrives_once_in_order_and_a_repetition_has_the_same_key(steps):
    world = World()
    for step, value in steps:
        match step:
            case "tell":
                world.tell(words="x" * value)
            case "pass":
                world.clock.advance(value)
            case "crash":
                world.work_off(note=False)
            case _:
                world.work_off(up=step == "up")
    while world.outbox.waiting([world.channel])[0].waiting:
        world.clock.advance(RETRY_MOST_S)
        world.work_off()
    said = [notice.sentence for message in world.distinct() for notice in message.notices]
    assert said == [sentence.strip() for sentence in world.made]
    assert all(len(message.text) <= CHARS_MAX[ChannelKind.NTFY] * 1.1 for message in world.arrived)
    assert all(message.key.endswith(f"-event-{message.notices[-1].event}") for message in world.arrived)


def test_a_channel_that_was_down_for_a_day_gets_everything_folded():
    world = World(NotifyChannel(name="ops", kind=ChannelKind.WEBHOOK, url=Secret(env="HOOK")))
    for _ in range(100):
        world.tell()
        world.clock.advance(DAY_S / 100)
        world.work_off(up=False)
    (state,) = world.outbox.waiting([world.channel])
    assert (state.waiting, state.error, state.sent_at) == (100, "nobody answers", None)
    assert 40 < state.tries < 100, "at most once in 15 minutes at the end"
    world.clock.advance(RETRY_MOST_S)
    world.work_off()
    assert [len(each.notices) for each in world.arrived] == [1], "the message under way keeps its content"
    world.clock.advance(FOLD_S)
    world.work_off()
    assert [len(each.notices) for each in world.arrived] == [1, 99]
    assert world.arrived[1].title == "CIS490: 99 failed jobs"
    (state,) = world.outbox.waiting([world.channel])
    assert (state.waiting, state.tries, state.error) == (0, 0, None)


def test_the_first_goes_at_once_and_what_follows_is_folded():
    world = World()
    world.tell()
    world.work_off()
    for _ in range(5):
        world.tell()
        world.tell(NoticeKind.QUARANTINE)
        world.clock.advance(5.0)
        world.work_off()
    assert len(world.arrived) == 1
    world.clock.advance(FOLD_S - 25.0)
    world.work_off()
    assert len(world.arrived) == 2
    assert world.arrived[0].title == "CIS490: failed job: job-1"
    assert world.arrived[1].title == "CIS490: 5 failed jobs, 5 quarantined hosts"


def test_a_message_holds_only_so_many_notices():
    world = World(NotifyChannel(name="mail", kind=ChannelKind.EMAIL))
    for _ in range(NOTICES_MAX + 50):
        world.tell()
    world.work_off()
    world.clock.advance(FOLD_S)
    world.work_off()
    assert [len(each.notices) for each in world.arrived] == [NOTICES_MAX, 50]


def test_a_channel_carries_only_what_it_is_for_and_begins_with_what_is_new():
    world = World(NotifyChannel(name="phone", kind=ChannelKind.NTFY, on=(NoticeKind.DISK,)))
    for _ in range(3):
        world.tell()
    assert world.outbox.waiting([world.channel])[0].waiting == 0
    world.work_off()
    world.tell(NoticeKind.DISK)
    world.work_off()
    assert [each.notices[0].sentence for each in world.arrived] == ["4:"]
    late = NotifyChannel(name="late", kind=ChannelKind.NTFY)
    assert world.outbox.waiting([late])[0].waiting == 0
    world.outbox.place([late])
    assert world.outbox.waiting([late])[0].waiting == 0, "what was before it is no news"
    world.tell()
    assert world.outbox.waiting([late])[0].waiting == 1
    assert world.outbox.next(world.channel) is None, "the plan names it no more"


def test_notices_are_forgotten_once_every_channel_has_sent_them():
    world = World()
    world.tell()
    world.outbox.add(NoticeKind.DISK, "disk", "full", lasting=True)
    world.clock.advance(100 * DAY_S)
    before = world.clock.now() - 90 * DAY_S
    assert world.db.run("forget_notices", before=before) == 0, "the channel has not sent them"
    world.work_off()
    assert world.db.run("forget_notices", before=before) == 1, "the disk is full still"
    world.outbox.over(NoticeKind.DISK, "disk")
    assert world.outbox.lasting(NoticeKind.DISK) == set()
    assert world.db.run("forget_notices", before=before) == 1


def test_the_webhooks_body_names_every_notice():
    world = World()
    world.tell(words="the loss is NaN")
    world.outbox.add(NoticeKind.QUARANTINE, "pi", "host pi gets no more jobs")
    message = world.outbox.next(world.channel)
    first = id_of(world.db)[:12]
    assert message.to_dict() == {
        "key": f"cis490-{first}-notice-2",
        "title": "CIS490: 1 failed job, 1 quarantined host",
        "text": "- 1: the loss is NaN\n- host pi gets no more jobs",
        "notices": [
            {"key": f"cis490-{first}-event-1", "at": world.clock.now(), "kind": "failure", "subject": "job-1",
             "sentence": "1: the loss is NaN", "event": 1, "job_id": None},
            {"key": f"cis490-{first}-notice-2", "at": world.clock.now(), "kind": "quarantine", "subject": "pi",
             "sentence": "host pi gets no more jobs", "event": None, "job_id": None},
        ],
    }  # fmt: skip


@pytest.mark.parametrize(("tries", "pause_s"), [(1, 10.0), (2, 20.0), (7, 640.0), (8, 900.0), (10_000, 900.0)])
def test_a_try_is_repeated_ever_more_rarely(tries, pause_s):
    assert retry_after_s(tries) == pause_s

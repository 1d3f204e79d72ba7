"""Watching a host is scoring its recording as it goes on, and calls somebody once."""

from __future__ import annotations

import io
import json
import shlex
import subprocess
import sys
import threading
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import telemetry_builders as made
from places import ROOT
from programs import installed
from receiver_running import TOKEN
from tls_world import secure
from trainer_builders import arguments, run

from training.contract import Exit
from training.data import build
from training.data.channels import View
from training.data.episode import read
from training.fleet import join
from training.locking import exclusive
from training.trainer import score as score_cli
from training.trainer import scoring
from training.trainer import streams as kept_streams
from training.trainer.changes import Moved, ToldChange
from training.trainer.checkpoint import schema_of
from training.trainer.contract import BadData, Stop
from training.trainer.incident_rule import LONGEST, Incident, JoinBy, StreamState, Window, paced
from training.trainer.judging import judge, open_model
from training.trainer.own_references import own_references
from training.trainer.reasons import together
from training.trainer.scoring import follow, incident_table
from training.trainer.streams import Streams, StreamsError, note_of, rule_of
from training.trainer.summary import told_apart
from training.watch import __main__ as program
from training.watch import calls
from training.watch import detector as watching
from training.watch import watching as host_watch
from training.watch.calls import Courier, Hook, HookError, HookRefusedError, command_hook, fleet_hook, line, webhook
from training.watch.detector import HostDetector, ScoredWindow, joined
from training.watch.recording import record as recording
from training.watch.watching import HostWatch, samples, state_path

pytestmark = pytest.mark.usefixtures("one_anomaly_method")
BEGAN = 5e8
SECONDS = 90.0


@dataclass(frozen=True)
class World:
    """A model, the references of its hosts, and a recording of host h0 that nobody labelled."""

    checkpoint: Path
    references: Path
    recording: Path
    like: Path


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("watched")
    made.write_fleet(root / "training", episodes=14)
    assert build.main([str(root / "training"), "--out-dir", str(root / "data"), "--json"]) == 0
    ended = run(arguments("gbt", root / "data", root / "out", "--n-estimators", "45", mode="realistic"))
    assert ended.code == Exit.DONE, ended.sentence
    new = root / "new"
    quiet = [(0.0, "idle")]
    recording = made.write_episode(new, number=90, duration_s=SECONDS, started_at=BEGAN, labels=quiet)
    made.write_episode(new, number=91, baseline=True, duration_s=30.0, **made.IDLE)
    return World(root / "out" / "artifacts" / "gbt_realistic.ckpt.json", new, recording, root / "data")


@pytest.fixture(scope="module")
def scored(world, tmp_path_factory):
    """The data set of the recording."""
    out = tmp_path_factory.mktemp("scored")
    assert build.main([str(world.references), "--like", str(world.like), "--out-dir", str(out), "--json"]) == 0
    return out


def watch_of(world, state, *, hooks=(), out=None, view="machine"):
    model = open_model(world.checkpoint)
    own = own_references([str(world.references)], "h0", view, schema_of(model.checkpoint))
    streams = Streams(model.document["digest"], rule_of(model.document))
    streams.load(state)
    said = []
    watch = HostWatch(
        detector=HostDetector(model, own, host="h0", view=view, began_at=BEGAN),
        streams=streams,
        courier=Courier(hooks, streams.undelivered, said.append),
        kept_in=state,
        host="h0",
        model="gbt realistic",
        as_json=True,
        out=out or io.StringIO(),
        say=said.append,
    )
    watch.said = said
    return watch


class Host:
    """A machine on whose samples something happens."""

    view = View.MACHINE

    def __init__(self, clock, happens):
        self.clock, self.happens, self.taken = clock, happens, []

    def sample(self):
        self.taken.append(self.clock.at)
        self.happens(self)
        return {"cpu_user": self.clock.at, "net_tx_bytes": 5.0, "memory_used": 1e7}


def alarms(begin, count):
    """Windows that raise an alarm, two seconds apart."""
    starts = (BEGAN + begin + 2 * n for n in range(count))
    return [ScoredWindow(Window(start, start + 4, 0.1), 0.6, 0.5) for start in starts]


@pytest.fixture
def watch(world, tmp_path):
    return watch_of(world, tmp_path / "state")


def told(watch):
    return [json.loads(text) for text in watch.out.getvalue().splitlines()]


def samples_of(path):
    recording = read(path)
    names = [channel.name for channel in recording.meta.channels]
    for t, values in zip(recording.t.tolist(), recording.values.tolist(), strict=True):
        yield t, dict(zip(names, values, strict=True))


def test_what_is_watched_is_what_is_scored(world, watch, scored, tmp_path):
    judged = judge(world.checkpoint, scored)
    seen = []
    for t, sample in samples_of(world.recording):
        seen += watch.detector.push(t, sample)
    seen += watch.detector.end()
    assert [one.window.t_start for one in seen] == pytest.approx(judged.inputs.rows.t_start)
    np.testing.assert_allclose([one.score for one in seen], judged.scored.score, atol=1e-6)
    assert [one.window.margin > 0 for one in seen] == judged.alarm.tolist()
    again = watch_of(world, tmp_path / "state")
    for t, sample in samples_of(world.recording):
        again.take(t, sample)
    again.finish()
    again.close()
    found = follow(judged).called
    assert len(found) > 0
    raised = [one for one in told(again) if one["event"] == "raised"]
    assert [one["began_at"] for one in raised] == pytest.approx([one.incident.began for one in found])
    assert [one["raised_at"] for one in raised] == pytest.approx([one.incident.raised for one in found])
    explained = scoring.why(judged)
    alone = {one.window.t_start: one.share for one in seen if one.share is not None}
    np.testing.assert_allclose([alone[start] for start in sorted(alone)], explained.share, atol=1e-6)
    one, two = sorted(alone)[:2]
    within = watch.detector.moments(one, two)
    assert within
    assert max(end for _, end in within) <= one + 4.0, "not of the window that is the next"
    assert watch.detector.moments(two, one) == []
    rows = judged.inputs.rows.take(explained.rows)
    for one in raised:
        mine = (rows.t_start >= one["began_at"] - 1e-3) & (rows.t_end <= one["raised_at"] + 1e-3)
        expected = explained.named(together(explained.share[mine]))
        assert [found["channel"] for found in one["why"]] == [channel for channel, _ in expected]
        assert [found["share"] for found in one["why"]] == pytest.approx([share for _, share in expected], abs=1e-3)
        spans = [(explained.rows[place], span) for place in np.flatnonzero(mine) for span in explained.moments(place)]
        starts = judged.inputs.rows.t_start
        carried = joined([(starts[row] + low, starts[row] + high) for row, (low, high) in spans])
        assert np.array(one["seconds"]) == pytest.approx(np.array(carried), abs=2e-3)
    assert again.windows == len(judged.inputs.rows)
    assert again.alarms == judged.alarm.sum()


SHARES = ((0, (1, 0, 0)), (9, (0, 0.5, 0.5)), (12, (0, 1, 0)), (16, (1, 0, 0)))


def test_an_incident_is_explained_by_its_own_alarms(watch):
    first, second, third = watch.detector.channels
    watch._shares = [(BEGAN + t, np.array(share)) for t, share in SHARES]
    incident = Incident(began=BEGAN + 9, raised=BEGAN + 16, last=BEGAN + 16, alarms=2, peak=0.1)
    assert watch._why(incident) == [(second, 0.75), (third, 0.25)]
    assert [channel for channel, _ in watch._why(replace(incident, began=BEGAN))] == [second, first, third]
    assert watch._why(replace(incident, began=BEGAN + 20)) == []


def test_alarms_of_another_time_explain_nothing(world, watch):
    detector = watch.detector
    for t, sample in list(samples_of(world.recording))[:480]:
        detector.push(t, sample)
    spans = detector.moments(BEGAN, BEGAN + SECONDS)
    assert spans
    assert detector.moments(BEGAN - SECONDS, BEGAN) == detector.moments(spans[-1][1], BEGAN + 2 * SECONDS) == []
    detector.restart()  # the clock was set, perhaps back
    assert detector.moments(BEGAN, BEGAN + SECONDS) == []


def test_a_restart_calls_nobody_twice(world, tmp_path):
    state, heard, everything = tmp_path / "deep" / "state", [], list(samples_of(world.recording))
    for begin in range(0, len(everything), 160):  # a restart each 20 s, with an incident open at most of them
        watch = watch_of(world, state)
        watch.detector.began_at = BEGAN + everything[begin][0]
        for t, sample in everything[begin : begin + 160]:
            watch.take(t - everything[begin][0], sample)
        watch.finish()
        watch.close()
        heard += [one["id"] for one in told(watch) if one["event"] == "raised"]
    assert len(heard) == 1
    assert Streams(watch.streams.checkpoint, watch.streams.rule).load(state) is None
    other = Streams(watch.streams.checkpoint, replace(watch.streams.rule, quiet_s=61.0))
    assert "belongs to another model" in str(other.load(state))
    assert other.states == {}


def test_the_loop_ends_when_asked_and_skips_what_is_late(world, watch, tmp_path):
    def busy(host):
        if len(host.taken) == 5:
            host.clock.at += 3.0
        stop.requested = len(host.taken) == 200

    clock, stop = made.TickingClock(), Stop()
    host = Host(clock, busy)
    samples(watch, host, hz=8.0, clock=clock, sleep=clock.sleep, stop=stop, for_s=None)
    assert len(host.taken) == 200
    assert max(np.diff(host.taken)) == pytest.approx(3.125, abs=0.13)
    assert watch.windows == 10  # of 28 s; those that the busy moment touches are left out
    assert watch.said[-2].startswith("10 windows, ")
    assert watch.said[-1].startswith("2 of 12 windows (17 %) were lost, as samples came late")
    timed = made.TickingClock()
    host = Host(timed, busy)
    samples(watch_of(world, tmp_path / "other"), host, hz=8.0, clock=timed, sleep=timed.sleep, stop=Stop(), for_s=2.0)
    assert len(host.taken) == 5  # half a second, and the busy one was the last


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_no_window_crosses_the_moment_at_which_the_clock_is_set(watch, jump):
    class Set(made.TickingClock):
        ahead = 0.0

        def now(self):
            return super().now() + self.ahead

    def jumps(host):
        clock.ahead = jump if len(host.taken) > 80 else 0.0
        stop.requested = len(host.taken) == 160

    clock, stop, seen = Set(BEGAN), Stop(), []
    push = watch.detector.push
    watch.detector.push = lambda t, sample: [seen.append(one.window) or one for one in push(t, sample)]
    samples(watch, Host(clock, jumps), hz=8.0, clock=clock, sleep=clock.sleep, stop=stop, for_s=None)
    again = BEGAN + 81 / 8.0 + jump  # the first sample after it was noticed
    assert [one.t_start for one in seen] == [*(BEGAN + 2 * n for n in range(4)), *(again + 2 * n for n in range(3))]
    assert watch.said.count("the host's clock was set: windows start over") == 1
    assert watch.streams.states["h0"].last == seen[-1]  # what came before hides nothing of now


def test_an_incident_is_kept_before_anybody_hears_of_it(world, tmp_path):
    """A call is in the state before anybody is called: ended in this moment, the program would try it again."""
    state, kept = tmp_path / "state", []
    other = {"to": "webhook", "told": TOLD}  # of an earlier start, which named it
    to = hook("exec", lambda one: kept.append((one, json.loads(state.read_text()))))
    watch = watch_of(world, state)
    watch.courier = Courier([to], [other], watch.say)
    watch._feed(alarms(0, LONGEST))
    watch.close()
    ((call, then),) = kept
    assert then["undelivered"] == [other, {"to": "exec", "told": call}]
    assert call == json.loads(watch.out.getvalue())
    assert then["states"]["h0"]["open"]["raised"] == call["raised_at"]
    assert json.loads(state.read_text())["undelivered"] == [other]


def test_of_an_open_incident_a_crash_forgets_half_a_minute(world, tmp_path):
    state = tmp_path / "state"
    watch = watch_of(world, state)
    for one in alarms(0, 50):
        watch._feed([one])
        if watch.raised:
            kept = json.loads(state.read_text())["states"]["h0"]["open"]["last"]
            assert one.window.t_end - host_watch.KEEP_EVERY_S < kept <= one.window.t_end
    assert watch.raised == 1


def test_a_channel_that_means_something_else_by_this_view_is_not_measured(world, tmp_path, monkeypatch):
    choose = watching.choose_channels
    views = {"cpu_user": "container", "net_tx_bytes": "machine"}
    monkeypatch.setattr(watching, "choose_channels", lambda *each: choose(*each)._replace(views=views))

    def scores(without):
        detector, found = watch_of(world, tmp_path / "state").detector, []
        for t, sample in samples_of(world.recording):
            found += detector.push(t, {name: value for name, value in sample.items() if name != without})
        return [one.score for one in found]

    assert scores("") == scores("cpu_user") != scores("net_tx_bytes")


def minutes(watch, begin, count, shift):
    """Windows that raise no alarm, two seconds apart; their first measure is higher by ``shift``."""
    rng, found = np.random.default_rng(begin), []
    for n in range(30 * begin, 30 * (begin + count)):
        measures = rng.normal(size=len(watch.detector.measures.columns)) + shift * np.eye(1, 6)[0]
        found.append(ScoredWindow(Window(BEGAN + 2 * n, BEGAN + 2 * n + 4, -0.1), 0.4, 0.5, None, measures))
    return found


def test_a_channel_that_goes_and_stays_away_ends_no_watch(world, watch):
    detector = watch.detector
    lacks, everything = detector.channels[0], list(samples_of(world.recording))
    seen = [
        one.window.t_start - BEGAN
        for t, sample in everything
        for one in detector.push(t, {**sample, lacks: sample[lacks] if t < 10 else None})
    ]
    assert min(seen) < 1
    assert [start for start in seen if start > 10], "a minute later the others are looked at"


def test_a_host_that_has_changed_is_told_until_somebody_confirms_it(world, tmp_path, capsys):
    state, fleet = tmp_path / "state", []
    hooks = [Hook("fleet", fleet.append, calls.OF_CHANGE)]
    watch = watch_of(world, state, hooks=hooks)
    watch.begin()
    watch._feed(minutes(watch, 0, 40, 0.0))
    watch._feed(minutes(watch, 40, 50, 40.0))
    (change,) = told(watch)
    assert change["event"] == "changed"
    assert change["since"] == pytest.approx(BEGAN + 40 * 60, abs=60)
    assert change["channels"][0]["channel"] == watch.detector.measures.channels[0]
    assert f"CHANGED {change['id']}: h0 has changed since 1985-11-05 " in line(change)
    watch.close()
    assert fleet == [change]
    again = watch_of(world, state, hooks=hooks)
    again.begin()
    assert sum("h0 has changed since 1985" in text for text in again.said) == 1
    again._feed(alarms(6000, LONGEST))
    (raised,) = told(again)
    assert (raised["event"], raised["changed_since"]) == ("raised", change["since"])
    confirm = [str(world.checkpoint), "--host", "h0", "--state", str(state), "--confirm-change"]
    assert program.main(confirm) == Exit.DONE
    assert "confirmed: h0 has changed since" in capsys.readouterr().err
    assert note_of(state).exists()
    again._feed(minutes(again, 110, 40, 40.0))
    assert not note_of(state).exists()
    assert [one["event"] for one in told(again)] == ["raised", "over"], "it is its work from now on"
    again.close()
    assert fleet == [change, change, change | {"event": "confirmed"}], "it is told again at each start"
    assert program.main(confirm) == Exit.BAD_ARGUMENTS
    assert "there is nothing to confirm" in capsys.readouterr().err
    note_of(state).write_text("of another change")
    again._feed(minutes(again, 150, 50, 0.0))
    assert [one["event"] for one in told(again)] == ["raised", "over", "changed"]
    assert not note_of(state).exists()
    note_of(state).write_text("of another change")
    again._feed(minutes(again, 200, 1, 0.0))
    assert not note_of(state).exists()
    assert again.streams.hosts["h0"].told is not None, "another change is not confirmed with it"


def test_a_clock_that_was_ahead_does_not_silence_the_watch(watch):
    watch.streams.states["h0"] = StreamState(last=Window(BEGAN + 10, BEGAN + 14, 0.1))
    watch.forget_the_future(BEGAN + 11)
    assert "h0" in watch.streams.states
    watch._shares = [(BEGAN + 10, np.ones(3) / 3)]
    watch.forget_the_future(BEGAN)
    assert "h0" not in watch.streams.states
    assert watch._shares == [], "they are no reasons of what comes at that time"
    assert "has not come yet" in watch.said[-1]


def test_what_a_host_lacks_is_said_once(world, watch):
    for t, sample in samples_of(world.recording):
        watch.take(t, {name: value for name, value in sample.items() if name != "net_tx_bytes"})
    assert sum("h0 lacks net_tx_bytes" in text for text in watch.said) == 1


def test_channels_that_leave_all_that_was_learnt_are_named_once(world, watch):
    for t, sample in samples_of(world.recording):
        watch.take(t, {**sample, "net_tx_bytes": sample["net_tx_bytes"] * 1e9})
    (one,) = [text for text in watch.said if "are unlike all that it has learnt from" in text]
    assert one.startswith("100 % of the windows of h0")
    assert "most often in net_tx_bytes" in one


@pytest.mark.parametrize(
    ("change", "host", "view", "words"),
    [
        ({"reference": []}, "h0", "machine", "record one while h0 does its ordinary work"),
        ({}, "h7", "machine", r"has no reference recording of h7 \(only those of h0"),
        ({}, "h0", "container", "recorded with --view machine, and other data of this host here with --view container"),
        ({"reference": ["gone"]}, "h0", "machine", "there is no gone: name the folder or file"),
    ],
)
def test_a_host_without_its_own_reference_is_not_watched(world, change, host, view, words):
    schema = schema_of(open_model(world.checkpoint).checkpoint)
    with pytest.raises(BadData, match=words):
        own_references(change.get("reference", [str(world.references)]), host, view, schema)


def test_models_that_cannot_watch_are_refused(world):
    model = open_model(world.checkpoint)
    own = own_references([str(world.references)], "h0", "machine", schema_of(model.checkpoint))
    for key, value, words in (("mode", "oracle", "only a laboratory has"), ("threshold", None, "has no threshold")):
        other = model._replace(checkpoint=model.checkpoint._replace(document={**model.document, key: value}))
        with pytest.raises(BadData, match=words):
            HostDetector(other, own, host="h0", view="machine", began_at=0.0)


def test_the_program_refuses_with_a_sentence_and_keeps_its_state_for_each_host(world, tmp_path, capsys, monkeypatch):
    common = [str(world.checkpoint), "--host", "h0", "--reference", str(world.references)]
    assert program.main([*common, "--for", "0"]) == Exit.BAD_ARGUMENTS
    (tmp_path / "hook").write_text("ftp://s3cret\n")  # others can read a command line
    for flags in (["--webhook", "ftp://s3cret"], ["--webhook-file", str(tmp_path / "hook")]):
        assert program.main([*common, *flags]) == Exit.BAD_ARGUMENTS
        said = capsys.readouterr().err
        assert "an address that begins with https://" in said
        assert "s3cret" not in said
    assert program.main([*common, "--webhook-file", str(tmp_path / "none")]) == Exit.BAD_ARGUMENTS
    said = capsys.readouterr().err
    assert "none cannot be read" in said
    assert said.startswith("error: "), "one form, for people"
    assert program.main([*common[:3], "--view", "machine"]) == Exit.BAD_DATA
    assert program.main([*common, "--view", "machine", "--exec", "/nope/x"]) == Exit.BAD_ARGUMENTS
    with monkeypatch.context() as patched:
        patched.setattr(host_watch, "require_watchable", lambda *_: (_ for _ in ()).throw(BadData("of a table")))
        assert program.main([*common[:3], "--reference", "/nope"]) == Exit.BAD_DATA
        assert "of a table" in capsys.readouterr().err, "first, whether its references are any"
    kept = [*common, "--view", "machine", "--state"]
    (tmp_path / "file").write_text("")
    assert program.main([*kept, str(tmp_path / "file" / "state")]) == Exit.NO_ACCESS  # before the first call is due
    with exclusive(tmp_path / "twice.lock"):
        assert program.main([*kept, str(tmp_path / "twice")]) == Exit.BAD_ARGUMENTS
    assert "another watch" in capsys.readouterr().err
    state = tmp_path / "state"
    state.write_text("{}")
    assert program.main([*common, "--view", "machine", "--state", str(state)]) == Exit.BAD_ARGUMENTS
    assert state.read_text() == "{}"
    said = capsys.readouterr().err
    assert "is no state file: remove it" in said
    assert "Traceback" not in said
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    place = state_path(open_model(world.checkpoint).document, "h0")
    assert place == tmp_path / "cis490-watch" / "gbt_realistic-h0.json"


# -- calls -------------------------------------------------------------------------------------------------------------

TIMES = {"began_at": 0.0, "raised_at": 8.0, "last_alarm_at": 9.0}
TOLD = {"event": "raised", "id": "5f", "host": "h0", **TIMES, "rule": "r"}
KEPT = {"to": "exec", "told": TOLD}


def hook(name, call, *more):
    return Hook(name, call, frozenset({"raised", *more}))


def deaf(_one):
    raise HookError("x")


def test_a_call_that_fails_is_tried_again_and_only_where_it_failed(monkeypatch):
    monkeypatch.setattr(calls, "AGAIN_S", 0.0)
    sound, broken, done = [], [], threading.Event()

    def once_broken(one):
        broken.append(one["id"])
        if len(broken) < 3:
            raise HookError("the webhook answered 503")
        done.set()

    said = []
    hooks = [hook("exec", lambda one: sound.append(one["id"])), hook("webhook", once_broken)]
    courier = Courier(hooks, [], said.append)
    courier.put(TOLD)
    assert done.wait(20)
    courier.end(20)
    assert (sound, broken, courier.waiting) == (["5f"], ["5f"] * 3, [])
    assert said == ["the webhook answered 503: incident 5f is tried again"], "once"


def test_what_no_hook_took_waits_for_the_next_start():
    courier = Courier([hook("exec", deaf)], [], lambda _text: None)
    courier.put(TOLD)
    courier.end(20)
    assert courier.waiting == [KEPT]
    heard = threading.Event()
    later = Courier([hook("exec", lambda _one: heard.set())], courier.waiting, print)
    assert heard.wait(20)
    later.end(20)
    assert later.waiting == []
    without = Courier([hook("webhook", deaf)], [KEPT], print)
    assert (without.waiting, without.unnamed) == ([KEPT], 1)  # for a start that names its hook again
    without.end(20)


def test_a_hook_that_is_down_keeps_no_other_waiting():
    """A local command must not wait for a receiver that is down."""
    heard, both = [], threading.Event()

    def hears(one):
        heard.append(one["id"])
        if len(heard) == 2:
            both.set()

    courier = Courier([hook("fleet", deaf, "over"), hook("exec", hears)], [], lambda _text: None)
    for each in (TOLD, TOLD | {"event": "over"}, TOLD | {"id": "60"}):
        courier.put(each)
    assert both.wait(20)
    courier.end(20)
    assert heard == ["5f", "60"]
    assert [(each["to"], each["told"]["event"]) for each in courier.waiting] == [
        ("fleet", "raised"), ("fleet", "over"), ("fleet", "raised"),
    ]  # fmt: skip


def test_of_too_many_calls_the_oldest_are_given_up_and_that_is_said(monkeypatch):
    monkeypatch.setattr(calls, "MOST_WAITING", 2)
    free, said = threading.Event(), []
    courier = Courier([hook("exec", lambda one: free.wait(20) and deaf(one))], [], said.append)
    for number in range(4):
        courier.put(TOLD | {"id": str(number)})
    assert [each["told"]["id"] for each in courier.waiting] == ["2", "3"]
    assert said == ["1 calls that exec did not take were given up"] * 2
    free.set()
    courier.end(20)


def test_what_is_refused_for_good_is_given_up_and_a_sign_of_life_is_not_kept():
    said, tried = [], []

    def refuses(one):
        tried.append(one["event"])
        raise (HookRefusedError if one["event"] == "raised" else HookError)("no")

    courier = Courier([hook("fleet", refuses, "watching")], [], said.append)
    courier.put(TOLD)
    courier.put({"event": "watching", "host": "h0"})
    courier.put({"event": "watching", "host": "h1"})
    courier.end(20)
    assert courier.waiting == []
    assert tried[0] == "raised"
    assert said == ["no: incident 5f is given up", "no: that this host is watched is tried again"]


def test_an_incident_does_not_wait_for_the_next_try_of_a_sign_of_life():
    failed, heard = threading.Event(), threading.Event()

    def once_down(one):
        if one["event"] == "watching":
            failed.set()
            raise HookError("no")
        heard.set()

    courier = Courier([hook("fleet", once_down, "watching")], [], lambda _text: None)
    courier.put({"event": "watching", "host": "h0"})
    assert failed.wait(20)
    courier.put(TOLD)
    assert heard.wait(20), "and not after a minute"
    courier.end(20)


def test_a_watched_host_shows_that_it_is_each_quarter_of_an_hour(watch):
    heard = []
    watch.courier.put = heard.append
    for t in (0.0, 1.0, 899.0, 900.0, 2000.0, -5.0, 0.0):  # the host's clock was set back
        watch._show_life(BEGAN + t)
    assert len(heard) == 4
    known = {"host": "h0", "model": "gbt realistic", "checkpoint": watch.streams.checkpoint}
    assert heard[0] == {"event": "watching", **known, "every_s": 900.0}


def test_the_fleet_is_told_by_a_command_that_says_what_is_wrong(tmp_path):
    with pytest.raises(ValueError, match=r"--receiver-url: .*is neither https nor this machine"):
        fleet_hook("http://10.0.0.1:8445", "h0", None)
    with pytest.raises(ValueError, match=r"holds no certificate .* `cis490-jobs enroll --watcher h0`"):
        fleet_hook("https://pi.lan:8445", "h0", str(tmp_path))
    nobody = fleet_hook("http://127.0.0.1:1", "h0", None)
    assert nobody.events == {"raised", "over", "watching", "changed", "confirmed", "referenced"}
    with pytest.raises(HookError, match="the report to the fleet failed: cannot reach the receiver"):
        nobody.call(TOLD)


def test_a_model_that_was_trained_anew_still_calls_for_the_last_one(tmp_path):
    rule = paced(JoinBy.COUNT, 1, 1, stride_s=2.0)
    Streams("old", rule, undelivered=[KEPT]).save(tmp_path / "state")
    anew = Streams("new", rule)
    assert "another model" in (anew.load(tmp_path / "state") or "")
    assert anew.undelivered == [KEPT]


def test_a_command_gets_the_incident_on_its_input(tmp_path):
    place = tmp_path / "heard"
    command_hook(f"{sys.executable} -c \"import sys; open(r'{place}', 'w').write(sys.stdin.read())\"").call(TOLD)
    assert json.loads(place.read_text()) == TOLD
    with pytest.raises(HookError, match="ended with 3"):
        command_hook(f"{sys.executable} -c 'raise SystemExit(3)'").call(TOLD)
    gone = tmp_path / "gone"
    gone.write_text("#!/bin/sh\n")
    gone.chmod(0o755)
    gone_hook = command_hook(str(gone))
    gone.unlink()
    with pytest.raises(HookError, match="cannot be started"):
        gone_hook.call(TOLD)
    for bad in (lambda: command_hook(" "), lambda: webhook("file:///etc/passwd")):
        with pytest.raises(ValueError, match="--"):
            bad()
    with pytest.raises(HookError, match="cannot be reached"):
        webhook("http://127.0.0.1:1/secret").call(TOLD)


def test_the_fleet_hears_of_an_incident_once_though_it_was_down_and_is_told_twice(world, tmp_path, capsys):
    """From the host's samples to the list of incidents: a real command, over TLS, with the certificate of a watcher."""
    state, tls = tmp_path / "state", tmp_path / "tls"

    def watched(url, samples):
        watch = watch_of(world, state, hooks=[fleet_hook(url, "h0", str(tls))])
        watch.detector.began_at = BEGAN + samples[0][0]
        for t, sample in samples:
            watch.take(t - samples[0][0], sample)
        watch.finish()
        watch.close()
        return watch

    everything = list(samples_of(world.recording))
    down = watched("http://127.0.0.1:1", everything[:480])
    (kept,) = down.streams.undelivered
    assert any("the report to the fleet failed: cannot reach" in text for text in down.said)
    with secure(tmp_path / "fleet") as receiver:
        operator = receiver.showing(None, TOKEN)
        invited = operator.call("invite", name="h0", role="watcher")
        line = ["--receiver-url", receiver.url, "--host-id", "h0", "--watcher", "--tls-dir", str(tls)]
        assert join.main([*line, "--code", invited["code"], "--fingerprint", invited["fingerprint"]]) == 0
        identity = tls / "identity.json"
        identity.write_text(json.dumps(json.loads(identity.read_text()) | {"received_at": 0.0}))
        watched(receiver.url, everything[480:])
        again = fleet_hook(receiver.url, "h0", str(tls))
        again.call(kept["told"])
        with pytest.raises(HookRefusedError, match="the report to the fleet failed"):
            again.call(kept["told"] | {"peak": "high"})
        told = operator.incidents()
        (one,) = told["incidents"]
        assert (one["host"], one["id"], one["ended"]) == ("h0", kept["told"]["id"], None)
        assert [each["channel"] for each in one["why"]] == [each["channel"] for each in kept["told"]["why"]]
        (shown,) = told["watches"]
        assert (shown["host"], shown["model"], shown["every_s"]) == ("h0", "gbt realistic", 900.0)
        again.call(kept["told"] | {"event": "over", "alarms": 99})
        assert [(each["ended"], each["alarms"]) for each in operator.incidents()["incidents"]] == [("over", 99)]
        gone = Moved("forks", "level", 0.2, 3.4, BEGAN, 1e-6)
        about = {"id": "ab" * 8, "host": "h0", "model": "gbt realistic", "checkpoint": kept["told"]["checkpoint"]}
        for event in ("changed", "changed", "confirmed"):
            told = ToldChange(BEGAN + 3600, BEGAN, 0, (gone,))
            again.call(calls.change_document({"event": event, **about}, told))
        one, _ = operator.incidents()["incidents"]
        assert (one["host"], one["ended"], one["at_once"]) == ("h0", "confirmed", True)
        assert [row["kind"] for row in receiver.reader.all("notices", after=0, most=10)] == ["incident", "change"]
        assert json.loads(identity.read_text())["received_at"] > 0, "the certificate was renewed by the way"
    assert "has joined" in capsys.readouterr().out


def test_incidents_are_told_in_a_line():
    assert line(TOLD) == "1970-01-01 00:00:08Z INCIDENT 5f on h0: r since 1970-01-01 00:00:00Z"
    assert line(TOLD | {"event": "over", "alarms": 3}) == "1970-01-01 00:00:09Z over 5f: 3 alarms in 9 s"
    why = [{"channel": "forks", "share": 0.6}, {"channel": "cpu_user", "share": 0.25}]
    assert line(TOLD | {"why": why}) == line(TOLD) + ", carried by forks 60 %, cpu_user 25 %"
    when = {"why": why, "seconds": [[1.0, 2.0], [4.0, 6.0]]}
    assert line(TOLD | when).endswith(" 25 % (from 00:00:01 to 00:00:02, 00:00:04 to 00:00:06)")


def test_spans_that_touch_are_one():
    assert joined([]) == []
    assert joined([(5e8 + 2, 5e8 + 4), (5e8, 5e8 + 2), (5e8 + 1, 5e8 + 2), (5e8 + 5, 5e8 + 6)]) == [
        (5e8, 5e8 + 4),
        (5e8 + 5, 5e8 + 6),
    ]


def test_thresholds_are_shown_in_as_many_digits_as_tell_them_apart():
    assert told_apart(0.54, 0.61) == ("0.54", "0.61")
    assert told_apart(0.54013, 0.54) == ("0.5401", "0.54")
    assert told_apart(0.54, 0.54 + 1e-9) == ()


# -- score -------------------------------------------------------------------------------------------------------------


def test_incidents_are_written_and_summed_up(world, scored, tmp_path, capsys):
    file = tmp_path / "incidents.csv"
    assert score_cli.main([str(world.checkpoint), str(scored), "--incidents", str(file)]) == Exit.DONE
    said = capsys.readouterr()
    assert "incidents   1 (" in said.err
    report = json.loads((world.checkpoint.parents[1] / "reports" / "gbt_realistic_train.json").read_text())
    (rule,) = [note for note in report["notes"] if note.startswith("The rule of incidents (")]
    assert "calibration recordings of 2 hosts" in rule
    assert "window_id," in said.out
    head, row = file.read_text().splitlines()
    assert head.startswith("incident_id,episode_id,host,began,raised,")
    assert ",h0," in row
    assert score_cli.main([str(world.checkpoint), str(scored), "--incidents", "x.txt"]) == Exit.BAD_ARGUMENTS
    judged = judge(world.checkpoint, scored)
    bare = replace(judged, document={**judged.document, "threshold": None})
    assert follow(bare).called == []
    assert incident_table(judged, []).height == 0


def test_a_strange_file_is_left_alone(tmp_path):
    file = tmp_path / "other"
    file.write_text('{"format": "x"}')
    with pytest.raises(StreamsError, match="is no state file"):
        Streams("c", paced(JoinBy.COUNT, 1, 1, stride_s=2.0)).load(file)
    assert file.read_text() == '{"format": "x"}'


def test_the_streams_that_were_fed_longest_ago_go_first(monkeypatch):
    monkeypatch.setattr(kept_streams, "MOST_STREAMS", 3)
    streams = Streams("c", paced(JoinBy.COUNT, 1, 1, stride_s=2.0))
    for place, name in enumerate(["old", "gone", "new", "old", "newest"]):
        streams.feed(name, Window(2.0 * place, 2.0 * place + 4.0, -1.0))
    assert list(streams.states) == ["new", "old", "newest"]


def test_all_that_is_kept_is_there_after_a_restart(tmp_path):
    streams = Streams("c", paced(JoinBy.COUNT, 2, 3, stride_s=2.0))
    for place, margin in enumerate([0.3, -0.1, 0.2, 0.1]):
        streams.feed("a", Window(2.0 * place, 2.0 * place + 4.0, margin))
        streams.feed("b", Window(2.0 * place, 2.0 * place + 4.0, -margin))
    streams.undelivered = [KEPT]
    streams.save(tmp_path / "state")
    again = Streams(streams.checkpoint, streams.rule)
    assert again.load(tmp_path / "state") is None
    assert again == streams


# -- the docs ----------------------------------------------------------------------------------------------------------

PROGRAMS = {
    "record": recording.main,
    "build": build.main,
    "watch": program.main,
    "score": score_cli.main,
}


class Replay:
    """A machine of a kind that trained nothing: it has no network, and is busy in its second half, if at all."""

    view = View.MACHINE

    def __init__(self, seed, strength):
        names = [name for name, *_ in made.CHANNELS if not name.startswith("tree_")]
        _, rows = made.signal(SECONDS, 8.0, seed, strength)
        self._samples = iter(dict(zip(names, row, strict=False)) for row in rows)

    def sample(self):
        return {name: value for name, value in next(self._samples).items() if name != "net_tx_bytes"}


def test_the_docs_are_walked_on_a_new_machine(world, tmp_path, capsys, monkeypatch):
    """Every command of the page's first part, in order, in less time, on a clock that need not wait."""
    clock = made.TickingClock(BEGAN)
    machine = iter([Replay(1, 0.0), Replay(90, 1.0), Replay(90, 1.0)])
    monkeypatch.chdir(tmp_path)
    for module in (recording, host_watch):
        monkeypatch.setattr(module, "choose_collector", lambda _view: next(machine))
    monkeypatch.setattr(recording, "record", partial(recording.record, sleep=clock.sleep))
    monkeypatch.setattr(program, "time", SimpleNamespace(sleep=clock.sleep))
    for module in (recording, program, host_watch):
        monkeypatch.setattr(module, "SystemClock", lambda: clock)
    (tmp_path / "models").symlink_to(world.checkpoint.parent)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "processed").symlink_to(world.like)
    page = (ROOT / "docs" / "watch.md").read_text(encoding="utf-8").partition("**Needed:**")[0]
    commands = [shlex.split(text[2:], comments=True) for text in page.splitlines() if text.startswith("$ cis490 ")]
    said = {}
    for command in commands:
        name, flags = command[1], command[2:]
        here = ["--host", "office", "--view", "machine"] if name in ("record", "watch") else []
        if "--duration-s" in flags:
            flags[flags.index("--duration-s") + 1] = "30" if "--baseline" in flags else str(SECONDS - 1)
        shorter = ["--for", str(SECONDS - 1), "--state", "state"] if name == "watch" else []
        assert PROGRAMS[name]([*flags, *here, *shorter]) == 0, capsys.readouterr().err
        said[name] = capsys.readouterr()
    assert [*said][:2] == ["record", "watch"]
    watched, summed = said["watch"], said["score"].err
    assert "INCIDENT" in watched.out
    assert ", carried by " in watched.out
    assert "office lacks net_tx_bytes" in watched.err
    assert "incidents   1 (" in summed
    assert "why         office" in summed
    assert "missing     net_tx_bytes on office" in summed
    assert "believe it  " in summed
    assert ",office," in Path("incidents.csv").read_text()


# -- the service -------------------------------------------------------------------------------------------------------

UNIT = ROOT / "etc" / "cis490-watch.service"


def test_the_unit_starts_what_the_program_understands():
    start = UNIT.read_text(encoding="utf-8").partition("ExecStart=")[2].replace("\\\n", " ").partition("\n")[0]
    settings = {
        "${CIS490_WATCH_MODEL}": "/models/gbt_realistic.ckpt.json",
        "${CIS490_WATCH_REFERENCE}": "/reference",
        "$CIS490_WATCH_FLAGS": "--webhook-file /run/credentials/w --receiver-url https://pi --tls-dir /x --threads 2",
    }
    for name, value in settings.items():
        start = start.replace(name, value)
    words = start.split()
    assert words[1:3] == ["-m", program.PROGRAM]
    names = program._parser().parse_args(words[3:])
    # Its limits on memory would make the unit look like a container.
    assert (names.view, names.reference, names.threads) == ("machine", ["/reference"], 2)
    assert str(names.state) == "/var/lib/cis490-watch/state.json"


def test_systemd_has_nothing_to_say_against_the_unit(tmp_path):
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text(encoding="utf-8").replace("/opt/cis490/.venv/bin/python", sys.executable))
    analyze = installed("systemd-analyze", "systemd")
    verify = [analyze, "verify", "--man=no", "--recursive-errors=no", str(unit)]
    done = subprocess.run(verify, capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    security = [analyze, "security", "--offline=true", "--no-pager", "--threshold=20", str(unit)]
    done = subprocess.run(security, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-300:] + done.stderr

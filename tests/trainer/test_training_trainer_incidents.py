"""Incidents: one call for what belongs together, the same at any cut, chosen on the calibration side alone."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trainer_builders import BINARY

from training.data.rows import Rows
from training.trainer.evaluation.incident_rates import CANDIDATES, Choice, Timeline, choose, figures, outcome
from training.trainer.evaluation.rates import count_interval
from training.trainer.evaluation.scored import Scored
from training.trainer.incident_rule import (
    Incident,
    JoinBy,
    JoinRule,
    Runs,
    StreamState,
    Window,
    find,
    paced,
    step,
    usual,
)

ONE = paced(JoinBy.COUNT, 1, 1, stride_s=2.0)


def windows(margins, *, start=0.0, stride=2.0, length=4.0):
    return [Window(start + stride * n, start + stride * n + length, float(m)) for n, m in enumerate(margins)]


def stepped(rule, made, state=None):
    """The incidents of a stream taken window by window, and the state at its end."""
    state, done = state or StreamState(), []
    for window in made:
        now = step(rule, state, window)
        state = now.state
        done += [] if now.over is None else [now.over]
    return done, state


def batched(rule, made):
    start, end, margin = (np.array([getattr(w, name) for w in made]) for name in ("t_start", "t_end", "margin"))
    runs = Runs.of(np.zeros(len(made)), start, end)
    margin, start, end = margin[runs.order], runs.t_start, runs.t_end
    found = find(rule, runs, margin)
    made = []
    for began, raised, last in zip(found.began, found.raised, found.last, strict=True):
        own = margin[began : last + 1]
        times = {"began": start[began], "raised": end[raised], "last": end[last]}
        made.append(Incident(**times, alarms=(own > 0).sum(), peak=own.max()))
    return made


def test_a_person_is_called_once_for_what_belongs_together():
    done, state = stepped(ONE, windows([-1, 1, 2, -1, 1, -1]))
    assert done == []
    assert state.open == Incident(began=2.0, raised=6.0, last=12.0, alarms=3, peak=2.0)


def test_an_incident_is_over_after_quiet_and_the_next_one_is_another():
    quiet = [-1] * 33
    done, state = stepped(ONE, windows([1, *quiet, 1]))
    assert [one.last for one in done] == [4.0]
    assert state.open is not None
    assert state.open.began == 68.0
    for windows_of_quiet, ended in ((30, 0), (31, 1)):  # 58 s of quiet are less than 60
        made = windows([1, *[-1] * windows_of_quiet, 1])
        assert len(stepped(ONE, made)[0]) == len(batched(ONE, made)) - 1 == ended


@pytest.mark.parametrize(
    ("join", "k", "n", "margins", "raised"),
    [
        (JoinBy.COUNT, 2, 3, [1, -1, -1, 1, -1, 1], 5),
        (JoinBy.COUNT, 3, 3, [1, 1, -1, 1, 1, 1], 5),
        (JoinBy.COUNT, 2, 2, [1, -1, 1, -1, 1], None),
        (JoinBy.MEAN, 1, 2, [5, -1, -1, 0.5, 0.6], 4),  # the first window alone is no mean of two
        (JoinBy.MEAN, 1, 2, [-1, 5, -1], 1),
    ],
)
def test_enough_windows_raise_an_incident(join, k, n, margins, raised):
    rule = paced(join, k, n, stride_s=2.0)
    _, state = stepped(rule, windows(margins))
    assert (None if state.open is None else (state.open.raised - 4.0) / 2.0) == raised


def test_windows_are_not_joined_across_a_gap_nor_across_recordings():
    rule = paced(JoinBy.COUNT, 2, 2, stride_s=2.0)
    near = [*windows([-1, 1]), *windows([1], start=10.0)]  # 4 s behind the end: two strides
    far = [*windows([-1, 1]), *windows([1], start=10.5)]
    assert len(batched(rule, near)) == 1
    assert stepped(rule, near)[1].open is not None
    assert batched(rule, far) == []
    assert stepped(rule, far)[1].open is None
    runs = Runs.of(np.array(["a", "b"]), np.array([0.0, 2.0]), np.array([4.0, 6.0]))
    assert find(rule, runs, np.ones(2)).raised.size == 0


@pytest.mark.parametrize(("stride", "quiet"), [(2.0, 60.0), (6.0, 60.0), (30.0, 300.0)])
def test_windows_far_apart_need_more_quiet_than_a_minute(stride, quiet):
    assert paced(JoinBy.COUNT, 1, 1, stride_s=stride).quiet_s == usual(stride).quiet_s == quiet


rules = st.builds(
    lambda shape, gap, quiet: JoinRule(join=shape[0], k=shape[1], n=shape[2], gap_s=gap, quiet_s=quiet),
    st.sampled_from(CANDIDATES),
    st.sampled_from([0.5, 4.0]),
    st.sampled_from([3.0, 20.0, 60.0]),
)
streams = st.lists(
    st.tuples(
        st.sampled_from([0.0, 1.0, 2.0, 2.0, 2.0, 8.0, 9.0, 64.0, 70.0]),
        st.sampled_from([-2.0, -0.3, 0.0, 0.1, 0.7, 3.0]),
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(rule=rules, drawn=streams, cut=st.integers(0, 40))
def test_window_by_window_in_pieces_and_all_at_once_are_the_same(rule, drawn, cut):
    t, made = 0.0, []
    for ahead, margin in drawn:  # a step of 0 is a window that was seen already
        t += ahead
        made.append(Window(t, t + 4.0, margin))
    done, state = stepped(rule, made)
    before, between = stepped(rule, made[:cut])
    after, end = stepped(rule, made[max(0, cut - 3) :], between)  # a piece may begin with what is known
    assert (before + after, end) == (done, state)
    found = batched(rule, made) if made else []
    assert found == done + ([] if state.open is None else [state.open])


@settings(max_examples=50, deadline=None)
@given(rule=rules)
def test_a_rule_is_kept_in_a_checkpoint(rule):
    assert msgspec.convert(rule.to_dict(), JoinRule) == rule


@pytest.mark.parametrize(
    "change", [{"k": 0}, {"n": 65}, {"k": 4}, {"gap_s": -1}, {"quiet_s": 0}, {"join": "all"}, {"k": None}]
)
def test_a_damaged_rule_is_refused(change):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(usual(2.0).to_dict() | change, JoinRule)


# -- figures -----------------------------------------------------------------------------------------------------------


def line(spells, *, host="h", threshold=0.0, stride=2.0):
    """A timeline of recordings: each a list of (label, margin). ``host``: of all of them, or a list of each one's."""
    y, score, episode, start = [], [], [], []
    hosts = [host] * len(spells) if isinstance(host, str) else host
    host = [name for name, spell in zip(hosts, spells, strict=True) for _ in spell]
    for number, spell in enumerate(spells):
        for place, (label, margin) in enumerate(spell):
            y.append(label)
            score.append(margin + threshold)
            episode.append(f"e{number}")
            start.append(1e9 + 1000.0 * number + stride * place)
    rows = Rows.of(label=y, episode=episode, host=host, t_start=start, t_end=[one + 2 * stride for one in start])
    return Timeline.of_windows(Scored.build(rows, score=score), threshold, BINARY, stride)


def test_a_false_incident_catches_nothing_while_it_stays_open():
    always = [[(0, 1.0)] * 5 + [(1, 1.0)] * 5] * 3
    one = outcome(ONE, line(always))
    assert one.caught.tolist() == [False] * 3
    assert one.false_at.size == 3
    assert one.open.all()


def test_a_stretch_is_caught_by_an_incident_raised_in_malicious_time():
    spells = [[(0, -1.0), (1, -1.0), (1, 1.0), (0, -1.0), (1, 1.0), (1, 1.0)], [(1, -1.0)] * 4, [(0, -1.0)] * 4]
    one = outcome(ONE, line(spells))
    # The second stretch alarms while the incident of the first one is open: a person has been called for it.
    assert one.caught.tolist() == [True, True, False]
    assert one.delay_s[:2].tolist() == [6.0, 4.0]
    assert one.false_at.size == 0
    made = figures(ONE, line(spells))
    assert made["caught"]["value"] == pytest.approx(2 / 3, abs=1e-6)
    assert made["delay_s"]["value"] == 5.0
    assert made["false_per_host_day"]["value"] == 0
    assert made["false_per_host_day"]["smallest_rate"] == made["false_per_host_day"]["ci95"][1]


def test_rates_a_day_count_benign_time_alone():
    made = figures(ONE, line([[(0, 1.0)] + [(0, -1.0)] * 9, [(0, -1.0)] * 10, [(1, 1.0)] * 20]))
    rate = made["false_per_host_day"]
    assert rate["value"] == pytest.approx(86_400 / 40)
    assert rate["benign_hours"] == pytest.approx(40 / 3600, abs=1e-6)
    assert rate["ci95"][0] < rate["value"] < rate["ci95"][1]
    assert rate["smallest_rate"] == pytest.approx(-np.log(0.025) / (40 / 86_400))


spell = st.lists(st.tuples(st.integers(0, 1), st.sampled_from([-1.0, 1.0])), min_size=3, max_size=30)


@settings(max_examples=30, deadline=None)
@given(spells=st.fixed_dictionaries({name: st.lists(spell, min_size=1, max_size=3) for name in "pq"}))
def test_figures_of_a_host_are_those_of_its_windows_alone(spells):
    hosts = [name for name, own in spells.items() for _ in own]
    both = figures(ONE, line([one for own in spells.values() for one in own], host=hosts), curve=False)
    for name, own in spells.items():
        alone = figures(ONE, line(own), curve=False)
        assert both["per_host"][name] == {key: alone[key] for key in both["per_host"][name]}


def test_stretches_of_one_recording_that_repeat_each_other_make_no_delay_surer():
    spells = [[(0, -1.0)] * 2 + [(1, -1.0)] * late + [(1, 1.0)] for late in range(12)]
    once, often = (figures(ONE, line([one * times for one in spells]))["delay_s"] for times in (1, 4))
    assert once == often
    low, high = once["ci95"]
    assert low < once["value"] < high


def test_the_curve_falls_with_the_threshold():
    rng = np.random.default_rng(0)
    spells = [[(n % 2, rng.normal() + 1.5 * (n % 2)) for _ in range(15)] for n in range(40)]
    points = figures(ONE, line(spells))["curve"]
    assert len(points) > 8
    assert points[-1][0] <= points[0][0]
    assert all(0 <= caught <= 1 and rate >= 0 for rate, caught in points)


def test_without_a_clock_there_are_incidents_and_no_times():
    rows = Rows.of(label=[0] * 4 + [1] * 4, episode=["a"] * 4 + ["b"] * 4, host=["h"] * 8)
    unclocked = Timeline.of_windows(Scored.build(rows, score=[-1, -1, 1, -1, 1, 1, 1, 1]), 0.0, BINARY, 1.0)
    made = figures(ONE, unclocked)
    assert made["caught"]["value"] == 1.0
    assert (made["false"], made["stretches"]) == (1, 1)
    assert made["delay_s"]["value"] is made["false_per_host_day"]["value"] is None


def test_a_threshold_of_each_window_is_what_it_is_held_against():
    rows = Rows.of(label=[0, 0], episode=["a", "b"], host=["p", "q"], t_start=[0.0, 0.0], t_end=[4.0, 4.0])
    made = Timeline.of_windows(Scored.build(rows, score=[0.5, 0.5]), np.array([0.4, 0.6]), BINARY, 2.0)
    assert outcome(ONE, made).false_at.size == 1


def test_fewest_false_incidents_first_then_catches_then_delay():
    noisy = [[(0, -1.0)] * 3 + [(0, 1.0)] + [(0, -1.0)] * 6 for _ in range(6)]
    real = [[(1, 1.0)] * 8 for _ in range(6)]
    chosen = choose(line([*noisy, *real]), np.arange(3), 2.0)
    assert (chosen.recordings, chosen.hosts) == (12, 1)
    assert (chosen.rule.join, chosen.rule.k, chosen.rule.n) == (JoinBy.COUNT, 2, 2)  # the quickest without a false one
    # Fewer false incidents count for more than catches, as long as four of five are caught.
    mixed = [*[[(1, 1.0)] * 8] * 8, *[[(1, 1.0)]] * 2]
    assert choose(line([*noisy, *mixed]), np.arange(3), 2.0).rule == chosen.rule
    assert choose(line([*noisy, *mixed, [(1, 1.0)]]), np.arange(3), 2.0).rule == ONE
    brief = [[(1, 1.0)] for _ in range(6)]
    assert choose(line([*noisy, *brief]), np.arange(3), 2.0).rule == ONE  # any other would catch nothing
    assert choose(line(noisy), np.arange(3), 2.0).rule == usual(2.0)


@pytest.mark.parametrize(("recordings", "hosts", "few"), [(10, 2, True), (1, 1, True), (40, 2, True), (40, 3, False)])
def test_a_choice_says_on_how_much_it_rests(recordings, hosts, few):
    note = Choice(usual(2.0), np.arange(3), "", recordings, hosts).note
    assert f"rests on {recordings} calibration recording" in note
    assert f" of {hosts} host" in note
    assert ("might have chosen another rule" in note) is few


@settings(max_examples=60, deadline=None)
@given(events=st.lists(st.integers(0, 4), min_size=2, max_size=30), scale=st.floats(0.1, 50))
def test_a_rate_of_events_lies_in_its_interval_and_scales_with_the_time(events, scale):
    made, hours = np.array(events, dtype=float), np.ones(len(events))
    low, high = count_interval(made, hours)
    assert low <= made.mean() <= high
    assert np.allclose(count_interval(made, hours * scale), (low / scale, high / scale))

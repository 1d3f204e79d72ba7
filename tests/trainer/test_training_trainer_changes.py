"""Lasting shifts of a host's measures: found where they begin, and not where nothing changed."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import msgspec
import numpy as np
import pytest
import trainer_builders
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from trainer_builders import make_data

from training.contract import Exit
from training.trainer import drift as command
from training.trainer import shift_test
from training.trainer.changes import Measures, Moved, Record, when
from training.trainer.contract import BadArguments
from training.trainer.drift import Drift, drift
from training.trainer.incident_rule import usual
from training.trainer.judging import judge
from training.trainer.scoring import follow
from training.trainer.shift_test import StretchSeries, _p, can_tell, find, reference_needed
from training.trainer.streams import Streams, rule_of
from training.trainer.summary import lines

pytestmark = pytest.mark.usefixtures("one_anomaly_method")


def drawn(seed, usual, count, measures, alike=0.0):
    """Windows of a host that does not change; ``alike``: the correlation of neighbours."""
    rng = np.random.default_rng(seed)
    found = rng.normal(size=(usual + count, measures))
    for row in range(1, len(found)):
        found[row] = alike * found[row - 1] + np.sqrt(1 - alike**2) * found[row]
    return found


def series(values, usual):
    return StretchSeries(values[:usual], values[usual:], np.zeros(len(values) - usual, dtype=np.int64))


@pytest.mark.parametrize("alike", [0.0, 0.5, 0.8])
def test_a_host_that_does_not_change_is_hardly_ever_told_to_have(alike):
    told = sum(bool(find(series(drawn(seed, 16, 100, 5, alike), 16))) for seed in range(40))
    assert told <= 2


def test_a_plain_shift_is_found_where_it_begins():
    """Of any, nearly all: one in a hundred is seen too late, or somewhat beside its beginning."""
    found = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        begins, measure, rises = int(rng.integers(0, 91)), int(rng.integers(5)), bool(rng.integers(2))
        values = drawn(seed, 20, 120, 5)
        values[20 + begins :, measure] += 3.0 if rises else -3.0
        told = find(series(values, 20))[:1]
        found += [(one.measure, one.rises, abs(one.start - begins) <= 6) for one in told] == [(measure, rises, True)]
    assert found >= 38


def test_the_beginning_counts_stretches_in_which_nothing_was_measured():
    """A change has its place in the host's record, in which a measure may be missing for a while."""
    values = drawn(6, 20, 80, 2)
    values[60:] += 5.0
    whole = find(series(values, 20))
    values[25:35, 0] = np.nan
    assert {one.measure: one.start for one in whole} == {0: 40, 1: 40}
    assert {one.measure: one.start for one in find(series(values, 20))} == {0: 40, 1: 40}


@given(seed=st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_only_ranks_count_and_the_order_of_the_measures_does_not(seed):
    values = drawn(seed, 20, 80, 4)
    values[60:, 1] += 2.0
    as_is = find(series(values, 20))
    bent = find(series(np.exp(values)[:, ::-1], 20))
    assert [(3 - one.measure, one.start, one.p) for one in bent] == [(one.measure, one.start, one.p) for one in as_is]


def test_an_excursion_that_is_over_is_no_change():
    values = drawn(1, 20, 200, 3)
    values[60:90, 0] += 5.0
    assert find(series(values, 20)) == []
    assert find(series(values[:90], 20))[0].start == pytest.approx(40, abs=3)  # as long as it lasted


@pytest.mark.parametrize(("usual", "count"), [(0, 0), (0, 1), (1, 1), (1, 4), (2, 2)])
def test_where_no_start_can_be_tried_nothing_can_be_told(usual, count):
    assert not can_tell(series(drawn(0, usual, count, 60), usual))


def test_a_measure_that_lacks_a_stretch_is_looked_at():
    values = drawn(0, 8, 20, 60)
    values[-1] = np.nan
    assert (can_tell(series(values[:, :1], 8)), can_tell(series(values, 8))) == (True, False)


def test_a_small_shift_is_not_told_however_sure_it_is():
    values = drawn(2, 400, 4000, 1)
    values[1400:] += 0.4
    assert find(series(values, 400)) == []
    values[1400:] += 1.0
    assert len(find(series(values, 400))) == 1


def test_what_a_host_lacks_and_what_never_moves_is_no_change():
    values = drawn(3, 20, 80, 3)
    values[:, 0], values[:, 1] = np.nan, 7.0
    values[60:, 2] += 4.0
    assert [one.measure for one in find(series(values, 20))] == [2]


def test_a_measure_that_can_tell_nothing_counts_as_looked_at():
    plain = drawn(0, 20, 20, 1)
    plain[20:] += 20.0
    sparse = np.full((40, 1), np.nan)
    sparse[[0, 1, 2, 20, 21, 22], 0] = [1, 3, 2, 5, 4, 6]
    (alone,) = find(series(plain, 20), error_rate=0.05)
    assert find(series(plain, 20), error_rate=1.5 * alone.p)
    assert not find(series(np.hstack([plain, sparse]), 20), error_rate=1.5 * alone.p)


def test_windows_that_repeat_each_other_count_for_less():
    """The same values, each four times over, in one piece or each in one of its own."""
    values = np.repeat(drawn(4, 8, 24, 1), 4, axis=0)
    values[64:] += 3.0
    one = find(series(values, 32), error_rate=1)[0].p
    each = find(StretchSeries(values[:32], values[32:], np.arange(96)), error_rate=1)[0].p
    assert one > 5 * each


@given(usual=st.integers(0, 30), count=st.integers(0, 60), measures=st.integers(1, 12), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_too_little_is_said_exactly_where_no_change_could_be_seen(usual, count, measures, seed):
    values = drawn(seed, usual, count, measures) * 0.01
    held = series(values, usual)
    for start in range(usual, usual + count, 7):
        shifted = values.copy()
        shifted[start:] += np.arange(usual + count - start)[:, None] + 10.0
        if find(series(shifted, usual)):
            assert can_tell(held)
            break


@given(usual=st.integers(0, 20), count=st.integers(3, 40), measures=st.integers(1, 60))
@settings(max_examples=40, deadline=None, derandomize=True)  # by chance one in 700 is not told
def test_a_reference_that_is_long_enough_shows_that_all_is_new(usual, count, measures):
    values = np.random.default_rng(0).normal(size=(usual + count, measures)) * 1e-3
    values[usual:] += 5.0
    held = StretchSeries(values[:usual], values[usual:], np.arange(count))
    needs, told = reference_needed(held), [one.start for one in find(held)]
    if 0 in told:
        assert needs is not None
        assert 2 * usual >= needs  # a start beside the first may be told by the exact test, and is put in its place
    elif needs is not None:
        assert usual < 3 * needs + 6  # what resembles itself by chance counts for less


@pytest.mark.parametrize(("n", "m"), [(3, 4), (5, 5), (1, 9)])
def test_the_exact_test_counts_all_orders(n, m):
    """Beside scipy's exact test, and as a distribution."""
    for u in range(n * m + 1):
        x, y = orders_with(n, m, u)
        other = stats.mannwhitneyu(x, y, method="exact").pvalue
        assert _p(n, m, u / (n * m), n + m + 1, 1.0) == pytest.approx(other)


def orders_with(n, m, u):
    """Values of which exactly ``u`` pairs have the first sample's higher."""
    above = [min(m, max(0, u - m * place)) for place in range(n)]
    return [one + 0.5 - 0.01 * place for place, one in enumerate(above)], [float(k) for k in range(1, m + 1)]


# -- a record that goes on ---------------------------------------------------------------------------------------------

ONE = Measures((0, 1), ("cpu", "forks"), ("level", "level"), 3)


def windows_of(values, recordings):
    return [(name, 2.0 * n, 2.0 * n + 4, row) for n, (name, row) in enumerate(zip(recordings, values, strict=True))]


def fed(record, windows):
    return sum(record.take(*window, ONE) for window in windows)


@given(seed=st.integers(0, 99), cuts=st.lists(st.integers(0, 200), max_size=4), length=st.integers(2, 70))
@settings(max_examples=25, deadline=None)
def test_a_record_in_pieces_is_the_record_at_once(seed, cuts, length):
    """Whatever is kept between the pieces is kept in the file."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(200, 2))
    values[rng.random(values.shape) < 0.1] = np.nan
    values[130:, 1] += 8.0
    windows = windows_of(values, [str(n // length) for n in range(200)])
    whole, pieces = Record().beside(rng.normal(size=(5, 2))), Record()
    pieces = pieces.beside(np.array([np.frombuffer(one, dtype="<f4") for one in whole.usual]))
    fed(whole, windows)
    for low, high in pairwise([0, *sorted(cuts), 200]):
        fed(pieces, windows[low:high])
        pieces = msgspec.json.decode(msgspec.json.encode(pieces), type=Record)
    assert pieces == whole


def test_what_was_told_stays_until_it_is_confirmed_or_the_reference_is_another():
    rng = np.random.default_rng(1)
    usual, values = rng.normal(size=(10, 2)), rng.normal(size=(900, 2))
    values[300:, 1] += 9.0
    values[600:, 0] += 9.0
    record, windows = Record().beside(usual), windows_of(values, ["a"] * 900)
    assert fed(record, windows[:450]) == 1
    assert record.told.moved[0].channel == "forks"
    assert abs(record.told.window - 300) <= 6
    assert record.told.words.startswith(f"has changed since second {2 * record.told.window}: forks ")
    told = record.told
    assert fed(record, windows[450:500]) == 0
    assert record.beside(usual) is record
    assert record.beside(usual[:0]) is record, "without a reference what was known stays"
    assert record.told == told
    assert record.beside(usual + 1) == Record().beside(usual + 1)
    after = record.confirmed()
    assert after.told is None
    assert after.confirmed() is after
    assert fed(after, windows[500:600]) == 0, "it is as it was when somebody confirmed it"
    assert fed(after, windows[600:]) == 1, "a change that comes after it is told"
    assert [one.channel for one in after.told.moved] == ["cpu"]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 8), st.integers(0, 99))
def test_stretches_follow_each_other_within_a_piece_and_are_means_of_what_is_there(pieces, windows, seed):
    """A rest counts where it is more than half a stretch, or all that there is of a recording."""
    values = np.random.default_rng(seed).normal(size=(len(pieces), 2)).astype(np.float32)
    values[::3, 1] = np.nan
    record, names = Record(), [f"piece{number}" for number in sorted(pieces)]
    for name, row in zip(names, values, strict=True):
        record.grow(name, None, row, windows)
    record.end(windows)
    expected, first = [], 0
    for size in np.unique(names, return_counts=True)[1].tolist():
        cuts = range(first, first + size, windows)
        last = first + size - cuts[-1]
        expected += cuts if 2 * last > windows or len(cuts) == 1 else cuts[:-1]
        first += size
    assert [one.window for one in record.stretches] == expected
    for one, mean in zip(record.stretches, record.means(ONE), strict=True):
        here = [row for row, name in enumerate(names) if name == names[one.window] and row >= one.window][:windows]
        there = np.isfinite(values[here]).any(axis=0)
        assert np.isfinite(mean).tolist() == there.tolist()
        np.testing.assert_allclose(mean[there], np.nanmean(values[here][:, there], axis=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("alike", [0.5, 0.8])
def test_a_host_that_goes_on_as_it_was_is_told_to_have_changed_hardly_ever(alike):
    """Looked at again and again, with a reference of three minutes."""
    told = 0
    for seed in range(15):
        record, values = Record(), drawn(seed, 3, 90, 2, alike)
        record = record.beside(values[:3])
        told += fed(record, windows_of(np.repeat(values[3:], 3, axis=0), ["a"] * 270))
    assert told <= 1


# -- the program -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drift")
    data = make_data(folder / "data", reference=True)
    return trainer_builders.trained("gbt", data, folder).checkpoint, data


@pytest.fixture(scope="module")
def shifted_data(tmp_path_factory):
    """beta's second channel is 40 higher from its thirtieth recording on; the other hosts are as they were."""
    from training.data import dataset

    wrote = dataset.write_processed

    def shifted(folder, windows, *rest, **more):
        late = (windows.rows.host == "beta") & (windows.rows.t_start >= 9000)
        windows.X[late, 1] += 40
        return wrote(folder, windows, *rest, **more)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("trainer_builders.write_processed", shifted)
        return make_data(tmp_path_factory.mktemp("shifted"), episodes=150, reference=True, seed=5)


def test_the_program_tells_the_host_the_channel_and_the_time(trained, shifted_data, capsys):
    checkpoint, data = trained[0], shifted_data
    assert command.main([str(checkpoint), str(data), "--json"]) == Exit.DONE
    found = {one["host"]: one for one in json.loads(capsys.readouterr().out)}
    assert [name for name, one in found.items() if one["channels"]] == ["beta"]
    assert found["beta"]["channels"][0]["channel"] == "channel1"
    assert found["beta"]["since"] == pytest.approx(9000, abs=610)
    assert found["beta"]["outside_since"] > 0.9
    assert command.main([str(checkpoint), str(data)]) == Exit.DONE
    said = capsys.readouterr().out
    assert "beta: changed since second 9" in said
    assert "channel1 " in said
    assert "do not believe its alarms" in said
    assert "alpha: no change that lasts" in said


def test_scores_tell_a_change_until_it_is_confirmed_and_lower_no_alarm(trained, shifted_data, tmp_path):
    judged = judge(trained[0], shifted_data)
    rule = usual(judged.inputs.schema.stride_s).to_dict()
    judged = replace(judged, document={**judged.document, "threshold": {"threshold": 0.3}, "incidents": rule})
    whole = follow(judged)
    assert list(whole.changed) == ["beta"]
    told = whole.changed["beta"]
    assert told.moved[0].channel == "channel1"
    assert told.since == pytest.approx(9000, abs=610)
    alone = Streams(judged.document["digest"], rule_of(judged.document))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Record, "take", lambda *_: False)
        assert follow(judged).called == whole.called, "no incident is another one for it"
    at = judged.inputs.rows.t_start
    for cut in (0, 4000, 9100, 12_000, 10**6):
        state, pieces = tmp_path / f"state{cut}", {}
        for here in (np.flatnonzero(at < cut), np.flatnonzero(at >= cut - 50)):  # some windows come twice
            if here.size:
                part = replace(
                    judged,
                    inputs=replace(
                        judged.inputs, rows=judged.inputs.rows.take(here), features=judged.inputs.features[here]
                    ),
                    scored=judged.scored.take(here),
                )
                found = follow(part, state)
                pieces |= {one.id: one for one in found.called}
        assert found.changed == whole.changed
        assert sorted(pieces) == sorted(one.id for one in whole.called)
    assert "changed     beta has changed since second 9" in "\n".join(lines(judged, changed=found.changed))
    assert follow(judged, state).changed == whole.changed, "it is told again"
    with pytest.raises(BadArguments, match="knows no change of alpha"):
        follow(judged, state, ["alpha"])
    assert follow(judged, state, ["beta"]).changed == {}
    assert alone.load(state) is None
    assert len(alone.hosts["beta"].usual) == pytest.approx(20, abs=2)


def test_without_references_the_program_says_what_cannot_be_seen(trained, tmp_path):
    checkpoint, _ = trained
    found = drift(judge(checkpoint, make_data(tmp_path / "data", seed=5)))
    assert all(one.reference_stretches == 0 for one in found)
    assert all("It has no reference" in one.lines()[0] for one in found)


def test_each_host_is_held_against_its_own_reference(trained):
    judged, held = judge(*trained), []
    inputs = judged.inputs
    names, number = np.unique(inputs.reference_host, return_inverse=True)
    features = np.repeat(number[:, None], inputs.reference_features.shape[1], axis=1).astype(np.float32)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shift_test, "can_tell", lambda series: bool(held.append(series)))
        found = drift(replace(judged, inputs=replace(inputs, reference_features=features)))
    assert [one.host for one in found] == names.tolist()
    assert [np.unique(series.usual).tolist() for series in held] == [[0.0], [1.0], [2.0]]


def moved(**changed):
    one = Moved("cpu", "level", 1.0, 50.0, 1_795_000_000.0, 1e-6)
    fields = {
        "host": "den",
        "stretches": 90,
        "reference_stretches": 20,
        "measures": 4,
        "enough_to_tell": True,
        "reference_needed": 4,
        "channels": (one,),
        "start": 30,
    }
    return Drift(**{**fields, **changed})


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (moved(alarms_before=0.02, alarms_since=0.03, outside_since=0.0), "has not made it louder"),
        (moved(alarms_before=0.02, alarms_since=0.3, outside_since=0.0), "an attack that stays looks like this"),
        (moved(alarms_before=0.02, alarms_since=0.0, outside_since=0.5), "nor their absence"),
        (moved(start=0, alarms_since=0.3), "what its usual work raises is not known"),
        (moved(), "has no threshold"),
        (moved(channels=(), start=None), "as far as the model's report goes"),
        (moved(channels=(), enough_to_tell=False), "is not known"),
        (moved(channels=(), start=None, doubts=("It has no reference.",)), "with care: It has no reference."),
    ],
)
def test_whether_to_believe_it_is_a_sentence(found, said):
    assert said in found.believe()
    assert found.believe() == found.to_dict()["believe"]


def test_moments_are_dates_where_they_can_be():
    assert when(1_795_000_000.0, 3) == "2026-11-18 11:06:40 UTC"
    assert when(12.0, 3) == "second 12"
    assert when(None, 3) == "its window 4"
    assert "unlike its reference from its first window on" in moved(start=0).lines()[0]
    assert "changed since 2026-11-18 11:06:40 UTC: cpu 1 → 50" in moved().lines()[0]

"""Summaries of windows: right against plain formulas, finite for anything finite, the same however they are chunked."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from training.data import features
from training.data.features import STATISTICS, extract, feature_specs
from training.data.schema import ChannelSpec

HZ = 8.0


def channels(count, oracle_from=None):
    both, lab = ("oracle", "realistic"), ("oracle",)
    return tuple(
        ChannelSpec(
            name=f"c{i}", unit="B/s", kind="counter", modes=both if oracle_from is None or i < oracle_from else lab
        )
        for i in range(count)
    )


def named(X, specs):
    values = extract(X.astype(np.float32), specs, HZ)
    return {f.name: values[:, i] for i, f in enumerate(feature_specs(specs))}


def test_statistics_are_what_their_names_say():
    X = np.random.default_rng(0).normal(size=(5, 2, 32)).astype(np.float32)
    got, x = named(X, channels(2)), X[:, 0].astype(float)
    t = np.arange(32) / HZ
    expected = {
        "mean": x.mean(1),
        "std": x.std(1),
        "min": x.min(1),
        "max": x.max(1),
        "slope": [np.polyfit(t, row, 1)[0] for row in x],
        "q10": np.quantile(x, 0.10, axis=1),
        "q75": np.quantile(x, 0.75, axis=1),
        "diff_abs_mean": np.abs(np.diff(x, axis=1)).mean(1),
        "diff_std": np.diff(x, axis=1).std(1),
    }
    for statistic, value in expected.items():
        np.testing.assert_allclose(got[f"c0.{statistic}"], value, rtol=1e-4, atol=1e-5)
    correlation = [np.corrcoef(a, b)[0, 1] for a, b in X]
    np.testing.assert_allclose(got["c0~c1.corr"], correlation, rtol=1e-4, atol=1e-5)


def test_a_slow_wave_lies_in_the_first_band_and_a_fast_one_in_the_last():
    t = np.arange(64) / 64
    X = np.stack([np.sin(2 * np.pi * 1 * t), np.sin(2 * np.pi * 30 * t)])[:, None]
    got = named(X, channels(1))
    bands = np.array([got[f"c0.band{b}"] for b in range(features.BANDS)])
    assert bands.argmax(axis=0).tolist() == [0, features.BANDS - 1]
    assert got["c0.lag1"][0] > 0.9
    assert got["c0.lag1"][1] < -0.9


def test_constant_channels_are_safe():
    got = named(np.full((3, 2, 16), 7.0), channels(2))
    for name, values in got.items():
        statistic = name.partition(".")[2]
        level = statistic in ("mean", "min", "max") or statistic.startswith("q")
        np.testing.assert_array_equal(values, 7.0 if level else 0.0)


@settings(max_examples=60)
@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(4, 70)),
        elements=st.floats(-20, 20, width=32),
    )
)
def test_finite_windows_give_finite_features(X):
    assert np.isfinite(extract(X, channels(X.shape[1]), HZ)).all()


@pytest.mark.parametrize(("count", "width", "samples"), [(3, 64, 16), (2, 1, 2000), (40, 3, 16)])
def test_the_table_fits_its_specs_and_does_not_depend_on_chunks(monkeypatch, count, width, samples):
    X = np.random.default_rng(1).normal(size=(count, width, samples)).astype(np.float32)
    whole = extract(X, channels(width), HZ)
    assert whole.shape == (count, len(feature_specs(channels(width))))
    monkeypatch.setattr(features, "BLOCK_VALUES", 1)
    np.testing.assert_array_equal(whole, extract(X, channels(width), HZ))


def test_what_is_not_finite_is_refused():
    X = np.zeros((2, 1, 16), dtype=np.float32)
    X[1, 0, 3] = np.nan
    with pytest.raises(ValueError, match="infinite value"):
        extract(X, channels(1), HZ)


def test_a_mode_sees_a_correlation_only_of_channels_that_it_sees():
    specs = feature_specs(channels(4, oracle_from=2))
    for spec in specs:
        seen_by_realistic = all(int(c[1:]) < 2 for c in spec.channel.split("~"))
        assert ("realistic" in spec.modes) == seen_by_realistic
    assert len({s.name for s in specs}) == len(specs)


def test_sixty_four_channels_have_no_two_thousand_correlations():
    pairs = [s for s in feature_specs(channels(64)) if s.statistic == "corr"]
    assert len(pairs) == features.CORRELATED_MAX * (features.CORRELATED_MAX - 1) // 2
    assert len(feature_specs(channels(64))) == 64 * len(STATISTICS) + len(pairs)

"""Intervals of rates on simulated tests: how often do they lie wholly below the truth, or call a broken promise kept?

    python bench/interval.py [--tests 2000] [--json]

An episode has a rate of its own, drawn around the true one (beta-binomial, 15 windows an episode); its windows share
60 % of their variance. Beside Korn and Graubard's interval stand the expanded percentiles of a bootstrap by episode.
The promise is half the true rate. Bars: wholly below the truth in at most 6 % of the tests, and a promise of half the
rate called kept in at most 5 %. Below, the interval of a number of events a day, of recordings whose rates differ.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from training.trainer.evaluation.intervals import bootstrap, percentile_interval
from training.trainer.evaluation.rates import count_interval, rate_interval
from training.trainer.evaluation.verdict import KEPT

WINDOWS, ICC = 15, 0.6
EPISODES, RATES = (12, 44, 88), (0.02, 0.05, 0.1, 0.3)
BELOW, CALLED_KEPT = 0.06, 0.05
RESAMPLED = 200  # tests that the bootstrap is tried on


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--tests", type=int, default=2_000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = [rates(n, rate, args.tests) for n in EPISODES for rate in RATES]
    counted = [counts(n, mean, args.tests) for n in EPISODES for mean in (0.1, 1.0)]
    worst = {name: max(one[name] for one in found) for name in ("below", "called_kept")}
    good = worst["below"] <= BELOW and worst["called_kept"] <= CALLED_KEPT
    if args.json:
        print(json.dumps({"rates": found, "counts": counted, "worst": worst, "good": good}))
        return 0 if good else 1
    print(f"{args.tests:,} tests of {WINDOWS} windows an episode, {ICC:.0%} of the variance shared; share of the tests")
    print("episodes  true rate   below   above  promise of half kept  mean width   bootstrap below")
    for one in found:
        print(
            f"{one['episodes']:8} {one['rate']:10.0%} {one['below']:7.1%} {one['above']:7.1%}"
            f" {one['called_kept']:21.1%} {one['width']:11.3f} {one['bootstrap_below']:17.1%}"
        )
    print("recordings  events each   below   above")
    for one in counted:
        print(f"{one['recordings']:10} {one['mean']:12} {one['below']:7.1%} {one['above']:7.1%}")
    print(
        f"worst: {worst['below']:.1%} below (bar {BELOW:.0%}), {worst['called_kept']:.1%} kept (bar {CALLED_KEPT:.0%})"
    )
    return 0 if good else 1


def rates(episodes: int, rate: float, tests: int) -> dict[str, float]:
    rng = np.random.default_rng(0)
    spread = (1 - ICC) / ICC
    own = rng.beta(rate * spread, (1 - rate) * spread, (tests, episodes))
    alarms = rng.binomial(WINDOWS, own).astype(np.float64)
    ends = np.array([rate_interval(each, np.full(episodes, float(WINDOWS))) for each in alarms])
    plain = [percentiles(each) for each in alarms[:RESAMPLED]]
    low, high = ends.T
    return {
        "episodes": episodes,
        "rate": rate,
        "below": float((high < rate).mean()),
        "above": float((low > rate).mean()),
        "called_kept": float(((low <= rate / 2) & (high < KEPT * rate / 2)).mean()),
        "width": float((high - low).mean()),
        "bootstrap_below": float(np.mean([one is not None and one[1] < rate for one in plain])),
    }


def percentiles(alarms: np.ndarray) -> tuple[float, float] | None:
    drawn = bootstrap(
        [lambda weights: {"rate": weights @ alarms / (weights.sum(axis=1) * WINDOWS)}],
        n_episodes=alarms.size,
        n_windows=alarms.size,
        n_resamples=1_000,
        seed=0,
    )
    return percentile_interval(drawn["rate"], alarms.size)


def counts(recordings: int, mean: float, tests: int) -> dict[str, float]:
    """Events of recordings whose own rates are exponentially distributed around ``mean``."""
    rng = np.random.default_rng(0)
    events = rng.poisson(rng.gamma(1.0, mean, (tests, recordings))).astype(np.float64)
    low, high = np.array([count_interval(each, np.ones(recordings)) for each in events]).T
    return {
        "recordings": recordings,
        "mean": mean,
        "below": float((high < mean).mean()),
        "above": float((low > mean).mean()),
    }


if __name__ == "__main__":
    raise SystemExit(main())

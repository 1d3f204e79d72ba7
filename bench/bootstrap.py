"""Speed of the intervals: a 1,000-fold cluster bootstrap of the AUROC against a thousand calls of scikit-learn.

``python bench/bootstrap.py [--windows 20000] [--episodes 400] [--resamples 1000] [--json]``. Both sides get the same
draws of episodes and must agree on every resample; the processor time of one thread is what counts. Bar: at most 0.3 s.
"""

from __future__ import annotations

import argparse
import json
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy: one thread on both sides
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from sklearn.metrics import roc_auc_score

from training.data.rows import Rows
from training.trainer.evaluation.intervals import RankMeasure, bootstrap, draw_weights
from training.trainer.evaluation.metrics import Classes, Scored, evaluate, operating_point

BAR_S = 0.3
ROUNDS = 3
LABELS = Classes(("benign", "malicious"), ("benign",))


def make_windows(n_windows: int, n_episodes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores that share a part inside each episode, in random order; three in ten episodes are malicious-like."""
    rng = np.random.default_rng(seed)
    episode = rng.permutation(np.arange(n_windows) % n_episodes)
    positive = (rng.random(n_episodes) < 0.3)[episode]
    score = rng.normal(size=n_windows) + rng.normal(size=n_episodes)[episode] + positive
    return episode, positive, score


def ours(episode, positive, score, n_resamples):
    n_episodes = int(episode.max()) + 1
    measure = RankMeasure(score, positive, episode, auprc=False)
    size = {"n_episodes": n_episodes, "n_windows": episode.size}
    return bootstrap([measure], **size, n_resamples=n_resamples, seed=0)["auroc"].samples


def everything(episode, positive, score, n_resamples):
    """The whole evaluation of a report: eleven metrics, overall and for three hosts, and the curves."""
    proba = 1 / (1 + np.exp(-score))
    start = np.arange(episode.size) * 2.0
    rows = Rows.of(label=positive, episode=episode, host=episode % 3, t_start=start, t_end=start + 4.0)
    windows = Scored.build(rows, proba=np.stack([1 - proba, proba], axis=1), classes=LABELS)
    point = operating_point(windows, 0.05, classes=LABELS)
    return evaluate(windows, classes=LABELS, operating_point=point, n_resamples=n_resamples)


def scikit_learn(episode, positive, score, n_resamples):
    """The plain way: gather the windows of the episodes drawn and ask for their AUROC."""
    n_episodes = int(episode.max()) + 1
    rows_of = np.split(np.argsort(episode, kind="stable"), np.cumsum(np.bincount(episode))[:-1])
    samples = []
    for weights in draw_weights(n_episodes, episode.size, n_resamples, seed=0):
        for row in weights:
            drawn = np.concatenate([rows_of[e] for e in np.repeat(np.arange(n_episodes), row)])
            samples.append(roc_auc_score(positive[drawn], score[drawn]))
    return np.array(samples)


def timed(work, *arguments):
    began = time.process_time()
    answer = work(*arguments)
    return time.process_time() - began, answer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--windows", type=int, default=20_000)
    parser.add_argument("--episodes", type=int, default=400)
    parser.add_argument("--resamples", type=int, default=1_000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    data = make_windows(args.windows, args.episodes)

    ours_s, theirs_s, report_s = [], [], []
    for _ in range(ROUNDS):  # in turn, so that a busy machine bothers all of them
        seconds, mine = timed(ours, *data, args.resamples)
        ours_s.append(seconds)
        seconds, plain = timed(scikit_learn, *data, args.resamples)
        theirs_s.append(seconds)
        report_s.append(timed(everything, *data, args.resamples)[0])
        np.testing.assert_allclose(mine, plain, atol=1e-9)
    found = {
        "windows": args.windows,
        "episodes": args.episodes,
        "resamples": args.resamples,
        "cluster_bootstrap_s": round(float(np.median(ours_s)), 4),
        "scikit_learn_s": round(float(np.median(theirs_s)), 3),
        "times_faster": round(float(np.median(theirs_s) / np.median(ours_s)), 1),
        "whole_evaluation_s": round(float(np.median(report_s)), 3),
        "bar_s": BAR_S,
    }
    if args.json:
        print(json.dumps(found))
    else:
        print(f"{args.resamples:,} resamples of {args.episodes:,} episodes, {args.windows:,} windows, CPU seconds")
        print(f"  cluster bootstrap of the AUROC   {found['cluster_bootstrap_s']:8.3f} s  (bar {BAR_S} s)")
        print(f"  scikit-learn, one call a resample {found['scikit_learn_s']:7.3f} s")
        print(f"  ratio                            {found['times_faster']:8.1f} times faster, equal values")
        print(f"  the whole evaluation of a report {found['whole_evaluation_s']:8.3f} s")
    return 0 if found["cluster_bootstrap_s"] <= BAR_S else 1


if __name__ == "__main__":
    raise SystemExit(main())

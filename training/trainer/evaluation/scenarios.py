"""Alarms by scenario: which ordinary work raises false alarms, and which behaviour is caught."""

from collections.abc import Sequence

import numpy as np

from training.data.values import Bools, Floats32, JsonDict, Names
from training.trainer.evaluation.figures import shown_rate
from training.trainer.evaluation.scored import BENIGN, LIKE, Classes, Scored
from training.trainer.task import auroc

MOST = 40  # scenarios of a kind: of more, those with the most windows


def by_scenario(test: Scored, alarm: Bools, scenario: Names, behaviour: Names, classes: Classes) -> list[JsonDict]:
    """Compute the share of windows that raise an alarm: of benign windows by scenario, of the others by behaviour.

    All arrays are (N,). JSON values: ``name, kind, windows, episodes, rate {value, ci95}``: of each kind the ``MOST``
    names with the most windows, the highest rate first. A benign window without a known scenario counts under its
    class.
    """
    benign = classes.is_benign(test.y)
    own = np.array(classes.names, str)[test.y]
    names = np.where(benign, np.where(scenario == "", own, scenario), behaviour)
    found = []
    for kind, of_kind in ((BENIGN, benign), (LIKE, ~benign)):
        known, count = np.unique(names[of_kind], return_counts=True)
        kept = known[np.argsort(-count, kind="stable")[:MOST]]
        rows = [_row(name, kind, test, alarm, of_kind & (names == name)) for name in sorted(kept.tolist())]
        found += sorted(rows, key=lambda row: -float(row["rate"]["value"]))
    return found


def _row(name: str, kind: str, test: Scored, alarm: Bools, here: Bools) -> JsonDict:
    _, of = np.unique(test.rows.recording[here], return_inverse=True)
    raised, windows = (np.bincount(of, weights=each).astype(float) for each in (alarm[here], np.ones(of.size)))
    rate = shown_rate(raised, windows)
    return {"name": name, "kind": kind, "windows": int(of.size), "episodes": int(windows.size), "rate": rate}


def best_alone(features: Floats32, names: Sequence[str], alarming: Bools) -> JsonDict | None:
    """Return the feature (of N, F) with the highest AUROC alone, in either direction; None if no AUROC can be
    computed."""
    best = None
    for place, name in enumerate(names):
        values = features[:, place]
        known = np.isfinite(values)
        value = auroc(alarming[known], values[known].astype(float))
        if value is not None and (best is None or max(value, 1 - value) > best[0]):
            best = max(value, 1 - value), name
    return None if best is None else {"feature": best[1], "auroc": round(best[0], 6)}

"""Thresholds by host beside the calibrated one: the rates of both on the test side, and sentences on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.trainer.evaluation.host_levels import FEWEST, ReferenceScores, Rule, doubt_on
from training.trainer.evaluation.scored import Classes, Scored
from training.trainer.evaluation.thresholds import OperatingPoint


def by_host(
    test: Scored, point: OperatingPoint | None, references: ReferenceScores, classes: Classes
) -> dict[str, Any]:
    """The rates of each test host at its threshold, and at the calibrated one alone.

    JSON values: ``rule`` and ``why`` (null without references), ``all`` and ``hosts`` by name, each with ``fpr``,
    ``tpr``, ``calibrated_fpr`` and ``calibrated_tpr`` (null without such windows); a host also has its ``threshold``,
    the ``calibrated`` one, the ``windows`` of its reference, and ``alarming``: the share of these above the calibrated
    threshold. Without a threshold there are no hosts.
    """
    alarm = None if point is None else point.alarms(test)
    if point is None or alarm is None or point.threshold is None:
        return {"rule": None, "why": None, "all": {}, "hosts": {}}
    alone, benign = test.score > point.threshold, classes.is_benign(test.y)

    def rates(where: NDArray[np.bool_]) -> dict[str, float | None]:
        pairs = {"": alarm, "calibrated_": alone}
        kinds = {"fpr": where & benign, "tpr": where & ~benign}
        return {
            f"{prefix}{name}": round(float(raised[rows].mean()), 6) if rows.any() else None
            for prefix, raised in pairs.items()
            for name, rows in kinds.items()
        }

    hosts = {}
    for name in sorted(set(test.rows.host.tolist())):
        own = references.of(name).score
        hosts[name] = {
            "threshold": point.threshold if point.hosts is None else point.hosts.of(name),
            "calibrated": point.threshold,
            "windows": int(own.size),
            "alarming": round(float((own > point.threshold).mean()), 6) if own.size else None,
            **rates(test.rows.host == name),
        }
    rule = None if point.hosts is None else point.hosts.rule.value
    why = None if point.hosts is None else point.hosts.why
    return {"rule": rule, "why": why, "all": rates(np.ones(test.y.size, dtype=bool)), "hosts": hosts}


RULES = {
    Rule.CALIBRATED: "Thresholds are the calibrated one on every host",
    Rule.ONLY_UP: "A host's own reference may raise its threshold, never lower it",
    Rule.FOLLOWS: "A host's threshold follows its own reference, up and down",
}


def notes_on_hosts(found: Mapping[str, Any]) -> list[str]:
    """Sentences for a reader: the rule and why, what the calibrated threshold alone gave, and doubts on references."""
    if not found["hosts"]:
        return []
    without = [name for name, one in found["hosts"].items() if one["windows"] < FEWEST]
    if found["rule"] is None:
        return ["No host has a reference recording: every host has the calibrated threshold, which may not hold there."]
    said = [f"{RULES[Rule(found['rule'])]}: {found['why']}."]
    used, alone = (found["all"][name] for name in ("fpr", "calibrated_fpr"))
    if used is not None:
        caught, alone_caught = (found["all"][name] for name in ("tpr", "calibrated_tpr"))
        both = "" if caught is None else f", {alone_caught:.1%} caught instead of {caught:.1%}"
        said.append(f"With the calibrated threshold alone: {alone:.1%} false alarms instead of {used:.1%}{both}.")
    if without:
        said.append(
            f"{_are(without)} without a reference of {FEWEST} windows or more: the calibrated threshold stands there."
        )
    doubts = [doubt_on(name, one["alarming"], one["windows"]) for name, one in found["hosts"].items()]
    return [*said, *(doubt for doubt in doubts if doubt is not None)]


def _are(names: list[str]) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"

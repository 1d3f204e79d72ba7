"""A report's figures as the rules of the verdict see them: named values, and words for the sentences.

Pure, from the report's JSON values; the rules themselves are in `verdict`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from training.trainer.evaluation.chance import SIDE
from training.trainer.evaluation.scored import BENIGN, LIKE, MALICIOUS, NAMELESS

Metric = Mapping[str, Any]
Report = Mapping[str, Any]

CHANCE = 0.5
LOUD = 1.5  # times the promised false alarms, from which a promise is broken and not somewhat missed
MISSING: Metric = {"value": None, "ci95": None}
PLAIN = {
    "logistic_regression": "A logistic regression",
    "isolation_forest": "An isolation forest",
    "mahalanobis": "The Mahalanobis distance",
    "lof": "The local outlier factor",
}


class Facts:
    """Figures by the names that rules and sentences use; strings are ready to stand in a sentence."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._metrics: Mapping[str, Metric] = report["metrics"]["test"]
        self._point: Mapping[str, Any] = report.get("operating_point") or {}
        self._split: Mapping[str, Any] = report["split"]
        self._words: Mapping[str, str] = (report.get("classes") or {}).get("words") or {}

    # -- the ranking ---------------------------------------------------------------------------------------------------

    @property
    def rank(self) -> Metric:
        """The AUROC; without the classes that never trained where there are such."""
        return self._metrics.get("auroc_trained") or self._metrics["auroc"]

    @property
    def auroc(self) -> str:
        return f"{self.rank['value']:.2f}"

    @property
    def auroc_interval(self) -> str:
        return "{:.2f} to {:.2f}".format(*self.rank["ci95"])

    @property
    def no_auroc(self) -> str:
        return str(self.rank.get("reason", "a class is missing"))

    @property
    def not_certain(self) -> str:
        return self._no_interval or "too few episodes to say how certain that is"

    @property
    def not_how_much(self) -> str:
        return self._no_interval or "on too few episodes to say by how much"

    @property
    def _no_interval(self) -> str:
        """The reason for no interval when it lies with the number of resamples; else empty."""
        reason = str(self.rank.get("reason", ""))
        return reason if "resamples" in reason else ""

    @property
    def chance_refused(self) -> bool:
        """By the exact test, on the side of 0.5 where the value lies."""
        found = self.rank.get("chance")
        return found is not None and found["p"] <= SIDE

    @property
    def powerless(self) -> bool:
        """So few ways to deal the labels that the exact test could refuse nothing."""
        found = self.rank.get("chance")
        return found is not None and found["counted"] and found["ways"] * SIDE < 1

    @property
    def odds(self) -> str:
        return f"{round(1 / self.rank['chance']['p']):,}"

    # -- classes -------------------------------------------------------------------------------------------------------

    @property
    def never_trained(self) -> str:
        """Classes that a classifier never trained on; an anomaly score learns from benign windows alone."""
        names = (self._split.get("never_trained") or []) if self.supervised else []
        return listed([f"'{name}'" for name in names]) if names else ""

    @property
    def n_classes(self) -> int:
        confusion = self._report.get("confusion")
        return 0 if confusion is None else len(confusion["labels"])

    @property
    def accuracy(self) -> str:
        return percent(self._metrics["accuracy"]["value"])

    @property
    def balanced(self) -> str:
        return percent(self._metrics["balanced_accuracy"]["value"])

    @property
    def named(self) -> bool:
        return all(self._metrics[name]["value"] is not None for name in ("accuracy", "balanced_accuracy"))

    # -- behaviours that were not shown --------------------------------------------------------------------------------

    @cached_property
    def _new(self) -> Mapping[str, Any]:
        return self._report.get("new_behaviours") or {}

    @property
    def new(self) -> Mapping[str, Metric] | None:
        """The figures of behaviours that were not shown; None where none was left out."""
        return self._new.get("all")

    @property
    def new_auroc(self) -> str:
        value = None if self.new is None else self.new["auroc"]["value"]
        return "unknown" if value is None else f"{value:.2f}"

    @property
    def new_caught(self) -> str:
        return "" if self.new is None else percent(self.new["tpr"]["value"])

    @property
    def not_left_out(self) -> str:
        return str(self._new.get("why") or "")

    # -- alarms --------------------------------------------------------------------------------------------------------

    @property
    def threshold(self) -> float | None:
        return self._point.get("threshold")

    @property
    def no_threshold(self) -> str:
        return str(self._point.get("reason") or "none was calibrated")

    @property
    def alarms_wanted(self) -> bool:
        """Some class is benign, so that there should be a threshold."""
        classes = self._report.get("classes")
        return classes is None or bool(classes["benign"])

    @property
    def tpr(self) -> Metric:
        return self._metrics["tpr"]

    @property
    def fpr(self) -> Metric:
        return self._metrics["fpr"]

    @property
    def caught(self) -> str:
        return percent(self.tpr["value"])

    @property
    def caught_interval(self) -> str:
        return interval(self.tpr)

    @property
    def malicious(self) -> str:
        return self._words.get(MALICIOUS, LIKE)

    @property
    def and_false(self) -> str:
        if self.fpr["value"] is None:
            return ""
        benign = self._words.get(BENIGN, BENIGN)
        return f" and raises an alarm in {percent(self.fpr['value'])} of {benign} ones"

    @property
    def target_fpr(self) -> float:
        return float(self._point["target_fpr"])

    @property
    def target(self) -> str:
        return percent(self.target_fpr)

    @property
    def false(self) -> str:
        return percent(self.fpr["value"])

    @property
    def false_interval(self) -> str:
        return interval(self.fpr)

    def above(self, rate: float) -> float:
        """Divide a rate by the promised one; 0.15 is 1.5 times 0.1, also in floating point."""
        return round(rate / self.target_fpr, 9)

    @property
    def times(self) -> str:
        return f"{self.above(self.fpr['value']):.1f}"

    @property
    def alarms_a_day(self) -> Metric:
        return self._metrics["alerts_per_host_day"]

    @property
    def alarms(self) -> str:
        return about(self.alarms_a_day["value"])

    @property
    def stream(self) -> str:
        return " for each recording that runs" if self.alarms_a_day.get("of") == "recording" else ""

    # -- incidents -----------------------------------------------------------------------------------------------------

    @property
    def incidents(self) -> Mapping[str, Any]:
        """Reports of before have none."""
        return self._report.get("incidents") or {"caught": MISSING, "delay_s": MISSING, "false_per_host_day": MISSING}

    @property
    def inc_caught(self) -> Metric:
        found: Metric = self.incidents["caught"]
        return found

    @property
    def called(self) -> str:
        return percent(self.inc_caught["value"])

    @property
    def called_interval(self) -> str:
        return interval(self.inc_caught)

    @property
    def delay(self) -> str:
        """Empty where nothing was caught or there is no clock."""
        value = self.incidents["delay_s"]["value"]
        return "" if value is None else f", {span(value)} after they begin (median)"

    @property
    def false_incidents(self) -> Metric:
        found: Metric = self.incidents["false_per_host_day"]
        return found

    @property
    def calls(self) -> str:
        return about(self.false_incidents["value"])

    @property
    def calls_interval(self) -> str:
        return "{} to {}".format(*(about(bound) for bound in self.false_incidents["ci95"]))

    @property
    def benign_time(self) -> str:
        return span(3600 * self.false_incidents["benign_hours"])

    @property
    def smallest(self) -> str:
        return about(self.false_incidents["smallest_rate"])

    @property
    def no_alarms_a_day(self) -> str:
        return str(self.alarms_a_day.get("reason", ""))

    # -- machines ------------------------------------------------------------------------------------------------------

    @property
    def where(self) -> str:
        """As the split has them, never as its recipe is called."""
        unseen, seen = (list(self._split.get(k) or []) for k in ("unseen_hosts", "seen_hosts"))
        if (not unseen and not seen) or NAMELESS in (*unseen, *seen):
            return "on this test"
        known = f"{seen[0]} (a machine it was trained on)" if len(seen) == 1 else "machines it was trained on"
        new = f"{unseen[0]} (a machine it has not seen)" if len(unseen) == 1 else "machines it has not seen"
        if not unseen:
            return f"on {known}" if len(seen) == 1 else f"on the {known}"
        if not seen:
            return f"on {new}"
        others = new if len(unseen) == 1 else f"others it has not seen ({listed(unseen)})"
        return f"on {known} and {others}"

    @property
    def Where(self) -> str:  # noqa: N802 - the same words at the beginning of a sentence
        return self.where[0].upper() + self.where[1:]

    @cached_property
    def lonely(self) -> str:
        """Hosts that recorded one class or kind; nothing where it is all of them: then that has been said already."""
        alone: dict[str, list[str]] = {}
        for name, found in sorted(self._report["per_host"].items()):
            kind = found["one_class"]
            for other, alike in ((MALICIOUS, BENIGN), (BENIGN, LIKE)):
                if kind is None and found.get(other) == 0:
                    kind = alike
            if kind is not None:
                alone.setdefault(kind, []).append(name)
        parts = [
            f"{listed(names)} recorded only {label} windows"
            for label, names in alone.items()
            if len(names) < len(self._report["per_host"])
        ]
        return ", ".join(parts)

    @cached_property
    def worst(self) -> tuple[str, float] | None:
        """The host of several that surely raises the most alarms above the promise, and how many times."""
        rates = {name: found["fpr"] for name, found in self._report["per_host"].items()}
        known = {name: rate for name, rate in rates.items() if rate["value"] is not None}
        sure = {
            name: self.above(rate["value"])
            for name, rate in known.items()
            if self.threshold is not None and rate["ci95"] is not None and rate["ci95"][0] > self.target_fpr
        }
        if len(known) < 2 or not sure:
            return None
        name = max(sorted(sure), key=lambda name: sure[name])
        return name, sure[name]

    @property
    def worst_host(self) -> str:
        return "" if self.worst is None else self.worst[0]

    @property
    def worst_times(self) -> str:
        return "" if self.worst is None else f"{self.worst[1]:.1f}"

    @cached_property
    def blind(self) -> tuple[str, Metric] | None:
        """The host on which surely less is caught than on another, and less than half of what is caught in all."""
        rates = {name: found["tpr"] for name, found in self._report["per_host"].items()}
        sure = {name: rate for name, rate in rates.items() if rate["value"] is not None and rate["ci95"] is not None}
        if self.tpr["value"] is None or not sure:
            return None
        most = max(rate["ci95"][0] for rate in sure.values())
        less = [
            name
            for name, rate in sorted(sure.items())
            if rate["ci95"][1] < most and rate["value"] < self.tpr["value"] / 2
        ]
        if not less:
            return None
        name = min(less, key=lambda name: sure[name]["value"])
        return name, sure[name]

    @property
    def blind_host(self) -> str:
        return "" if self.blind is None else self.blind[0]

    @property
    def blind_caught(self) -> str:
        return "" if self.blind is None else percent(self.blind[1]["value"])

    # -- scenarios -----------------------------------------------------------------------------------------------------

    @cached_property
    def noisiest(self) -> Mapping[str, Any] | None:
        """The benign scenario that surely raises the most alarms above the promise, of several."""
        found = [one for one in self._report.get("scenarios") or () if one["kind"] == BENIGN]
        sure = [
            one
            for one in found
            if self.threshold is not None
            and one["rate"]["ci95"] is not None
            and one["rate"]["ci95"][0] > self.target_fpr
            and self.above(one["rate"]["value"]) >= LOUD
        ]
        if len(found) < 2 or not sure:
            return None
        return max(sure, key=lambda one: float(one["rate"]["value"]))

    @property
    def noisy(self) -> str:
        return "" if self.noisiest is None else f"'{self.noisiest['name']}'"

    @property
    def noisy_rate(self) -> str:
        return "" if self.noisiest is None else percent(self.noisiest["rate"]["value"])

    # -- plain methods -------------------------------------------------------------------------------------------------

    @property
    def supervised(self) -> bool:
        return self._metrics["ece"]["value"] is not None

    @cached_property
    def rival(self) -> tuple[str, Mapping[str, Any]] | None:
        """The best plain method of the model's own kind that is surely better than chance."""
        kind = "supervised" if self.supervised else "anomaly"
        rivals = {
            name: found
            for name, found in self._report["baselines"].items()
            if found["kind"] == kind and above_chance(found.get("auroc"))
        }
        if not rivals or self._metrics["auroc"]["value"] is None:
            return None
        best = max(sorted(rivals), key=lambda name: rivals[name]["auroc"]["value"])
        return best, rivals[best]

    @property
    def ahead(self) -> float:
        """AUROC by which the rival is better."""
        assert self.rival is not None
        return float(self.rival[1]["auroc"]["value"] - self._metrics["auroc"]["value"])

    @property
    def surely_ahead(self) -> bool:
        gap = None if self.rival is None else (self.rival[1].get("gap") or {}).get("ci95")
        return gap is not None and gap[0] > 0

    @property
    def surely_behind(self) -> bool:
        gap = None if self.rival is None else (self.rival[1].get("gap") or {}).get("ci95")
        return gap is not None and gap[1] < 0

    @property
    def a_plain(self) -> str:
        """The rival within a sentence."""
        return self.plain[0].lower() + self.plain[1:]

    @property
    def plain(self) -> str:
        assert self.rival is not None
        return PLAIN.get(self.rival[0], self.rival[0])

    @property
    def against(self) -> str:
        assert self.rival is not None
        theirs, mine = self.rival[1]["auroc"]["value"], self._metrics["auroc"]["value"]
        return f"AUROC {theirs:.3f} against {mine:.3f}"

    # -- the data ------------------------------------------------------------------------------------------------------

    @property
    def auroc_exactly(self) -> str:
        return f"{self.rank['value']:.3f}"

    @property
    def alone(self) -> str:
        """The feature that comes closest by itself; nothing in reports that did not look for it."""
        found = self._report.get("alone")
        return "" if not found else f" (by itself {found['feature']} has {found['auroc']:.3f})"

    @property
    def warning(self) -> str:
        return str(self._point.get("warning") or "")

    @property
    def quarantined(self) -> str:
        number = self._report["quarantined"]["n"]
        return (
            f"{number} episode{'s' if number != 1 else ''} failed validation and "
            f"{'were' if number != 1 else 'was'} left out"
            if number
            else ""
        )


def above_chance(auroc: Metric | None) -> bool:
    """Return True for an AUROC surely above chance: something at chance itself is no rival."""
    return auroc is not None and auroc["ci95"] is not None and auroc["ci95"][0] > CHANCE


def percent(share: float) -> str:
    """Whole per cents, but no rounding to nothing or everything."""
    whole = round(100 * share)
    if (whole == 0 and share > 0) or (whole == 100 and share < 1) or 0.5 < 100 * share < 9.95:
        return f"{100 * share:.1f} %".replace(".0 %", " %")
    return f"{whole} %"


def interval(metric: Metric) -> str:
    low, high = (percent(bound).removesuffix(" %") for bound in metric["ci95"])
    return f"{low} to {high} %"


def about(number: float) -> str:
    if number < 10:
        return f"{number:.1f}".removesuffix(".0")
    magnitude = 10 ** (len(str(int(number))) - 2)
    return f"{round(number / magnitude) * magnitude:,}"


def span(seconds: float) -> str:
    """Seconds, minutes, hours or days, whichever says it shortest."""
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{about(seconds / size)} {unit}"
    return f"{about(seconds)} s"


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"

"""A report in plain words: what the model catches, what its alarms cost, and whether to believe it.

Pure: from the report's JSON values to sentences. The figures behind each sentence stand in the report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

Report = Mapping[str, Any]

CHANCE = 0.5
TOO_GOOD = 0.99
BROKEN_PROMISE = 1.5  # realised over promised false alarms from which the promise counts as broken
LITTLE = 0.3  # of the malicious-like windows: what is caught below this is called little
AS_GOOD = 0.005  # AUROC: closer than this is no difference
CLEARLY_BELOW = 0.02  # AUROC by which an anomaly detector may stay below the best plain one
PLAIN = {
    "logistic_regression": "A logistic regression",
    "isolation_forest": "An isolation forest",
    "mahalanobis": "The Mahalanobis distance",
    "lof": "The local outlier factor",
}


class Level(IntEnum):
    """How much a reader may rely on the model; the worst finding counts."""

    GOOD = 0
    CAUTION = 1
    POOR = 2


@dataclass(slots=True)
class _Words:
    sentences: list[str] = field(default_factory=list)
    level: Level = Level.GOOD

    def say(self, sentence: str, level: Level = Level.GOOD) -> None:
        self.sentences.append(sentence)
        self.level = max(self.level, level)


def verdict(report: Report) -> str:
    """The sentences, joined; the first one stands for itself."""
    return " ".join(_judge(report).sentences)


def level(report: Report) -> str:
    """``good``, ``caution`` or ``poor``."""
    return _judge(report).level.name.lower()


def _judge(report: Report) -> _Words:
    words = _Words()
    metrics = report["metrics"]["test"]
    _say_ranking(words, metrics)
    if words.level is not Level.POOR:
        _say_classes(words, report)
        _say_alarms(words, report)
    _say_hosts(words, report)
    _say_baselines(words, report)
    _say_too_good(words, report)
    _say_data(words, report)
    return words


def _say_ranking(words: _Words, metrics: Mapping[str, Any]) -> None:
    """Only what ends the discussion: a missing class, chance, and worse than chance."""
    value, ci95 = metrics["auroc"]["value"], metrics["auroc"]["ci95"]
    if value is None:
        why = metrics["auroc"].get("reason", "a class is missing")
        words.say(f"How well it tells the classes apart cannot be said: {why}.", Level.CAUTION)
    elif ci95 is not None and ci95[0] <= CHANCE <= ci95[1]:
        words.say(
            f"Cannot be told from chance on this test (AUROC {value:.2f}, 95 % interval "
            f"{ci95[0]:.2f} to {ci95[1]:.2f}): do not use it.",
            Level.POOR,
        )
    elif value < CHANCE:
        words.say(
            f"Worse than chance (AUROC {value:.2f}): it ranks benign windows above malicious-like "
            "ones: do not use it.",
            Level.POOR,
        )
    elif ci95 is None:
        words.say(
            f"AUROC {value:.2f}, but too few episodes to say how certain that is.", Level.CAUTION
        )


def _say_classes(words: _Words, report: Report) -> None:
    confusion = report.get("confusion")
    if confusion is None or len(confusion["labels"]) <= 2:
        return
    metrics = report["metrics"]["test"]
    accuracy, balanced = metrics["accuracy"]["value"], metrics["balanced_accuracy"]["value"]
    if accuracy is not None and balanced is not None:
        words.say(
            f"Names the right one of {len(confusion['labels'])} classes in {_percent(accuracy)} of "
            f"windows ({_percent(balanced)} when every class counts the same)."
        )


def _say_alarms(words: _Words, report: Report) -> None:
    point = report.get("operating_point")
    metrics = report["metrics"]["test"]
    caught, false = metrics["tpr"]["value"], metrics["fpr"]["value"]
    if point is None or point["threshold"] is None:
        reason = (point or {}).get("reason") or "none was calibrated"
        if "no class" not in reason:
            words.say(f"It has no alarm threshold: {reason}.", Level.CAUTION)
        return
    if caught is not None:
        much = Level.GOOD if caught >= LITTLE else Level.CAUTION
        only = "Catches only" if caught < LITTLE else "Catches"
        words.say(f"{only} {_percent(caught)} of malicious-like windows{_and_false(false)}.", much)
    if false is not None:
        _say_promise(words, report, metrics["fpr"])
    alerts = metrics["alerts_per_host_day"]["value"]
    if alerts:
        words.say(f"On a quiet host that is about {_about(alerts)} alarms a day.")


def _and_false(false: float | None) -> str:
    return "" if false is None else f" and raises an alarm in {_percent(false)} of benign ones"


def _say_promise(words: _Words, report: Report, fpr: Mapping[str, Any]) -> None:
    target = report["operating_point"]["target_fpr"]
    unseen = report["split"]["recipe"] == "host"
    where = "on machines it has not seen" if unseen else "on the machines it was trained on"
    times = fpr["value"] / target
    certain = fpr["ci95"] is not None and fpr["ci95"][0] > target
    if times < BROKEN_PROMISE:
        words.say(f"It keeps its promise of {_percent(target)} false alarms {where}.")
    elif certain:
        words.say(
            f"{where.capitalize()} it raises {times:.1f} times the alarms it promised: "
            "do not rely on it there.",
            Level.POOR,
        )
    else:
        words.say(
            f"{where.capitalize()} it seems to raise {times:.1f} times the alarms it promised, "
            "but the test is too small to be sure.",
            Level.CAUTION,
        )


def _say_hosts(words: _Words, report: Report) -> None:
    hosts = report["per_host"]
    point = report.get("operating_point") or {}
    alone: dict[str, list[str]] = {}
    for name, found in sorted(hosts.items()):
        if found["one_class"] is not None:
            alone.setdefault(found["one_class"], []).append(name)
    for label, names in alone.items():
        if len(names) < len(
            hosts
        ):  # where it is all of them, the missing class has been named already
            words.say(
                f"{_listed(names)} recorded only {label} windows, and so cannot show both catches "
                "and false alarms.",
                Level.CAUTION,
            )
    rates = {name: found["fpr"]["value"] for name, found in hosts.items()}
    known = {name: rate for name, rate in rates.items() if rate is not None}
    if len(known) < 2 or words.level is Level.POOR:
        return
    worst = max(known, key=lambda name: known[name])
    interval, target = hosts[worst]["fpr"]["ci95"], point["target_fpr"]
    if known[worst] >= BROKEN_PROMISE * target and interval is not None and interval[0] > target:
        words.say(
            f"Worst on {worst}: {known[worst] / target:.1f} times the promised alarms.",
            Level.CAUTION,
        )


def _say_baselines(words: _Words, report: Report) -> None:
    """A supervised model is held against the logistic regression, an anomaly score against its own kind."""
    mine = report["metrics"]["test"]["auroc"]["value"]
    if mine is None:
        return
    supervised = report["metrics"]["test"]["ece"]["value"] is not None
    kind, slack = ("supervised", AS_GOOD) if supervised else ("anomaly", CLEARLY_BELOW)
    rivals = {
        name: found
        for name, found in report["baselines"].items()
        if found["kind"] == kind and _better_than_chance(found.get("auroc"))
    }
    if not rivals:
        return
    best = max(rivals, key=lambda name: rivals[name]["auroc"]["value"])
    name, value = PLAIN.get(best, best), rivals[best]["auroc"]["value"]
    against = f"(AUROC {value:.3f} against {mine:.3f})"
    gap = (rivals[best].get("gap") or {}).get("ci95")
    if value > mine + slack and gap is not None and gap[0] > 0:
        words.say(f"{name} on the same features does better {against}: prefer it.", Level.CAUTION)
    elif value > mine + slack:
        words.say(
            f"{name} on the same features does better {against}, though the test is too small to be sure.",
            Level.CAUTION,
        )
    elif value > mine - AS_GOOD:
        words.say(f"{name} on the same features does as well {against}.")


def _better_than_chance(auroc: Mapping[str, Any] | None) -> bool:
    """Surely so: something at chance itself is no rival, whatever its third digit."""
    return auroc is not None and auroc["ci95"] is not None and auroc["ci95"][0] > CHANCE


def _say_too_good(words: _Words, report: Report) -> None:
    value = report["metrics"]["test"]["auroc"]["value"]
    if value is not None and value > TOO_GOOD:
        words.say(
            f"An AUROC of {value:.3f} smells of leakage: look for a channel that gives the label "
            "away before believing it.",
            Level.CAUTION,
        )


def _say_data(words: _Words, report: Report) -> None:
    warning = (report.get("operating_point") or {}).get("warning")
    if warning:
        words.say(f"The threshold is uncertain: {warning}.", Level.CAUTION)
    quarantined = report["quarantined"]["n"]
    if quarantined:
        words.say(
            f"{_count(quarantined, 'episode')} failed validation and {_was(quarantined)} left out."
        )


def _percent(share: float) -> str:
    """Whole per cents, but no rounding to nothing or everything."""
    whole = round(100 * share)
    if (whole == 0 and share > 0) or (whole == 100 and share < 1) or 0.5 < 100 * share < 9.95:
        return f"{100 * share:.1f} %".replace(".0 %", " %")
    return f"{whole} %"


def _about(number: float) -> str:
    if number < 10:
        return f"{number:.1f}".removesuffix(".0")
    magnitude = 10 ** (len(str(int(number))) - 2)
    return f"{round(number / magnitude) * magnitude:,}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _was(number: int) -> str:
    return "was" if number == 1 else "were"

"""A report's figures as the verdict's rules use them: named values, and phrases for the sentences.

The facts are computed from the report's JSON values alone; the rules themselves are in `verdict`.
"""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace

from training.data.values import Json
from training.trainer.evaluation.chance import SIDE
from training.trainer.evaluation.scored import BENIGN, LIKE, MALICIOUS, NAMELESS

Metric = Json
Report = Json

AS_GOOD = 0.005  # AUROC: closer than this is no difference
CHANCE = 0.5
LOUD = 1.5  # times the promised false alarms, from which a promise is broken and not somewhat missed
MISSING = {"value": None, "ci95": None}
PLAIN = {
    "logistic_regression": "A logistic regression",
    "isolation_forest": "An isolation forest",
    "mahalanobis": "The Mahalanobis distance",
    "lof": "The local outlier factor",
}


class Facts(SimpleNamespace):
    """A report's figures, as attributes whose names the verdict's rules and sentences use. A text is a part of a
    sentence, or empty."""

    def above(self, rate: float) -> float:
        """Return a false-alarm rate as a multiple of the promised one, rounded so that 0.15 is exactly 1.5 times
        0.1."""
        return round(rate / float(self.target_fpr), 9)


def facts_of(report: Report) -> Facts:
    """Compute all facts from a report."""
    metrics = report["metrics"]["test"]
    split, words = report["split"], report["classes"]["words"]
    facts = Facts(
        # Without the classes that never trained where there are such.
        rank=metrics.get("auroc_trained") or metrics["auroc"],
        tpr=metrics["tpr"],
        fpr=metrics["fpr"],
        alarms_a_day=metrics["alerts_per_host_day"],
        supervised=metrics["ece"]["value"] is not None,
        alarms_wanted=bool(report["classes"]["benign"]),
        n_classes=0 if report["confusion"] is None else len(report["confusion"]["labels"]),
        malicious=words.get(MALICIOUS, LIKE),
        has_examples=bool(report.get("has_examples")),
    )
    _add_alarms(facts, report["operating_point"] or {}, words.get(BENIGN, BENIGN))
    _add_ranking(facts, metrics, report.get("alone"))
    _add_incidents(facts, report["incidents"])
    _add_hosts(facts, report["per_host"])
    _add_rival(facts, report["baselines"], metrics["auroc"]["value"])
    # A classifier never saw these; an anomaly score learns from benign windows alone.
    never = split["never_trained"] if facts.supervised else []
    facts.never_trained = listed([f"'{name}'" for name in never]) if never else ""
    facts.where = _where(list(split["unseen_hosts"]), list(split["seen_hosts"]))
    facts.Where = facts.where[0].upper() + facts.where[1:]
    found = report.get("new_behaviours") or {}
    facts.new, facts.not_left_out = found.get("all"), str(found.get("why") or "")
    new = facts.new or {"auroc": MISSING, "tpr": MISSING}
    facts.new_auroc, facts.new_caught = _said(new["auroc"], "{:.2f}".format) or "unknown", _said(new["tpr"], percent)
    facts.noisiest = _noisiest(facts, report.get("scenarios") or ())
    facts.noisy, facts.noisy_rate = "", ""
    if facts.noisiest:
        facts.noisy, facts.noisy_rate = f"'{facts.noisiest['name']}'", _said(facts.noisiest["rate"], percent)
    number = report["quarantined"]["n"]
    episodes = "1 episode failed validation and was" if number == 1 else f"{number} episodes failed validation and were"
    facts.quarantined = f"{episodes} left out" if number else ""
    return facts


def _add_ranking(facts: Facts, metrics: Mapping[str, Metric], alone: Json | None) -> None:
    rank, chance = facts.rank, facts.rank.get("chance")
    reason = str(rank.get("reason", ""))
    no_interval = reason if "resamples" in reason else ""
    facts.auroc, facts.auroc_exactly = (_said(rank, form.format) for form in ("{:.2f}", "{:.3f}"))
    facts.auroc_interval = _bounds(rank, "{:.2f}".format)
    facts.no_auroc = reason or "a class is missing"
    facts.not_certain = no_interval or "too few episodes to say how certain that is"
    facts.not_how_much = no_interval or "on too few episodes to say by how much"
    # By the exact test, on the side of 0.5 where the value lies.
    facts.chance_refused = chance is not None and chance["p"] <= SIDE
    # So few ways to deal the labels that the exact test could refuse nothing.
    facts.powerless = chance is not None and chance["counted"] and chance["ways"] * SIDE < 1
    facts.odds = f"{round(1 / chance['p']):,}" if chance is not None and chance["p"] else ""
    at_threshold = metrics["accuracy_at_threshold"]
    accuracy = metrics["accuracy"] if at_threshold["value"] is None else at_threshold
    facts.accuracy, facts.balanced = (_said(each, percent) for each in (accuracy, metrics["balanced_accuracy"]))
    facts.named = bool(facts.accuracy and facts.balanced)
    facts.at_threshold = "" if at_threshold["value"] is None else " at the alarm threshold"
    # The feature that comes closest by itself.
    facts.alone = "" if not alone else f" (alone {alone['feature']} has {alone['auroc']:.3f})"


def _add_alarms(facts: Facts, point: Json, benign: str) -> None:
    facts.threshold = point.get("threshold")
    facts.no_threshold = str(point.get("reason") or "none was calibrated")
    facts.target_fpr, facts.warning = point.get("target_fpr"), str(point.get("warning") or "")
    facts.target = "" if facts.target_fpr is None else percent(facts.target_fpr)
    tpr, fpr, day = facts.tpr, facts.fpr, facts.alarms_a_day
    facts.caught, facts.caught_interval = _said(tpr, percent), interval(tpr)
    facts.false, facts.false_interval = _said(fpr, percent), interval(fpr)
    facts.and_false = f" and raises an alarm in {facts.false} of {benign} ones" if facts.false else ""
    facts.times = "" if fpr["value"] is None or not facts.target_fpr else f"{facts.above(fpr['value']):.1f}"
    facts.alarms = _said(day, about)
    facts.stream = " for each recording that runs" if day.get("of") == "recording" else ""
    facts.no_alarms_a_day = str(day.get("reason", ""))


def _add_incidents(facts: Facts, found: Json | None) -> None:
    """Add the facts on incidents; ``found`` is None without a threshold."""
    found = found or {"caught": MISSING, "delay_s": MISSING, "false_per_host_day": MISSING}
    caught, false = found["caught"], found["false_per_host_day"]
    facts.inc_caught, facts.false_incidents = caught, false
    facts.called, facts.called_interval = _said(caught, percent), interval(caught)
    facts.delay = _said(found["delay_s"], lambda delay: f", {span(delay)} after they begin (median)")
    facts.calls, facts.calls_interval = _said(false, about), _bounds(false, about)
    if facts.calls_interval:
        facts.benign_time, facts.smallest = span(3600 * false["benign_hours"]), about(false["smallest_rate"])


def _where(unseen: list[str], seen: list[str]) -> str:
    """Describe the test's hosts, seen and unseen in training, by the split's rows; "on this test" if a host has no
    name."""
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


def _add_hosts(facts: Facts, per_host: Json) -> None:
    facts.lonely = _lonely(per_host)
    fpr, tpr = ({name: found[rate] for name, found in sorted(per_host.items())} for rate in ("fpr", "tpr"))
    # The host of several that surely raises the most alarms above the promise, and how many times.
    loud = {name: facts.above(rate["value"]) for name, rate in fpr.items() if _surely_above(facts, rate)}
    several = sum(rate["value"] is not None for rate in fpr.values()) >= 2
    facts.worst_host = max(loud, key=loud.__getitem__, default="") if several else ""
    facts.worst = loud.get(facts.worst_host)
    facts.worst_times = "" if facts.worst is None else f"{facts.worst:.1f}"
    # The host on which surely less is caught than on another, and less than half of what is caught in all.
    sure = {name: rate for name, rate in tpr.items() if rate["value"] is not None and rate["ci95"] is not None}
    most, half = max((rate["ci95"][0] for rate in sure.values()), default=0.0), (facts.tpr["value"] or 0.0) / 2
    less = [name for name, rate in sure.items() if rate["ci95"][1] < most and rate["value"] < half]
    facts.blind_host = min(less, key=lambda name: sure[name]["value"], default="")
    facts.blind_caught = percent(sure[facts.blind_host]["value"]) if less else ""


def _lonely(per_host: Json) -> str:
    """Return words that name the hosts that recorded a single class or kind, and which; a class that all hosts recorded
    alone is left out. The text is empty if no host is to be named in it."""
    alone: dict[str, list[str]] = {}
    for name, found in sorted(per_host.items()):
        kind = found["one_class"]
        for other, alike in ((MALICIOUS, BENIGN), (BENIGN, LIKE)):
            if kind is None and found.get(other) == 0:
                kind = alike
        if kind is not None:
            alone.setdefault(kind, []).append(name)
    parts = [
        f"{listed(names)} recorded only {label} windows" for label, names in alone.items() if len(names) < len(per_host)
    ]
    return ", ".join(parts)


def _noisiest(facts: Facts, scenarios: Sequence[Json]) -> Json | None:
    """Return, of the benign scenarios that count, the one with the highest rate of false alarms; None if none counts,
    or if there are not two benign scenarios.

    A scenario counts if its rate is surely above the promise, and at least ``LOUD`` times as high.
    """
    found = [one for one in scenarios if one["kind"] == BENIGN]
    sure = [one for one in found if _surely_above(facts, one["rate"]) and facts.above(one["rate"]["value"]) >= LOUD]
    if len(found) < 2 or not sure:
        return None
    return max(sure, key=lambda one: float(one["rate"]["value"]))


def _surely_above(facts: Facts, rate: Metric) -> bool:
    """Tell whether a rate's whole interval lies above the promise; False without a threshold or an interval."""
    return bool(facts.threshold is not None and rate["ci95"] is not None and rate["ci95"][0] > facts.target_fpr)


def _add_rival(facts: Facts, baselines: Json, mine: float | None) -> None:
    """Add the facts on the best plain method of the model's kind; only methods surely better than chance count."""
    kind = "supervised" if facts.supervised else "anomaly"
    rivals = {
        name: found
        for name, found in sorted(baselines.items())
        if mine is not None and found["kind"] == kind and above_chance(found.get("auroc"))
    }
    facts.rival = max(rivals, key=lambda name: float(rivals[name]["auroc"]["value"]), default=None)
    if facts.rival is None or mine is None:
        return
    best = rivals[facts.rival]
    theirs, gap = best["auroc"]["value"], (best.get("gap") or {}).get("ci95")
    facts.ahead = float(theirs - mine)  # AUROC by which the rival is better
    facts.surely_ahead, facts.surely_behind = gap is not None and gap[0] > 0, gap is not None and gap[1] < 0
    facts.plain = PLAIN.get(facts.rival, facts.rival)
    facts.a_plain = facts.plain[0].lower() + facts.plain[1:]
    of_subject, other = (theirs, mine) if facts.ahead > -AS_GOOD else (mine, theirs)  # the sentence's subject first
    facts.against = f"AUROC {of_subject:.3f} against {other:.3f}"


def _said(metric: Metric, words: Callable[[float], str]) -> str:
    return "" if metric["value"] is None else words(metric["value"])


def _bounds(metric: Metric, words: Callable[[float], str]) -> str:
    """Format the bounds of a figure's 95 % interval, ``20 to 31``; empty without an interval."""
    return "" if metric["ci95"] is None else " to ".join(map(words, metric["ci95"]))


def above_chance(auroc: Metric | None) -> bool:
    """Tell whether the whole interval of an AUROC lies above 0.5; only such plain methods are compared with the
    model."""
    return auroc is not None and auroc["ci95"] is not None and auroc["ci95"][0] > CHANCE


def percent(share: float) -> str:
    """Format a share in per cent: with one decimal, unless it is 0, below 10 % and where a whole number would wrongly
    show 0 or 100 %; otherwise as a whole number."""
    whole = round(100 * share)
    if (whole == 0 and share > 0) or (whole == 100 and share < 1) or 0.5 < 100 * share < 9.95:
        return f"{100 * share:.1f} %".replace(".0 %", " %")
    return f"{whole} %"


def interval(metric: Metric) -> str:
    """Format a figure's 95 % interval in per cent, ``20 to 31 %``; empty without an interval."""
    return _bounds(metric, percent).replace(" % ", " ")


def about(number: float) -> str:
    if number < 10:
        return f"{number:.1f}".removesuffix(".0")
    magnitude = 10 ** (len(str(int(number))) - 2)
    return f"{round(number / magnitude) * magnitude:,}"


def span(seconds: float) -> str:
    """Format seconds in the largest of days, hours and minutes that gives at least 2; otherwise in seconds."""
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{about(seconds / size)} {unit}"
    return f"{about(seconds)} s"


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"

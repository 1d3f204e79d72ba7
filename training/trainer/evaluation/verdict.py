"""The verdict of a report: one table of rules says what the model catches, what its alarms cost, and whether to trust
it.

Each rule is a condition on figures and their intervals, a level and a sentence. For each subject the first rule that
applies gives its sentence; the worst level counts. After a poor ranking, only some subjects follow. Four short lines
come first; what only an author of models needs follows them. docs/evaluation.md sums up what lowers the level.
"""

from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple

from training.trainer.evaluation.facts import AS_GOOD, CHANCE, LOUD, Facts, Metric, Report, facts_of

TOO_GOOD = 0.99
KEPT = 2.0  # times the promised false alarms: the interval of a kept promise ends below
HOURLY = 24.0  # false incidents a day: nobody looks that often
LITTLE = 0.3  # of the malicious-like windows: what is caught below this is called little
CLEARLY_BELOW = 0.02  # AUROC by which an anomaly detector may stay below the best plain one


class Reliance(IntEnum):
    """The degree to which a reader may rely on the model; a report's degree is that of its worst finding."""

    GOOD = 0
    CAUTION = 1
    POOR = 2


Condition = Callable[[Facts], Any]


class VerdictRule(NamedTuple):
    """One line of the table of rules. ``says`` is a sentence with names of `Facts` in braces; empty if the rule adds
    none."""

    level: Reliance
    says: str
    applies: Condition
    about: str = ""
    when: str = ""


good, caution, poor = (partial(VerdictRule, level) for level in Reliance)
Subject = dict[str, VerdictRule]  # by the words on when they apply; the first that does speaks


def _low(metric: Metric) -> float:
    return 0.0 if metric["ci95"] is None else float(metric["ci95"][0])


def _always(_: Facts) -> bool:
    return True


def _below_chance(f: Facts) -> bool:
    ci95 = f.rank["ci95"]
    return bool(f.rank["value"] < CHANCE and (f.chance_refused or (ci95 is not None and ci95[1] < CHANCE)))


def _loud(f: Facts) -> bool:
    """Tell whether the measured false-alarm rate itself is at least ``LOUD`` times the promise, whatever its
    interval."""
    return bool(f.above(f.fpr["value"]) >= LOUD)


def _surely_loud(f: Facts) -> bool:
    return _low(f.fpr) > f.target_fpr


def _promised(f: Facts) -> bool:
    return f.threshold is not None and f.fpr["value"] is not None


def _better(f: Facts) -> bool:
    return bool(f.ahead > (AS_GOOD if f.supervised else CLEARLY_BELOW))


EXAMPLES, RANKING, NAMES, CLASSES, NEW = (
    "rows that are windows",
    "ranking",
    "classes that never trained",
    "classes",
    "new behaviours",
)
ALARMS, CALLED, CAUGHT, PROMISE, PER_DAY = "threshold", "incidents", "caught", "false alarms", "calls a day"
LONELY, WORST, BLIND, RIVAL = "hosts of one class", "hosts", "hosts that miss", "plain methods"
NOISY = "benign scenarios"
LEAKAGE, WARNING, LEFT_OUT = "leakage", "calibration", "quarantine"
FEWEST = "least that can be shown"
# The four lines: what it catches, how often it calls falsely, new behaviours, a plain method beside it. Of the subjects
# of a group the first that speaks is in the line, unless a later one is poor.
LINES = (
    ((EXAMPLES,), (RANKING,), (CALLED, CAUGHT, CLASSES)),
    ((ALARMS, PER_DAY, PROMISE),),
    ((NEW,),),
    ((RIVAL,), (LEAKAGE,)),
)
# The reason in a clause: why a finding about this subject lowers the level.
WHY = {
    (Reliance.POOR, RANKING): "it is no better than chance on this test",
    (Reliance.POOR, PROMISE): "it raises far more false alarms than promised",
    (Reliance.CAUTION, RANKING): "its AUROC is not certain",
    (Reliance.CAUTION, NAMES): "the test has classes that never trained",
    (Reliance.CAUTION, ALARMS): "it has no alarm threshold",
    (Reliance.CAUTION, CALLED): "it may miss most incidents",
    (Reliance.CAUTION, CAUGHT): "it may catch little",
    (Reliance.CAUTION, NEW): "it may miss new behaviours",
    (Reliance.CAUTION, PROMISE): "it may raise more false alarms than promised",
    (Reliance.CAUTION, PER_DAY): "it calls falsely too often",
    (Reliance.CAUTION, LONELY): "some hosts recorded one class alone",
    (Reliance.CAUTION, WORST): "it raises too many alarms on one host",
    (Reliance.CAUTION, BLIND): "it catches little on one host",
    (Reliance.CAUTION, RIVAL): "a plain method may be better",
    (Reliance.CAUTION, LEAKAGE): "its AUROC smells of leakage",
    (Reliance.CAUTION, WARNING): "its threshold is uncertain",
}
AFTER_CHANCE = (NAMES, LONELY, RIVAL, LEAKAGE, WARNING, LEFT_OUT)  # what is said even where the ranking ended it


def _share(metric: str, name: str, verb: str, rest: str, few: str, whens: tuple[str, str]) -> Subject:
    """Build the rules about a share that is caught: ``metric`` names its figure in `Facts`, ``name`` its text in
    sentences."""
    said = f"{{{name}}}"

    def given(applies: Callable[[Metric], Any]) -> Condition:
        return lambda f: vars(f)[metric]["value"] is not None and applies(vars(f)[metric])

    return {
        whens[0]: caution(f"{verb} only {said} {rest}.", given(lambda found: found["value"] < LITTLE)),
        whens[1]: caution(
            f"{verb} {said} {rest}, on too few {few} to say how certain that is.",
            given(lambda found: found["ci95"] is None),
        ),
        "the interval reaches below 30 %": caution(
            f"{verb} {said} (95 % interval {{{name}_interval}}) {rest}.", given(lambda found: _low(found) < LITTLE)
        ),
        "otherwise": good(f"{verb} {said} {rest}.", given(lambda _: True)),
    }


SUBJECTS = {
    EXAMPLES: {
        "each window is a row of a table": good(
            "Each window is one row of a table and no stretch of time, so no figure says how often it calls.",
            lambda f: f.has_examples,
        )
    },
    RANKING: {
        "there is no AUROC": caution(
            "How well it tells the classes apart is unknown: {no_auroc}.", lambda f: f.rank["value"] is None
        ),
        "AUROC below 0.5, and its interval too or chance refused by the exact test": poor(
            "Worse than chance (AUROC {auroc}): its scores point the wrong way: do not use it.", _below_chance
        ),
        "interval of the AUROC above 0.5": good("", lambda f: _low(f.rank) > CHANCE),
        "interval contains 0.5 or there is none; AUROC above 0.5 and chance refused by the exact test": caution(
            "Better than chance (AUROC {auroc}; by chance 1 test in {odds} is as good), but {not_how_much}.",
            lambda f: f.chance_refused,
        ),
        "interval contains 0.5, AUROC above 0.5, and on so few episodes not even a perfect model could refuse "
        "chance": caution(
            "Too few episodes to tell any model from chance (AUROC {auroc}, 95 % interval {auroc_interval}): record "
            "more before believing this one.",
            lambda f: f.rank["ci95"] is not None and f.rank["value"] > CHANCE and f.powerless,
        ),
        "interval contains 0.5, and the exact test does not refuse chance": poor(
            "Not distinguishable from chance here (AUROC {auroc}, 95 % interval {auroc_interval}): do not use it.",
            lambda f: f.rank["ci95"] is not None,
        ),
        "no interval, AUROC 0.5 or below": poor(
            "AUROC {auroc} on this test: nothing speaks for it, and {not_certain}.", lambda f: f.rank["value"] <= CHANCE
        ),
        "no interval": caution("AUROC {auroc}, but {not_certain}.", _always),
    },
    NAMES: {
        "the test has classes of which no window trained": caution(
            "No window of {never_trained} trained: it cannot know what it never saw, and figures over all classes "
            "suffer from it.",
            lambda f: f.never_trained,
        )
    },
    CLASSES: {
        "more than two classes, or none of them benign": good(
            "Names the right one of {n_classes} classes in {accuracy} of windows{at_threshold} ({balanced} when every "
            "class counts the same).",
            lambda f: (f.n_classes > 2 or not f.alarms_wanted) and f.named,
        )
    },
    ALARMS: {
        "a class is benign, and there is no threshold": caution(
            "It has no alarm threshold: {no_threshold}.", lambda f: f.alarms_wanted and f.threshold is None
        )
    },
    CALLED: _share(
        "inc_caught",
        "called",
        "Calls a person in",
        "of {malicious} stretches{delay}",
        "recordings",
        ("incidents in less than 30 % of the stretches", "no interval of that share"),
    ),
    CAUGHT: _share(
        "tpr",
        "caught",
        "Catches",
        "of {malicious} windows{and_false}",
        "episodes",
        ("caught below 30 %", "no interval of what is caught"),
    ),
    NEW: {
        "none was left out of training, though there are several": good(
            "New behaviours are not measured: {not_left_out}.",
            lambda f: f.new is None and f.not_left_out,
        ),
        "each left out of a training of its own, and no threshold": caution(
            "A behaviour it was not shown: AUROC {new_auroc}.", lambda f: f.new and f.new["tpr"]["value"] is None
        ),
        "caught of them below 30 %": caution(
            "A behaviour it was not shown: AUROC {new_auroc}, caught only {new_caught}.",
            lambda f: f.new and f.new["tpr"]["value"] < LITTLE,
        ),
        "no interval of that, or it reaches below 30 %": caution(
            "A behaviour it was not shown: AUROC {new_auroc}, caught {new_caught}, on too few recordings to be sure.",
            lambda f: f.new and _low(f.new["tpr"]) < LITTLE,
        ),
        "otherwise": good(
            "A behaviour it was not shown: AUROC {new_auroc}, caught {new_caught}.", lambda f: f.new is not None
        ),
    },
    PROMISE: {
        "no interval of the rate of false alarms": caution(
            "Whether it keeps its promise of {target} false alarms {where} is unknown: too few benign episodes.",
            lambda f: f.fpr["ci95"] is None,
        ),
        "interval above the promise, rate 1.5 times the promise or more": poor(
            "{Where} it raises {times} times the alarms it promised: do not rely on it there.",
            lambda f: _surely_loud(f) and _loud(f),
        ),
        "interval above the promise": caution(
            "{Where} it raises somewhat more false alarms than promised: {false} ({false_interval}), not {target}.",
            _surely_loud,
        ),
        "interval ends below twice the promise": good(
            "It keeps its promise of {target} false alarms {where}.", lambda f: f.above(f.fpr["ci95"][1]) < KEPT
        ),
        "interval contains the promise, rate 1.5 times the promise or more": caution(
            "{Where} it seems to raise {times} times the alarms it promised, but the test is too small to be sure.",
            _loud,
        ),
        "interval contains the promise and reaches further": caution(
            "Too few benign episodes to say whether it keeps its promise of {target} false alarms {where}: {false}, "
            "but perhaps {false_interval}.",
            _always,
        ),
    },
    PER_DAY: {
        "interval of the false incidents above one an hour": caution(
            "On a host as busy as those tested it calls falsely about {calls} times a day{stream} ({calls_interval}): "
            "too often to look.",
            lambda f: _low(f.false_incidents) > HOURLY,
        ),
        "an interval of the false incidents": good(
            "On a host as busy as those tested it calls falsely about {calls} times a day{stream} ({calls_interval}).",
            lambda f: f.false_incidents["ci95"] is not None,
        ),
        "there are alarms, and the clock is known": good(
            "On a host as busy as those tested it raises about {alarms} alarms a day{stream}.",
            lambda f: f.alarms_a_day["value"],
        ),
        "there is a rate of false alarms, and the clock is not known": good(
            "How many alarms a day that is, is unknown: {no_alarms_a_day}.",
            lambda f: _promised(f) and f.alarms_a_day["value"] is None and not f.has_examples,
        ),
    },
    FEWEST: {
        "an interval of the false incidents": good(
            "{benign_time} of benign data cannot show fewer than {smallest} false calls a day.",
            lambda f: f.false_incidents["ci95"] is not None,
        )
    },
    LONELY: {
        "a class is benign, and some hosts, not all, recorded benign or malicious-like windows alone": caution(
            "{lonely}, and so cannot show both catches and false alarms.", lambda f: f.alarms_wanted and f.lonely
        )
    },
    WORST: {
        "interval of a host above the promise, rate 1.5 times the promise or more": caution(
            "Worst on {worst_host}: {worst_times} times the promised alarms.",
            lambda f: f.worst is not None and f.worst >= LOUD,
        )
    },
    BLIND: {
        "interval of what is caught on a host below that of another, and less than half of what is caught "
        "in all": caution(
            "Least on {blind_host}: it catches {blind_caught} of the {malicious} windows there.", lambda f: f.blind_host
        )
    },
    NOISY: {
        "interval of a benign scenario above the promise, rate 1.5 times the promise or more": good(
            "Its false alarms come from {noisy} first: {noisy_rate} of the windows there.",
            lambda f: f.noisiest is not None,
        )
    },
    RIVAL: {
        "better than the model by more than 0.005 (anomaly scores: 0.02), interval of the gap above 0": caution(
            "{plain} does better ({against}): prefer it.", lambda f: _better(f) and f.surely_ahead
        ),
        "better by as much, interval contains 0": caution(
            "{plain} does better ({against}), but the test is too small to be sure.", _better
        ),
        "within 0.005": good("{plain} does as well ({against}).", lambda f: f.ahead > -AS_GOOD),
        "worse than the model, interval of the gap below 0": good(
            "It does better than {a_plain} ({against}).", lambda f: f.surely_behind
        ),
        "worse, interval contains 0": good(
            "It does better than {a_plain} ({against}), but the test is too small to be sure.",
            _always,
        ),
    },
    LEAKAGE: {
        "AUROC above 0.99": caution(
            "An AUROC of {auroc_exactly} smells of leakage: look first for a channel that gives the label away{alone}.",
            lambda f: f.rank["value"] is not None and f.rank["value"] > TOO_GOOD,
        )
    },
    WARNING: {
        "too few calibration episodes for the promise": caution(
            "The threshold is uncertain: {warning}.", lambda f: f.warning
        )
    },
    LEFT_OUT: {"episodes failed validation": good("{quarantined}.", lambda f: f.quarantined)},
}
NEEDS = {PROMISE: _promised, RIVAL: lambda f: f.rival}  # of a whole subject
RULES = [rule._replace(about=about, when=when) for about, own in SUBJECTS.items() for when, rule in own.items()]


class Verdict(NamedTuple):
    """The words that judge a model. ``lines`` has the four lines, fewer where nothing is known; ``more`` the other
    sentences; ``why`` the reason for the level in a clause, empty for a good one."""

    lines: list[str]
    more: str
    level: str
    why: str


def verdict(report: Report) -> Verdict:
    """Judge a report. The level (``good``, ``caution``, ``poor``) is the worst of the rules that apply."""
    facts = facts_of(report)
    found = _judged(facts)
    said = {rule.about: rule.says.format_map(vars(facts)) for rule in found.values() if rule.says}
    lines = []
    for groups in LINES:
        speak = [[found[about] for about in group if about in said] for group in groups]
        chosen = [max(group, key=lambda rule: rule.level is Reliance.POOR) for group in speak if group]
        lines.append(" ".join(said.pop(rule.about) for rule in chosen))
    worst = max(found.values(), key=lambda rule: rule.level)
    why = WHY.get((worst.level, worst.about), "")
    return Verdict([line for line in lines if line], " ".join(said.values()), worst.level.name.lower(), why)


def _judged(facts: Facts) -> dict[str, VerdictRule]:
    """Return the first rule that applies for each subject, in the order of the table.

    After a poor ranking only the subjects in ``AFTER_CHANCE`` follow.
    """
    found, ended = dict[str, VerdictRule](), False
    for rule in RULES:
        if rule.about in found or (ended and rule.about not in AFTER_CHANCE):
            continue
        if NEEDS.get(rule.about, _always)(facts) and rule.applies(facts):
            found[rule.about] = rule
            # Nothing of classes and alarms is worth saying after this.
            ended |= rule.about == RANKING and rule.level is Reliance.POOR
    return found

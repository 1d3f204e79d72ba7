"""A summary of a data set's scores for a person: windows, alarms, missing channels, and whether to believe the
scores."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from training.trainer import ranges
from training.trainer.changes import LOOK, ToldChange
from training.trainer.channel_ablation import lacked, price_of
from training.trainer.evaluation.facts import percent, span
from training.trainer.evaluation.page import gap
from training.trainer.judging import Judged, why_of
from training.trainer.reasons import Reasons, in_words
from training.trainer.streams import Called, rule_of

MAY_COST = 0.02  # of the AUROC: what costs less is not worth a doubt
STRANGE = 0.2  # of a host's windows outside of what was trained on, from which its alarms are guesses
TIMES = 3.0  # the promised alarms, from which something else than the promise is at work
SHOWN = 8  # hosts by name
MOST_DIGITS = 6  # of thresholds: a smaller difference is none for a person
UNTIL = f"{LOOK} This is reported until you confirm it (--confirm-change) or record a new reference."


def lines(
    judged: Judged,
    called: Sequence[Called] = (),
    reasons: Reasons | None = None,
    changed: Mapping[str, ToldChange] | None = None,
) -> list[str]:
    """Return the summary's lines; each begins with its subject.

    ``called`` has the incidents, ``reasons`` the reasons for alarms, ``changed`` the hosts that have changed.
    """
    missing = lacked(judged.inputs, judged.document)
    doubts = [*_of_missing(judged, missing), *_of_hosts(judged), *_of_alarms(judged)]
    changes = [f"{host} {told.words}. {UNTIL}" for host, told in (changed or {}).items()]
    said = {
        "scored": [_scored(judged)],
        "host": _by_host(judged),
        "incidents": _incidents(judged, called),
        "why": _why(judged, called, reasons),
        "level": _levels(judged),
        "missing": _missing(judged, missing),
        "changed": changes,
        "doubt": doubts,
        "believe it": [_believe(judged, [*changes, *doubts])],
    }
    return [f"{name:11} {text}" for name, texts in said.items() for text in texts]


def doubts_of_host(judged: Judged) -> list[str]:
    """Return sentences that cast doubt on hosts: missing channels that cost much or an unknown amount, a missing or
    doubtful reference, many windows unlike the training data."""
    return [*_of_missing(judged, lacked(judged.inputs, judged.document)), *_of_hosts(judged)]


def _scored(judged: Judged) -> str:
    rows = judged.inputs.rows
    recordings = np.unique(rows.episode).size
    windows = f"{len(rows):,} windows of {recordings:,} recording{'s' * (recordings != 1)} by {judged.name}"
    alarm = judged.alarm
    return windows if alarm is None else f"{windows}: {_share(alarm)}"


def _share(alarm: np.ndarray[Any, np.dtype[np.bool_]]) -> str:
    return f"{alarm.sum():,} alarms ({percent(alarm.mean())})"


def _by_host(judged: Judged) -> list[str]:
    alarm, host = judged.alarm, judged.inputs.rows.host
    names = np.unique(host).tolist()
    if alarm is None or len(names) < 2:
        return []
    return _some([f"{name}: {_share(alarm[host == name])} of {(host == name).sum():,}" for name in names])


def _some(lines: Sequence[str]) -> list[str]:
    """Return the first ``SHOWN`` lines; if there are more, also a line that says how many more."""
    return [*lines[:SHOWN], *([f"and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else [])]


def _incidents(judged: Judged, called: Sequence[Called]) -> list[str]:
    if judged.alarm is None or judged.inputs.schema.has_examples:
        return []
    rule = rule_of(judged.document)
    how = f"{rule.words}, until {span(rule.quiet_s)} are quiet"
    if not called:
        return [f"none ({how})"]
    hosts = len({one.host for one in called})
    still = sum(not one.over for one in called)
    where = f" on {hosts} hosts" if hosts > 1 else ""
    first = f"{len(called):,}{where} ({how}), {still:,} of them not over at the end"
    return [first, *_some([*map(_incident, called)])]


def _incident(one: Called) -> str:
    incident, recording = one.incident, one.stream.removeprefix(f"{one.host}/")
    alarms = f"{incident.alarms} alarms in {span(incident.last - incident.began)}"
    return f"{one.host}, {recording}: {alarms}, called {span(incident.raised - incident.began)} after they began"


def _why(judged: Judged, called: Sequence[Called], reasons: Reasons | None) -> list[str]:
    """Return lines with the channels that carried the alarms, of at most ``SHOWN`` hosts and ``SHOWN`` incidents.

    Without ``reasons`` the list is empty; if no alarm was explained, one line says so. Further lines say what the
    shares are, and how many alarms were explained if not all.
    """
    if reasons is None:
        return []
    host = judged.inputs.rows.host
    by_host = [(name, reasons.mean(np.flatnonzero(host == name))) for name in np.unique(host).tolist()]
    shown = [f"{name}: {in_words(reasons.named(share))}" for name, share in by_host if share is not None][:SHOWN]
    if not shown:
        return ["no alarm, so nothing to explain"]
    for one in called[:SHOWN]:
        named = why_of(judged, one, reasons) or "none of its alarms was among those explained"
        shown.append(f"{one.host}, {one.stream.removeprefix(f'{one.host}/')}: {named}")
    if reasons.rows.size < reasons.alarms:
        shown.append(f"of {reasons.alarms:,} alarms {reasons.rows.size:,} were explained, evenly drawn")
    return [*shown, "shares are of what raised the scores: they carried them, which is not to say that they caused it"]


def _levels(judged: Judged) -> list[str]:
    """Return a line for each host whose threshold differs visibly from the calibrated one, shortened by `_some`; empty
    without thresholds of hosts."""
    hosts, calibrated = judged.hosts, judged.calibrated
    if hosts is None or calibrated is None:
        return []
    names = [name for name in np.unique(judged.inputs.rows.host).tolist() if told_apart(hosts.of(name), calibrated)]
    shown = []
    for name in names:
        here = judged.inputs.rows.host == name
        moved = "raised" if hosts.of(name) > calibrated else "lowered"
        alone = judged.scored.score[here] > calibrated
        own, other = told_apart(hosts.of(name), calibrated)
        shown.append(
            f"{name}: threshold {own}, {moved} from {other} by its reference "
            f"({hosts.levels[name].windows:,} windows); without it {_share(alone)}"
        )
    return _some(shown)


def told_apart(one: float, other: float) -> tuple[str, ...]:
    """Format two numbers with as many digits as show that they differ, at least three; an empty tuple if six do not
    show it."""
    for digits in range(3, MOST_DIGITS + 1):
        shown = f"{one:.{digits}g}", f"{other:.{digits}g}"
        if shown[0] != shown[1]:
            return shown
    return ()


def _missing(judged: Judged, missing: Mapping[str, list[str]]) -> list[str]:
    """Return a line for each set of missing channels: on which hosts, and what their lack cost on the test side. If
    none are missing, the only line is "nothing"."""
    by_set: dict[tuple[str, ...], list[str]] = {}
    for host, names in missing.items():
        by_set.setdefault(tuple(names), []).append(host)
    if not by_set:
        return ["nothing"]
    return [f"{', '.join(names)} on {', '.join(hosts)}: {_cost(judged, names)}" for names, hosts in by_set.items()]


def _cost(judged: Judged, names: tuple[str, ...]) -> str:
    price, whole = price_of(names, judged.document), judged.document["channels"].get("whole")
    if price is None or whole is None:
        return "what that costs was never measured"
    beyond = [name for name in price["channels"] if name not in names]
    also = f" (measured with {', '.join(beyond)} missing as well)" if beyond else ""
    shares = [
        f"{what} {100 * whole[name]:.3g} → {100 * price[name]:.3g} %"
        for name, what in (("tpr", "caught"), ("fpr", "false alarms"))
        if whole[name] is not None and price[name] is not None
    ]
    return "; ".join([f"on the test side AUROC {gap(price['gap'])}{also}", *shares])


# -- whether to believe it ---------------------------------------------------------------------------------------------


def _believe(judged: Judged, doubts: list[str]) -> str:
    if judged.alarm is None:
        return "there is no threshold, so scores rank windows and none is an alarm"
    if doubts:
        return f"with care: {len(doubts)} {'reason' if len(doubts) == 1 else 'reasons'} above"
    return "as far as its report goes: nothing here speaks against it"


def _of_missing(judged: Judged, missing: Mapping[str, list[str]]) -> list[str]:
    found = []
    for host, names in missing.items():
        price = price_of(names, judged.document)
        lost = None if price is None else price["gap"]["value"]
        if lost is None:
            found.append(f"{host} lacks {', '.join(names)}, and the model was not measured without.")
        elif lost < -MAY_COST:
            found.append(f"{host} lacks {', '.join(names)}, which costs {-lost:.2f} of AUROC.")
    return found


def _of_hosts(judged: Judged) -> list[str]:
    inputs, document = judged.inputs, judged.document
    hosts, known = np.unique(inputs.rows.host).tolist(), set(inputs.reference_host.tolist())
    found = []
    if inputs.from_references:
        bare = [name for name in hosts if name not in known]
        if bare:
            found.append(f"{', '.join(bare)}: no reference recording, so what is usual there is a guess.")
    if judged.calibrated is not None and judged.hosts is not None:
        found += judged.references.of(hosts).doubts(judged.calibrated)
        without = [name for name in hosts if name not in judged.hosts.levels and name not in known]
        kept = [name for name in hosts if name in judged.hosts.levels and name not in known]
        if kept:
            found.append(
                f"{', '.join(kept)}: no reference recording here; the threshold is that of the host of this name when "
                "the model was made. If this is another machine, or it has changed, bring its reference."
            )
        if without:
            found.append(f"{', '.join(without)}: no reference recording, so the calibrated threshold stands there.")
    return found + [
        f"{100 * share:.0f} % of the windows of {name} are unlike all that it has learnt from, most often in "
        f"{', '.join(worst)}: its alarms there are guesses, and so is its silence."
        for name, (share, worst) in ranges.shares_outside(inputs, document).items()
        if share >= STRANGE
    ]


def _of_alarms(judged: Judged) -> list[str]:
    target, alarm = (judged.document.get("threshold") or {}).get("target_fpr"), judged.alarm
    if alarm is None or target is None or alarm.mean() <= TIMES * target:
        return []
    share = f"{percent(alarm.mean())} of the windows, where {percent(target)} false ones were promised"
    return [f"Alarms in {share}: much is going on, or the promise does not hold here."]

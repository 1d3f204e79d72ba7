"""Describe models' figures in words, the same on pages and on the command line. No function here changes its arguments
or does I/O.

Texts in the values come from other machines; the code that shows a text makes it printable.
"""

from collections.abc import Sequence

from training.fleet.wire.words import number
from training.printable import counted, one_line
from training.strict_json import Json

# The last words of a report's verdict: its worst finding.
LEVELS = {"good": "rely on it", "caution": "with caution", "poor": "do not use it", "": "its report has no verdict"}
_BELIEFS = {"good": "to rely on", "caution": "with caution", "poor": "not to be used", "": "without a verdict"}
STANDINGS = {
    "first": "first",
    "tied": "not distinguishable from the first",
    "behind": "behind the first",
    "unknown": "no interval to compare by",
}
SPREAD = (
    "Means are over hosts of each host's mean over seeds; ± is the standard deviation between hosts, not an interval. "
    "None of a rotation's models is one to deploy: each lacks a host."
)
GAP = (
    "The gap's own interval needs both models' scores of each episode, which a report does not hold: "
    "`python -m training.trainer.compare` makes it where the data are"
)


def digits(figure: Json) -> int:
    """Return the number of decimals to show of a figure: 2 to 4, the more the narrower its interval is; 3 without an
    interval."""
    if figure["low"] is None:
        return 3
    width = figure["high"] - figure["low"]
    return 2 if width >= 0.1 else 3 if width >= 0.01 else 4


def value(figure: Json | None) -> str:
    """Format a figure without its interval; a dash if it has no value."""
    return "–" if figure is None or figure["value"] is None else f"{figure['value']:.{digits(figure)}f}"


def interval(figure: Json | None) -> str:
    """Format a figure's interval; empty if the figure has none."""
    if figure is None or figure["low"] is None:
        return ""
    return f"{figure['low']:.{digits(figure)}f} to {figure['high']:.{digits(figure)}f}"


def per_cent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def per_cent_interval(figure: Json | None) -> str:
    """Format a rate's interval in per cent; empty if the rate has none."""
    known = figure is not None and figure["low"] is not None
    return f"{100 * figure['low']:.1f} to {100 * figure['high']:.1f} %" if figure and known else ""


def whole(figure: Json | None) -> str:
    """Format a figure with its interval, if it has one: ``0.937 (0.886 to 0.973)``; a dash without a value."""
    between = interval(figure)
    return value(figure) + (f" ({between})" if between else "")


def whole_per_cent(figure: Json | None) -> str:
    """Format a rate with its interval, if it has one, in per cent: ``9.9 % (5.0 to 16.1 %)``; a dash without a
    value."""
    between = per_cent_interval(figure)
    return per_cent(None if figure is None else figure["value"]) + (f" ({between})" if between else "")


def short(figure: Json | None) -> str:
    """Format a figure for a narrow table: ``0.937 [0.886, 0.973]``; a dash without a value."""
    return value(figure) + (f" [{between.replace(' to ', ', ')}]" if (between := interval(figure)) else "")


def of_job(view: Json) -> str:
    """Return a completed job's result: its AUROC with the interval, else the last metric that its trainer printed.
    Return an empty text for other jobs, and without either."""
    if view["status"] != "completed":
        return ""
    if view["auroc"]:
        return f"AUROC {short(view['auroc'])}"
    told = view["progress"] or {}
    metric = number(told.get("metric"))
    return "" if metric is None else f"{one_line(told.get('metric_name') or 'metric', 40)} {metric:.3f}"


def a_day(figure: Json) -> str:
    """Format a number of times a day, with two digits as in the verdict, below 10 with a decimal; a dash without a
    value."""
    found = figure["value"]
    return "–" if found is None else f"{float(f'{found:.2g}'):,.{0 if found >= 10 or found == 0 else 1}f} a day"


def which(models: Sequence[Json]) -> str:
    """Say which of these models to use, and why; ``models`` has those judged on one test, the best first. Models of the
    oracle mode are passed over, because a deployed detector lacks their channels. If the test is not known, return an
    empty text."""
    real = [each for each in models if each["mode"] != "oracle"]
    ranks = {level: rank for rank, level in enumerate(("good", "caution", "", "poor"))}
    best = min(real, key=lambda each: ranks.get(str(each["result"]["level"]), 2), default=None)
    if best is None:
        return ""
    result = best["result"]
    if not result["test"]:
        return ""
    if result["level"] == "poor":
        return f"Use none of these models: even of {best['name']} {result['because'] or 'the verdict is poor'}."
    low, others = result["auroc"]["low"], [each["result"]["auroc"]["high"] for each in real if each is not best]
    tied = sum(low is not None and high is not None and high >= low for high in others)
    careful = f", with caution: {result['because']}" if result["because"] else ""
    among = "Of " + counted(len(real), "realistic models") + ("" if real[0] is models[0] else " (no lab needed)")
    among += " it has the best " + ("AUROC" if best is real[0] else "verdict, then AUROC")
    return f"Use {best['name']}{careful}. {among}" + (f"; {tied} may be as good." if tied else ".")


def alarms(result: Json) -> str:
    """Format the promised rate of false alarms, and the one measured in the test: ``5.0 % → 9.9 % (5.0 to 16.1 %)``."""
    return f"{per_cent(result['promised'])} → {whole_per_cent(result['false_alarms'])}"


def tested_on(result: Json) -> str:
    """Describe a model's test: the number of windows and episodes, and its first four hosts."""
    hosts = result["hosts"]
    more = result["hosts_in_all"] - len(hosts[:4])
    named = ", ".join(map(str, hosts[:4])) + (f" and {more} more" if more > 0 else "")
    said = f"{counted(result['windows'], 'windows')} of {counted(result['episodes'], 'episodes')}"
    return " of ".join(filter(None, (said if result["windows"] else "", named)))


def ranking(models: Sequence[Json], in_all: int = 0) -> str:
    """Describe how models judged on one test compare. The argument ``models`` has those shown, the best first;
    ``in_all`` is the number of models judged on this test, if more than these."""
    if not models:
        return "No trained model has a report here yet."
    first = models[0]
    tied, behind = (sum(each["standing"] == word for each in models[1:]) for word in ("tied", "behind"))
    auroc = whole(first["result"]["auroc"])
    if first["standing"] != "first":
        return f"{counted(len(models), 'models')}, whose test is not known: nothing says which is ahead."
    if len(models) == 1:
        return f"{first['name']} alone was judged on this test: AUROC {auroc}."
    if tied:
        others = "1 other" if tied == 1 else f"{tied} others"
        said = f"no model is surely ahead: {first['name']} has the highest AUROC, {auroc}, "
        said += f"and {others} cannot be distinguished from it"
    elif behind:
        said = f"{first['name']} is ahead of all that have an interval: AUROC {auroc}"
    else:
        said = f"{first['name']} has the highest AUROC, {auroc}, and nothing says how sure that is"
    of = f"Of {counted(max(in_all, len(models)), 'models')} judged on the same test"
    of += f" the first {len(models)} are here:" if in_all > len(models) else ","
    return f"{of} {said}" + (f"; {behind} {'is' if behind == 1 else 'are'} behind." if behind and tied else ".")


def folded(figure: Json) -> str:
    """Format a figure of a rotation, ``0.912 ± 0.031``: its mean over hosts and, if known, the standard deviation
    between them. The text is a dash if the figure has no mean."""
    if figure["mean"] is None:
        return "–"
    return f"{figure['mean']:.3f}" + ("" if figure["spread"] is None else f" ± {figure['spread']:.3f}")


def folded_per_cent(figure: Json) -> str:
    """Format a rate of a rotation in per cent, ``6.0 % ± 2.1``: its mean over hosts and, if known, the standard
    deviation between them."""
    return per_cent(figure["mean"]) + ("" if figure["spread"] is None else f" ± {100 * figure['spread']:.1f}")


def worst(figure: Json, *, rate: bool = False) -> str:
    """Format a rotation's figure on the host where it is worst, with the host's name; a dash if there is none. With
    ``rate`` the figure is in per cent."""
    found = figure["worst"]
    if found is None:
        return "–"
    return f"{per_cent(found) if rate else f'{found:.3f}'} on {figure['worst_host']}"


def gap_to_first(rotation: Json) -> str:
    """Format a rotation's mean difference from the best rotation on the same tests, with its spread and on how many
    hosts it is ahead. The text is empty if ``gap`` is null, as for the best rotation."""
    gap = rotation["gap"]
    if gap is None:
        return ""
    said = f"{gap['mean']:+.3f}".replace("-", "−") + ("" if gap["spread"] is None else f" ± {gap['spread']:.3f}")
    return f"{said}, ahead on {gap['ahead']} of {gap['hosts']}"


def done_of(rotation: Json) -> str:
    """Count a rotation's jobs with a result that counts, and by state those not completed: ``9 of 12 (1 failed, 2
    pending)``."""
    others = ", ".join(f"{n} {key}" for key, n in sorted(rotation["states"].items()) if key != "completed")
    return f"{rotation['done']} of {rotation['jobs']}" + (f" ({others})" if others else "")


def of_whom(rotation: Json) -> str:
    """Count a rotation's hosts and seeds: ``4 hosts × 3 seeds``."""
    return f"{counted(len(rotation['hosts']), 'hosts')} × {counted(len(rotation['seeds']), 'seeds')}"


def to_deploy(found: Sequence[Json]) -> str:
    """Name the jobs in ``found``, whose models are to be deployed, with the state of each that is not completed. If
    there are none, say how to add one."""
    if not found:
        return 'none: add a job with split_recipe = "sample" and without rotate'
    return ", ".join(
        str(each["name"]) + ("" if each["status"] == "completed" else f" ({each['status']})") for each in found
    )


def rotated_hosts(rotations: Sequence[Json], most: int) -> list[str]:
    """Return the names of the hosts in these rotations, sorted, at most ``most``."""
    return sorted({str(host) for each in rotations for host in each["hosts"]})[:most]


def by_host(rotation: Json, hosts: Sequence[str]) -> list[str]:
    """Return, for each of these hosts, the AUROC of the rotation's models that were tested on it; a dash where there is
    none."""
    means = {row["host"]: row["auroc"] for row in rotation["by_host"]}
    known = [means.get(host) for host in hosts]
    return ["–" if mean is None else f"{mean:.3f}" for mean in known]


def rotated(rotations: Sequence[Json]) -> str:
    """Say which of the complete rotations has the highest mean AUROC on hosts left out of training, and how many
    rotations are incomplete. ``rotations`` has the best first; without any, the text is empty."""
    whole = [each for each in rotations if each["done"] == each["jobs"] and each["auroc"]["mean"] is not None]
    if not rotations:
        return ""
    said = f"{counted(len(rotations), 'rotations')}, each host tested by models that the others trained: "
    if not whole:
        done, jobs = (sum(int(each[key]) for each in rotations) for key in ("done", "jobs"))
        return f"{said}none is whole yet ({done} of {counted(jobs, 'jobs')} have a report), so none is ahead."
    first = whole[0]
    said += f"{first['name']} has the highest mean AUROC, {folded(first['auroc'])} ({of_whom(first)}), "
    said += f"and {worst(first['auroc'])}, its worst host."
    rest = len(rotations) - len(whole)
    return said + (f" {rest} {'is' if rest == 1 else 'are'} not whole yet." if rest else "")


def beliefs(models: Sequence[Json]) -> str:
    """Count the models by their reports' verdicts: to rely on, with caution, not to be used, without a verdict."""
    levels = [each["result"]["level"] for each in models]
    said = [f"{levels.count(level)} {words}" for level, words in _BELIEFS.items() if level in levels]
    return f"By their reports’ own verdicts: {', '.join(said)}." if said else ""


def gap(a: Json, b: Json) -> tuple[str, str]:
    """Return the difference ``b`` minus ``a`` of two figures as they are shown, as text, and words on whether their
    intervals overlap.
    Without both values, the first text is a dash and the second says why."""
    if a["value"] is None or b["value"] is None:
        return "–", "one of the two has no figure"
    difference = f"{float(value(b)) - float(value(a)):+.{min(digits(a), digits(b))}f}".replace("-", "−")
    if a["low"] is None or b["low"] is None:
        return difference, "one of the two has no interval"
    if a["low"] <= b["high"] and b["low"] <= a["high"]:
        return difference, "the intervals overlap: they do not show which is better"
    return difference, "the intervals do not overlap: the difference is not by the draw of episodes alone"

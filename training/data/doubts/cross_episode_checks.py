"""Compare episodes with each other: find copies, overlapping recordings, and names used with two meanings.

Each check takes the findings on all episodes and returns them; an episode that contradicts the others gets one more
reason against its use. Episodes that give a name another meaning than the commonest get a reason; in a tie, all get
one. For channels of a schema that was asked for, the schema's meaning counts instead.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from training.data.channels import Measure
from training.data.schema import FeatureSchema
from training.data.validate import CLASSES, EpisodeFindings
from training.data.values import Bools, Digests

FEWEST_SHARED = 3  # entries of a sketch: fewer could be two hosts that did the same for a second
SORTED = 1 << 22  # entries of sketches at a time
COPY_SHARE = 0.5  # of a recording's sketch, from which it counts as a copy

Said = dict[str, str]  # what an episode calls something, by its name


def judge_together(verdicts: Sequence[EpisodeFindings], like: FeatureSchema | None = None) -> list[EpisodeFindings]:
    """Return the findings, with the reasons added that only a comparison of episodes shows.

    ``like`` is the schema that the data set must have, or None.
    """
    judged = _without_copies(verdicts)
    usual = {}
    for channel in () if like is None else like.channels:
        # The schema's unit of a counter is that of its rate.
        unit = channel.unit.removesuffix("/s") if channel.kind == Measure.COUNTER else channel.unit
        usual[channel.name] = _declared(channel.kind, unit, channel.modes)
    where = "elsewhere" if like is None else "in the schema"
    judged = _odd_ones_out(judged, _declarations, usual, f"Its channel {{}} is {{}}; {where} it is {{}}.")
    judged = _odd_ones_out(judged, _phases, {}, "Its phase {!r} is {}; elsewhere it is {}.")
    if like is None:
        return judged
    # Other missing channels are their host's matter.
    return [
        _with(one, "It has none of the channels of the schema.")
        if one.ok and not _declarations(one).keys() & set(like.channel_names)
        else one
        for one in judged
    ]


# -- copies ------------------------------------------------------------------------------------------------------------


def _without_copies(verdicts: Sequence[EpisodeFindings]) -> list[EpisodeFindings]:
    """Return the findings, with a reason added to the findings on each copy. A copy shares at least half of its samples
    with an earlier episode, or some with an earlier one of another host, as estimated from sketches."""
    known: dict[int, EpisodeFindings] = {}
    by_content: dict[str, EpisodeFindings] = {}
    again = _in_several([_sketch(verdict) for verdict in verdicts if verdict.ok])
    result = []
    for verdict in verdicts:
        reason = None
        if verdict.ok and verdict.content:
            first = by_content.setdefault(verdict.content, verdict)
            sketch = _sketch(verdict)
            sketch = sketch[_among(sketch, again)].tolist()
            shared = Counter(known[one].episode_id for one in sketch if one in known)
            if first is not verdict:
                otherwise = "" if first.labelling == verdict.labelling else ", with other labels"
                reason = f"It is a copy of {first.episode_id}{_elsewhere(first, verdict)}{otherwise}."
            elif shared:
                other, count = min(shared.items(), key=lambda item: (-item[1], item[0]))
                first = next(known[one] for one in sketch if one in known and known[one].episode_id == other)
                reason = _part_of(first, verdict, count)
            if reason is None:
                for one in sketch:
                    known.setdefault(one, verdict)
        result.append(verdict if reason is None else _with(verdict, reason))
    return result


def _sketch(verdict: EpisodeFindings) -> Digests:
    return np.frombuffer(verdict.sketch, "<u8")


def _among(sketch: Digests, entries: Digests) -> Bools:
    """Return a mask of the entries of ``sketch`` that occur in the sorted array ``entries``."""
    place = np.minimum(np.searchsorted(entries, sketch), max(0, entries.size - 1))
    return entries[place] == sketch if entries.size else np.zeros(sketch.size, bool)


def _in_several(sketches: Sequence[Digests]) -> Digests:
    """Return the entries, sorted, that occur more than once in all sketches together; only these can show that two
    recordings share samples."""
    parts = np.uint64(1 + sum(sketch.size for sketch in sketches) // SORTED)
    found = [np.empty(0, np.uint64)]
    for part in range(int(parts) if sketches else 0):
        entries = np.concatenate([sketch[sketch % parts == part] for sketch in sketches])
        entries, counts = np.unique(entries, return_counts=True)
        found.append(entries[counts > 1])
    return np.sort(np.concatenate(found))


def _part_of(first: EpisodeFindings, verdict: EpisodeFindings, count: int) -> str | None:
    """Return the reason against a recording that shares at least half of its samples with another, or any with one of
    another host; else None.

    ``count`` is the number of shared entries of the sketches; fewer than ``FEWEST_SHARED`` prove nothing.
    """
    # What lies beyond the other's last entry it may hold as well, and does not list.
    comparable = int((_sketch(verdict) <= _sketch(first)[-1]).sum())
    if count < FEWEST_SHARED:
        return None
    share = count / max(comparable, count)
    if share < COPY_SHARE and not _elsewhere(first, verdict):
        return None
    return f"About {100 * share:.0f} % of its samples are those of {first.episode_id}{_elsewhere(first, verdict)}."


def _elsewhere(first: EpisodeFindings, verdict: EpisodeFindings) -> str:
    if first.meta is None or verdict.meta is None or first.meta.host == verdict.meta.host:
        return ""
    return f" on {first.meta.host}, and a sample comes from one host"


# -- one name for different things -------------------------------------------------------------------------------------


def _odd_ones_out(
    verdicts: Sequence[EpisodeFindings],
    said_by: Callable[[EpisodeFindings], Said],
    usual: Mapping[str, str],
    sentence: str,
) -> list[EpisodeFindings]:
    """Return the findings, with a reason added for each episode that gives a name another meaning than the commonest;
    in a tie, for all.

    ``said_by`` returns the meaning of each name in an episode. ``usual`` has the meanings that hold without a vote.
    ``sentence`` is formatted with the name, the episode's meaning and the right one.
    """
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    for verdict in verdicts:
        for name, said in said_by(verdict).items() if verdict.ok else ():
            votes[name][said] += 1
    decided = {**{name: _majority(found) for name, found in votes.items()}, **usual}
    result = []
    for verdict in verdicts:
        saying = said_by(verdict) if verdict.ok else {}
        odd = [name for name, said in saying.items() if said != decided[name]]
        if odd:
            name = odd[0]
            others = sorted(set(votes[name]) - {saying[name]})
            right = decided[name] or f"{' or '.join(others)} as often"
            verdict = _with(verdict, sentence.format(name, saying[name], right))
        result.append(verdict)
    return result


def _majority(votes: Counter[str]) -> str | None:
    """Return the value with the most votes; None if two have equally many."""
    ranked = votes.most_common(2)
    return None if len(ranked) > 1 and ranked[0][1] == ranked[1][1] else ranked[0][0]


def _declarations(verdict: EpisodeFindings) -> Said:
    return {c.name: _declared(c.kind, c.unit, c.modes) for c in verdict.meta.channels} if verdict.meta else {}


def _declared(kind: str, unit: str, modes: Iterable[str]) -> str:
    return f"a {kind} in {unit} for {' and '.join(sorted(modes))}"


def _phases(verdict: EpisodeFindings) -> Said:
    return {name: said for name, said in verdict.meta.phases.items() if said in CLASSES} if verdict.meta else {}


def _with(verdict: EpisodeFindings, reason: str) -> EpisodeFindings:
    return replace(verdict, reasons=(*verdict.reasons, reason))

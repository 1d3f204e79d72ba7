"""Make the results of scored windows: a row for each, their incidents, and whether hosts have changed.

The program `training.trainer.score` reads the arguments and calls this module.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from polars.io.plugins import register_io_source

from training.data.schema import Timing
from training.data.scratch import WIDE_ROWS, spans
from training.data.values import Bools, JsonDict, Names
from training.trainer import ranges
from training.trainer.changes import Measures, ToldChange, in_order
from training.trainer.contract import BadArguments
from training.trainer.evaluation.incident_rates import runs_of, stride_of
from training.trainer.incident_rule import Window
from training.trainer.judging import Judged, why_of
from training.trainer.reasons import Reasons, explain, in_words
from training.trainer.streams import Called, Streams, feed_all, rule_of
from training.trainer.training_windows import NEW, TOO_MANY

EXPLAINED = ("why", "why_seconds")


Explained = dict[int, tuple[str | None, str | None]]  # by row


PART_ROWS = 1 << 18  # windows of which rows are made at a time


def why(judged: Judged) -> Reasons:
    """Explain the alarms, of many only some (see `explain`). Raises ``BadArguments`` where the model has no
    threshold."""
    if judged.alarm is None:
        raise BadArguments(f"{judged.name} has no threshold, so no window is an alarm to explain: leave out --explain")
    return explain(judged.fitted, judged.inputs, np.flatnonzero(judged.alarm))


def parts(judged: Judged, side: Names | None, reasons: Reasons | None = None) -> Iterator[Any]:
    """Yield Polars frames with a row for each window, at least one frame.

    With ``reasons`` the rows also have the channels and seconds that carried the alarms that were explained.
    """
    explained, count = _explained(reasons), judged.scored.y.size
    for start in range(0, max(count, 1), PART_ROWS):
        yield _part(judged, side, explained, slice(start, min(start + PART_ROWS, count)))


def _part(judged: Judged, side: Names | None, explained: Explained | None, here: slice) -> Any:
    inputs, scored, document = judged.inputs, judged.scored, judged.document
    rows = inputs.timed if inputs.schema.has_examples else inputs.rows
    count = here.stop - here.start
    columns: JsonDict = {
        "window_id": None if rows.window_id is None else rows.window_id[here],
        "episode_id": rows.episode[here],
        "host": rows.host[here],
        "t_start": rows.t_start[here],
        "t_end": rows.t_end[here],
        "side": [None] * count if side is None else side[here],
        "score": scored.score[here],
    }
    labels, thresholds, alarm = document["label_map"], judged.thresholds, judged.alarm
    if scored.proba is not None:
        proba = scored.proba[here]
        by_number = sorted(labels, key=labels.__getitem__)
        columns |= {f"p_{name}": proba[:, labels[name]] for name in by_number}
        columns["class"] = [by_number[k] for k in judged.classes.likeliest(proba)]
    columns["threshold"] = [None] * count if thresholds is None else thresholds[here]
    columns["alarm"] = [None] * count if alarm is None else alarm[here]
    if explained is not None:
        texts = [explained.get(row, (None, None)) for row in range(here.start, here.stop)]
        columns |= {name: [text[place] for text in texts] for place, name in enumerate(EXPLAINED)}
    kinds = dict.fromkeys(("side", *EXPLAINED), pl.String)
    known = {name: kinds[name] for name in columns if name in kinds}
    return pl.DataFrame(columns, schema_overrides={"threshold": pl.Float64, "alarm": pl.Boolean, **known})


def _explained(reasons: Reasons | None) -> Explained | None:
    """Return the values of the columns ``EXPLAINED`` by row: channels, ``name 41 %, …``, and seconds of the window,
    ``1-2, …``.

    Seconds are None where none raised the score. Return None without ``reasons``.
    """
    if reasons is None:
        return None
    found: Explained = {}
    for number, row in enumerate(reasons.rows.tolist()):
        spans = ", ".join(f"{start:g}-{end:g}" for start, end in reasons.moments(number))
        found[row] = in_words(reasons.named(reasons.share[number])), spans or None
    return found


class Followed(NamedTuple):
    """The incidents found, the changed hosts with their changes, and notes about the state file."""

    called: list[Called]
    changed: dict[str, ToldChange]
    notes: list[str]


def follow(judged: Judged, state: Path | None = None, confirm: Sequence[str] = ()) -> Followed:
    """Find incidents and changed hosts in each recording's windows, in time order.

    Without a threshold, and in rows that are windows, nothing is found, and the file ``state`` is neither read nor
    written. Else incidents and changes continue from a ``state`` file of the same model, which is written afterwards,
    also if it was missing or another model's. The reported changes of the hosts ``confirm`` are confirmed
    before any window is processed. If the model has a threshold, raises ``BadArguments`` for a host in ``confirm``
    without a reported change, and for a file that is no state file.
    """
    thresholds, document, rows = judged.thresholds, judged.document, judged.inputs.timed
    if thresholds is None or judged.inputs.schema.has_examples:
        return Followed([], {}, [])
    streams = Streams(str(document["digest"]), rule_of(document))
    note = None if state is None else streams.load(state)
    for host in confirm:
        if streams.confirm(host) is None:
            raise BadArguments(f"{state} knows no change of {host}: there is nothing to confirm")
    nominal_s = judged.inputs.schema.stride_s
    runs = runs_of(rows, stride_of(rows, nominal_s=nominal_s))
    margin = (judged.scored.score - thresholds)[runs.order]

    new = np.zeros(len(rows), bool)

    def windows() -> Iterator[tuple[str, str, Window]]:
        """Yield (stream, host, window), one recording after the other, each in time order; mark in ``new`` each window
        that its stream does not know yet."""
        for here in spans(runs.order, step=WIDE_ROWS):
            of = runs.order[here]
            host, episode = rows.host[of].tolist(), rows.episode[of].tolist()
            each = map(Window, runs.t_start[here].tolist(), runs.t_end[here].tolist(), margin[here].tolist())
            for row, mine, piece, window in zip(of.tolist(), host, episode, each, strict=True):
                new[row] = not streams.knows(f"{mine}/{piece}", window)
                yield f"{mine}/{piece}", mine, window

    found = feed_all(streams, windows())
    changed = _changed(judged, streams, new)
    if state is not None:
        streams.save(state)
    return Followed(found, changed, [] if note is None else [note])


def _changed(judged: Judged, streams: Streams, new: Bools) -> dict[str, ToldChange]:
    """Add the windows marked ``new`` to their hosts' records; return, for each host whose usual work changed,
    the change that is not confirmed yet."""
    inputs, rows = judged.inputs, judged.inputs.timed
    measures = Measures.of(inputs.schema)
    hosts = np.unique(rows.host).tolist()
    for host in hosts:
        usual = measures.usual(inputs.reference_features[inputs.reference_host == host])
        streams.hosts[host] = streams.record(host).beside(usual)
    order = in_order(inputs.rows)
    order = order[new[order]]
    for here in spans(order, step=WIDE_ROWS):
        of = order[here]
        names = zip(rows.host[of].tolist(), rows.episode[of].tolist(), strict=True)
        times = zip(rows.t_start[of].tolist(), rows.t_end[of].tolist(), strict=True)
        values = measures.take(inputs.features[of])
        for (host, episode), time, row in zip(names, times, values, strict=True):
            began, ended = (None if at != at else at for at in time)  # NaN: unknown
            streams.hosts[host].take(episode, began, ended, row, measures)
    return {host: told for host in hosts if (told := streams.hosts[host].told) is not None}


def incident_table(judged: Judged, found: Sequence[Called], reasons: Reasons | None = None) -> Any:
    """Build a Polars frame with a row for each incident; times are those of the windows.

    With ``reasons`` a row also has the channels that carried the incident's alarms.
    """
    columns: JsonDict = dict.fromkeys(("incident_id", "episode_id", "host"), pl.String)
    columns |= dict.fromkeys(("began", "raised", "last_alarm"), pl.Float64)
    columns |= {"alarms": pl.Int64, "peak": pl.Float64, "over": pl.Boolean, "model": pl.String}
    whys = [] if reasons is None else [(why_of(judged, one, reasons),) for one in found]
    columns |= {} if reasons is None else {"why": pl.String}
    rows = [
        (
            *(one.id, one.stream.removeprefix(f"{one.host}/"), one.host),
            *(one.incident.began, one.incident.raised, one.incident.last, one.incident.alarms, one.incident.peak),
            *(one.over, judged.name),
            *(whys[number] if whys else ()),
        )
        for number, one in enumerate(found)
    ]
    return pl.DataFrame(rows, schema=columns, orient="row")


def remarks(judged: Judged, side: Names | None) -> list[str]:
    """Return remarks for a reader of the scores: which windows test the model, how many are unlike its training data,
    and what rates and references are unknown."""
    if side is None:
        first = f"Which of these windows {judged.name} has seen is not known: {TOO_MANY}."
    else:
        names, at, counts = np.unique(side, return_index=True, return_counts=True)
        shown = ", ".join(f"{names[place]} {counts[place]:,}" for place in np.argsort(at))
        first = f"Windows by side: {shown}; only test and new ones tell how good the model is."
        if NEW in names:
            first += " New windows share no samples with those that the model was trained, calibrated or tested on;"
            first += " a copy that was rounded or scaled is not recognised."
    inputs, said = judged.inputs, [first, *ranges.said_of(judged.inputs, judged.document)]
    if inputs.schema.time in (Timing.STARTS, Timing.NONE) and not inputs.schema.has_examples:
        said.append(
            "The sampling rate of these windows is unknown, and of those the model was trained on: if the rates "
            "differ, its scores mean nothing."
        )
    if inputs.from_references:
        without = sorted(set(inputs.rows.host.tolist()) - set(inputs.reference_host.tolist()))
        said += [
            f"{host} has no reference recording here: its values are measured from the usual level of the others."
            for host in without
        ]
    if judged.hosts is None and judged.calibrated is not None and judged.references.host.size:
        said.append(
            "The checkpoint has one threshold for all hosts, as its data had no references to learn another rule from: "
            "train it again with some."
        )
    return [*said, *judged.notes]


FORMATS = (".csv", ".parquet", ".json")


def write(frames: Iterator[Any], names: argparse.Namespace) -> None:
    if names.out is not None:
        write_file(frames, names.out)
    else:
        sys.stdout.writelines(_as_json(frames) if names.format == "json" else _as_csv(frames))
        sys.stdout.write("\n" * (names.format == "json"))


def write_file(frames: Iterator[Any], path: Path) -> None:
    """Write a table that is given in parts, at least one, in the format of the path's ending. Raises ``BadArguments``
    if the file cannot be written."""
    try:
        if path.suffix == ".parquet":
            _write_parquet(frames, path)
        else:
            with path.open("w", encoding="utf-8", newline="") as file:
                file.writelines(_as_csv(frames) if path.suffix == ".csv" else _as_json(frames))
    except OSError as error:
        raise BadArguments(f"{path} cannot be written: {error.strerror or error}") from None


def _as_csv(frames: Iterator[Any]) -> Iterator[str]:
    for number, frame in enumerate(frames):
        yield frame.write_csv(include_header=not number)


def _as_json(frames: Iterator[Any]) -> Iterator[str]:
    """Yield the text of one JSON list with the rows of all parts."""
    yield "["
    for number, frame in enumerate(frames):
        yield "," * bool(number) + frame.write_json()[1:-1]
    yield "]"


def _write_parquet(frames: Iterator[Any], path: Path) -> None:
    first = next(frames)
    second = next(frames, None)
    if second is None:
        first.write_parquet(path)
        return
    rest = chain((first, second), frames)
    register_io_source(lambda *_: rest, schema=first.schema).sink_parquet(path, row_group_size=PART_ROWS)

"""``python -m training.trainer.score CKPT DATA``: what a trained model says of new windows.

``DATA`` is a processed data set (a folder like ``data/processed``) of the schema that the model was
trained on; anything else is refused before a weight is read. Each window gets its score, the
probability of each class where the model has classes, whether it raises an alarm, and the side it was
on when the model was trained (``new``: on none). What a reader of the scores must know stands on standard error, and a
summary: windows, alarms, incidents, which channels hosts lack and what that costs, and whether to believe it.
``--incidents`` writes the incidents to a file, ``--explain`` adds the channels that carried each alarm. With
``--state`` a recording may come in pieces: incidents that were open at the end of one go on in the next, and what was
scored before changes nothing. A host that has changed is told until ``--confirm-change`` or a new reference; no alarm
is lowered by that.
"""

from __future__ import annotations

import argparse
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.streams import replace_unprintable
from training.trainer.contract import BadArguments, BadData, Progress, Stop, limit_threads, perform

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from training.data.dataset import Dataset
    from training.data.split import Split
    from training.trainer.changed import Told
    from training.trainer.checkpoint import Checkpoint
    from training.trainer.evaluation.host_thresholds import HostThresholds, References
    from training.trainer.evaluation.scored import Classes, Scored
    from training.trainer.families import Family
    from training.trainer.inputs import Inputs
    from training.trainer.levels import Levels
    from training.trainer.reasons import Reasons
    from training.trainer.streams import Called, Streams
    from training.trainer.task import Fitted

FORMATS = (".csv", ".parquet", ".json")
EXPLAINED = ("why", "why_seconds")
PROGRAM = "training.trainer.score"
# What the libraries raise for bytes that are not the weights they should be; a pickle that wants to
# run code is among them, and never runs.
_NOT_WEIGHTS = (RuntimeError, ValueError, LookupError, ArithmeticError, TypeError, AttributeError, EOFError, OSError)


def main(argv: Sequence[str] | None = None) -> int:
    replace_unprintable()
    parser = argparse.ArgumentParser(
        prog=f"python -m {PROGRAM}", allow_abbrev=False, description="Score windows with a trained model."
    )
    parser.add_argument("checkpoint", type=Path, help="file <model>_<mode>.ckpt.json of a trained model")
    parser.add_argument("data", type=Path, help="folder of a processed data set")
    parser.add_argument(
        "--out", type=Path, help="file for the scores, ending in .csv, .parquet or .json (default: standard output)"
    )
    parser.add_argument(
        "--format", choices=["csv", "json"], default="csv", help="format on standard output (default csv)"
    )
    parser.add_argument(
        "--incidents", type=Path, help="file for the incidents, ending in .csv, .parquet or .json (default: none)"
    )
    parser.add_argument(
        "--state",
        type=Path,
        help="file that keeps open incidents, and how hosts have been, from one call to the next (default: none)",
    )
    parser.add_argument(
        "--confirm-change", action="append", default=[], metavar="HOST",
        help="take the change that was told of this host for its ordinary work from now on; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--explain", action="store_true", help="add which channels carried each alarm, and which seconds of the window"
    )
    parser.add_argument("--threads", type=int, default=1, help="number of CPU threads (default 1)")
    names = parser.parse_args(argv)
    limit_threads(max(names.threads, 1))

    def work(_progress: Progress, _stop: Stop) -> None:
        from training.trainer.summary import lines

        for flag, file in (("--out", names.out), ("--incidents", names.incidents)):
            if file is not None and file.suffix not in FORMATS:
                raise BadArguments(f"{flag} {file} must end in {', '.join(FORMATS)}")
        if names.confirm_change and names.state is None:
            raise BadArguments("--confirm-change needs --state: the file in which the change was kept")
        judged = judge(names.checkpoint, names.data, threads=max(names.threads, 1))
        side = sides(judged)
        followed = follow(judged, names.state, names.confirm_change)
        reasons = why(judged) if names.explain else None
        write(table(judged, side, reasons), names)
        if names.incidents is not None:
            write_file(incident_table(judged, followed.called, reasons), names.incidents)
        for remark in (*remarks(judged, side), *followed.notes):
            print(f"note: {remark}", file=sys.stderr)
        print("\n".join(lines(judged, followed.called, reasons, followed.changed)), file=sys.stderr)

    return perform(work, out=sys.stderr)


@dataclass(frozen=True, slots=True)
class Judged:
    """The answers of a checkpoint for every window of a data set; ``inputs`` and ``scored`` are in its order."""

    document: Mapping[str, Any]
    inputs: Inputs
    scored: Scored
    classes: Classes
    references: References
    fitted: Fitted
    hosts: HostThresholds | None = None
    notes: tuple[str, ...] = ()
    levels: Levels | None = None  # of anomaly scores

    @property
    def name(self) -> str:
        return f"{self.document['model']} {self.document['mode']}"

    @property
    def calibrated(self) -> float | None:
        """The calibrated threshold, before any host's reference changes it; None where the model has none."""
        threshold = (self.document.get("threshold") or {}).get("threshold")
        return None if threshold is None else float(threshold)

    @property
    def thresholds(self) -> NDArray[np.float64] | None:
        """The score (N) that each window must exceed to raise an alarm; None where the model has no threshold."""
        import numpy as np

        if self.calibrated is None or self.hosts is None:
            return None if self.calibrated is None else np.full(self.scored.y.size, self.calibrated, dtype=np.float64)
        return self.hosts.each(self.scored.rows.host)

    @property
    def alarm(self) -> NDArray[np.bool_] | None:
        """The windows (N) that raise an alarm; None where the model has no threshold."""
        thresholds = self.thresholds
        return None if thresholds is None else self.scored.score > thresholds


@dataclass(frozen=True, slots=True)
class Model:
    """A verified checkpoint with the model that it holds, ready to score."""

    path: Path
    checkpoint: Checkpoint
    family: Family
    fitted: Fitted

    @property
    def document(self) -> Mapping[str, Any]:
        return self.checkpoint.document


def open_model(checkpoint: Path, *, threads: int = 1, refuse: Callable[[Checkpoint], object] | None = None) -> Model:
    """Verify the checkpoint, let ``refuse`` raise for data that it does not fit, and load it. Raises ``BadData``."""
    from training.trainer import families, machine
    from training.trainer.checkpoint import read
    from training.trainer.flags import MODELS

    found = read(checkpoint)
    if found.model not in MODELS:
        raise BadData(f"{checkpoint} was made by {found.model!r}, which is not one of these trainers")
    if refuse is not None:
        refuse(found)
    family = families.find(found.model)
    if "torch" in family.libraries:
        machine.settle_torch(threads)
    document = found.document
    labels = document["label_map"]
    try:
        fitted = family.load(document["facts"], found.sidecar, len(labels), document["hyper"])
    except pickle.UnpicklingError:  # PyTorch's own words would tell the reader how to run it
        raise BadData(
            f"{checkpoint} holds something other than weights of {found.model}, which was not run: "
            "fetch the model again with `cis490-jobs get`, and do not trust this file"
        ) from None
    except _NOT_WEIGHTS as error:
        cause = str(error).partition("\n")[0][:200]
        raise BadData(f"{checkpoint} holds no weights of {found.model} ({cause})") from None
    return Model(checkpoint, found, family, fitted)


def judge(checkpoint: Path, data: Path, *, threads: int = 1) -> Judged:
    """Verify the checkpoint, refuse data of another schema, and score. Raises ``BadData``."""
    from training.contract import FEATURES_FILE, SCHEMA_FILE, TENSORS_FOLDER
    from training.data.dataset import load_processed, on_channels
    from training.data.errors import DataError
    from training.trainer.checkpoint import require_schema, schema_of

    loaded: list[Dataset] = []

    def load(found: Checkpoint) -> None:
        try:
            own = load_processed(data / FEATURES_FILE, data / TENSORS_FOLDER, data / SCHEMA_FILE, found.mode)
        except DataError as error:
            raise BadData(str(error)) from None
        loaded.append(on_channels(own, schema_of(found)))
        require_schema(found, loaded[0].schema)

    model = open_model(checkpoint, threads=threads, refuse=load)
    return judged_by(model, loaded[0], str(data))


def judged_by(model: Model, loaded: Dataset, name: str, *, known: Judged | None = None) -> Judged:
    """Score the windows of a data set of the model's schema; ``name`` is the data's. Raises ``BadData``.

    ``known`` are other windows of hosts with the same references, which are then not scored again.
    """
    import numpy as np

    from training.trainer.evaluation.scored import Classes, Scored
    from training.trainer.inputs import from_dataset

    document, fitted = model.document, model.fitted
    labels = document["label_map"]
    inputs = from_dataset(loaded, takes=model.family.takes)
    outputs = fitted.predict(inputs.X, np.arange(len(loaded)), features=inputs.features)
    if outputs.proba is not None and outputs.proba.shape[1] != len(labels):
        raise BadData(f"{model.path} names {len(labels)} classes and knows {outputs.proba.shape[1]}")
    if known is not None:
        references, levels = known.references, known.levels
    else:
        references, levels = _references(document, fitted, inputs, anomalies=outputs.score is not None)
    said = outputs.score
    notes: list[str] = []
    if said is not None and levels is not None:
        said, notes = levels.applied(said, inputs.rows.host), levels.notes(inputs.rows.host)
    try:
        classes = Classes.of(labels, loaded.benign)
        scored = Scored.build(inputs.rows, proba=outputs.proba, score=said, classes=classes)
    except ValueError as error:
        raise BadData(f"{model.path} does not fit {name}: {error}") from None
    hosts = _hosts(document, references, inputs.schema_fields)
    return Judged(document, inputs, scored, classes, references, fitted, hosts, tuple(notes), levels)


def _references(
    document: Mapping[str, Any], fitted: Fitted, inputs: Inputs, *, anomalies: bool
) -> tuple[References, Levels | None]:
    """The scores of the references here that trained nothing, and the levels of anomaly scores that follow."""
    from training.trainer.levels import Levels
    from training.trainer.references import references_of
    from training.trainer.seen import fresh_references

    fresh, recorded, levels = fresh_references(document, inputs), document.get("levels"), None
    if anomalies and recorded is not None:
        raw = references_of(fitted, inputs, fresh, None)
        levels = Levels.elsewhere(raw.score, raw.host, recorded)
    return references_of(fitted, inputs, fresh, levels), levels


def _hosts(document: Mapping[str, Any], references: References, schema: Mapping[str, Any]) -> HostThresholds | None:
    """The thresholds of hosts, by the references here; None for a model that learnt no rule for them."""
    from training.trainer.evaluation.host_thresholds import HostThresholds

    threshold = document.get("threshold") or {}
    if threshold.get("threshold") is None or threshold.get("hosts") is None:
        return None
    found = HostThresholds.recorded(threshold["hosts"], threshold["threshold"])
    return found.elsewhere(references, measured=schema["normaliser"].get("type") == "host_baseline")


def score(checkpoint: Path, data: Path, *, threads: int = 1) -> Any:
    """A polars frame with a row a window; raises ``BadData`` for a bad checkpoint or other data."""
    judged = judge(checkpoint, data, threads=threads)
    return table(judged, sides(judged))


def why(judged: Judged) -> Reasons:
    """The reasons of the alarms. Raises ``BadArguments`` where the model has no threshold."""
    import numpy as np

    from training.trainer.reasons import explain

    if judged.alarm is None:
        raise BadArguments(f"{judged.name} has no threshold, so no window is an alarm to explain: leave out --explain")
    return explain(judged.fitted, judged.inputs, np.flatnonzero(judged.alarm))


def table(judged: Judged, side: NDArray[np.str_] | None, reasons: Reasons | None = None) -> Any:
    """A polars frame with a row a window; with ``reasons`` also what carried the alarms that were explained."""
    import polars as pl

    rows, scored, document = judged.inputs.rows, judged.scored, judged.document
    columns: dict[str, Any] = {
        "window_id": rows.window_id,
        "episode_id": rows.episode,
        "host": rows.host,
        "t_start": rows.t_start,
        "t_end": rows.t_end,
        "side": [None] * len(rows) if side is None else side,
        "score": scored.score,
    }
    labels = document["label_map"]
    if scored.proba is not None:
        by_number = sorted(labels, key=lambda name: labels[name])
        columns |= {f"p_{name}": scored.proba[:, labels[name]] for name in by_number}
        columns["class"] = [by_number[k] for k in judged.classes.likeliest(scored.proba)]
    columns["threshold"] = [None] * scored.y.size if judged.thresholds is None else judged.thresholds
    columns["alarm"] = [None] * scored.y.size if judged.alarm is None else judged.alarm
    if reasons is not None:
        columns |= _explained(reasons, scored.y.size)
    texts = dict.fromkeys(("side", *EXPLAINED), pl.String)
    known = {name: texts[name] for name in columns if name in texts}
    return pl.DataFrame(columns, schema_overrides={"threshold": pl.Float64, "alarm": pl.Boolean, **known})


def _explained(reasons: Reasons, windows: int) -> dict[str, list[str | None]]:
    """The columns of `EXPLAINED`: ``name 41 %, …`` and, of models that learn from samples, ``1-2 s, …``."""
    from training.trainer.reasons import in_words

    columns: dict[str, list[str | None]] = {name: [None] * windows for name in EXPLAINED}
    for number, row in enumerate(reasons.rows.tolist()):
        columns["why"][row] = in_words(reasons.named(reasons.share[number]))
        spans = reasons.moments(number)
        columns["why_seconds"][row] = ", ".join(f"{start:g}-{end:g}" for start, end in spans) or None
    return columns


def incidents(judged: Judged, state: Path | None = None) -> list[Called]:
    """The incidents of the windows, recording by recording; see `follow`."""
    return follow(judged, state).called


@dataclass(frozen=True, slots=True)
class Followed:
    """The incidents, the changes of the hosts that have changed, by name, and notes."""

    called: list[Called]
    changed: dict[str, Told]
    notes: list[str]


def follow(judged: Judged, state: Path | None = None, confirm: Sequence[str] = ()) -> Followed:
    """Go through the windows in time; nothing is found where the model has no threshold.

    With a ``state`` file they go on from what it keeps, which is then renewed; the changes of the hosts ``confirm`` are
    confirmed before. Raises ``TrainerError``.
    """
    from training.trainer.evaluation.incidents import runs_of, stride_of
    from training.trainer.incidents import Window
    from training.trainer.streams import StateError, Streams, feed_all, rule_of

    thresholds, document, rows = judged.thresholds, judged.document, judged.inputs.timed
    if thresholds is None:
        return Followed([], {}, [])
    try:
        streams = Streams(str(document.get("digest", "")), rule_of(document))
        note = None if state is None else streams.load(state)
    except StateError as error:
        raise BadArguments(str(error)) from None
    except ValueError as error:
        raise BadData(f"the checkpoint is damaged: {error}") from None
    for host in confirm:
        if streams.confirm(host) is None:
            raise BadArguments(f"{state} knows no change of {host}: there is nothing to confirm")
    nominal_s = float(judged.inputs.schema_fields["stride_s"])
    runs = runs_of(rows, stride_of(rows, nominal_s=nominal_s))
    order = runs.order.tolist()
    names = [f"{rows.host[row]}/{rows.episode[row]}" for row in order]
    margin = (judged.scored.score - thresholds)[order].tolist()
    windows = list(map(Window, runs.t_start.tolist(), runs.t_end.tolist(), margin))
    new = [row for row, name, one in zip(order, names, windows, strict=True) if not streams.knows(name, one)]
    hosts = [str(rows.host[row]) for row in order]
    found = feed_all(streams, zip(names, hosts, windows, strict=True))
    changed = _changed(judged, streams, new)
    if state is not None:
        streams.save(state)
    return Followed(found, changed, [] if note is None else [note])


def _changed(judged: Judged, streams: Streams, new: Sequence[int]) -> dict[str, Told]:
    """Add the windows ``new`` to the records of their hosts; the hosts here that have changed, now or before."""
    import numpy as np

    from training.trainer.changed import Measures, in_order

    inputs, rows = judged.inputs, judged.inputs.timed
    measures = Measures.of(inputs.schema_fields)
    hosts = np.unique(rows.host).tolist()
    for host in hosts:
        usual = measures.usual(inputs.reference_features[inputs.reference_host == host])
        streams.hosts[host] = streams.record(host).beside(usual)
    values, fresh = measures.take(inputs.features), set(new)
    for row in in_order(inputs.rows).tolist():
        if row in fresh:
            began, ended = (None if np.isnan(at) else float(at) for at in (rows.t_start[row], rows.t_end[row]))
            streams.hosts[str(rows.host[row])].take(str(rows.episode[row]), began, ended, values[row], measures)
    return {host: told for host in hosts if (told := streams.hosts[host].told) is not None}


def incident_table(judged: Judged, found: Sequence[Called], reasons: Reasons | None = None) -> Any:
    """A polars frame with a row an incident; times are those of the windows. With ``reasons`` also what carried it."""
    import polars as pl

    columns: dict[str, Any] = {
        "incident_id": pl.String,
        "episode_id": pl.String,
        "host": pl.String,
        "began": pl.Float64,
        "raised": pl.Float64,
        "last_alarm": pl.Float64,
        "alarms": pl.Int64,
        "peak": pl.Float64,
        "over": pl.Boolean,
        "model": pl.String,
    }
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


def why_of(judged: Judged, one: Called, reasons: Reasons) -> str | None:
    """The channels that carried an incident's alarms in this data set; None where none of them was explained."""

    from training.trainer.evaluation.incidents import runs_of, stride_of
    from training.trainer.reasons import in_words

    rows = judged.inputs.timed
    runs = runs_of(rows, stride_of(rows, nominal_s=float(judged.inputs.schema_fields["stride_s"])))
    within = (runs.t_start >= one.incident.began) & (runs.t_end <= one.incident.last)
    host, episode = rows.host[runs.order], rows.episode[runs.order]
    mine = (host == one.host) & (episode == one.stream.removeprefix(f"{one.host}/"))
    share = reasons.mean(runs.order[within & mine])
    return None if share is None else in_words(reasons.named(share))


def sides(judged: Judged) -> NDArray[np.str_] | None:
    """The side (N) of each window when the model was trained; None where the checkpoint cannot say.

    Of the data set it was trained on by the split itself, which is exact; of another one by content.
    """
    from training.trainer.seen import same_data, sides_by_content, sides_of_split

    inputs = judged.inputs
    if same_data(judged.document, inputs):
        with suppress(BadData):  # what cannot be divided today was divided by earlier rules
            split = split_again(judged)
            if split.fingerprint == judged.document["split"]["fingerprint"]:
                return sides_of_split(split, inputs.y.size)
    return sides_by_content(judged.document, inputs)


def split_again(judged: Judged) -> Split:
    """The split that the checkpoint names, of the data that were judged. Raises ``BadData``."""
    from training.trainer.inputs import split_inputs

    recorded = judged.document["split"]
    return split_inputs(
        judged.inputs,
        recipe=recorded["recipe"],
        train_hosts=recorded["train_hosts"],
        seed=recorded["seed"],
        supervised=False,
    )


def remarks(judged: Judged, side: NDArray[np.str_] | None) -> list[str]:
    """Collect what a reader of the scores must know: which rows are no test, and how unlike the data are."""
    from training.data.schema import Timing
    from training.trainer import ranges
    from training.trainer.seen import NEW, why_unknown

    if side is None:
        first = f"Which of these windows {judged.name} has seen is not known: {why_unknown(judged.document)}."
    else:
        listed = side.tolist()
        shown = ", ".join(f"{name} {listed.count(name):,}" for name in dict.fromkeys(listed))
        first = f"Windows by side: {shown}; only test and new ones tell how good the model is."
        if NEW in listed:
            first += " New is what shares no samples with them: a copy that was rounded or scaled is not recognised."
    inputs, said = judged.inputs, [first, *ranges.said_of(judged.inputs, judged.document)]
    if inputs.schema_fields.get("time") in (Timing.STARTS, Timing.NONE):
        said.append(
            "The sampling rate of these windows is unknown, and of those the model was trained on: if the rates "
            "differ, its scores mean nothing."
        )
    if inputs.schema_fields["normaliser"].get("type") == "host_baseline":
        without = sorted(set(inputs.rows.host.tolist()) - set(inputs.reference_host.tolist()))
        said += [
            f"{host} has no reference recording here: its values are measured from the usual level of the others."
            for host in without
        ]
    if judged.hosts is None and judged.calibrated is not None and judged.references.host.size:
        said.append(
            "The checkpoint has one threshold for all hosts, and no rule by which references change it (an earlier "
            "version made it, or it had no references to learn one from): train it again."
        )
    if "digest" not in judged.document:
        said.append(
            "The checkpoint carries no digest of itself (an earlier version made it): a change by hand goes unnoticed."
        )
    return [*said, *judged.notes]


def write(frame: Any, names: argparse.Namespace) -> None:
    if names.out is None:
        text = frame.write_json() + "\n" if names.format == "json" else frame.write_csv()
        sys.stdout.write(text)
        return
    write_file(frame, names.out)


def write_file(frame: Any, path: Path) -> None:
    try:
        match path.suffix:
            case ".csv":
                frame.write_csv(path)
            case ".parquet":
                frame.write_parquet(path)
            case _:
                frame.write_json(path)
    except OSError as error:
        raise BadArguments(f"{path} cannot be written: {error.strerror or error}") from None


if __name__ == "__main__":
    sys.exit(main())

"""Score a data set with a trained model: verify the checkpoint, check the schema, score each window.

All programs that use a model call this module: `score`, `compare`, `drift`, `adapt` and `watch`.
"""

import functools
import pickle
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from training.contract import FEATURES_FILE, SCHEMA_FILE, TENSORS_FOLDER
from training.data.dataset import Dataset, load_processed, on_channels
from training.data.schema import FeatureSchema
from training.data.split import Split
from training.data.values import Bools, Floats, Json, Names
from training.families import FAMILIES, Family, Takes
from training.trainer import machine
from training.trainer.checkpoint import Checkpoint, read, require_schema, schema_of
from training.trainer.contract import BadData, limit_threads
from training.trainer.evaluation.host_levels import HostLevels, HostThresholds, ReferenceScores
from training.trainer.evaluation.incident_rates import runs_of, stride_of
from training.trainer.evaluation.scored import Classes, Scored
from training.trainer.inputs import Inputs, from_dataset, split_inputs
from training.trainer.reasons import Reasons, in_words
from training.trainer.references import references_of, scored_by, settled
from training.trainer.streams import Called
from training.trainer.task import Fitted, GivenWindows, Outputs, Settling
from training.trainer.training_windows import fresh_references, same_data, sides_by_content, sides_of_split

# Errors of the libraries for bytes that are not the weights they should be; a pickle that wants to
# run code is among them, and never runs.
NOT_WEIGHTS = (RuntimeError, ValueError, LookupError, ArithmeticError, TypeError, AttributeError, EOFError, OSError)


# Whose versions may show in scores.
LIBRARIES = ("numpy", "polars", "scikit-learn", "scipy", "torch", "xgboost", "xgboost-cpu")
PART = 16_384  # windows: a multiple of every family's block, as a block's size can show in the last bits

Mapped = Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Any]]


@dataclass(frozen=True)
class Judged:
    """A model's scores for every window of a data set; ``inputs`` and ``scored`` are in the data set's order."""

    document: Json
    inputs: Inputs
    scored: Scored
    classes: Classes
    references: ReferenceScores
    fitted: Fitted
    hosts: HostThresholds | None = None
    notes: tuple[str, ...] = ()
    levels: HostLevels | None = None  # of anomaly scores

    @property
    def name(self) -> str:
        return f"{self.document['model']} {self.document['mode']}"

    @property
    def calibrated(self) -> float | None:
        """The calibrated threshold, before any host's reference changes it; None where the model has no threshold."""
        threshold = (self.document["threshold"] or {}).get("threshold")
        return None if threshold is None else float(threshold)

    @property
    def thresholds(self) -> Floats | None:
        """The score (N,) that each window must exceed to raise an alarm; None where the model has no threshold."""
        if self.calibrated is None or self.hosts is None:
            return None if self.calibrated is None else np.full(self.scored.y.size, self.calibrated, float)
        return self.hosts.each(self.scored.rows.host)

    @property
    def alarm(self) -> Bools | None:
        """(N,) True for the windows that raise an alarm; None where the model has no threshold."""
        thresholds = self.thresholds
        return None if thresholds is None else self.scored.score > thresholds


class OpenedModel(NamedTuple):
    """A verified checkpoint with the model that it holds, ready to score."""

    path: Path
    checkpoint: Checkpoint
    family: Family
    fitted: Fitted

    @property
    def document(self) -> Json:
        return self.checkpoint.document


def open_model(checkpoint: Path, *, threads: int = 1) -> OpenedModel:
    """Verify the checkpoint, and load it. Raises ``BadData``."""
    return _loaded(checkpoint, read(checkpoint), threads)


def _loaded(checkpoint: Path, found: Checkpoint, threads: int) -> OpenedModel:
    if found.model not in FAMILIES:
        raise BadData(f"{checkpoint} was made by {found.model!r}, which is not one of these trainers")
    family = FAMILIES[found.model]
    if "torch" in family.libraries:
        machine.settle_torch(threads)
    document = found.document
    labels = document["label_map"]
    try:
        fitted = family.load(found.model, document["facts"], found.sidecar, len(labels), document["hyper"])
        _try(fitted, schema_of(found), family.takes)
    except pickle.UnpicklingError:  # PyTorch's own words would tell the reader how to run it
        raise BadData(
            f"{checkpoint} holds something other than weights of {found.model}, which was not run: "
            "fetch the model again with `cis490-jobs get`, and do not trust this file"
        ) from None
    except NOT_WEIGHTS as error:
        # XGBoost's own words begin with a time and a place in its sources.
        cause = re.sub(r"^\[[\d:]+\] \S+ ", "", str(error).partition("\n")[0])[:200]
        raise BadData(f"{checkpoint} holds no weights of {found.model} ({cause})") from None
    return OpenedModel(checkpoint, found, family, fitted)


def _try(fitted: Fitted, schema: FeatureSchema, takes: Takes) -> None:
    """Score one window of zeros. Raises an error of ``NOT_WEIGHTS`` if the model does not fit its own schema."""
    features = np.zeros((1, len(schema.features)), np.float32)
    samples = np.zeros((1, len(schema.channels), schema.window_samples), np.float32)
    blank = GivenWindows(features if takes is Takes.FEATURES else samples, features, np.array([""]))
    model = fitted.settled(blank) if isinstance(fitted, Settling) else fitted
    outputs = model.predict(blank, np.zeros(1, int))
    if not all(one is None or np.isfinite(one).all() for one in outputs):
        raise ValueError("it answers with numbers that are not finite")


def judge(checkpoint: Path, data: Path, *, threads: int = 1) -> Judged:
    """Verify the checkpoint, and score the windows of the data set. Raises ``BadData``, also for another schema."""
    return judged_by(*opened(checkpoint, data, threads=threads), str(data))


def opened(checkpoint: Path, data: Path, *, threads: int = 1) -> tuple[OpenedModel, Dataset]:
    """Return the verified model, and the windows that its mode may see. Raises ``BadData``, also for another schema."""
    found = read(checkpoint)
    own = load_processed(data / FEATURES_FILE, data / TENSORS_FOLDER, data / SCHEMA_FILE, found.mode)
    own = on_channels(own, schema_of(found))
    require_schema(found, own.schema)
    return _loaded(checkpoint, found, threads), own


def settled_on(model: OpenedModel, loaded: Dataset) -> tuple[Fitted, Inputs]:
    """Return the model and the windows in the form that it takes; a model that measures hosts has measured those with
    references."""
    inputs = from_dataset(loaded, takes=model.family.takes)
    return settled(model.fitted, inputs), inputs


def judged_by(
    model: OpenedModel, loaded: Dataset, name: str, *, known: Judged | None = None, outputs: Outputs | None = None
) -> Judged:
    """Score the windows of a data set of the model's schema. Raises ``BadData``, in whose text ``name`` stands for the
    data set.

    ``known`` are judged windows of hosts with the same references, whose levels are then used again. ``outputs`` are
    the model's outputs, if they were computed already.
    """
    document = model.document
    labels = document["label_map"]
    if known is None:
        fitted, inputs = settled_on(model, loaded)
    else:
        fitted, inputs = known.fitted, from_dataset(loaded, takes=model.family.takes)
    outputs = outputs or fitted.predict(inputs.given, np.arange(len(loaded)))
    if outputs.proba is not None and outputs.proba.shape[1] != len(labels):
        raise BadData(f"{model.path} names {len(labels)} classes, and its weights know {outputs.proba.shape[1]}")
    if known is not None:
        references, levels = known.references, known.levels
    else:
        references, levels = _references(document, fitted, inputs, anomalies=outputs.score is not None)
    notes = [] if outputs.score is None or levels is None else levels.notes(inputs.rows.host)
    try:
        classes = Classes.of(labels, loaded.benign)
        scored = scored_by(outputs, inputs.rows, levels, classes)
    except ValueError as error:
        raise BadData(f"{model.path} does not fit {name}: {error}") from None
    hosts = rule_for_hosts(document)
    if hosts is not None:
        hosts = hosts.elsewhere(references, measured=inputs.from_references)
    return Judged(document, inputs, scored, classes, references, fitted, hosts, tuple(notes), levels)


def _references(
    document: Json, fitted: Fitted, inputs: Inputs, *, anomalies: bool
) -> tuple[ReferenceScores, HostLevels | None]:
    """Score the reference windows that the model has not trained on; return the scores, and the hosts' levels.

    Anomaly scores are relative to their hosts' levels, if the checkpoint has levels. If it has none, and for
    probabilities, the levels are None.
    """
    raw, recorded = references_of(fitted, inputs, fresh_references(document, inputs)), document["levels"]
    levels = None
    if anomalies and recorded is not None:
        levels = msgspec.convert(recorded, HostLevels).elsewhere(raw)
    return raw.measured(levels), levels


def rule_for_hosts(document: Json) -> HostThresholds | None:
    """Return the rule by which references change a model's threshold; None for a model without such a rule."""
    threshold = document["threshold"]
    if threshold is None or threshold["threshold"] is None or threshold["hosts"] is None:
        return None
    return HostThresholds.recorded(threshold["hosts"], threshold["threshold"])


def why_of(judged: Judged, one: Called, reasons: Reasons) -> str | None:
    """Name the channels that carried an incident's alarms in this data set; None if none of its alarms was
    explained."""
    rows = judged.inputs.timed
    runs = runs_of(rows, stride_of(rows, nominal_s=judged.inputs.schema.stride_s))
    within = (runs.t_start >= one.incident.began) & (runs.t_end <= one.incident.last)
    host, episode = rows.host[runs.order], rows.episode[runs.order]
    mine = (host == one.host) & (episode == one.stream.removeprefix(f"{one.host}/"))
    share = reasons.mean(runs.order[within & mine])
    return None if share is None else in_words(reasons.named(share))


def sides(judged: Judged) -> Names | None:
    """Return (N,) the side that each window was on when the model was trained; None if the checkpoint cannot tell.

    For the data set that the model was trained on, the repeated split gives the exact sides. If the data differ, or the
    split cannot be repeated, the windows' content is compared.
    """
    inputs = judged.inputs
    if same_data(judged.document, inputs):
        with suppress(BadData):
            split = split_again(judged)
            if split.fingerprint == judged.document["split"]["fingerprint"]:
                return sides_of_split(split, inputs.y.size)
    return sides_by_content(judged.document, inputs)


def split_again(judged: Judged) -> Split:
    """Repeat the checkpoint's split on the data that were scored. Raises ``BadData``."""
    recorded = judged.document["split"]
    return split_inputs(
        judged.inputs,
        recipe=recorded["recipe"],
        train_hosts=recorded["train_hosts"],
        test_hosts=recorded.get("test_hosts", ()),
        seed=recorded["seed"],
        split_seed=recorded.get("split_seed"),
        supervised=False,
        target_fpr=float(judged.document["hyper"]["target_fpr"]),
    )


# -- in parts, each on any worker: with the same blocks of windows as in one process, and so to the same bytes --------


@dataclass(frozen=True)
class Scoring:
    """Scores a part of the windows on any worker that can read checkpoint and data; both paths are absolute."""

    checkpoint: Path
    data: Path
    threads: int

    def __call__(self, begin: int) -> Outputs:
        """Score the ``PART`` windows that begin with the window number ``begin``, or the fewer that are left."""
        fitted, inputs = _ready(self.checkpoint, self.data, self.threads)
        rows = np.arange(begin, min(begin + PART, inputs.y.size))
        return fitted.predict(inputs.given, rows)


@functools.lru_cache(1)
def _ready(checkpoint: Path, data: Path, threads: int) -> tuple[Fitted, Inputs]:
    """Load the model and the windows; a worker keeps them in memory for its next part."""
    limit_threads(threads)
    return settled_on(*opened(checkpoint, data, threads=threads))


def judge_in_parts(checkpoint: Path, data: Path, mapped: Mapped, *, threads: int) -> Judged:
    """Score like `judge`, but let the workers of an engine score parts of the windows. Raises ``BadData``.

    ``mapped`` is the engine's map function.
    """
    model, loaded = opened(checkpoint, data, threads=threads)
    scoring = Scoring(checkpoint.absolute(), data.absolute(), threads)
    parts = list(mapped(scoring, range(0, len(loaded), PART)))
    proba, score = ([getattr(part, name) for part in parts] for name in ("proba", "score"))
    outputs = Outputs(*(None if found[0] is None else np.concatenate(found) for found in (proba, score)))
    return judged_by(model, loaded, str(data), outputs=outputs)

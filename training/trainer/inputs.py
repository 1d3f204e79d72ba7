"""The data set as a trainer sees it: the windows of one mode, and the episodes that validation kept out
(quarantined)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from training.data import summary
from training.data.coded import distinct
from training.data.dataset import Dataset, Validation, load_processed, load_validation
from training.data.features import extract
from training.data.identity import Kinship, of_two_hosts, window_digests
from training.data.rows import Rows
from training.data.schema import FeatureSchema, Timing
from training.data.split import Split, SplitError, make_split
from training.data.summary import Understood
from training.data.values import Digests, Floats32, Ints, Json, Names
from training.families import RUN_MODELS, Takes
from training.trainer.arguments import TrainerArgs
from training.trainer.contract import BadData
from training.trainer.evaluation.behaviours import behaviours_of
from training.trainer.evaluation.facts import percent
from training.trainer.evaluation.host_levels import needed
from training.trainer.evaluation.scored import Classes
from training.trainer.task import GivenWindows

NONE_ASIDE = (
    "No window is set aside for an alarm threshold: {n} benign ones would be, and a target of {target} needs {most}. "
    "They train instead."
)


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """N windows in the order of the data set; ``X`` has them in the form that the model takes."""

    X: Floats32  # (N, F) features, or (N, C, T) samples
    names: tuple[str, ...]  # of the features, or of the channels
    features: Floats32  # (N, F), for the baselines
    rows: Rows  # their labels are numbers of ``classes``
    classes: Classes
    schema: FeatureSchema
    digest: str  # of the data set
    tensors: Floats32  # (N, C, T) the windows of the channels that the mode may see
    channel_names: tuple[str, ...]
    window_digests: Digests  # (N,) of the samples that the mode may see
    validation_digest: str | None
    quarantined: tuple[Json, ...]
    understood: Understood | None  # None where none is kept, or no validation table was read
    reference: Floats32  # like ``X``, of the hosts' reference recordings
    reference_features: Floats32
    reference_tensors: Floats32  # (M, C, T)
    reference_host: Names
    reference_marks: Names
    kinship: Kinship
    behaviour: Names  # (N,) of malicious-like windows; "" for benign ones
    scenario: Names  # (N,) what was recorded; "" where the validation table does not say it

    @property
    def y(self) -> Ints:
        return self.rows.label

    @property
    def given(self) -> GivenWindows:
        return GivenWindows(self.X, self.features, self.rows.host)

    @property
    def ordinary(self) -> GivenWindows:
        """The windows of the hosts' references, in the form that a model gets."""
        return GivenWindows(self.reference, self.reference_features, self.reference_host)

    @property
    def timed(self) -> Rows:
        """The rows, with NaN for the times that by the schema are not in seconds: for none, for all ends, or for all
        times."""
        timing, unknown = self.schema.time, np.full(self.y.shape, np.nan)
        start, end = self.rows.t_start, self.rows.t_end
        if timing is not Timing.SECONDS:
            start, end = unknown if timing is Timing.NONE else start, unknown
        return replace(self.rows, t_start=start, t_end=end)

    @property
    def hides_nothing(self) -> bool:
        """Tell whether both modes may see every channel here. If the inputs are of the oracle mode, a realistic model
        then sees the same channels."""
        return all(len(channel.modes) > 1 for channel in self.schema.channels)

    @property
    def from_references(self) -> bool:
        """Tell whether values are relative to the host's own reference or, for a host without one, to the median of all
        hosts' resting levels."""
        return bool(self.schema.normaliser.get("type") == "host_baseline")


def read_inputs(args: TrainerArgs, *, takes: Takes) -> Inputs:
    """Read the data set that ``args`` name; raises ``BadData`` with one sentence."""
    named = args.model in RUN_MODELS
    validation = load_validation(args.validation)
    found = summary.read(args.validation)
    # The self-supervised trainer may be given no more than the tensors.
    data = load_processed(
        args.summary if named or args.summary.exists() else None,
        args.tensors,
        args.schema if named or args.schema.exists() else None,
        args.mode.value,
    )
    _require_its_own(args.validation, validation, data)
    if not data.is_labelled:
        raise BadData(
            f"{args.tensors} holds windows without labels, which a model can score (training.trainer.score) and "
            "none can learn from or be tested on: ingest them with --label NAME, or with --labels-from FILE"
        )
    if data.schema.has_examples and takes is Takes.TENSORS:
        raise BadData(
            f"{args.tensors} holds rows of a table, one sample each, from which models of sequences learn nothing: "
            "train gbt or mlp"
        )
    known = distinct(data.rows.episode) & set(validation.quarantined)
    if known:
        raise BadData(
            f"episode {min(known)} is quarantined by {args.validation} and yet among the windows: "
            "build the data set again"
        )
    quarantined = tuple(
        {"episode_id": episode, "reasons": list(reasons)} for episode, reasons in sorted(validation.quarantined.items())
    )
    return from_dataset(data, takes=takes, quarantined=quarantined, understood=found, scenarios=validation.scenarios)


def _require_its_own(path: Path, validation: Validation, data: Dataset) -> None:
    """Raise ``BadData`` for another data set's validation table, because the report would name that set's episodes."""
    other = data.validation_digest != validation.digest
    unknown = sorted(distinct(data.rows.episode) - validation.good - set(validation.quarantined))
    if other or unknown:
        why = f" (it does not know the recording {unknown[0]!r})" if unknown else ""
        raise BadData(
            f"{path} is the validation table of another data set{why}: name the one that was written with the tensors, "
            "or build the data set again"
        )


def from_dataset(
    data: Dataset,
    *,
    takes: Takes,
    quarantined: tuple[Json, ...] = (),
    understood: Understood | None = None,
    scenarios: Mapping[str, str] = MappingProxyType({}),
) -> Inputs:
    """Convert a loaded data set to what a family learns from; features are computed from the windows if none were
    read."""
    features = data.features
    if features is None:
        features = extract(data.tensors, data.schema.channels, data.schema.sample_hz)
    reference = np.zeros((0, features.shape[1]), np.float32)
    if len(data.reference.X):
        reference = extract(data.reference.X, data.schema.channels, data.schema.sample_hz)
    by_features = takes is Takes.FEATURES
    classes = Classes.of(data.label_map, data.benign)
    return Inputs(
        X=features if by_features else data.tensors,
        names=data.feature_names if by_features else data.channel_names,
        features=features,
        rows=data.rows,
        classes=classes,
        schema=data.schema,
        digest=data.data_digest,
        tensors=data.tensors,
        channel_names=tuple(data.channel_names),
        window_digests=window_digests(data.tensors, data.channel_names),
        validation_digest=data.validation_digest,
        quarantined=quarantined,
        understood=understood,
        reference=reference if by_features else data.reference.X,
        reference_features=reference,
        reference_tensors=data.reference.X,
        reference_host=data.reference.rows.host,
        reference_marks=data.reference.rows.marks,
        kinship=data.kinship,
        behaviour=behaviours_of(data.rows, classes, scenarios),
        scenario=np.array([scenarios.get(name, "") for name in data.rows.episode.tolist()], str),
    )


def split_inputs(inputs: Inputs, *, target_fpr: float, **asked: Any) -> Split:
    """Split the windows into four sides, the same for equal data and arguments. Raises ``BadData``.

    Each recording is on one side at most; recordings that share samples are on the same side. The calibration side is
    empty if no class is benign, or if too few benign windows would be there to set a threshold. The arguments ``asked``
    are those of `make_split`.
    """
    if inputs.kinship.strangers is not None:
        raise BadData(of_two_hosts(inputs.kinship.strangers))

    rows = replace(inputs.timed, label=inputs.classes.in_order(inputs.y))
    try:
        split = make_split(rows, calibrated=bool(inputs.classes.benign), **asked)
        benign = int(inputs.classes.is_benign(inputs.y[split.cal]).sum())
        notes = inputs.kinship.notes
        if split.cal.size and benign < (most := needed(target_fpr)):
            split = make_split(rows, calibrated=False, **asked)
            notes = (*notes, NONE_ASIDE.format(n=benign, target=percent(target_fpr), most=most))
    except SplitError as error:
        why = "; ".join(note.removesuffix(".") for note in inputs.kinship.notes)
        raise BadData(f"{error} ({why})" if why else str(error)) from None
    return replace(split, notes=(*split.notes, *notes))

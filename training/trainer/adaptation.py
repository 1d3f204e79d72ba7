"""Fit a trained model to a new host by the host's reference: set the host's level, or prepare another training."""

import argparse
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from training.contract import FEATURES_FILE, SCHEMA_FILE, TENSORS_FOLDER, VALIDATION_FILE, Mode, Recipe
from training.data.dataset import WindowSet, load_processed, on_channels, unwritten
from training.data.rows import Rows
from training.data.schema import FeatureSchema
from training.data.values import Json, JsonDict
from training.families import FAMILIES
from training.streams import complain
from training.trainer import checkpoint
from training.trainer.arguments import TrainerArgs
from training.trainer.checkpoint import require_schema, schema_of
from training.trainer.contract import BadData
from training.trainer.evaluation.host_levels import FEWEST, HostLevels, HostThresholds
from training.trainer.inputs import from_dataset
from training.trainer.judging import OpenedModel, rule_for_hosts
from training.trainer.own_references import own_references, recorded
from training.trainer.references import Added, references_of, settled
from training.trainer.task import Settling
from training.trainer.training_windows import fresh_references


def arguments_of(document: Json, names: argparse.Namespace) -> TrainerArgs:
    """Return the arguments that a checkpoint was trained with, but with the data, folders, threads and resamples in
    ``names``.

    The device in the arguments is always the CPU.
    """
    model, split, data = str(document["model"]), document["split"], names.data
    return TrainerArgs(
        model=model,
        mode=Mode(document["mode"]),
        validation=data / VALIDATION_FILE,
        summary=data / FEATURES_FILE,
        schema=data / SCHEMA_FILE,
        tensors=data / TENSORS_FOLDER,
        out_dir=names.out_dir,
        reports_dir=names.reports_dir or names.out_dir,
        state_dir=names.out_dir,
        split_recipe=Recipe(split["recipe"]),
        train_hosts=tuple(split["train_hosts"]),
        test_hosts=tuple(split.get("test_hosts", ())),
        n_resamples=names.n_resamples,
        seed=int(split["seed"]),
        split_seed=split.get("split_seed"),
        threads=names.threads,
        device="cpu",
        hyper={one.key: document["hyper"][one.key] for one in FAMILIES[model].hyper},
    )


def read_added(model: OpenedModel, place: Path) -> Added:
    """Read the reference windows at ``place``, on the channels of the model. Raises ``BadData`` if there are none, or
    if they do not fit the model.

    From a processed data set, the references of the training hosts named by the checkpoint's split are left out; only a
    split by host names some.
    """
    schema = schema_of(model.checkpoint)
    if (place / TENSORS_FOLDER).is_dir():
        loaded = load_processed(None, place / TENSORS_FOLDER, place / SCHEMA_FILE, model.checkpoint.mode)
        loaded = on_channels(loaded, schema)
        require_schema(model.checkpoint, loaded.schema)
        known = {str(name) for name in model.document["split"]["train_hosts"]}
        keep = ~np.isin(loaded.reference.rows.host, sorted(known))
        X, host = np.array(loaded.reference.X[keep]), loaded.reference.rows.host[keep]
    else:
        X, host = _recorded(place, schema)
    if not host.size:
        raise BadData(
            f"{place} has no reference window of a host that is new to the model: record its ordinary work with "
            "cis490 record --baseline"
        )
    times = np.arange(host.size, dtype=float)
    rows = Rows.of(episode=host, host=host, t_start=times, t_end=times, label=np.zeros(host.size, int))
    windows = WindowSet(X=X, rows=rows)
    inputs = from_dataset(unwritten(windows, schema, windows), takes=model.family.takes)
    return Added(
        inputs=inputs,
        base=str(model.document["digest"]),
        data=str(model.document["run_key"]["data"]),
        split=str(model.document["split"]["fingerprint"]),
        kept={},
    )


def _recorded(place: Path, schema: FeatureSchema) -> Any:
    """Return the windows (M, C, T) and hosts (M,) of the reference recordings at ``place``."""
    X, host = [np.zeros((0, len(schema.channels), schema.window_samples), np.float32)], []
    references = [one.facts.meta for one in recorded(place, schema.sample_hz)]
    for name, view in sorted({(meta.host, meta.view) for meta in references}):
        own = own_references([str(place)], name, view, schema).windows
        if own is not None:
            X.append(own.X)
            host += own.rows.host.tolist()
    return np.concatenate(X), np.array(host, str)


def hosts_of(model: OpenedModel, added: Added, levels: HostLevels | None = None) -> HostThresholds:
    """Compute the thresholds that the model gives the added hosts, before it learns from their references.

    Prints doubts about references to standard error. Raises ``BadData`` if the model has no rule for references, or if
    a reference is too short or one that the model was trained on.
    """
    rule = rule_for_hosts(model.document)
    if rule is None:
        raise BadData(
            f"{model.path} has no rule by which a reference changes its threshold: "
            "train it again on data with references, and with enough benign windows for a threshold"
        )
    fresh = fresh_references(model.document, added.inputs)
    if fresh.size < added.inputs.reference_host.size:
        raise BadData(f"{model.path} has learnt from this reference already: bring one that was recorded later")
    added.require(FEWEST, "a level")
    references = references_of(settled(model.fitted, added.inputs), added.inputs, fresh).measured(levels)
    hosts = rule.elsewhere(references)
    for doubt in references.doubts(hosts.calibrated):
        complain(f"note: {doubt}")
    return hosts


def set_level(model: OpenedModel, added: Added, out_dir: Path) -> Path:
    """Write a checkpoint with unchanged weights and the added hosts' levels; return its path. Raises ``BadData``.

    If the model measures hosts from their references, the new checkpoint also has the added hosts' centres.
    """
    document, levels, fitted = dict(model.document), None, settled(model.fitted, added.inputs)
    if document["levels"] is not None:
        added.require(FEWEST, "a level")
        raw = references_of(fitted, added.inputs, np.arange(added.inputs.reference_host.size))
        levels = msgspec.convert(document["levels"], HostLevels).elsewhere(raw)
        own = {name: level for name, level in levels.known.items() if name in added.hosts}
        document["levels"] = {**document["levels"], "own": {**levels.own, **own}}
    if isinstance(fitted, Settling):
        document["facts"] = {**document["facts"], **fitted.own()}
    hosts = hosts_of(model, added, levels)
    told = {**document["threshold"]["hosts"], "levels": hosts.to_dict()["levels"]}
    document["threshold"] = {**document["threshold"], "hosts": told}
    document["adapted"] = {**added.to_dict(), "trained": False}
    return checkpoint.write(out_dir, without_envelope(document), model.checkpoint.sidecar, model.family.sidecar)


def without_envelope(document: Json) -> JsonDict:
    """Return a checkpoint's document without the members that `checkpoint.write` adds."""
    return {key: value for key, value in document.items() if key not in ("format", "version", "sidecar", "digest")}

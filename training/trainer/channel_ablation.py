"""Measure what a missing channel costs: how well a model does on hosts that lack the channel.

Channels that machines may lack are removed from the test windows, one at a time and all at once; the model and its
calibrated threshold do not change. The channels are removed from hosts' references, too, from which the hosts' levels,
centres and thresholds are computed again. Channels that machines may lack are those that only some hosts of the data
set have, and those of the recorder that not every machine can measure. The figures are in the report, and in the
checkpoint, for users who score a host that lacks such channels.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from training.data.absent import absent, columns_of, lacking, lacking_hosts, without
from training.data.channels import OPTIONAL
from training.data.scratch import WIDE_ROWS, spans
from training.data.split import Split
from training.data.values import Bools, Floats32, Ints, Json, JsonDict
from training.families import Takes
from training.trainer.comparison import paired_gap
from training.trainer.contract import Stop
from training.trainer.evaluation.host_levels import HostLevels
from training.trainer.evaluation.metrics import OperatingPoint, Scored, evaluate
from training.trainer.inputs import Inputs
from training.trainer.references import references_of, scored_by, settled
from training.trainer.task import Fitted, GivenWindows, evenly

MOST_JUDGED = 2_048  # test windows, evenly drawn: each channel costs a prediction of all of them
SHOWN = ("auroc", "tpr", "fpr")


def channels_of_training(inputs: Inputs, split: Split) -> dict[str, list[str]]:
    """Return, under the keys ``every``, ``some`` and ``none``, the channels that all, only some or none of the training
    hosts have."""
    rows = np.sort(np.concatenate((split.train, split.val, split.cal)))
    gone = ((here.start, _gone(inputs, rows[here])) for here in spans(rows, step=WIDE_ROWS))
    lacks = lacking(gone, inputs.rows.host[rows])
    names = inputs.channel_names
    every, none = ~lacks.any(axis=0), lacks.all(axis=0)
    kinds = {"every": every, "some": ~every & ~none, "none": none}
    return {kind: [names[place] for place in np.flatnonzero(marks)] for kind, marks in kinds.items()}


def to_take_away(inputs: Inputs, test: Ints) -> list[str]:
    """Return the channels that some machines may lack, and that at least one test window has."""
    optional = OPTIONAL | set(inputs.schema.optional)
    has = np.zeros(len(inputs.channel_names), bool)
    for here in spans(test, step=WIDE_ROWS):
        has |= ~_gone(inputs, test[here]).all(axis=0)
    there = [inputs.channel_names[place] for place in np.flatnonzero(has).tolist()]
    return [name for name in there if name in optional]


def _gone(inputs: Inputs, rows: Ints) -> Bools:
    """Return (n, C) True for the channels that each of these windows lacks."""
    return absent(inputs.tensors[rows, :, :1])


def prices(
    inputs: Inputs,
    fitted: Fitted,
    levels: HostLevels | None,
    split: Split,
    *,
    references: Ints,
    takes: Takes,
    test: Scored,
    point: OperatingPoint | None,
    n_resamples: int,
    seed: int,
    stop: Stop,
) -> JsonDict:
    """List the channels of the training hosts, and compute the test figures with optional channels removed.

    JSON values: channels that ``every``, only ``some`` and ``none`` of the training hosts have; ``whole`` has auroc,
    tpr and fpr of the windows judged, at most ``MOST_JUDGED``. Each of ``without`` has the ``channels`` removed, the
    same figures, and ``gap``: its AUROC minus that of ``whole``, on the same draws of episodes. ``whole`` and
    ``without`` are missing if no test window has an optional channel.
    """
    kinds = channels_of_training(inputs, split)
    taken = to_take_away(inputs, split.test)
    if not taken:
        return kinds
    places = evenly(split.test.size, MOST_JUDGED)
    rows, whole = split.test[places], test.take(places)

    def figures(scored: Scored, point: OperatingPoint | None) -> JsonDict:
        found = evaluate(scored, classes=inputs.classes, operating_point=point, n_resamples=0).metrics
        return {name: found[name]["value"] for name in SHOWN}

    def judged(channels: Sequence[str]) -> JsonDict:
        stop.check()
        poorer = take_away(inputs, channels, takes, rows)
        own = settled(fitted, poorer)
        # A host that lacks a channel has recorded its reference without it as well.
        raw = references_of(own, poorer, references)
        own_levels = None if levels is None else levels.elsewhere(raw)
        own_point = point
        if point is not None and point.hosts is not None:
            own_point = replace(point, hosts=point.hosts.elsewhere(raw.measured(own_levels)))
        outputs = own.predict(GivenWindows(poorer.X, poorer.features, whole.rows.host), np.arange(rows.size))
        scored = scored_by(outputs, whole.rows, own_levels, inputs.classes)
        gap = paired_gap(scored, whole, classes=inputs.classes, n_resamples=n_resamples, seed=seed)
        return {"channels": list(channels), **figures(scored, own_point), "gap": gap}

    each = [[name] for name in taken] + ([taken] if len(taken) > 1 else [])
    return {**kinds, "whole": figures(whole, point), "without": [judged(channels) for channels in each]}


def take_away(inputs: Inputs, channels: Sequence[str], takes: Takes, rows: Ints) -> Inputs:
    """Return the inputs with only the windows ``rows`` in ``X`` and ``features``, and these channels removed there and
    from ``reference`` and ``reference_features``.

    All other members are unchanged, also ``tensors`` and ``rows``.
    """
    names = inputs.schema.feature_names
    columns = np.unique(np.concatenate([columns_of(names, channel) for channel in channels]))

    def features(values: Floats32) -> Floats32:
        values = values.copy()
        values[:, columns] = np.nan
        return values

    found, own_features = features(inputs.features[rows]), features(inputs.reference_features)
    X, own = found, own_features
    if takes is not Takes.FEATURES:
        X, own = (without(each, inputs.channel_names, channels) for each in (inputs.X[rows], inputs.reference))
    return replace(inputs, X=X, features=found, reference=own, reference_features=own_features)


# -- what a scored host lacks ------------------------------------------------------------------------------------------


def lacked(inputs: Inputs, document: Json) -> dict[str, list[str]]:
    """Return, for each host in these data, the channels that it lacks; hosts that lack none are left out.

    Channels that no training host had do not count.
    """
    never = set(document["channels"]["none"])
    lacks = lacking_hosts(inputs.tensors[:, :, :1], inputs.rows.host)
    found = {}
    for host, gone in zip(np.unique(inputs.rows.host).tolist(), lacks, strict=True):
        names = [inputs.channel_names[place] for place in np.flatnonzero(gone).tolist()]
        found[host] = [name for name in names if name not in never]
    return {host: names for host, names in found.items() if names}


def price_of(channels: Sequence[str], document: Json) -> Json | None:
    """Return the figures of the smallest measured set of channels that contains ``channels``; None if no set does."""
    measured = document["channels"].get("without", ())
    holding = [one for one in measured if set(channels) <= set(one["channels"])]
    return min(holding, key=lambda one: len(one["channels"]), default=None)

"""References of training hosts: if exactly one class is benign and a reference is long enough, its first half trains as
benign windows; the other half sets the host's level.

Windows that a model has learnt from would give too low a level, because the model has learnt to call them benign. So no
reference window both trains and sets a level. For a host whose reference does not train, the whole reference sets the
level.
"""

import hashlib
from collections.abc import Collection
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np

from training.certain import certain
from training.data.rows import Rows
from training.data.scratch import ROOM
from training.data.split import Split
from training.data.values import Floats32, Ints, JsonDict, Names
from training.trainer.contract import BadData
from training.trainer.evaluation.host_levels import FEWEST, HostLevels, ReferenceScores
from training.trainer.evaluation.scored import Classes, Scored
from training.trainer.inputs import Inputs
from training.trainer.task import Fitted, Joined, Outputs, Settling


class Parted(NamedTuple):
    """The places of the reference windows that are used for training, and of those that set levels."""

    train: Ints
    level: Ints


def part(inputs: Inputs, split: Split, *, also: Collection[str] = ()) -> Parted:
    """Divide all reference windows into those that train (of training hosts and of the hosts ``also``) and those that
    set levels.

    References train only if exactly one class is benign, and a host's reference only if its second half has enough
    windows for a level. All other reference windows set levels.
    """
    host = inputs.reference_host
    trains = []
    if len(inputs.classes.benign) == 1:
        for name in sorted({*inputs.rows.host[split.learnt].tolist(), *also}):
            places = np.flatnonzero(host == name)
            if places.size - places.size // 2 >= FEWEST:
                trains += places[: places.size // 2].tolist()
    train = np.array(sorted(trains), int)
    return Parted(train, np.setdiff1d(np.arange(host.size), train))


def join(inputs: Inputs, split: Split, train: Ints) -> Joined:
    """Append the reference windows ``train`` to the windows, on the training side; other sides do not change."""
    if not train.size:
        rows = inputs.rows
        return Joined(inputs.X, inputs.features, rows.host, inputs.y, rows.recording, inputs.behaviour, split)
    n = inputs.y.size
    benign = inputs.classes.names.index(inputs.classes.benign[0])
    none = np.full(train.size, "")
    return Joined(
        X=stacked(inputs.X, inputs.reference[train]),
        features=stacked(inputs.features, inputs.reference_features[train]),
        y=np.concatenate((inputs.y, np.full(train.size, benign))),
        host=_names(inputs.rows.host, inputs.reference_host[train]),
        recording=_names(inputs.rows.recording, none),
        behaviour=_names(inputs.behaviour, none),
        split=replace(split, train=np.concatenate((split.train, np.arange(n, n + train.size)))),
    )


def _names(first: Names, second: Names) -> Names:
    """Join two arrays of names, in memory or in a file."""
    return ROOM.joined((first, second), first.size + second.size, np.result_type(first, second))


class Added(NamedTuple):
    """References of hosts that are new to a model, in order to adapt it to them; ``inputs`` holds their windows.

    ``base`` is the digest of the checkpoint, ``data`` that of the data set that it was trained on. ``kept`` has the
    hosts' thresholds from before the model learnt from their references.
    """

    inputs: Inputs
    base: str
    data: str
    split: str  # the fingerprint
    kept: dict[str, float]

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.inputs.reference_host.tolist())))

    @property
    def digest(self) -> str:
        """SHA-256 of the reference windows and their hosts."""
        digest = hashlib.sha256(np.ascontiguousarray(self.inputs.reference_tensors).tobytes())
        digest.update("\0".join(self.inputs.reference_host.tolist()).encode())
        return digest.hexdigest()

    def to_dict(self) -> JsonDict:
        """Return JSON values for checkpoint and run key: the model that is adapted, and the references."""
        windows = {name: int((self.inputs.reference_host == name).sum()) for name in self.hosts}
        return {"checkpoint": self.base, "data": self.data, "reference": self.digest, "windows": windows}

    def require(self, fewest: int, what: str) -> None:
        """Raise ``BadData`` if a host's reference has fewer than ``fewest`` windows; ``what`` is the name, in the
        error's text, of what needs them."""
        for name, windows in self.to_dict()["windows"].items():
            if windows < fewest:
                raise BadData(
                    f"the reference of {name} has {windows} windows, and {what} needs {fewest}: record a longer one "
                    "(cis490 record --baseline)"
                )

    def onto(self, inputs: Inputs) -> Inputs:
        """Return the inputs that the model was trained on with these references added. Raises ``BadData`` for another
        data set than the model's.

        Earlier references of the same hosts are replaced.
        """
        if inputs.digest != self.data:
            raise BadData(
                "--data is not the data set that the model was trained on: name that one, or leave --data out to set "
                "the level alone"
            )
        own = self.inputs
        rest = ~np.isin(inputs.reference_host, self.hosts)
        names = ("reference", *(f"reference_{what}" for what in ("features", "tensors", "host", "marks")))
        joined: JsonDict = {name: np.concatenate((getattr(inputs, name)[rest], getattr(own, name))) for name in names}
        return replace(inputs, **joined)

    def check(self, inputs: Inputs, split: Split) -> None:
        """Raise ``BadData`` for a split other than the model's, or if the model was trained on windows of an added
        host."""
        if split.fingerprint != self.split:
            raise BadData("the data set is divided by other rules now than when the model was trained: train it again")
        known = sorted(set(inputs.rows.host[split.learnt].tolist()) & set(self.hosts))
        if known:
            raise BadData(
                f"{known[0]} has trained this model already: build its data with the new reference, and train it again"
            )


class _Stacked:
    """Two arrays that trainers use as one: the first may be a memory map that must not be copied."""

    def __init__(self, first: Floats32, second: Floats32) -> None:
        self._parts = first, second
        self.shape = (first.shape[0] + second.shape[0], *first.shape[1:])
        self.ndim = first.ndim

    def __getitem__(self, key: Any) -> Floats32:
        rows, *rest = key if isinstance(key, tuple) else (key,)
        places = np.arange(self.shape[0])[rows]
        first, second = self._parts
        behind = places >= first.shape[0]
        if not behind.any():
            return first[(places, *rest)]
        found = np.empty((places.size, *second[(slice(0, 0), *rest)].shape[1:]), np.float32)
        found[~behind] = first[(places[~behind], *rest)]
        found[behind] = second[(places[behind] - first.shape[0], *rest)]
        return found


def stacked(first: Floats32, second: Floats32) -> Floats32:
    """Append ``second`` to ``first`` (N, …) without copying; only the rows asked for are read."""
    return cast("Floats32", _Stacked(first, second))


def settled(fitted: Fitted, inputs: Inputs) -> Fitted:
    """Return the model after it measured the hosts that have a reference here, if its family measures hosts.

    A model of another family is returned unchanged; so is any model if there is no reference here.
    """
    if not isinstance(fitted, Settling) or not inputs.reference_host.size:
        return fitted
    return fitted.settled(inputs.ordinary)


def references_of(fitted: Fitted, inputs: Inputs, places: Ints) -> ReferenceScores:
    """Compute the alarm scores of the reference windows at ``places``; anomaly scores are not yet relative to their
    hosts' levels."""
    host, marks = inputs.reference_host[places], inputs.reference_marks[places]
    outputs = fitted.predict(inputs.ordinary, places)
    if outputs.proba is not None:
        return ReferenceScores(inputs.classes.alarm_score(outputs.proba), host, marks)
    return ReferenceScores(certain(outputs.score, "a model answers with probabilities or scores"), host, marks)


def scored_by(outputs: Outputs, rows: Rows, levels: HostLevels | None, classes: Classes) -> Scored:
    """Build the scored windows from a model's outputs; with ``levels``, anomaly scores become relative to their hosts'
    levels."""
    score = outputs.score
    if score is not None and levels is not None:
        score = levels.applied(score, rows.host)
    return Scored.build(rows, proba=outputs.proba, score=score, classes=classes)

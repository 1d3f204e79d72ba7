"""Turn a host's samples into scored windows, by the same rules as ``training.data.build`` and
``training.trainer.score``."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from training.certain import certain
from training.data import normalise
from training.data.assemble import ChosenChannels, choose_channels
from training.data.channels import CHANNELS, Measure
from training.data.dataset import Dataset, WindowSet, unwritten
from training.data.rows import Rows
from training.data.schema import FeatureSchema, Timing
from training.data.stream import GridWindow, WindowStream
from training.data.values import Floats
from training.trainer.changes import Measures, Values
from training.trainer.checkpoint import schema_of
from training.trainer.contract import BadData
from training.trainer.incident_rule import LONGEST, Window
from training.trainer.inputs import Inputs
from training.trainer.judging import Judged, OpenedModel, judged_by
from training.trainer.own_references import OwnReferences
from training.trainer.reasons import explain
from training.trainer.task import Fitted

Sample = Mapping[str, float | None]

BLIND_S = 60.0  # without a whole sample, after which the recording begins anew: a channel that is gone stays away
TOUCH_S = 0.01  # between spans, which are no spans of their own then: epoch seconds are rounded
FEW = 10  # windows of this host that say how unlike it is


class ScoredWindow(NamedTuple):
    """A window of the host with its score and the threshold for alarms; ``share`` is None without an alarm."""

    window: Window
    score: float
    threshold: float
    share: Floats | None = None  # (C,) of the channels in an alarm's score
    measures: Values | None = None  # (M,) by which the host is held against its reference


class HostDetector:
    """Scores one host's windows as its samples arrive.

    ``began_at`` is the moment of time 0 in epoch seconds. ``judged`` has the scores of the first ``FEW`` or so windows
    (None before), which show the channels that the host lacks and how much the host differs from the training hosts.
    """

    def __init__(self, model: OpenedModel, own: OwnReferences, *, host: str, view: str, began_at: float) -> None:
        self._model, self._own, self._host, self.began_at = model, own, host, began_at
        self._schema = schema_of(model.checkpoint)
        require_watchable(self._schema, model)
        self._chosen: ChosenChannels = choose_channels((), self._schema)
        self._usable = [self._chosen.views.get(name, view) == view for name in self._schema.channel_names]
        self._counters = np.array([channel.kind == Measure.COUNTER for channel in self._schema.channels])
        self._stream = self._begin()
        self._reference: WindowSet | None = None  # one of its windows: it says that there are some
        self._known: Judged | None = None
        if own.windows is not None and len(own.windows.rows):
            rows = own.windows.rows
            unlabelled = _rows(host, rows.t_start.tolist(), rows.t_end.tolist())
            self._reference = own.windows
            self._known = self._judge(WindowSet(X=own.windows.X, rows=unlabelled))
            self._reference = WindowSet(X=own.windows.X[:1], rows=rows.take(np.arange(1)))
        self._early: list[WindowSet] = []
        self._lost = 0  # of streams before this one
        self.measures = Measures.of(self._schema)
        self._alarms: deque[tuple[Inputs, int]] = deque(maxlen=LONGEST)  # as many as can raise an incident
        self.judged: Judged | None = None

    @property
    def channels(self) -> tuple[str, ...]:
        return self._schema.channel_names

    @property
    def usual(self) -> Values:
        """The means (R, M) of the M measures in each of the R stretches (about a minute each) of the host's reference;
        R is 0 without a reference."""
        none = np.zeros((0, len(self._schema.features)))
        return self.measures.usual(none if self._known is None else self._known.inputs.features)

    def _begin(self) -> WindowStream:
        schema = self._schema
        return WindowStream(
            self._counters,
            sample_hz=schema.sample_hz,
            window=round(schema.window_s * schema.sample_hz),
            stride=round(schema.stride_s * schema.sample_hz),
        )

    def push(self, t: float, sample: Sample) -> list[ScoredWindow]:
        """Take a sample at the time ``t``, in seconds since ``began_at``; return the windows that it completes, scored.

        After more than ``BLIND_S`` seconds without a complete sample, a new recording begins.
        """
        names = self._schema.channel_names
        found = [sample.get(name) if usable else None for name, usable in zip(names, self._usable, strict=True)]
        values = np.array([np.nan if value is None else float(value) for value in found])
        seen = self._scored(self._stream.push(t, values))
        if self._stream.blind_s > BLIND_S:
            self._lost += self._stream.skipped
            self._stream = self._begin()
        return seen

    def restart(self) -> None:
        """Begin a new recording at time 0, and forget the latest alarms."""
        self._lost += self._stream.skipped
        self._stream = self._begin()
        self._alarms.clear()

    @property
    def lost(self) -> int:
        """The number of windows, of all recordings so far, that were not scored, because samples are missing in
        them."""
        return self._lost + self._stream.skipped

    def end(self) -> list[ScoredWindow]:
        """End the recording; return the scored windows that are complete only once no further sample can come."""
        return self._scored(self._stream.end())

    def _scored(self, cuts: Sequence[GridWindow]) -> list[ScoredWindow]:
        if not cuts:
            return []
        starts = [self.began_at + cut.start_s for cut in cuts]
        ends = [start + self._schema.window_samples / self._schema.sample_hz for start in starts]
        compressed = normalise.compress(np.stack([cut.values for cut in cuts]), self._chosen.channels)
        values = normalise.apply(compressed, self._host, self._own.references)
        windows = WindowSet(X=np.ascontiguousarray(values.transpose(0, 2, 1)), rows=_rows(self._host, starts, ends))
        judged = self._judge(windows)
        self._remember(windows)
        threshold = certain(judged.thresholds, "a model without a threshold is not watched")
        share = self._shares(judged)
        measures = self.measures.take(judged.inputs.features)
        return [
            ScoredWindow(
                Window(start, end, float(score - limit)),
                float(score),
                float(limit),
                share.get(number),
                measures[number],
            )
            for number, (start, end, score, limit) in enumerate(
                zip(starts, ends, judged.scored.score, threshold, strict=True)
            )
        ]

    @property
    def _fitted(self) -> Fitted:
        """The fitted model; if the host has a reference and the model's family uses references, fitted to that
        reference."""
        return self._model.fitted if self._known is None else self._known.fitted

    def _shares(self, judged: Judged) -> dict[int, Floats]:
        """Return a dict from the row of each alarm to the shares (C,) of the C channels in that alarm's score."""
        inputs, alarm = judged.inputs, judged.alarm
        alarms = np.flatnonzero([] if alarm is None else alarm)
        if not alarms.size:
            return {}
        if self._known is not None:  # all of the reference says what is usual
            own = self._known.inputs
            inputs = replace(
                inputs,
                reference_tensors=own.tensors,
                reference_features=own.features,
                reference_host=own.rows.host,
                reference_marks=own.rows.marks,
            )
        self._alarms.extend((inputs, number) for number in alarms.tolist())
        found = explain(self._fitted, inputs, alarms, seconds=False)
        return dict(zip(found.rows.tolist(), found.share, strict=True))

    def moments(self, began: float, until: float) -> list[tuple[float, float]]:
        """Return the spans (start, end) of epoch seconds that contributed most to the latest alarms.

        Only alarms of windows with ``began`` ≤ start < ``until`` count. Explaining one second of a window costs as much
        as scoring the window, so the spans are computed for incidents, not for every alarm.
        """
        spans: list[tuple[float, float]] = []
        for inputs, row in self._alarms:
            start = float(inputs.rows.t_start[row])
            if began <= start < until:
                found = explain(self._fitted, inputs, np.array([row]))
                spans += [(start + low, start + high) for low, high in found.moments(0)]
        return joined(spans)

    def _remember(self, windows: WindowSet) -> None:
        if self.judged is not None:
            return
        self._early.append(windows)
        if sum(len(one.rows) for one in self._early) >= FEW:
            X = np.concatenate([one.X for one in self._early])
            starts = np.concatenate([one.rows.t_start for one in self._early])
            ends = np.concatenate([one.rows.t_end for one in self._early])
            rows = _rows(self._host, starts.tolist(), ends.tolist())
            self.judged, self._early = self._judge(WindowSet(X=X, rows=rows)), []

    def _judge(self, windows: WindowSet) -> Judged:
        data: Dataset = unwritten(windows, self._schema, self._reference)
        return judged_by(self._model, data, f"what {self._host} shows", known=self._known)


def joined(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the spans (start, end) in order of time; overlapping spans, and spans at most ``TOUCH_S`` apart, are
    merged."""
    found: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1] + TOUCH_S:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def _rows(host: str, starts: Sequence[float], ends: Sequence[float]) -> Rows:
    names = [host] * len(starts)
    return Rows.of(episode=names, host=names, t_start=starts, t_end=ends, label=np.zeros(len(starts), int))


def require_watchable(schema: FeatureSchema, model: OpenedModel) -> None:
    """Raise ``BadData`` for a model that cannot watch a host.

    A model cannot watch if it has no threshold, another mode than realistic, windows without a clock in training, or
    none of the recorder's channels.
    """
    document = model.document
    if schema.time is not Timing.SECONDS or not set(schema.channel_names) & set(CHANNELS):
        raise BadData(
            f"{model.path} was trained on other channels than the recorder measures, or without a clock: score such "
            "data with python -m training.trainer.score"
        )
    if document["mode"] != "realistic":
        raise BadData(
            f"{model.path} sees channels that only a laboratory has: watch a host with a model of the mode realistic"
        )
    if (document.get("threshold") or {}).get("threshold") is None:
        raise BadData(f"{model.path} has no threshold, so it raises no alarms: its report says why")

"""``python -m training.trainer.drift CKPT DATA``: report which hosts have changed, and whether alarms can be believed
there.

``DATA`` is a processed data set. The later windows of each host in ``DATA`` are compared with the earlier ones and the
host's reference recordings, if any, by the rule of `training.trainer.shift_test`: each channel's level and its spread.
A lasting change is reported with its channels and its beginning. A lasting attack looks the same as new work, so a
change never suppresses an alarm.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from training.data.values import Bools, Ints, JsonDict
from training.streams import replace_unprintable
from training.trainer.arguments import model_parser
from training.trainer.changes import Measures, Moved, Record, in_order, in_words, when
from training.trainer.contract import BadData, Progress, Stop, limit_threads, perform
from training.trainer.evaluation.facts import percent

if TYPE_CHECKING:
    from training.trainer.judging import Judged

PROGRAM = "training.trainer.drift"
STRANGE = 0.2  # of the windows since the change outside of what was trained on, from which alarms are guesses
TIMES = 2.0  # the alarms of before, from which their share has changed as well


def main(argv: Sequence[str] | None = None) -> int:
    replace_unprintable()
    parser = model_parser(
        PROGRAM,
        "Tell which hosts of a data set are no longer as before or as their references, which of their channels "
        "changed and since when, and whether the alarms of a model can be believed there.",
    )
    parser.add_argument("data", type=Path, help="folder of a processed data set")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    names = parser.parse_args(argv)
    limit_threads(names.threads)

    def work(_progress: Progress, _stop: Stop) -> None:
        from training.trainer.judging import judge

        found = drift(judge(names.checkpoint, names.data, threads=names.threads))
        text = (
            json.dumps([one.to_dict() for one in found], ensure_ascii=False, allow_nan=False)
            if names.json
            else "\n".join(line for one in found for line in one.lines())
        )
        print(text)

    return perform(work, out=sys.stderr)


@dataclass(frozen=True, kw_only=True)
class Drift:
    """The result of testing a host for a change, in stretches of about a minute.

    ``doubts`` are sentences that cast doubt on the host's alarms, whether it changed or not. ``channels`` is empty if
    nothing changed, or if ``enough_to_tell`` is False. ``reference_needed`` is the smallest number of reference
    stretches with which a change of all the host's stretches could be detected; None if no number tried is enough.
    ``start`` is the row, among the host's in time order, at which the surest change begins; None without a change. The
    shares of alarms are None where the model has no threshold, or nothing changed; ``alarms_before`` also where no
    window is before the change.
    """

    host: str
    stretches: int
    reference_stretches: int
    measures: int
    enough_to_tell: bool
    reference_needed: int | None
    channels: tuple[Moved, ...] = ()
    start: int | None = None
    doubts: tuple[str, ...] = ()
    alarms_before: float | None = None
    alarms_since: float | None = None
    outside_since: float | None = None

    def lines(self) -> list[str]:
        """Return two lines of text about the host: what changed, and whether to believe its alarms."""
        looked = f"{self.measures} measures of {self.stretches:,} stretches"
        looked += f" beside {self.reference_stretches:,} of its reference"
        if not self.enough_to_tell:
            said = f"too little to tell ({looked}). Record more, or a longer reference."
        elif not self.channels:
            said = f"no change that lasts ({looked})."
        else:
            since = f"changed since {when(self.channels[0].since, self.start)}"
            since = since if self.start else "unlike its reference from its first window on"
            said = f"{since}: {in_words(self.channels)} ({looked})."
        return [f"{self.host}: {said}{self._bare()}", f"  {self.believe()}"]

    def _bare(self) -> str:
        if not self.reference_stretches:
            return " It has no reference: whether all of this is unusual cannot be seen, only a change within it."
        if self.channels or self.reference_needed is None or self.reference_stretches >= self.reference_needed:
            return ""
        return (
            f" Its reference of {self.reference_stretches} is too short to tell whether all of this is unlike it: "
            f"{self.reference_needed} would do."
        )

    def believe(self) -> str:
        """Return one or more sentences that say whether the alarms of the model can be believed on this host."""
        if not self.enough_to_tell:
            return " ".join(["Whether alarms can be believed here is not known.", *self.doubts])
        if not self.channels and self.doubts:
            return f"Believe alarms with care: {' '.join(self.doubts)}"
        if not self.channels:
            return "Alarms can be believed as far as the model's report goes."
        if self.outside_since is not None and self.outside_since >= STRANGE:
            return (
                f"Since then {100 * self.outside_since:.0f} % of the windows are unlike all that the model has learnt "
                "from: do not believe its alarms, nor their absence. Look at the host; if this is its work from now "
                "on, record a new reference."
            )
        if self.alarms_since is None:
            return (
                "The model has no threshold: look at the host; if this is its work from now on, record a new reference."
            )
        if self.alarms_before is None:
            return (
                f"{percent(self.alarms_since)} of the windows raise an alarm, and what its usual work raises is not "
                "known: believe them with care, or record a reference of what this host does now."
            )
        before, since = percent(self.alarms_before), percent(self.alarms_since)
        shares = f"{before} of the windows raised an alarm before, {since} since"
        if self.alarms_since > TIMES * self.alarms_before:
            return (
                f"{shares}: an attack that stays looks like this, and so does new work. Look at the host; only if this "
                "is its work from now on, record a new reference."
            )
        return f"{shares}: the change has not made it louder. Alarms can be believed with care; record a new reference."

    def to_dict(self) -> JsonDict:
        """Return the fields as JSON values, with the time of the change and the sentence about alarms, but without
        ``start``."""
        found = {**asdict(self), "since": self.channels[0].since if self.channels else None, "believe": self.believe()}
        return {name: value for name, value in found.items() if name != "start"}


def drift(judged: Judged) -> list[Drift]:
    """Compare the later windows of each host of the data with its earlier ones and its own reference, if any. Raises
    BadData for rows that are windows, of which none is earlier."""
    import numpy as np

    from training.trainer import ranges

    if judged.inputs.schema.has_examples:
        raise BadData("The rows of this data set are windows without a time, and nothing changes without one.")
    rows = judged.inputs.rows
    odd = np.asarray(ranges.outside(judged.inputs, judged.document).any(axis=1))
    ordered = in_order(rows)
    return [_of(host, ordered[rows.host[ordered] == host], judged, odd) for host in np.unique(rows.host).tolist()]


def _of(host: str, rows: Ints, judged: Judged, odd: Bools) -> Drift:
    """Compute the drift of one host, whose windows are ``rows`` in time order."""
    from training.trainer import shift_test

    inputs = judged.inputs
    measures, record = Measures.of(inputs.schema), Record()
    values = measures.take(inputs.features[rows])
    times = inputs.timed.t_start[rows].tolist()
    for piece, time, row in zip(inputs.rows.recording[rows].tolist(), times, values, strict=True):
        record.grow(piece, None if time != time else time, row, measures.windows)  # NaN: unknown
    record.end(measures.windows)
    usual = measures.usual(inputs.reference_features[inputs.reference_host == host])
    series = record.series(usual, measures)
    tells = shift_test.can_tell(series)
    told = shift_test.find(series) if tells else []
    found = Drift(
        host=host,
        stretches=len(series),
        reference_stretches=len(series.usual),
        measures=series.measures,
        enough_to_tell=tells,
        reference_needed=shift_test.reference_needed(series),
        doubts=_doubts(host, rows, judged, odd),
    )
    if not told:
        return found

    start = record.stretches[told[0].start].window
    before, since = rows[:start], rows[start:]
    alarm = judged.alarm

    def share(marks: Bools | None, which: Ints) -> float | None:
        return None if marks is None or not which.size else float(marks[which].mean())

    return replace(
        found,
        channels=record.moved(told, measures),
        start=start,
        alarms_before=share(alarm, before),
        alarms_since=share(alarm, since),
        outside_since=share(odd, since),
    )


def _doubts(host: str, rows: Ints, judged: Judged, odd: Bools) -> tuple[str, ...]:
    """Return sentences that cast doubt on the alarms on a host, whether it changed or not."""
    said = []
    if odd[rows].mean() >= STRANGE:
        said.append(f"{100 * odd[rows].mean():.0f} % of its windows are unlike all that the model has learnt from.")
    if host not in judged.references.host:
        said.append("It has no reference, so it is unknown what is usual there.")
    elif judged.calibrated is not None:
        said += judged.references.of(host).doubts(judged.calibrated)
    return tuple(said)


if __name__ == "__main__":
    sys.exit(main())

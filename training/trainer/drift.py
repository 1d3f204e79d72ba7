"""``python -m training.trainer.drift CKPT DATA``: report which hosts have changed, and whether alarms can be believed
there.

Of each host in ``DATA``, a processed data set, the windows in time order are compared with its reference recordings by
the rule of `training.trainer.shift_test`: each channel's level and its spread. A lasting change is reported with its
channels and its beginning. A lasting attack looks the same, so nothing here lowers an alarm.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.data.values import Bools, Ints
from training.streams import replace_unprintable
from training.trainer.arguments import model_parser
from training.trainer.changes import Measures, Moved, Record, in_order, in_words, once_a_channel, when
from training.trainer.contract import Progress, Stop, limit_threads, perform
from training.trainer.evaluation.facts import percent

if TYPE_CHECKING:
    from training.trainer.judging import Judged
    from training.trainer.shift_test import Shift

PROGRAM = "training.trainer.drift"
STRANGE = 0.2  # of the windows since the change outside of what was trained on, from which alarms are guesses
TIMES = 2.0  # the alarms of before, from which their share has changed as well


def main(argv: Sequence[str] | None = None) -> int:
    replace_unprintable()
    parser = model_parser(
        PROGRAM,
        "Tell which hosts of a data set are no longer as their reference recordings, which of their channels changed "
        "and since when, and whether the alarms of a model can be believed there.",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A host and its reference, in stretches of a minute.

    ``doubts``: sentences that cast doubt on its alarms whether it changed or not. ``moved`` is empty if nothing
    changed, or if ``tells`` is False. ``needs``: how many stretches of reference would suffice to detect a change in
    all of the host's. ``start`` is the row, among the host's in time order, from which the surest change lasts. The
    alarms' shares are None where the model has no threshold, or nothing changed.
    """

    host: str
    stretches: int
    reference: int
    measures: int
    tells: bool
    needs: int | None
    moved: tuple[Moved, ...] = ()
    start: int | None = None
    doubts: tuple[str, ...] = ()
    alarms_before: float | None = None
    alarms_since: float | None = None
    outside_since: float | None = None

    def lines(self) -> list[str]:
        """The lines of text about one host."""
        looked = f"{self.measures} measures of {self.stretches:,} stretches beside {self.reference:,} of its reference"
        if not self.tells:
            said = f"too little to tell ({looked}). Record more, or a longer reference."
        elif not self.moved:
            said = f"no change that lasts ({looked})."
        else:
            since = f"changed since {when(self.moved[0].since, self.start)}"
            since = since if self.start else "unlike its reference from its first window on"
            said = f"{since}: {in_words(self.moved)} ({looked})."
        return [f"{self.host}: {said}{self._bare()}", f"  {self.believe()}"]

    def _bare(self) -> str:
        if not self.reference:
            return " It has no reference: whether all of this is unusual cannot be seen, only a change within it."
        if self.moved or self.needs is None or self.reference >= self.needs:
            return ""
        return (
            f" Its reference of {self.reference} is too short to tell whether all of this is unlike it: "
            f"{self.needs} would do."
        )

    def believe(self) -> str:
        """Say in a sentence whether the alarms of the model can be believed on this host."""
        if not self.tells:
            return " ".join(["Whether alarms can be believed here is not known.", *self.doubts])
        if not self.moved and self.doubts:
            return f"Believe alarms with care: {' '.join(self.doubts)}"
        if not self.moved:
            return "Alarms can be believed as far as the model's report goes."
        if self.outside_since is not None and self.outside_since >= STRANGE:
            return (
                f"Since then {self.outside_since:.0%} of the windows are unlike all that the model has learnt from: "
                "do not believe its alarms, nor their absence. Look at the host; if this is its work from now on, "
                "record a new reference."
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

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        return {
            "host": self.host,
            "stretches": self.stretches,
            "reference_stretches": self.reference,
            "reference_needed": self.needs,
            "measures": self.measures,
            "enough_to_tell": self.tells,
            "since": self.moved[0].since if self.moved else None,
            "channels": [one.to_dict() for one in self.moved],
            "doubts": list(self.doubts),
            "alarms_before": self.alarms_before,
            "alarms_since": self.alarms_since,
            "outside_since": self.outside_since,
            "believe": self.believe(),
        }


def drift(judged: Judged) -> list[Drift]:
    """Compare each host of the data with its own reference."""
    import numpy as np

    from training.trainer import ranges

    rows = judged.inputs.rows
    odd = np.asarray(ranges.outside(judged.inputs, judged.document).any(axis=1))
    ordered = in_order(rows)
    return [_of(host, ordered[rows.host[ordered] == host], judged, odd) for host in np.unique(rows.host).tolist()]


def _of(host: str, rows: Ints, judged: Judged, odd: Bools) -> Drift:
    """The drift of one host, whose windows are ``rows`` in time order."""
    import numpy as np

    from training.trainer import shift_test

    inputs = judged.inputs
    measures, record = Measures.of(inputs.schema_fields), Record()
    values = measures.take(inputs.features[rows])
    times = inputs.timed.t_start[rows].tolist()
    for piece, time, row in zip(inputs.rows.recording[rows].tolist(), times, values, strict=True):
        record.grow(piece, None if time != time else time, row, measures.windows)  # NaN: unknown
    record.end(measures.windows)
    usual = measures.usual(inputs.reference_features[inputs.reference_host == host])
    here = np.flatnonzero(np.isfinite(values).any(axis=0))
    pieces = np.array([one.piece for one in record.stretches], dtype=np.int64)
    series = shift_test.StretchSeries(usual[:, here], record.means(measures)[:, here], pieces)
    tells = shift_test.can_tell(series)
    told = shift_test.find(series) if tells else []
    found = Drift(
        host=host,
        stretches=len(series),
        reference=len(series.usual),
        measures=here.size,
        tells=tells,
        needs=shift_test.reference_needed(series),
        doubts=_doubts(host, rows, judged, odd),
    )
    if not told:
        return found

    def moved(one: Shift) -> Moved:
        own = replace(one, measure=int(here[one.measure]))
        return measures.moved(own, record.stretches[one.start].began)

    start = record.stretches[told[0].start].window
    before, since = rows[:start], rows[start:]
    alarm = judged.alarm

    def share(marks: Bools | None, which: Ints) -> float | None:
        return None if marks is None or not which.size else float(marks[which].mean())

    return replace(
        found,
        moved=once_a_channel(map(moved, told)),
        start=start,
        alarms_before=share(alarm, before),
        alarms_since=share(alarm, since),
        outside_since=share(odd, since),
    )


def _doubts(host: str, rows: Ints, judged: Judged, odd: Bools) -> tuple[str, ...]:
    """Sentences that cast doubt on the alarms on a host, whether it changed or not."""
    said = []
    if odd[rows].mean() >= STRANGE:
        said.append(f"{odd[rows].mean():.0%} of its windows are unlike all that the model has learnt from.")
    if host not in judged.references.host:
        said.append("It has no reference, so it is unknown what is usual there.")
    elif judged.calibrated is not None:
        said += judged.references.of(host).doubts(judged.calibrated)
    return tuple(said)


if __name__ == "__main__":
    sys.exit(main())

"""``python -m training.trainer.score CKPT DATA``: score new windows with a trained model.

``DATA`` is a processed data set (a folder like ``data/processed``) of the schema that the model was trained on.
Channels that the data lack count as absent; channels of the recorder that the model does not know are left out. Data
that differ in anything else are refused before the weights are loaded. Each window gets its score, the probability of
each class where the model has classes, and whether it raises an alarm. Each window also gets the side it was on when
the model was trained (``new``: on none; empty: unknown). Remarks on the scores go to standard error, with a summary:
windows, alarms, incidents, missing channels and their cost, and whether to believe the scores. ``--incidents`` writes
the incidents to a file, ``--explain`` adds the channels and seconds that carried the alarms, of at most 512 of them.
With ``--state FILE`` recordings may be scored in pieces: an incident that is open at the end of one piece continues in
the next, and windows that were scored before change no incident. A changed host is reported until ``--confirm-change``
or a new reference; alarms are not suppressed meanwhile.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from training.data.executors.engine import EngineError
from training.data.executors.names import add_executor, spread_over
from training.streams import complain, replace_unprintable
from training.trainer.arguments import model_parser
from training.trainer.contract import BadArguments, EngineUnreachable, Progress, Stop, limit_threads, perform

if TYPE_CHECKING:
    from training.trainer.judging import Judged

PROGRAM = "training.trainer.score"


def main(argv: Sequence[str] | None = None) -> int:
    replace_unprintable()
    parser = model_parser(PROGRAM, "Score windows with a trained model.")
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
        help="file that keeps open incidents, and the record of each host, from one call to the next (default: none)",
    )
    parser.add_argument(
        "--confirm-change", action="append", default=[], metavar="HOST",
        help="accept the reported change of this host as its ordinary work from now on; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--explain", action="store_true", help="add channels and seconds that carried an alarm, for up to 512 alarms"
    )
    add_executor(parser, processes="one")
    names = parser.parse_args(argv)
    limit_threads(names.threads)

    def work(_progress: Progress, _stop: Stop) -> None:
        # Imported late: numerical libraries read the number of threads when they are imported.
        from training.trainer import scoring
        from training.trainer.judging import sides
        from training.trainer.summary import lines

        for flag, file in (("--out", names.out), ("--incidents", names.incidents)):
            if file is not None and file.suffix not in scoring.FORMATS:
                raise BadArguments(f"{flag} {file} must end in {', '.join(scoring.FORMATS)}")
        if names.confirm_change and names.state is None:
            raise BadArguments("--confirm-change needs --state: the file in which the change was kept")
        judged = _judged(names)
        side = sides(judged)
        followed = scoring.follow(judged, names.state, names.confirm_change)
        reasons = scoring.why(judged) if names.explain else None
        scoring.write(scoring.parts(judged, side, reasons), names)
        if names.incidents is not None:
            scoring.write_file(iter([scoring.incident_table(judged, followed.called, reasons)]), names.incidents)
        for remark in (*scoring.remarks(judged, side), *followed.notes):
            complain(f"note: {remark}")
        print("\n".join(lines(judged, followed.called, reasons, followed.changed)), file=sys.stderr)

    return perform(work, out=sys.stderr)


def _judged(names: argparse.Namespace) -> Judged:
    """Score the windows, in one process or on the engine that the user named."""
    from training.contract import TENSORS_FOLDER
    from training.data.tensors import MANIFEST
    from training.trainer.judging import LIBRARIES, judge, judge_in_parts

    files = (names.checkpoint, names.data / TENSORS_FOLDER / MANIFEST)
    alone = not names.executor.far and names.jobs in (None, 1)
    if alone or not all(path.is_file() for path in files):  # what is missing is said without an engine
        return judge(names.checkpoint, names.data, threads=names.threads)
    try:
        spread = spread_over(names.executor, names.jobs, libraries=LIBRARIES, files=files, folder=names.data)
        with spread as mapped:
            return judge_in_parts(names.checkpoint, names.data, mapped, threads=names.threads)
    except EngineError as error:
        raise EngineUnreachable(str(error)) from None


if __name__ == "__main__":
    sys.exit(main())

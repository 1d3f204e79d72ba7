"""``python -m training.trainer.compare A.ckpt.json B.ckpt.json … DATA``: test whether one model is better, or only
lucky.

Without ``--other-data``, all models are judged on windows that none of them saw: the test side of the split that their
checkpoints name. The program makes the models' split again from ``DATA``, the data set that all were trained on, and
checks its fingerprint. Without ``--other-data``, other data are refused, and so are models that split their common data
differently. With ``--other-data``, all are judged on the recordings in ``DATA`` that no model is known to have learnt
from. The gap between an oracle model and a realistic one shows what oracle channels are worth, if the data have any.
Given two folders, the program compares two rotations host by host.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from training.command_line import parser_of
from training.hyper import FEWEST_RESAMPLES
from training.streams import replace_unprintable
from training.trainer.arguments import add_threads
from training.trainer.contract import BadArguments, Progress, Stop, limit_threads, perform

MOST_RESAMPLES = 1_000_000
PROGRAM = "training.trainer.compare"


def main(argv: Sequence[str] | None = None) -> int:
    replace_unprintable()
    parser = parser_of(
        PROGRAM,
        description="Compare models on windows that none of them saw: by AUROC, caught windows and false alarms. For "
        "two models also the gaps with 95 % intervals; for more, which of them differ from the first.",
    )
    parser.add_argument(
        "a",
        type=Path,
        help="file <model>_<mode>.ckpt.json of a trained model, or the folder of a rotation's checkpoints",
    )
    parser.add_argument("b", type=Path, help="checkpoint, or folder of another rotation, to compare the first with")
    parser.add_argument(
        "more",
        type=Path,
        nargs="*",
        help="further checkpoints; then also shows ties, and how much too high the best AUROC is",
    )
    parser.add_argument("data", type=Path, help="folder of the data set that trained all models, or of --other-data")
    parser.add_argument(
        "--n-resamples", type=_resamples, default=1000, help="number of bootstrap resamples (default 1000)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the resamples (default 0)")
    add_threads(parser)
    parser.add_argument(
        "--other-data", action="store_true",
        help="allow other data, or another split: judge the recordings here that no model is known to have used",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    names = parser.parse_args(argv)
    limit_threads(names.threads)

    def work(_progress: Progress, _stop: Stop) -> None:
        from training.trainer import comparison, rotated
        from training.trainer.judging import judge

        paths = (names.a, names.b, *names.more)
        if any(path.is_dir() for path in paths):
            if len(paths) > 2 or not all(path.is_dir() for path in paths):
                raise BadArguments("folders are compared two at a time, and with no file: name two rotations")
            if names.other_data:
                raise BadArguments("--other-data has no effect on two rotations: leave it out, or name two files")
            counts = {"n_resamples": names.n_resamples, "seed": names.seed, "threads": names.threads}
            folded = rotated.compare_rotations(names.a, names.b, names.data, **counts)
            print(json.dumps(folded, allow_nan=False) if names.json else rotated.in_words(folded))
            return
        judged = [judge(path, names.data, threads=names.threads) for path in paths]
        asked = {"n_resamples": names.n_resamples, "seed": names.seed, "other_data": names.other_data, "paths": paths}
        found = comparison.compare(*judged, **asked)
        print(json.dumps(found, allow_nan=False) if names.json else comparison.in_words(found))

    return perform(work, out=sys.stderr)


def _resamples(text: str) -> int:
    value = int(text)
    if not FEWEST_RESAMPLES <= value <= MOST_RESAMPLES:
        raise argparse.ArgumentTypeError(
            f"must be from {FEWEST_RESAMPLES} to {MOST_RESAMPLES}, not {text}: fewer make no interval, and without one "
            "there is no conclusion"
        )
    return value


if __name__ == "__main__":
    sys.exit(main())

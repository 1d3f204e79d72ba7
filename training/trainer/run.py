"""``python -m training.trainer.run``: train one supervised model and report on it.

This file only reads the command line. What happens then is in ``session.py``; what a model is, in
the file that bears its name.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from training.streams import replace_unprintable
from training.trainer import flags
from training.trainer.arguments import parse
from training.trainer.contract import Progress, Stop, limit_threads, perform

PROGRAM = "training.trainer.run"


def main(argv: Sequence[str] | None = None) -> int:
    replace_unprintable()
    args = parse(sys.argv[1:] if argv is None else argv, program=PROGRAM, models=flags.RUN_MODELS)
    limit_threads(args.threads)

    def work(progress: Progress, stop: Stop) -> None:
        # Imported late: --describe and a wrong argument must not wait for an ML library, and a stop
        # must already be heard while one is being imported.
        from training.trainer.session import train

        train(args, progress, stop)

    return perform(work)


if __name__ == "__main__":
    sys.exit(main())

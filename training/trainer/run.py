"""``python -m training.trainer.run``: train one supervised model and report on it.

This file only reads the command line, for ``run_ssl`` as well. What happens then is in ``session.py``; what a model is,
in the file that bears its name.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from training.families import RUN_MODELS
from training.leaving import leave
from training.streams import replace_unprintable
from training.trainer.arguments import parse
from training.trainer.contract import Progress, Stop, limit_threads, perform


def main(
    argv: Sequence[str] | None = None, *, program: str = "training.trainer.run", models: Sequence[str] = RUN_MODELS
) -> int:
    """Train what the command line asks for; the exit code is the contract's."""
    replace_unprintable()
    args = parse(sys.argv[1:] if argv is None else argv, program=program, models=models)
    limit_threads(args.threads)

    def work(progress: Progress, stop: Stop) -> None:
        # Imported late: --describe and a wrong argument must not wait for an ML library, and a stop
        # must already be heard while one is being imported.
        from training.trainer.session import train

        train(args, progress, stop)

    return perform(work)


if __name__ == "__main__":
    leave(main())

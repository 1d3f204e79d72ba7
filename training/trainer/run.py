"""``python -m training.trainer.run``: train one supervised model and report on it.

This file only reads the command line, also for ``run_ssl``. The module `session` trains; `training.families` names the
module of each model family.
"""

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
    """Train as the command line says; return an exit code of the trainer contract. A wrong command line ends the
    process (see `parse`)."""
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

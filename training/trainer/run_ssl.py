"""``python -m training.trainer.run_ssl``: pre-train the self-supervised model and report on it.

The program needs only ``--mode --validation --tensors --out-dir --reports-dir``. Without ``--summary`` and ``--schema``
the program looks for both files beside the folder ``--tensors``, and trains also if they are missing.
"""

from functools import partial

from training.families import SSL_MODELS
from training.leaving import leave
from training.trainer import run

main = partial(run.main, program="training.trainer.run_ssl", models=SSL_MODELS)

if __name__ == "__main__":
    leave(main())

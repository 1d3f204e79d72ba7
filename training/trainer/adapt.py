"""``python -m training.trainer.adapt CKPT REFERENCE --out-dir DIR``: fit a model to a host that it has not seen.

``REFERENCE`` holds the host's ordinary work: a recording or a folder of them (``record --baseline``), or a processed
data set with references. With ``--data FOLDER``, the data set that the model was trained on, a supervised model is
trained again. With ``--data``, if exactly one class is benign, the first half of the new reference trains as benign
windows. A training with ``--data`` keeps the host's threshold that the earlier model computed from the whole reference:
a model scores its own training data too low. Without ``--data`` the weights do not change: only the host's level is set
and, for a model that measures hosts from their references, the host's centre. The checkpoint in ``DIR`` has the digests
of the earlier checkpoint and of the reference.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from training.streams import replace_unprintable
from training.trainer.arguments import model_parser
from training.trainer.contract import BadData, Progress, Stop, limit_threads, perform

PROGRAM = "training.trainer.adapt"


def main(argv: Sequence[str] | None = None) -> int:
    replace_unprintable()
    parser = model_parser(PROGRAM, "Fit a trained model to a host by its reference.")
    parser.add_argument(
        "reference", type=Path, help="reference recordings of the host, or a processed data set that has some"
    )
    parser.add_argument(
        "--data",
        type=Path,
        help="folder of the data set that the model was trained on, to train again (default: only set a level)",
    )
    parser.add_argument("--out-dir", type=Path, required=True, help="folder for the adapted checkpoint")
    parser.add_argument("--reports-dir", type=Path, help="folder for the report of a training (default: --out-dir)")
    parser.add_argument("--n-resamples", type=int, default=1000, help="number of bootstrap resamples (default 1000)")
    names = parser.parse_args(argv)
    limit_threads(names.threads)

    def work(progress: Progress, stop: Stop) -> None:
        from training.trainer import adaptation
        from training.trainer.evaluation.host_levels import FEWEST
        from training.trainer.judging import open_model
        from training.trainer.session import train

        with stop.at_once():
            model = open_model(names.checkpoint, threads=names.threads)
            added = adaptation.read_added(model, names.reference)
        if names.data is None:
            adaptation.set_level(model, added, names.out_dir)
            hosts = ", ".join(added.hosts)
            print(
                f"note: the weights are as they were: without --data only the level of {hosts} was set.",
                file=sys.stderr,
            )
            progress.event("done", hosts=list(added.hosts), trained=False)
        else:
            if not model.family.supervised:
                raise BadData(
                    f"{names.checkpoint} measures a host from its reference without another training: leave --data out"
                )
            if (model.document.get("adapted") or {}).get("trained"):
                raise BadData(f"{names.checkpoint} was adapted by training already: adapt the model that it came from")
            added.require(2 * FEWEST - 1, "a training")
            kept = {name: adaptation.hosts_of(model, added).of(name) for name in added.hosts}
            train(adaptation.arguments_of(model.document, names), progress, stop, added=added._replace(kept=kept))

    return perform(work)


if __name__ == "__main__":
    sys.exit(main())
